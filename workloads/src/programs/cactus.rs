//! Waves in many fields at once on a three-dimensional grid: the pattern of SPEC's cactuBSSN,
//! which evolves Einstein's equations as some dozens of coupled grid functions.
//!
//! Represents cactus of the adaptive-policy paper (SPEC CPU 2017, section 3.2). At every point all
//! fields are computed, each with differences along x, y and z: strides of a word, a row and a
//! plane in some fifty arrays, everything used once a step and not again until the next.
//!
//! The fields are plain waves without coupling: so their exact discrete solution is known, and the
//! result is compared to it.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check_error, fold};
use super::parameters::in_range;
use super::shared::grid::{self, Size};
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "cactus",
    summary: "waves in many fields on a grid, fourth-order differences (cactuBSSN-like)",
    stands_for: "adaptive policy section 3.2: cactus: strides along one dimension of some fifty arrays, low reuse",
    operation: "point updates",
    threads: true,
    parameters: &[ParameterDoc { name: "iterations", default: "10", meaning: "time steps" }],
    run: Run::of::<Cactus>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    iterations: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { iterations: 10 }
    }
}

/// Fields; each has a value and a speed (cactuBSSN: 24 evolved grid functions).
const FIELDS: usize = 24;
/// Weights of a point and of those one and two steps away, along one axis: the second
/// derivative of fourth order.
const WEIGHTS: [f64; 3] = [-5.0 / 2.0, 4.0 / 3.0, -1.0 / 12.0];
/// Time step in units of the mesh width; stable below 0.86.
const DT: f64 = 0.4;

/// A plane wave that fits the box.
#[derive(Clone, Copy)]
struct Wave {
    /// Phase that a step along each axis adds.
    turn: [f64; 3],
    start: f64,
    /// Phase that a step of time subtracts.
    beat: f64,
}

impl Wave {
    fn of(seed: u64, field: usize, size: Size) -> Wave {
        let mut words = random::Words::of(seed, field as u64);
        let turn =
            size.map(|side| 2.0 * std::f64::consts::PI * (1 + words.below(3)) as f64 / side as f64);
        // The frequency under the differences and leapfrog: sin (beat / 2) is half the step times
        // the root.
        let root = turn.iter().map(|&t| {
            -(WEIGHTS[0] + 2.0 * WEIGHTS[1] * libm::cos(t) + 2.0 * WEIGHTS[2] * libm::cos(2.0 * t))
        });
        let root = root.sum::<f64>().sqrt();
        let start = 2.0 * std::f64::consts::PI * words.unit();
        Wave { turn, start, beat: 2.0 * libm::asin(0.5 * DT * root) }
    }

    /// The wave after so many steps.
    fn at(self, place: [usize; 3], steps: f64) -> f64 {
        let turned: f64 = (0..3).map(|d| self.turn[d] * place[d] as f64).sum();
        libm::cos(turned + self.start - self.beat * steps)
    }
}

const NAMES: [&str; FIELDS] = [
    "field 0", "field 1", "field 2", "field 3", "field 4", "field 5", "field 6", "field 7",
    "field 8", "field 9", "field 10", "field 11", "field 12", "field 13", "field 14", "field 15",
    "field 16", "field 17", "field 18", "field 19", "field 20", "field 21", "field 22", "field 23",
];

struct Field {
    wave: Wave,
    value: Array<f64>,
    /// How much the value changes in the next half of a step.
    speed: Array<f64>,
}

struct Cactus;

impl Kernel for Cactus {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 20)?;
        let size = grid::near_cube(params.footprint_bytes as f64 / (16 * FIELDS) as f64);
        let n = grid::points(size);
        in_range("points along an edge that fit the footprint", size[2], 8, 1 << 20)?;

        let fields = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let mut fields = Vec::new();
            for (number, name) in NAMES.into_iter().enumerate() {
                let wave = Wave::of(params.seed, number, size);
                let value = m.array::<f64>(name, n)?;
                let speed = m.array::<f64>("speed", n)?;
                m.each(n, |m, i| {
                    m.work(250);
                    let place = grid::place(size, i);
                    let before = wave.at(place, -1.0);
                    let now = wave.at(place, 0.0);
                    m.set(&value, i, now);
                    m.set(&speed, i, (now - before) / DT);
                });
                fields.push(Field { wave, value, speed });
            }
            Ok(fields)
        })?;

        m.phase(phase::MAIN, 0, |m| {
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| step(m, size, fields));
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let (mut worst, mut checksum) = (0.0f64, 0);
                for field in fields {
                    for i in 0..n {
                        let value = m.get(&field.value, i);
                        checksum = fold(checksum, value.to_bits());
                        let exact = field.wave.at(grid::place(size, i), iterations as f64);
                        let error = (value - exact).abs();
                        worst = if error <= worst { worst } else { error };
                    }
                }
                // Rounding grows with the square of the steps: each speed keeps its error.
                let limit = 1e-12 * (iterations as f64 + 10.0).powi(2);
                let checks = vec![check_error("values are off the exact ones by", worst, limit)];
                let operations = iterations * (n * FIELDS) as u64;
                Ok(Outcome { checksum, operations, checks })
            })
        })
    }
}

/// One step of time: first all speeds, then all values, field by field at every point.
fn step<M: Memory>(m: &mut M, size: Size, fields: &[Field]) {
    let [nx, ny, nz] = size;
    let body = |m: &mut M, (): &mut (), rows: std::ops::Range<usize>| {
        for row in rows {
            let (y, z) = (row % ny, row / ny);
            let line = |y: usize, z: usize| grid::index(size, [0, y % ny, z % nz]);
            let ys = [ny - 2, ny - 1, 1, 2].map(|s| line(y + s, z));
            let zs = [nz - 2, nz - 1, 1, 2].map(|s| line(y, z + s));
            let here = line(y, z);
            for x in 0..nx {
                let xs = [nx - 2, nx - 1, 1, 2].map(|s| here + (x + s) % nx);
                m.work(97);
                for field in fields {
                    m.work(65);
                    let mut at = |i: usize| m.get(&field.value, i);
                    let near = at(xs[1]) + at(xs[2]) + at(ys[1] + x) + at(ys[2] + x);
                    let near = near + at(zs[1] + x) + at(zs[2] + x);
                    let far = at(xs[0]) + at(xs[3]) + at(ys[0] + x) + at(ys[3] + x);
                    let far = far + at(zs[0] + x) + at(zs[3] + x);
                    let middle = at(here + x);
                    let bend = 3.0 * WEIGHTS[0] * middle + WEIGHTS[1] * near + WEIGHTS[2] * far;
                    let speed = m.get(&field.speed, here + x) + DT * bend;
                    m.set(&field.speed, here + x, speed);
                }
            }
        }
    };
    m.parallel(ny * nz, 1, |_| (), body);
    m.each(grid::points(size), |m, i| {
        m.work(16);
        for field in fields {
            m.work(19);
            let value = m.get(&field.value, i) + DT * m.get(&field.speed, i);
            m.set(&field.value, i, value);
        }
    });
}

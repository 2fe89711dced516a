//! A partial differential equation solved with three-dimensional Fourier transforms: NPB's FT.
//!
//! Represents `ft` (NAS, class B) of the granularity paper (table 2), NPB ft and Testdft of the
//! rack paper (table II). Each transform goes through the whole box along x, then along y and along
//! z: strides of a row and of a plane, of which each touches another page.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check_error, fold};
use super::parameters::in_range;
use super::shared::fourier::{Complex, Plan, lengths};
use super::shared::grid::{self, Size};
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "ft",
    summary: "three-dimensional Fourier transforms (NPB FT)",
    stands_for: "granularity table 2: ft; rack table II: NPB ft, Testdft: passes over one box with strides of a word, a row and a plane",
    operation: "transformed points",
    threads: true,
    parameters: &[ParameterDoc {
        name: "iterations",
        default: "6",
        meaning: "time steps, one transform each (NPB class A: 6, class B: 20)",
    }],
    run: Run::of::<Ft>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    iterations: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { iterations: 6 }
    }
}

/// Diffusion (NPB specification, section 2.4).
const ALPHA: f64 = 1e-6;
/// Lines that are transformed together, so that reads of a row are contiguous.
const LINES: usize = 16;
/// Points and waves at which the result is compared with the sum that defines it.
const PROBES: u64 = 3;

/// Complex numbers, their parts side by side.
struct Field {
    parts: Array<f64>,
}

impl Field {
    fn get<M: Memory>(&self, m: &mut M, i: usize) -> Complex {
        (m.get(&self.parts, 2 * i), m.get(&self.parts, 2 * i + 1))
    }

    fn set<M: Memory>(&self, m: &mut M, i: usize, value: Complex) {
        m.set(&self.parts, 2 * i, value.0);
        m.set(&self.parts, 2 * i + 1, value.1);
    }
}

struct Ft;

impl Kernel for Ft {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 20)?;
        // Two fields and a factor for each point.
        let size = grid::with_sides(params.footprint_bytes as f64 / 40.0, &lengths(1 << 15));
        let n = grid::points(size);
        let plans = &size.map(Plan::new);
        let initial = |i: usize| {
            let mut words = random::Words::of(params.seed, i as u64);
            (words.unit(), words.unit())
        };

        let (waves, field, factors) = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let waves = Field { parts: m.array("waves", 2 * n)? };
            let field = Field { parts: m.array("field", 2 * n)? };
            let factors = m.array::<f64>("factors", n)?;
            m.each(n, |m, i| {
                m.work(3 * random::AT_WORK + 40);
                waves.set(m, i, initial(i));
                m.set(&factors, i, libm::exp(-decay(size, i)));
            });
            Ok((waves, field, factors))
        })?;

        m.phase(phase::MAIN, 0, |m| {
            transform(m, size, plans, waves, false);
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| {
                    m.each(n, |m, i| {
                        m.work(22);
                        let factor = m.get(factors, i);
                        let (re, im) = waves.get(m, i);
                        waves.set(m, i, (re * factor, im * factor));
                        field.set(m, i, (re * factor, im * factor));
                    });
                    transform(m, size, plans, field, true);
                });
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let energy = |m: &mut M, f: &Field| {
                    m.sum(n, |m, i| {
                        let (re, im) = f.get(m, i);
                        re * re + im * im
                    })
                };
                let of_waves = energy(m, waves);
                let of_field = energy(m, field);
                let scale = of_waves.sqrt();
                let mut words = random::Words::of(!params.seed, 0);
                let (mut forwards, mut backwards) = (0.0f64, 0.0f64);
                let distance = |a: Complex, b: Complex| (a.0 - b.0).hypot(a.1 - b.1);
                for _ in 0..PROBES {
                    let wave = words.below(n);
                    let sum = direct(size, plans, wave, false, initial);
                    let left = libm::exp(-decay(size, wave) * iterations as f64);
                    let error = distance(waves.get(m, wave), (sum.0 * left, sum.1 * left));
                    forwards = if error <= forwards { forwards } else { error };
                    let point = words.below(n);
                    let sum = direct(size, plans, point, true, |i| waves.get(m, i));
                    let error = distance(field.get(m, point), sum);
                    backwards = if error <= backwards { backwards } else { error };
                }
                let checksum = (0..n).fold(0, |sum, i| {
                    let (re, im) = field.get(m, i);
                    fold(fold(sum, re.to_bits()), im.to_bits())
                });
                let parseval = (of_field / n as f64 / of_waves - 1.0).abs();
                let checks = vec![
                    check_error("energy of field and waves differ by", parseval, 1e-10),
                    check_error("waves are off the defining sum by", forwards / scale, 1e-10),
                    check_error("field is off the defining sum by", backwards / scale, 1e-10),
                ];
                let operations = (iterations + 1) * n as u64;
                Ok(Outcome { checksum, operations, checks })
            })
        })
    }
}

/// How fast a wave decays: its squared number, with the upper half counted from the top down.
fn decay(size: Size, i: usize) -> f64 {
    let place = grid::place(size, i);
    let square = |d: usize| {
        let number = place[d].min(size[d] - place[d]) as f64;
        number * number
    };
    4.0 * ALPHA * std::f64::consts::PI.powi(2) * (square(0) + square(1) + square(2))
}

/// One value of a transform, by the sum that defines it.
fn direct(
    size: Size,
    plans: &[Plan; 3],
    at: usize,
    backwards: bool,
    mut value: impl FnMut(usize) -> Complex,
) -> Complex {
    let to = grid::place(size, at);
    let mut sum = (0.0, 0.0);
    for i in 0..grid::points(size) {
        let from = grid::place(size, i);
        let mut turn = (1.0, 0.0);
        for d in 0..3 {
            let (re, im) = plans[d].root(from[d] * to[d]);
            let im = if backwards { -im } else { im };
            turn = (turn.0 * re - turn.1 * im, turn.0 * im + turn.1 * re);
        }
        let (re, im) = value(i);
        sum.0 += re * turn.0 - im * turn.1;
        sum.1 += re * turn.1 + im * turn.0;
    }
    sum
}

/// Transforms a field along x, y and z, some lines at a time through a buffer in the caches.
fn transform<M: Memory>(m: &mut M, size: Size, plans: &[Plan; 3], field: &Field, backwards: bool) {
    let [nx, ny, nz] = size;
    let blocks = nx.div_ceil(LINES);
    for (d, plan) in plans.iter().enumerate() {
        // Lines along x are one after the other; those along y and z side by side.
        let (groups, stride) = [(ny * nz, 1), (nz * blocks, nx), (ny * blocks, nx * ny)][d];
        let buffers = |_| (vec![(0.0, 0.0); size[d] * LINES], Vec::new());
        m.parallel(groups, 1, buffers, |m, (buffer, scratch), range| {
            for group in range {
                let first = (group % blocks) * LINES;
                let (base, lines) = match d {
                    0 => (group * nx, 1),
                    1 => (group / blocks * nx * ny + first, LINES.min(nx - first)),
                    _ => (group / blocks * nx + first, LINES.min(nx - first)),
                };
                for k in 0..size[d] {
                    for line in 0..lines {
                        m.work(7);
                        buffer[line * size[d] + k] = field.get(m, base + k * stride + line);
                    }
                }
                for line in buffer.chunks_exact_mut(size[d]).take(lines) {
                    m.work(plan.work());
                    plan.transform(line, scratch, backwards);
                }
                for k in 0..size[d] {
                    for line in 0..lines {
                        m.work(7);
                        field.set(m, base + k * stride + line, buffer[line * size[d] + k]);
                    }
                }
            }
        });
    }
}

//! Five coupled unknowns a point, advanced by alternating directions: NPB's BT.
//!
//! Represents NPB bt of the rack paper (table II), which counts it among the programs of high
//! spatial locality. A step makes the right side from a stencil, then solves lines along x, along y
//! and along z, each a block-tridiagonal system of 5x5 blocks that are made on the way and never
//! stored: a hundred bytes of a point's arrays for a thousand operations.
//!
//! The equations are not Navier-Stokes but diffusion with a weak flow by the first unknowns, whose
//! exact steady state is known: every solved line is checked, and the distance from the state.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check_error, fold};
use super::parameters::in_range;
use super::shared::grid::{self, Size};
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "bt",
    summary: "block-tridiagonal lines along x, y and z in turn (NPB BT)",
    stands_for: "rack table II: NPB bt: passes along lines of a word, a row and a plane with much computation at each point",
    operation: "point updates",
    threads: true,
    parameters: &[ParameterDoc {
        name: "iterations",
        default: "3",
        meaning: "time steps (NPB class A: 200)",
    }],
    run: Run::of::<Bt>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    iterations: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { iterations: 3 }
    }
}

/// The phase that solves lines: most of a step's computation.
const LINES: &str = "lines";
/// Unknowns of a point.
const PARTS: usize = 5;
type Parts = [f64; PARTS];
type Block = [Parts; PARTS];
/// Words that each step derives from a point's unknowns (NPB: velocities, densities, energies).
const DERIVED: usize = 6;
/// Words of a point: unknowns, forcing, right side, and what is derived.
const POINT_WORDS: usize = 3 * PARTS + DERIVED;
/// Time step.
const STEP: f64 = 0.3;
/// Part of the decay for each direction.
const DECAY: f64 = 1.0 / 3.0;
/// Strength of the flow.
const FLOW: f64 = 0.02;
/// Distance of the first state from the exact one, at most.
const NOISE: f64 = 0.1;
/// By how much a step reduces that distance, at the least. Without flow it is 0.78 for waves as
/// long as the box and less for all others.
const REDUCTION: f64 = 0.9;
/// Operations of a point in a line's solution, and in the right side. NPB counts 3,210 a point and
/// step on its grid of 64 points along an edge.
const SOLVE_WORK: u32 = 950;
const RIGHT_WORK: u32 = 260;

struct System {
    size: Size,
    u: Array<f64>,
    forcing: Array<f64>,
    /// The right side, which the solutions replace.
    rhs: Array<f64>,
    derived: Array<f64>,
}

struct Bt;

impl Kernel for Bt {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 20)?;
        let size = grid::near_cube(params.footprint_bytes as f64 / (8 * POINT_WORDS) as f64);
        let n = grid::points(size);
        in_range("points along an edge that fit the footprint", size[2], 4, 1 << 20)?;
        let exact = |point: usize| -> Parts {
            let mut words = random::Words::of(params.seed, point as u64);
            std::array::from_fn(|_| 1.0 + 0.2 * words.unit())
        };

        let system = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let system = System {
                size,
                u: m.array("u", n * PARTS)?,
                forcing: m.array("forcing", n * PARTS)?,
                rhs: m.array("rhs", n * PARTS)?,
                derived: m.array("derived", n * DERIVED)?,
            };
            m.each(n, |m, point| {
                m.work(PARTS as u32 * random::AT_WORK);
                set(m, &system.u, point, exact(point));
            });
            // The forcing under which the exact state stays; then the state is disturbed.
            system.derive(m);
            m.each(n, |m, point| {
                let change = system.change(m, point);
                set(m, &system.forcing, point, change.map(|c| -c));
                set(m, &system.rhs, point, [0.0; PARTS]);
            });
            m.each(n, |m, point| {
                m.work(2 * PARTS as u32 * random::AT_WORK);
                let mut words = random::Words::of(!params.seed, point as u64);
                let noisy = exact(point).map(|e| e + NOISE * (2.0 * words.unit() - 1.0));
                set(m, &system.u, point, noisy);
            });
            Ok(system)
        })?;

        let mut worst = 0.0f64;
        m.phase(phase::MAIN, 0, |m| {
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| {
                    system.derive(m);
                    system.right_side(m);
                    m.phase(LINES, iteration, |m| {
                        for axis in 0..3 {
                            let off = system.solve(m, axis);
                            worst = if off <= worst { worst } else { off };
                        }
                    });
                    system.add(m);
                });
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let (mut checksum, mut distance) = (0, 0.0f64);
                for point in 0..n {
                    let here = get(m, &system.u, point);
                    for (value, exact) in here.into_iter().zip(exact(point)) {
                        checksum = fold(checksum, value.to_bits());
                        let off = (value - exact).abs();
                        distance = if off <= distance { distance } else { off };
                    }
                }
                let allowed = NOISE * REDUCTION.powi(iterations.min(200) as i32) + 1e-12;
                let checks = vec![
                    check_error("solved lines are off their systems by", worst, 1e-10),
                    check_error("the state is off the exact one by", distance, allowed),
                ];
                Ok(Outcome { checksum, operations: iterations * n as u64, checks })
            })
        })
    }
}

fn get<M: Memory>(m: &mut M, array: &Array<f64>, point: usize) -> Parts {
    std::array::from_fn(|c| m.get(array, point * PARTS + c))
}

fn set<M: Memory>(m: &mut M, array: &Array<f64>, point: usize, value: Parts) {
    for (c, part) in value.into_iter().enumerate() {
        m.set(array, point * PARTS + c, part);
    }
}

fn times(block: &Block, x: &Parts) -> Parts {
    std::array::from_fn(|row| (0..PARTS).map(|k| block[row][k] * x[k]).sum())
}

/// Solves with a block for five columns and one more, by elimination. Dominant, hence without
/// pivoting.
fn eliminate(mut block: Block, mut columns: Block, mut right: Parts) -> (Block, Parts) {
    for k in 0..PARTS {
        let scale = 1.0 / block[k][k];
        for value in block[k].iter_mut().chain(&mut columns[k]) {
            *value *= scale;
        }
        right[k] *= scale;
        for row in (0..PARTS).filter(|&row| row != k) {
            let factor = block[row][k];
            for c in 0..PARTS {
                block[row][c] -= factor * block[k][c];
                columns[row][c] -= factor * columns[k][c];
            }
            right[row] -= factor * right[k];
        }
    }
    (columns, right)
}

/// Blocks of a point of a line: for the point before, for itself, and for the one after.
#[derive(Clone, Copy)]
struct Row {
    before: Block,
    here: Block,
    after: Block,
}

impl Row {
    /// From the speed of the flow at the point, and how the unknowns are coupled there.
    fn new(speed: f64, coupling: f64) -> Row {
        let block = |diagonal: f64, beside: f64| -> Block {
            std::array::from_fn(|row| {
                std::array::from_fn(|column| match row == column {
                    true => diagonal,
                    false => beside * (1 + (row + 2 * column) % PARTS) as f64,
                })
            })
        };
        let flow = 0.5 * FLOW * speed;
        Row {
            before: block(-STEP * (1.0 + flow), 0.0),
            here: block(1.0 + STEP * (2.0 + DECAY), STEP * FLOW * 0.1 * coupling),
            after: block(-STEP * (1.0 - flow), 0.0),
        }
    }
}

impl System {
    /// The point beside another along an axis; the box is periodic for the right side.
    fn beside(&self, point: usize, axis: usize, step: usize) -> usize {
        let mut there = grid::place(self.size, point);
        there[axis] = (there[axis] + step) % self.size[axis];
        grid::index(self.size, there)
    }

    /// What follows from the unknowns of each point.
    fn derive<M: Memory>(&self, m: &mut M) {
        m.each(grid::points(self.size), |m, point| {
            m.work(40);
            let [density, x, y, z, energy] = get(m, &self.u, point);
            let inverse = 1.0 / density;
            let square = 0.5 * (x * x + y * y + z * z) * inverse;
            let derived =
                [x * inverse, y * inverse, z * inverse, inverse, square, energy * inverse];
            for (k, value) in derived.into_iter().enumerate() {
                m.set(&self.derived, point * DERIVED + k, value);
            }
        });
    }

    /// The change of a point's unknowns, without forcing.
    fn change<M: Memory>(&self, m: &mut M, point: usize) -> Parts {
        m.work(RIGHT_WORK);
        let here = get(m, &self.u, point);
        let mut change = here.map(|u| -3.0 * DECAY * u);
        for axis in 0..3 {
            let speed = m.get(&self.derived, point * DERIVED + axis);
            let before = get(m, &self.u, self.beside(point, axis, self.size[axis] - 1));
            let after = get(m, &self.u, self.beside(point, axis, 1));
            for c in 0..PARTS {
                change[c] += before[c] - 2.0 * here[c] + after[c];
                change[c] -= 0.5 * FLOW * speed * (after[c] - before[c]);
            }
        }
        change
    }

    fn right_side<M: Memory>(&self, m: &mut M) {
        m.each(grid::points(self.size), |m, point| {
            let change = self.change(m, point);
            let forcing = get(m, &self.forcing, point);
            set(m, &self.rhs, point, std::array::from_fn(|c| STEP * (change[c] + forcing[c])));
        });
    }

    /// Solves every line along an axis. Returns the largest residual of their systems.
    fn solve<M: Memory>(&self, m: &mut M, axis: usize) -> f64 {
        let size = self.size;
        // Neighbouring lines follow each other along x where they can.
        let (fast, slow) = [(1, 2), (0, 2), (0, 1)][axis];
        let length = size[axis];
        let body = |m: &mut M, worst: &mut f64, lines: std::ops::Range<usize>| {
            for line in lines {
                let mut first = [0; 3];
                first[fast] = line % size[fast];
                first[slow] = line / size[fast];
                let at = |k: usize| {
                    let mut place = first;
                    place[axis] = k;
                    grid::index(size, place)
                };
                let mut rows = Vec::with_capacity(length);
                let mut rights = Vec::with_capacity(length);
                let mut columns: Vec<Block> = Vec::with_capacity(length);
                let mut solved: Vec<Parts> = Vec::with_capacity(length);
                for k in 0..length {
                    m.work(SOLVE_WORK * 9 / 10);
                    let point = at(k);
                    let speed = m.get(&self.derived, point * DERIVED + axis);
                    let coupling = m.get(&self.derived, point * DERIVED + 4);
                    let right = get(m, &self.rhs, point);
                    let row = Row::new(speed, coupling);
                    let (mut here, mut value) = (row.here, right);
                    if let (Some(before), Some(above)) = (solved.last(), columns.last()) {
                        let carried = times(&row.before, before);
                        for r in 0..PARTS {
                            value[r] -= carried[r];
                            for c in 0..PARTS {
                                here[r][c] -=
                                    (0..PARTS).map(|j| row.before[r][j] * above[j][c]).sum::<f64>();
                            }
                        }
                    }
                    let (column, value) = eliminate(here, row.after, value);
                    columns.push(column);
                    solved.push(value);
                    rows.push(row);
                    rights.push(right);
                }
                for k in (0..length).rev() {
                    m.work(SOLVE_WORK / 10);
                    if k + 1 < length {
                        let carried = times(&columns[k], &solved[k + 1]);
                        for c in 0..PARTS {
                            solved[k][c] -= carried[c];
                        }
                    }
                    set(m, &self.rhs, at(k), solved[k]);
                }
                let off = m.quietly(|m| {
                    let mut off = 0.0f64;
                    let stored: Vec<Parts> =
                        (0..length).map(|k| get(m, &self.rhs, at(k))).collect();
                    for k in 0..length {
                        let mut sum = times(&rows[k].here, &stored[k]);
                        if k > 0 {
                            let part = times(&rows[k].before, &stored[k - 1]);
                            sum = std::array::from_fn(|c| sum[c] + part[c]);
                        }
                        if k + 1 < length {
                            let part = times(&rows[k].after, &stored[k + 1]);
                            sum = std::array::from_fn(|c| sum[c] + part[c]);
                        }
                        for c in 0..PARTS {
                            let here = (sum[c] - rights[k][c]).abs();
                            off = if here <= off { off } else { here };
                        }
                    }
                    off
                });
                *worst = if off <= *worst { *worst } else { off };
            }
        };
        let found = m.parallel(size[fast] * size[slow], 1, |_| 0.0, body);
        found.into_iter().fold(0.0, |a, b| if b <= a { a } else { b })
    }

    fn add<M: Memory>(&self, m: &mut M) {
        m.each(grid::points(self.size), |m, point| {
            m.work(10);
            let (u, more) = (get(m, &self.u, point), get(m, &self.rhs, point));
            set(m, &self.u, point, std::array::from_fn(|c| u[c] + more[c]));
        });
    }
}

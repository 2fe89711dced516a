//! Two phases that alternate: many sweeps over a small state, then an implicit system of large
//! blocks solved with Bi-CGSTAB: the pattern of SPEC's bwaves.
//!
//! Represents bwaves of the adaptive-policy paper (SPEC CPU 2017, section 3.2), which is neutral
//! between policies because of its two phases: one uses frequently accessed data again and again
//! (there called pattern A), the other walks through the remaining working set with large strides
//! (pattern B).
//!
//! Blocks are those of a diagonally dominant system around a slowly moving state, not of the
//! flow equations; the solution of every system is checked.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check_error, fold};
use super::parameters::in_range;
use super::shared::grid::{self, Size};
use super::shared::random;
use super::shared::sparse::dot;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "bwaves",
    summary: "sweeps over a small state, then a block system by Bi-CGSTAB (bwaves-like)",
    stands_for: "adaptive policy section 3.2: bwaves: a phase on hot data (pattern A) and one that streams through all the rest (pattern B)",
    operation: "block products",
    threads: true,
    parameters: &[
        ParameterDoc { name: "iterations", default: "3", meaning: "time steps of two phases each" },
        ParameterDoc {
            name: "sweeps",
            default: "40",
            meaning: "sweeps over the state in the first phase of a step",
        },
    ],
    run: Run::of::<Bwaves>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    iterations: u64,
    sweeps: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { iterations: 3, sweeps: 40 }
    }
}

/// Unknowns of a point, blocks of a row: itself and six neighbours.
const PARTS: usize = 5;
const BLOCKS: usize = 7;
const BLOCK_WORDS: usize = PARTS * PARTS;
/// Vectors of the solver beside the state.
const VECTORS: usize = 7;
const POINT_WORDS: usize = BLOCKS * BLOCK_WORDS + (VECTORS + 2) * PARTS;
/// Maximum iterations of the solver, and its tolerance.
const SOLVER_ITERATIONS: u32 = 60;
const TOLERANCE: f64 = 1e-8;
/// The part of a solution by which the state moves.
const ADVANCE: f64 = 0.1;

struct System {
    size: Size,
    blocks: Array<f64>,
    /// The state, and its copy while it is smoothed.
    state: [Array<f64>; 2],
    b: Array<f64>,
    x: Array<f64>,
    r: Array<f64>,
    shadow: Array<f64>,
    p: Array<f64>,
    v: Array<f64>,
    t: Array<f64>,
}

struct Bwaves;

impl Kernel for Bwaves {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 20)?;
        let sweeps = in_range("sweeps", options.sweeps, 0, 1 << 20)?;
        let size = grid::near_cube(params.footprint_bytes as f64 / (8 * POINT_WORDS) as f64);
        let words = grid::points(size) * PARTS;

        let system = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let system = System {
                size,
                blocks: m.array("blocks", grid::points(size) * BLOCKS * BLOCK_WORDS)?,
                state: [m.array("state", words)?, m.array("state copy", words)?],
                b: m.array("b", words)?,
                x: m.array("x", words)?,
                r: m.array("r", words)?,
                shadow: m.array("shadow", words)?,
                p: m.array("p", words)?,
                v: m.array("v", words)?,
                t: m.array("t", words)?,
            };
            m.each(words, |m, i| {
                m.work(random::AT_WORK);
                let value = 1.0 + random::unit(random::at(params.seed, i as u64));
                m.set(&system.state[0], i, value);
                m.set(&system.state[1], i, value);
            });
            Ok(system)
        })?;

        let (mut worst, mut products, mut drift) = (0.0f64, 0, 0.0f64);
        m.phase(phase::MAIN, 0, |m| {
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| {
                    let before = system.total(m, &system.state[0]);
                    m.phase("flow", iteration, |m| system.smooth(m, sweeps));
                    m.phase("solve", iteration, |m| {
                        system.assemble(m);
                        products += system.solve(m);
                    });
                    let residual = m.quietly(|m| system.residual(m));
                    worst = if residual <= worst { worst } else { residual };
                    system.advance(m);
                    // Smoothing keeps the sum of the state.
                    let expected = before + ADVANCE * system.total(m, &system.x);
                    let off = (system.total(m, &system.state[0]) / expected - 1.0).abs();
                    drift = if off <= drift { drift } else { off };
                });
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let (mut checksum, mut least, mut most) = (0, f64::INFINITY, 0.0f64);
                for i in 0..words {
                    let value = m.get(&system.state[0], i);
                    checksum = fold(checksum, value.to_bits());
                    least = least.min(value);
                    most = if value <= most { most } else { value };
                }
                let checks = vec![
                    check_error("residuals of the solved systems", worst, 10.0 * TOLERANCE),
                    check_error("sum of the state is off the expected by", drift, 1e-10),
                    check_error("state rose to", most, 2.0 + iterations as f64),
                    check_error("state fell below 0 by", -least, 0.0),
                ];
                let operations = u64::from(products) * (words / PARTS * BLOCKS) as u64;
                Ok(Outcome { checksum, operations, checks })
            })
        })
    }
}

impl System {
    /// The six neighbours of a point in a periodic box, below and above by x, y and z.
    fn neighbours(&self, point: usize) -> [usize; 6] {
        let here = grid::place(self.size, point);
        std::array::from_fn(|k| {
            let (d, side) = (k / 2, self.size[k / 2]);
            let mut there = here;
            there[d] = (here[d] + if k % 2 == 0 { side - 1 } else { 1 }) % side;
            grid::index(self.size, there)
        })
    }

    /// Pattern A: smooths the state, over and over.
    fn smooth<M: Memory>(&self, m: &mut M, sweeps: u64) {
        let points = grid::points(self.size);
        // Always an even number, so that the result is in the first of the two.
        for sweep in 0..2 * sweeps.div_ceil(2) {
            let [from, to] = match sweep % 2 {
                0 => [&self.state[0], &self.state[1]],
                _ => [&self.state[1], &self.state[0]],
            };
            m.each(points, |m, point| {
                m.work(153);
                let around = self.neighbours(point);
                for c in 0..PARTS {
                    m.work(51);
                    let own = m.get(from, point * PARTS + c);
                    let sum: f64 = around.iter().map(|&p| m.get(from, p * PARTS + c)).sum();
                    m.set(to, point * PARTS + c, own + 0.02 * (sum - 6.0 * own));
                }
            });
        }
    }

    /// Blocks that belong to the state, and the right side.
    fn assemble<M: Memory>(&self, m: &mut M) {
        m.each(grid::points(self.size), |m, point| {
            m.work(102);
            let around = self.neighbours(point);
            let own: [f64; PARTS] =
                std::array::from_fn(|c| m.get(&self.state[0], point * PARTS + c));
            for k in 0..BLOCKS {
                let there = if k == 0 { point } else { around[k - 1] };
                let base = (point * BLOCKS + k) * BLOCK_WORDS;
                for (row, own) in own.iter().enumerate() {
                    let other = m.get(&self.state[0], there * PARTS + row);
                    for column in 0..PARTS {
                        m.work(20);
                        // Off the diagonal 0.05 of the state at most, and 34 such in a row. Not
                        // symmetric: the flow down a slope is not the flow up.
                        let value = match (k, row == column) {
                            (0, true) => 8.0 + own,
                            (_, true) => -1.0 - 0.05 * (other - own),
                            _ => 0.005 * (other + own * column as f64 / PARTS as f64),
                        };
                        m.set(&self.blocks, base + row * PARTS + column, value);
                    }
                }
            }
            for (c, own) in own.into_iter().enumerate() {
                m.work(10);
                m.set(&self.b, point * PARTS + c, own);
            }
        });
    }

    /// Pattern B: the blocks times a vector.
    fn multiply<M: Memory>(&self, m: &mut M, x: &Array<f64>, y: &Array<f64>) {
        m.each(grid::points(self.size), |m, point| {
            m.work(170);
            let sum = self.row_times(m, x, point);
            for (c, part) in sum.into_iter().enumerate() {
                m.set(y, point * PARTS + c, part);
            }
        });
    }

    fn row_times<M: Memory>(&self, m: &mut M, x: &Array<f64>, point: usize) -> [f64; PARTS] {
        let around = self.neighbours(point);
        let mut sum = [0.0; PARTS];
        for k in 0..BLOCKS {
            let there = if k == 0 { point } else { around[k - 1] };
            let parts: [f64; PARTS] = std::array::from_fn(|c| m.get(x, there * PARTS + c));
            let base = (point * BLOCKS + k) * BLOCK_WORDS;
            for (row, sum) in sum.iter_mut().enumerate() {
                for (column, part) in parts.iter().enumerate() {
                    m.work(7);
                    *sum += m.get(&self.blocks, base + row * PARTS + column) * part;
                }
            }
        }
        sum
    }

    /// Bi-CGSTAB (van der Vorst, SIAM J. Sci. Stat. Comput. 13, 1992) from zero; returns the number
    /// of multiplications by the blocks.
    fn solve<M: Memory>(&self, m: &mut M) -> u32 {
        let n = self.b.len();
        m.each(n, |m, i| {
            m.work(20);
            let value = m.get(&self.b, i);
            m.set(&self.x, i, 0.0);
            for array in [&self.r, &self.shadow, &self.p] {
                m.set(array, i, value);
            }
        });
        let mut rho = dot(m, &self.shadow, &self.r);
        let limit = TOLERANCE * TOLERANCE * rho;
        for done in 0..SOLVER_ITERATIONS {
            self.multiply(m, &self.p, &self.v);
            let alpha = rho / dot(m, &self.shadow, &self.v);
            m.each(n, |m, i| {
                m.work(20);
                let r = m.get(&self.r, i) - alpha * m.get(&self.v, i);
                m.set(&self.r, i, r);
            });
            self.multiply(m, &self.r, &self.t);
            let omega = dot(m, &self.t, &self.r) / dot(m, &self.t, &self.t);
            let square = m.sum(n, |m, i| {
                m.work(42);
                let r = m.get(&self.r, i);
                let x = m.get(&self.x, i) + alpha * m.get(&self.p, i) + omega * r;
                m.set(&self.x, i, x);
                let r = r - omega * m.get(&self.t, i);
                m.set(&self.r, i, r);
                r * r
            });
            if square <= limit {
                return 2 * (done + 1);
            }
            let before = rho;
            rho = dot(m, &self.shadow, &self.r);
            let beta = rho / before * alpha / omega;
            m.each(n, |m, i| {
                m.work(27);
                let p = m.get(&self.p, i) - omega * m.get(&self.v, i);
                let p = m.get(&self.r, i) + beta * p;
                m.set(&self.p, i, p);
            });
        }
        2 * SOLVER_ITERATIONS
    }

    /// Norm of the solution's residual, relative to the right side's.
    fn residual<M: Memory>(&self, m: &mut M) -> f64 {
        let left = m.sum(grid::points(self.size), |m, point| {
            let product = self.row_times(m, &self.x, point);
            let square = |c: usize| (m.get(&self.b, point * PARTS + c) - product[c]).powi(2);
            (0..PARTS).map(square).sum()
        });
        (left / dot(m, &self.b, &self.b)).sqrt()
    }

    /// Sum of an array, for the checks.
    fn total<M: Memory>(&self, m: &mut M, of: &Array<f64>) -> f64 {
        m.quietly(|m| m.sum(of.len(), |m, i| m.get(of, i)))
    }

    /// Moves the state by the solution.
    fn advance<M: Memory>(&self, m: &mut M) {
        m.each(self.b.len(), |m, i| {
            m.work(20);
            let value = m.get(&self.state[0], i) + ADVANCE * m.get(&self.x, i);
            m.set(&self.state[0], i, value);
        });
    }
}

//! A coupled system of five unknowns a point, solved by symmetric successive over-relaxation:
//! the pattern of NPB's LU.
//!
//! Represents lu.D of the adaptive-policy paper (NPB, section 3.2). Each iteration goes four times
//! through all arrays, forwards and backwards, so that all pages are used equally often and equally
//! recently.
//!
//! The system is not NPB's linearized Navier-Stokes but has its structure: a seven-point stencil of
//! 5x5 blocks that depend on a coefficient at every point, diagonally dominant, with a known
//! solution.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check_error, fold};
use super::parameters::in_range;
use super::shared::grid::{self, Size};
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "lu",
    summary: "coupled systems by symmetric over-relaxation (LU-like)",
    stands_for: "adaptive policy section 3.2: lu.D: forward and backward sweeps over all arrays, all pages alike",
    operation: "point updates",
    threads: false,
    parameters: &[ParameterDoc {
        name: "iterations",
        default: "10",
        meaning: "iterations, each a forward and a backward sweep (NPB: 250)",
    }],
    run: Run::of::<Lu>(),
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

/// Unknowns at a point.
const PARTS: usize = 5;
type Parts = [f64; PARTS];
/// Over-relaxation (NPB: 1.2).
const OMEGA: f64 = 1.2;
/// How much the diagonal is more than the 6 of the Laplacian.
const SHIFT: f64 = 1.0;
/// How strongly the parts of neighbours, and those of a point, are coupled.
const COUPLING: f64 = 0.02;
const DIAGONAL_COUPLING: f64 = 0.05;
/// Least margin by which the diagonal of a row exceeds the rest of it; coefficients are 1.5 at
/// most. The inverse of its reciprocal bounds the error of a solution by its residual.
const MARGIN: f64 = SHIFT - 6.0 * 1.5 * COUPLING - 1.5 * PARTS as f64 * DIAGONAL_COUPLING;
/// Words of a point: solution, right side, residual and two coefficients.
const POINT_WORDS: usize = 3 * PARTS + 2;

struct System {
    size: Size,
    solution: Array<f64>,
    right: Array<f64>,
    residual: Array<f64>,
    /// Coupling coefficients: between neighbours' parts, and within a point.
    outer: Array<f64>,
    inner: Array<f64>,
}

/// Which neighbours of a point: those before or those after.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Lower,
    Upper,
}

struct Lu;

impl Kernel for Lu {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 20)?;
        let size = grid::near_cube(params.footprint_bytes as f64 / (8 * POINT_WORDS) as f64);
        let n = grid::points(size);
        let exact = |point: usize| -> Parts {
            let mut words = random::Words::of(params.seed, point as u64);
            std::array::from_fn(|_| words.unit() + 0.5)
        };

        let system = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let system = System {
                size,
                solution: m.array("solution", n * PARTS)?,
                right: m.array("right", n * PARTS)?,
                residual: m.array("residual", n * PARTS)?,
                outer: m.array("outer", n)?,
                inner: m.array("inner", n)?,
            };
            for point in 0..n {
                m.work(8 * random::AT_WORK);
                let word = random::at(!params.seed, point as u64);
                m.set(&system.outer, point, 0.5 + random::unit(word));
                m.set(&system.inner, point, 0.5 + random::unit(word.rotate_left(32)));
                set(m, &system.solution, point, exact(point));
            }
            // The right side of the known solution, which is then cleared.
            for point in 0..n {
                let value = system.operator(m, point);
                set(m, &system.right, point, value);
            }
            for point in 0..n {
                set(m, &system.solution, point, [0.0; PARTS]);
            }
            Ok(system)
        })?;

        m.phase(phase::MAIN, 0, |m| {
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| system.iterate(m));
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let (mut residual, mut error, mut start, mut checksum) = (0.0, 0.0, 0.0, 0);
                let larger = |a: f64, b: f64| if b.abs() <= a { a } else { b.abs() };
                for point in 0..n {
                    let operator = system.operator(m, point);
                    let right = get(m, &system.right, point);
                    let solution = get(m, &system.solution, point);
                    let exact = exact(point);
                    for c in 0..PARTS {
                        residual = larger(residual, right[c] - operator[c]);
                        start = larger(start, right[c]);
                        error = larger(error, solution[c] - exact[c]);
                        checksum = fold(checksum, solution[c].to_bits());
                    }
                }
                let shrunk = residual / start;
                let expected = (0.6f64.powi(iterations.min(60) as i32)).max(1e-13);
                let checks = vec![
                    check_error("residual, of what it was", shrunk, expected),
                    check_error(
                        "solution is off the exact one by",
                        error,
                        residual / MARGIN + 1e-12,
                    ),
                ];
                Ok(Outcome { checksum, operations: 2 * iterations * n as u64, checks })
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

/// The block of a point itself.
fn diagonal(inner: f64) -> [Parts; PARTS] {
    std::array::from_fn(|row| {
        std::array::from_fn(|column| {
            let coupled =
                DIAGONAL_COUPLING * inner * (1 + (row + 2 * column) % PARTS) as f64 / PARTS as f64;
            if row == column { 6.0 + SHIFT + coupled } else { coupled }
        })
    })
}

/// Solves with the block of a point, by elimination. Dominant, hence without pivoting.
fn solve(mut block: [Parts; PARTS], mut right: Parts) -> Parts {
    for k in 0..PARTS {
        for row in k + 1..PARTS {
            let factor = block[row][k] / block[k][k];
            let above = block[k];
            for (value, above) in block[row].iter_mut().zip(above) {
                *value -= factor * above;
            }
            right[row] -= factor * right[k];
        }
    }
    for k in (0..PARTS).rev() {
        for column in k + 1..PARTS {
            right[k] -= block[k][column] * right[column];
        }
        right[k] /= block[k][k];
    }
    right
}

impl System {
    /// What the neighbours on one side contribute to a row; outside the box all is zero.
    fn neighbours<M: Memory>(&self, m: &mut M, of: &Array<f64>, point: usize, side: Side) -> Parts {
        let here = grid::place(self.size, point);
        let strides = [1, self.size[0], self.size[0] * self.size[1]];
        let mut sum = [0.0; PARTS];
        m.work(25);
        for d in 0..3 {
            let there = match side {
                Side::Lower if here[d] > 0 => point - strides[d],
                Side::Upper if here[d] + 1 < self.size[d] => point + strides[d],
                _ => continue,
            };
            m.work(50);
            let coupling = COUPLING * m.get(&self.outer, there);
            let parts = get(m, of, there);
            for c in 0..PARTS {
                sum[c] += coupling * parts[(c + d + 1) % PARTS] - parts[c];
            }
        }
        sum
    }

    /// A row of the system times the solution.
    fn operator<M: Memory>(&self, m: &mut M, point: usize) -> Parts {
        let lower = self.neighbours(m, &self.solution, point, Side::Lower);
        let upper = self.neighbours(m, &self.solution, point, Side::Upper);
        let block = diagonal(m.get(&self.inner, point));
        let parts = get(m, &self.solution, point);
        m.work(176);
        std::array::from_fn(|row| {
            let own: f64 = (0..PARTS).map(|c| block[row][c] * parts[c]).sum();
            own + lower[row] + upper[row]
        })
    }

    /// One iteration: u += w (2 - w) (D + wU)^-1 D (D + wL)^-1 (f - Au), with w for omega.
    fn iterate<M: Memory>(&self, m: &mut M) {
        let n = grid::points(self.size);
        for point in 0..n {
            let operator = self.operator(m, point);
            let right = get(m, &self.right, point);
            set(m, &self.residual, point, std::array::from_fn(|c| right[c] - operator[c]));
        }
        for point in 0..n {
            m.work(378);
            let lower = self.neighbours(m, &self.residual, point, Side::Lower);
            let own = get(m, &self.residual, point);
            let block = diagonal(m.get(&self.inner, point));
            let right = std::array::from_fn(|c| own[c] - OMEGA * lower[c]);
            set(m, &self.residual, point, solve(block, right));
        }
        for point in (0..n).rev() {
            m.work(378);
            let upper = self.neighbours(m, &self.residual, point, Side::Upper);
            let own = get(m, &self.residual, point);
            let change = solve(diagonal(m.get(&self.inner, point)), upper);
            let value = std::array::from_fn(|c| own[c] - OMEGA * change[c]);
            set(m, &self.residual, point, value);
        }
        for point in 0..n {
            m.work(30);
            let change = get(m, &self.residual, point);
            let before = get(m, &self.solution, point);
            let value = std::array::from_fn(|c| before[c] + OMEGA * (2.0 - OMEGA) * change[c]);
            set(m, &self.solution, point, value);
        }
    }
}

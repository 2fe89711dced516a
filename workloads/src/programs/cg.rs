//! The smallest eigenvalue of a large random sparse matrix by inverse iteration, each step
//! solved with conjugate gradients: NPB's CG.
//!
//! Represents `cg` (NAS, class C) of the granularity paper (table 2) and cg.D of the
//! adaptive-policy paper (section 3.2). The matrix, nearly the whole footprint, is streamed through
//! once an iteration without reuse; the few vectors are read at random columns.
//!
//! The matrix is like NPB's in size and structure (about 240 entries a row at random columns), not
//! in its numbers: pairs of symmetric entries uniform in -1 to 1 and a constant diagonal that is 15
//! % more than the radius of their spectrum (Wigner's semicircle), so that it is positive definite
//! with a condition of about 15.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Memory, phase};
use super::outcome::{check, check_error, fold};
use super::parameters::in_range;
use super::shared::adjacency::Adjacency;
use super::shared::random;
use super::shared::sparse::{Matrix, Vectors, dot};
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "cg",
    summary: "eigenvalue of a random sparse matrix by conjugate gradients (NPB CG)",
    stands_for: "granularity table 2: cg; adaptive policy section 3.2: cg.D: a large matrix streamed without reuse, small vectors read at random",
    operation: "matrix entries",
    threads: true,
    parameters: &[
        ParameterDoc {
            name: "iterations",
            default: "4",
            meaning: "inverse iterations (NPB class C: 75)",
        },
        ParameterDoc {
            name: "inner_iterations",
            default: "25",
            meaning: "iterations of conjugate gradients in each (NPB: 25)",
        },
        ParameterDoc {
            name: "pairs_per_row",
            default: "119",
            meaning: "pairs of symmetric entries for each row (NPB class C: about 119)",
        },
    ],
    run: Run::of::<Cg>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    iterations: u64,
    inner_iterations: u64,
    pairs_per_row: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { iterations: 4, inner_iterations: 25, pairs_per_row: 119 }
    }
}

struct Cg;

impl Kernel for Cg {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 20)?;
        let inner = in_range("inner_iterations", options.inner_iterations, 1, 1 << 20)?;
        let pairs_per_row = in_range("pairs_per_row", options.pairs_per_row, 1, 1000)?;
        let entry_bytes = Adjacency::BYTES_PER_ENTRY + 8;
        let row_bytes = Adjacency::BYTES_PER_ROW
            + Vectors::BYTES_PER_ROW
            + 8
            + (1 + 2 * pairs_per_row as u64) * entry_bytes;
        let n = (params.footprint_bytes / row_bytes) as usize;
        let n = in_range("rows that fit the footprint", n, 8, u32::MAX as usize)?;
        let seed = params.seed;

        let (matrix, v, b) = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let matrix = random_matrix(m, n, pairs_per_row, seed)?;
            let v = Vectors::new(m, n)?;
            let b = m.array::<f64>("b", n)?;
            m.each(n, |m, i| {
                m.work(2);
                m.set(&b, i, 1.0);
            });
            Ok((matrix, v, b))
        })?;

        let (mut believed, mut true_error, mut reduction) = (0.0, 0.0f64, 0.0);
        let mut zeta = 0.0;
        m.phase(phase::MAIN, 0, |m| {
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| {
                    believed = matrix.conjugate_gradients(m, b, v, inner, 0.0).1;
                    // NPB's own check of every solution.
                    let residual = matrix.residual(m, b, &v.x);
                    let norm = dot(m, b, b).sqrt();
                    let error = (residual - believed).abs() / norm;
                    true_error = if error <= true_error { true_error } else { error };
                    reduction = residual / norm;
                    zeta = 1.0 / dot(m, b, &v.x);
                    let scale = 1.0 / dot(m, &v.x, &v.x).sqrt();
                    m.each(n, |m, i| {
                        m.work(3);
                        let value = scale * m.get(&v.x, i);
                        m.set(b, i, value);
                    });
                });
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let asymmetry = matrix.asymmetry(m, seed);
                let diagonal = wrong_diagonals(m, matrix, diagonal(pairs_per_row));
                let norm = dot(m, b, b).sqrt();
                let mut checksum = zeta.to_bits();
                for i in 0..n {
                    checksum = fold(checksum, m.get(b, i).to_bits());
                }
                // A condition of 15 shrinks the residual by 0.59 an iteration, at worst.
                let expected = 20.0 * 0.62f64.powi(inner.min(60) as i32) + 1e-13;
                let checks = vec![
                    check_error("residual is off the recurrence's by", true_error, 1e-11),
                    check_error("relative residual", reduction, expected),
                    check_error("norm of the eigenvector is off 1 by", (norm - 1.0).abs(), 1e-10),
                    check_error("asymmetry", asymmetry, 1e-9),
                    check(diagonal == 0, format!("{diagonal} diagonal entries wrong")),
                ];
                let entries = m.get(&matrix.rows.offsets, n);
                let operations = iterations * (inner + 1) * entries;
                Ok(Outcome { checksum, operations, checks })
            })
        })
    }
}

/// Values of 1/3 mean square in twice as many places a row as there are pairs.
fn diagonal(pairs_per_row: usize) -> f64 {
    let radius = 2.0 * (2.0 * pairs_per_row as f64 / 3.0).sqrt();
    1.15 * radius
}

fn wrong_diagonals<M: Memory>(m: &mut M, matrix: &Matrix, diagonal: f64) -> usize {
    let mut wrong = 0;
    for row in 0..matrix.rows.rows() {
        let mut found = Vec::new();
        for entry in matrix.rows.row(m, row) {
            if m.get(&matrix.rows.columns, entry) as usize == row {
                found.push(m.get(&matrix.values, entry));
            }
        }
        wrong += usize::from(found != [diagonal]);
    }
    wrong
}

fn random_matrix<M: Memory>(
    m: &mut M,
    n: usize,
    pairs_per_row: usize,
    seed: u64,
) -> Result<Matrix, ProgramError> {
    let pairs = n * pairs_per_row;
    let room = n + 2 * pairs;
    let values = m.array::<f64>("values", room)?;
    let diagonal = diagonal(pairs_per_row);
    // First the diagonal, then the pairs of row after row.
    let pair = |m: &mut M, e: usize| {
        let Some(pair) = e.checked_sub(n) else { return Some((e as u32, e as u32)) };
        m.work(random::AT_WORK + 8);
        let row = pair / pairs_per_row;
        let other = (row + 1 + random::below(random::at(seed, pair as u64), n - 1)) % n;
        Some((row as u32, other as u32))
    };
    let place = |m: &mut M, e: usize, position: usize| {
        m.work(random::AT_WORK);
        let value = match e.checked_sub(n) {
            None => diagonal,
            Some(pair) => 2.0 * random::unit(random::at(!seed, pair as u64)) - 1.0,
        };
        m.set(&values, position, value);
    };
    let rows = Adjacency::build(m, n, room, n + pairs, pair, place)?;
    let matrix = Matrix { rows, values };
    // NPB has the columns of every row in order.
    m.parallel(
        n,
        1,
        |_| Vec::new(),
        |m, entries, range| {
            for row in range {
                let place = matrix.rows.row(m, row);
                entries.clear();
                for entry in place.clone() {
                    m.work(30);
                    entries
                        .push((m.get(&matrix.rows.columns, entry), m.get(&matrix.values, entry)));
                }
                entries.sort_by_key(|e| e.0);
                for (entry, &(column, value)) in place.zip(entries.iter()) {
                    m.work(2);
                    m.set(&matrix.rows.columns, entry, column);
                    m.set(&matrix.values, entry, value);
                }
            }
        },
    );
    Ok(matrix)
}

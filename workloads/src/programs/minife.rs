//! An implicit finite-element solve, as in miniFE: Poisson's equation on a box of hexahedra,
//! assembled element by element into a sparse matrix, solved with conjugate gradients.
//!
//! Represents `mini` of the granularity paper (table 2, Mantevo miniFE) and miniFE of the rack
//! paper (table II). The matrix (27 entries a row) is streamed once an iteration; the vector is
//! read at three bands of three rows each, which is nearly sequential in nine places at once.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check_error, fold};
use super::parameters::in_range;
use super::shared::adjacency::Adjacency;
use super::shared::grid::{self, Size};
use super::shared::random;
use super::shared::sparse::{Matrix, Vectors, dot};
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "minife",
    summary: "finite-element assembly and conjugate gradients (miniFE)",
    stands_for: "granularity table 2: minife; rack table II: miniFE: a banded sparse matrix streamed each iteration",
    operation: "matrix entries",
    threads: true,
    parameters: &[ParameterDoc {
        name: "iterations",
        default: "200",
        meaning: "iterations of conjugate gradients at most (miniFE: 200)",
    }],
    run: Run::of::<MiniFe>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    iterations: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { iterations: 200 }
    }
}

/// Tolerance of the conjugate gradients.
const TOLERANCE: f64 = 1e-10;

struct MiniFe;

impl Kernel for MiniFe {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 20)?;
        let node_bytes = Adjacency::BYTES_PER_ROW
            + Vectors::BYTES_PER_ROW
            + 8
            + 27 * (Adjacency::BYTES_PER_ENTRY + 8);
        // Nodes on the surface have fewer than 27 neighbours.
        let mut nodes = params.footprint_bytes as f64 / node_bytes as f64;
        nodes *= 1.0 + 2.0 / libm::cbrt(nodes);
        let size = grid::near_cube(nodes);
        let n = grid::points(size);
        in_range("nodes that fit the footprint", n, 64, u32::MAX as usize)?;
        let field = Field::of(params.seed, size);

        let (matrix, v, b) = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let matrix = structure(m, size)?;
            Ok((matrix, Vectors::new(m, n)?, m.array::<f64>("b", n)?))
        })?;

        let (done, believed) = m.phase(phase::MAIN, 0, |m| {
            m.phase("assembly", 0, |m| assemble(m, size, matrix, b, field));
            m.phase("solve", 0, |m| matrix.conjugate_gradients(m, b, v, iterations, TOLERANCE))
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let norm = dot(m, b, b).sqrt();
                let residual = matrix.residual(m, b, &v.x);
                let asymmetry = matrix.asymmetry(m, params.seed);
                let mut checksum = done;
                let mut worst = 0.0f64;
                for node in 0..n {
                    let x = m.get(&v.x, node);
                    checksum = fold(checksum, x.to_bits());
                    let error = (x - field.at(grid::place(size, node))).abs();
                    worst = if error <= worst { worst } else { error };
                }
                let off = (residual - believed).abs() / norm;
                let mut checks = vec![
                    check_error("residual is off the recurrence's by", off, 1e-11),
                    check_error("asymmetry", asymmetry, 1e-9),
                ];
                // The elements represent a linear field exactly. When the iterations end before the
                // solution is reached, only the residual can be checked.
                if believed <= TOLERANCE * norm {
                    checks.push(check_error("solution is off the exact one by", worst, 1e-6));
                }
                let entries = m.get(&matrix.rows.offsets, n);
                Ok(Outcome { checksum, operations: (done + 1) * entries, checks })
            })
        })
    }
}

/// The solution: a linear field over the box, between 1 and 2.
#[derive(Clone, Copy)]
struct Field {
    slope: [f64; 3],
}

impl Field {
    fn of(seed: u64, size: Size) -> Field {
        let mut words = random::Words::of(seed, 0);
        Field { slope: size.map(|s| words.unit() / (3 * s) as f64) }
    }

    fn at(self, place: [usize; 3]) -> f64 {
        1.0 + (0..3).map(|d| self.slope[d] * place[d] as f64).sum::<f64>()
    }
}

/// The neighbours of a coordinate: itself and those beside it within the box.
fn around(at: usize, side: usize) -> std::ops::Range<usize> {
    at.saturating_sub(1)..(at + 2).min(side)
}

/// Rows and columns: each node with all nodes of all its elements.
fn structure<M: Memory>(m: &mut M, size: Size) -> Result<Matrix, ProgramError> {
    let n = grid::points(size);
    let entries = size.iter().map(|s| 3 * s - 2).product();
    let offsets = m.array::<u64>("offsets", n + 1)?;
    let columns = m.array::<u32>("columns", entries)?;
    let values = m.array::<f64>("values", entries)?;
    let mut next = 0;
    for node in 0..n {
        m.work(10);
        m.set(&offsets, node, next as u64);
        let [x, y, z] = grid::place(size, node);
        for c in around(z, size[2]) {
            for b in around(y, size[1]) {
                for a in around(x, size[0]) {
                    m.work(4);
                    m.set(&columns, next, grid::index(size, [a, b, c]) as u32);
                    next += 1;
                }
            }
        }
    }
    m.set(&offsets, n, next as u64);
    Ok(Matrix { rows: Adjacency { offsets, columns }, values })
}

/// The integral of the gradients' product of two corners of a unit cube, by how many of their
/// coordinates differ (tensor product of 1D stiffness and mass of linear elements).
fn stiffness(differ: [bool; 3]) -> f64 {
    let mass = |d: usize| if differ[d] { 1.0 / 6.0 } else { 1.0 / 3.0 };
    let stiff = |d: usize| if differ[d] { -1.0 } else { 1.0 };
    (0..3).map(|d| stiff(d) * mass((d + 1) % 3) * mass((d + 2) % 3)).sum()
}

/// Adds up the elements around every node; nodes of the surface keep their given value.
fn assemble<M: Memory>(m: &mut M, size: Size, matrix: &Matrix, b: &Array<f64>, field: Field) {
    let on_surface = |p: [usize; 3]| (0..3).any(|d| p[d] == 0 || p[d] + 1 == size[d]);
    m.each(grid::points(size), |m, node| {
        let here = grid::place(size, node);
        let row = matrix.rows.row(m, node);
        m.work(20);
        if on_surface(here) {
            m.set(b, node, field.at(here));
            let entry = find(m, matrix, row, node);
            m.set(&matrix.values, entry, 1.0);
            return;
        }
        // Inside, all eight elements exist: `element` is the one with this lowest corner.
        let mut known = 0.0;
        for element in 0..8usize {
            let low = [0, 1, 2].map(|d| here[d] - (element >> d & 1));
            for corner in 0..8usize {
                m.work(25);
                let other = [0, 1, 2].map(|d| low[d] + (corner >> d & 1));
                let value = stiffness([0, 1, 2].map(|d| here[d] != other[d]));
                if on_surface(other) {
                    known += value * field.at(other);
                } else {
                    let column = grid::index(size, other);
                    let entry = find(m, matrix, row.clone(), column);
                    let sum = m.get(&matrix.values, entry) + value;
                    m.set(&matrix.values, entry, sum);
                }
            }
        }
        m.set(b, node, -known);
    });
}

/// The entry of a column in a row.
fn find<M: Memory>(
    m: &mut M,
    matrix: &Matrix,
    row: std::ops::Range<usize>,
    column: usize,
) -> usize {
    let (mut low, mut high) = (row.start, row.end - 1);
    while low < high {
        m.work(5);
        let middle = (low + high) / 2;
        if (m.get(&matrix.rows.columns, middle) as usize) < column {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

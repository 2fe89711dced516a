//! Poisson's equation on a periodic box by multigrid V-cycles: NPB's MG.
//!
//! Represents `mg` (NAS, class B) of the granularity paper (table 2) and NPB mg of the rack paper
//! (table II). Three arrays of the finest grid are streamed in order, nine rows of them at a time;
//! the coarser grids are an eighth as large each, so that their pages are used more often than
//! those of the finest.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check_error, fold};
use super::parameters::in_range;
use super::shared::grid::{self, Size};
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "mg",
    summary: "Poisson's equation by multigrid V-cycles (NPB MG)",
    stands_for: "granularity table 2: mg; rack table II: NPB mg: streamed stencils over a hierarchy of grids",
    operation: "points of the finest grid",
    threads: true,
    parameters: &[ParameterDoc {
        name: "iterations",
        default: "4",
        meaning: "V-cycles (NPB class A: 4, class B: 20)",
    }],
    run: Run::of::<Mg>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    iterations: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { iterations: 4 }
    }
}

/// Weights of a point, its 6 faces, 12 edges and 8 corners: the operator and the smoother of
/// the NPB specification (NAS-95-020, section 2.3), and the projection to the coarser grid.
const OPERATOR: [f64; 4] = [-8.0 / 3.0, 0.0, 1.0 / 6.0, 1.0 / 12.0];
const SMOOTHER: [f64; 4] = [-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0, 0.0];
const PROJECTION: [f64; 4] = [1.0 / 2.0, 1.0 / 4.0, 1.0 / 8.0, 1.0 / 16.0];
/// Points with charge 1, and as many with charge -1.
const CHARGES: usize = 10;
/// Sides of the coarsest grid.
const COARSEST: std::ops::Range<usize> = 4..8;

/// One grid of the hierarchy: a part of the arrays of all grids.
#[derive(Clone, Copy)]
struct Level {
    size: Size,
    base: usize,
}

/// All levels, the finest first.
fn levels(points: f64) -> Vec<Level> {
    let sides: Vec<usize> =
        (0..24).flat_map(|level| COARSEST.map(move |side| side << level)).collect();
    let finest = grid::with_sides(points, &sides);
    let doublings = |side: usize| (side / COARSEST.start).ilog2();
    let count = finest.iter().map(|&s| doublings(s)).min().unwrap_or(0);
    let mut base = 0;
    (0..=count)
        .map(|level| {
            let level = Level { size: finest.map(|s| s >> level), base };
            base += grid::points(level.size);
            level
        })
        .collect()
}

struct Mg;

impl Kernel for Mg {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 20)?;
        // Two arrays over all levels, which are 8/7 of the finest, and one over the finest.
        let levels = levels(params.footprint_bytes as f64 / 8.0 / (2.0 * 8.0 / 7.0 + 1.0));
        let finest = levels[0];
        let n = grid::points(finest.size);
        let all = levels.iter().map(|l| grid::points(l.size)).sum();

        let grids = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let grids = Grids {
                solution: m.array("solution", all)?,
                residual: m.array("residual", all)?,
                charges: m.array("charges", n)?,
                levels,
            };
            m.each(n, |m, i| {
                m.work(13);
                m.set(&grids.charges, i, 0.0);
                m.set(&grids.solution, i, 0.0);
            });
            let mut words = random::Words::of(params.seed, 0);
            let mut places: Vec<usize> = Vec::new();
            while places.len() < 2 * CHARGES {
                let place = words.below(n);
                if !places.contains(&place) {
                    places.push(place);
                }
            }
            for (i, place) in places.into_iter().enumerate() {
                m.set(&grids.charges, place, if i % 2 == 0 { 1.0 } else { -1.0 });
            }
            Ok(grids)
        })?;

        let (mut first, mut last) = (0.0, 0.0);
        m.phase(phase::MAIN, 0, |m| {
            grids.evaluate(m);
            first = grids.norm(m);
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| {
                    grids.cycle(m);
                    grids.evaluate(m);
                });
            }
            last = grids.norm(m);
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let mut checksum = 0;
                let (mut norm, mut total, mut off) = (0.0, 0.0, 0.0f64);
                for i in 0..n {
                    let direct = grids.direct_residual(m, i);
                    let error = (direct - m.get(&grids.residual, i)).abs();
                    off = if error <= off { off } else { error };
                    norm += direct * direct;
                    total += direct;
                    checksum = fold(checksum, m.get(&grids.solution, i).to_bits());
                }
                let norm = (norm / n as f64).sqrt();
                // A cycle reduces the residual to 0.31 to 0.35 of itself, at any size.
                let expected = (first * 0.4f64.powi(iterations.min(30) as i32)).max(1e-14);
                let checks = vec![
                    check_error("residual", norm, expected),
                    check_error("norm is off the program's by", (norm - last).abs() / first, 1e-12),
                    check_error("residual, point by point, is off by", off, 1e-13),
                    check_error("sum of the residuals", total.abs() / n as f64, 1e-13),
                ];
                Ok(Outcome { checksum, operations: iterations * n as u64, checks })
            })
        })
    }
}

struct Grids {
    /// Solution on the finest grid, corrections on the others.
    solution: Array<f64>,
    residual: Array<f64>,
    charges: Array<f64>,
    levels: Vec<Level>,
}

/// Sums of the four faces and of the four edges beside every point of a row, in the plane
/// across it; they are used three times each.
#[derive(Default)]
struct Rows {
    faces: Vec<f64>,
    edges: Vec<f64>,
    middle: Vec<f64>,
}

impl Rows {
    /// Reads the nine rows around row `y`, `z` of a periodic grid.
    fn read<M: Memory>(&mut self, m: &mut M, from: &Array<f64>, level: Level, y: usize, z: usize) {
        let [nx, ny, nz] = level.size;
        let row = |y: usize, z: usize| level.base + (z * ny + y) * nx;
        let (below, above) = ((y + ny - 1) % ny, (y + 1) % ny);
        let (before, behind) = ((z + nz - 1) % nz, (z + 1) % nz);
        let middle = row(y, z);
        let faces = [row(below, z), row(above, z), row(y, before), row(y, behind)];
        let edges =
            [row(below, before), row(above, before), row(below, behind), row(above, behind)];
        self.faces.clear();
        self.edges.clear();
        self.middle.clear();
        for x in 0..nx {
            m.work(50);
            let mut sum = |rows: [usize; 4]| rows.iter().fold(0.0, |s, r| s + m.get(from, r + x));
            self.faces.push(sum(faces));
            self.edges.push(sum(edges));
            self.middle.push(m.get(from, middle + x));
        }
    }

    /// The weighted sum around point `x` of the row.
    #[inline(always)]
    fn weigh(&self, weights: [f64; 4], x: usize) -> f64 {
        let last = self.middle.len() - 1;
        let left = if x == 0 { last } else { x - 1 };
        let right = if x == last { 0 } else { x + 1 };
        weights[0] * self.middle[x]
            + weights[1] * (self.middle[left] + self.middle[right] + self.faces[x])
            + weights[2] * (self.edges[x] + self.faces[left] + self.faces[right])
            + weights[3] * (self.edges[left] + self.edges[right])
    }
}

impl Grids {
    /// Applies weights to every point of a level; `put` gets the point and the sum.
    fn apply<M: Memory>(
        m: &mut M,
        from: &Array<f64>,
        level: Level,
        weights: [f64; 4],
        put: impl Fn(&mut M, usize, f64) + Sync,
    ) {
        let [nx, ny, nz] = level.size;
        m.parallel(
            ny * nz,
            1,
            |_| Rows::default(),
            |m, rows, range| {
                for row in range {
                    rows.read(m, from, level, row % ny, row / ny);
                    for x in 0..nx {
                        m.work(88);
                        put(m, level.base + row * nx + x, rows.weigh(weights, x));
                    }
                }
            },
        );
    }

    /// The residual of the finest grid.
    fn evaluate<M: Memory>(&self, m: &mut M) {
        Self::apply(m, &self.solution, self.levels[0], OPERATOR, |m, i, sum| {
            let value = m.get(&self.charges, i) - sum;
            m.set(&self.residual, i, value);
        });
    }

    fn smooth<M: Memory>(&self, m: &mut M, level: Level) {
        Self::apply(m, &self.residual, level, SMOOTHER, |m, i, sum| {
            let value = m.get(&self.solution, i) + sum;
            m.set(&self.solution, i, value);
        });
    }

    fn norm<M: Memory>(&self, m: &mut M) -> f64 {
        let n = self.charges.len();
        let sum = m.sum(n, |m, i| {
            m.work(19);
            m.get(&self.residual, i).powi(2)
        });
        (sum / n as f64).sqrt()
    }

    /// One V-cycle: the residual down to the coarsest grid, corrections back up.
    fn cycle<M: Memory>(&self, m: &mut M) {
        for pair in self.levels.windows(2) {
            self.project(m, pair[0], pair[1]);
        }
        for (k, &level) in self.levels.iter().enumerate().rev() {
            if k > 0 {
                m.each(grid::points(level.size), |m, i| {
                    m.work(13);
                    m.set(&self.solution, level.base + i, 0.0);
                });
            }
            if let Some(&coarser) = self.levels.get(k + 1) {
                self.interpolate(m, coarser, level);
                if k == 0 {
                    self.evaluate(m);
                } else {
                    self.correct(m, level);
                }
            }
            self.smooth(m, level);
        }
    }

    /// Subtracts the effect of a coarser grid's correction from its residual.
    fn correct<M: Memory>(&self, m: &mut M, level: Level) {
        Self::apply(m, &self.solution, level, OPERATOR, |m, i, sum| {
            let value = m.get(&self.residual, i) - sum;
            m.set(&self.residual, i, value);
        });
    }

    /// The residual of a grid, weighted down to the next coarser one.
    fn project<M: Memory>(&self, m: &mut M, fine: Level, coarse: Level) {
        let [nx, ny, nz] = coarse.size;
        m.parallel(
            ny * nz,
            1,
            |_| Rows::default(),
            |m, rows, range| {
                for row in range {
                    rows.read(m, &self.residual, fine, 2 * (row % ny), 2 * (row / ny));
                    for x in 0..nx {
                        m.work(88);
                        // The operator is defined without the mesh width, hence 4 for its square.
                        let sum = rows.weigh(PROJECTION, 2 * x);
                        m.set(&self.residual, coarse.base + row * nx + x, sum);
                    }
                }
            },
        );
    }

    /// Adds a coarse correction to the next finer grid, linearly between its points.
    fn interpolate<M: Memory>(&self, m: &mut M, coarse: Level, fine: Level) {
        let [nx, ny, _] = fine.size;
        let [cx, cy, cz] = coarse.size;
        m.parallel(
            ny * fine.size[2],
            1,
            |_| Vec::new(),
            |m, sums: &mut Vec<f64>, range| {
                for row in range {
                    let (y, z) = (row % ny, row / ny);
                    // Odd rows are between two coarse ones.
                    let ys = [y / 2, (y / 2 + y % 2) % cy];
                    let zs = [z / 2, (z / 2 + z % 2) % cz];
                    let line = |y: usize, z: usize| coarse.base + (z * cy + y) * cx;
                    sums.clear();
                    for x in 0..cx {
                        m.work(38);
                        let mut at = |y: usize, z: usize| m.get(&self.solution, line(y, z) + x);
                        sums.push(match (y % 2, z % 2) {
                            (0, 0) => at(ys[0], zs[0]),
                            (1, 0) => 0.5 * (at(ys[0], zs[0]) + at(ys[1], zs[0])),
                            (0, _) => 0.5 * (at(ys[0], zs[0]) + at(ys[0], zs[1])),
                            _ => {
                                let low = at(ys[0], zs[0]) + at(ys[1], zs[0]);
                                0.25 * (low + at(ys[0], zs[1]) + at(ys[1], zs[1]))
                            }
                        });
                    }
                    for x in 0..nx {
                        m.work(31);
                        let (a, b) = (sums[x / 2], sums[(x / 2 + x % 2) % cx]);
                        let i = fine.base + row * nx + x;
                        let value = m.get(&self.solution, i) + 0.5 * (a + b);
                        m.set(&self.solution, i, value);
                    }
                }
            },
        );
    }

    /// The residual at a point of the finest grid, neighbour by neighbour.
    fn direct_residual<M: Memory>(&self, m: &mut M, point: usize) -> f64 {
        let size = self.levels[0].size;
        let here = grid::place(size, point);
        let mut sum = 0.0;
        for k in 0..27 {
            let step = [k % 3, k / 3 % 3, k / 9];
            let there = [0, 1, 2].map(|d| (here[d] + size[d] + step[d] - 1) % size[d]);
            let distance = step.iter().filter(|&&s| s != 1).count();
            sum += OPERATOR[distance] * m.get(&self.solution, grid::index(size, there));
        }
        m.get(&self.charges, point) - sum
    }
}

//! Recommendations by alternating least squares: users' and items' factors are fitted to
//! ratings, in turns.
//!
//! Represents In-memory-analytics of the adaptive-policy paper (CloudSuite, section 3.2), which
//! favours LFU: the ratings are scanned once a turn, while the model, the factors, is read at
//! random places with every one of them.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check, check_error, fold};
use super::parameters::in_range;
use super::shared::adjacency::Adjacency;
use super::shared::random;
use super::shared::zipf::Zipf;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};
use crate::memory::checked::mix;

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "als",
    summary: "recommendations by alternating least squares",
    stands_for: "adaptive policy section 3.2: In-memory-analytics: ratings scanned in turns, a hot model read at random",
    operation: "ratings",
    threads: true,
    parameters: &[
        ParameterDoc {
            name: "iterations",
            default: "3",
            meaning: "turns, each first over the users, then over the items",
        },
        ParameterDoc {
            name: "ratings_per_user",
            default: "100",
            meaning: "ratings of each user; items are a tenth as many as users",
        },
    ],
    run: Run::of::<Als>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    iterations: u64,
    ratings_per_user: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { iterations: 3, ratings_per_user: 100 }
    }
}

/// Components of a user's or an item's factor.
const RANK: usize = 8;
type Factor = [f64; RANK];
const USERS_PER_ITEM: usize = 10;
/// Regularization: how strongly factors are kept small.
const REGULAR: f64 = 0.1;
/// Exponent of the items' popularity.
const THETA: f64 = 0.8;
/// Instructions of a rating's share in the normal equations, and of solving them.
const RATING_WORK: u32 = 195;
const SOLVE_WORK: u32 = 1500;

/// Users are the first rows, items those after them.
struct Model {
    users: usize,
    ratings: Adjacency,
    /// The rating of each entry.
    values: Array<f64>,
    factors: Array<f64>,
}

struct Als;

impl Kernel for Als {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 20)?;
        let each = in_range("ratings_per_user", options.ratings_per_user, 1, 10_000)?;
        let row_bytes = Adjacency::BYTES_PER_ROW + 8 * RANK as u64;
        let entry_bytes = Adjacency::BYTES_PER_ENTRY + 8;
        let user_bytes = row_bytes as f64 * (1.0 + 1.0 / USERS_PER_ITEM as f64)
            + (2 * each as u64 * entry_bytes) as f64;
        let users = (params.footprint_bytes as f64 / user_bytes) as usize;
        let users = in_range("users that fit the footprint", users, 100, 1 << 31)?;

        let model = &m.phase(phase::INIT, 0, |m| Model::new(m, users, each, params.seed))?;

        let mut losses = vec![m.quietly(|m| model.loss(m))];
        m.phase(phase::MAIN, 0, |m| {
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| {
                    m.phase("users", iteration, |m| model.fit(m, 0, users));
                    m.phase("items", iteration, |m| model.fit(m, users, model.ratings.rows()));
                });
                let loss = m.quietly(|m| model.loss(m));
                losses.push(loss);
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                // The items' factors are optimal for those of the users.
                let mut worst = 0.0f64;
                for row in users..model.ratings.rows() {
                    let slope = model.slope(m, row);
                    worst = if slope <= worst { worst } else { slope };
                }
                let mut checksum = 0;
                for i in 0..model.factors.len() {
                    checksum = fold(checksum, m.get(&model.factors, i).to_bits());
                }
                let falls = losses.windows(2).all(|w| w[1] <= w[0] * (1.0 + 1e-12));
                let ratings = m.get(&model.ratings.offsets, model.ratings.rows());
                let checks = vec![
                    check_error("slope of the loss at the items' factors", worst, 1e-9),
                    check(falls, format!("loss falls: {losses:.4?}")),
                ];
                Ok(Outcome { checksum, operations: iterations * ratings, checks })
            })
        })
    }
}

impl Model {
    fn new<M: Memory>(
        m: &mut M,
        users: usize,
        each: usize,
        seed: u64,
    ) -> Result<Model, ProgramError> {
        let items = users / USERS_PER_ITEM;
        let popularity = Zipf::new(items, THETA)?;
        let pairs = users * each;
        let values = m.array::<f64>("values", 2 * pairs)?;
        let pair = |m: &mut M, e: usize| {
            m.work(300);
            let mut words = random::Words::of(seed, e as u64);
            // An item's popularity is independent of its number.
            let rank = popularity.draw(&mut words) as u64;
            let item = random::below(mix(rank ^ mix(seed)), items);
            Some(((e / each) as u32, (users + item) as u32))
        };
        let place = |m: &mut M, e: usize, position: usize| {
            m.work(random::AT_WORK);
            // One to five stars.
            let stars = 1 + random::below(random::at(!seed, e as u64), 5);
            m.set(&values, position, stars as f64);
        };
        let rows = users + items;
        let ratings = Adjacency::build(m, rows, 2 * pairs, pairs, pair, place)?;
        let factors = m.array::<f64>("factors", rows * RANK)?;
        m.each(rows * RANK, |m, i| {
            m.work(random::AT_WORK);
            m.set(&factors, i, random::unit(random::at(seed ^ 1, i as u64)));
        });
        Ok(Model { users, ratings, values, factors })
    }

    fn factor<M: Memory>(&self, m: &mut M, row: usize) -> Factor {
        std::array::from_fn(|k| m.get(&self.factors, row * RANK + k))
    }

    /// Rating and factor of the other side of an entry.
    fn entry<M: Memory>(&self, m: &mut M, entry: usize) -> (f64, Factor) {
        let other = m.get(&self.ratings.columns, entry) as usize;
        (m.get(&self.values, entry), self.factor(m, other))
    }

    /// Fits the factors of some rows to their ratings, with the other side's fixed.
    fn fit<M: Memory>(&self, m: &mut M, from: usize, to: usize) {
        m.parallel(
            to - from,
            1,
            |_| (),
            |m, (), range| {
                for row in range {
                    let row = from + row;
                    let mut normal = [[0.0; RANK]; RANK];
                    let mut right = [0.0; RANK];
                    for (k, line) in normal.iter_mut().enumerate() {
                        line[k] = REGULAR;
                    }
                    for entry in self.ratings.row(m, row) {
                        m.work(RATING_WORK);
                        let (rating, other) = self.entry(m, entry);
                        for (i, line) in normal.iter_mut().enumerate() {
                            right[i] += rating * other[i];
                            for (sum, factor) in line.iter_mut().zip(other).take(i + 1) {
                                *sum += other[i] * factor;
                            }
                        }
                    }
                    m.work(SOLVE_WORK);
                    for (k, part) in cholesky(normal, right).into_iter().enumerate() {
                        m.set(&self.factors, row * RANK + k, part);
                    }
                }
            },
        );
    }

    /// Squared errors of all ratings plus the regularization of the factors.
    fn loss<M: Memory>(&self, m: &mut M) -> f64 {
        let errors = m.sum(self.users, |m, user| {
            let own = self.factor(m, user);
            let square = |m: &mut M, entry: usize| {
                let (rating, other) = self.entry(m, entry);
                (rating - own.iter().zip(other).map(|(a, b)| a * b).sum::<f64>()).powi(2)
            };
            self.ratings.row(m, user).map(|entry| square(m, entry)).sum()
        });
        errors + REGULAR * m.sum(self.factors.len(), |m, i| m.get(&self.factors, i).powi(2))
    }

    /// The gradient of the loss at the factor of a row, relative to its parts.
    fn slope<M: Memory>(&self, m: &mut M, row: usize) -> f64 {
        let own = self.factor(m, row);
        let mut slope = own.map(|f| REGULAR * f);
        let mut scale = 1.0;
        for entry in self.ratings.row(m, row) {
            let (rating, other) = self.entry(m, entry);
            let predicted: f64 = own.iter().zip(other).map(|(a, b)| a * b).sum();
            for (slope, other) in slope.iter_mut().zip(other) {
                *slope += (predicted - rating) * other;
                scale += (rating * other).abs();
            }
        }
        slope.iter().fold(0.0, |a, s| if s.abs() / scale <= a { a } else { s.abs() / scale })
    }
}

/// Solves a positive definite system given by its lower half.
fn cholesky(mut a: [[f64; RANK]; RANK], mut x: Factor) -> Factor {
    for j in 0..RANK {
        let above: f64 = a[j][..j].iter().map(|v| v * v).sum();
        a[j][j] = (a[j][j] - above).sqrt();
        for i in j + 1..RANK {
            let sum: f64 = (0..j).map(|k| a[i][k] * a[j][k]).sum();
            a[i][j] = (a[i][j] - sum) / a[j][j];
        }
    }
    for i in 0..RANK {
        let sum: f64 = (0..i).map(|k| a[i][k] * x[k]).sum();
        x[i] = (x[i] - sum) / a[i][i];
    }
    for i in (0..RANK).rev() {
        let sum: f64 = (i + 1..RANK).map(|k| a[k][i] * x[k]).sum();
        x[i] = (x[i] - sum) / a[i][i];
    }
    x
}

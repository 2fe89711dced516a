//! Ranking of integer keys by buckets, over and over: NPB's IS.
//!
//! Represents `is` (NAS, class C) of the granularity paper (table 2). The keys are streamed;
//! scattering them writes to the ends of a thousand buckets at once, and counting goes to random
//! places of one bucket's part of the counters.

use std::ops::Range;

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check, fold};
use super::parameters::in_range;
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "is",
    summary: "ranking of integer keys by buckets (NPB IS)",
    stands_for: "granularity table 2: is: keys streamed into a thousand buckets and counted at random",
    operation: "ranked keys",
    threads: true,
    parameters: &[ParameterDoc {
        name: "iterations",
        default: "10",
        meaning: "rankings (NPB: 10)",
    }],
    run: Run::of::<Is>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    iterations: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { iterations: 10 }
    }
}

/// Buckets (NPB: 2^10).
const BUCKETS: usize = 1024;
/// Keys for each possible key (NPB class C: 2^27 keys below 2^23).
const KEYS_PER_VALUE: usize = 16;

struct Is;

impl Kernel for Is {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1000)?;
        // A key, its copy in a bucket, and a sixteenth of a counter.
        let n = (params.footprint_bytes as f64 / (8.0 + 4.0 / KEYS_PER_VALUE as f64)) as usize;
        let n = in_range("keys that fit the footprint", n, 1 << 15, u32::MAX as usize)?;
        let values = n / KEYS_PER_VALUE;
        let key = |i: usize| {
            // The mean of four uniform numbers, as in NPB.
            let mut words = random::Words::of(params.seed, i as u64);
            let sum: usize = (0..4).map(|_| words.below(values)).sum();
            (sum / 4) as u32
        };

        let sort = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let sort = Sort {
                keys: m.array("keys", n)?,
                bucketed: m.array("bucketed", n)?,
                ranks: m.array("ranks", values)?,
            };
            m.each(n, |m, i| {
                m.work(5 * random::AT_WORK);
                m.set(&sort.keys, i, key(i));
            });
            Ok(sort)
        })?;

        // Two keys change before every ranking, as in NPB.
        let changes = |iteration: u32| {
            let i = iteration as usize;
            [
                (i, iteration % values as u32),
                (i + iterations as usize, values as u32 - 1 - iteration % values as u32),
            ]
        };
        m.phase(phase::MAIN, 0, |m| {
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration.into(), |m| {
                    for (i, value) in changes(iteration) {
                        m.set(&sort.keys, i, value);
                    }
                    sort.rank(m);
                });
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                // Ranks from the keys as first made, by counting.
                let mut counts = vec![0u32; values];
                let changed: std::collections::HashMap<usize, u32> =
                    (0..iterations).flat_map(changes).collect();
                for i in 0..n {
                    let change = if i < 2 * iterations as usize { changed.get(&i) } else { None };
                    counts[change.map_or_else(|| key(i), |&value| value) as usize] += 1;
                }
                let (wrong, misplaced, checksum) = sort.compare(m, counts);
                let checks = vec![
                    check(wrong == 0, format!("{wrong} of {values} ranks wrong")),
                    check(misplaced == 0, format!("{misplaced} keys misplaced")),
                ];
                Ok(Outcome { checksum, operations: u64::from(iterations) * n as u64, checks })
            })
        })
    }
}

struct Sort {
    keys: Array<u32>,
    /// The keys in the order of their buckets.
    bucketed: Array<u32>,
    /// For each value how many keys are not greater.
    ranks: Array<u32>,
}

impl Sort {
    fn bucket_of(&self, key: u32) -> usize {
        key as usize * BUCKETS / self.ranks.len()
    }

    /// The values of a bucket.
    fn values_of(&self, bucket: usize) -> Range<usize> {
        let first = |bucket: usize| (bucket * self.ranks.len()).div_ceil(BUCKETS);
        first(bucket)..first(bucket + 1)
    }

    /// Compares with counts of each value: wrong ranks, misplaced keys, and a checksum.
    fn compare<M: Memory>(&self, m: &mut M, mut counts: Vec<u32>) -> (usize, usize, u64) {
        let (mut wrong, mut sum, mut checksum) = (0, 0, 0);
        for (value, count) in counts.iter_mut().enumerate() {
            sum += *count;
            let rank = m.get(&self.ranks, value);
            wrong += usize::from(rank != sum);
            checksum = fold(checksum, rank.into());
        }
        // The copy has the same keys, bucket by bucket.
        let (mut misplaced, mut last) = (0, 0);
        for i in 0..self.keys.len() {
            let value = m.get(&self.bucketed, i) as usize;
            let bucket = self.bucket_of(value as u32);
            misplaced += usize::from(bucket < last);
            last = bucket;
            match counts.get_mut(value) {
                Some(count) => *count = count.wrapping_sub(1),
                None => misplaced += 1,
            }
        }
        misplaced += counts.iter().filter(|c| **c != 0).count();
        (wrong, misplaced, checksum)
    }

    fn rank<M: Memory>(&self, m: &mut M) {
        let n = self.keys.len();
        // Each thread counts the keys of its share by bucket ...
        let counts = m.parallel(
            n,
            64,
            |_| vec![0usize; BUCKETS],
            |m, counts, range| {
                for i in range {
                    m.work(15);
                    counts[self.bucket_of(m.get(&self.keys, i))] += 1;
                }
            },
        );
        // ... has a range of its own in every bucket ...
        let mut starts = vec![0; BUCKETS + 1];
        let mut places = vec![vec![0; BUCKETS]; counts.len()];
        let mut next = 0;
        for bucket in 0..BUCKETS {
            starts[bucket] = next;
            for (places, counts) in places.iter_mut().zip(&counts) {
                places[bucket] = next;
                next += counts[bucket];
            }
        }
        starts[BUCKETS] = next;
        m.work(10 * BUCKETS as u32);
        // ... puts its keys there ...
        m.parallel(
            n,
            64,
            |thread| places[thread].clone(),
            |m, places, range| {
                for i in range {
                    m.work(20);
                    let key = m.get(&self.keys, i);
                    let place = &mut places[self.bucket_of(key)];
                    m.set(&self.bucketed, *place, key);
                    *place += 1;
                }
            },
        );
        // ... and counts bucket after bucket.
        m.parallel(
            BUCKETS,
            1,
            |_| (),
            |m, (), range| {
                for bucket in range {
                    let values = self.values_of(bucket);
                    for value in values.clone() {
                        m.work(5);
                        m.set(&self.ranks, value, 0);
                    }
                    for i in starts[bucket]..starts[bucket + 1] {
                        m.work(5);
                        let value = m.get(&self.bucketed, i) as usize;
                        let count = m.get(&self.ranks, value);
                        m.set(&self.ranks, value, count + 1);
                    }
                    let mut sum = starts[bucket] as u32;
                    for value in values {
                        m.work(7);
                        sum += m.get(&self.ranks, value);
                        m.set(&self.ranks, value, sum);
                    }
                }
            },
        );
    }
}

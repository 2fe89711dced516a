//! A hash join: a chained hash table is built over the inner relation and probed with every
//! tuple of the outer one.
//!
//! Represents HashJoin of the Radiant paper (table 2). The relations are scanned once, in order;
//! building and probing go to a random bucket and from there along a chain of random nodes, so that
//! nearly every step is a miss in the translation buffers.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::check;
use super::parameters::in_range;
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};
use crate::memory::checked::mix;

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "hashjoin",
    summary: "builds a chained hash table and probes it",
    stands_for: "Radiant table 2: HashJoin: each probe is a random bucket and a chain of random nodes",
    operation: "probes",
    threads: true,
    parameters: &[ParameterDoc {
        name: "match_percent",
        default: "87.5",
        meaning: "outer tuples that have a partner, in percent",
    }],
    run: Run::of::<HashJoin>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    match_percent: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { match_percent: 87.5 }
    }
}

/// A tuple is a key and a payload; a node is a key, a payload and the next node's number plus 1.
const TUPLE_WORDS: usize = 2;
const NODE_WORDS: usize = 3;
/// Bytes for each tuple: one in either relation, a node, a bucket.
const BYTES_PER_TUPLE: u64 = 8 * (2 * TUPLE_WORDS + NODE_WORDS + 1) as u64;
/// No chain of a sound table is this long; a damaged one may be a ring.
const LONGEST_CHAIN: usize = 1000;

/// The relations, as functions.
#[derive(Clone, Copy)]
struct Relations {
    tuples: usize,
    seed: u64,
    match_share: f64,
}

impl Relations {
    fn inner(self, i: usize) -> (u64, u64) {
        let key = random::at(self.seed, i as u64);
        (key, mix(!key))
    }

    /// A tuple of the outer relation, and whether it has a partner.
    fn outer(self, j: usize) -> (u64, u64, bool) {
        let mut words = random::Words::of(!self.seed, j as u64);
        let matched = words.unit() < self.match_share;
        let partner = if matched { words.below(self.tuples) } else { self.tuples + j };
        (self.inner(partner).0, words.word(), matched)
    }
}

struct HashJoin;

impl Kernel for HashJoin {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let percent = in_range("match_percent", options.match_percent, 0.0, 100.0)?;
        let tuples = (params.footprint_bytes / BYTES_PER_TUPLE) as usize;
        let relations = Relations { tuples, seed: params.seed, match_share: percent / 100.0 };

        let (inner, outer) = m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let inner = m.array::<u64>("inner", tuples * TUPLE_WORDS)?;
            let outer = m.array::<u64>("outer", tuples * TUPLE_WORDS)?;
            m.each(tuples, |m, i| {
                m.work(6 * random::AT_WORK);
                let (key, payload) = relations.inner(i);
                m.set(&inner, i * TUPLE_WORDS, key);
                m.set(&inner, i * TUPLE_WORDS + 1, payload);
                let (key, payload, _) = relations.outer(i);
                m.set(&outer, i * TUPLE_WORDS, key);
                m.set(&outer, i * TUPLE_WORDS + 1, payload);
            });
            Ok((inner, outer))
        })?;

        let joined = m.phase(phase::MAIN, 0, |m| -> Result<_, ProgramError> {
            let buckets = m.array::<u64>("buckets", tuples)?;
            let nodes = m.array::<u64>("nodes", tuples * NODE_WORDS)?;
            m.phase("build", 0, |m| build(m, &inner, &buckets, &nodes));
            let joined = m.phase("probe", 0, |m| probe(m, &outer, &buckets, &nodes));
            Ok((joined, buckets, nodes))
        })?;

        let (joined, buckets, nodes) = joined;
        Ok(m.phase(phase::VERIFY, 0, |m| {
            let mut expected = Joined::default();
            for j in 0..tuples {
                let (key, payload, matched) = relations.outer(j);
                if matched {
                    expected.add(mix(!key), payload);
                }
            }
            let damaged = m.quietly(|m| damaged(m, relations, &buckets, &nodes));
            let count = (joined.matches, expected.matches);
            let checks = vec![
                check(count.0 == count.1, format!("{} matches, expected {}", count.0, count.1)),
                check(joined.sum == expected.sum, "sum of the joined payloads"),
                check(damaged == 0, format!("{damaged} of {tuples} nodes damaged or lost")),
                check(joined.rings == 0, format!("{} endless chains", joined.rings)),
            ];
            Outcome { checksum: joined.sum, operations: tuples as u64, checks }
        }))
    }
}

fn bucket_of(key: u64, buckets: usize) -> usize {
    random::below(mix(key), buckets)
}

fn build<M: Memory>(m: &mut M, inner: &Array<u64>, buckets: &Array<u64>, nodes: &Array<u64>) {
    m.each(buckets.len(), |m, i| {
        m.work(35);
        let key = m.get(inner, i * TUPLE_WORDS);
        let payload = m.get(inner, i * TUPLE_WORDS + 1);
        let node = i * NODE_WORDS;
        m.set(nodes, node, key);
        m.set(nodes, node + 1, payload);
        let bucket = bucket_of(key, buckets.len());
        loop {
            let head = m.get(buckets, bucket);
            m.set(nodes, node + 2, head);
            if m.claim(buckets, bucket, head, i as u64 + 1) {
                break;
            }
        }
    });
}

/// Checks every node by way of its bucket. A tuple's node has the tuple's number.
fn damaged<M: Memory>(
    m: &mut M,
    relations: Relations,
    buckets: &Array<u64>,
    nodes: &Array<u64>,
) -> usize {
    let mut found = vec![false; relations.tuples];
    let mut strays = 0;
    for bucket in 0..buckets.len() {
        let mut next = m.get(buckets, bucket) as usize;
        while next != 0 {
            let index = (next - 1).min(relations.tuples - 1);
            let tuple = (m.get(nodes, index * NODE_WORDS), m.get(nodes, index * NODE_WORDS + 1));
            let belongs = next == index + 1
                && !std::mem::replace(&mut found[index], true)
                && tuple == relations.inner(index)
                && bucket_of(tuple.0, buckets.len()) == bucket;
            if !belongs {
                strays += 1;
                break;
            }
            next = m.get(nodes, index * NODE_WORDS + 2) as usize;
        }
    }
    found.iter().filter(|f| !**f).count() + strays
}

/// The result of a join; independent of the order.
#[derive(Default)]
struct Joined {
    matches: u64,
    sum: u64,
    rings: u64,
}

impl Joined {
    fn add(&mut self, inner_payload: u64, outer_payload: u64) {
        self.matches += 1;
        self.sum = self.sum.wrapping_add(inner_payload ^ outer_payload.rotate_left(1));
    }
}

fn probe<M: Memory>(
    m: &mut M,
    outer: &Array<u64>,
    buckets: &Array<u64>,
    nodes: &Array<u64>,
) -> Joined {
    let found = m.parallel(
        buckets.len(),
        8,
        |_| Joined::default(),
        |m, joined, range| {
            for j in range {
                m.work(30);
                let key = m.get(outer, j * TUPLE_WORDS);
                let mut next = m.get(buckets, bucket_of(key, buckets.len()));
                let mut steps = 0;
                while next != 0 && steps < LONGEST_CHAIN {
                    m.work(10);
                    let node = (next as usize - 1) * NODE_WORDS;
                    if m.get(nodes, node) == key {
                        let payload = m.get(nodes, node + 1);
                        joined.add(payload, m.get(outer, j * TUPLE_WORDS + 1));
                    }
                    next = m.get(nodes, node + 2);
                    steps += 1;
                }
                joined.rings += u64::from(steps == LONGEST_CHAIN);
            }
        },
    );
    found.into_iter().fold(Joined::default(), |a, b| Joined {
        matches: a.matches + b.matches,
        sum: a.sum.wrapping_add(b.sum),
        rings: a.rings + b.rings,
    })
}

//! A key-value store in memory, read and written with Zipfian popularity: a chained hash table
//! over items with a small head and a large value.
//!
//! Represents Memcached and Redis of the Radiant paper (table 2: YCSB, Zipfian reads). A request
//! goes to a random bucket, along a chain to an item anywhere in memory, and then through its whole
//! value; few items take most requests, and they are scattered among the others. A read writes the
//! time to the head of the item, as both servers do.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check, fold};
use super::parameters::in_range;
use super::shared::random;
use super::shared::zipf::Zipf;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};
use crate::memory::checked::mix;

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "kv",
    summary: "a key-value store under a Zipfian load",
    stands_for: "Radiant table 2: Memcached and Redis (YCSB): scattered popular items, each request a random bucket, a chain and a whole value",
    operation: "requests",
    threads: true,
    parameters: &[
        ParameterDoc {
            name: "requests_per_item",
            default: "4",
            meaning: "requests for each item of the store",
        },
        ParameterDoc {
            name: "read_percent",
            default: "95",
            meaning: "requests that read, in percent (YCSB B: 95)",
        },
        ParameterDoc {
            name: "theta",
            default: "0.99",
            meaning: "exponent of the Zipfian law (YCSB: 0.99)",
        },
        ParameterDoc {
            name: "value_bytes",
            default: "1024",
            meaning: "size of a value, rounded down to words of 8 bytes (YCSB: 10 fields of 100)",
        },
    ],
    run: Run::of::<Kv>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    requests_per_item: f64,
    read_percent: f64,
    theta: f64,
    value_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { requests_per_item: 4.0, read_percent: 95.0, theta: 0.99, value_bytes: 1024 }
    }
}

/// Words of an item's head: the next item of the bucket plus 1, the key, how often the value
/// was written, and the number of the last request for it plus 1.
const HEAD_WORDS: usize = 4;
const KEY: usize = 1;
const VERSION: usize = 2;
const ASKED: usize = 3;
/// Locks, each for a share of the buckets.
const LOCKS: usize = 4096;
/// No chain of a sound table is this long; a damaged one may be a ring.
const LONGEST_CHAIN: usize = 1000;
/// Odd: keeps the words of a value apart.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

struct Store {
    buckets: Array<u64>,
    items: Array<u64>,
    locks: Array<u32>,
    item_words: usize,
}

struct Kv;

impl Kernel for Kv {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let per_item = in_range("requests_per_item", options.requests_per_item, 0.0, 1e6)?;
        let reads = in_range("read_percent", options.read_percent, 0.0, 100.0)? / 100.0;
        let value_bytes = in_range("value_bytes", options.value_bytes, 8, 1 << 20)?;
        let item_words = HEAD_WORDS + value_bytes / 8;
        let count = params.footprint_bytes as usize / (8 * (item_words + 1));
        let count = in_range("items that fit the footprint", count, 1, 1 << 40)?;
        let requests = (count as f64 * per_item) as usize;
        let seed = params.seed;
        let zipf = Zipf::new(count, options.theta)?;

        let store = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let store = Store {
                buckets: m.array("buckets", count)?,
                items: m.array("items", count * item_words)?,
                locks: m.array("locks", LOCKS)?,
                item_words,
            };
            m.each(count, |m, i| store.insert(m, i, random::at(seed, i as u64)));
            Ok(store)
        })?;

        // The key of a request, and whether it reads.
        let asked = |i: u64| {
            let mut words = random::Words::of(!seed, i);
            // Popularity is independent of place (YCSB's scrambled Zipfian).
            let rank = zipf.draw(&mut words) as u64;
            let key = random::at(seed, random::below(mix(rank ^ seed), count) as u64);
            (key, words.unit() < reads)
        };
        let start = |_| (0u64, 0u64);
        let body = |m: &mut M, (wrong, sets): &mut (u64, u64), range: std::ops::Range<usize>| {
            for i in range {
                m.work(468);
                let (key, is_read) = asked(i as u64);
                *wrong += u64::from(!store.request(m, key, is_read, i as u64 + 1));
                *sets += u64::from(!is_read);
            }
        };
        let served = m.phase(phase::MAIN, 0, |m| m.parallel(requests, 1, start, body));

        Ok(m.phase(phase::VERIFY, 0, |m| {
            let wrong: u64 = served.iter().map(|s| s.0).sum();
            let sets: u64 = served.iter().map(|s| s.1).sum();
            let (mut linked, mut damaged, mut versions, mut checksum) = (0, 0, 0, 0);
            m.quietly(|m| {
                linked = store.linked(m);
                for i in 0..count {
                    let item = i * item_words;
                    let key = m.get(&store.items, item + KEY);
                    let version = m.get(&store.items, item + VERSION);
                    let right = key == random::at(seed, i as u64)
                        && store.read(m, item)
                        && match m.get(&store.items, item + ASKED) {
                            0 => version == 0,
                            number => asked(number - 1).0 == key,
                        };
                    damaged += usize::from(!right);
                    versions += version;
                    checksum = fold(checksum, version);
                }
            });
            let checks = vec![
                check(wrong == 0, format!("{wrong} of {requests} requests wrong")),
                check(damaged == 0, format!("{damaged} of {count} items damaged")),
                check(linked == count, format!("{linked} of {count} items in their buckets")),
                check(versions == sets, format!("{versions} values written, {sets} requested")),
            ];
            let checksum = fold(checksum, m.get(&store.items, KEY));
            Outcome { checksum, operations: requests as u64, checks }
        }))
    }
}

impl Store {
    fn bucket_of(&self, key: u64) -> usize {
        random::below(mix(key), self.buckets.len())
    }

    /// The first word of a value; the others follow in steps.
    fn first_word(key: u64, version: u64) -> u64 {
        mix(key ^ version.rotate_left(32))
    }

    fn write<M: Memory>(&self, m: &mut M, item: usize, key: u64, version: u64) {
        let mut word = Self::first_word(key, version);
        for w in HEAD_WORDS..self.item_words {
            m.work(14);
            m.set(&self.items, item + w, word);
            word = word.wrapping_add(STEP);
        }
    }

    /// Reads the value of an item; returns whether every word of it is right.
    fn read<M: Memory>(&self, m: &mut M, item: usize) -> bool {
        let key = m.get(&self.items, item + KEY);
        let mut word = Self::first_word(key, m.get(&self.items, item + VERSION));
        let mut right = true;
        for w in HEAD_WORDS..self.item_words {
            m.work(14);
            right &= m.get(&self.items, item + w) == word;
            word = word.wrapping_add(STEP);
        }
        right
    }

    fn insert<M: Memory>(&self, m: &mut M, i: usize, key: u64) {
        m.work(4 * random::AT_WORK);
        let item = i * self.item_words;
        m.set(&self.items, item + KEY, key);
        self.write(m, item, key, 0);
        let bucket = self.bucket_of(key);
        loop {
            let head = m.get(&self.buckets, bucket);
            m.set(&self.items, item, head);
            if m.claim(&self.buckets, bucket, head, i as u64 + 1) {
                break;
            }
        }
    }

    fn find<M: Memory>(&self, m: &mut M, key: u64) -> Option<usize> {
        let mut next = m.get(&self.buckets, self.bucket_of(key));
        for _ in 0..LONGEST_CHAIN {
            m.work(19);
            if next == 0 {
                return None;
            }
            let item = (next as usize - 1) * self.item_words;
            if m.get(&self.items, item + KEY) == key {
                return Some(item);
            }
            next = m.get(&self.items, item);
        }
        None
    }

    /// Number of items in the buckets; 0 when an item is in one that is not its own.
    fn linked<M: Memory>(&self, m: &mut M) -> usize {
        let mut linked = 0;
        for bucket in 0..self.buckets.len() {
            let mut next = m.get(&self.buckets, bucket) as usize;
            while next != 0 {
                let item = (next - 1) * self.item_words;
                if next > self.buckets.len()
                    || linked == self.buckets.len()
                    || self.bucket_of(m.get(&self.items, item + KEY)) != bucket
                {
                    return 0;
                }
                linked += 1;
                next = m.get(&self.items, item) as usize;
            }
        }
        linked
    }

    /// Serves a request; returns whether the item was present and right.
    fn request<M: Memory>(&self, m: &mut M, key: u64, is_read: bool, now: u64) -> bool {
        let lock = self.bucket_of(key) % LOCKS;
        // Traced, the lock is always free: a request is never divided between two turns.
        while !m.claim(&self.locks, lock, 0, 1) {
            std::hint::spin_loop();
        }
        let found = self.find(m, key);
        let right = found.is_some_and(|item| {
            m.set(&self.items, item + ASKED, now);
            if is_read {
                return self.read(m, item);
            }
            let version = m.get(&self.items, item + VERSION) + 1;
            m.set(&self.items, item + VERSION, version);
            self.write(m, item, key, version);
            true
        });
        m.xor(&self.locks, lock, 1);
        right
    }
}

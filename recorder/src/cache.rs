//! The caches of the filter. They are LRU, allocate on loads and stores alike, and do not
//! invalidate each other, as in Valgrind's cachegrind. A line that a store changed is dirty; its
//! eviction marks the next level's copy as dirty without counting as a use. So misses equal those
//! of cachegrind, which has no dirty lines.

use std::ops::{BitAnd, BitOr, Not};
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_recordings::reference::{CacheShape, Filter};

use crate::huge::in_huge_pages;
use crate::prefetch::prefetch;

/// Why a cache shape is impossible: got, expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadShape(pub String);

/// Sets of a cache of this shape.
pub fn sets(name: &str, shape: CacheShape, line_bytes: u32) -> Result<usize, BadShape> {
    if !line_bytes.is_power_of_two() || !(16..=4096).contains(&line_bytes) {
        return Err(BadShape(format!(
            "a line of {line_bytes} bytes; expected a power of two from 16 to 4096"
        )));
    }
    let way_bytes = u64::from(shape.ways) * u64::from(line_bytes);
    if shape.ways == 0 || shape.ways > 64 {
        return Err(BadShape(format!("{name} of {} ways; expected 1 to 64", shape.ways)));
    }
    let sets = shape.size_bytes / way_bytes;
    if sets * way_bytes != shape.size_bytes || !sets.is_power_of_two() || sets > 1 << 24 {
        return Err(BadShape(format!(
            "{name} of {} bytes in {} ways of {line_bytes}-byte lines makes {:.2} sets; expected a power of two up to 2^24",
            shape.size_bytes,
            shape.ways,
            shape.size_bytes as f64 / way_bytes as f64
        )));
    }
    Ok(sets as usize)
}

/// Checks every cache of a filter.
pub fn check(filter: &Filter) -> Result<(), BadShape> {
    for (name, shape) in [("l1", filter.l1), ("l2", filter.l2), ("llc", filter.llc)] {
        sets(name, shape, filter.line_bytes)?;
    }
    if filter.sample_one_in == 0 {
        return Err(BadShape("sample 1 in 0; expected at least 1".to_owned()));
    }
    Ok(())
}

/// Bits of a program's addresses: 47 on x86-64 with four levels of page tables. QEMU puts programs
/// below 0x5000_0000_0000, so that the one added by an entry does not overflow.
const ADDRESS_BITS: u32 = 47;

/// Stands for no line.
pub const NO_LINE: u64 = u64::MAX;

/// Outcome of the use of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// The line was present.
    pub hit: bool,
    /// The dirty line that was evicted, or [`NO_LINE`].
    pub left: u64,
}

const HIT: Use = Use { hit: true, left: NO_LINE };

/// A line in a set: its number without the set's bits, plus one, then a bit for dirty; 0 for none.
trait Entry:
    Copy + Eq + From<u8> + Into<u64> + BitAnd<Output = Self> + BitOr<Output = Self> + Not<Output = Self>
{
}
impl Entry for u32 {}
impl Entry for u64 {}

/// Whether line numbers without their set's bits fit into 32 bits beside the dirty bit.
fn is_narrow(set_bits: u32, line_bytes: u32) -> bool {
    set_bits + line_bytes.trailing_zeros() + 31 >= ADDRESS_BITS
}

fn entry(line: u64, set_bits: u32) -> u64 {
    ((line >> set_bits) + 1) << 1
}

/// The line of an evicted entry, if it was dirty.
fn left(entry: u64, set: usize, set_bits: u32) -> u64 {
    if entry & 1 == 0 { NO_LINE } else { ((entry >> 1) - 1) << set_bits | set as u64 }
}

/// Uses a line in its set, which is in the order of use, most recent first. Returns whether the
/// line was present, and the evicted entry.
#[inline]
fn touch<T: Entry, const WAYS: usize>(set: &mut [T; WAYS], line: T) -> (bool, T) {
    let one = T::from(1);
    let before = *set;
    // Whether any way matches is a few vector instructions; the way itself is needed only on a hit.
    let found = before.iter().fold(false, |found, entry| found | (*entry & !one == line));
    if !found {
        set[1..].copy_from_slice(&before[..WAYS - 1]);
        set[0] = line;
        return (false, before[WAYS - 1]);
    }
    let at = before.iter().position(|entry| *entry & !one == line).unwrap_or(0);
    // Selects instead of a copy: a call of memmove for a few bytes took 80 % of the run time.
    for way in 1..WAYS {
        set[way] = if way <= at { before[way - 1] } else { before[way] };
    }
    set[0] = before[at];
    (true, T::from(0))
}

/// `touch` for any number of ways.
fn touch_any<T: Entry>(set: &mut [T], line: T) -> (bool, T) {
    let one = T::from(1);
    let found = set.iter().position(|entry| *entry & !one == line);
    let at = found.unwrap_or(set.len() - 1);
    let old = set[at];
    set.copy_within(0..at, 1);
    set[0] = line | if found.is_some() { old & one } else { T::from(0) };
    (found.is_some(), old)
}

#[inline]
fn use_in<T: Entry>(lines: &mut [T], (set, set_bits, ways): (usize, u32, usize), line: T) -> Use {
    let Some(entries) = lines.get_mut(set * ways..(set + 1) * ways) else { return HIT };
    if entries[0] & !T::from(1) == line {
        return HIT;
    }
    let (hit, old) = if let Ok(entries) = <&mut [T; 8]>::try_from(&mut *entries) {
        touch(entries, line)
    } else if let Ok(entries) = <&mut [T; 16]>::try_from(&mut *entries) {
        touch(entries, line)
    } else {
        touch_any(entries, line)
    };
    if hit { HIT } else { Use { hit, left: left(old.into(), set, set_bits) } }
}

fn mark_in<T: Entry>(lines: &mut [T], set: usize, ways: usize, line: T) -> bool {
    let Some(entries) = lines.get_mut(set * ways..(set + 1) * ways) else { return false };
    let found = entries.iter_mut().find(|entry| **entry & !T::from(1) == line);
    found.is_some_and(|entry| {
        *entry = *entry | T::from(1);
        true
    })
}

/// A cache that one thread uses.
#[derive(Debug)]
pub struct PrivateCache {
    lines: Lines,
    set_bits: u32,
    ways: usize,
}

/// Per set, most recently used first. Entries of 32 bits where line numbers fit.
#[derive(Debug)]
enum Lines {
    Narrow(Box<[u32]>),
    Wide(Box<[u64]>),
}

impl PrivateCache {
    /// An empty cache.
    pub fn new(sets: usize, ways: u32, line_bytes: u32) -> Self {
        let ways = ways.max(1) as usize;
        let set_bits = sets.trailing_zeros();
        let lines = if is_narrow(set_bits, line_bytes) {
            Lines::Narrow(vec![0; sets * ways].into_boxed_slice())
        } else {
            Lines::Wide(vec![0; sets * ways].into_boxed_slice())
        };
        PrivateCache { lines, set_bits, ways }
    }

    fn set(&self, line: u64) -> usize {
        (line & ((1 << self.set_bits) - 1)) as usize
    }

    /// Prefetches a line's set into the host's caches.
    #[inline]
    pub fn prefetch(&self, line: u64) {
        let first = self.set(line) * self.ways;
        match &self.lines {
            Lines::Narrow(lines) => lines.get(first).inspect(|entry| prefetch(*entry)).is_some(),
            Lines::Wide(lines) => lines.get(first).inspect(|entry| prefetch(*entry)).is_some(),
        };
    }

    /// Uses a line.
    #[inline]
    pub fn use_line(&mut self, line: u64) -> Use {
        let place = (self.set(line), self.set_bits, self.ways);
        let entry = entry(line, self.set_bits);
        match &mut self.lines {
            Lines::Narrow(lines) => use_in(lines, place, entry as u32),
            Lines::Wide(lines) => use_in(lines, place, entry),
        }
    }

    /// Marks a line as dirty without using it; false if it is absent.
    pub fn mark(&mut self, line: u64) -> bool {
        let (set, entry) = (self.set(line), entry(line, self.set_bits));
        match &mut self.lines {
            Lines::Narrow(lines) => mark_in(lines, set, self.ways, entry as u32),
            Lines::Wide(lines) => mark_in(lines, set, self.ways, entry),
        }
    }
}

/// A cache that the threads of a process share without a lock. Two threads that use one set at the
/// same instant may lose or duplicate a line in it, which costs accuracy (one miss or write-back
/// too many); a single thread gets exact LRU.
#[derive(Debug)]
pub struct SharedCache {
    /// As in a private cache; two narrow lines to a word. The first set is at `start`.
    words: Vec<AtomicU64>,
    start: usize,
    set_bits: u32,
    ways: usize,
    narrow: bool,
}

impl SharedCache {
    /// An empty cache.
    pub fn new(sets: usize, ways: u32, line_bytes: u32) -> Self {
        let ways = ways.max(1) as usize;
        let set_bits = sets.trailing_zeros();
        let narrow = ways == 16 && is_narrow(set_bits, line_bytes);
        let count = if narrow { sets * 8 } else { sets * ways };
        let (words, start) = in_huge_pages(count, AtomicU64::default);
        SharedCache { words, start, set_bits, ways, narrow }
    }

    #[inline]
    fn set(&self, line: u64) -> (usize, &[AtomicU64]) {
        let set = (line & ((1 << self.set_bits) - 1)) as usize;
        let words = if self.narrow { 8 } else { self.ways };
        let first = self.start + set * words;
        (set, self.words.get(first..first + words).unwrap_or_default())
    }

    /// Prefetches a line's set into the host's caches.
    #[inline]
    pub fn prefetch(&self, line: u64) {
        if let Some(word) = self.set(line).1.first() {
            prefetch(word);
        }
    }

    /// Uses a line.
    #[inline]
    pub fn use_line(&self, line: u64) -> Use {
        let entry = entry(line, self.set_bits);
        let (set, words) = self.set(line);
        let (hit, old) =
            if self.narrow { use_narrow(words, entry as u32) } else { use_wide(words, entry) };
        if hit { HIT } else { Use { hit, left: left(old, set, self.set_bits) } }
    }

    /// Marks a line as dirty without using it; false if it is absent.
    #[inline]
    pub fn mark(&self, line: u64) -> bool {
        let entry = entry(line, self.set_bits);
        let words = self.set(line).1;
        if !self.narrow {
            let found = words.iter().find(|word| word.load(Ordering::Relaxed) & !1 == entry);
            return found.is_some_and(|word| {
                word.store(entry | 1, Ordering::Relaxed);
                true
            });
        }
        for word in words {
            let pair = word.load(Ordering::Relaxed);
            let dirty = if pair & 0xffff_fffe == entry {
                1
            } else if pair >> 32 & 0xffff_fffe == entry {
                1 << 32
            } else {
                continue;
            };
            word.store(pair | dirty, Ordering::Relaxed);
            return true;
        }
        false
    }
}

/// Sixteen lines in 64 bytes, one line of the host's cache. Accessed word by word: a wide load of
/// what was just stored in pieces would stall on every store before it, the recorded program's own
/// misses among them.
#[inline]
fn use_narrow(words: &[AtomicU64], entry: u32) -> (bool, u64) {
    let mut moved = entry;
    for word in words {
        let pair = word.load(Ordering::Relaxed);
        let (first, second) = (pair as u32, (pair >> 32) as u32);
        if first & !1 == entry {
            let kept = pair & !u64::from(u32::MAX);
            word.store(kept | u64::from(moved), Ordering::Relaxed);
            keep_dirty(words, first);
            return (true, 0);
        }
        word.store(u64::from(first) << 32 | u64::from(moved), Ordering::Relaxed);
        if second & !1 == entry {
            keep_dirty(words, second);
            return (true, 0);
        }
        moved = second;
    }
    (false, moved.into())
}

/// The line that moved to the front keeps its bit.
#[inline]
fn keep_dirty(words: &[AtomicU64], old: u32) {
    if let (1, Some(front)) = (old & 1, words.first()) {
        front.store(front.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    }
}

fn use_wide(words: &[AtomicU64], entry: u64) -> (bool, u64) {
    // Each line moves one back until the place of the used one is reached.
    let mut moved = entry;
    for word in words {
        let here = word.load(Ordering::Relaxed);
        word.store(moved, Ordering::Relaxed);
        moved = here;
        if moved & !1 == entry {
            if let (1, Some(front)) = (moved & 1, words.first()) {
                front.store(entry | 1, Ordering::Relaxed);
            }
            return (true, 0);
        }
    }
    (false, moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// LRU as a list per set, each line with its bit.
    struct Plain {
        sets: Vec<Vec<(u64, bool)>>,
        ways: usize,
    }

    impl Plain {
        fn set(&mut self, line: u64) -> &mut Vec<(u64, bool)> {
            let count = self.sets.len() as u64;
            &mut self.sets[(line % count) as usize]
        }

        fn use_line(&mut self, line: u64) -> Use {
            let ways = self.ways;
            let set = self.set(line);
            let found = set.iter().position(|(l, _)| *l == line);
            let old = found.is_some_and(|at| set.remove(at).1);
            set.insert(0, (line, old));
            let left = if set.len() > ways { set.pop() } else { None };
            let left = left.filter(|(_, dirty)| *dirty).map_or(NO_LINE, |(line, _)| line);
            Use { hit: found.is_some(), left }
        }

        fn mark(&mut self, line: u64) -> bool {
            let found = self.set(line).iter_mut().find(|(l, _)| *l == line);
            found.is_some_and(|(_, dirty)| {
                *dirty = true;
                true
            })
        }
    }

    proptest! {
        #[test]
        fn both_caches_are_lru_and_tell_the_dirty_lines_that_leave(
            lines in prop::collection::vec((0u64..40, 0u64..3, any::<bool>()), 1..500),
            ways in prop_oneof![1u32..9, Just(8), Just(16)],
            // Few sets need wide entries, many sets narrow ones.
            log_sets in prop_oneof![0u32..4, 10u32..12],
        ) {
            let sets = 1usize << log_sets;
            let mut plain = Plain { sets: vec![Vec::new(); sets], ways: ways as usize };
            let mut private = PrivateCache::new(sets, ways, 64);
            let shared = SharedCache::new(sets, ways, 64);
            for (tag, set, mark) in lines {
                // Up to the highest address that QEMU gives a program.
                let line = (0x5000_0000_0000 >> 6) - 1 - (tag << log_sets | set);
                if mark {
                    let expected = plain.mark(line);
                    prop_assert_eq!(private.mark(line), expected);
                    prop_assert_eq!(shared.mark(line), expected);
                } else {
                    let expected = plain.use_line(line);
                    prop_assert_eq!(private.use_line(line), expected);
                    prop_assert_eq!(shared.use_line(line), expected);
                }
            }
        }
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let shape = |size_bytes, ways| CacheShape { size_bytes, ways };
        assert_eq!(sets("l1", shape(32 << 10, 8), 64).unwrap(), 64);
        for (size, ways, line) in [(0, 8, 64), (48 << 10, 8, 64), (32 << 10, 0, 64), (1000, 2, 64)]
        {
            let error = sets("l1", shape(size, ways), line).unwrap_err().0;
            assert!(error.contains("expected"), "{error}");
        }
        assert!(sets("l1", shape(32 << 10, 8), 48).is_err());
    }
}

//! The filter: which references reach which level. Caches are LRU, allocate on loads and stores
//! alike, and do not invalidate each other: as Valgrind's cachegrind counts.

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_recordings::reference::{CacheShape, Filter, Level};

use crate::prefetch::prefetch;

/// Why a cache cannot be: got, expected.
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

/// Bits of a program's addresses: x86-64 with four levels of page tables gives it 47.
const ADDRESS_BITS: u32 = 47;

/// Uses a line in its set, which is in the order of use, most recent first; true where it was
/// there.
#[inline]
fn touch<T: Copy + PartialEq, const WAYS: usize>(set: &mut [T; WAYS], tag: T) -> bool {
    let found = (0..WAYS).fold(0u64, |found, way| found | u64::from(set[way] == tag) << way);
    // Selects instead of a copy: a call of memmove for a few bytes took 80 % of the run time.
    let at = if found == 0 { WAYS - 1 } else { found.trailing_zeros() as usize };
    let before = *set;
    for way in 1..WAYS {
        set[way] = if way <= at { before[way - 1] } else { before[way] };
    }
    set[0] = tag;
    found != 0
}

/// The same for any number of ways.
fn touch_any<T: Copy + PartialEq>(set: &mut [T], tag: T) -> bool {
    let found = set.iter().position(|line| *line == tag);
    set.copy_within(0..found.unwrap_or(set.len() - 1), 1);
    set[0] = tag;
    found.is_some()
}

#[inline]
fn touch_set<T: Copy + PartialEq>(lines: &mut [T], set: usize, ways: usize, tag: T) -> bool {
    let Some(set) = lines.get_mut(set * ways..(set + 1) * ways) else { return false };
    if set[0] == tag {
        return true;
    }
    if let Ok(set) = <&mut [T; 8]>::try_from(&mut *set) {
        touch(set, tag)
    } else if let Ok(set) = <&mut [T; 16]>::try_from(&mut *set) {
        touch(set, tag)
    } else {
        touch_any(set, tag)
    }
}

/// A cache that one thread uses.
#[derive(Debug)]
pub struct PrivateCache {
    lines: Lines,
    set_bits: u32,
    ways: usize,
}

/// Per set, most recently used first: the line's number without its set, plus one; 0 where there
/// is none. In half the memory where the caches' own sets leave few enough bits.
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
        let narrow = set_bits + line_bytes.trailing_zeros() + 31 >= ADDRESS_BITS;
        let lines = if narrow {
            Lines::Narrow(vec![0; sets * ways].into_boxed_slice())
        } else {
            Lines::Wide(vec![0; sets * ways].into_boxed_slice())
        };
        PrivateCache { lines, set_bits, ways }
    }

    /// Uses a line; true where it was there.
    #[inline]
    pub fn hit(&mut self, line: u64) -> bool {
        let tag = (line >> self.set_bits) + 1;
        let set = (line & ((1 << self.set_bits) - 1)) as usize;
        match &mut self.lines {
            Lines::Narrow(lines) => touch_set(lines, set, self.ways, tag as u32),
            Lines::Wide(lines) => touch_set(lines, set, self.ways, tag),
        }
    }
}

/// A cache that the threads of a process share without a lock. Two threads that use one set at
/// the same instant may lose or double a line in it, which costs accuracy (a miss too many) and
/// nothing else; one thread alone gets exact LRU.
#[derive(Debug)]
pub struct SharedCache {
    /// As in a private cache; two narrow lines to a word.
    words: Box<[AtomicU64]>,
    set_bits: u32,
    ways: usize,
    narrow: bool,
}

impl SharedCache {
    /// An empty cache.
    pub fn new(sets: usize, ways: u32, line_bytes: u32) -> Self {
        let ways = ways.max(1) as usize;
        let set_bits = sets.trailing_zeros();
        let narrow = ways == 16 && set_bits + line_bytes.trailing_zeros() + 31 >= ADDRESS_BITS;
        let mut words = Vec::new();
        words.resize_with(if narrow { sets * 8 } else { sets * ways }, AtomicU64::default);
        SharedCache { words: words.into_boxed_slice(), set_bits, ways, narrow }
    }

    /// Has the processor fetch a line's set.
    #[inline]
    pub fn prefetch(&self, line: u64) {
        let set = (line & ((1 << self.set_bits) - 1)) as usize;
        let words = if self.narrow { 8 } else { self.ways };
        if let Some(word) = self.words.get(set * words) {
            prefetch(word);
        }
    }

    /// Uses a line; true where it was there.
    #[inline]
    pub fn hit(&self, line: u64) -> bool {
        let tag = (line >> self.set_bits) + 1;
        let set = (line & ((1 << self.set_bits) - 1)) as usize;
        if self.narrow { self.hit_narrow(set, tag as u32) } else { self.hit_wide(set, tag) }
    }

    /// Sixteen lines in 64 bytes, one line of the host's cache. Word by word: a wide load of
    /// what was just stored in pieces would wait for every store before it, the recorded
    /// program's own misses among them.
    #[inline]
    fn hit_narrow(&self, set: usize, tag: u32) -> bool {
        let Some(words) = self.words.get(set * 8..set * 8 + 8) else { return false };
        let mut moved = tag;
        for word in words {
            let pair = word.load(Ordering::Relaxed);
            let (first, second) = (pair as u32, (pair >> 32) as u32);
            if first == tag {
                let kept = pair & !u64::from(u32::MAX);
                word.store(kept | u64::from(moved), Ordering::Relaxed);
                return true;
            }
            word.store(u64::from(first) << 32 | u64::from(moved), Ordering::Relaxed);
            if second == tag {
                return true;
            }
            moved = second;
        }
        false
    }

    fn hit_wide(&self, set: usize, tag: u64) -> bool {
        let Some(set) = self.words.get(set * self.ways..(set + 1) * self.ways) else {
            return false;
        };
        // Each line moves one back until the place of the used one is reached.
        let mut moved = tag;
        for way in set {
            let here = way.load(Ordering::Relaxed);
            way.store(moved, Ordering::Relaxed);
            moved = here;
            if moved == tag {
                return true;
            }
        }
        false
    }
}

/// References and misses of one stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// References that missed the first level.
    pub l1_misses: u64,
    /// And the second.
    pub l2_misses: u64,
    /// And the last.
    pub llc_misses: u64,
}

impl Counts {
    /// The sum of two.
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            loads: self.loads + other.loads,
            stores: self.stores + other.stores,
            l1_misses: self.l1_misses + other.l1_misses,
            l2_misses: self.l2_misses + other.l2_misses,
            llc_misses: self.llc_misses + other.llc_misses,
        }
    }
}

/// The caches of one thread, and its counts.
#[derive(Debug)]
pub struct ThreadFilter {
    l1: PrivateCache,
    l2: PrivateCache,
    line_shift: u32,
    level: Level,
    /// What went through.
    pub counts: Counts,
}

impl ThreadFilter {
    /// Empty caches for a filter that [`check`] found good.
    pub fn new(filter: &Filter) -> Result<Self, BadShape> {
        let level = filter.level;
        // A level that is not asked for is not simulated.
        let sets_at = |from: Level, name, shape: CacheShape| {
            if level >= from { sets(name, shape, filter.line_bytes) } else { Ok(1) }
        };
        Ok(ThreadFilter {
            l1: PrivateCache::new(
                sets_at(Level::L1, "l1", filter.l1)?,
                filter.l1.ways,
                filter.line_bytes,
            ),
            l2: PrivateCache::new(
                sets_at(Level::L2, "l2", filter.l2)?,
                filter.l2.ways,
                filter.line_bytes,
            ),
            line_shift: filter.line_bytes.trailing_zeros(),
            level,
            counts: Counts::default(),
        })
    }

    /// True where the reference is to be recorded. One that spans two lines uses both, and
    /// passes when either does.
    #[inline]
    pub fn passes(
        &mut self,
        llc: &SharedCache,
        address: u64,
        size_bytes: u64,
        store: bool,
    ) -> bool {
        match self.near(address, size_bytes, store) {
            Near::Hit => false,
            Near::Passes => true,
            Near::Far(first, second) => self.far(llc, first, second),
        }
    }

    /// The first half of [`Self::passes`]: the caches of the thread's own.
    #[inline]
    pub fn near(&mut self, address: u64, size_bytes: u64, store: bool) -> Near {
        self.counts.loads += u64::from(!store);
        self.counts.stores += u64::from(store);
        if self.level == Level::None {
            return Near::Passes;
        }
        let first = address >> self.line_shift;
        let last = address.wrapping_add(size_bytes - 1) >> self.line_shift;
        let hit = self.l1.hit(first);
        if first == last {
            return if hit { Near::Hit } else { self.second(first, NO_LINE) };
        }
        let one = if hit { NO_LINE } else { first };
        let other = if self.l1.hit(last) { NO_LINE } else { last };
        if one & other == NO_LINE { Near::Hit } else { self.second(one, other) }
    }

    /// Lines in registers, not in an array, which would go through memory: see `hit_narrow`.
    #[inline]
    fn second(&mut self, first: u64, second: u64) -> Near {
        self.counts.l1_misses += 1;
        if self.level == Level::L1 {
            return Near::Passes;
        }
        let first = if first == NO_LINE || self.l2.hit(first) { NO_LINE } else { first };
        let second = if second == NO_LINE || self.l2.hit(second) { NO_LINE } else { second };
        if first & second == NO_LINE {
            return Near::Hit;
        }
        self.counts.l2_misses += 1;
        if self.level == Level::L2 { Near::Passes } else { Near::Far(first, second) }
    }

    /// The second half: the cache that all share.
    #[inline]
    pub fn far(&mut self, llc: &SharedCache, first: u64, second: u64) -> bool {
        let mut passes = first != NO_LINE && !llc.hit(first);
        passes |= second != NO_LINE && !llc.hit(second);
        self.counts.llc_misses += u64::from(passes);
        passes
    }
}

/// No line has this number.
const NO_LINE: u64 = u64::MAX;

/// What a thread's own caches say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Near {
    /// It goes no further.
    Hit,
    /// It is to be recorded.
    Passes,
    /// These lines, the first or second of which may be none, go on to the last level.
    Far(u64, u64),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(size_bytes: u64, ways: u32) -> CacheShape {
        CacheShape { size_bytes, ways }
    }

    /// LRU as a list per set.
    struct Plain {
        sets: Vec<Vec<u64>>,
        ways: usize,
    }

    impl Plain {
        fn hit(&mut self, line: u64) -> bool {
            let count = self.sets.len() as u64;
            let set = &mut self.sets[(line % count) as usize];
            let found = set.iter().position(|l| *l == line);
            if let Some(at) = found {
                set.remove(at);
            }
            set.insert(0, line);
            set.truncate(self.ways);
            found.is_some()
        }
    }

    proptest! {
        #[test]
        fn both_caches_are_lru(
            lines in prop::collection::vec((0u64..40, 0u64..3), 1..500),
            ways in prop_oneof![1u32..9, Just(8), Just(16)],
            // Few sets keep whole line numbers, many keep half.
            log_sets in prop_oneof![0u32..4, 10u32..12],
        ) {
            let sets = 1usize << log_sets;
            let mut plain = Plain { sets: vec![Vec::new(); sets], ways: ways as usize };
            let mut private = PrivateCache::new(sets, ways, 64);
            let shared = SharedCache::new(sets, ways, 64);
            for (tag, set) in lines {
                // Up to the highest address a program has.
                let line = (1 << 41) - 1 - (tag << log_sets | set);
                let expected = plain.hit(line);
                prop_assert_eq!(private.hit(line), expected);
                prop_assert_eq!(shared.hit(line), expected);
            }
        }
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert_eq!(sets("l1", shape(32 << 10, 8), 64).unwrap(), 64);
        for (size, ways, line) in [(0, 8, 64), (48 << 10, 8, 64), (32 << 10, 0, 64), (1000, 2, 64)]
        {
            let error = sets("l1", shape(size, ways), line).unwrap_err().0;
            assert!(error.contains("expected"), "{error}");
        }
        assert!(sets("l1", shape(32 << 10, 8), 48).is_err());
    }

    #[test]
    fn a_stream_over_more_than_the_caches_misses_once_per_line() {
        let filter = Filter {
            level: Level::Llc,
            line_bytes: 64,
            l1: shape(32 << 10, 8),
            l2: shape(256 << 10, 8),
            llc: shape(1 << 20, 16),
            sample_one_in: 1,
        };
        check(&filter).unwrap();
        let llc = SharedCache::new(sets("llc", filter.llc, 64).unwrap(), 16, 64);
        let mut thread = ThreadFilter::new(&filter).unwrap();
        for _ in 0..2 {
            for address in (0..4u64 << 20).step_by(8) {
                assert_eq!(thread.passes(&llc, address, 8, false), address % 64 == 0);
            }
        }
        // One that spans a line that is there and one that is not.
        assert!(!thread.passes(&llc, (4 << 20) - 8, 8, true));
        assert!(thread.passes(&llc, (4 << 20) - 4, 8, true));
        assert_eq!(thread.counts.stores, 2);
        assert_eq!(thread.counts.llc_misses, 2 * (4 << 20) / 64 + 1);
    }
}

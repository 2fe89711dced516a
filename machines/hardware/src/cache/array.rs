//! One set-associative, write-back, write-allocate cache.
//!
//! A line is one word: its tag and a dirty bit. Beside it the replacement policy keeps a few bits
//! for each set or line. The module `sets` defines the memory layout of both.

use crate::address::LineAddress;
use crate::cache::config::{CacheConfig, Replacement};
use crate::error::ConfigError;
use crate::sets::packed::Packed;
use crate::sets::recency::Recency;
use crate::sets::ways::Ways;
use crate::sets::words::{Words, words};

/// A line that was evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// The line's number.
    pub line: LineAddress,
    /// Whether the line holds data that no level below has.
    pub dirty: bool,
}

/// The outcome of a reference: hit or miss, and the line that a miss evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    hit: bool,
    /// The line number and the dirty bit, or [`NONE`].
    victim: u64,
}

impl Access {
    pub(crate) const HIT: Access = Access { hit: true, victim: NONE };
    /// A miss that evicted nothing.
    pub(crate) const MISS: Access = Access { hit: false, victim: NONE };

    /// Whether the line was present.
    #[inline]
    pub fn is_hit(self) -> bool {
        self.hit
    }

    /// The line evicted, if any.
    #[inline]
    pub fn evicted(self) -> Option<Evicted> {
        let (line, dirty) = (LineAddress(self.victim >> 1), self.victim & 1 != 0);
        (self.victim != NONE).then_some(Evicted { line, dirty })
    }
}

/// No victim. No line has this number: addresses have fewer bits.
const NONE: u64 = u64::MAX;

/// Counters of one cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct CacheCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Reads that missed.
    pub read_misses: u64,
    /// Writes that missed.
    pub write_misses: u64,
    /// Lines evicted to make room for others.
    pub evictions: u64,
    /// Evicted lines that were dirty.
    pub dirty_evictions: u64,
    /// Lines removed by address.
    pub invalidations: u64,
}

impl CacheCounts {
    /// Reads and writes.
    pub fn references(&self) -> u64 {
        self.reads + self.writes
    }

    /// Misses of both kinds.
    pub fn misses(&self) -> u64 {
        self.read_misses + self.write_misses
    }
}

impl std::ops::AddAssign for CacheCounts {
    fn add_assign(&mut self, o: CacheCounts) {
        self.reads += o.reads;
        self.writes += o.writes;
        self.read_misses += o.read_misses;
        self.write_misses += o.write_misses;
        self.evictions += o.evictions;
        self.dirty_evictions += o.dirty_evictions;
        self.invalidations += o.invalidations;
    }
}

/// State of a replacement policy.
#[derive(Debug, Clone)]
enum Order {
    Lru(Recency),
    Random {
        state: u64,
    },
    /// One tree of bits a set: bit `n` of node `n` (root 1) points to the colder half.
    TreePlru {
        trees: Vec<u64>,
    },
    /// Predicted re-reference interval of each line, 0 (soon) to 3 (far).
    Srrip {
        intervals: Vec<u8>,
    },
    RoundRobin {
        next: Vec<u16>,
    },
}

/// One set-associative cache.
#[derive(Debug, Clone)]
pub struct Cache {
    words: Words,
    ways: usize,
    set_mask: u64,
    set_bits: u32,
    slices: u64,
    order: Order,
    counts: CacheCounts,
}

impl Cache {
    /// An empty cache; an error if the configuration is impossible.
    pub fn new(config: &CacheConfig) -> Result<Self, ConfigError> {
        let sets = config.sets()?;
        let all_sets = (sets * u64::from(config.slices)) as usize;
        let ways = config.ways as usize;
        let order = match config.replacement {
            Replacement::Lru => Order::Lru(Recency::new(all_sets, ways)),
            Replacement::Random => Order::Random { state: 0x9E37_79B9_7F4A_7C15 },
            Replacement::TreePlru => Order::TreePlru { trees: vec![0; all_sets] },
            Replacement::Srrip => Order::Srrip { intervals: vec![3; all_sets * ways] },
            Replacement::RoundRobin => Order::RoundRobin { next: vec![0; all_sets] },
        };
        Ok(Cache {
            words: Words::new(all_sets, ways),
            ways,
            set_mask: sets - 1,
            set_bits: sets.trailing_zeros(),
            slices: u64::from(config.slices),
            order,
            counts: CacheCounts::default(),
        })
    }

    /// Counts since the cache was made or since [`Cache::reset_counts`].
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// Resets the counts; the lines stay.
    pub fn reset_counts(&mut self) {
        self.counts = CacheCounts::default();
    }

    /// The set of a line, over all slices, and its tag.
    #[inline]
    fn place_of(&self, line: LineAddress) -> (usize, u64) {
        let set = line.0 & self.set_mask;
        let tag = line.0 >> self.set_bits;
        if self.slices == 1 {
            return (set as usize, tag);
        }
        // Multiplicative hash of the whole line number, scaled to the number of slices.
        let hash = line.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let slice = (hash * self.slices) >> 32;
        ((slice * (self.set_mask + 1) + set) as usize, tag)
    }

    /// The line with this tag in this set.
    #[inline]
    fn line_of(&self, set: usize, tag: u64) -> u64 {
        tag << self.set_bits | (set as u64 & self.set_mask)
    }

    /// A counted reference. A miss fills the line, whether it reads or writes.
    #[inline]
    pub fn access(&mut self, line: LineAddress, write: bool) -> Access {
        self.counts.writes += u64::from(write);
        self.counts.reads += u64::from(!write);
        let access = self.place::<false>(line, write);
        self.count_miss(access, write);
        access
    }

    /// The same, faster where most references hit the line used last, as in a first level.
    #[inline]
    pub(crate) fn access_first_level(&mut self, line: LineAddress, write: bool) -> Access {
        self.counts.writes += u64::from(write);
        self.counts.reads += u64::from(!write);
        let access = self.place::<true>(line, write);
        self.count_miss(access, write);
        access
    }

    #[inline(always)]
    fn count_miss(&mut self, access: Access, write: bool) {
        if !access.hit {
            self.counts.read_misses += u64::from(!write);
            self.counts.write_misses += u64::from(write);
        }
    }

    /// A counted reference that removes the line: for a level that is filled from above and whose
    /// hits move up. `Some(dirty)` on a hit.
    #[inline]
    pub fn take(&mut self, line: LineAddress, write: bool) -> Option<bool> {
        let taken = self.remove(line);
        if write {
            self.counts.writes += 1;
            self.counts.write_misses += u64::from(taken.is_none());
        } else {
            self.counts.reads += 1;
            self.counts.read_misses += u64::from(taken.is_none());
        }
        taken
    }

    /// Fills a line without a reference: a write-back from above, a prefetch. Returns the line that
    /// was evicted.
    #[inline]
    pub fn fill(&mut self, line: LineAddress, dirty: bool) -> Option<Evicted> {
        self.place::<false>(line, dirty).evicted()
    }

    /// Prefetches on the host the data that an access to this line will read.
    #[inline]
    pub(crate) fn prefetch(&self, line: LineAddress) {
        let (set, _) = self.place_of(line);
        if let Words::Packed(words) = &self.words {
            words.prefetch(set);
        }
        if let Order::Lru(Recency::Packed(recency)) = &self.order {
            recency.prefetch(set);
        }
    }

    /// The line that would be evicted for this one if it were not present, as far as that is cheap
    /// to find.
    #[inline]
    pub(crate) fn next_victim(&self, line: LineAddress) -> Option<Evicted> {
        let (set, _) = self.place_of(line);
        if let Words::Packed(words) = &self.words
            && let Order::Lru(Recency::Packed(recency)) = &self.order
        {
            let word = words.word(set, recency.oldest(set));
            let line = LineAddress(self.line_of(set, u64::from(word >> 1)));
            return (word != u32::MAX).then_some(Evicted { line, dirty: word & 1 != 0 });
        }
        None
    }

    /// Finds or allocates, and marks as used. With `NEWEST` the line used last is tried first.
    #[inline(always)]
    fn place<const NEWEST: bool>(&mut self, line: LineAddress, write: bool) -> Access {
        let (set, tag) = self.place_of(line);
        if let Words::Packed(words) = &mut self.words
            && let Order::Lru(Recency::Packed(recency)) = &mut self.order
            && words.fits(tag)
        {
            let (ways, order, dirty) = (words.ways(), recency.order(set), u32::from(write));
            let window = words.window(set);
            let word = (tag << 1) as u32;
            if NEWEST && window[order.newest()] & !1 == word {
                window[order.newest()] |= dirty;
                return Access::HIT;
            }
            if let Some(way) = Packed::find_in(window, ways, tag) {
                window[way & 15] |= dirty;
                order.touch(way);
                return Access::HIT;
            }
            let old = std::mem::replace(&mut window[order.reuse_oldest() & 15], word | dirty);
            if old == u32::MAX {
                return Access { hit: false, victim: NONE };
            }
            self.counts.evictions += 1;
            self.counts.dirty_evictions += u64::from(old & 1);
            let line = self.line_of(set, u64::from(old >> 1));
            return Access { hit: false, victim: line << 1 | u64::from(old & 1) };
        }
        self.place_slowly(set, tag, write)
    }

    /// The same for every kind of word and every policy.
    #[inline(never)]
    fn place_slowly(&mut self, set: usize, tag: u64, write: bool) -> Access {
        self.words.admit(tag);
        let ways = self.ways;
        let order = &mut self.order;
        let out = words!(&mut self.words, w => {
            if let Some(way) = w.find(set, tag) {
                w.or_dirty(set, way, write);
                order.used(set, ways, way, true);
                return Access::HIT;
            }
            let way = match order {
                Order::Lru(recency) => recency.reuse_oldest(set),
                _ => {
                    let way = w.find_empty(set, ways).unwrap_or_else(|| order.victim(set, ways));
                    order.used(set, ways, way, false);
                    way
                }
            };
            w.replace(set, way, tag, write)
        });
        self.missed(set, out)
    }

    /// A line was filled; `out` is the tag and the dirty bit of the evicted line, if any.
    #[inline]
    fn missed(&mut self, set: usize, out: Option<(u64, bool)>) -> Access {
        let Some((tag, dirty)) = out else { return Access { hit: false, victim: NONE } };
        self.counts.evictions += 1;
        self.counts.dirty_evictions += u64::from(dirty);
        Access { hit: false, victim: self.line_of(set, tag) << 1 | u64::from(dirty) }
    }

    /// Whether a line is present; uses and counts nothing.
    #[inline]
    pub fn contains(&self, line: LineAddress) -> bool {
        let (set, tag) = self.place_of(line);
        words!(&self.words, w => w.find(set, tag)).is_some()
    }

    /// Marks a line dirty if it is present, without using it. Returns whether it was present.
    pub fn mark_dirty(&mut self, line: LineAddress) -> bool {
        let (set, tag) = self.place_of(line);
        words!(&mut self.words, w => match w.find(set, tag) {
            None => false,
            Some(way) => {
                w.or_dirty(set, way, true);
                true
            }
        })
    }

    /// Removes a line. `Some(dirty)` if it was present.
    pub fn invalidate(&mut self, line: LineAddress) -> Option<bool> {
        let dirty = self.remove(line);
        self.counts.invalidations += u64::from(dirty.is_some());
        dirty
    }

    #[inline]
    fn remove(&mut self, line: LineAddress) -> Option<bool> {
        let (set, tag) = self.place_of(line);
        let (way, dirty) = words!(&mut self.words, w => {
            let way = w.find(set, tag)?;
            (way, w.empty(set, way))
        });
        if let Order::Lru(recency) = &mut self.order {
            recency.retire(set, way);
        }
        Some(dirty)
    }

    /// Every line present, set by set.
    pub fn lines(&self) -> Vec<Evicted> {
        let found = words!(&self.words, w => w.all());
        found
            .into_iter()
            .map(|(set, _, tag, dirty)| Evicted {
                line: LineAddress(self.line_of(set, tag)),
                dirty,
            })
            .collect()
    }
}

impl Order {
    /// The way to evict in a full set.
    fn victim(&mut self, set: usize, ways: usize) -> usize {
        match self {
            Order::Lru(recency) => recency.reuse_oldest(set),
            Order::Random { state } => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                (((*state >> 32) * ways as u64) >> 32) as usize
            }
            Order::TreePlru { trees } => {
                let mut node = 1;
                while node < ways {
                    node = 2 * node + ((trees[set] >> node) & 1) as usize;
                }
                node - ways
            }
            Order::Srrip { intervals } => {
                let set = &mut intervals[set * ways..][..ways];
                loop {
                    if let Some(way) = set.iter().position(|&i| i == 3) {
                        return way;
                    }
                    set.iter_mut().for_each(|i| *i += 1);
                }
            }
            Order::RoundRobin { next } => {
                let way = usize::from(next[set]);
                next[set] = ((way + 1) % ways) as u16;
                way
            }
        }
    }

    /// A way was hit, or filled.
    fn used(&mut self, set: usize, ways: usize, way: usize, hit: bool) {
        match self {
            Order::Lru(recency) => recency.touch(set, way),
            Order::TreePlru { trees } => {
                let mut node = way + ways;
                while node > 1 {
                    let came_from_right = node & 1;
                    node /= 2;
                    // The bit points away from where we came from.
                    trees[set] =
                        (trees[set] & !(1 << node)) | (((came_from_right ^ 1) as u64) << node);
                }
            }
            // A new line is expected "long", a hit "near-immediate".
            Order::Srrip { intervals } => intervals[set * ways + way] = if hit { 0 } else { 2 },
            Order::Random { .. } | Order::RoundRobin { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    fn one_set(ways: u32, replacement: Replacement) -> Cache {
        let config =
            CacheConfig::new(Bytes(64 * u64::from(ways)), ways, 64).with_replacement(replacement);
        Cache::new(&config).unwrap()
    }

    fn read(cache: &mut Cache, line: u64) -> Option<u64> {
        cache.access(LineAddress(line), false).evicted().map(|e| e.line.0)
    }

    #[test]
    fn lru_drives_out_the_line_used_longest_ago() {
        let mut c = one_set(3, Replacement::Lru);
        for line in [1, 2, 3] {
            assert_eq!(read(&mut c, line), None);
        }
        assert!(c.access(LineAddress(1), false).is_hit());
        assert_eq!(read(&mut c, 4), Some(2));
        assert_eq!(read(&mut c, 5), Some(3));
        assert_eq!(read(&mut c, 6), Some(1));
        assert_eq!(c.counts().reads, 7);
        assert_eq!(c.counts().read_misses, 6);
    }

    #[test]
    fn round_robin_ignores_hits() {
        let mut c = one_set(3, Replacement::RoundRobin);
        for line in [1, 2, 3, 1, 1] {
            read(&mut c, line);
        }
        assert_eq!(read(&mut c, 4), Some(1));
        assert_eq!(read(&mut c, 5), Some(2));
    }

    #[test]
    fn tree_plru_never_drives_out_the_line_used_last() {
        let mut c = one_set(8, Replacement::TreePlru);
        let mut last = None;
        for n in 0..1000u64 {
            let out = read(&mut c, n * 7 % 23);
            if let (Some(out), Some(last)) = (out, last) {
                assert_ne!(out, last);
            }
            last = Some(n * 7 % 23);
        }
        // After 0 to 7 in order every bit points left again, to line 0.
        let mut c = one_set(8, Replacement::TreePlru);
        for n in 0..8 {
            read(&mut c, n);
        }
        assert_eq!(read(&mut c, 9), Some(0));
        assert_eq!(read(&mut c, 10), Some(4));
    }

    #[test]
    fn srrip_keeps_a_line_that_was_hit_through_a_scan() {
        let mut c = one_set(4, Replacement::Srrip);
        for line in [1, 2, 3, 4, 1] {
            read(&mut c, line);
        }
        // A scan of 6 lines: LRU would lose line 1 at the fourth.
        for line in 10..16 {
            read(&mut c, line);
        }
        assert!(c.contains(LineAddress(1)));
    }

    #[test]
    fn random_replacement_is_the_same_every_time() {
        let run = || {
            let mut c = one_set(8, Replacement::Random);
            (0..1000u64).filter_map(|n| read(&mut c, n * n % 37)).collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn a_written_line_leaves_dirty_and_only_once() {
        for replacement in [Replacement::Lru, Replacement::Srrip] {
            let mut c = one_set(2, replacement);
            c.access(LineAddress(1), true);
            c.access(LineAddress(1), false);
            c.access(LineAddress(2), false);
            c.access(LineAddress(2), false);
            let out: Vec<_> =
                [3, 4].iter().filter_map(|&n| c.access(LineAddress(n), false).evicted()).collect();
            let dirty: Vec<_> = out.iter().filter(|e| e.dirty).map(|e| e.line.0).collect();
            assert_eq!(dirty, [1], "{replacement:?}");
            assert_eq!(c.counts().dirty_evictions, 1);
        }
    }

    #[test]
    fn tags_that_need_more_bits_than_a_word_has_change_nothing() {
        let lines: Vec<u64> = (0..20).map(|n| n << (n % 8 * 6)).collect();
        let mut wide = one_set(4, Replacement::Lru);
        wide.access(LineAddress(1 << 50), false);
        wide.invalidate(LineAddress(1 << 50));
        let mut widened = one_set(4, Replacement::Lru);
        for &line in lines.iter().cycle().take(500) {
            let line = LineAddress(line);
            let write = line.0 % 3 > 1;
            assert_eq!(widened.access(line, write), wide.access(line, write));
        }
        assert!(widened.counts().evictions > 100);
        // Nor do they match the tags that they are equal to when truncated.
        let mut narrow = one_set(4, Replacement::Lru);
        narrow.access(LineAddress(5), true);
        assert!(!narrow.contains(LineAddress(5 | 1 << 40)));
        assert!(!narrow.contains(LineAddress((1 << 31) - 1)));
        assert_eq!(narrow.invalidate(LineAddress(5 | 1 << 40)), None);
    }

    #[test]
    fn an_invalidated_place_is_filled_before_any_line_leaves() {
        for replacement in [
            Replacement::Lru,
            Replacement::Random,
            Replacement::TreePlru,
            Replacement::Srrip,
            Replacement::RoundRobin,
        ] {
            let mut c = one_set(4, replacement);
            for line in 1..=4 {
                c.access(LineAddress(line), line == 2);
            }
            assert_eq!(c.invalidate(LineAddress(2)), Some(true));
            assert_eq!(c.invalidate(LineAddress(2)), None);
            assert_eq!(read(&mut c, 9), None, "{replacement:?}");
            assert_eq!(c.lines().len(), 4);
        }
    }
}

//! The filter: the path of a reference through a thread's caches and the shared last level.
//!
//! Each step runs where it is cheapest. A first level of the usual shape is split: [`Front`] is
//! looked up when a reference is made, because almost all references hit there, and [`Behind`]
//! later, for many references at a time. A first level of another shape ([`First`]) is looked up at
//! once. [`second`] is looked up for many misses at a time, and [`last`] some references later,
//! when the host has fetched the set.

use terrace_recordings::reference::Filter;

use crate::cache::{BadShape, NO_LINE, PrivateCache, SharedCache, sets};

/// References and misses of one stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// References that missed the first level.
    pub l1_misses: u64,
    /// Of these, references that missed the second level.
    pub l2_misses: u64,
    /// Of these, references that missed the last level.
    pub llc_misses: u64,
    /// Dirty lines evicted from the recorded level.
    pub write_backs: u64,
}

impl Counts {
    /// Number of counts.
    pub const LEN: usize = 6;

    /// The counts as an array.
    pub fn to_array(self) -> [u64; Self::LEN] {
        let Counts { loads, stores, l1_misses, l2_misses, llc_misses, write_backs } = self;
        [loads, stores, l1_misses, l2_misses, llc_misses, write_backs]
    }

    /// The counts of an array.
    pub fn from_array(counts: [u64; Self::LEN]) -> Self {
        let [loads, stores, l1_misses, l2_misses, llc_misses, write_backs] = counts;
        Counts { loads, stores, l1_misses, l2_misses, llc_misses, write_backs }
    }

    /// The sum of two.
    pub fn plus(self, other: Counts) -> Counts {
        let (mut sum, other) = (self.to_array(), other.to_array());
        sum.iter_mut().zip(other).for_each(|(sum, more)| *sum += more);
        Counts::from_array(sum)
    }
}

/// A request to the next level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// The line that is needed, or [`NO_LINE`].
    pub line: u64,
    /// A dirty line evicted from the level before, or [`NO_LINE`].
    pub left: u64,
}

/// Ways of nearly every first-level cache.
pub const USUAL_WAYS: usize = 8;
/// Its sets: 32 KB.
pub const USUAL_SETS: usize = 64;
/// Its lines' bytes.
pub const USUAL_LINE_BYTES: u64 = 64;
/// Ways of a set that [`Front`] holds.
const FRONT_WAYS: usize = 3;

/// No line: it contains no address and is not dirty.
const EMPTY: u64 = u64::MAX - 1;

/// Whether an entry's line contains an address. An entry is the line's first address, plus 1 if
/// dirty.
#[inline(always)]
fn holds(entry: u64, address: u64) -> bool {
    entry ^ address < USUAL_LINE_BYTES
}

/// The most recently used lines of a first level of the usual shape: three of each set, as many as
/// fit arrays of one alignment, and few enough to be compared in registers, in the callback. A list
/// in LRU order can be split anywhere: what is not here is looked up in [`Behind`], in the same
/// order but at any later time.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Front {
    /// Per set, most recently used first; the fourth is never used.
    sets: [[u64; 4]; USUAL_SETS],
}

impl Default for Front {
    fn default() -> Self {
        Front { sets: [[EMPTY; 4]; USUAL_SETS] }
    }
}

impl Front {
    /// Uses the line of an address. On a miss returns the entry that was moved out, to be given to
    /// [`Behind::use_line`].
    #[inline(always)]
    pub fn use_line(&mut self, address: u64, store: bool) -> Option<u64> {
        let set = &mut self.sets[(address / USUAL_LINE_BYTES) as usize % USUAL_SETS];
        let dirty = u64::from(store);
        let first = set[0];
        if holds(first, address) {
            set[0] = first | dirty;
            return None;
        }
        let second = set[1];
        if holds(second, address) {
            (set[0], set[1]) = (second | dirty, first);
            return None;
        }
        let third = set[2];
        (set[1], set[2]) = (first, second);
        if holds(third, address) {
            set[0] = third | dirty;
            return None;
        }
        set[0] = address & !(USUAL_LINE_BYTES - 1) | dirty;
        Some(third)
    }
}

/// The rest of a first level of the usual shape.
#[derive(Debug)]
pub struct Behind {
    /// Per set, the lines that are in front, in no order, and whether they were dirty when they
    /// moved there; then the others, most recently used first.
    sets: Box<[[u64; USUAL_WAYS]; USUAL_SETS]>,
}

impl Default for Behind {
    fn default() -> Self {
        Behind { sets: Box::new([[EMPTY; USUAL_WAYS]; USUAL_SETS]) }
    }
}

impl Behind {
    /// Uses the line of an address that missed the front, which moved `left` out for it. `None` on
    /// a hit.
    #[inline]
    pub fn use_line(&mut self, address: u64, left: u64) -> Option<Missed> {
        let set = &mut self.sets[(address / USUAL_LINE_BYTES) as usize % USUAL_SETS];
        let at = if holds(set[0], left) {
            0
        } else if holds(set[1], left) {
            1
        } else {
            FRONT_WAYS - 1
        };
        let line = address & !(USUAL_LINE_BYTES - 1);
        // Each line moves one back, up to the place of the used one. One by one: a wide load would
        // wait for the narrow stores before it.
        let mut moved = left | set[at] & 1;
        for way in FRONT_WAYS..USUAL_WAYS {
            let here = std::mem::replace(&mut set[way], moved);
            if holds(here, line) {
                set[at] = here;
                return None;
            }
            moved = here;
        }
        set[at] = line;
        let left = if moved & 1 == 0 { NO_LINE } else { moved / USUAL_LINE_BYTES };
        Some(Missed { line: line / USUAL_LINE_BYTES, left })
    }
}

/// A thread's first level of any shape, not split.
#[derive(Debug)]
pub struct First {
    /// Per set, most recently used first: the line's number plus one, then a bit for dirty.
    lines: Box<[u64]>,
    ways: usize,
    mask: u64,
}

impl First {
    /// An empty cache, for a filter that [`crate::cache::check`] accepted.
    pub fn new(filter: &Filter) -> Result<Self, BadShape> {
        let (sets, ways) = (sets("l1", filter.l1, filter.line_bytes)?, filter.l1.ways as usize);
        Ok(First { lines: vec![0; sets * ways].into(), ways, mask: sets as u64 - 1 })
    }

    /// Whether [`Front`] and [`Behind`] are used instead.
    pub fn is_usual(filter: &Filter) -> bool {
        let usual_bytes = USUAL_SETS as u64 * USUAL_WAYS as u64 * USUAL_LINE_BYTES;
        filter.l1.ways as usize == USUAL_WAYS
            && u64::from(filter.line_bytes) == USUAL_LINE_BYTES
            && filter.l1.size_bytes == usual_bytes
    }

    /// Uses a line; `None` on a hit.
    #[inline]
    pub fn use_line(&mut self, line: u64, store: bool) -> Option<Missed> {
        let (set, dirty) = ((line & self.mask) as usize * self.ways, u64::from(store));
        let entries = self.lines.get_mut(set..set + self.ways)?;
        let used = (line + 1) << 1;
        let mut moved = used | dirty;
        for entry in &mut *entries {
            let here = std::mem::replace(entry, moved);
            if here & !1 == used {
                entries[0] |= here & 1;
                return None;
            }
            moved = here;
        }
        let left = if moved & 1 == 0 { NO_LINE } else { (moved >> 1) - 1 };
        Some(Missed { line, left })
    }
}

/// The answer of a level behind the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beyond {
    /// The needed line missed and goes on to the next level.
    pub miss: bool,
    /// Dirty lines that go on, or [`NO_LINE`]: one evicted from this level, and one evicted from
    /// the level before that this level does not hold.
    pub left: [u64; 2],
}

/// Looks up a thread's second level. The line evicted from the first level is written back first:
/// the needed line may evict it here too.
#[inline]
pub fn second(l2: &mut PrivateCache, missed: Missed) -> Beyond {
    let Missed { line, left } = missed;
    let passed = if left != NO_LINE && !l2.mark(left) { left } else { NO_LINE };
    let used = l2.use_line(line);
    Beyond { miss: !used.hit, left: [used.left, passed] }
}

/// Looks up the level that all threads share.
#[inline]
pub fn last(llc: &SharedCache, missed: Missed) -> Beyond {
    let Missed { line, left } = missed;
    let passed = if left != NO_LINE && !llc.mark(left) { left } else { NO_LINE };
    if line == NO_LINE {
        return Beyond { miss: false, left: [NO_LINE, passed] };
    }
    let used = llc.use_line(line);
    Beyond { miss: !used.hit, left: [used.left, passed] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use terrace_recordings::reference::{CacheShape, Level};

    proptest! {
        #[test]
        fn the_first_level_is_lru_and_reports_the_dirty_lines_that_leave(
            uses in prop::collection::vec((0u64..60, any::<bool>()), 1..500),
            ways in prop_oneof![1u32..5, Just(8)],
        ) {
            let shape = CacheShape { size_bytes: 4 * 64 * u64::from(ways), ways };
            let filter =
                Filter { level: Level::L1, line_bytes: 64, l1: shape, l2: shape, llc: shape, sample_one_in: 1 };
            let mut first = First::new(&filter).unwrap();
            let mut sets: [Vec<(u64, bool)>; 4] = Default::default();
            for (line, store) in uses {
                let set = &mut sets[(line % 4) as usize];
                let found = set.iter().position(|(l, _)| *l == line);
                let dirty = found.is_some_and(|at| set.remove(at).1);
                set.insert(0, (line, dirty || store));
                let left = if set.len() > ways as usize { set.pop() } else { None };
                let left = left.filter(|(_, dirty)| *dirty).map_or(NO_LINE, |(line, _)| line);
                let expected = if found.is_some() { None } else { Some(Missed { line, left }) };
                prop_assert_eq!(first.use_line(line, store), expected);
            }
        }

        #[test]
        fn the_first_level_may_be_cut_and_the_rest_asked_later(
            uses in prop::collection::vec((0u64..14, 0u64..3, 0u64..64, any::<bool>()), 1..800),
            batch in 1usize..100,
        ) {
            let shape = CacheShape { size_bytes: 32 << 10, ways: 8 };
            let filter =
                Filter { level: Level::L1, line_bytes: 64, l1: shape, l2: shape, llc: shape, sample_one_in: 1 };
            assert!(First::is_usual(&filter));
            let mut first = First::new(&filter).unwrap();
            let (mut front, mut behind) = (Front::default(), Behind::default());
            let (mut expected, mut waiting, mut got) = (Vec::new(), Vec::new(), Vec::new());
            for (tag, set, byte, store) in uses {
                let address = (tag << 6 | set) << 6 | byte;
                expected.extend(first.use_line(address >> 6, store));
                waiting.extend(front.use_line(address, store).map(|left| (address, left)));
                if waiting.len() >= batch {
                    got.extend(waiting.drain(..).filter_map(|(a, left)| behind.use_line(a, left)));
                }
            }
            got.extend(waiting.drain(..).filter_map(|(a, left)| behind.use_line(a, left)));
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn a_dirty_line_comes_to_memory_once_and_from_the_level_it_was_in() {
        let mut l2 = PrivateCache::new(1, 2, 64);
        let llc = SharedCache::new(1, 4, 64);
        let ask = |line, left| Missed { line, left };
        assert_eq!(second(&mut l2, ask(1, NO_LINE)), Beyond { miss: true, left: [NO_LINE; 2] });
        // The line comes back dirty, and is evicted by the third line.
        assert!(second(&mut l2, ask(2, 1)).miss);
        assert_eq!(second(&mut l2, ask(3, NO_LINE)).left, [1, NO_LINE]);
        // The last level does not hold the line: it goes to memory. After the load it does, and
        // keeps it.
        assert_eq!(last(&llc, ask(NO_LINE, 1)), Beyond { miss: false, left: [NO_LINE, 1] });
        assert_eq!(last(&llc, ask(1, NO_LINE)).left, [NO_LINE; 2]);
        assert_eq!(last(&llc, ask(NO_LINE, 1)).left, [NO_LINE; 2]);
        let left: Vec<_> = (2..7).map(|line| last(&llc, ask(line, NO_LINE)).left[0]).collect();
        assert_eq!(left, [NO_LINE, NO_LINE, NO_LINE, 1, NO_LINE]);
    }
}

//! The filter: the path of a reference through a thread's caches and the one that all share.
//!
//! Three steps, each where it is cheapest. [`First`] is asked the moment a reference is made.
//! [`second`] is asked for many misses at a time, and [`last`] some references later, when the
//! host has fetched the set.

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
    /// And the second.
    pub l2_misses: u64,
    /// And the last.
    pub llc_misses: u64,
    /// Dirty lines that left the recorded level.
    pub write_backs: u64,
}

impl Counts {
    /// How many counts there are.
    pub const LEN: usize = 6;

    /// The counts one after the other.
    pub fn to_array(self) -> [u64; Self::LEN] {
        let Counts { loads, stores, l1_misses, l2_misses, llc_misses, write_backs } = self;
        [loads, stores, l1_misses, l2_misses, llc_misses, write_backs]
    }

    /// And back.
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

/// What the next level is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// The line that is needed, or [`NO_LINE`].
    pub line: u64,
    /// A dirty line that left the level before, or [`NO_LINE`].
    pub left: u64,
}

const USUAL_WAYS: usize = 8;

/// A thread's first level. It is asked the moment a reference is made, for almost all references
/// end there: the sets of a first level of today fill 4 KB.
#[derive(Debug)]
pub struct First {
    /// Per set, most recently used first: the line's number plus one, then a bit for dirty.
    lines: Box<[u64]>,
    ways: usize,
    mask: u64,
}

impl First {
    /// An empty one, for a filter that [`crate::cache::check`] found good.
    pub fn new(filter: &Filter) -> Result<Self, BadShape> {
        let (sets, ways) = (sets("l1", filter.l1, filter.line_bytes)?, filter.l1.ways as usize);
        Ok(First { lines: vec![0; sets * ways].into(), ways, mask: sets as u64 - 1 })
    }

    /// Whether [`Self::repeats`] can answer: the shape of nearly every first level there is.
    pub fn is_usual(&self) -> bool {
        self.ways == USUAL_WAYS
    }

    /// Uses a line where it was among the three used last in its set, or does nothing and is
    /// false. For 8 ways: in few enough registers to be part of the callback.
    #[inline(always)]
    pub fn repeats(&mut self, line: u64, store: bool) -> bool {
        let (sets, _) = self.lines.as_chunks_mut::<USUAL_WAYS>();
        let Some(set) = sets.get_mut((line & self.mask) as usize) else { return false };
        let (used, dirty) = ((line + 1) << 1, u64::from(store));
        let first = set[0];
        if first & !1 == used {
            set[0] = first | dirty;
            return true;
        }
        let second = set[1];
        if second & !1 == used {
            (set[0], set[1]) = (second | dirty, first);
            return true;
        }
        let third = set[2];
        if third & !1 == used {
            (set[0], set[1], set[2]) = (third | dirty, first, second);
            return true;
        }
        false
    }

    /// Uses a line; nothing where it was there.
    #[inline]
    pub fn use_line(&mut self, line: u64, store: bool) -> Option<Missed> {
        let (set, dirty) = ((line & self.mask) as usize * self.ways, u64::from(store));
        let entries = self.lines.get_mut(set..set + self.ways)?;
        let used = (line + 1) << 1;
        // Each line moves one back until the place of the used one is reached. One by one: a
        // wide load would wait for the narrow stores before it.
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

/// What a level behind the first says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beyond {
    /// The line that was needed goes on to the next level.
    pub miss: bool,
    /// Dirty lines that go on, or [`NO_LINE`]: one that left this level, and one that came and
    /// was not there.
    pub left: [u64; 2],
}

/// Asks a thread's second level. What left the first is put back first: the line that drove it
/// out of there may drive it out of here too.
#[inline]
pub fn second(l2: &mut PrivateCache, missed: Missed) -> Beyond {
    let Missed { line, left } = missed;
    let passed = if left != NO_LINE && !l2.mark(left) { left } else { NO_LINE };
    let used = l2.use_line(line);
    Beyond { miss: !used.hit, left: [used.left, passed] }
}

/// Asks the level that all threads share.
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
        fn the_first_level_is_lru_and_tells_the_dirty_lines_that_leave(
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
                if ways == 8 && first.repeats(line, store) {
                    prop_assert_eq!(expected, None);
                } else {
                    prop_assert_eq!(first.use_line(line, store), expected);
                }
            }
        }
    }

    #[test]
    fn a_dirty_line_comes_to_memory_once_and_from_the_level_it_was_in() {
        let mut l2 = PrivateCache::new(1, 2, 64);
        let llc = SharedCache::new(1, 4, 64);
        let ask = |line, left| Missed { line, left };
        assert_eq!(second(&mut l2, ask(1, NO_LINE)), Beyond { miss: true, left: [NO_LINE; 2] });
        // It comes back dirty, and leaves as the third line comes.
        assert!(second(&mut l2, ask(2, 1)).miss);
        assert_eq!(second(&mut l2, ask(3, NO_LINE)).left, [1, NO_LINE]);
        // The last level does not have it: it goes to memory. Then it does, and keeps it.
        assert_eq!(last(&llc, ask(NO_LINE, 1)), Beyond { miss: false, left: [NO_LINE, 1] });
        assert_eq!(last(&llc, ask(1, NO_LINE)).left, [NO_LINE; 2]);
        assert_eq!(last(&llc, ask(NO_LINE, 1)).left, [NO_LINE; 2]);
        let left: Vec<_> = (2..7).map(|line| last(&llc, ask(line, NO_LINE)).left[0]).collect();
        assert_eq!(left, [NO_LINE, NO_LINE, NO_LINE, 1, NO_LINE]);
    }
}

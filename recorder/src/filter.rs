//! The filter: the path of a reference through a thread's caches and the one that all share.
//!
//! Three steps, so that each runs where it is cheapest. [`Front`] is asked the moment a reference
//! is made and knows the most common answer, "the line just used", in a few instructions.
//! [`ThreadFilter::near`] looks through the thread's own caches, for many references at a time.
//! [`ThreadFilter::far`] looks into the last level, some references later, when the host has
//! fetched its set.

use terrace_recordings::reference::{CacheShape, Filter, Level};

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

/// Entries of a [`Front`]: the sets of a first-level cache of today.
const FRONT: usize = 64;

/// The line used last in each set of the first level. Using it again changes nothing in a cache
/// that is LRU, so such a reference is only to be counted: exact, and most references are such.
///
/// With fewer entries than the cache has sets, one stands for several sets and holds the line
/// that was used last in any of them.
#[derive(Debug)]
pub struct Front {
    /// The line's number, then a bit for dirty.
    lines: [u64; FRONT],
    mask: u64,
}

impl Front {
    /// For this filter. One that has no first level has no use for it.
    pub fn new(filter: &Filter) -> Result<Self, BadShape> {
        let sets = sets("l1", filter.l1, filter.line_bytes)?;
        Ok(Front { lines: [NO_LINE; FRONT], mask: sets.min(FRONT) as u64 - 1 })
    }

    /// Notes that a line is used; true where that changes nothing.
    #[inline]
    pub fn repeats(&mut self, line: u64, store: bool) -> bool {
        let (used, store) = (line << 1 | u64::from(store), u64::from(store));
        let last = &mut self.lines[(line & self.mask) as usize % FRONT];
        // A load repeats a dirty line too.
        if *last & (!1 | store) == used {
            return true;
        }
        *last = used;
        false
    }
}

/// What the thread's own caches say of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Near {
    /// The line goes on to the next level.
    pub miss: bool,
    /// Dirty lines that go on, or [`NO_LINE`].
    pub left: [u64; 2],
}

/// What the last level says of a line, and of a dirty one that left the levels before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Far {
    /// The line goes on to memory.
    pub miss: bool,
    /// Dirty lines that go on, or [`NO_LINE`].
    pub left: [u64; 2],
}

/// The caches of one thread.
#[derive(Debug)]
pub struct ThreadFilter {
    l1: PrivateCache,
    l2: PrivateCache,
    level: Level,
}

impl ThreadFilter {
    /// Empty caches for a filter that [`crate::cache::check`] found good.
    pub fn new(filter: &Filter) -> Result<Self, BadShape> {
        let level = filter.level;
        // A level that is not asked for is not simulated.
        let cache = |from: Level, name, shape: CacheShape| {
            let sets = if level >= from { sets(name, shape, filter.line_bytes)? } else { 1 };
            Ok(PrivateCache::new(sets, shape.ways, filter.line_bytes))
        };
        Ok(ThreadFilter {
            l1: cache(Level::L1, "l1", filter.l1)?,
            l2: cache(Level::L2, "l2", filter.l2)?,
            level,
        })
    }

    /// Uses a line of the thread's own caches. Misses are counted by [`Misses::count`].
    #[inline]
    pub fn near(&mut self, line: u64, store: bool, misses: &mut Misses) -> Near {
        let first = self.l1.use_line(line, store);
        if first.hit {
            return Near { miss: false, left: [NO_LINE; 2] };
        }
        misses.l1 = true;
        if self.level == Level::L1 {
            return Near { miss: true, left: [first.left, NO_LINE] };
        }
        // Before the line that drives it out of L1 can drive it out of L2 too.
        let passed =
            if first.left != NO_LINE && !self.l2.mark(first.left) { first.left } else { NO_LINE };
        let second = self.l2.use_line(line, false);
        misses.l2 |= !second.hit;
        Near { miss: !second.hit, left: [second.left, passed] }
    }

    /// Uses a line of the cache that all share, or [`NO_LINE`], after a dirty line, or
    /// [`NO_LINE`], came back to it.
    #[inline]
    pub fn far(llc: &SharedCache, line: u64, left: u64) -> Far {
        let passed = if left != NO_LINE && !llc.mark(left) { left } else { NO_LINE };
        if line == NO_LINE {
            return Far { miss: false, left: [passed, NO_LINE] };
        }
        let used = llc.use_line(line);
        Far { miss: !used.hit, left: [passed, used.left] }
    }
}

/// The levels that one reference missed with any of its lines.
#[derive(Debug, Clone, Copy, Default)]
pub struct Misses {
    l1: bool,
    l2: bool,
}

impl Misses {
    /// Counts them, once for the reference: as cachegrind does.
    #[inline]
    pub fn count(self, counts: &mut Counts) {
        counts.l1_misses += u64::from(self.l1);
        counts.l2_misses += u64::from(self.l2);
    }
}

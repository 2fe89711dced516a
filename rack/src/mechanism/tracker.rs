//! The hot-page tracker of one node (section III-A): a small table of the pages accessed last, and
//! the same for all others in the switch's DRAM.
//!
//! An entry holds the page address, a 16-bit access count that saturates, the time of the first
//! access, and the access bit. When the table is full, the entry with the least count is evicted,
//! the oldest of those; it goes to DRAM and is reloaded when its page is accessed again.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use terrace_hardware::request::Spread;

use crate::Time;
use crate::address::RemotePage;

/// Pages by number; never iterated over, so that their order does not matter.
pub type ByPage<T> = HashMap<u32, T, BuildHasherDefault<Spread>>;

/// The tracker's record of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracked {
    /// Number of accesses.
    pub count: u16,
    /// Time of the first access.
    pub first: Time,
    /// Blocks accessed, and whether any was accessed twice: for the scheme of our own; the paper's
    /// entries do not have them.
    pub blocks: u64,
    /// Accesses to blocks that had been accessed before.
    pub again: u16,
}

impl Tracked {
    /// Accesses per microsecond since the first; a page accessed within a microsecond counts as a
    /// microsecond old.
    pub fn frequency(&self, now: Time) -> f64 {
        f64::from(self.count) * 1e6 / (now.saturating_sub(self.first)).max(1_000_000) as f64
    }
}

/// The threshold for a hot page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// Least access count.
    pub count: u16,
    /// Least accesses per microsecond.
    pub frequency_per_us: f64,
}

/// The tracker of one node.
#[derive(Debug, Clone)]
pub struct Tracker {
    pages: Vec<u32>,
    /// Count in the upper bits, age in the lower: the least is evicted.
    entries: Vec<Tracked>,
    capacity: usize,
    evicted: ByPage<Tracked>,
    /// Entries reloaded from the switch's DRAM.
    pub reloads: u64,
    /// Entries evicted to it.
    pub evictions: u64,
}

impl Tracker {
    /// An empty tracker.
    pub fn new(entries: u32) -> Self {
        Tracker {
            pages: Vec::with_capacity(entries as usize),
            entries: Vec::with_capacity(entries as usize),
            capacity: entries as usize,
            evicted: ByPage::default(),
            reloads: 0,
            evictions: 0,
        }
    }

    /// Records an access to a block of a page; returns the page's record including it.
    pub fn access(&mut self, now: Time, page: RemotePage, block: u8) -> Tracked {
        let index = match self.pages.iter().position(|&p| p == page.0) {
            Some(index) => index,
            None => {
                let known = self.evicted.remove(&page.0);
                self.reloads += u64::from(known.is_some());
                self.insert(
                    page,
                    known.unwrap_or(Tracked { count: 0, first: now, blocks: 0, again: 0 }),
                )
            }
        };
        let entry = &mut self.entries[index];
        entry.count = entry.count.saturating_add(1);
        let bit = 1u64 << block;
        entry.again = entry.again.saturating_add(u16::from(entry.blocks & bit != 0));
        entry.blocks |= bit;
        *entry
    }

    fn insert(&mut self, page: RemotePage, tracked: Tracked) -> usize {
        if self.pages.len() < self.capacity {
            self.pages.push(page.0);
            self.entries.push(tracked);
            return self.pages.len() - 1;
        }
        let least = (0..self.entries.len())
            .min_by_key(|&i| (self.entries[i].count, self.entries[i].first))
            .unwrap_or(0);
        self.evicted.insert(self.pages[least], self.entries[least]);
        self.evictions += 1;
        self.pages[least] = page.0;
        self.entries[least] = tracked;
        least
    }

    /// The record of a page.
    pub fn get(&self, page: RemotePage) -> Option<Tracked> {
        let index = self.pages.iter().position(|&p| p == page.0);
        index.map(|i| self.entries[i]).or_else(|| self.evicted.get(&page.0).copied())
    }

    /// Drops a page: it was requested, or has other content now.
    pub fn forget(&mut self, page: RemotePage) {
        if let Some(index) = self.pages.iter().position(|&p| p == page.0) {
            self.pages.swap_remove(index);
            self.entries.swap_remove(index);
        }
        self.evicted.remove(&page.0);
    }

    /// The records of all pages, in no particular order: for training.
    pub fn all(&self) -> Vec<(RemotePage, Tracked)> {
        let here = self.pages.iter().zip(&self.entries).map(|(&p, &t)| (RemotePage(p), t));
        let mut all: Vec<_> =
            here.chain(self.evicted.iter().map(|(&p, &t)| (RemotePage(p), t))).collect();
        all.sort_unstable_by_key(|e| e.0);
        all
    }

    /// Drops all records.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.entries.clear();
        self.evicted.clear();
    }

    /// Entries in the table.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_and_then_the_oldest_makes_room_and_comes_back_with_its_count() {
        let mut t = Tracker::new(2);
        let [a, b, c] = [1, 2, 3].map(RemotePage);
        t.access(0, a, 0);
        t.access(1, a, 0);
        t.access(2, b, 0);
        // b has the least count.
        assert_eq!(t.access(3, c, 0).count, 1);
        assert_eq!((t.len(), t.evictions, t.reloads), (2, 1, 0));
        // c goes for b; b still knows its first access.
        let known = t.access(4, b, 0);
        assert_eq!((known.count, known.first, t.reloads), (2, 2, 1));
        assert_eq!(t.access(5, a, 0).count, 3);
    }

    #[test]
    fn counts_saturate_at_16_bits() {
        let mut t = Tracker::new(1);
        for n in 0..70_000 {
            t.access(n, RemotePage(1), 0);
        }
        assert_eq!(t.access(70_000, RemotePage(1), 0).count, u16::MAX);
    }

    #[test]
    fn frequency_is_accesses_over_age() {
        let tracked = Tracked { count: 10, first: 1_000_000, blocks: 0, again: 0 };
        assert_eq!(tracked.frequency(6_000_000), 2.0);
        assert_eq!(tracked.frequency(1_000_000), 10.0);
    }
}

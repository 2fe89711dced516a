//! The page buffers of one node (section III-B): pages that were read when they became hot, and
//! serve accesses until their batch migrates.

use std::collections::VecDeque;

use crate::Time;
use crate::address::RemotePage;
use crate::config::BLOCKS;
use crate::mechanism::tracker::ByPage;
use crate::packet::PageValues;

/// All blocks of a page.
pub const ALL: u64 = u64::MAX;
const _: () = assert!(BLOCKS == 64);

/// The state of a buffered page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The page's blocks are being read.
    Fetching,
    /// All blocks are present.
    Complete,
    /// The node was instructed to migrate it.
    Announced,
    /// The page has been or is being sent to its node.
    Sent,
}

/// A buffered page.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The page's state.
    pub state: State,
    /// Time of the request.
    pub requested: Time,
    /// Blocks present.
    pub valid: u64,
    /// Blocks that were written since they arrived.
    pub dirty: u64,
    /// Blocks accessed, here or before the page was requested, and whether one was accessed twice:
    /// for the scheme of our own; the paper's buffers do not have them.
    pub used: u64,
    /// Whether a block was accessed twice, see `used`.
    pub again: bool,
    /// Blocks that were written in the pool after they were requested: the arriving value is old.
    pub outdated: u64,
    /// The values of its blocks, where data are checked.
    pub values: Option<PageValues>,
}

/// The page buffers of one node.
#[derive(Debug, Clone)]
pub struct PageBuffers {
    entries: ByPage<Entry>,
    capacity: usize,
    /// Complete and not announced, in the order of completion.
    complete: VecDeque<RemotePage>,
    check_data: bool,
    /// Most pages held at once.
    pub held_max: usize,
}

impl PageBuffers {
    /// Empty buffers.
    pub fn new(pages: u32, check_data: bool) -> Self {
        PageBuffers {
            entries: ByPage::default(),
            capacity: pages as usize,
            complete: VecDeque::new(),
            check_data,
            held_max: 0,
        }
    }

    /// The page, if it is being read or is present: its access bit.
    #[inline]
    pub fn get(&mut self, page: RemotePage) -> Option<&mut Entry> {
        self.entries.get_mut(&page.0)
    }

    /// The value of a block that is present, where data are checked.
    pub fn value(&self, page: RemotePage, block: u8) -> Option<u64> {
        let entry = self.entries.get(&page.0).filter(|e| e.valid >> block & 1 != 0)?;
        entry.values.as_ref().map(|v| v[usize::from(block)])
    }

    /// Whether another page has room.
    pub fn has_room(&self) -> bool {
        self.entries.len() < self.capacity
    }

    /// Whether a batch of pages has room.
    pub fn has_room_for(&self, pages: usize) -> bool {
        self.entries.len() + pages <= self.capacity
    }

    /// Pages held.
    pub fn held(&self) -> usize {
        self.entries.len()
    }

    /// Pages that could migrate.
    pub fn ready(&self) -> usize {
        self.complete.len()
    }

    /// Reserves a buffer for a page whose blocks will be read.
    pub fn reserve(&mut self, now: Time, page: RemotePage) {
        debug_assert!(self.has_room() && !self.entries.contains_key(&page.0));
        let values = self.check_data.then(|| Box::new([0; 64]));
        let entry = Entry {
            state: State::Fetching,
            requested: now,
            valid: 0,
            dirty: 0,
            used: 0,
            again: false,
            outdated: 0,
            values,
        };
        self.entries.insert(page.0, entry);
        self.held_max = self.held_max.max(self.entries.len());
    }

    /// A block arrived from the pool. Returns whether it can be used: if not, it must be read
    /// again.
    pub fn fill(&mut self, page: RemotePage, block: u8, value: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&page.0) else { return true };
        let bit = 1u64 << block;
        if entry.outdated & bit != 0 {
            entry.outdated &= !bit;
            return false;
        }
        debug_assert!(entry.valid & bit == 0, "a block came twice");
        entry.valid |= bit;
        if let Some(values) = &mut entry.values {
            values[usize::from(block)] = value;
        }
        true
    }

    /// Marks a page complete if all its blocks are present: returns the time of its request, if it
    /// became complete now.
    pub fn settle(&mut self, page: RemotePage) -> Option<Time> {
        let entry = self.entries.get_mut(&page.0)?;
        if entry.state != State::Fetching || entry.valid != ALL {
            return None;
        }
        entry.state = State::Complete;
        self.complete.push_back(page);
        Some(entry.requested)
    }

    /// Takes a batch: the pages complete for longest.
    pub fn announce(&mut self, pages: usize) -> Vec<RemotePage> {
        let batch: Vec<_> = self.complete.drain(..pages.min(self.complete.len())).collect();
        self.announced(&batch);
        batch
    }

    /// Takes a batch of the pages that were used again, if there are so many.
    pub fn announce_reused(&mut self, pages: usize) -> Vec<RemotePage> {
        let entries = &self.entries;
        let reused = |p: &RemotePage| entries.get(&p.0).is_some_and(|e| e.again);
        let batch: Vec<_> = self.complete.iter().copied().filter(reused).take(pages).collect();
        if batch.len() < pages {
            return Vec::new();
        }
        self.complete.retain(|p| !batch.contains(p));
        self.announced(&batch);
        batch
    }

    fn announced(&mut self, batch: &[RemotePage]) {
        for page in batch {
            if let Some(entry) = self.entries.get_mut(&page.0) {
                entry.state = State::Announced;
            }
        }
    }

    /// Drops a page of which every block was used once, if it could migrate now; returns its entry.
    pub fn drop_spent(&mut self, page: RemotePage) -> Option<Entry> {
        let entry = self.entries.get(&page.0)?;
        if entry.state != State::Complete || entry.used != ALL || entry.again {
            return None;
        }
        self.complete.retain(|p| *p != page);
        self.entries.remove(&page.0)
    }

    /// Marks the page as sent to its node.
    pub fn send(&mut self, page: RemotePage) -> Option<&Entry> {
        let entry = self.entries.get_mut(&page.0)?;
        entry.state = State::Sent;
        Some(entry)
    }

    /// Frees the buffer: the page is in its node's memory.
    pub fn release(&mut self, page: RemotePage) {
        self.entries.remove(&page.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_complete_when_its_last_block_came_and_leaves_in_order() {
        let mut b = PageBuffers::new(2, true);
        let (p, q) = (RemotePage(7), RemotePage(8));
        b.reserve(10, p);
        b.reserve(20, q);
        assert!(!b.has_room());
        for block in 0..64 {
            assert!(b.fill(q, block, 100 + u64::from(block)));
            assert_eq!(b.settle(q), (block == 63).then_some(20));
        }
        (0..64).for_each(|block| assert!(b.fill(p, block, 0)));
        assert_eq!(b.settle(p), Some(10));
        assert_eq!(b.announce(2), [q, p]);
        assert_eq!(b.send(q).unwrap().values.as_ref().unwrap()[63], 163);
        b.release(q);
        assert!(b.has_room() && b.get(q).is_none());
    }

    #[test]
    fn a_block_written_behind_its_back_is_read_again() {
        let mut b = PageBuffers::new(1, false);
        let p = RemotePage(7);
        b.reserve(10, p);
        b.get(p).unwrap().outdated |= 1 << 5;
        assert!(!b.fill(p, 5, 0));
        assert!(b.fill(p, 5, 0));
    }
}

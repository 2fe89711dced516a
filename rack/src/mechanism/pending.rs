//! The pending-block queues of one node (section III-D): reads and writes of blocks whose page is
//! being read wait here for their block. Writes hold their data, to be merged into the block when
//! it arrives. Accesses to one block are served in order of arrival.

use std::collections::VecDeque;

use crate::address::RemotePage;
use crate::packet::{Kind, Packet};

/// The two queues. They have a size each and one order.
#[derive(Debug, Clone)]
pub struct Pending {
    waiting: VecDeque<Packet>,
    reads: usize,
    writes: usize,
    most_reads: usize,
    most_writes: usize,
    /// Most that waited at once.
    pub waiting_max: usize,
}

impl Pending {
    /// Empty queues of these sizes.
    pub fn new(reads: usize, writes: usize) -> Self {
        Pending {
            waiting: VecDeque::new(),
            reads: 0,
            writes: 0,
            most_reads: reads,
            most_writes: writes,
            waiting_max: 0,
        }
    }

    /// Whether an access of this kind has room.
    pub fn has_room(&self, kind: Kind) -> bool {
        match kind {
            Kind::Write => self.writes < self.most_writes,
            _ => self.reads < self.most_reads,
        }
    }

    /// Queues an access.
    pub fn push(&mut self, packet: Packet) {
        match packet.kind {
            Kind::Write => self.writes += 1,
            _ => self.reads += 1,
        }
        self.waiting.push_back(packet);
        self.waiting_max = self.waiting_max.max(self.waiting.len());
    }

    /// Removes and returns the first access to a block that arrived.
    pub fn pop(&mut self, page: RemotePage, block: u8) -> Option<Packet> {
        let index = self.waiting.iter().position(|p| p.page == page && p.block == block)?;
        let packet = self.waiting.remove(index)?;
        match packet.kind {
            Kind::Write => self.writes -= 1,
            _ => self.reads -= 1,
        }
        Some(packet)
    }

    /// Page and block of the first access whose page is `wanted`.
    pub fn first(&self, mut wanted: impl FnMut(RemotePage) -> bool) -> Option<(RemotePage, u8)> {
        self.waiting.iter().find(|p| wanted(p.page)).map(|p| (p.page, p.block))
    }

    /// Blocks of a page that are waited for.
    pub fn blocks(&self, page: RemotePage) -> u64 {
        self.waiting.iter().filter(|p| p.page == page).fold(0, |bits, p| bits | 1 << p.block)
    }

    /// Number of waiting accesses.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no access waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_to_a_block_leave_in_order_and_queues_are_full_apart() {
        let mut p = Pending::new(1, 2);
        let packet = |kind, block, value| {
            let mut p = Packet::new(kind, 0, RemotePage(1), block, 16);
            p.value = value;
            p
        };
        p.push(packet(Kind::Write, 3, 10));
        p.push(packet(Kind::Read, 3, 11));
        assert!(!p.has_room(Kind::Read) && p.has_room(Kind::Write));
        p.push(packet(Kind::Write, 4, 12));
        assert!(!p.has_room(Kind::Write));
        assert_eq!(p.blocks(RemotePage(1)), 0b11000);
        let order: Vec<_> = std::iter::from_fn(|| p.pop(RemotePage(1), 3)).collect();
        assert_eq!(order.iter().map(|p| p.value).collect::<Vec<_>>(), [10, 11]);
        assert!(p.pop(RemotePage(2), 4).is_none());
        assert_eq!(p.len(), 1);
        assert!(p.has_room(Kind::Read));
    }
}

//! The access controller of one node (section III-C): page requests under way, the generator that
//! makes 64 block accesses of each, the queue of regular block accesses, and the request selector
//! that divides bandwidth between the two by weight.

use std::collections::VecDeque;

use crate::Time;
use crate::address::RemotePage;
use crate::link::Turns;
use crate::mechanism::pending::Pending;
use crate::packet::{Kind, Packet};

/// A page whose blocks are being requested.
#[derive(Debug, Clone)]
struct Generator {
    page: RemotePage,
    /// Blocks not requested yet.
    left: u64,
    /// The block requested first.
    first: u8,
}

/// The access controller of one node.
#[derive(Debug, Clone)]
pub struct AccessController {
    blocks: VecDeque<Packet>,
    most_blocks: usize,
    /// Page requests under way: requested and not complete.
    under_way: usize,
    most_under_way: usize,
    generators: VecDeque<Generator>,
    turns: Turns,
    /// Blocks that wait as writes in the regular queue: a page access must not pass them.
    writes: Vec<(RemotePage, u8)>,
    critical_first: bool,
    adaptive: bool,
    /// When the selector may forward the next request: at the rate at which answers can arrive.
    pub next: Time,
    header_bytes: u32,
    pass_writes: bool,
    /// Most regular requests that waited.
    pub blocks_max: usize,
}

/// Configuration of an access controller.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Regular block requests that can wait.
    pub blocks: u32,
    /// Page requests under way.
    pub pages: u32,
    /// Weights of the selector.
    pub weights: (u32, u32),
    /// Demanded block first.
    pub critical_first: bool,
    /// Whether the weights follow the waiting requests.
    pub adaptive: bool,
    /// Header bytes of every packet.
    pub header_bytes: u32,
    /// For tests: page accesses pass earlier writes.
    pub pass_writes: bool,
}

impl AccessController {
    /// No request waits.
    pub fn new(sizes: Sizes) -> Self {
        AccessController {
            blocks: VecDeque::new(),
            most_blocks: sizes.blocks as usize,
            under_way: 0,
            most_under_way: sizes.pages as usize,
            generators: VecDeque::new(),
            turns: Turns::new(sizes.weights.0, sizes.weights.1),
            writes: Vec::new(),
            critical_first: sizes.critical_first,
            adaptive: sizes.adaptive,
            next: 0,
            header_bytes: sizes.header_bytes,
            pass_writes: sizes.pass_writes,
            blocks_max: 0,
        }
    }

    /// Whether another page request has room.
    pub fn has_room_for_page(&self) -> bool {
        self.under_way < self.most_under_way
    }

    /// Page requests under way.
    pub fn pages_under_way(&self) -> usize {
        self.under_way
    }

    /// A page request begins; with `generate`, block by block, of which `first` was demanded.
    pub fn begin_page(&mut self, page: RemotePage, first: u8, generate: bool) {
        self.under_way += 1;
        if generate {
            let first = if self.critical_first { first } else { 0 };
            self.generators.push_back(Generator { page, left: u64::MAX, first });
        }
    }

    /// Records that all of a page has arrived.
    pub fn end_page(&mut self) {
        self.under_way -= 1;
    }

    /// Whether another regular request has room.
    pub fn has_room_for_block(&self) -> bool {
        self.blocks.len() < self.most_blocks
    }

    /// Regular requests that there is still room for.
    pub fn room_for_blocks(&self) -> usize {
        self.most_blocks.saturating_sub(self.blocks.len())
    }

    /// Queues a regular request.
    pub fn push_block(&mut self, packet: Packet) {
        if packet.kind == Kind::Write {
            self.writes.push((packet.page, packet.block));
        }
        self.blocks.push_back(packet);
        self.blocks_max = self.blocks_max.max(self.blocks.len());
    }

    /// Regular requests waiting.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the selector has anything to choose from.
    pub fn has_work(&self) -> bool {
        !self.blocks.is_empty() || !self.generators.is_empty()
    }

    /// The next block that the generator requests.
    fn generated(&self, pending: &Pending) -> Option<(RemotePage, u8)> {
        let g = self.generators.front()?;
        let mut candidates = g.left;
        if !self.writes.is_empty() && !self.pass_writes {
            for (page, block) in &self.writes {
                if *page == g.page {
                    candidates &= !(1 << block);
                }
            }
        }
        if self.critical_first {
            let wanted = candidates & pending.blocks(g.page);
            if wanted != 0 {
                candidates = wanted;
            }
        }
        // From its first block on, and around.
        let from = candidates.rotate_right(g.first.into()).trailing_zeros();
        (candidates != 0).then(|| (g.page, ((from + u32::from(g.first)) % 64) as u8))
    }

    /// One round of the request selector: the request it forwards. `room` returns whether the
    /// network queue to a pool takes another.
    pub fn select(
        &mut self,
        now: Time,
        node: usize,
        pending: &Pending,
        room: impl Fn(usize) -> bool,
    ) -> Option<Packet> {
        if self.adaptive {
            let blocks = self.blocks.len().min(32) as u32;
            let waiting = pending.len().min(32) as u32;
            self.turns.set(1 + blocks, 1 + waiting);
        }
        let block = self.blocks.front().is_some_and(|p| room(p.page.pool()));
        let page = self.generated(pending).filter(|(page, _)| room(page.pool()));
        let kind = self.turns.next([block, page.is_some()])?;
        self.turns.went(kind);
        if kind == 0 {
            let packet = self.blocks.pop_front()?;
            if packet.kind == Kind::Write {
                let at = self.writes.iter().position(|w| *w == (packet.page, packet.block));
                self.writes.remove(at?);
            }
            return Some(packet);
        }
        let (page, block) = page?;
        let g = self.generators.front_mut()?;
        g.left &= !(1 << block);
        if g.left == 0 {
            self.generators.pop_front();
        }
        let mut packet = Packet::new(Kind::PageReadBlock, node, page, block, self.header_bytes);
        packet.queued = now;
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        blocks: 8,
        pages: 2,
        weights: (2, 1),
        critical_first: false,
        adaptive: false,
        header_bytes: 16,
        pass_writes: false,
    };

    fn block(kind: Kind, page: u32, block: u8) -> Packet {
        Packet::new(kind, 0, RemotePage(page), block, 16)
    }

    fn drain(a: &mut AccessController, pending: &Pending) -> Vec<(Kind, u8)> {
        std::iter::from_fn(|| a.select(0, 0, pending, |_| true))
            .map(|p| (p.kind, p.block))
            .collect()
    }

    #[test]
    fn the_selector_keeps_the_weights_while_both_wait() {
        let mut a = AccessController::new(SIZES);
        a.begin_page(RemotePage(9), 0, true);
        (0..6).for_each(|b| a.push_block(block(Kind::Read, 1, b)));
        let order = drain(&mut a, &Pending::new(1, 1));
        assert_eq!(order.len(), 6 + 64);
        let first: String =
            order[..9].iter().map(|(k, _)| if *k == Kind::Read { 'b' } else { 'p' }).collect();
        assert_eq!(first, "bbpbbpbbp");
        let blocks: Vec<u8> =
            order.iter().filter(|o| o.0 == Kind::PageReadBlock).map(|o| o.1).collect();
        assert_eq!(blocks, (0..64).collect::<Vec<u8>>());
    }

    #[test]
    fn a_page_access_does_not_pass_an_earlier_write_of_its_block() {
        let mut a = AccessController::new(SIZES);
        a.push_block(block(Kind::Read, 1, 0));
        a.push_block(block(Kind::Read, 1, 1));
        a.push_block(block(Kind::Write, 9, 0));
        a.begin_page(RemotePage(9), 0, true);
        let order = drain(&mut a, &Pending::new(1, 1));
        let at = |wanted| order.iter().position(|&o| o == wanted).unwrap();
        assert!(at((Kind::Write, 0)) < at((Kind::PageReadBlock, 0)));
        assert_eq!(order.len(), 67);
    }

    #[test]
    fn demanded_blocks_come_first_if_asked_for() {
        let mut a = AccessController::new(Sizes { critical_first: true, ..SIZES });
        let mut pending = Pending::new(4, 4);
        a.begin_page(RemotePage(9), 40, true);
        pending.push(block(Kind::Read, 9, 7));
        let p = a.select(0, 0, &pending, |_| true).unwrap();
        assert_eq!(p.block, 7);
        pending.pop(RemotePage(9), 7);
        let next: Vec<u8> = drain(&mut a, &pending).iter().map(|o| o.1).collect();
        assert_eq!(next[..3], [40, 41, 42]);
        assert_eq!(next.len(), 63);
    }

    #[test]
    fn a_full_network_queue_holds_the_selector_back() {
        let mut a = AccessController::new(SIZES);
        a.push_block(block(Kind::Read, 1, 0));
        assert!(a.select(0, 0, &Pending::new(1, 1), |_| false).is_none());
        assert!(a.select(0, 0, &Pending::new(1, 1), |pool| pool == 0).is_some());
        assert!(!a.has_work());
    }
}

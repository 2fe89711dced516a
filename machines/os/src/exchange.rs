//! Symmetric exchange (Nimble paper, section 3.1.4): two lists of equally many pages of equal size
//! are exchanged. Nothing is allocated and nothing freed; the contents swap through registers, so
//! there is no third page either.

use terrace_core::page::{PageSize, SpaceId};
use terrace_core::plan::{Exchange, FailureReason};
use terrace_hardware::address::PhysicalAddress;
use terrace_hardware::units::Picoseconds;

use crate::config::Node;
use crate::costs::ns;
use crate::entry::Entry;
use crate::fault_injection::FaultInjection;
use crate::frames::FRAME_BYTES;
use crate::moves::{Copy, Move, MoveId, Moving, Refused};
use crate::os::Os;
use crate::shootdown::Shootdown;
use crate::space::At;

/// An exchange that has begun. [`Os::finish_move`] and [`Os::abort_move`] end it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BegunExchange {
    /// The batch; with 0 `pairs` there is nothing to end.
    pub id: MoveId,
    /// Pairs of pages that are exchanged.
    pub pairs: u64,
    /// Operations with pages to move: two for each pair of ranges.
    pub operations: u64,
    /// Bytes moved each way.
    pub bytes: u64,
    /// The copies to swap: `from` and `to` both ways.
    pub swaps: Vec<Copy>,
    /// Number of swapping threads.
    pub copy_threads: u32,
    /// Pairs that do not match in size or side, or all when exchange is switched off: the caller
    /// must use two one-way moves for them.
    pub fallback: Vec<Exchange>,
    /// Pages that cannot move at all now; the partner of each stays too.
    pub refused: Vec<Refused>,
    /// Pairs beyond the caps on pages under way, to be begun in another batch.
    pub rest: Vec<Exchange>,
    /// Shootdowns that the processors must do now.
    pub shootdowns: Vec<Shootdown>,
    /// Processor time of the call, of unmapping and of starting threads, without the shootdowns.
    pub cost: Picoseconds,
}

/// A mapped page that may be exchanged.
#[derive(Debug, Clone, Copy)]
struct Side {
    space: SpaceId,
    address: u64,
    size: PageSize,
    at: At,
    entry: Entry,
}

impl Os {
    /// Begins to exchange pairs of ranges. `up` is in a slower tier than `down`, page for page.
    pub fn begin_exchange(&mut self, pairs: &[Exchange]) -> BegunExchange {
        let id = MoveId(self.next_move);
        self.next_move += 1;
        let mut begun = BegunExchange {
            id,
            pairs: 0,
            operations: 0,
            bytes: 0,
            swaps: Vec::new(),
            copy_threads: 1,
            fallback: Vec::new(),
            refused: Vec::new(),
            rest: Vec::new(),
            shootdowns: Vec::new(),
            cost: ns(self.costs.move_call_ns, 1),
        };
        if !self.config.migration.exchange {
            begun.fallback = pairs.to_vec();
            begun.cost = Picoseconds::ZERO;
            return begun;
        }
        let mut batch = Move { pages: Vec::new(), exchange: true };
        let mut shot = Vec::new();
        for (number, pair) in pairs.iter().enumerate() {
            let Some(sides) = self.match_pages(pair, &mut begun) else { continue };
            if !self.fits_exchange(&batch, &sides) {
                begun.rest.extend_from_slice(&pairs[number..]);
                break;
            }
            let mut pages = 0;
            for (up, down) in sides {
                if self.exchange_pages(up, down, &mut batch, &mut begun) {
                    pages += 1;
                }
            }
            if pages > 0 {
                shot.extend([(pair.up, pages), (pair.down, pages)]);
            }
        }
        begun.operations = shot.len() as u64;
        self.counters.operations += begun.operations / 2;
        begun.pairs = begun.swaps.len() as u64;
        begun.bytes = begun.swaps.iter().map(|s| s.bytes).sum();
        self.counters.copied_bytes += 2 * begun.bytes;
        begun.shootdowns = self.shoot(shot, &batch.pages);
        begun.copy_threads = self.copy_threads(begun.bytes);
        begun.cost += ns(self.costs.copy_thread_ns, u64::from(begun.copy_threads - 1));
        begun.cost += ns(self.costs.unmap_ns, 2 * begun.pairs);
        if !batch.pages.is_empty() {
            self.moves.insert(id.0, batch);
        }
        begun
    }

    fn fits_exchange(&self, batch: &Move, sides: &[(Side, Side)]) -> bool {
        let m = &self.config.migration;
        let is_huge = |size: PageSize| u64::from(size == PageSize::Huge);
        let huge: u64 = batch.pages.iter().map(|p| is_huge(p.size)).sum::<u64>() / 2
            + sides.iter().map(|s| is_huge(s.0.size)).sum::<u64>();
        let base = (batch.pages.len() / 2 + sides.len()) as u64 - huge;
        batch.pages.is_empty()
            || (huge <= u64::from(m.batch_huge_pages) && base <= u64::from(m.batch_base_pages))
    }

    /// The two ranges of a pair page by page, or `None` when they do not match.
    fn match_pages(&self, pair: &Exchange, begun: &mut BegunExchange) -> Option<Vec<(Side, Side)>> {
        let Exchange { up, down } = *pair;
        for range in [up, down] {
            if self.process(range.space).is_err() {
                begun.refused.push(Refused { range, reason: FailureReason::ProcessGone });
                return None;
            }
        }
        let list = |range: terrace_core::page::VirtualRange| {
            let mut pages = Vec::new();
            let mut absent = Vec::new();
            let mut next = range.start;
            let space = range.space;
            self.space(space).for_each_leaf(
                range.start,
                range.end(),
                |address, size, at, entry| {
                    if next < address {
                        absent.push((next, address - next));
                    }
                    next = address + size.bytes();
                    pages.push(Side { space, address, size, at, entry });
                },
            );
            if next < range.end() {
                absent.push((next, range.end() - next));
            }
            (pages, absent)
        };
        let ((ups, no_up), (downs, no_down)) = (list(up), list(down));
        for (range, absent) in [(up, &no_up), (down, &no_down)] {
            for &(start, size_bytes) in absent {
                let range = terrace_core::page::VirtualRange { start, size_bytes, ..range };
                begun.refused.push(Refused { range, reason: FailureReason::Absent });
            }
        }
        let aligned = ups.len() == downs.len()
            && no_up.is_empty()
            && no_down.is_empty()
            && ups.iter().zip(&downs).all(|(u, d)| {
                u.size == d.size
                    && u.address.wrapping_sub(up.start) == d.address.wrapping_sub(down.start)
            });
        if !aligned {
            begun.fallback.push(*pair);
            return None;
        }
        Some(ups.into_iter().zip(downs).collect())
    }

    /// Unmaps one page of each side. False when the pair stays.
    fn exchange_pages(
        &mut self,
        up: Side,
        down: Side,
        batch: &mut Move,
        begun: &mut BegunExchange,
    ) -> bool {
        let range = |s: Side| terrace_core::page::VirtualRange {
            space: s.space,
            start: s.address,
            size_bytes: s.size.bytes(),
        };
        // An earlier pair may have taken the page.
        let now = |os: &Os, s: Side| os.space(s.space).entry(s.at);
        let (up, down) =
            (Side { entry: now(self, up), ..up }, Side { entry: now(self, down), ..down });
        for side in [up, down] {
            if !side.entry.is_present() {
                begun.refused.push(Refused { range: range(side), reason: FailureReason::Busy });
                return false;
            }
        }
        let (low, high) = (up.entry.frame(), down.entry.frame());
        let (low_node, high_node) = (self.memory.node_of(low), self.memory.node_of(high));
        if self.memory.nodes[low_node].tier <= self.memory.nodes[high_node].tier {
            begun.fallback.push(Exchange { up: range(up), down: range(down) });
            return false;
        }
        let frames = up.size.bytes() / FRAME_BYTES;
        let group = |os: &Os, s: Side| os.process(s.space).expect("it has pages").group;
        let (up_group, down_group) = (group(self, up), group(self, down));
        if self.memory.is_fast_node(high_node)
            && up_group != down_group
            && !self.groups[up_group].has_fast_room(frames)
        {
            let reason = FailureReason::NotAllowed;
            begun.refused.push(Refused { range: range(up), reason });
            return false;
        }
        for (side, from, to, from_node, to_node) in
            [(up, low, high, low_node, high_node), (down, high, low, high_node, low_node)]
        {
            let to = if self.does(FaultInjection::ExchangesOneWay) { low } else { to };
            let slot = side.space.0 as usize;
            let mut process = self.processes[slot].take().expect("it has pages");
            self.count_data(&mut process, from_node, frames, false);
            self.count_data(&mut process, to_node, frames, true);
            let entry = Entry::migration(begun.id.0, batch.pages.len(), side.entry);
            self.set_leaf(&mut process.space, side.at, entry);
            self.processes[slot] = Some(process);
            batch.pages.push(Moving {
                space: side.space,
                address: side.address,
                size: side.size,
                from,
                to,
                to_node: Node(to_node as u8),
                split: false,
                ended: false,
            });
        }
        begun.swaps.push(Copy {
            from: PhysicalAddress(low),
            to: PhysicalAddress(high),
            bytes: up.size.bytes(),
        });
        true
    }
}

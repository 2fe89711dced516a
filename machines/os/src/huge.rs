//! Collapsing base pages to huge pages (Linux's khugepaged), and splitting.

use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_hardware::address::PhysicalAddress;
use terrace_hardware::units::Picoseconds;

use crate::config::{HugePages, Node};
use crate::costs::ns;
use crate::entry::Entry;
use crate::frames::{FRAME_BYTES, FRAMES_PER_HUGE, Owner};
use crate::memory::Order;
use crate::moves::Copy;
use crate::os::{Os, Process};
use crate::shootdown::Shootdown;
use crate::space::{At, ENTRIES};

/// A huge page made of base pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collapsed {
    /// First address of the huge page.
    pub address: u64,
    /// The node of the huge page, which held most of its base pages.
    pub node: Node,
    /// Base pages to copy into it.
    pub copies: Vec<Copy>,
    /// Bytes of the huge page that were not mapped, to be cleared.
    pub zeroed_bytes: u64,
    /// The shootdown to do before the copy.
    pub shootdown: Shootdown,
    /// Processor time, without the shootdown and the copy.
    pub cost: Picoseconds,
}

/// What one round of collapsing did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollapseRound {
    /// The huge pages made.
    pub collapsed: Vec<Collapsed>,
    /// The address to continue from next time; 0 when the end was reached.
    pub next: u64,
    /// Processor time of the search, besides that of the pages made.
    pub cost: Picoseconds,
}

const HUGE: u64 = PageSize::Huge.bytes();

impl Os {
    /// Checks up to `regions` whole huge-page regions of a process from address `from` on.
    /// Collapses those that are eligible for huge pages, have base pages of which one at least was
    /// accessed, and lack no more than `collapse_max_none` (Linux: `max_ptes_none`, 511), if there
    /// is a free block on the node that holds most of them (khugepaged's choice).
    ///
    /// # Panics
    /// When there is no such process.
    pub fn collapse(&mut self, id: SpaceId, from: u64, regions: u64) -> CollapseRound {
        let mut round = CollapseRound { collapsed: Vec::new(), next: 0, cost: Picoseconds::ZERO };
        if self.config.huge_pages == HugePages::Never {
            return round;
        }
        let always = self.config.huge_pages == HugePages::Always;
        let mut process = self.processes[id.0 as usize].take().expect("a process that lives");
        let mappings = process.space.mappings.clone();
        let mut left = regions;
        'all: for m in mappings.iter().filter(|m| always || m.huge_eligible) {
            let mut address = m.start.max(from).next_multiple_of(HUGE);
            while address + HUGE <= m.end {
                if left == 0 {
                    round.next = address;
                    break 'all;
                }
                left -= 1;
                round.cost += Picoseconds(self.costs.scan_entry_ps * ENTRIES as u64);
                round.collapsed.extend(self.collapse_one(&mut process, address));
                address += HUGE;
            }
        }
        self.processes[id.0 as usize] = Some(process);
        round
    }

    fn collapse_one(&mut self, process: &mut Process, address: u64) -> Option<Collapsed> {
        let space = process.space.id();
        let (at, level) = process.space.find(address);
        let table = process.space.tables[at.table];
        // A table under migration is locked.
        if level != 0 || table.moving.is_some() {
            return None;
        }
        let entries: Vec<Entry> = process.space.table_entries(at.table).to_vec();
        let present = entries.iter().filter(|e| e.is_present()).count() as u64;
        let none = FRAMES_PER_HUGE - present;
        if entries.iter().any(|e| e.is_migration())
            || present == 0
            || none > u64::from(self.config.collapse_max_none)
            || !entries.iter().any(|e| e.is_accessed())
        {
            return None;
        }
        let mut by_node = vec![0u64; self.nodes()];
        for e in entries.iter().filter(|e| e.is_present()) {
            by_node[self.memory.node_of(e.frame())] += 1;
        }
        // The first of the nodes with most pages.
        let most = *by_node.iter().max()?;
        let node = by_node.iter().position(|&n| n == most)?;
        let fast: u64 =
            (0..by_node.len()).filter(|&n| self.memory.is_fast_node(n)).map(|n| by_node[n]).sum();
        let more = FRAMES_PER_HUGE - fast;
        if self.memory.is_fast_node(node) && !self.groups[process.group].has_fast_room(more) {
            return None;
        }
        let owner = Owner::Huge { space, address };
        let (frame, _) =
            self.memory.take_easily(PageSize::Huge, Order::Only(node), owner, false)?;
        let mut copies = Vec::new();
        for (slot, e) in entries.iter().enumerate().filter(|(_, e)| e.is_present()) {
            let to = frame + slot as u64 * FRAME_BYTES;
            copies.push(Copy {
                from: PhysicalAddress(e.frame()),
                to: PhysicalAddress(to),
                bytes: FRAME_BYTES,
            });
            self.set_leaf(&mut process.space, At { table: at.table, slot }, Entry::NONE);
            let left = self.memory.give_back(e.frame(), PageSize::Base);
            self.count_data(process, left, 1, false);
        }
        // The table is kept for a later split of the page.
        let parent = process.space.parent_entry(at.table);
        let (kept, _) = process.space.prune(at.table);
        self.forget_table(process, kept, 0);
        self.memory.own(kept, PageSize::Base, Owner::Deposit { space });
        process.space.deposits.push(kept);
        let any_dirty = entries.iter().any(|e| e.is_present() && e.is_dirty());
        let leaf = Entry::leaf(frame, PageSize::Huge).set_bits(any_dirty);
        self.set_leaf(&mut process.space, parent, leaf);
        self.count_data(process, node, FRAMES_PER_HUGE, true);
        process.space.generation += 1;
        self.counters.collapses += 1;
        self.counters.collapse_copied_bytes += present * FRAME_BYTES;
        let range = VirtualRange { space, start: address, size_bytes: HUGE };
        let shootdown = self.shootdown(space, vec![range], present, true);
        Some(Collapsed {
            address,
            node: Node(node as u8),
            copies,
            zeroed_bytes: none * FRAME_BYTES,
            shootdown,
            cost: ns(self.costs.collapse_ns, 1),
        })
    }
}

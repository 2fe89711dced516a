//! Page faults: demand paging by first touch, interleaving or binding, huge pages where there is
//! a free block, and what happens when memory runs out.
//!
//! Allocation never migrates anything (Nimble paper, section 3.2). The shared page of zeros that
//! Linux maps on a first read is not modelled: a first touch allocates, whether it reads or writes.

use terrace_core::page::{PageSize, SpaceId};
use terrace_hardware::address::PhysicalAddress;
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::Fault;

use crate::config::{DataPolicy, HugePages, Node};
use crate::costs::ns;
use crate::entry::Entry;
use crate::fault_injection::FaultInjection;
use crate::frames::{FRAME_BYTES, FRAMES_PER_HUGE, Owner};
use crate::memory::Order;
use crate::moves::MoveId;
use crate::os::{Exhausted, Os, OsError, Process};
use crate::space::{At, Mapping, slot};

/// The outcome of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A fresh page is mapped.
    Minor {
        /// The node that the page is placed on.
        node: Node,
        /// The page's frame.
        frame: PhysicalAddress,
        /// The page's size.
        size: PageSize,
    },
    /// The page is under migration: the access must wait until that move is finished or aborted,
    /// and then be tried again.
    WaitFor(MoveId),
    /// The page is present: another processor's fault mapped it.
    Spurious,
}

/// Memory that a fault cleared, for the machine to play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zeroed {
    /// First address.
    pub start: PhysicalAddress,
    /// Length in bytes.
    pub bytes: u64,
}

/// A fault that was served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultOutcome {
    /// The outcome.
    pub kind: FaultKind,
    /// Processor time, without the zeroing.
    pub cost: Picoseconds,
    /// The part of `cost` spent allocating page-table pages (Radiant paper, figure 7).
    pub table_allocation: Picoseconds,
    /// The memory cleared: the page, and new page-table pages.
    pub zeroed: Vec<Zeroed>,
}

/// Time spent by a fault so far.
struct Spent {
    cost: Picoseconds,
    tables: Picoseconds,
    zeroed: Vec<Zeroed>,
}

impl Spent {
    fn table(&mut self, frame: u64, time: Picoseconds) {
        self.cost += time;
        self.tables += time;
        self.zeroed.push(Zeroed { start: PhysicalAddress(frame), bytes: FRAME_BYTES });
    }

    fn done(self, kind: FaultKind) -> FaultOutcome {
        FaultOutcome { kind, cost: self.cost, table_allocation: self.tables, zeroed: self.zeroed }
    }
}

impl Os {
    /// Serves the fault that a walk ended in.
    pub fn fault(&mut self, id: SpaceId, fault: &Fault) -> Result<FaultOutcome, OsError> {
        let address = fault.address.0;
        let space = &self.process(id)?.space;
        let Some(mapping) = space.mapping(address) else {
            self.counters.segfaults += 1;
            return Err(OsError::Segfault { space: id, address });
        };
        let (at, level) = space.find(address);
        let entry = space.entry(at);
        let mut spent =
            Spent { cost: ns(self.costs.fault_ns, 1), tables: Picoseconds::ZERO, zeroed: vec![] };
        if entry.is_present() {
            self.counters.spurious_faults += 1;
            return Ok(spent.done(FaultKind::Spurious));
        }
        if entry.is_migration() {
            self.counters.waiting_faults += 1;
            let (id, _) = entry.migration_target();
            return Ok(spent.done(FaultKind::WaitFor(MoveId(id))));
        }
        let mut process = self.processes[id.0 as usize].take().expect("checked above");
        let result = self.map_fresh(&mut process, address, at, level, mapping, &mut spent);
        self.processes[id.0 as usize] = Some(process);
        match result {
            Ok(kind) => Ok(spent.done(kind)),
            Err(Exhausted(cost)) => Err(self.kill_for(id, spent.cost + cost)),
        }
    }

    fn map_fresh(
        &mut self,
        process: &mut Process,
        address: u64,
        mut at: At,
        mut level: usize,
        mapping: Mapping,
        spent: &mut Spent,
    ) -> Result<FaultKind, Exhausted> {
        let huge_start = address & !(PageSize::Huge.bytes() - 1);
        let wants_huge = level > 0
            && match self.config.huge_pages {
                HugePages::Never => false,
                HugePages::Eligible => mapping.huge_eligible,
                HugePages::Always => true,
            }
            && mapping.start <= huge_start
            && huge_start + PageSize::Huge.bytes() <= mapping.end;
        let lowest = usize::from(wants_huge);
        self.grow_to(process, address, &mut at, &mut level, lowest, spent)?;
        if wants_huge {
            match self.map_huge(process, huge_start, at, mapping, spent)? {
                Some(kind) => return Ok(kind),
                None => {
                    self.counters.huge_fallbacks += 1;
                    self.grow_to(process, address, &mut at, &mut level, 0, spent)?;
                }
            }
        }
        self.map_base(process, address & !(FRAME_BYTES - 1), at, spent)
    }

    /// Makes page-table pages down to `lowest`.
    fn grow_to(
        &mut self,
        process: &mut Process,
        address: u64,
        at: &mut At,
        level: &mut usize,
        lowest: usize,
        spent: &mut Spent,
    ) -> Result<(), Exhausted> {
        while *level > lowest {
            let below = *level - 1;
            let span = FRAME_BYTES << (9 * (below + 1));
            let first = address & !(span - 1);
            let owner = Owner::Table { space: process.space.id(), address: first, level: below };
            let (placed, time) = self.allocate_table(process, below, owner)?;
            spent.table(placed.frame, time);
            let table = process.space.grow(*at, *level, address, placed.frame);
            *at = At { table, slot: slot(address, below) };
            *level = below;
        }
        Ok(())
    }

    /// Maps a huge page if there is a free block; else `None`.
    fn map_huge(
        &mut self,
        process: &mut Process,
        address: u64,
        at: At,
        mapping: Mapping,
        spent: &mut Spent,
    ) -> Result<Option<FaultKind>, Exhausted> {
        let space = process.space.id();
        let nodes = self.nodes();
        let mut order = self.data_order(process, address, PageSize::Huge);
        // Linux tries the preferred node alone for a huge page, and others only where the mapping
        // is marked for huge pages (`alloc_pages_mpol`), except when interleaving.
        if let (Order::From(first), false) = (order, mapping.huge_eligible)
            && process.spec.data != DataPolicy::Interleave
        {
            order = Order::Only(first);
        }
        let avoid_fast = !self.groups[process.group].has_fast_room(FRAMES_PER_HUGE);
        let owner = Owner::Huge { space, address };
        let taken = self.memory.take_easily(PageSize::Huge, order, owner, avoid_fast);
        let Some((frame, node)) = taken else {
            if (0..nodes).any(|n| self.memory.is_fragmented(n)) {
                spent.cost += ns(self.costs.compact_ns, 1);
            }
            return Ok(None);
        };
        // Linux deposits a leaf table for a later split of the page.
        let deposit = match self.allocate_table(process, 0, Owner::Deposit { space }) {
            Ok((placed, time)) => {
                spent.table(placed.frame, time);
                placed.frame
            }
            Err(exhausted) => {
                self.memory.give_back(frame, PageSize::Huge);
                return Err(exhausted);
            }
        };
        process.space.deposits.push(deposit);
        self.set_leaf(&mut process.space, at, Entry::leaf(frame, PageSize::Huge));
        Ok(Some(self.mapped(process, frame, node, PageSize::Huge, spent)))
    }

    fn map_base(
        &mut self,
        process: &mut Process,
        address: u64,
        at: At,
        spent: &mut Spent,
    ) -> Result<FaultKind, Exhausted> {
        let order = self.data_order(process, address, PageSize::Base);
        let owner = Owner::Base { space: process.space.id(), address };
        let avoid_fast = !self.groups[process.group].has_fast_room(1);
        let retries = self.config.reclaim_retries;
        let counters = &mut self.counters;
        let (placed, delay) =
            self.memory.take_base(order, owner, avoid_fast, retries, &self.costs, counters);
        let placed = placed.ok_or(Exhausted(delay))?;
        spent.cost += placed.delay;
        let mut frame = placed.frame;
        if self.does(FaultInjection::GivesFrameTwice)
            && let Some(other) =
                process.space.table_entries(at.table).iter().find(|e| e.is_present())
        {
            frame = other.frame();
        }
        self.set_leaf(&mut process.space, at, Entry::leaf(frame, PageSize::Base));
        Ok(self.mapped(process, placed.frame, placed.node, PageSize::Base, spent))
    }

    /// Counts a page that has just been mapped.
    fn mapped(
        &mut self,
        process: &mut Process,
        frame: u64,
        node: usize,
        size: PageSize,
        spent: &mut Spent,
    ) -> FaultKind {
        process.space.generation += 1;
        self.count_data(process, node, size.bytes() / FRAME_BYTES, true);
        spent.cost += ns(self.costs.allocate_ns, 1);
        spent.zeroed.push(Zeroed { start: PhysicalAddress(frame), bytes: size.bytes() });
        match size {
            PageSize::Base => self.counters.base_faults += 1,
            PageSize::Huge => self.counters.huge_faults += 1,
        }
        FaultKind::Minor { node: Node(node as u8), frame: PhysicalAddress(frame), size }
    }
}

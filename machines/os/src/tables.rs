//! Leaf tables that follow their data (Radiant paper, section 4.3 and algorithm 1).
//!
//! A data page that has arrived requests the move of its leaf table. The table is promoted at once.
//! It is demoted only when it maps nothing in faster memory. It is not moved when it is there
//! already or would stay in its tier; and not when another call holds a lock, for the next of its
//! 512 pages will request the move again.
//!
//! # The order of steps, and late bits
//!
//! A hardware walker does not take the kernel's locks. Between the copy of a table and the moment
//! at which no processor uses the old one, a walk sets accessed and dirty bits in the *old* table.
//! Algorithm 1 prints flush, copy, switch (lines 25 to 27): bits set after the copy are lost, and a
//! lost dirty bit is lost data. The order that keeps them, and the default here, is: copy, switch,
//! flush, then merge the bits of the old table into the new and only then free it
//! ([`TableMoveOrder::SwitchFlushMerge`]). Other changes to entries take the locks and wait.
//!
//! So a move has two halves: [`Os::finish_move`] begins it (frame allocated, content copied), and
//! [`Os::finish_table_move`] switches. The machine plays the time between, in which walks go on
//! setting bits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_hardware::address::PhysicalAddress;
use terrace_hardware::units::Picoseconds;

use crate::config::Tier;
use crate::costs::ns;
use crate::counters::TableMoveCounts;
use crate::entry::Entry;
use crate::fault_injection::FaultInjection;
use crate::frames::Owner;
use crate::memory::Order;
use crate::os::{Os, Process};
use crate::shootdown::Shootdown;
use crate::space::{At, ENTRIES};

/// The order of the steps of a table's move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TableMoveOrder {
    /// Copy, switch, flush, merge, free: keeps late bits.
    #[default]
    SwitchFlushMerge,
    /// As algorithm 1 prints it, flush, copy, switch: loses late bits.
    AsPrinted,
}

/// The number of a leaf table's move under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableMoveId(pub u32);

/// A leaf table's move that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableMove {
    /// The number that [`Os::finish_table_move`] takes.
    pub id: TableMoveId,
    /// The table's address space.
    pub space: SpaceId,
    /// First address that the table maps.
    pub address: u64,
    /// The source frame: one base page to copy.
    pub from: PhysicalAddress,
    /// The destination frame.
    pub to: PhysicalAddress,
}

/// A leaf table's move that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableMoved {
    /// The flush that must be done before the old frame is used again: paging-structure caches
    /// hold the old table's address.
    pub shootdown: Shootdown,
    /// Accessed and dirty bits that walks had set since the copy.
    pub late: [u64; 2],
    /// Processor time, without the shootdown and without copying.
    pub cost: Picoseconds,
}

#[derive(Debug, Clone)]
pub(crate) struct Pending {
    pub(crate) space: SpaceId,
    pub(crate) table: usize,
    pub(crate) to: u64,
    /// The table as it was copied.
    copied: Box<[Entry]>,
}

/// The requesting call and the destination node: common to the tables of one [`Os::finish_move`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    /// A lock held on behalf of another call is contended.
    pub(crate) call: u32,
    pub(crate) node: usize,
}

impl Os {
    /// Algorithm 1 for the data page whose entry is `at` and which has just arrived.
    pub(crate) fn follow_data(
        &mut self,
        process: &mut Process,
        at: At,
        asker: Asker,
        begun: &mut Vec<TableMove>,
    ) -> Picoseconds {
        let t = process.space.tables[at.table];
        let to = asker.node;
        // For the call that moves it, a table under way counts as being at its destination, since
        // that call moves tables one after the other; for other calls it is locked.
        let mine = t.moving.is_some() && t.holder == asker.call;
        let node = self.memory.node_of(t.frame);
        if node == to || mine {
            self.count_table_move(process, |c| &mut c.already_there);
            return Picoseconds::ZERO;
        }
        let (from_tier, to_tier) = (self.memory.nodes[node].tier, self.memory.nodes[to].tier);
        if from_tier == to_tier {
            self.count_table_move(process, |c| &mut c.within_tier);
            return Picoseconds::ZERO;
        }
        let mut cost = Picoseconds::ZERO;
        if to_tier > from_tier {
            // A scan stops at the first such page; such pages are taken to be spread evenly.
            let looked_at = ENTRIES as u64 / (u64::from(t.fast) + 1);
            cost += Picoseconds(self.costs.table_scan_entry_ps * looked_at);
            if t.fast > 0 || self.maps_faster_than(process, at.table, to_tier) {
                self.count_table_move(process, |c| &mut c.maps_fast);
                return cost;
            }
        }
        let parent = process.space.tables[t.parent as usize];
        if t.moving.is_some() || (parent.held > 0 && parent.holder != asker.call) {
            self.count_table_move(process, |c| &mut c.lock_contended);
            return cost;
        }
        let space = process.space.id();
        let owner = Owner::Table { space, address: t.address, level: 0 };
        let taken = self.memory.take_easily(PageSize::Base, Order::Only(to), owner, false);
        let Some((frame, _)) = taken else {
            self.count_table_move(process, |c| &mut c.no_room);
            return cost;
        };
        self.count_table_move(process, |c| &mut c.successful);
        let id = self.next_table_move;
        self.next_table_move += 1;
        let copied = process.space.table_entries(at.table).into();
        self.table_moves.insert(id, Pending { space, table: at.table, to: frame, copied });
        let tables = &mut process.space.tables;
        tables[at.table].moving = Some(id);
        tables[at.table].holder = asker.call;
        tables[t.parent as usize].holder = asker.call;
        tables[t.parent as usize].held += 1;
        begun.push(TableMove {
            id: TableMoveId(id),
            space,
            address: t.address,
            from: PhysicalAddress(t.frame),
            to: PhysicalAddress(frame),
        });
        cost + ns(self.costs.table_move_ns, 1)
    }

    /// Counts an outcome of algorithm 1, for the process and in all.
    fn count_table_move(
        &mut self,
        process: &mut Process,
        outcome: fn(&mut TableMoveCounts) -> &mut u64,
    ) {
        *outcome(&mut process.table_moves) += 1;
        *outcome(&mut self.counters.table_moves) += 1;
    }

    /// Whether the table maps a page in a tier between the fastest and this one.
    fn maps_faster_than(&self, process: &Process, table: usize, tier: Tier) -> bool {
        tier > Tier::SLOW
            && process.space.table_entries(table).iter().any(|e| {
                e.is_present() && self.memory.nodes[self.memory.node_of(e.frame())].tier < tier
            })
    }

    /// Ends the move of a leaf table: switches the entry above it, and merges in the bits that
    /// walks have set since the copy. `None` when the table has gone meanwhile, unmapped with its
    /// last page.
    pub fn finish_table_move(&mut self, id: TableMoveId) -> Option<TableMoved> {
        let pending = self.table_moves.remove(&id.0)?;
        let mut process = self.processes[pending.space.0 as usize].take().expect("it has a table");
        let space = &mut process.space;
        let keeps = self.config.migration.table_move_order == TableMoveOrder::SwitchFlushMerge;
        let mut late = [0, 0];
        let entries = space.table_entries_mut(pending.table);
        for (entry, &copied) in entries.iter_mut().zip(&pending.copied) {
            // Changes under the locks since the copy are not made by walks.
            if !entry.is_present() || !entry.same_page(copied) {
                continue;
            }
            late[0] += u64::from(entry.is_accessed() && !copied.is_accessed());
            late[1] += u64::from(entry.is_dirty() && !copied.is_dirty());
            if !keeps {
                *entry = entry.without_bits_beyond(copied);
            }
        }
        let c = &mut self.counters;
        let (accessed, dirty) = if keeps {
            (&mut c.late_accessed, &mut c.late_dirty)
        } else {
            (&mut c.lost_accessed, &mut c.lost_dirty)
        };
        *accessed += late[0];
        *dirty += late[1];
        let t = space.tables[pending.table];
        space.set_table_frame(pending.table, pending.to);
        space.tables[pending.table].moving = None;
        space.tables[t.parent as usize].held -= 1;
        let from = self.memory.give_back(t.frame, PageSize::Base);
        let to = self.memory.node_of(pending.to);
        if !self.does(FaultInjection::MiscountsTables) {
            process.table_pages[from][0] -= 1;
            process.table_pages[to][0] += 1;
        }
        self.processes[pending.space.0 as usize] = Some(process);
        let size_bytes = PageSize::Huge.bytes();
        let range = VirtualRange { space: pending.space, start: t.address, size_bytes };
        let shootdown = self.shootdown(pending.space, vec![range], ENTRIES as u64, true);
        let merge = if keeps { self.costs.table_scan_entry_ps * ENTRIES as u64 } else { 0 };
        Some(TableMoved { shootdown, late, cost: Picoseconds(merge) })
    }

    /// Cancels the move of a table that is about to be freed.
    pub(crate) fn forget_table_move(&mut self, process: &mut Process, table: usize) {
        let t = &mut process.space.tables[table];
        let Some(id) = t.moving.take() else { return };
        let parent = t.parent as usize;
        process.space.tables[parent].held -= 1;
        let pending = self.table_moves.remove(&id).expect("a table under way");
        self.memory.give_back(pending.to, PageSize::Base);
    }
}

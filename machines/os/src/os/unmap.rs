//! Unmapping: pages, the tables that become empty, the end of a process, and splits of huge pages
//! that a range covers in part.

use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_hardware::units::Picoseconds;

use crate::costs::ns;
use crate::entry::Entry;
use crate::fault_injection::FaultInjection;
use crate::frames::{FRAME_BYTES, FRAMES_PER_HUGE, Owner};
use crate::os::{Os, OsError, Process};
use crate::shootdown::Shootdown;
use crate::space::{At, ROOT, Table};

/// The result of unmapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmapped {
    /// The shootdown to do; `None` when nothing was mapped in the range.
    pub shootdown: Option<Shootdown>,
    /// Bytes of data freed.
    pub freed_bytes: u64,
    /// Page-table pages freed.
    pub freed_tables: u64,
    /// Processor time without the shootdown.
    pub cost: Picoseconds,
}

/// Totals of freeing pages.
#[derive(Default)]
struct Freed {
    /// Leaves and migration entries removed.
    leaves: u64,
    /// Leaves among these.
    pages: u64,
    bytes: u64,
    tables: u64,
}

/// Pages are unmapped in steps of so many bytes, so that the list of pages stays short.
const UNMAP_STEP: u64 = 1 << 30;

impl Os {
    /// Removes a range from an address space: also parts of mappings; a huge page that the range
    /// covers in part is split. Both ends are rounded out to whole base pages.
    pub fn unmap(&mut self, id: SpaceId, start: u64, size_bytes: u64) -> Result<Unmapped, OsError> {
        let space_end = self.process(id)?.space.end();
        let end = start.saturating_add(size_bytes).min(space_end).next_multiple_of(FRAME_BYTES);
        let start = start & !(FRAME_BYTES - 1);
        let mut cost = self.split_at(id, start) + self.split_at(id, end);
        let mut process = self.processes[id.0 as usize].take().expect("checked above");
        let mut freed = Freed::default();
        // Only mappings have pages, so holes cost nothing.
        for cut in process.space.cut_mappings(start, end) {
            let mut from = cut.start;
            while from < cut.end {
                let to = (from + UNMAP_STEP).min(cut.end);
                self.free_pages(&mut process, from, to, &mut freed);
                from = to;
            }
        }
        cost += ns(self.costs.free_ns, freed.leaves + freed.tables);
        if freed.leaves > 0 {
            process.space.generation += 1;
        }
        self.processes[id.0 as usize] = Some(process);
        let range = VirtualRange { space: id, start, size_bytes: end - start };
        let Freed { pages, bytes, tables, .. } = freed;
        let shootdown =
            (pages + tables > 0).then(|| self.shootdown(id, vec![range], pages, tables > 0));
        Ok(Unmapped { shootdown, freed_bytes: bytes, freed_tables: tables, cost })
    }

    /// Frees the pages of a range, and the tables that are empty after that.
    fn free_pages(&mut self, process: &mut Process, start: u64, end: u64, freed: &mut Freed) {
        let mut leaves = Vec::new();
        process.space.for_each_leaf(start, end, |_, size, at, entry| {
            leaves.push((size, at, entry));
        });
        let mut last = None;
        for &(size, at, entry) in &leaves {
            let frames = size.bytes() / FRAME_BYTES;
            self.set_leaf(&mut process.space, at, Entry::NONE);
            if size == PageSize::Huge {
                self.free_deposit(process);
            }
            if entry.is_present() {
                let node = self.memory.give_back(entry.frame(), size);
                self.count_data(process, node, frames, false);
                freed.bytes += size.bytes();
                freed.pages += 1;
            } else {
                if self.does(FaultInjection::ForgetsMovingPages) {
                    continue;
                }
                // Under migration: its frames are freed when the move ends.
                let (id, place) = entry.migration_target();
                let node = self.moves[&id].pages[place].to_node.index();
                self.count_data(process, node, frames, false);
            }
            // The leaves of a table are adjacent: the table is checked when its last leaf has gone.
            if let Some(table) = last.replace(at.table)
                && table != at.table
            {
                freed.tables += self.prune(process, table);
            }
        }
        if let Some(table) = last {
            freed.tables += self.prune(process, table);
        }
        freed.leaves += leaves.len() as u64;
    }

    /// The process ends: all of its frames are free again. Moves under way of its pages end when
    /// they are finished.
    pub fn exit(&mut self, id: SpaceId) -> Result<Unmapped, OsError> {
        let end = self.process(id)?.space.end();
        let mut unmapped = self.unmap(id, 0, end)?;
        let mut process = self.processes[id.0 as usize].take().expect("it was there");
        unmapped.freed_tables += self.free_tables(&mut process);
        Ok(unmapped)
    }

    /// Frees the tables of a process that has nothing mapped: the root, and those that were made
    /// for a page that then found no memory.
    pub(super) fn free_tables(&mut self, process: &mut Process) -> u64 {
        let mut freed = 1;
        for table in 0..process.space.tables.len() {
            freed += self.prune(process, table);
        }
        let root = process.space.tables[ROOT].frame;
        self.forget_table(process, root, process.space.root_level());
        self.memory.give_back(root, PageSize::Base);
        freed
    }

    /// Frees a table if it is empty, and the tables above it that become empty by that.
    pub(crate) fn prune(&mut self, process: &mut Process, mut table: usize) -> u64 {
        let mut freed = 0;
        let is_empty = |t: &Table| t.in_use && t.used == 0;
        while table != ROOT && is_empty(&process.space.tables[table]) {
            let parent = process.space.tables[table].parent as usize;
            self.forget_table_move(process, table);
            let (frame, level) = process.space.prune(table);
            self.forget_table(process, frame, level);
            self.memory.give_back(frame, PageSize::Base);
            freed += 1;
            table = parent;
        }
        freed
    }

    pub(crate) fn forget_table(&mut self, process: &mut Process, frame: u64, level: usize) {
        let node = self.memory.node_of(frame);
        process.table_pages[node][level] -= 1;
    }

    /// Frees one of the tables kept for splits: a huge page has gone.
    pub(crate) fn free_deposit(&mut self, process: &mut Process) {
        let frame = process.space.deposits.pop().expect("a deposit for every huge page");
        self.memory.give_back(frame, PageSize::Base);
    }

    /// Kills the process that frees most (Linux's badness: data and page tables), because `space`
    /// found no memory.
    pub(crate) fn kill_for(&mut self, space: SpaceId, cost: Picoseconds) -> OsError {
        let size = |p: &Process| -> u64 {
            let tables: u64 = p.table_pages.iter().flatten().sum();
            p.data_frames.iter().sum::<u64>() + tables + p.space.deposits.len() as u64
        };
        let victim = (self.processes.iter().flatten())
            .max_by_key(|p| (size(p), std::cmp::Reverse(p.space.id())))
            .map_or(space, |p| p.space.id());
        self.counters.oom_kills += 1;
        let freed_bytes = match self.exit(victim) {
            Ok(unmapped) => unmapped.freed_bytes + unmapped.freed_tables * FRAME_BYTES,
            // The process that needs memory is not in the list while it is being created.
            Err(_) => 0,
        };
        let cost = cost + ns(self.costs.oom_kill_ns, 1);
        OsError::OutOfMemory { space, killed: victim, freed_bytes, cost }
    }

    /// Splits the huge page that contains `address`, but not one that begins there.
    fn split_at(&mut self, id: SpaceId, address: u64) -> Picoseconds {
        if address.is_multiple_of(PageSize::Huge.bytes()) {
            return Picoseconds::ZERO;
        }
        let space = self.space(id);
        if address >= space.end() {
            return Picoseconds::ZERO;
        }
        let (at, level) = space.find(address);
        if level != 1 || !space.entry(at).is_huge() {
            return Picoseconds::ZERO;
        }
        self.split_huge(id, at, address & !(PageSize::Huge.bytes() - 1))
    }

    /// Turns a huge page into base pages in the same frames, with the table kept for this; also one
    /// under migration. Returns the time without the shootdown, which the caller's own covers.
    pub(crate) fn split_huge(&mut self, id: SpaceId, at: At, address: u64) -> Picoseconds {
        let mut process = self.processes[id.0 as usize].take().expect("a process that lives");
        let entry = process.space.entry(at);
        let frame = process.space.deposits.pop().expect("a deposit for every huge page");
        let table = process.space.replace_by_table(at, address, frame);
        self.memory.own(frame, PageSize::Base, Owner::Table { space: id, address, level: 0 });
        let node = self.memory.node_of(frame);
        process.table_pages[node][0] += 1;
        if entry.is_migration() {
            self.split_moving(&mut process.space, table, entry);
        } else {
            self.memory.own(entry.frame(), PageSize::Huge, Owner::Base { space: id, address });
            for slot in 0..FRAMES_PER_HUGE as usize {
                let part = entry.frame() + slot as u64 * FRAME_BYTES;
                let leaf = Entry::leaf(part, PageSize::Base).with_bits_of(entry);
                self.set_leaf(&mut process.space, At { table, slot }, leaf);
            }
        }
        process.space.generation += 1;
        self.processes[id.0 as usize] = Some(process);
        self.counters.splits += 1;
        ns(self.costs.split_huge_ns, 1)
    }
}

//! Migration in its real steps (Nimble paper, figure 4 and section 3.1): allocate, unmap, shoot
//! down, copy, map, free. The first three are `begin_move`, the last two `finish_move`; the machine
//! does the copying and plays the time between.
//!
//! One operation is one contiguous virtual range, whatever its physical layout (granularity paper,
//! section 3). Several operations given together are one concurrent batch: all are allocated and
//! unmapped, copied as one step, and mapped together (Nimble, section 3.1.3). `finish_page` maps one of
//! them before the others.

use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_core::plan::FailureReason;
use terrace_hardware::address::PhysicalAddress;
use terrace_hardware::error::ConfigError;
use terrace_hardware::units::Picoseconds;

use crate::config::{MigrationConfig, Node, ShootdownPer};
use crate::costs::ns;
use crate::entry::Entry;
use crate::fault_injection::FaultInjection;
use crate::frames::{FRAME_BYTES, FRAMES_PER_HUGE, Owner};
use crate::memory::Order;
use crate::os::{Os, Process};
use crate::shootdown::Shootdown;
use crate::space::{AddressSpace, At, ENTRIES};
use crate::tables::{Asker, TableMove};

/// A batch under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MoveId(pub u32);

/// Bytes to copy from one place to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    /// Source address.
    pub from: PhysicalAddress,
    /// Destination address.
    pub to: PhysicalAddress,
    /// The size of a base or a huge page.
    pub bytes: u64,
}

/// A page that does not move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The page's range.
    pub range: VirtualRange,
    /// Why the page does not move.
    pub reason: FailureReason,
}

/// Processor time by step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoveCost {
    /// The call itself.
    pub call: Picoseconds,
    /// Splitting huge pages, where the configuration requires it.
    pub split: Picoseconds,
    /// Allocating the new frames.
    pub allocate: Picoseconds,
    /// Unmapping, which includes the own part of shootdowns.
    pub unmap: Picoseconds,
    /// Starting and joining copying threads.
    pub threads: Picoseconds,
}

impl MoveCost {
    /// The sum of all steps.
    pub fn total(&self) -> Picoseconds {
        self.call + self.split + self.allocate + self.unmap + self.threads
    }
}

/// A batch that has begun: its pages are unmapped, and accesses to them fault and wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The batch; with 0 `pages` there is nothing to end.
    pub id: MoveId,
    /// Pages under migration, of either size.
    pub pages: u64,
    /// Bytes under migration.
    pub bytes: u64,
    /// Operations with pages to move.
    pub operations: u64,
    /// Bytes that were at the destination already, or moving there in this batch.
    pub already_there_bytes: u64,
    /// Pages that do not move.
    pub refused: Vec<Refused>,
    /// Operations beyond the batch's caps on pages under way, to be begun in another batch.
    pub rest: Vec<VirtualRange>,
    /// The copies to do, in address order.
    pub copies: Vec<Copy>,
    /// Number of copying threads. With more pages than threads each takes whole pages, else they
    /// share the bytes of a page (Nimble, section 3.1.3).
    pub copy_threads: u32,
    /// Shootdowns that the processors must do now.
    pub shootdowns: Vec<Shootdown>,
    /// Processor time, without the shootdowns and without copying.
    pub cost: MoveCost,
}

impl Begun {
    fn refuse(&mut self, space: SpaceId, start: u64, size_bytes: u64, reason: FailureReason) {
        let range = VirtualRange { space, start, size_bytes };
        self.refused.push(Refused { range, reason });
    }
}

/// A batch that has ended, or one page of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Finished {
    /// Pages that arrived.
    pub pages: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Pages that were unmapped by their program while they moved: nothing arrived.
    pub gone: u64,
    /// Processor time of mapping.
    pub map: Picoseconds,
    /// Processor time of freeing.
    pub free: Picoseconds,
    /// Leaf tables that follow their data: copied already, to be ended with
    /// [`Os::finish_table_move`].
    pub table_moves: Vec<TableMove>,
    /// Processor time of deciding on table moves (algorithm 1).
    pub tables: Picoseconds,
}

/// One page of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moving {
    pub(crate) space: SpaceId,
    pub(crate) address: u64,
    pub(crate) size: PageSize,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) to_node: Node,
    /// A huge page that was split meanwhile: its parts have entries of their own in the batch.
    pub(crate) split: bool,
    /// Mapped already, before the rest of the batch.
    pub(crate) ended: bool,
}

/// Pages of one batch whose moves end now.
struct Ending {
    id: MoveId,
    /// Not at the end of a move that is given up.
    arrived: bool,
    exchange: bool,
    done: Finished,
    /// Base pages whose page tables may follow them.
    arrivals: Vec<(SpaceId, At, Node)>,
}

impl Ending {
    fn new(id: MoveId, arrived: bool, exchange: bool) -> Self {
        Self { id, arrived, exchange, done: Finished::default(), arrivals: Vec::new() }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Move {
    pub(crate) pages: Vec<Moving>,
    /// The destination of each page is the source of another page of the batch.
    pub(crate) exchange: bool,
}

/// Divides copies over threads (Nimble, sections 3.1.2 and 3.1.3): whole pages in turn when there
/// are as many as threads, else several threads take parts of one page. Parts are whole cache
/// lines. Every byte is copied once; threads without work are left out.
pub fn copies_by_thread(copies: &[Copy], threads: u32) -> Vec<Vec<Copy>> {
    const LINE: u64 = 64;
    let threads = threads.max(1) as usize;
    let mut work = vec![Vec::new(); threads];
    let parts = if copies.is_empty() { 1 } else { (threads / copies.len()).max(1) };
    let mut turn = 0;
    for copy in copies {
        let part = (copy.bytes / parts as u64).next_multiple_of(LINE).max(LINE);
        let mut done = 0;
        while done < copy.bytes {
            let bytes = part.min(copy.bytes - done);
            work[turn % threads].push(Copy {
                from: PhysicalAddress(copy.from.0 + done),
                to: PhysicalAddress(copy.to.0 + done),
                bytes,
            });
            turn += 1;
            done += bytes;
        }
    }
    work.retain(|copies| !copies.is_empty());
    work
}

impl Os {
    /// Changes how pages are migrated from now on: an administrator sets threads, caps and the like
    /// at run time, and a caller for each call (Nimble, section 3.1.2). Moves under way keep the
    /// setting that they began with.
    pub fn set_migration(&mut self, migration: MigrationConfig) -> Result<(), ConfigError> {
        migration.check()?;
        self.config.migration = migration;
        Ok(())
    }

    /// How pages are migrated now.
    pub fn migration(&self) -> &MigrationConfig {
        &self.config.migration
    }

    /// Begins to move ranges to a node. Pages that are not mapped, under migration already, over
    /// the group's limit or without room at the destination are refused one by one; the others go.
    /// A range that covers a part of a huge page moves all of it. Ranges beyond the batch's caps
    /// come back in `rest`; the first range with pages to move is taken however long it is.
    pub fn begin_move(&mut self, operations: &[VirtualRange], to: Node) -> Begun {
        let id = MoveId(self.next_move);
        self.next_move += 1;
        let mut begun = Begun {
            id,
            pages: 0,
            bytes: 0,
            operations: 0,
            already_there_bytes: 0,
            refused: Vec::new(),
            rest: Vec::new(),
            copies: Vec::new(),
            copy_threads: 1,
            shootdowns: Vec::new(),
            cost: MoveCost { call: ns(self.costs.move_call_ns, 1), ..MoveCost::default() },
        };
        let mut batch = Move { pages: Vec::new(), exchange: false };
        let mut shot: Vec<(VirtualRange, u64)> = Vec::new();
        for (number, operation) in operations.iter().enumerate() {
            if !self.fits(&batch, operation) {
                begun.rest.extend_from_slice(&operations[number..]);
                break;
            }
            let before = batch.pages.len();
            self.begin_operation(operation, to, &mut batch, &mut begun);
            let pages = (batch.pages.len() - before) as u64;
            if pages > 0 {
                shot.push((*operation, pages));
            }
        }
        begun.operations = shot.len() as u64;
        self.counters.operations += begun.operations;
        begun.pages = batch.pages.len() as u64;
        begun.bytes = begun.copies.iter().map(|c| c.bytes).sum();
        let uncounted =
            if self.does(FaultInjection::CopiesUncounted) { begun.bytes.min(4096) } else { 0 };
        self.counters.copied_bytes += begun.bytes - uncounted;
        begun.shootdowns = self.shoot(shot, &batch.pages);
        begun.copy_threads = self.copy_threads(begun.bytes);
        begun.cost.threads =
            ns(self.costs.copy_thread_ns, u64::from(begun.copy_threads.saturating_sub(1)));
        if !batch.pages.is_empty() {
            self.moves.insert(id.0, batch);
        }
        begun
    }

    /// How many threads copy so many bytes.
    pub(crate) fn copy_threads(&self, bytes: u64) -> u32 {
        let m = &self.config.migration;
        if bytes < m.least_bytes_for_threads { 1 } else { m.threads }
    }

    /// Whether an operation may join a batch. Pages are counted as the space has them now.
    fn fits(&self, batch: &Move, operation: &VirtualRange) -> bool {
        if batch.pages.is_empty() {
            return true;
        }
        let Ok(process) = self.process(operation.space) else { return true };
        let m = &self.config.migration;
        let huge = batch.pages.iter().filter(|p| p.size == PageSize::Huge).count() as u64;
        let mut counts = [batch.pages.len() as u64 - huge, huge];
        process.space.for_each_leaf(operation.start, operation.end(), |_, size, _, _| match size {
            PageSize::Huge if !m.split_huge_first => counts[1] += 1,
            PageSize::Huge => counts[0] += FRAMES_PER_HUGE,
            PageSize::Base => counts[0] += 1,
        });
        counts[0] <= u64::from(m.batch_base_pages) && counts[1] <= u64::from(m.batch_huge_pages)
    }

    /// The shootdowns for ranges with so many pages each, `pages` in total.
    pub(crate) fn shoot(
        &mut self,
        shot: Vec<(VirtualRange, u64)>,
        pages: &[Moving],
    ) -> Vec<Shootdown> {
        match self.config.migration.shootdown_per {
            ShootdownPer::Page => {
                let one = |p: &Moving| {
                    let size_bytes = p.size.bytes();
                    let range = VirtualRange { space: p.space, start: p.address, size_bytes };
                    self.shootdown(p.space, vec![range], 1, false)
                };
                return pages.iter().map(one).collect();
            }
            ShootdownPer::Operation => {
                return shot
                    .into_iter()
                    .map(|(range, pages)| self.shootdown(range.space, vec![range], pages, false))
                    .collect();
            }
            ShootdownPer::Batch => {}
        }
        // One for each address space, in the order in which they first occur.
        let mut spaces: Vec<(SpaceId, Vec<VirtualRange>, u64)> = Vec::new();
        for (range, pages) in shot {
            match spaces.iter_mut().find(|s| s.0 == range.space) {
                Some(s) => {
                    s.1.push(range);
                    s.2 += pages;
                }
                None => spaces.push((range.space, vec![range], pages)),
            }
        }
        spaces
            .into_iter()
            .map(|(s, ranges, pages)| self.shootdown(s, ranges, pages, false))
            .collect()
    }

    fn begin_operation(
        &mut self,
        operation: &VirtualRange,
        to_node: Node,
        batch: &mut Move,
        begun: &mut Begun,
    ) {
        let id = operation.space;
        if self.process(id).is_err() {
            let (start, bytes) = (operation.start, operation.size_bytes);
            return begun.refuse(id, start, bytes, FailureReason::ProcessGone);
        }
        if self.config.migration.split_huge_first {
            begun.cost.split += self.split_all(operation);
        }
        let mut process = self.processes[id.0 as usize].take().expect("checked above");
        let mut leaves = Vec::new();
        let (start, end) = (operation.start, operation.end());
        process.space.for_each_leaf(start, end, |address, size, at, entry| {
            leaves.push((address, size, at, entry));
        });
        let mut next = start;
        let absent = |from: u64, to: u64, begun: &mut Begun| {
            if from < to {
                begun.refuse(id, from, to - from, FailureReason::Absent);
            }
        };
        for (address, size, at, entry) in leaves {
            absent(next, address, begun);
            next = address + size.bytes();
            let refuse = |begun: &mut Begun, reason| {
                begun.refuse(id, address, size.bytes(), reason);
            };
            if entry.is_migration() {
                // The batch may have named another part of a huge page before.
                if entry.migration_target().0 == begun.id.0 {
                    begun.already_there_bytes += size.bytes();
                } else {
                    refuse(begun, FailureReason::Busy);
                }
                continue;
            }
            let from_node = self.memory.node_of(entry.frame());
            if from_node == to_node.index() {
                begun.already_there_bytes += size.bytes();
                continue;
            }
            let frames = size.bytes() / FRAME_BYTES;
            let rises =
                self.memory.is_fast_node(to_node.index()) && !self.memory.is_fast_node(from_node);
            if rises && !self.groups[process.group].has_fast_room(frames) {
                refuse(begun, FailureReason::NotAllowed);
                continue;
            }
            let owner = Owner::Destination { space: id, address };
            let order = Order::Only(to_node.index());
            let Some((to, node)) = self.memory.take_easily(size, order, owner, false) else {
                refuse(begun, FailureReason::NoRoom);
                continue;
            };
            let from = entry.frame();
            self.count_data(&mut process, from_node, frames, false);
            self.count_data(&mut process, node, frames, true);
            let place = batch.pages.len();
            self.set_leaf(&mut process.space, at, Entry::migration(begun.id.0, place, entry));
            let (split, ended) = (false, false);
            batch.pages.push(Moving { space: id, address, size, from, to, to_node, split, ended });
            let (from, to) = (PhysicalAddress(from), PhysicalAddress(to));
            begun.copies.push(Copy { from, to, bytes: size.bytes() });
            let allocate = match size {
                PageSize::Base => self.costs.move_allocate_base_ns,
                PageSize::Huge => self.costs.move_allocate_huge_ns,
            };
            begun.cost.allocate += ns(allocate, 1);
            begun.cost.unmap += ns(self.costs.unmap_ns, 1);
        }
        absent(next, operation.end(), begun);
        self.processes[id.0 as usize] = Some(process);
    }

    /// Splits the huge pages of a range.
    fn split_all(&mut self, range: &VirtualRange) -> Picoseconds {
        let mut huge = Vec::new();
        self.space(range.space).for_each_leaf(range.start, range.end(), |address, size, at, e| {
            if size == PageSize::Huge && e.is_present() {
                huge.push((address, at));
            }
        });
        huge.into_iter().map(|(address, at)| self.split_huge(range.space, at, address)).sum()
    }

    /// Gives the parts of a huge page under migration entries of their own in the page table and in
    /// the batch.
    pub(crate) fn split_moving(&mut self, space: &mut AddressSpace, table: usize, entry: Entry) {
        let (id, place) = entry.migration_target();
        let batch = self.moves.get_mut(&id).expect("a migration entry of a move under way");
        let whole = batch.pages[place];
        batch.pages[place].split = true;
        let first = batch.pages.len();
        let (space_id, address) = (whole.space, whole.address);
        for slot in 0..ENTRIES {
            let step = slot as u64 * FRAME_BYTES;
            batch.pages.push(Moving {
                space: space_id,
                address: address + step,
                size: PageSize::Base,
                from: whole.from + step,
                to: whole.to + step,
                to_node: whole.to_node,
                split: false,
                ended: false,
            });
        }
        for slot in 0..ENTRIES {
            let part = Entry::leaf(0, PageSize::Base).with_bits_of(entry);
            let entry = Entry::migration(id, first + slot, part);
            self.set_leaf(space, At { table, slot }, entry);
        }
        self.memory.own(whole.from, PageSize::Huge, Owner::Base { space: space_id, address });
    }

    /// Ends a batch whose bytes are copied: maps the new pages and frees the old ones.
    ///
    /// # Panics
    /// When there is no such batch under way.
    pub fn finish_move(&mut self, id: MoveId) -> Finished {
        self.end_move(id, true)
    }

    /// Ends a batch without moving anything: the pages are mapped where they were.
    ///
    /// # Panics
    /// When there is no such batch under way.
    pub fn abort_move(&mut self, id: MoveId) -> Finished {
        self.end_move(id, false)
    }

    /// Ends the move of one page of a batch, before the rest of it: its bytes are copied. `place` is
    /// that of its copy in [`Begun::copies`]. The parts of a huge page that was split meanwhile arrive
    /// with the rest.
    ///
    /// # Panics
    /// When there is no such batch under way, or it exchanges pages: those arrive in pairs.
    pub fn finish_page(&mut self, id: MoveId, place: usize) -> Finished {
        let mut batch = self.moves.remove(&id.0).expect("a batch under way");
        assert!(!batch.exchange, "both pages of a pair arrive at once");
        let mut ending = Ending::new(id, true, false);
        let page = batch.pages[place];
        if !page.split && !page.ended {
            batch.pages[place].ended = true;
            self.end_page(&mut ending, place, &page);
        }
        self.moves.insert(id.0, batch);
        self.follow_arrivals(ending)
    }

    /// The page whose copy has this place in [`Begun::copies`].
    ///
    /// # Panics
    /// When there is no such batch under way.
    pub fn moving_page(&self, id: MoveId, place: usize) -> VirtualRange {
        let page = &self.moves[&id.0].pages[place];
        VirtualRange { space: page.space, start: page.address, size_bytes: page.size.bytes() }
    }

    fn end_move(&mut self, id: MoveId, arrived: bool) -> Finished {
        let batch = self.moves.remove(&id.0).expect("a batch under way");
        let mut ending = Ending::new(id, arrived, batch.exchange);
        for (place, page) in batch.pages.iter().enumerate() {
            if !page.split && !page.ended {
                self.end_page(&mut ending, place, page);
            }
        }
        if batch.exchange && arrived {
            self.counters.exchanged_pairs += ending.done.pages / 2;
        }
        self.follow_arrivals(ending)
    }

    /// Maps one page of a batch that has been taken out, and gives back the frame that is left.
    fn end_page(&mut self, ending: &mut Ending, place: usize, page: &Moving) {
        let Ending { id, arrived, exchange, done, arrivals } = ending;
        let (arrived, frees) = (*arrived, !*exchange);
        let (kept, left) = if arrived { (page.to, page.from) } else { (page.from, page.to) };
        let bytes = page.size.bytes();
        let free = match page.size {
            PageSize::Base => self.costs.move_free_base_ns,
            PageSize::Huge => self.costs.move_free_huge_ns,
        };
        done.free += ns(free, u64::from(frees));
        let Some(at) = self.still_moving(page, *id, place) else {
            // Unmapped meanwhile: nothing holds either frame. In an exchange the other frame is
            // the partner's now.
            self.memory.give_back(kept, page.size);
            if frees {
                self.memory.give_back(left, page.size);
            }
            self.counters.wasted_copy_bytes += bytes;
            done.gone += 1;
            return;
        };
        let mut process = self.processes[page.space.0 as usize].take().expect("it maps it");
        self.map_moved(&mut process, page, at, [kept, left]);
        if frees && !self.does(FaultInjection::LeaksOldFrame) {
            self.memory.give_back(left, page.size);
        }
        if !arrived {
            let (frames, kept_node) = (bytes / FRAME_BYTES, self.memory.node_of(kept));
            self.count_data(&mut process, page.to_node.index(), frames, false);
            self.count_data(&mut process, kept_node, frames, true);
        } else if process.spec.tables.migrate && page.size == PageSize::Base {
            arrivals.push((page.space, at, page.to_node));
        }
        self.processes[page.space.0 as usize] = Some(process);
        done.map += ns(self.costs.map_ns, 1);
        done.pages += 1;
        done.bytes += bytes;
        match (arrived, page.size) {
            (false, _) => self.counters.wasted_copy_bytes += bytes,
            (true, PageSize::Base) => self.counters.migrated_base_pages += 1,
            (true, PageSize::Huge) => self.counters.migrated_huge_pages += 1,
        }
        self.counters.migrated_bytes += if arrived { bytes } else { 0 };
    }

    /// Page tables follow the pages that have arrived. All these are mapped before the first one's
    /// table is considered.
    fn follow_arrivals(&mut self, ending: Ending) -> Finished {
        let Ending { id, mut done, arrivals, .. } = ending;
        for (space, at, node) in arrivals {
            let mut process = self.processes[space.0 as usize].take().expect("it maps it");
            let asker = Asker { call: id.0, node: node.index() };
            done.tables += self.follow_data(&mut process, at, asker, &mut done.table_moves);
            self.processes[space.0 as usize] = Some(process);
        }
        done
    }

    /// Maps a page at the end of its move: the frame that is kept, not the one that is left.
    fn map_moved(&mut self, process: &mut Process, page: &Moving, at: At, [kept, left]: [u64; 2]) {
        let mapped = if self.does(FaultInjection::MapsOldFrame) { left } else { kept };
        let was = process.space.entry(at);
        let mut entry = Entry::leaf(mapped, page.size).with_bits_of(was);
        if self.does(FaultInjection::SetsAccessedItself) {
            entry = entry.set_bits(false);
        }
        if self.does(FaultInjection::LosesDirty) && was.is_dirty() {
            entry = Entry::leaf(mapped, page.size);
        }
        self.set_leaf(&mut process.space, at, entry);
        let (space, address) = (page.space, page.address);
        let owner = match page.size {
            PageSize::Base => Owner::Base { space, address },
            PageSize::Huge => Owner::Huge { space, address },
        };
        self.memory.own(kept, page.size, owner);
    }

    /// The place of the page's migration entry, if it is still there.
    fn still_moving(&self, page: &Moving, id: MoveId, place: usize) -> Option<At> {
        let process = self.process(page.space).ok()?;
        let (at, _) = process.space.find(page.address);
        let entry = process.space.entry(at);
        (entry.is_migration() && entry.migration_target() == (id.0, place)).then_some(at)
    }
}

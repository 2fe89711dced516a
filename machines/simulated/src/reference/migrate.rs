//! Carrying out a plan in its real steps, while programs run on: batches of operations are
//! allocated and unmapped, translations shot down, bytes copied by threads that take cores and
//! bandwidth, pages mapped and old frames freed. An access to a page under way waits for the page.
//!
//! Demotions come first, then exchanges, then promotions, as on every machine.

use terrace_core::interfaces::MachineError;
use terrace_core::operations::region_bytes;
use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_core::plan::{Direction, Exchange, Failure, FailureReason, Outcome, Plan};
use terrace_hardware::address::PhysicalAddress;
use terrace_hardware::units::Picoseconds;
use terrace_os::config::{Mapped, Node};
use terrace_os::moves::{Begun, Copy, Finished, MoveId, Refused};
use terrace_os::shootdown::Shootdown;

use super::copy::Transfer;
use super::machine::{State, Until};
use super::program::Phase;

/// The largest operation that is moved as one even where batches are smaller: a huge page's region,
/// the largest granularity of the granularity paper.
pub(crate) const MOST_OPERATION_BYTES: u64 = 2 << 20;

/// The processors that a shootdown has interrupted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Interrupted {
    /// Their number.
    pub(super) processors: u64,
    /// The time for which they stopped the program, summed.
    pub(super) stopped: Picoseconds,
}

/// A plan being carried out for one group.
pub(super) struct Carrying {
    group: usize,
    page_size: PageSize,
    /// No batch is begun after this time.
    deadline: Picoseconds,
    pub(super) outcome: Outcome,
}

impl Carrying {
    fn fail(&mut self, range: VirtualRange, direction: Direction, reason: FailureReason) {
        // Going over the group's limit is `NoRoom`, as on every machine.
        let reason = match reason {
            FailureReason::NotAllowed => FailureReason::NoRoom,
            other => other,
        };
        if range.size_bytes > 0 {
            self.outcome.failures.push(Failure { range, direction, reason });
        }
    }

    /// Counts refused pages of the group's size, and returns how many these are.
    fn refused(&mut self, refused: &[Refused], direction: Direction) -> u64 {
        let before = self.outcome.failures.len();
        for r in refused {
            if r.range.pages(self.page_size) > 0 {
                self.fail(r.range, direction, r.reason);
            }
        }
        let failures = &self.outcome.failures[before..];
        failures.iter().map(|failure| failure.range.pages(self.page_size)).sum()
    }

    /// So many pages of these ranges fail; which ones is not known.
    fn fail_pages(
        &mut self,
        ranges: &[VirtualRange],
        pages: u64,
        direction: Direction,
        reason: FailureReason,
    ) {
        if let Some(first) = ranges.first() {
            let size_bytes = pages * self.page_size.bytes();
            self.fail(VirtualRange { size_bytes, ..*first }, direction, reason);
        }
    }

    /// Pages of the group's size in these ranges.
    fn pages(&self, ranges: &[VirtualRange]) -> u64 {
        ranges.iter().map(|range| range.pages(self.page_size)).sum()
    }

    fn moved(&mut self, direction: Direction) -> &mut u64 {
        match direction {
            Direction::Promotion => &mut self.outcome.promoted_pages,
            Direction::Demotion => &mut self.outcome.demoted_pages,
        }
    }
}

/// Splits a range into operations: its parts in aligned regions of this size.
fn operations(range: VirtualRange, region_bytes: u64) -> impl Iterator<Item = VirtualRange> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let end = (start / region_bytes + 1).saturating_mul(region_bytes).min(range.end());
        let operation = VirtualRange { start, size_bytes: end.saturating_sub(start), ..range };
        start = end.max(start);
        (operation.size_bytes > 0).then_some(operation)
    })
}

/// Splits two ranges of the same size into pairs of operations of the same size: cut where either
/// reaches the end of a region.
fn pair_operations(
    mut up: VirtualRange,
    mut down: VirtualRange,
    region_bytes: u64,
) -> impl Iterator<Item = (VirtualRange, VirtualRange)> {
    std::iter::from_fn(move || {
        let left = |r: &VirtualRange| region_bytes - r.start % region_bytes;
        let size_bytes = left(&up).min(left(&down)).min(up.size_bytes).min(down.size_bytes);
        let pair = (VirtualRange { size_bytes, ..up }, VirtualRange { size_bytes, ..down });
        for range in [&mut up, &mut down] {
            range.start += size_bytes;
            range.size_bytes -= size_bytes;
        }
        (size_bytes > 0).then_some(pair)
    })
}

/// Splits pairs into runs of up to so many bytes each way, or of one pair that has more.
fn batches(
    pairs: &[(VirtualRange, VirtualRange)],
    most_bytes: u64,
) -> impl Iterator<Item = &[(VirtualRange, VirtualRange)]> {
    let mut left = pairs;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |pair: &&(VirtualRange, VirtualRange)| {
            bytes += pair.0.size_bytes;
            bytes <= most_bytes
        };
        let taken = left.iter().take_while(fits).count().max(1).min(left.len());
        let batch;
        (batch, left) = left.split_at(taken);
        (!batch.is_empty()).then_some(batch)
    })
}

impl State {
    /// Carries out a plan for a group.
    pub(super) fn apply(&mut self, group: usize, plan: &Plan) -> Result<Outcome, MachineError> {
        let page_size = self.members[group].page_size();
        let mut carrying = self.carrying(group);
        let most = |range: &VirtualRange, direction| {
            self.operation_bytes(plan, page_size, range.space, direction)
        };
        let split = |ranges: &[VirtualRange], direction| -> Vec<VirtualRange> {
            ranges.iter().flat_map(|r| operations(*r, most(r, direction))).collect()
        };
        let down = split(&plan.demotions, Direction::Demotion);
        let up = split(&plan.promotions, Direction::Promotion);
        let mut pairs = Vec::new();
        for Exchange { up, down } in &plan.exchanges {
            let bytes = most(up, Direction::Promotion).min(most(down, Direction::Demotion));
            pairs.extend(pair_operations(*up, *down, bytes));
        }
        self.one_way(&mut carrying, down, Direction::Demotion)?;
        self.exchange(&mut carrying, pairs)?;
        self.one_way(&mut carrying, up, Direction::Promotion)?;
        Ok(carrying.outcome)
    }

    /// The limits of carrying out a plan: the share of this period that moves may take, or none.
    pub(super) fn carrying(&self, group: usize) -> Carrying {
        let page_size = self.members[group].page_size();
        let share = self.config.options.move_share.clamp(0.0, 1.0);
        let period_ps = self.config.period_ns as f64 * 1000.0;
        let deadline = match self.config.options.finish_moves {
            true => Picoseconds(u64::MAX),
            false => Picoseconds(self.period_end.0 + (period_ps * share) as u64),
        };
        Carrying { group, page_size, deadline, outcome: Outcome::default() }
    }

    /// The largest operation: the plan's granularity in whole pages, up to the bytes that a batch
    /// may have under way or 2 MB; else one page.
    fn operation_bytes(
        &self,
        plan: &Plan,
        page_size: PageSize,
        space: SpaceId,
        direction: Direction,
    ) -> u64 {
        let most = self.batch_bytes(page_size).max(MOST_OPERATION_BYTES);
        region_bytes(plan.operation_bytes(space, direction), page_size).min(most)
    }

    /// The most bytes of several operations that a batch has under way.
    fn batch_bytes(&self, page_size: PageSize) -> u64 {
        let migration = &self.config.os.migration;
        let pages = match page_size {
            PageSize::Base => migration.batch_base_pages,
            PageSize::Huge => migration.batch_huge_pages,
        };
        u64::from(pages) * page_size.bytes()
    }

    pub(super) fn one_way(
        &mut self,
        carrying: &mut Carrying,
        mut left: Vec<VirtualRange>,
        direction: Direction,
    ) -> Result<(), MachineError> {
        let to = match direction {
            Direction::Promotion => Node::FAST,
            Direction::Demotion => Node::SLOW,
        };
        while !left.is_empty() {
            if self.daemon_now >= carrying.deadline {
                for range in left {
                    carrying.fail(range, direction, FailureReason::OutOfTime);
                }
                return Ok(());
            }
            self.advance(Until::Time(self.daemon_now))?;
            let asked = left.len();
            let mut begun = self.os.begin_move(&left, to);
            let taken = left[..asked - begun.rest.len()].to_vec();
            left = std::mem::take(&mut begun.rest);
            self.charge(begun.cost.total());
            for shootdown in &begun.shootdowns {
                self.shoot_down(carrying.group, shootdown);
            }
            let mut unsettled = carrying.pages(&taken);
            unsettled -= carrying.refused(&begun.refused, direction).min(unsettled);
            let there = (begun.already_there_bytes / carrying.page_size.bytes()).min(unsettled);
            // Pages that are there already are not moves, but no pages of the plan may be lost.
            carrying.fail_pages(&taken, there, direction, FailureReason::Unsupported);
            unsettled -= there;
            if begun.pages > 0 {
                carrying.outcome.operations += begun.operations;
                let arrived_bytes = self.arrive(carrying.group, &begun)?;
                let moved = (arrived_bytes / carrying.page_size.bytes()).min(unsettled);
                *carrying.moved(direction) += moved;
                unsettled -= moved;
            }
            // The program has unmapped the rest, or a part of each of these pages.
            carrying.fail_pages(&taken, unsettled, direction, FailureReason::Absent);
        }
        Ok(())
    }

    /// Copies the pages of a batch, and maps them when all are copied or each when it is. Returns the
    /// bytes that arrived.
    fn arrive(&mut self, group: usize, begun: &Begun) -> Result<u64, MachineError> {
        let (id, threads) = (begun.id, begun.copy_threads);
        let mut bytes = 0;
        let mut rest = &begun.copies[..];
        if self.config.os.migration.mapped == Mapped::Each {
            for (place, copy) in std::mem::take(&mut rest).iter().enumerate() {
                let copy = std::slice::from_ref(copy);
                self.copy(copy, threads, false)?;
                let page = self.os.moving_page(id, place);
                let finished = self.os.finish_page(id, place);
                self.finish(group, (id, Some(page)), copy, false, &finished)?;
                bytes += finished.bytes;
            }
        } else {
            self.copy(rest, threads, false)?;
        }
        let finished = self.os.finish_move(id);
        self.finish(group, (id, None), rest, false, &finished)?;
        Ok(bytes + finished.bytes)
    }

    /// Exchanges pairs, where the operating system can. Where it cannot they move both ways, a batch
    /// down and one up in turn: fast memory is not left empty for longer than it takes to fill it.
    fn exchange(
        &mut self,
        carrying: &mut Carrying,
        pairs: Vec<(VirtualRange, VirtualRange)>,
    ) -> Result<(), MachineError> {
        if !self.config.os.migration.exchange {
            let most_bytes = self.batch_bytes(carrying.page_size);
            for pairs in batches(&pairs, most_bytes) {
                let (up, down) = pairs.iter().copied().unzip();
                self.one_way(carrying, down, Direction::Demotion)?;
                self.one_way(carrying, up, Direction::Promotion)?;
            }
            return Ok(());
        }
        let mut left: Vec<Exchange> =
            pairs.into_iter().map(|(up, down)| Exchange { up, down }).collect();
        while !left.is_empty() {
            if self.daemon_now >= carrying.deadline {
                for Exchange { up, down } in left {
                    carrying.fail(down, Direction::Demotion, FailureReason::OutOfTime);
                    carrying.fail(up, Direction::Promotion, FailureReason::OutOfTime);
                }
                return Ok(());
            }
            self.advance(Until::Time(self.daemon_now))?;
            let begun = self.os.begin_exchange(&left);
            let taken = left[..left.len() - begun.rest.len()].to_vec();
            left = begun.rest;
            self.charge(begun.cost);
            for shootdown in &begun.shootdowns {
                self.shoot_down(carrying.group, shootdown);
            }
            let mut swapped_pages = 0;
            if begun.pairs > 0 {
                self.copy(&begun.swaps, begun.copy_threads, true)?;
                let finished = self.os.finish_move(begun.id);
                self.finish(carrying.group, (begun.id, None), &begun.swaps, true, &finished)?;
                swapped_pages = finished.bytes / 2 / carrying.page_size.bytes();
                carrying.outcome.promoted_pages += swapped_pages;
                carrying.outcome.demoted_pages += swapped_pages;
                carrying.outcome.exchanged_pairs += swapped_pages;
                carrying.outcome.operations += begun.operations;
            }
            // Pairs that do not match fall back to two moves (Nimble paper, section 3.2.3).
            let (up, down): (Vec<_>, Vec<_>) =
                begun.fallback.iter().map(|pair| (pair.up, pair.down)).unzip();
            // Pairs that could not be exchanged and do not fall back were held by another.
            let (ups, downs): (Vec<_>, Vec<_>) = taken.iter().map(|p| (p.up, p.down)).unzip();
            let settled = swapped_pages + carrying.pages(&up);
            let busy = carrying.pages(&ups).saturating_sub(settled);
            carrying.fail_pages(&downs, busy, Direction::Demotion, FailureReason::Busy);
            carrying.fail_pages(&ups, busy, Direction::Promotion, FailureReason::Busy);
            self.one_way(carrying, down, Direction::Demotion)?;
            self.one_way(carrying, up, Direction::Promotion)?;
        }
        Ok(())
    }

    /// Charges processor time of the thread that tracks and moves. A program on its core waits.
    pub(super) fn charge(&mut self, cost: Picoseconds) {
        self.daemon_now += cost;
        let core = self.daemon_core;
        let runs = |p: &&mut super::program::Program| {
            p.phase == Phase::Running && p.own_cores.contains(&core)
        };
        if let Some(program) = self.programs.iter_mut().find(runs) {
            let before = self.node.core(core).now();
            self.node.core_mut(core).wait_until(before.max(self.daemon_now - cost) + cost);
            program.counts.migration_ps += self.node.core(core).now().since(before).0;
        }
    }

    /// The processors that run the program drop translations for a move; the thread that moves waits.
    pub(super) fn shoot_down(&mut self, program: usize, shootdown: &Shootdown) {
        self.drop_translations(program, shootdown);
        self.members[program].cost.shootdowns += 1;
    }

    /// The processors that run the program drop translations; the thread that tracks and moves waits.
    pub(super) fn drop_translations(&mut self, program: usize, shootdown: &Shootdown) {
        let interrupted = self.interrupt(program, shootdown, self.daemon_core);
        self.programs[program].counts.migration_ps += interrupted.stopped.0;
        self.charge(shootdown.initiator(interrupted.processors));
    }

    /// Drops translations on each processor that runs the program, and interrupts those but the
    /// initiator.
    pub(super) fn interrupt(
        &mut self,
        number: usize,
        shootdown: &Shootdown,
        initiator: usize,
    ) -> Interrupted {
        let mut interrupted = Interrupted::default();
        let program = &self.programs[number];
        for &core in &program.own_cores {
            // Another program that has taken the core since has flushed it.
            if self.core_program[core] != Some(number) {
                continue;
            }
            if shootdown.full {
                self.node.flush_translations(core);
            } else {
                for range in &shootdown.ranges {
                    let start = terrace_hardware::address::VirtualAddress(range.start);
                    self.node.invalidate_range(core, start, range.size_bytes);
                }
            }
            if core == initiator {
                continue;
            }
            interrupted.processors += 1;
            if program.phase == Phase::Running {
                let now = self.node.core(core).now();
                self.node.core_mut(core).wait_until(now + shootdown.remote);
                interrupted.stopped += shootdown.remote;
            }
        }
        interrupted
    }

    /// Lets threads copy and waits for the last of them.
    pub(super) fn copy(
        &mut self,
        copies: &[Copy],
        threads: u32,
        exchange: bool,
    ) -> Result<(), MachineError> {
        let threads = (threads.max(1) as usize).min(self.copiers.len());
        // Whole pages where there are enough; else several threads share each page.
        let line = 1u64 << self.node.caches().line_bits();
        let parts = if copies.len() >= threads { 1 } else { threads.div_ceil(copies.len().max(1)) };
        let mut turn = 0;
        for copy in copies {
            let size = copy.bytes.div_ceil(parts as u64).next_multiple_of(line);
            let mut done = 0;
            while done < copy.bytes {
                let size_bytes = size.min(copy.bytes - done);
                let at = |a: PhysicalAddress| PhysicalAddress(a.0 + done);
                let transfer =
                    Transfer { from: at(copy.from), to: at(copy.to), size_bytes, exchange };
                self.copiers[turn % threads].give(self.daemon_now, transfer);
                turn += 1;
                done += size_bytes;
            }
        }
        self.advance(Until::Copied)?;
        let last = self.copiers.iter().map(|c| c.now).max().unwrap_or(self.daemon_now);
        self.daemon_now = self.daemon_now.max(last);
        Ok(())
    }

    /// The time and the cache effects of the steps after the copy, of a batch or one page of it.
    fn finish(
        &mut self,
        group: usize,
        (id, page): (MoveId, Option<VirtualRange>),
        copies: &[Copy],
        exchange: bool,
        finished: &Finished,
    ) -> Result<(), MachineError> {
        self.charge(finished.map);
        self.moved(id, page, self.daemon_now);
        self.charge(finished.free);
        for copy in copies {
            self.forget_lines(copy.from, copy.bytes);
            if exchange {
                self.forget_lines(copy.to, copy.bytes);
            }
        }
        self.members[group].cost.migrated_bytes += finished.bytes;
        self.table_moves(group, finished)
    }

    /// Page-table pages that follow their data (Radiant paper, algorithm 1): copied, switched,
    /// flushed.
    fn table_moves(&mut self, group: usize, finished: &Finished) -> Result<(), MachineError> {
        self.charge(finished.tables);
        for table in &finished.table_moves {
            let bytes = PageSize::Base.bytes();
            self.copy(&[Copy { from: table.from, to: table.to, bytes }], 1, false)?;
            if let Some(moved) = self.os.finish_table_move(table.id) {
                self.charge(moved.cost);
                self.shoot_down(group, &moved.shootdown);
            }
            self.forget_lines(table.from, bytes);
        }
        Ok(())
    }

    /// Removes lines from the caches whose memory content has moved.
    pub(super) fn forget_lines(&mut self, start: PhysicalAddress, size_bytes: u64) {
        let bits = self.node.caches().line_bits();
        let first = terrace_hardware::address::LineAddress(start.0 >> bits);
        self.node.caches_mut().invalidate_lines(first, size_bytes >> bits);
    }
}

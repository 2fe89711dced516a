//! A group for the engine: a tracker and a mover.

use std::sync::{Arc, Mutex};

use terrace_core::interfaces::{MachineError, Mover, Observation, Tracker};
use terrace_core::page::{Layout, PageSize};
use terrace_core::plan::{Outcome, Plan};
use terrace_core::scan::Scan;
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::PageTable;
use terrace_os::config::Node;
use terrace_os::counters::TableMoveCounts;

use super::config::ReferenceGroup;
use super::counts::Counts;
use super::machine::{ReferenceMachine, State, Until, lock};
use super::program::Phase;

/// The cost of a span of time for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeriodCost {
    /// Time and references.
    pub counts: Counts,
    /// Bytes copied for its moves.
    pub migrated_bytes: u64,
    /// Shootdowns for its moves.
    pub shootdowns: u64,
    /// Page-table pages in the fast tier, at the end.
    pub fast_table_pages: u64,
    /// Page-table pages elsewhere, at the end.
    pub slow_table_pages: u64,
    /// Outcomes for its leaf tables when its data moved (Radiant paper, algorithm 1).
    pub table_moves: TableMoveCounts,
    /// Pages demoted in the background, which are in no plan.
    pub background_demoted_pages: u64,
}

/// The machine's record of a group beside its program.
pub(super) struct Member {
    config: ReferenceGroup,
    /// Fast-memory limit when all of its memory is mapped, as far as that is known.
    whole_limit_bytes: u64,
    /// The next period to be reported.
    next_period: u64,
    /// The last scan has been reported.
    ended: bool,
    /// The scan of the period in which its program ended, taken before its memory was freed.
    last: Option<Taken>,
    /// Sums since the beginning.
    pub(super) cost: PeriodCost,
    /// Sums up to the last reported period, and the cost of that period.
    reported: PeriodCost,
    period: PeriodCost,
    untracked_bytes: u64,
    /// Lines read from each page in the last period, where pages are counted.
    page_reads: Vec<u64>,
    /// The address at which collapsing continues.
    pub(super) collapse_from: u64,
    /// The page at which background demotion continues.
    pub(super) demote_from: usize,
    /// Whether background demotion is under way.
    pub(super) is_demoting: bool,
}

/// A scan's content without its number.
struct Taken {
    scan: Scan,
    untracked_bytes: u64,
}

impl Member {
    pub(super) fn new(config: ReferenceGroup, whole_limit_bytes: u64) -> Self {
        Member {
            config,
            whole_limit_bytes,
            next_period: 0,
            ended: false,
            last: None,
            cost: PeriodCost::default(),
            reported: PeriodCost::default(),
            period: PeriodCost::default(),
            untracked_bytes: 0,
            page_reads: Vec::new(),
            collapse_from: 0,
            demote_from: 0,
            is_demoting: false,
        }
    }

    pub(super) fn has_hard_tables(&self) -> bool {
        self.config.tables.hard
    }

    pub(super) fn page_size(&self) -> PageSize {
        self.config.page_size
    }

    pub(super) fn start_ns(&self) -> u64 {
        self.config.start_ns
    }
}

impl State {
    /// Reads and clears the accessed bits of a group.
    fn take_scan(&mut self, group: usize) -> Taken {
        let program = &self.programs[group];
        let space = program.space;
        let page_size = self.members[group].page_size();
        let accessed_scan = self.os.scan_accessed(space, page_size, true);
        self.charge(accessed_scan.cost);
        if self.config.options.flush_on_scan {
            let shootdown = self.os.flush(space);
            self.drop_translations(group, &shootdown);
        }
        let layout = accessed_scan.layout;
        // A program that has touched a part of its memory has the limit of the whole.
        let member = &self.members[group];
        let limit = (member.config.fast_budget)(&layout) * page_size.bytes();
        self.os.set_fast_limit(space, limit.max(member.whole_limit_bytes));
        let number = self.members[group].next_period;
        let mut scan = Scan::new(number, layout, accessed_scan.accessed, accessed_scan.fast);
        if self.members[group].config.needs_frames || self.frames.are_counted() {
            let frames = self.frames_of(group, &scan.layout);
            let base_pages = page_size.bytes() / PageSize::Base.bytes();
            let reads = frames.iter().map(|f| self.frames.take(f * base_pages, base_pages));
            self.members[group].page_reads = reads.collect();
            scan = scan.with_frames(frames);
        }
        let progress = self.progress(group);
        let counters = self.meters[group].tell(progress, space, &scan.layout);
        let scan = scan.with_counters(Arc::new(counters));
        Taken { scan, untracked_bytes: accessed_scan.untracked_bytes }
    }

    /// The frame of every page of a group, in frames of the page's size.
    pub(super) fn frames_of(&self, group: usize, layout: &Layout) -> Arc<[u64]> {
        let space = self.programs[group].space;
        let page_size = layout.page_size();
        let mut frames = vec![0; layout.pages()];
        for node in 0..self.os.nodes() {
            for (frame, owner, address, size) in self.os.physical_order(Node(node as u8), None) {
                if owner == space
                    && size == page_size
                    && let Some(page) = layout.index(space, address)
                {
                    frames[page] = frame.0 / page_size.bytes();
                }
            }
        }
        frames.into()
    }

    /// The program is about to lose its memory: its last accesses are kept.
    pub(super) fn keep_last(&mut self, group: usize) {
        let taken = self.take_scan(group);
        self.note_tables(group);
        self.members[group].last = Some(taken);
    }

    /// Whether a group's program has ended and its memory is freed.
    pub(super) fn has_ended(&self, group: usize) -> bool {
        matches!(self.programs[group].phase, Phase::Ended(_))
    }

    /// Records where a group's page-table pages are, and their moves.
    fn note_tables(&mut self, group: usize) {
        let (fast, slow) = self.tables(group);
        let cost = &mut self.members[group].cost;
        (cost.fast_table_pages, cost.slow_table_pages) = (fast, slow);
        cost.table_moves = self.os.table_moves(self.programs[group].space);
    }

    /// Page-table pages of a group: in the fast tier, elsewhere.
    fn tables(&self, group: usize) -> (u64, u64) {
        let by_node = self.os.table_pages(self.programs[group].space);
        let sum = |levels: &[u64]| levels.iter().sum::<u64>();
        let fast = by_node.first().map_or(0, |levels| sum(levels));
        (fast, by_node.iter().skip(1).map(|levels| sum(levels)).sum())
    }

    /// Runs a program for so many references more, without moves.
    fn run_references(
        &mut self,
        group: usize,
        references: u64,
        scan: bool,
    ) -> Result<Work, MachineError> {
        let before = self.programs[group].latest(&self.node);
        let counts = self.programs[group].counts;
        let program = &mut self.programs[group];
        program.pause_at = counts.references + references;
        if program.phase == Phase::Paused {
            program.phase = Phase::Running;
        }
        self.advance(Until::Time(Picoseconds(u64::MAX)))?;
        let ended = matches!(self.programs[group].phase, Phase::Ended(_));
        let took = self.programs[group].latest(&self.node).since(before);
        let scan = match self.members[group].last.take() {
            _ if !scan => None,
            Some(last) => Some(last),
            None => Some(self.take_scan(group)),
        };
        let program = &self.programs[group];
        Ok(Work {
            scan: scan.map(|taken| taken.scan),
            page_reads: self.members[group].page_reads.clone(),
            references: program.counts.references - counts.references,
            took,
            ended,
        })
    }

    fn observe(&mut self, group: usize) -> Result<Observation, MachineError> {
        if self.members[group].ended {
            return Ok(Observation::Ended);
        }
        if self.members[group].next_period == self.periods {
            self.period_end += Picoseconds::from_ns(self.config.period_ns);
            if self.config.options.finish_moves {
                // The thread that scans also moves: the period lasts until it is done.
                self.period_end = self.period_end.max(self.daemon_now);
            }
            self.advance(Until::Time(self.period_end))?;
            self.periods += 1;
            self.daemon_now = self.daemon_now.max(self.period_end);
        }
        if !self.has_ended(group) {
            // Programs run on while pages are copied: it may have ended after this.
            self.collapse(group)?;
        }
        let over = self.has_ended(group);
        let taken = match self.members[group].last.take() {
            Some(last) => last,
            None if over => {
                self.members[group].ended = true;
                return Ok(Observation::Ended);
            }
            None => {
                let mut taken = self.take_scan(group);
                self.demote_in_background(group, &mut taken.scan)?;
                // It may have ended meanwhile: the period has one scan all the same.
                self.members[group].last = None;
                taken
            }
        };
        if !self.has_ended(group) {
            self.note_tables(group);
        }
        let counts = self.programs[group].counts;
        let member = &mut self.members[group];
        member.next_period = self.periods;
        member.untracked_bytes = taken.untracked_bytes;
        member.cost.counts = counts;
        let (cost, before) = (member.cost, member.reported);
        member.period = PeriodCost {
            counts: cost.counts - before.counts,
            migrated_bytes: cost.migrated_bytes - before.migrated_bytes,
            shootdowns: cost.shootdowns - before.shootdowns,
            table_moves: cost.table_moves - before.table_moves,
            background_demoted_pages: cost.background_demoted_pages
                - before.background_demoted_pages,
            ..cost
        };
        member.reported = cost;
        Ok(Observation::Period(taken.scan))
    }
}

/// The counts of a program over so many references.
#[derive(Debug, Clone)]
pub struct Work {
    /// The program's pages, the accessed ones and their placement, if requested. Reading accessed
    /// bits drops the translations.
    pub scan: Option<Scan>,
    /// Lines read from each page; empty unless reads are counted by page.
    pub page_reads: Vec<u64>,
    /// Loads and stores.
    pub references: u64,
    /// Simulated time taken.
    pub took: Picoseconds,
    /// The program has ended; it is not run again.
    pub ended: bool,
}

impl ReferenceMachine {
    /// Runs the program of a group, the only one on the machine, for so many references more,
    /// without moves; with `scan` its accessed bits are read and cleared then.
    pub fn run_references(
        &self,
        group: usize,
        references: u64,
        scan: bool,
    ) -> Result<Work, MachineError> {
        lock(&self.state).run_references(group, references, scan)
    }

    /// Runs the program of a group, the only one on the machine, for so many references more in
    /// functional simulation: caches, TLBs and page tables change, and page faults are served, but
    /// the references take no time and their traffic is not counted.
    pub fn warm_references(&self, group: usize, references: u64) -> Result<Work, MachineError> {
        let state = &mut *lock(&self.state);
        state.programs[group].is_warming = true;
        let work = state.run_references(group, references, false);
        state.programs[group].is_warming = false;
        work
    }

    /// Fills the last level with lines of a group's program, by their virtual addresses, each with
    /// whether it is dirty, in the order of their use. Those that are not mapped are left out.
    pub fn fill_last_level(&self, group: usize, lines: impl Iterator<Item = (u64, bool)>) {
        let state = &mut *lock(&self.state);
        let space = state.os.space_mut(state.programs[group].space);
        let bits = state.node.caches().line_bits();
        // The page of the last line, and its frame: lines of a page often follow one another.
        let (mut page, mut frame) = (u64::MAX, None);
        let physical = lines.filter_map(|(address, is_dirty)| {
            if address / PageSize::Base.bytes() != page {
                page = address / PageSize::Base.bytes();
                let leaf = space.path(VirtualAddress(address)).leaf;
                let offset = address & !(PageSize::Base.bytes() - 1);
                frame = leaf.map(|leaf| leaf.frame.0 | offset & (leaf.size.bytes() - 1));
            }
            let in_page = address & (PageSize::Base.bytes() - 1);
            Some((PhysicalAddress(frame? | in_page).line(bits), is_dirty))
        });
        let physical: Vec<_> = physical.collect();
        state.node.caches_mut().fill_shared(&physical);
    }

    /// The cost of the last observed period for a group.
    pub fn period_cost(&self, group: usize) -> PeriodCost {
        lock(&self.state).members[group].period
    }

    /// Lines read from each page of a group in the last observed period, by the scan's numbers;
    /// empty unless [`ReferenceMachine::count_pages`] was called before. For a page that was moved
    /// in that period, the reads from its new place.
    pub fn page_reads(&self, group: usize) -> Vec<u64> {
        lock(&self.state).members[group].page_reads.clone()
    }

    /// The cost of everything so far for a group.
    pub fn total_cost(&self, group: usize) -> PeriodCost {
        let state = lock(&self.state);
        PeriodCost { counts: state.programs[group].counts, ..state.members[group].cost }
    }

    /// Run time of a group's program; `None` while it runs.
    pub fn duration(&self, group: usize) -> Option<Picoseconds> {
        let started = Picoseconds::from_ns(lock(&self.state).members[group].config.start_ns);
        self.ended_at(group).map(|end| end.since(started))
    }

    /// Whether a program was ended before it ended by itself, at its group's `stop_ns` or after the
    /// start-up of another.
    pub fn was_stopped(&self, group: usize) -> bool {
        lock(&self.state).programs[group].was_stopped
    }
}

/// Lets time pass and reports the pages that a group accessed.
pub struct ReferenceTracker {
    state: Arc<Mutex<State>>,
    group: usize,
}

impl ReferenceTracker {
    pub(super) fn new(state: Arc<Mutex<State>>, group: usize) -> Self {
        ReferenceTracker { state, group }
    }
}

impl Tracker for ReferenceTracker {
    fn name(&self) -> &'static str {
        "accessed bits"
    }

    fn observe(&mut self) -> Result<Observation, MachineError> {
        lock(&self.state).observe(self.group)
    }

    fn untracked_bytes(&self) -> Option<u64> {
        Some(lock(&self.state).members[self.group].untracked_bytes)
    }
}

/// Moves the pages of a group.
pub struct ReferenceMover {
    state: Arc<Mutex<State>>,
    group: usize,
}

impl ReferenceMover {
    pub(super) fn new(state: Arc<Mutex<State>>, group: usize) -> Self {
        ReferenceMover { state, group }
    }
}

impl Mover for ReferenceMover {
    fn name(&self) -> &'static str {
        "operating system"
    }

    fn apply(&mut self, plan: &Plan) -> Result<Outcome, MachineError> {
        lock(&self.state).apply(self.group, plan)
    }
}

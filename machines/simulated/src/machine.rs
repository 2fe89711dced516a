//! The machine and its groups: each with a source of accessed pages, a placement, and a share of
//! two tiers. The engine uses a tracker and a mover per group.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand_pcg::Pcg64;
use terrace_core::interfaces::{MachineError, Mover, Observation, Tracker};
use terrace_core::page::{Layout, PageSize, VirtualRange};
use terrace_core::plan::{Outcome, Plan};
use terrace_core::policy::Allocation;
use terrace_core::scan::Scan;
use terrace_os::OsConfig;
use terrace_recordings::source::{PeriodAccesses, PeriodSource, SourceError};

use crate::frames::{Frames, GroupFrames};
use crate::meter::Sampling;
use crate::migration::{BusyPages, Migration};
use crate::placement::{OutOfMemory, Placement};
use crate::tiers::{TierUse, Tiers};
use crate::timed::{IntervalSource, Timed};

/// A two-tier machine.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineConfig {
    /// Size of the fast tier, in bytes.
    pub fast_bytes: u64,
    /// Size of the slow tier, in bytes.
    pub slow_bytes: u64,
    /// Length of a period, in ms.
    pub period_ms: u64,
    /// The part of moves, 0 to 1, that fail because another holder has the page; a fresh draw for
    /// each page of each plan.
    pub busy_rate: f64,
    /// Seed of these draws.
    pub seed: u64,
    /// Sampling of groups that are played by the intervals of a profile.
    pub sampling: Sampling,
}

impl MachineConfig {
    /// A machine of these tiers, on which no page is ever busy.
    pub fn new(fast_bytes: u64, slow_bytes: u64, period_ms: u64) -> Self {
        let sampling = Sampling::default();
        MachineConfig { fast_bytes, slow_bytes, period_ms, busy_rate: 0.0, seed: 0, sampling }
    }
}

/// Fast memory that a group may use, in pages of this layout. The same rule that gives the
/// engine the budget of its plans.
pub type FastBudget = Box<dyn Fn(&Layout) -> u64 + Send>;

/// A group on the machine.
pub struct GroupConfig {
    /// The group's name, for messages.
    pub name: String,
    /// Size of the group's pages.
    pub page_size: PageSize,
    /// Placement of new pages: set by the group's policy.
    pub allocation: Allocation,
    /// Fast-memory limit of the group: allocation fills it, promotions stop at it.
    pub fast_budget: FastBudget,
    /// Placement of the group's pages before the first period: from a recording, say. Pages of the
    /// first period that are not in it are allocated.
    pub initial: Option<Placement>,
}

/// The source of a group's accesses.
enum Source {
    /// Pages by period.
    Periods(Box<dyn PeriodSource>),
    /// Intervals of a profile, whose time depends on the placement.
    Timed(Box<Timed>),
}

struct GroupState {
    config: GroupConfig,
    source: Source,
    placement: Placement,
    next_period: u64,
    ended: bool,
    busy: BusyPages,
    /// Frames, for a policy that scans physical memory.
    frames: Option<GroupFrames>,
}

struct State {
    tiers: Tiers,
    frames: Frames,
    groups: Vec<GroupState>,
}

/// The machine. Clones share its state.
#[derive(Clone)]
pub struct Machine {
    config: Arc<MachineConfig>,
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// A machine without groups.
    pub fn new(config: MachineConfig) -> Result<Self, MachineError> {
        if !(0.0..=1.0).contains(&config.busy_rate) {
            return Err(MachineError(format!(
                "busy_rate is {}, expected 0 to 1: the part of moves that fail",
                config.busy_rate
            )));
        }
        if config.period_ms == 0 {
            return Err(MachineError("period_ms is 0, expected at least 1".to_owned()));
        }
        let (fast, slow) = (TierUse::new(config.fast_bytes), TierUse::new(config.slow_bytes));
        let tiers = Tiers { fast, slow };
        let state = State { tiers, frames: Frames::default(), groups: Vec::new() };
        Ok(Machine { config: Arc::new(config), state: Arc::new(Mutex::new(state)) })
    }

    /// Adds a group; its time starts with the first period of its source.
    pub fn add_group(
        &self,
        config: GroupConfig,
        source: Box<dyn PeriodSource>,
    ) -> Result<(SimulatedTracker, SimulatedMover), MachineError> {
        self.add(config, Source::Periods(source))
    }

    /// Adds a group that is played by the intervals of a profile, which gives its run time. Moves
    /// cost it the time of this operating system's steps.
    pub fn add_timed_group(
        &self,
        config: GroupConfig,
        intervals: Box<dyn IntervalSource>,
        os: &OsConfig,
    ) -> Result<(SimulatedTracker, SimulatedMover), MachineError> {
        let timed = Timed::new(intervals, os, self.config.period_ms, self.config.sampling);
        let timed = timed.map_err(|e| MachineError(format!("group '{}': {e}", config.name)))?;
        self.add(config, Source::Timed(Box::new(timed)))
    }

    /// Run time of a timed group, and its run time with all memory fast, in ps; `None` before its
    /// end, and for other groups.
    pub fn duration_ps(&self, group: usize) -> Option<(u64, u64)> {
        match &lock(&self.state).groups[group].source {
            Source::Timed(timed) => timed.duration_ps(),
            Source::Periods(_) => None,
        }
    }

    /// [`Self::duration_ps`] for the part that has run so far.
    pub fn so_far_ps(&self, group: usize) -> Option<(u64, u64)> {
        match &lock(&self.state).groups[group].source {
            Source::Timed(timed) => Some(timed.so_far_ps()),
            Source::Periods(_) => None,
        }
    }

    fn add(
        &self,
        config: GroupConfig,
        source: Source,
    ) -> Result<(SimulatedTracker, SimulatedMover), MachineError> {
        let state = &mut *lock(&self.state);
        let placement = match &config.initial {
            None => Placement::empty(config.page_size),
            Some(initial) => {
                check_page_size(&config, initial.layout.page_size(), "initial placement")?;
                check_bits(&config, initial.fast.len(), &initial.layout, "initial placement")?;
                initial
                    .occupy(&mut state.tiers)
                    .map_err(|e| out_of_memory(&config, "initial placement", e, &state.tiers))?;
                initial.clone()
            }
        };
        let number = state.groups.len();
        let random = Pcg64::new(self.config.seed.into(), number as u128);
        state.groups.push(GroupState {
            config,
            source,
            placement,
            next_period: 0,
            ended: false,
            busy: BusyPages::new(self.config.busy_rate, random),
            frames: None,
        });
        let state = &self.state;
        Ok((
            SimulatedTracker { state: state.clone(), group: number },
            SimulatedMover { state: state.clone(), group: number },
        ))
    }

    /// Length of a period.
    pub fn period_ms(&self) -> u64 {
        self.config.period_ms
    }

    /// Use of the fast and of the slow tier.
    pub fn tiers(&self) -> (TierUse, TierUse) {
        let tiers = lock(&self.state).tiers;
        (tiers.fast, tiers.slow)
    }

    /// The placements of the groups now, in the order in which the groups were added.
    pub fn placements(&self) -> Vec<Placement> {
        lock(&self.state).groups.iter().map(|g| g.placement.clone()).collect()
    }
}

fn check_page_size(config: &GroupConfig, got: PageSize, what: &str) -> Result<(), MachineError> {
    if got == config.page_size {
        return Ok(());
    }
    Err(MachineError(format!(
        "group '{}': its {what} has pages of {} bytes, expected {}; give both the same page size",
        config.name,
        got.bytes(),
        config.page_size.bytes()
    )))
}

fn check_bits(
    config: &GroupConfig,
    bits: usize,
    layout: &Layout,
    what: &str,
) -> Result<(), MachineError> {
    if bits == layout.pages() {
        return Ok(());
    }
    Err(MachineError(format!(
        "group '{}': its {what} has {bits} bits for {} pages; this is a defect of who made it",
        config.name,
        layout.pages()
    )))
}

fn out_of_memory(
    config: &GroupConfig,
    what: &str,
    missing: OutOfMemory,
    tiers: &Tiers,
) -> MachineError {
    MachineError(format!(
        "group '{}': no memory for {} pages of {} bytes of its {what} (fast tier {} of {} bytes in \
         use, slow tier {} of {}); give the machine more slow memory",
        config.name,
        missing.pages,
        config.page_size.bytes(),
        tiers.fast.used_bytes,
        tiers.fast.capacity_bytes,
        tiers.slow.used_bytes,
        tiers.slow.capacity_bytes,
    ))
}

impl GroupState {
    fn observe(
        &mut self,
        tiers: &mut Tiers,
        frames: &mut Frames,
    ) -> Result<Observation, MachineError> {
        if self.ended {
            return Ok(Observation::Ended);
        }
        let next = self.next_period(tiers)?;
        let config = &self.config;
        let Some(period) = next else {
            self.ended = true;
            self.placement.vacate(tiers);
            if let Some(group) = &mut self.frames {
                group.follow(&self.placement, frames);
            }
            return Ok(Observation::Ended);
        };
        check_page_size(config, period.layout.page_size(), "workload")?;
        check_bits(config, period.accessed.len(), &period.layout, "workload")?;
        let budget = (config.fast_budget)(&period.layout);
        let allocated =
            self.placement.follow(&period.layout, config.allocation, budget, None, tiers);
        allocated.map_err(|e| out_of_memory(config, "workload", e, tiers))?;

        let number = self.next_period + u64::from(period.lost_periods);
        self.next_period = number + 1;
        let fast = self.placement.fast.clone();
        let mut scan = Scan::new(number, period.layout, period.accessed, fast);
        if let Some(group) = &mut self.frames {
            scan = scan.with_frames(group.follow(&self.placement, frames));
        }
        if let Source::Timed(timed) = &mut self.source {
            let counters = timed.counters(&scan.layout);
            scan = scan.with_counters(Arc::new(counters));
        }
        Ok(Observation::Period(Scan { lost_periods: period.lost_periods, ..scan }))
    }

    fn next_period(&mut self, tiers: &mut Tiers) -> Result<Option<PeriodAccesses>, MachineError> {
        let GroupState { config, source, placement, .. } = self;
        let failed = |e: SourceError| MachineError(format!("group '{}': {e}", config.name));
        match source {
            Source::Periods(source) => source.next_period().map_err(failed),
            Source::Timed(timed) => timed
                .next_period(|interval| {
                    let layout = &interval.layout;
                    let page_size = layout.page_size();
                    let checked = check_page_size(config, page_size, "profile");
                    checked.map_err(|e| SourceError(e.0))?;
                    let budget = (config.fast_budget)(layout);
                    let followed = placement.follow(
                        layout,
                        config.allocation,
                        budget,
                        Some(&interval.fresh),
                        tiers,
                    );
                    followed
                        .map_err(|e| SourceError(out_of_memory(config, "profile", e, tiers).0))?;
                    Ok(placement.fast.clone())
                })
                .map_err(|e: SourceError| MachineError(e.0)),
        }
    }

    fn apply(&mut self, plan: &Plan, tiers: &mut Tiers) -> Result<Outcome, MachineError> {
        let page_bytes = self.config.page_size.bytes();
        let whole = |bytes: u64| bytes.is_multiple_of(page_bytes);
        let unaligned = |r: &&VirtualRange| !whole(r.start) || !whole(r.size_bytes);
        let pairs = plan.exchanges.iter().flat_map(|e| [&e.up, &e.down]);
        let mut ranges = plan.promotions.iter().chain(&plan.demotions).chain(pairs);
        if let Some(range) = ranges.find(unaligned) {
            return Err(MachineError(format!(
                "group '{}': the plan has {} bytes at {:#x}, expected whole pages of {page_bytes} bytes",
                self.config.name, range.size_bytes, range.start
            )));
        }
        let budget = (self.config.fast_budget)(&self.placement.layout);
        let page_size = self.config.page_size;
        let (placement, busy) = (&mut self.placement, &mut self.busy);
        let mut run =
            |plan, exchanges| Migration::new(placement, tiers, budget, busy, plan, exchanges).run();
        match &mut self.source {
            Source::Periods(_) => Ok(run(plan, true)),
            Source::Timed(timed) => {
                let (plan, late) = timed.in_time(plan, page_size);
                let mut outcome = run(&plan, timed.exchanges());
                timed.pay(&outcome, page_size);
                outcome.failures.extend(late);
                Ok(outcome)
            }
        }
    }
}

/// Lets the time of one group pass and reports the accessed pages.
pub struct SimulatedTracker {
    state: Arc<Mutex<State>>,
    group: usize,
}

impl SimulatedTracker {
    /// From the next scan on, reports the frame of every page: for a policy that needs frames.
    /// Takes memory and time in proportion to the pages.
    pub fn tell_frames(&mut self) {
        let group = &mut lock(&self.state).groups[self.group];
        let page_size = group.config.page_size;
        group.frames.get_or_insert_with(|| GroupFrames::new(page_size));
    }
}

impl Tracker for SimulatedTracker {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn observe(&mut self) -> Result<Observation, MachineError> {
        let State { tiers, frames, groups } = &mut *lock(&self.state);
        groups[self.group].observe(tiers, frames)
    }

    fn untracked_bytes(&self) -> Option<u64> {
        Some(0)
    }
}

/// Moves the pages of one group.
pub struct SimulatedMover {
    state: Arc<Mutex<State>>,
    group: usize,
}

impl Mover for SimulatedMover {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn apply(&mut self, plan: &Plan) -> Result<Outcome, MachineError> {
        let State { tiers, groups, .. } = &mut *lock(&self.state);
        groups[self.group].apply(plan, tiers)
    }
}

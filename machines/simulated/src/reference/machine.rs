//! The machine: programs on cores over an operating system, and the passing of time among them.
//!
//! The agent that is furthest behind runs next, for a quantum beyond the next one: programs, and
//! threads that copy pages. So bandwidth and shared caches are contended for in time order, and the
//! same inputs give the same order.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrace_core::interfaces::MachineError;
use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_hardware::node::Node;
use terrace_hardware::tier::memory::TieredMemory;
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::Fault;
use terrace_os::fault::{FaultKind, FaultOutcome};
use terrace_os::moves::MoveId;
use terrace_os::{Os, OsError, Unmapped};

use super::config::{ReferenceConfig, ReferenceGroup};
use super::copy::{Copier, Rates};
use super::counts::Counts;
use super::group::{Member, ReferenceMover, ReferenceTracker};
use super::meter::{Progress, ReadMeter};
use super::port::{FrameReads, Port};
use super::program::{Phase, Program, Stop};
use super::source::{ReferenceSource, Silent, Step};
use super::system;
use terrace_core::sample_picker::SamplePicker;

/// A machine at trace fidelity. Clones share its state.
#[derive(Clone)]
pub struct ReferenceMachine {
    pub(super) state: Arc<Mutex<State>>,
}

/// The state of the machine.
pub(super) struct State {
    pub(super) config: ReferenceConfig,
    pub(super) node: Node,
    pub(super) memory: TieredMemory,
    pub(super) frames: FrameReads,
    pub(super) os: Os,
    pub(super) programs: Vec<Program>,
    /// Counters and samples of each program.
    pub(super) meters: Vec<ReadMeter>,
    pub(super) members: Vec<Member>,
    pub(super) copiers: Vec<Copier>,
    /// By core: the number of the program whose translations it holds.
    pub(super) core_program: Vec<Option<usize>>,
    /// Whether two programs share a core.
    shared_cores: bool,
    /// Turns of programs so far, where some share a core.
    turns: u64,
    next_core: usize,
    /// The core of tracking and moving, and its current time.
    pub(super) daemon_core: usize,
    pub(super) daemon_now: Picoseconds,
    /// Periods completed, and the end of the last one.
    pub(super) periods: u64,
    pub(super) period_end: Picoseconds,
}

pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReferenceMachine {
    /// A machine without programs; an error in one line if it cannot work.
    pub fn new(config: ReferenceConfig) -> Result<Self, MachineError> {
        let machine_error = |e: terrace_hardware::error::ConfigError| MachineError(e.to_string());
        if config.period_ns == 0 {
            return Err(MachineError("the period is 0 ns, expected at least 1".into()));
        }
        if config.hardware.tiers.len() < 2 {
            return Err(MachineError(
                "the machine has one tier, expected two: a fast one and a slow one".into(),
            ));
        }
        let memory = TieredMemory::new(&config.hardware.tiers).map_err(machine_error)?;
        let node = Node::new(&config.hardware.node).map_err(machine_error)?;
        let os = system::new(&config, &memory)?;
        let cores = node.cores();
        let line_bytes = 1 << node.caches().line_bits();
        let outstanding = config.hardware.node.core.outstanding_misses;
        let threads = (config.os.migration.threads.max(1) as usize).min(cores);
        let rates = Rates {
            copy_gb_per_s: os.costs().copy_gb_per_s,
            exchange_gb_per_s: os.costs().exchange_gb_per_s,
        };
        // From the last core downwards: programs take cores from the first one upwards.
        let copiers = (0..threads)
            .map(|n| Copier::new(cores - 1 - n, n, outstanding, line_bytes, rates))
            .collect();
        let state = State {
            core_program: vec![None; cores],
            shared_cores: false,
            turns: 0,
            next_core: 0,
            daemon_core: cores - 1,
            daemon_now: Picoseconds::ZERO,
            periods: 0,
            period_end: Picoseconds::ZERO,
            frames: FrameReads::default(),
            programs: Vec::new(),
            meters: Vec::new(),
            members: Vec::new(),
            config,
            node,
            memory,
            os,
            copiers,
        };
        Ok(ReferenceMachine { state: Arc::new(Mutex::new(state)) })
    }

    /// Counts reads by page from now on, for [`ReferenceMachine::page_reads`].
    pub fn count_pages(&self) {
        let state = &mut *lock(&self.state);
        let bytes = state.config.hardware.tiers.iter().map(|t| t.capacity.0).sum();
        state.frames = FrameReads::new(bytes);
    }

    /// Adds a program as a group. Its threads get the cores after those of the programs before;
    /// when all are taken, cores are shared.
    pub fn add_group(
        &self,
        group: ReferenceGroup,
        source: Box<dyn ReferenceSource>,
    ) -> Result<(ReferenceTracker, ReferenceMover), MachineError> {
        let state = &mut *lock(&self.state);
        let number = state.programs.len();
        let total = state.node.cores();
        let threads = source.threads().max(1);
        let cores: Vec<usize> =
            (0..threads.min(total)).map(|n| (state.next_core + n) % total).collect();
        state.next_core += cores.len();
        state.shared_cores |= state.next_core > total;
        if cores.len() > 1 {
            // Its threads are some way behind one another (`skew_ns`): one that is late must not
            // wait for what another asked for at a later time.
            state.memory = state.memory.clone().far_out_of_order();
        }
        let footprint_bytes = source.footprint_bytes();
        let (space, fast_limit_bytes) =
            system::create_process(&mut state.os, &group, footprint_bytes)?;
        let at = |ns: u64| Picoseconds::from_ns(ns);
        let (start, stop) = (at(group.start_ns), group.stop_ns.map(at));
        let name = group.name.clone();
        let mut program = Program::new(name, space, source, cores, start, stop);
        program.stop_after_start_up_of = group.stop_after_start_up_of.clone();
        state.programs.push(program);
        // A seed per program, so that programs are not sampled in step.
        let seed = state.config.sample_seed.wrapping_add(number as u64);
        let sampler = SamplePicker::new(state.config.reads_per_sample, seed);
        state.meters.push(ReadMeter::new(sampler));
        state.members.push(Member::new(group, fast_limit_bytes.unwrap_or(0)));
        let state = self.state.clone();
        Ok((ReferenceTracker::new(state.clone(), number), ReferenceMover::new(state, number)))
    }

    /// The cost of a program so far.
    pub fn counts(&self, group: usize) -> Counts {
        lock(&self.state).programs[group].counts
    }

    /// When a program ended; `None` while it runs.
    pub fn ended_at(&self, group: usize) -> Option<Picoseconds> {
        match lock(&self.state).programs[group].phase {
            Phase::Ended(at) => Some(at),
            _ => None,
        }
    }

    /// Memory that a group's program touches in all, as far as that is known beforehand.
    pub fn footprint_bytes(&self, group: usize) -> Option<u64> {
        lock(&self.state).programs[group].source.footprint_bytes()
    }

    /// How a program was killed, if it was.
    pub fn killed(&self, group: usize) -> Option<Killed> {
        lock(&self.state).programs[group].killed
    }

    /// How many cores a program runs on.
    pub fn cores(&self, group: usize) -> usize {
        lock(&self.state).programs[group].own_cores.len().max(1)
    }

    /// Runs every program to its end without tracking or moving anything: the base of a slowdown.
    pub fn run_to_end(&self) -> Result<(), MachineError> {
        lock(&self.state).advance(Until::Time(Picoseconds(u64::MAX)))
    }

    /// The operating system's counters.
    pub fn os_counters(&self) -> terrace_os::counters::Counters {
        lock(&self.state).os.counters().clone()
    }

    /// Recounts everything that the operating system counts, and compares the bytes that threads
    /// copied with the bytes it ordered; reports the differences.
    pub fn check(&self) -> Result<(), String> {
        let state = lock(&self.state);
        state.os.check()?;
        let counters = state.os.counters();
        let tables = counters.table_moves.successful * PageSize::Base.bytes();
        let expected = counters.copied_bytes + counters.collapse_copied_bytes + tables;
        let copied: u64 = state.copiers.iter().map(Copier::copied_bytes).sum();
        if copied == expected {
            Ok(())
        } else {
            Err(format!("{copied} bytes were copied, expected {expected}"))
        }
    }
}

/// A program was killed because memory had run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Killed {
    /// Time of the kill, since the program's start.
    pub at: Picoseconds,
    /// Bytes free outside the fast tier at that time.
    pub free_slow_bytes: u64,
    /// Allocations that found no node above its low watermark, of all programs.
    pub slow_allocations: u64,
    /// The longest allocation of a page-table page, of all programs.
    pub longest_allocation: Picoseconds,
    /// Passes of direct reclaim, of all programs.
    pub reclaim_passes: u64,
}

/// How far time is to pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// Up to this time.
    Time(Picoseconds),
    /// Until no copying thread has work left.
    Copied,
}

/// A program or a copying thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Agent {
    Program(usize),
    Copier(usize),
}

impl State {
    /// Lets time pass.
    pub(super) fn advance(&mut self, until: Until) -> Result<(), MachineError> {
        let end = match until {
            Until::Time(time) => time,
            Until::Copied => Picoseconds(u64::MAX),
        };
        loop {
            if until == Until::Copied && self.copiers.iter().all(Copier::is_idle) {
                return Ok(());
            }
            let Some((agent, at, next)) = self.furthest_behind() else { return Ok(()) };
            if at >= end {
                return Ok(());
            }
            let quantum = if self.shared_cores && matches!(agent, Agent::Program(_)) {
                self.config.options.time_slice_ns
            } else {
                self.config.options.quantum_ns
            };
            let ahead = Picoseconds::from_ns(quantum.max(1));
            let horizon = next.map_or(end, |next| end.min(at.max(next) + ahead));
            match agent {
                Agent::Copier(n) => self.run_copier(n, horizon),
                Agent::Program(n) => self.run_program(n, horizon)?,
            }
        }
    }

    /// The agent with the earliest time, that time, and that of the next one.
    fn furthest_behind(&self) -> Option<(Agent, Picoseconds, Option<Picoseconds>)> {
        let programs = self.programs.iter().enumerate();
        // Programs that share a core have its time: the one that has waited for most turns is next.
        let programs = programs
            .filter_map(|(n, p)| Some((Agent::Program(n), (p.ready_at(&self.node)?, p.last_turn))));
        let copiers = self.copiers.iter().enumerate().filter(|(_, c)| !c.is_idle());
        let copiers = copiers.map(|(n, c)| (Agent::Copier(n), (c.now, u64::MAX)));
        let mut first: Option<(Agent, (Picoseconds, u64))> = None;
        let mut second: Option<Picoseconds> = None;
        for (agent, at) in programs.chain(copiers) {
            match first {
                Some((_, earliest)) if earliest <= at => {
                    second = Some(second.map_or(at.0, |s| s.min(at.0)));
                }
                _ => {
                    second = first.map(|f| f.1.0);
                    first = Some((agent, at));
                }
            }
        }
        first.map(|(agent, (at, _))| (agent, at, second))
    }

    /// How far a program has run.
    pub(super) fn progress(&self, number: usize) -> Progress {
        let program = &self.programs[number];
        let started = Picoseconds::from_ns(self.members[number].start_ns());
        let now = match program.phase {
            Phase::Before(_) => started,
            Phase::Ended(at) => at,
            _ => program.latest(&self.node).max(started),
        };
        let cores = program.own_cores.len() as u64;
        Progress { ran: now.since(started), counts: program.counts, cores }
    }

    fn run_copier(&mut self, number: usize, horizon: Picoseconds) {
        let mut port = Port::new(&mut self.memory, &mut self.frames);
        let copier = &mut self.copiers[number];
        copier.run(horizon, &mut self.node, &mut port);
        // While it copies, the program on that core does not run.
        let (core, now) = (copier.core, copier.now);
        let Some(program) = self
            .programs
            .iter()
            .position(|p| p.phase == Phase::Running && p.own_cores.contains(&core))
        else {
            return;
        };
        let before = self.node.core(core).now();
        self.node.core_mut(core).wait_until(now);
        self.programs[program].counts.migration_ps += self.node.core(core).now().since(before).0;
    }

    fn run_program(&mut self, number: usize, horizon: Picoseconds) -> Result<(), MachineError> {
        if let Phase::Before(start) = self.programs[number].phase {
            let program = &mut self.programs[number];
            program.catch_up(&mut self.node, start);
            program.phase = Phase::Running;
        }
        self.switch_to(number);
        let program = &mut self.programs[number];
        if self.shared_cores {
            self.turns += 1;
            program.last_turn = self.turns;
        }
        let stop_at = program.stop_at.unwrap_or(Picoseconds(u64::MAX));
        if program.latest(&self.node) >= stop_at {
            program.was_stopped = true;
            return self.end(number);
        }
        let horizon = horizon.min(stop_at);
        loop {
            let program = &mut self.programs[number];
            let meter = &mut self.meters[number];
            let mut port = Port::new(&mut self.memory, &mut self.frames).measured(meter);
            let stop = program.run(horizon, &mut self.node, &mut self.os, &mut port);
            self.meters[number].find_pages(program.space, &self.os);
            match stop {
                Stop::Horizon => return Ok(()),
                Stop::Fault(core, fault) => {
                    self.fault(number, core, &fault)?;
                    let program = &self.programs[number];
                    if program.phase != Phase::Running
                        || self.node.core(program.next_core()).now() > horizon
                    {
                        return Ok(());
                    }
                }
                Stop::Hungry if self.programs[number].is_at_pause() => {
                    self.programs[number].phase = Phase::Paused;
                    return Ok(());
                }
                Stop::Hungry => {
                    if self.step(number)? {
                        return Ok(());
                    }
                    let program = &self.programs[number];
                    if self.node.core(program.next_core()).now() > horizon {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Gives a program its cores, where others had them.
    fn switch_to(&mut self, number: usize) {
        for &core in &self.programs[number].own_cores {
            match self.core_program[core].replace(number) {
                Some(other) if other != number => {
                    self.node.flush_translations(core);
                    let cost = Picoseconds::from_ns(self.config.options.switch_ns);
                    let now = self.node.core(core).now();
                    self.node.core_mut(core).wait_until(now + cost);
                }
                _ => {}
            }
        }
    }

    /// Does the next step of the program's source. `true` when the program has ended.
    fn step(&mut self, number: usize) -> Result<bool, MachineError> {
        let program = &mut self.programs[number];
        let message = |e: terrace_recordings::source::SourceError| e.0;
        let name = program.name.clone();
        let failed = |message: String| MachineError(format!("group '{name}': {message}"));
        let Some(step) = program.refill(&self.node).map_err(message).map_err(&failed)? else {
            let skew = Picoseconds::from_ns(self.config.options.skew_ns);
            let latest = program.latest(&self.node);
            program.catch_up(&mut self.node, Picoseconds(latest.0.saturating_sub(skew.0)));
            return Ok(false);
        };
        let space = program.space;
        match step {
            Step::Accesses(_) => {}
            Step::Barrier => {
                let latest = program.latest(&self.node);
                program.catch_up(&mut self.node, latest);
            }
            Step::MainBegins => {
                program.is_in_main = true;
                let now = program.latest(&self.node);
                let waits = self.programs.iter_mut();
                waits.filter(|p| p.stop_after_start_up_of.as_ref() == Some(&name)).for_each(|p| {
                    p.stop_at = Some(p.stop_at.map_or(now, |at| at.min(now)));
                });
            }
            Step::Map { start, size_bytes, huge_eligible } => {
                // A mapping at the same place is replaced, as by MAP_FIXED.
                let unmapped = self.os.unmap(space, start, size_bytes);
                self.unmapped(number, unmapped.map_err(|e| failed(e.to_string()))?);
                let huge = huge_eligible && self.members[number].page_size() == PageSize::Huge;
                let mapped = self.os.map(space, start, size_bytes, huge);
                mapped.map_err(|e| failed(e.to_string()))?;
            }
            Step::Unmap { start, size_bytes } => {
                let unmapped = self.os.unmap(space, start, size_bytes);
                self.unmapped(number, unmapped.map_err(|e| failed(e.to_string()))?);
            }
            Step::Ended => {
                self.end(number)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The program unmapped memory: drops the translations and charges the time.
    fn unmapped(&mut self, number: usize, unmapped: Unmapped) {
        let mut cost = unmapped.cost;
        let core = self.programs[number].next_core();
        if let Some(shootdown) = &unmapped.shootdown {
            let interrupted = self.interrupt(number, shootdown, core);
            self.programs[number].counts.fault_ps += interrupted.stopped.0;
            cost += shootdown.initiator(interrupted.processors);
        }
        let now = self.node.core(core).now();
        self.node.core_mut(core).wait_until(now + cost);
        self.programs[number].counts.fault_ps += cost.0;
    }

    fn end(&mut self, number: usize) -> Result<(), MachineError> {
        let program = &mut self.programs[number];
        for &core in &program.own_cores {
            let meter = &mut self.meters[number];
            let mut port = Port::new(&mut self.memory, &mut self.frames).measured(meter);
            self.node.drain(core, &mut port);
            port.give(&mut program.counts);
        }
        program.phase = Phase::Ended(program.latest(&self.node));
        // Its source may be a thread that waits for the pipe.
        program.source = Box::new(Silent);
        let space = program.space;
        self.keep_last(number);
        self.os.exit(space).map(|_| ()).map_err(|e| MachineError(e.to_string()))
    }

    /// Has the operating system serve a page fault.
    fn fault(&mut self, number: usize, core: usize, fault: &Fault) -> Result<(), MachineError> {
        let space = self.programs[number].space;
        // Memory that the kill itself frees does not count as free.
        let slow = 1..self.os.nodes();
        let free_slow_bytes = match self.any_hard_tables() {
            true => slow.map(|n| self.os.free_bytes(terrace_os::Node(n as u8))).sum(),
            false => 0,
        };
        let (outcome, was_unmapped) = system::serve(&mut self.os, space, fault);
        self.programs[number].unmapped_accesses += u64::from(was_unmapped);
        match outcome {
            Ok(outcome) => {
                self.faulted(number, core, fault, &outcome);
                Ok(())
            }
            // With hard-bound page tables this is the result to show (Radiant paper, section 3.5).
            Err(OsError::OutOfMemory { killed, cost, .. }) if self.any_hard_tables() => {
                self.kill(killed, free_slow_bytes);
                self.node.core_mut(core).wait_until(fault.done + cost);
                self.programs[number].counts.fault_ps += cost.0;
                Ok(())
            }
            Err(e) => Err(MachineError(format!("group '{}': {e}", self.programs[number].name))),
        }
    }

    fn faulted(&mut self, number: usize, core: usize, fault: &Fault, outcome: &FaultOutcome) {
        let resumed = fault.done + system::time_of(&self.os, outcome);
        self.node.core_mut(core).wait_until(resumed);
        let counts = &mut self.programs[number].counts;
        counts.faults += 1;
        counts.fault_ps += resumed.since(fault.done).0;
        counts.table_faults += u64::from(outcome.table_allocation > Picoseconds::ZERO);
        counts.table_allocation_ps += outcome.table_allocation.0;
        if let FaultKind::WaitFor(id) = outcome.kind {
            counts.waits += 1;
            self.programs[number].phase = Phase::Waiting(id, fault.address.0, core, resumed);
        }
    }

    fn any_hard_tables(&self) -> bool {
        self.members.iter().any(|m| m.has_hard_tables())
    }

    /// Memory ran out and the kernel chose a victim.
    fn kill(&mut self, space: SpaceId, free_slow_bytes: u64) {
        let Some(number) = self.programs.iter().position(|p| p.space == space) else { return };
        let started = Picoseconds::from_ns(self.members[number].start_ns());
        let counters = self.os.counters();
        let victim = &mut self.programs[number];
        let now = victim.latest(&self.node);
        victim.phase = Phase::Ended(now);
        victim.source = Box::new(Silent);
        victim.killed = Some(Killed {
            at: now.since(started),
            free_slow_bytes,
            slow_allocations: counters.slow_allocations,
            longest_allocation: Picoseconds(counters.longest_table_allocation_ps),
            reclaim_passes: counters.reclaim_passes,
        });
    }

    /// Lets programs that waited for a move, or for this page of it, go on at `at`.
    pub(super) fn moved(&mut self, id: MoveId, page: Option<VirtualRange>, at: Picoseconds) {
        for program in &mut self.programs {
            if let Phase::Waiting(waits_for, address, core, since) = program.phase
                && waits_for == id
                && page.is_none_or(|page| page.start <= address && address < page.end())
            {
                self.node.core_mut(core).wait_until(at);
                program.counts.migration_ps += at.since(since).0;
                program.phase = Phase::Running;
            }
        }
    }
}

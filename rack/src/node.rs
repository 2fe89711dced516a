//! A compute node: cores that run their streams, caches and translation, and the memory manager
//! behind them.
//!
//! Cores run ahead to the end of the window, or until they wait for memory; then requests, answers
//! and packets are processed in time order, and cores whose data arrived continue.

use terrace_hardware::address::{Kind as Access, VirtualAddress};
use terrace_hardware::cpu::{CoreCounts, Dependence};
use terrace_hardware::error::ConfigError;
use terrace_hardware::node::{Node, Reference};
use terrace_hardware::units::Picoseconds;

use crate::config::{RackConfig, ps};
use crate::local::{LocalMemory, Wake};
use crate::outcome::{NodeCounts, Sample};
use crate::packet::Message;
use crate::scheme::Scheme;
use crate::stream::{Item, Next, Stream, WorkloadConfig};
use crate::{NEVER, Time};

/// The state of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The core can run.
    Ready,
    /// The core waits for memory, with this reference.
    Waiting(Item),
    /// Its page fault waits for remote memory, with this reference.
    Faulting(Item),
    /// The core waits for the other cores.
    Barrier,
    /// Its stream has no reference for it now.
    Starved,
    /// Its instructions are done, its misses not.
    Draining,
    /// The core is done.
    Done,
}

#[derive(Debug, Clone, Copy)]
struct CoreState {
    state: State,
    instructions: u64,
    warm: bool,
}

/// A compute node.
#[derive(Debug)]
pub struct ComputeNode {
    processor: Node,
    memory: LocalMemory,
    stream: Stream,
    name: String,
    cores: Vec<CoreState>,
    warm_up: u64,
    budget: u64,
    fault: Time,
    /// When counting began, and the counts at that time.
    began: Time,
    before: NodeCounts,
    warm_cores: usize,
    instructions_before: u64,
    sample: Time,
    sample_at: Time,
    last: (NodeCounts, u64, Time),
    samples: Vec<Sample>,
    done_at: Option<Time>,
}

impl ComputeNode {
    /// A node that runs a workload, at time 0.
    pub fn new(
        config: &RackConfig,
        scheme: &Scheme,
        node: usize,
        workload: &WorkloadConfig,
    ) -> Result<Self, ConfigError> {
        let cores = config.cores();
        let core = CoreState { state: State::Ready, instructions: 0, warm: false };
        let sample = ps(config.sample_us * 1000.0);
        let mut processor = config.processor.0.clone();
        processor.core.window_instructions = config.window();
        Ok(ComputeNode {
            processor: Node::new(&processor)?,
            memory: LocalMemory::new(config, node, scheme)?,
            stream: Stream::new(workload, cores, config.seed.wrapping_add(node as u64))?,
            name: workload.name.clone(),
            cores: vec![core; cores],
            warm_up: config.warm_up_instructions,
            budget: config.warm_up_instructions + config.instructions,
            fault: ps(config.page_fault_ns),
            began: 0,
            before: NodeCounts::default(),
            warm_cores: if config.warm_up_instructions == 0 { cores } else { 0 },
            instructions_before: 0,
            sample,
            sample_at: sample,
            last: Default::default(),
            samples: Vec::new(),
            done_at: None,
        })
    }

    /// The addresses that its program touches in its start-up, one per page, in order.
    pub fn start_up(&mut self) -> Vec<u64> {
        let mut order = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        let mut last = u64::MAX;
        self.stream.skip_start_up(|address| {
            let page = address >> 12;
            if page != last {
                last = page;
                if seen.insert(page) {
                    order.push(address);
                }
            }
        });
        order
    }

    /// Its memory manager.
    pub fn memory(&mut self) -> &mut LocalMemory {
        &mut self.memory
    }

    /// Its memory manager, read-only.
    pub fn memory_ref(&self) -> &LocalMemory {
        &self.memory
    }

    /// Name of its workload.
    pub fn workload(&self) -> &str {
        &self.name
    }

    /// When its last core was done.
    pub fn done_at(&self) -> Option<Time> {
        self.done_at
    }

    /// Why the node cannot continue, if it cannot.
    pub fn problem(&self) -> Option<String> {
        self.memory.problem.clone().or_else(|| self.stream.problem().map(str::to_owned))
    }

    /// Its timeline.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Its timeline, to be completed with the switch's values.
    pub fn samples_mut(&mut self) -> &mut Vec<Sample> {
        &mut self.samples
    }

    /// Instructions counted, and the time they took.
    pub fn progress(&self) -> (u64, Time) {
        let all: u64 = self.cores.iter().map(|c| c.instructions).sum();
        let end = self.done_at.unwrap_or_else(|| self.latest());
        (all - self.instructions_before, end.saturating_sub(self.began))
    }

    /// The counts since the warm-up.
    pub fn counts(&self) -> NodeCounts {
        let mut counts = self.memory.counts.since(&self.before);
        counts.walks =
            (0..self.processor.cores()).map(|c| self.processor.walker(c).counts().walks).sum();
        counts
    }

    /// The counts of all cores together.
    pub fn core_counts(&self) -> CoreCounts {
        let mut sum = CoreCounts::default();
        for core in 0..self.processor.cores() {
            let c = self.processor.core(core).counts();
            sum.instructions += c.instructions;
            sum.compute_ps += c.compute_ps;
            for (all, one) in sum.stall_ps.iter_mut().zip(c.stall_ps) {
                *all += one;
            }
            sum.store_stall_ps += c.store_stall_ps;
            sum.miss_queue_ps += c.miss_queue_ps;
            sum.walk_queue_ps += c.walk_queue_ps;
            sum.leading_loads += c.leading_loads;
            sum.leading_load_ps += c.leading_load_ps;
        }
        sum
    }

    fn latest(&self) -> Time {
        (0..self.cores.len()).map(|c| self.processor.core(c).now().0).max().unwrap_or(0)
    }

    /// Receives a message of the switch.
    pub fn receive(&mut self, message: Message) {
        self.memory.nic.receive(message);
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Time {
        let core = |c: usize| match self.cores[c].state {
            State::Ready => self.processor.core(c).now().0,
            _ => NEVER,
        };
        let cores = (0..self.cores.len()).map(core).min().unwrap_or(NEVER);
        cores.min(self.memory.next_event())
    }

    /// Runs up to `end`; messages go to `out`.
    pub fn run_until(&mut self, begin: Time, end: Time, out: &mut Vec<Message>) {
        for core in 0..self.cores.len() {
            if self.cores[core].state == State::Starved {
                self.processor.core_mut(core).wait_until(Picoseconds(begin));
                self.cores[core].state = State::Ready;
            }
        }
        self.run_cores(end);
        loop {
            let now = self.memory.next_event();
            if now >= end {
                break;
            }
            match self.memory.step(now, out) {
                Wake::Nobody => continue,
                Wake::Completed(completion) => {
                    if let Some(core) = self.processor.complete(completion) {
                        match self.cores[core].state {
                            State::Waiting(_) => self.retry(core, end),
                            State::Draining => self.drain(core),
                            _ => {}
                        }
                    }
                    continue;
                }
                Wake::Stop(stop) => self.stop(now, stop),
                Wake::Remap => self.memory.remap(now, &mut self.processor),
                Wake::Memory => {
                    if let Wake::Stop(stop) = self.memory.begin_batch(now) {
                        self.stop(now, stop);
                    }
                    for core in 0..self.cores.len() {
                        if let State::Faulting(_) = self.cores[core].state {
                            self.processor.core_mut(core).wait_until(Picoseconds(now));
                            self.retry(core, end);
                        }
                    }
                }
            }
            self.run_cores(end);
        }
        self.memory.end_window(out);
        if end >= self.sample_at {
            self.take_sample(end);
        }
    }

    /// Stops all cores for a shootdown.
    fn stop(&mut self, now: Time, stop: Time) {
        for core in 0..self.cores.len() {
            let from = self.processor.core(core).now().0.max(now);
            self.processor.core_mut(core).wait_until(Picoseconds(from + stop));
        }
    }

    fn run_cores(&mut self, end: Time) {
        loop {
            for core in 0..self.cores.len() {
                if self.cores[core].state == State::Ready {
                    self.run_core(core, end);
                }
            }
            if !self.pass_barrier() {
                break;
            }
        }
    }

    /// Retries the reference that a core waits with, and continues if it succeeds.
    fn retry(&mut self, core: usize, end: Time) {
        let (State::Waiting(item) | State::Faulting(item)) = self.cores[core].state else { return };
        if self.attempt(core, item) {
            self.cores[core].state = State::Ready;
            self.run_core(core, end);
            if self.pass_barrier() {
                self.run_cores(end);
            }
        }
    }

    /// Runs a core until it waits, or its time is `end`.
    fn run_core(&mut self, core: usize, end: Time) {
        while self.processor.core(core).now().0 < end {
            if self.cores[core].instructions >= self.budget {
                self.drain(core);
                return;
            }
            match self.stream.next(core) {
                Next::Item(item) => {
                    let instructions = item.gap.saturating_add(1);
                    self.cores[core].instructions += u64::from(instructions);
                    self.processor.dispatch(core, instructions);
                    if !self.cores[core].warm && self.cores[core].instructions >= self.warm_up {
                        self.warm(core);
                    }
                    if !self.attempt(core, item) {
                        return;
                    }
                }
                Next::Barrier => {
                    self.cores[core].state = State::Barrier;
                    return;
                }
                Next::Starved => {
                    let alone = self.cores.iter().enumerate().all(|(c, s)| {
                        c == core
                            || !matches!(
                                s.state,
                                State::Ready
                                    | State::Waiting(_)
                                    | State::Faulting(_)
                                    | State::Barrier
                            )
                    });
                    if alone {
                        // No other core runs that could take the references ahead in the queue.
                        self.drain(core);
                    } else {
                        self.cores[core].state = State::Starved;
                    }
                    return;
                }
                Next::End => {
                    self.drain(core);
                    return;
                }
            }
        }
    }

    /// Makes a reference; a page fault is served on the way. `false` if the core waits.
    #[inline]
    fn attempt(&mut self, core: usize, item: Item) -> bool {
        let reference = Reference {
            address: VirtualAddress(item.address),
            size: u32::from(item.size),
            kind: if item.store { Access::Write } else { Access::Read },
            instructions: 0,
            dependence: match item.dependent {
                true => Dependence::PreviousLoad,
                false => Dependence::None,
            },
        };
        loop {
            let memory = &mut self.memory;
            let made = self.processor.try_reference(
                core,
                &reference,
                &mut memory.pages,
                &mut memory.requests,
            );
            match made {
                Ok(Some(_)) => return true,
                Ok(None) => {
                    self.cores[core].state = State::Waiting(item);
                    return false;
                }
                Err(fault) => {
                    let at = self.processor.core(core).now().max(fault.done).0;
                    if !self.memory.map(at, item.address) {
                        self.cores[core].state = State::Faulting(item);
                        return false;
                    }
                    self.memory.counts.faults += 1;
                    self.processor.core_mut(core).wait_until(Picoseconds(at + self.fault));
                }
            }
        }
    }

    /// All cores that are not done have reached a barrier: they continue together.
    fn pass_barrier(&mut self) -> bool {
        let mut waits = false;
        for core in &self.cores {
            match core.state {
                State::Barrier => waits = true,
                State::Done | State::Draining => {}
                _ => return false,
            }
        }
        if !waits {
            return false;
        }
        let latest = |c: usize| match self.cores[c].state {
            State::Barrier => self.processor.core(c).now().0,
            _ => 0,
        };
        let at = (0..self.cores.len()).map(latest).max().unwrap_or(0);
        for core in 0..self.cores.len() {
            if self.cores[core].state == State::Barrier {
                self.processor.core_mut(core).wait_until(Picoseconds(at));
                self.cores[core].state = State::Ready;
            }
        }
        true
    }

    fn drain(&mut self, core: usize) {
        self.stream.close(core);
        for other in &mut self.cores {
            if other.state == State::Starved {
                other.state = State::Ready;
            }
        }
        if self.processor.core_mut(core).drain() {
            self.cores[core].state = State::Draining;
            return;
        }
        self.cores[core].state = State::Done;
        if !self.cores[core].warm {
            self.warm(core);
        }
        if self.cores.iter().all(|c| matches!(c.state, State::Done)) {
            self.done_at = Some(self.latest());
        }
    }

    /// A core has run its warm-up; the last to do so begins the counting.
    fn warm(&mut self, core: usize) {
        self.cores[core].warm = true;
        if self.warm_up == 0 {
            return;
        }
        self.warm_cores += 1;
        if self.warm_cores == self.cores.len() {
            self.began = self.latest();
            self.instructions_before = self.cores.iter().map(|c| c.instructions).sum();
            let counts = &mut self.memory.counts;
            counts.local_latency = Default::default();
            counts.remote_latency = Default::default();
            self.before = counts.clone();
        }
    }

    fn take_sample(&mut self, now: Time) {
        self.memory.refresh_mean();
        let instructions: u64 = self.cores.iter().map(|c| c.instructions).sum();
        let counts = &self.memory.counts;
        let (before, instructions_before, from) = &self.last;
        self.samples.push(Sample {
            from: *from,
            to: now,
            instructions: instructions - instructions_before,
            local_reads: counts.local_reads - before.local_reads,
            migrated_reads: counts.migrated_reads - before.migrated_reads,
            remote_reads: counts.remote_reads - before.remote_reads,
            buffer_reads: counts.buffer_reads - before.buffer_reads,
            pages_in: counts.pages_in - before.pages_in,
            pages_out: counts.pages_out - before.pages_out,
            misses: self.memory.misses() as u64,
            nic_bytes: self.memory.nic.out.waiting_bytes(),
            ..Sample::default()
        });
        let counts = NodeCounts {
            local_reads: counts.local_reads,
            migrated_reads: counts.migrated_reads,
            remote_reads: counts.remote_reads,
            buffer_reads: counts.buffer_reads,
            pages_in: counts.pages_in,
            pages_out: counts.pages_out,
            ..NodeCounts::default()
        };
        self.last = (counts, instructions, now);
        while self.sample_at <= now {
            self.sample_at += self.sample;
        }
    }
}

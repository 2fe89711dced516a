//! The processors of an emulated machine in time.
//!
//! The emulator runs one processor after the other and reports events: blocks that begin, accesses,
//! waits. Each processor keeps a time of its own, that of the project's own core, caches, TLBs and
//! tiers, which are those of trace-driven simulation. The guest's clock is that of the processor
//! that is furthest ahead ([`Clock`]); a processor that is ahead of the others by more than a
//! quantum lets them catch up.

mod counters;
pub mod observed;

use terrace_hardware::address::{Kind, PhysicalAddress, VirtualAddress};
use terrace_hardware::cache::hierarchy::Level;
use terrace_hardware::cpu::Dependence;
use terrace_hardware::node::{Node, Reference};
use terrace_hardware::tier::memory::TieredMemory;
use terrace_hardware::units::Picoseconds;

use crate::causes::{Cause, Causes, Role, Switch};
use crate::clock::Clock;
use crate::config::{TimedConfig, TimedError};
use crate::flow::{Block, LOADS, NO_LOAD, REGISTERS, Site, Sources};
use crate::samples::Sampling;
use crate::tables::{GuestWalk, TABLES_BYTES, Tables};
use crate::windows::{Spent, Windows};
use crate::work::{Work, WorkFigures};

/// Lines of a processor that may be under way, by their low bits.
const LINES: usize = 32;
/// Lines that are passed over between sampling windows if they are used again: fewer than the first
/// level has.
const RECENT: usize = 256;
/// A load that is served sooner delays no other instruction noticeably.
const NEAR: u64 = 3;

/// A cycle of the processor's clock as the guest's kernel sees it: 1 GHz, as the emulator's clock
/// counts.
const CYCLE_PS: u64 = 1000;

/// A core continues by so much beyond a load for which another load waits, so that its time, and
/// the clock, are not far behind its execution: a window's instructions take less where they are
/// not loads.
const MOST_AHEAD_PS: u64 = 2_000_000;

/// A repeated copy or fill writes so many bytes a cycle, whatever its unit: fast-string operation
/// (Intel's optimization manual, "REP MOVSB and REP STOSB").
const STRING_BYTES_PER_CYCLE: f64 = 32.0;

/// The emulator's next actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Step {
    /// Addition to the clock's bias.
    pub add_ns: i64,
    /// The processor's slice ends: another is behind, or timers may be due.
    pub yields: bool,
    /// With sampling windows: accesses must be reported from now on, or need not be.
    pub detail: Option<bool>,
}

/// An access of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Virtual address.
    pub address: u64,
    /// Size in bytes.
    pub size: u32,
    /// Whether it is a store.
    pub store: bool,
}

/// State of one processor.
#[derive(Debug, Clone)]
struct Processor {
    /// Whether it has run, and does not wait for an interrupt.
    runs: bool,
    /// Instructions before the running block, and those given to the core.
    begun: u64,
    dispatched: u64,
    /// Bytes of repeated copies and fills that count with the next whole instruction.
    string_bytes: u64,
    block: &'static Block,
    /// When each register's value is available, and each load of the block.
    ready: [u64; REGISTERS],
    loads: [u64; LOADS],
    /// The latest of these times.
    latest: u64,
    /// Lines under way and their arrival times.
    lines: [(u64, u64); LINES],
    /// Start of the block's time.
    counted: u64,
    /// Time in programs and in the kernel.
    busy_ps: [u64; 2],
    instructions: [u64; 2],
    references: u64,
    /// Of programs and of the kernel, by level.
    misses: [[u64; 3]; 2],
    devices: u64,
    dependent_loads: u64,
    /// Lines used last between sampling windows, by their low bits, each with whether it was
    /// written: to use one again changes caches hardly.
    recent: Vec<u64>,
}

static NO_BLOCK: Block = Block {
    instructions: 0,
    repeated_bytes: 0,
    kernel: false,
    role: Role::None,
    leaves: false,
    changes: Vec::new(),
};

impl Processor {
    fn new() -> Self {
        Processor {
            runs: false,
            begun: 0,
            dispatched: 0,
            string_bytes: 0,
            block: &NO_BLOCK,
            ready: [0; REGISTERS],
            loads: [0; LOADS],
            latest: 0,
            lines: [(u64::MAX, 0); LINES],
            counted: 0,
            busy_ps: [0; 2],
            instructions: [0; 2],
            references: 0,
            misses: [[0; 3]; 2],
            devices: 0,
            dependent_loads: 0,
            recent: vec![u64::MAX; RECENT],
        }
    }

    /// When all of these sources are available.
    fn known(&self, sources: Sources) -> u64 {
        let (mut latest, mut registers, mut loads) = (0, sources.registers, sources.loads);
        while registers != 0 {
            latest = latest.max(self.ready[registers.trailing_zeros() as usize % REGISTERS]);
            registers &= registers - 1;
        }
        while loads != 0 {
            latest = latest.max(self.loads[loads.trailing_zeros() as usize % LOADS]);
            loads &= loads - 1;
        }
        latest
    }

    /// The block before is over: sets the sources that its registers hold now.
    fn carry_over(&mut self) {
        let before = self.ready;
        let mut after = before;
        for (register, sources) in &self.block.changes {
            after[usize::from(*register) % REGISTERS] = self.known(*sources);
        }
        self.ready = after;
    }
}

/// The processors of an emulated machine, its memory and its clock.
#[derive(Debug, Clone)]
pub struct TimedMachine {
    node: Node,
    memory: TieredMemory,
    tables: Tables,
    processors: Vec<Processor>,
    clock: Clock,
    /// The clock at time 0 of the processors' own times.
    start_ns: u64,
    /// The running processor; none before the first.
    running: usize,
    /// End of the processor's slice, in its own time.
    slice_end: u64,
    quantum: u64,
    device: u64,
    pause: u64,
    sample: u64,
    follow_loads: bool,
    /// First physical address of each tier's memory, as the caches use them.
    starts: Vec<u64>,
    names: Vec<String>,
    /// Misses of the last level by tier: of programs, and of the kernel.
    tier_misses: Vec<[u64; 2]>,
    line_bits: u32,
    near: u64,
    /// Bytes that a repeated copy or fill writes in the time of one instruction.
    string_bytes: u64,
    samples: Option<Sampling>,
    causes: Causes,
    work: Option<Work>,
    windows: Option<Windows>,
    /// Instructions until the next stretch of the windows.
    stretch_left: u64,
}

/// The reference of an access that depends on nothing. The part in the next page counts with the same
/// line's time.
#[inline]
fn reference(access: Access) -> Reference {
    let room = 4096 - access.address % 4096;
    Reference {
        address: VirtualAddress(access.address),
        size: access.size.min(room as u32),
        kind: if access.store { Kind::Write } else { Kind::Read },
        instructions: 0,
        dependence: Dependence::None,
    }
}

impl TimedMachine {
    /// A machine whose clock shows `now_ns`, with nothing cached.
    pub fn new(config: &TimedConfig, now_ns: u64) -> Result<Self, TimedError> {
        let node = Node::new(&config.hardware.node)?;
        let memory = TieredMemory::new(&config.hardware.tiers)?.far_out_of_order();
        let starts: Vec<u64> =
            (0..config.hardware.tiers.len()).map(|tier| memory.start(tier).0).collect();
        let tables = starts.get(config.tables_tier).zip(config.tier_bytes.get(config.tables_tier));
        let tables = tables.map_or(0, |(start, bytes)| start + bytes);
        let per_cycle = config.hardware.node.core.instructions_per_cycle;
        let l1_cycles = config.hardware.node.caches.l1.latency_cycles;
        let rate_ps = node.core(0).dispatch_time(1_000_000).0 as f64 / 1e6;
        let windows = config.windows.map(|plan| Windows::new(plan, node.cores(), rate_ps));
        Ok(TimedMachine {
            stretch_left: windows.as_ref().map_or(u64::MAX, Windows::first),
            windows,
            processors: vec![Processor::new(); node.cores()],
            line_bits: node.caches().line_bits(),
            near: NEAR * node.core(0).cycles(l1_cycles).0,
            string_bytes: (STRING_BYTES_PER_CYCLE / per_cycle).round().max(1.0) as u64,
            node,
            memory,
            tables: Tables::new(PhysicalAddress(tables)),
            clock: Clock::at(now_ns),
            start_ns: now_ns,
            running: usize::MAX,
            slice_end: 0,
            quantum: config.quantum_ns * 1000,
            device: config.device_ns * 1000,
            pause: config.pause_ns * 1000,
            sample: config.sample_ns * 1000,
            follow_loads: config.follow_loads,
            tier_misses: vec![[0; 2]; starts.len()],
            starts,
            names: config.hardware.tiers.iter().map(|tier| tier.name.clone()).collect(),
            samples: None,
            causes: Causes::new(config.hardware.node.cores as usize, false),
            work: None,
        })
    }

    /// Samples memory accesses from now on.
    pub fn sample(&mut self, samples: Sampling) {
        self.samples = Some(samples);
    }

    /// Samples one in so many accesses from now on, if any are sampled.
    pub fn sample_one_in(&mut self, accesses: u32) {
        if let Some(samples) = &mut self.samples {
            samples.set_accesses_per_sample(accesses);
        }
    }

    /// Divides the kernel's time by cause: blocks have their roles, and calls, returns and switches
    /// are reported.
    pub fn know_causes(&mut self) {
        self.causes = Causes::new(self.processors(), true);
    }

    /// A function of the kernel of this cause pushes its first word.
    pub fn kernel_calls(&mut self, cpu: usize, cause: Cause, address: u64) {
        self.causes.calls(cpu, cause, address);
    }

    /// A function of the kernel returns.
    pub fn kernel_returns(&mut self, cpu: usize, address: u64) {
        self.causes.returns(cpu, address);
    }

    /// The kernel switches between tasks.
    pub fn kernel_switches(&mut self, cpu: usize, switch: Switch, address: u64) {
        self.causes.switches(cpu, switch, address);
    }

    /// Records of samples that were not yet taken, if there are new ones.
    #[inline]
    pub fn records(&mut self) -> Option<&mut Vec<u8>> {
        self.samples.as_mut().and_then(Sampling::ring)
    }

    /// Records of samples that were not yet taken, new ones or not.
    pub fn waiting_records(&mut self) -> Option<&mut Vec<u8>> {
        self.samples.as_mut().map(Sampling::waiting)
    }

    /// Number of processors.
    pub fn processors(&self) -> usize {
        self.processors.len()
    }

    /// A processor's own time, at the end of all instructions begun.
    fn time(&self, cpu: usize) -> u64 {
        let processor = &self.processors[cpu];
        let core = self.node.core(cpu);
        core.now().0 + core.dispatch_time(processor.begun - processor.dispatched).0
    }

    fn shown(&self, time_ps: u64) -> u64 {
        self.start_ns + time_ps / 1000
    }

    /// Whether the emulator's clock must be passed with the next block of this processor.
    #[inline]
    pub fn is_switch(&self, cpu: usize) -> bool {
        self.running != cpu || !self.processors[cpu].runs
    }

    /// Another processor runs than before, or one that waited; the emulator's clock shows
    /// `actual_ns`. To be called before the block. Returns the addition to the bias.
    #[cold]
    pub fn switch(&mut self, cpu: usize, actual_ns: u64) -> i64 {
        let add = self.clock.settle(actual_ns);
        self.running = cpu;
        if !self.processors[cpu].runs {
            self.processors[cpu].runs = true;
            let now = (self.clock.shown_ns() - self.start_ns) * 1000;
            self.wait_until(cpu, now);
            // Waiting does not count as busy.
            self.processors[cpu].counted = self.time(cpu);
        }
        let own = self.time(cpu);
        let behind = self.furthest_behind_but(cpu).map_or(own, |other| other.max(own));
        self.slice_end = behind + self.quantum;
        add
    }

    /// The time of the processor furthest behind of those that run, without this one.
    fn furthest_behind_but(&self, cpu: usize) -> Option<u64> {
        let others = (0..self.processors.len()).filter(|&n| n != cpu && self.processors[n].runs);
        others.map(|n| self.time(n)).min()
    }

    /// The core is idle until then; work already begun is done first.
    fn wait_until(&mut self, cpu: usize, time: u64) {
        let processor = &self.processors[cpu];
        let pending = processor.begun - processor.dispatched;
        let pending = self.node.core(cpu).dispatch_time(pending).0;
        self.node.core_mut(cpu).wait_until(Picoseconds(time.saturating_sub(pending)));
    }

    /// A block begins. The processor's slice ends after the block if the step says so.
    #[inline]
    pub fn block(&mut self, cpu: usize, block: &'static Block) -> Step {
        let processor = &mut self.processors[cpu];
        let core = self.node.core(cpu);
        if processor.latest > core.now().0 {
            processor.carry_over();
        }
        let pending = core.dispatch_time(processor.begun - processor.dispatched).0;
        let before = core.now().0 + pending;
        // The time since the last block began is that block's.
        let side = usize::from(processor.block.kernel);
        let took = before.saturating_sub(processor.counted);
        processor.busy_ps[side] += took;
        processor.counted = processor.counted.max(before);
        if processor.block.kernel || block.kernel {
            self.causes.follows(cpu, took, processor.block, block);
        }
        let executed = u64::from(block.instructions);
        let instructions = match block.repeated_bytes {
            0 => executed,
            bytes => {
                let sum = processor.string_bytes + u64::from(bytes);
                processor.string_bytes = sum % self.string_bytes;
                sum / self.string_bytes
            }
        };
        processor.instructions[usize::from(block.kernel)] += instructions;
        let mut detail = None;
        match &mut self.windows {
            Some(windows) if windows.is_plain() => {
                let took = windows.plain_ps(cpu, usize::from(block.kernel), instructions);
                let core = self.node.core_mut(cpu);
                core.wait_until(core.now() + Picoseconds(pending + took));
                processor.dispatched = processor.begun;
            }
            _ => processor.begun += instructions,
        }
        processor.block = block;
        match self.stretch_left.checked_sub(instructions) {
            Some(left) => self.stretch_left = left,
            None => detail = self.next_stretch(),
        }
        let processor = &self.processors[cpu];
        let core = self.node.core(cpu);
        let until = core.now().0 + core.dispatch_time(processor.begun - processor.dispatched).0;
        let add_ns = self.clock.block(executed, self.start_ns + until / 1000);
        if let Some(work) = &mut self.work {
            work.block(cpu, block);
            work.at(self.clock.shown_ns() - self.start_ns);
        }
        let yields = before >= self.slice_end;
        if yields {
            self.slice_end = before + self.quantum;
        }
        Step { add_ns, yields, detail }
    }

    /// Measures the rest of this work.
    pub fn follow_work(&mut self, mut work: Work) {
        work.clock_begins();
        self.work = Some(work);
    }

    /// What was measured of it.
    pub fn work(&self) -> Option<&WorkFigures> {
        self.work.as_ref().map(Work::figures)
    }

    /// What each processor has spent.
    fn spent(&self) -> Vec<Spent> {
        let spent = |p: &Processor| Spent { instructions: p.instructions, busy_ps: p.busy_ps };
        self.processors.iter().map(spent).collect()
    }

    /// The next stretch of the sampling windows begins; whether accesses are reported in it.
    #[cold]
    fn next_stretch(&mut self) -> Option<bool> {
        let (spent, counters) = (self.spent(), self.counters());
        let windows = self.windows.as_mut()?;
        self.stretch_left = windows.next(spent, counters);
        self.processors.iter_mut().for_each(|processor| processor.recent.fill(u64::MAX));
        Some(!windows.is_plain())
    }

    /// An access at a site of the running block. `place` returns the tier and the offset in it if
    /// the access was to memory. Returns whether it was.
    #[inline]
    pub fn access(
        &mut self,
        cpu: usize,
        site: &Site,
        access: Access,
        place: impl Fn() -> Option<(usize, u64)>,
    ) -> bool {
        self.access_walked(cpu, site, access, place, || None)
    }

    /// [`Self::access`] where the guest's page tables can be read: `walk` returns the path to the
    /// page.
    #[inline]
    pub fn access_walked(
        &mut self,
        cpu: usize,
        site: &Site,
        access: Access,
        place: impl Fn() -> Option<(usize, u64)>,
        walk: impl Fn() -> Option<GuestWalk>,
    ) -> bool {
        let processor = &mut self.processors[cpu];
        let of_block = u64::from(processor.block.instructions.saturating_sub(site.position));
        let at = (processor.begun - of_block).max(processor.dispatched);
        let instructions = at - processor.dispatched;
        processor.dispatched = at;
        let now = self.node.core(cpu).now().0;
        let waits = self.follow_loads && processor.latest > now;
        let mut dependence = Dependence::None;
        if waits && !access.store {
            let known = processor.known(site.address);
            if known > now + self.near {
                processor.dependent_loads += 1;
                let (known, most) = (Picoseconds(known), Picoseconds(MOST_AHEAD_PS));
                self.node.core_mut(cpu).keep_up(known, most);
            }
            dependence = Dependence::Until(Picoseconds(known));
        }
        let issued = self.node.core(cpu).issue_time(dependence).0;
        processor.references += 1;
        let starts = &self.starts;
        let physical = || place().map(|(tier, at)| starts[tier] + at);
        let mut table = self.tables.of_access(physical, walk, starts);
        let instructions = instructions.min(u64::from(u32::MAX)) as u32;
        let reference = Reference { instructions, dependence, ..reference(access) };
        let Ok(level) = self.node.reference(cpu, &reference, &mut table, &mut self.memory) else {
            processor.references -= 1;
            processor.devices += 1;
            let core = self.node.core_mut(cpu);
            core.wait_until(core.now() + Picoseconds(self.device));
            return false;
        };
        if level != Level::L1 {
            self.missed(cpu, level, (site, access), issued, place);
        }
        if access.store {
            return true;
        }
        let mut done = self.node.core(cpu).last_load().0;
        let line = access.address >> self.line_bits;
        let processor = &mut self.processors[cpu];
        let entry = &mut processor.lines[line as usize % LINES];
        if level != Level::L1 {
            *entry = (line, done);
        } else if waits && entry.0 == line {
            // The first level has the line as soon as it is requested; in reality it is still under
            // way.
            done = done.max(entry.1);
        }
        if site.load != NO_LOAD {
            processor.loads[usize::from(site.load) % LOADS] = done;
            if done > now + self.near {
                processor.latest = processor.latest.max(done);
            }
        }
        true
    }

    /// An access between sampling windows: caches and TLBs follow, and no time passes.
    #[inline]
    pub fn warm(
        &mut self,
        cpu: usize,
        access: Access,
        place: impl Fn() -> Option<(usize, u64)>,
        walk: impl Fn() -> Option<GuestWalk>,
    ) {
        if self.is_recent(cpu, access) {
            return;
        }
        let starts = &self.starts;
        let physical = || place().map(|(tier, at)| starts[tier] + at);
        let mut table = self.tables.of_access(physical, walk, starts);
        // An access to a device changes nothing here.
        let _ = self.node.warm(cpu, &reference(access), &mut table);
    }

    /// Whether the line of an access was used lately, and remembers it.
    #[inline]
    fn is_recent(&mut self, cpu: usize, access: Access) -> bool {
        let line = access.address >> self.line_bits;
        let recent = &mut self.processors[cpu].recent[line as usize % RECENT];
        let is_recent =
            *recent == (line << 1 | 1) || *recent == (line << 1 | u64::from(access.store));
        if !is_recent {
            *recent = line << 1 | u64::from(access.store);
        }
        is_recent
    }

    /// A clock is read by the last instruction of the running block: waits first for everything
    /// under way.
    pub fn read_clock(&mut self, cpu: usize) -> i64 {
        self.node.drain(cpu, &mut self.memory);
        let until = self.time(cpu);
        self.clock.extend(self.shown(until))
    }

    /// The processor waits for an interrupt.
    pub fn halt(&mut self, cpu: usize) -> i64 {
        let add = self.read_clock(cpu);
        let (now, processor) = (self.time(cpu), &mut self.processors[cpu]);
        let side = usize::from(processor.block.kernel);
        let took = now.saturating_sub(processor.counted);
        processor.busy_ps[side] += took;
        processor.counted = now;
        processor.runs = false;
        if processor.block.kernel {
            self.causes.took(cpu, took);
            self.causes.waits(cpu);
        }
        add
    }

    /// The processor waits in a loop: it does not run ahead of the others, and need not catch up.
    pub fn pause(&mut self, cpu: usize) {
        let now = self.time(cpu) + self.pause;
        let other = self.furthest_behind_but(cpu).unwrap_or(0);
        self.wait_until(cpu, now.max(other));
    }

    /// The processor drops translations.
    pub fn flush_translations(&mut self, cpu: usize) {
        self.processors[cpu].recent.fill(u64::MAX);
        self.node.flush_translations(cpu);
    }
}

/// Bytes of physical addresses that a machine uses beyond its memory.
pub const BEYOND_BYTES: u64 = TABLES_BYTES;

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;

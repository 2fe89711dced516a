//! Cores, TLBs, walkers and caches put together: from a program's reference to the requests that
//! reach memory.
//!
//! [`Node::reference`] takes one reference of one core through translation, caches and the core's
//! window. Page tables belong to the caller ([`PageTable`]), memory too ([`MemoryPort`]): tiers, or
//! a rack's network. Cores keep their own time; the caller runs the core that is furthest behind,
//! or a few references of each in turn.
//!
//! Translation and caches change at once, in the order in which references are made; only the times
//! are those of an out-of-order core. So they are a part of their own ([`front`]), which nodes that
//! differ in their memories alone can have in common ([`trace`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{Kind, LineAddress, PhysicalAddress, VirtualAddress};
use crate::cache::hierarchy::{CacheHierarchy, Entry, HierarchyConfig, Level};
use crate::cpu::{CAUSES, Cause, Core, CoreConfig, Dependence, FIRST_MEMORY_CAUSE};
use crate::error::{ConfigError, check_range};
use crate::request::{Completion, Request, RequestId, When};
use crate::tlb::{Lookup, Tlbs, TlbsConfig};
use crate::units::Picoseconds;
use crate::walker::{Fault, PageTable, Walker, WalkerConfig};

/// The processor of one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Number of cores.
    #[schemars(range(min = 1, max = 4096))]
    pub cores: u32,
    /// Configuration of each core.
    pub core: CoreConfig,
    /// Caches.
    pub caches: HierarchyConfig,
    /// TLBs of each core.
    pub tlbs: TlbsConfig,
    /// Page walker of each core.
    pub walker: WalkerConfig,
    /// The cache level at which walks enter.
    #[serde(default)]
    pub walks_enter: Entry,
    /// Hardware prefetcher of each core, which follows streams of lines within a page; none if not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetcher: Option<StreamPrefetcherConfig>,
}

/// The memory behind the caches.
pub trait MemoryPort {
    /// A request is made at `at`. Returns its completion time, or that it is pending, and the
    /// memory that it went to: stalls are counted separately for each.
    fn submit(&mut self, at: Picoseconds, request: Request) -> (When, usize);

    /// Lets time pass to the next completion of a pending request; `None` if there is none.
    fn next_completion(&mut self) -> Option<Completion>;
}

/// One load or store of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// Address of the first byte.
    pub address: VirtualAddress,
    /// Size in bytes; 1 at least.
    pub size: u32,
    /// Load or store.
    pub kind: Kind,
    /// Instructions since the reference before, this one included.
    pub instructions: u32,
    /// Whether the address came from the load before.
    pub dependence: Dependence,
}

/// Stalls that waited for the second level; indexes [`crate::cpu::CoreCounts::stall_ps`].
pub const CAUSE_L2: Cause = 1;
/// Stalls that waited for the last level.
pub const CAUSE_LLC: Cause = 2;
/// Stalls that waited for memory 0; memory `n` follows.
pub const CAUSE_MEMORY: Cause = FIRST_MEMORY_CAUSE;

fn memory_cause(memory: usize) -> Cause {
    CAUSE_MEMORY + memory.min(CAUSES - 1 - usize::from(CAUSE_MEMORY)) as Cause
}

/// No core waits for this request.
const NOBODY: u64 = 0xFFFF;

/// Requests made so far: numbers have the core that waits in their low 16 bits.
#[derive(Debug, Clone, Copy, Default)]
struct Numbers(u64);

impl Numbers {
    #[inline]
    fn next(&mut self, core: u64) -> RequestId {
        self.0 += 1;
        RequestId(self.0 << 16 | core)
    }
}

/// Times from the start of a lookup to its answer.
#[derive(Debug, Clone, Copy)]
struct Latencies {
    l1: Picoseconds,
    l2: Picoseconds,
    llc: Picoseconds,
    l2_tlb: Picoseconds,
}

/// The processor of one machine, with translations and caches of its own or as they were elsewhere.
#[derive(Debug, Clone)]
pub struct Node<F = Hardware> {
    cores: Vec<Core>,
    front: F,
    numbers: Numbers,
    latencies: Latencies,
    line_bits: u32,
    /// When prefetched lines arrive, where there are prefetchers.
    arrivals: Option<Arrivals>,
}

impl Node {
    /// A processor at time 0 with nothing cached.
    pub fn new(config: &NodeConfig) -> Result<Self, ConfigError> {
        check_range("node", "cores", u64::from(config.cores), 1..=4096)?;
        Node::with_front(config, Hardware::new(config)?)
    }

    /// The TLBs of a core, read-only.
    pub fn tlbs(&self, core: usize) -> &Tlbs {
        &self.front.tlbs[core]
    }

    /// The walker of a core, read-only.
    pub fn walker(&self, core: usize) -> &Walker {
        &self.front.walkers[core]
    }

    /// The caches.
    pub fn caches(&self) -> &CacheHierarchy {
        &self.front.caches
    }

    /// The caches, mutable: to remove lines.
    pub fn caches_mut(&mut self) -> &mut CacheHierarchy {
        &mut self.front.caches
    }

    /// `invlpg` of an address on a core. Also drops all its paging-structure entries.
    pub fn invalidate_page(&mut self, core: usize, address: VirtualAddress) {
        self.front.tlbs[core].invalidate(address);
        self.front.walkers[core].flush();
    }

    /// Drops every translation of a range on a core, like a series of `invlpg`.
    pub fn invalidate_range(&mut self, core: usize, start: VirtualAddress, size_bytes: u64) {
        self.front.invalidate_range(core, start, size_bytes);
    }

    /// Drops all translations of a core (a write to `cr3`).
    pub fn flush_translations(&mut self, core: usize) {
        self.front.flush_translations(core);
    }
}

impl<F: Front> Node<F> {
    /// A processor at time 0 whose translations and caches are these.
    pub fn with_front(config: &NodeConfig, front: F) -> Result<Self, ConfigError> {
        let core = Core::new(&config.core)?;
        let c = &config.caches;
        let latencies = Latencies {
            l1: core.cycles(c.l1.latency_cycles),
            l2: core.cycles(c.l2.as_ref().map_or(c.l1.latency_cycles, |l2| l2.latency_cycles)),
            llc: core.cycles(c.llc.latency_cycles),
            l2_tlb: core.cycles(config.tlbs.l2_cycles),
        };
        Ok(Node {
            cores: vec![core; config.cores as usize],
            line_bits: front.line_bits(),
            front,
            numbers: Numbers::default(),
            latencies,
            arrivals: config.prefetcher.is_some().then(Arrivals::new),
        })
    }

    /// Its translations and caches.
    pub fn front(&self) -> &F {
        &self.front
    }

    /// Its translations and caches, mutable.
    pub fn front_mut(&mut self) -> &mut F {
        &mut self.front
    }

    /// One core.
    pub fn core(&self, core: usize) -> &Core {
        &self.cores[core]
    }

    /// One core, mutable: to make it wait.
    pub fn core_mut(&mut self, core: usize) -> &mut Core {
        &mut self.cores[core]
    }

    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// One reference of one core. Returns the level that served it (the farther one of two lines).
    ///
    /// After a fault only the walk has happened: let the operating system map the page, let time
    /// pass with [`Core::wait_until`], and make the reference again with 0 instructions.
    #[inline]
    pub fn reference(
        &mut self,
        core: usize,
        reference: &Reference,
        table: &mut impl PageTable,
        memory: &mut impl MemoryPort,
    ) -> Result<Level, Fault> {
        self.front.begin();
        self.cores[core].step(reference.instructions);
        self.unblock(core, reference.dependence, memory);
        let at = self.cores[core].issue_time(reference.dependence);
        let (address, write) = (reference.address, reference.kind.is_write());
        let last = address.0 + u64::from(reference.size.max(1) - 1);
        // The most common case first and alone: one line, found in the first level of everything.
        if (address.0 ^ last) >> self.line_bits == 0
            && let Some(physical) = self.front.lookup_first_level(Wanted { core, address, write })
        {
            let line = physical.line(self.line_bits);
            let l1 = self.front.access_first_level(core, line, write);
            if l1.is_hit() {
                if !write {
                    self.cores[core].load_hit(at + self.latencies.l1);
                }
                return Ok(Level::L1);
            }
            let level = self.front.access_farther(core, line, l1);
            self.miss(core, Translated { physical, at, walked: false }, write, level, memory);
            return Ok(level);
        }
        self.reference_farther(core, reference, at, VirtualAddress(last), table, memory)
    }

    /// Dispatches instructions of a core, the last of which is the reference that
    /// [`Node::try_reference`] makes next.
    #[inline]
    pub fn dispatch(&mut self, core: usize, instructions: u32) {
        self.cores[core].step(instructions);
    }

    /// One reference whose instructions were dispatched: for machines whose memory cannot be run
    /// until a request is done, such as a rack in which other parts must run meanwhile. `None` if
    /// the core waits for a completion, and then nothing has happened: pass the completion with
    /// [`Node::complete`] and try again.
    ///
    /// The reference must be in one line, and `memory` must answer requests of the walker at once;
    /// they are the reads that no core waits for.
    #[inline]
    pub fn try_reference(
        &mut self,
        core: usize,
        reference: &Reference,
        table: &mut impl PageTable,
        memory: &mut impl MemoryPort,
    ) -> Result<Option<Level>, Fault> {
        let c = &mut self.cores[core];
        if c.blocked(reference.dependence) || (reference.kind.is_write() && c.store_blocked()) {
            return Ok(None);
        }
        let reference = Reference { instructions: 0, ..*reference };
        self.reference(core, &reference, table, memory).map(Some)
    }

    /// Passes the completion of a pending request to the core that waits. Returns that core.
    pub fn complete(&mut self, completion: Completion) -> Option<usize> {
        let core = (completion.id.0 & NOBODY) as usize;
        self.cores.get_mut(core)?.resolve(completion.id, completion.done);
        Some(core)
    }

    /// A reference to two lines, or to a page that misses in the first-level TLB.
    #[inline(never)]
    fn reference_farther(
        &mut self,
        core: usize,
        reference: &Reference,
        at: Picoseconds,
        last: VirtualAddress,
        table: &mut impl PageTable,
        memory: &mut impl MemoryPort,
    ) -> Result<Level, Fault> {
        let (address, write) = (reference.address, reference.kind.is_write());
        if (address.0 ^ last.0) >> self.line_bits == 0 {
            let page = Wanted { core, address, write };
            let lookup = self.front.lookup_farther(page);
            let translated = self.translate(page, lookup, at, table, memory)?;
            return Ok(self.line(core, translated, write, memory));
        }
        // Two lines, perhaps of two pages. Both are translated before either is used, so that a
        // fault leaves nothing half done.
        let page = Wanted { core, address, write };
        let lookup = self.front.lookup(page);
        let first = self.translate(page, lookup, at, table, memory)?;
        let page = Wanted { address: last, ..page };
        let lookup = self.front.lookup(page);
        let second = self.translate(page, lookup, at, table, memory)?;
        let level = self.line(core, first, write, memory);
        self.unblock(core, reference.dependence, memory);
        Ok(level.max(self.line(core, second, write, memory)))
    }

    /// Waits for everything that a core has under way: its program ends, or is to be stopped.
    pub fn drain(&mut self, core: usize, memory: &mut impl MemoryPort) {
        while self.cores[core].drain() {
            await_completion(&mut self.cores, memory);
        }
    }

    /// Passes a completion that the caller drew from the memory to the core that waits for it.
    pub fn resolve(&mut self, completion: Completion) {
        resolve(&mut self.cores, completion);
    }

    #[inline]
    fn unblock(&mut self, core: usize, dependence: Dependence, memory: &mut impl MemoryPort) {
        while self.cores[core].blocked(dependence) {
            await_completion(&mut self.cores, memory);
        }
    }

    /// Turns a lookup into a translation, by a walk if needed.
    #[inline(always)]
    fn translate(
        &mut self,
        page: Wanted,
        lookup: Lookup,
        at: Picoseconds,
        table: &mut impl PageTable,
        memory: &mut impl MemoryPort,
    ) -> Result<Translated, Fault> {
        let at = match lookup {
            Lookup::L1(physical) => return Ok(Translated { physical, at, walked: false }),
            Lookup::L2(physical) => {
                let at = at + self.latencies.l2_tlb;
                return Ok(Translated { physical, at, walked: false });
            }
            Lookup::Miss | Lookup::Clean => at + self.latencies.l2_tlb,
        };
        let start = self.cores[page.core].start_walk(at);
        let (cores, numbers) = (&mut self.cores, &mut self.numbers);
        let (latencies, line_bits) = (self.latencies, self.line_bits);
        let walked = self.front.walk(page, lookup, start, table, |now, level, line, evicted| {
            write_back(evicted, line_bits, now, numbers, memory);
            match level {
                Level::L1 => now + latencies.l1,
                Level::L2 => now + latencies.l2,
                Level::Llc => now + latencies.llc,
                Level::Memory => {
                    let (at, address) = (now + latencies.llc, line.first_byte(line_bits));
                    walk_memory(at, address, cores, numbers, memory)
                }
            }
        });
        self.cores[page.core].end_walk(match &walked {
            Ok((done, _)) => *done,
            Err(fault) => fault.done,
        });
        let (done, physical) = walked?;
        Ok(Translated { physical, at: done, walked: true })
    }

    /// One line in the caches and, if they do not have it, in memory.
    #[inline(always)]
    fn line(
        &mut self,
        core: usize,
        translated: Translated,
        write: bool,
        memory: &mut impl MemoryPort,
    ) -> Level {
        let line = translated.physical.line(self.line_bits);
        let level = self.front.access(core, line, write);
        if level != Level::L1 {
            self.miss(core, translated, write, level, memory);
        } else if translated.walked {
            let done = translated.at + self.latencies.l1;
            match write {
                true => self.cores[core].late_store(done),
                false => self.cores[core].late_load(done),
            }
        } else if !write {
            self.cores[core].load_hit(translated.at + self.latencies.l1);
        }
        level
    }

    fn miss(
        &mut self,
        core: usize,
        translated: Translated,
        write: bool,
        level: Level,
        memory: &mut impl MemoryPort,
    ) {
        let Translated { physical, mut at, walked } = translated;
        write_back(self.front.writebacks(), self.line_bits, at, &mut self.numbers, memory);
        if write {
            if walked {
                self.cores[core].late_store(at);
            }
            while self.cores[core].store_blocked() {
                await_completion(&mut self.cores, memory);
            }
            at = at.max(self.cores[core].now());
        }
        let start = self.cores[core].start_miss(at);
        let line = physical.line(self.line_bits);
        let (done, cause) = match level {
            Level::L1 | Level::L2 => self.cached(line, start + self.latencies.l2, CAUSE_L2),
            Level::Llc => self.cached(line, start + self.latencies.llc, CAUSE_LLC),
            Level::Memory => {
                let id = self.numbers.next(core as u64);
                let address = line.first_byte(self.line_bits);
                let request = Request { id, address, kind: Kind::Read };
                let (done, memory) = memory.submit(start + self.latencies.llc, request);
                (done, memory_cause(memory))
            }
        };
        if self.arrivals.is_some() {
            self.prefetch(core, line, start + self.latencies.llc, memory);
        }
        if write {
            self.cores[core].store_miss(done);
        } else {
            let walked_until = if walked { translated.at } else { Picoseconds::ZERO };
            self.cores[core].load_miss(start, done, cause, walked_until);
        }
    }

    /// When a line that a cache has answered by `done` is there, and what it waited for: a line
    /// that was prefetched may still be under way.
    #[inline]
    fn cached(&self, line: LineAddress, done: Picoseconds, cause: Cause) -> (When, Cause) {
        match self.arrivals.as_ref().and_then(|arrivals| arrivals.after(line, done)) {
            Some((arrival, memory)) => (When::At(arrival), memory_cause(memory)),
            None => (When::At(done), cause),
        }
    }

    /// Trains a core's prefetcher with a line that its first level missed, and requests the lines
    /// that it asks for at `at`. Where memory does not know yet when they come, they count as there.
    #[inline(never)]
    fn prefetch(
        &mut self,
        core: usize,
        line: LineAddress,
        at: Picoseconds,
        memory: &mut impl MemoryPort,
    ) {
        let Some(arrivals) = &mut self.arrivals else { return };
        let (numbers, line_bits) = (&mut self.numbers, self.line_bits);
        self.front.prefetch(core, line, |line, evicted| {
            write_back(evicted, line_bits, at, numbers, memory);
            let id = numbers.next(NOBODY);
            let address = line.first_byte(line_bits);
            let (done, from) = memory.submit(at, Request { id, address, kind: Kind::Read });
            if let When::At(done) = done {
                arrivals.add(line, done, from);
            }
        });
    }
}

/// A translated address, its time, and whether it took a walk.
#[derive(Debug, Clone, Copy)]
struct Translated {
    physical: PhysicalAddress,
    at: Picoseconds,
    walked: bool,
}

/// Lets memory run to its next completion and passes it to the core that waits.
///
/// # Panics
/// If nothing is pending: then no core can be waiting.
fn await_completion(cores: &mut [Core], memory: &mut impl MemoryPort) -> Completion {
    let completion = memory.next_completion().expect("a core waits for a pending request");
    resolve(cores, completion);
    completion
}

fn resolve(cores: &mut [Core], completion: Completion) {
    if let Some(core) = cores.get_mut((completion.id.0 & NOBODY) as usize) {
        core.resolve(completion.id, completion.done);
    }
}

/// Dirty lines go to memory; no core waits for them.
#[inline]
fn write_back(
    lines: &[LineAddress],
    line_bits: u32,
    at: Picoseconds,
    numbers: &mut Numbers,
    memory: &mut impl MemoryPort,
) {
    for line in lines {
        let address = line.first_byte(line_bits);
        memory.submit(at, Request { id: numbers.next(NOBODY), address, kind: Kind::Write });
    }
}

/// Reads an entry of a page table from memory, and waits for it. Returns when it is there.
fn walk_memory(
    at: Picoseconds,
    address: PhysicalAddress,
    cores: &mut [Core],
    numbers: &mut Numbers,
    memory: &mut impl MemoryPort,
) -> Picoseconds {
    let id = numbers.next(NOBODY);
    match memory.submit(at, Request { id, address, kind: Kind::Read }).0 {
        When::At(done) => done,
        When::Pending(id) => loop {
            let completion = await_completion(cores, memory);
            if completion.id == id {
                break completion.done;
            }
        },
    }
}

pub mod front;
mod streams;
pub mod trace;
mod warm;

use front::{Front, Hardware, Wanted};
pub use streams::StreamPrefetcherConfig;
use streams::{Arrivals, Streams};

#[cfg(test)]
mod tests;

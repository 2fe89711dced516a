//! A machine whose translations and caches a leader simulates (`leader`): it has an operating system,
//! cores and tiers of its own, and takes the time of each reference.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use terrace_core::interfaces::MachineError;
use terrace_core::page::{PageSize, SpaceId};
use terrace_hardware::address::{
    BASE_PAGE_BITS, Kind, LineAddress, PhysicalAddress, VirtualAddress,
};
use terrace_hardware::host::prefetch::prefetch;
use terrace_hardware::node::trace::Reader;
use terrace_hardware::node::{MemoryPort, Node};
use terrace_hardware::request::{Completion, Request, When};
use terrace_hardware::tier::memory::TieredMemory;
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::{Fault, PageTable, Path};
use terrace_os::{Os, OsError};

use super::config::{ReferenceConfig, ReferenceGroup};
use super::counts::TIERS;
use super::group::Work;
use super::leader::{CORE, Led, LedAccesses, Sent};
use super::system;

/// Words of the trace whose frames are fetched ahead on the host: those of some four references that miss.
const WORDS_AHEAD: usize = 24;

/// A machine whose translations and caches a leader simulates.
pub struct Follower {
    name: String,
    node: Node<Reader>,
    memory: TieredMemory,
    os: Os,
    space: SpaceId,
    frames: FrameMap,
    leader: Receiver<Sent>,
    current: Option<Current>,
    start: Picoseconds,
    references: u64,
    /// Lines read from each tier.
    reads: [u64; TIERS],
    ended: bool,
}

/// Accesses that are being made.
struct Current {
    led: Arc<LedAccesses>,
    /// The next access, whether its instructions were dispatched, and the next fault's page.
    next: usize,
    is_dispatched: bool,
    next_mapped: usize,
}

impl Follower {
    pub(super) fn new(
        config: &ReferenceConfig,
        group: ReferenceGroup,
        footprint_bytes: Option<u64>,
        leaders_root: &Path,
        leader: Receiver<Sent>,
    ) -> Result<Self, MachineError> {
        let failed = |e: terrace_hardware::error::ConfigError| MachineError(e.to_string());
        let memory = TieredMemory::new(&config.hardware.tiers).map_err(failed)?;
        let mut os = system::new(config, &memory)?;
        let (space, _) = system::create_process(&mut os, &group, footprint_bytes)?;
        let node_config = &config.hardware.node;
        let line_bits = node_config.caches.llc.line_bytes.trailing_zeros();
        let reader = Reader::new(line_bits);
        let mut frames = FrameMap {
            levels: config.os.levels as usize,
            page_line_bits: BASE_PAGE_BITS - line_bits,
            own: Vec::new(),
        };
        frames.follow(leaders_root, &os.space(space).path(VirtualAddress(0)))?;
        Ok(Follower {
            node: Node::with_front(node_config, reader).map_err(failed)?,
            name: group.name,
            memory,
            os,
            space,
            frames,
            leader,
            current: None,
            start: Picoseconds::from_ns(group.start_ns),
            references: 0,
            reads: [0; TIERS],
            ended: false,
        })
    }

    /// Lines read from each tier so far.
    pub fn reads(&self) -> [u64; TIERS] {
        self.reads
    }

    /// Runs the program for so many references more. The work has no scan.
    pub fn run_references(&mut self, references: u64) -> Result<Work, MachineError> {
        let (before, made) = (self.node.core(CORE).now(), self.references);
        self.node.core_mut(CORE).wait_until(self.start);
        let pause_at = made + references;
        while self.references < pause_at && !self.ended {
            match self.current.take() {
                Some(mut current) => {
                    if self.make(&mut current, pause_at)? {
                        self.current = Some(current);
                    }
                }
                None => self.step()?,
            }
        }
        Ok(Work {
            scan: None,
            page_reads: Vec::new(),
            references: self.references - made,
            took: self.node.core(CORE).now().since(before),
            ended: self.ended,
        })
    }

    fn failed(&self, message: &str) -> MachineError {
        MachineError(format!("group '{}': {message}", self.name))
    }

    /// Does the leader's next step.
    fn step(&mut self) -> Result<(), MachineError> {
        let sent = self.leader.recv();
        let sent = sent.map_err(|_| self.failed("the machine that it follows has stopped"))?;
        match sent.map_err(MachineError)? {
            Led::Accesses(led) => {
                self.node.front_mut().read(Arc::clone(&led.trace));
                self.current = Some(Current { led, next: 0, is_dispatched: false, next_mapped: 0 });
            }
            Led::Map { start, size_bytes, huge_eligible } => {
                self.unmap(start, size_bytes)?;
                let mapped = self.os.map(self.space, start, size_bytes, huge_eligible);
                mapped.map_err(|e| self.failed(&e.to_string()))?;
            }
            Led::Unmap { start, size_bytes } => self.unmap(start, size_bytes)?,
            Led::Ended => {
                let mut port =
                    Port { memory: &mut self.memory, frames: &self.frames, reads: &mut self.reads };
                self.node.drain(CORE, &mut port);
                self.ended = true;
            }
        }
        Ok(())
    }

    fn unmap(&mut self, start: u64, size_bytes: u64) -> Result<(), MachineError> {
        let unmapped = self.os.unmap(self.space, start, size_bytes);
        let unmapped = unmapped.map_err(|e| self.failed(&e.to_string()))?;
        // No other processor runs the program.
        let shootdown = unmapped.shootdown.map_or(Picoseconds::ZERO, |s| s.initiator(0));
        let core = self.node.core_mut(CORE);
        core.wait_until(core.now() + unmapped.cost + shootdown);
        Ok(())
    }

    /// Makes accesses until so many are made in all; whether some are left.
    fn make(&mut self, current: &mut Current, pause_at: u64) -> Result<bool, MachineError> {
        let led = Arc::clone(&current.led);
        let left = usize::try_from(pause_at - self.references).unwrap_or(usize::MAX);
        let end = led.accesses.len().min(current.next.saturating_add(left));
        while current.next < end {
            let first = current.next;
            let fault = self.make_until_fault(current, end);
            self.references += (current.next - first) as u64;
            let Some(fault) = fault else { break };
            current.is_dispatched = true;
            let mapped = led.mapped.get(current.next_mapped);
            let mapped = mapped.ok_or_else(|| self.failed("a page fault that its leader lacks"))?;
            current.next_mapped += 1;
            self.fault(&fault, mapped)?;
        }
        Ok(current.next < led.accesses.len())
    }

    fn make_until_fault(&mut self, current: &mut Current, end: usize) -> Option<Fault> {
        let mut port =
            Port { memory: &mut self.memory, frames: &self.frames, reads: &mut self.reads };
        let space = self.os.space_mut(self.space);
        for access in &current.led.accesses[current.next..end] {
            let frames = port.frames;
            self.node.front_mut().look_ahead(WORDS_AHEAD, |line| frames.prefetch(line));
            let mut reference = access.reference();
            if std::mem::take(&mut current.is_dispatched) {
                reference.instructions = 0;
            }
            if let Err(fault) = self.node.reference(CORE, &reference, space, &mut port) {
                return Some(fault);
            }
            current.next += 1;
        }
        None
    }

    /// Serves a page fault, after which the leader has the page there.
    fn fault(&mut self, fault: &Fault, leaders: &Path) -> Result<(), MachineError> {
        let (outcome, _) = system::serve(&mut self.os, self.space, fault);
        let outcome = outcome.map_err(|e: OsError| self.failed(&e.to_string()))?;
        let resumed = fault.done + system::time_of(&self.os, &outcome);
        self.node.core_mut(CORE).wait_until(resumed);
        self.frames.follow(leaders, &self.os.space(self.space).path(fault.address))
    }
}

/// By the leader's base-page frame: this machine's frame with the same contents.
struct FrameMap {
    /// Levels of page tables.
    levels: usize,
    /// Binary logarithm of the lines of a base page.
    page_line_bits: u32,
    own: Vec<u32>,
}

impl FrameMap {
    /// Takes the frames of page tables and of the page on the way to one address.
    fn follow(&mut self, leaders: &Path, own: &Path) -> Result<(), MachineError> {
        let sizes = [leaders, own].map(|path| path.leaf.map(|leaf| leaf.size));
        if sizes[0] != sizes[1] || leaders.lowest != own.lowest {
            return Err(MachineError(format!(
                "a page of {:?} where the machine that it follows has one of {:?}; expected the same",
                sizes[1], sizes[0]
            )));
        }
        for level in leaders.lowest..self.levels {
            self.set(leaders.tables[level], own.tables[level], PageSize::Base);
        }
        if let (Some(leaders), Some(own)) = (leaders.leaf, own.leaf) {
            self.set(leaders.frame, own.frame, own.size);
        }
        Ok(())
    }

    fn set(&mut self, leaders: PhysicalAddress, own: PhysicalAddress, size: PageSize) {
        let [leaders, own] = [leaders, own].map(|address| (address.0 >> BASE_PAGE_BITS) as usize);
        let frames = (size.bytes() >> BASE_PAGE_BITS) as usize;
        if self.own.len() < leaders + frames {
            self.own.resize((leaders + frames).next_power_of_two(), 0);
        }
        for n in 0..frames {
            self.own[leaders + n] = (own + n) as u32;
        }
    }

    /// Fetches on the host what the frame of a line will be found by.
    #[inline]
    fn prefetch(&self, line: LineAddress) {
        prefetch(&self.own, (line.0 >> self.page_line_bits) as usize);
    }

    #[inline]
    fn own(&self, leaders: PhysicalAddress) -> PhysicalAddress {
        let frame = self.own[(leaders.0 >> BASE_PAGE_BITS) as usize];
        let offset = leaders.0 & ((1 << BASE_PAGE_BITS) - 1);
        PhysicalAddress(u64::from(frame) << BASE_PAGE_BITS | offset)
    }
}

/// The path to memory, from the leader's addresses.
struct Port<'a> {
    memory: &'a mut TieredMemory,
    frames: &'a FrameMap,
    reads: &'a mut [u64; TIERS],
}

impl MemoryPort for Port<'_> {
    #[inline]
    fn submit(&mut self, at: Picoseconds, mut request: Request) -> (When, usize) {
        request.address = self.frames.own(request.address);
        let (when, tier) = self.memory.submit(at, request);
        if request.kind == Kind::Read {
            self.reads[tier.min(TIERS - 1)] += 1;
        }
        (when, tier)
    }

    fn next_completion(&mut self) -> Option<Completion> {
        self.memory.next_completion()
    }
}

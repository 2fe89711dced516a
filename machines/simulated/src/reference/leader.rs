//! Translations and caches for several machines that run one program and differ in the tier of its
//! pages alone.
//!
//! What references do to TLBs, walkers and caches depends on their order and on physical addresses. So a
//! leader simulates that once, with all memory fast and in no time, and writes it down. Each of its
//! followers (`follower`) has an operating system, cores and memory of its own, and computes how long
//! it takes there. Lines are the leader's in all of them: machines that differ in the tier of a page
//! would also differ in the sets of its lines otherwise, which is chance.
//!
//! That is as good as simulating each alone only where the order of references does not depend on times:
//! for a program of one thread, alone on its machine, from its start to its end ([`can_lead`]).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use terrace_core::interfaces::MachineError;
use terrace_core::page::{PageSize, SpaceId};
use terrace_hardware::address::{BASE_PAGE_BITS, VirtualAddress};
use terrace_hardware::node::Node;
use terrace_hardware::node::front::Hardware;
use terrace_hardware::node::trace::{Trace, Writer};
use terrace_hardware::prefetch::{AHEAD, Prefetcher};
use terrace_hardware::tier::memory::TieredMemory;
use terrace_hardware::walker::{Fault, PageTable, Path};
use terrace_os::config::HugePages;
use terrace_os::{Os, OsError};

use super::config::{ReferenceConfig, ReferenceGroup};
use super::follower::Follower;
use super::program::MISSES_WORTH_LOOKING;
use super::source::{Access, ReferenceSource, Step};
use super::system;

/// Steps that the leader may be before its slowest follower: 5 MB of a program that misses much.
const STEPS_AHEAD: usize = 8;
/// A leader's program has one thread, on the first core.
pub(super) const CORE: usize = 0;

/// A step of the program as a follower gets it.
#[derive(Debug, Clone)]
pub(super) enum Led {
    Accesses(Arc<LedAccesses>),
    Map { start: u64, size_bytes: u64, huge_eligible: bool },
    Unmap { start: u64, size_bytes: u64 },
    Ended,
}

/// Accesses in program order, and what they did.
#[derive(Debug)]
pub(super) struct LedAccesses {
    pub(super) accesses: Vec<Access>,
    pub(super) trace: Arc<Trace>,
    /// Where the leader's page table has the page of each fault, once it was served.
    pub(super) mapped: Vec<Path>,
}

/// What a leader sends: a step, or why there is none.
pub(super) type Sent = Result<Led, String>;

/// Whether machines with this configuration can follow a leader that runs this group's program. Where
/// every mapping may have huge pages, one without fast memory for them has base pages in their place, and
/// others walk otherwise.
pub fn can_lead(
    config: &ReferenceConfig,
    group: &ReferenceGroup,
    source: &dyn ReferenceSource,
) -> bool {
    let bytes: u64 = config.hardware.tiers.iter().map(|tier| tier.capacity.0).sum();
    source.threads() <= 1
        && group.stop_ns.is_none()
        && group.stop_after_start_up_of.is_none()
        && !group.tables.hard
        && config.os.huge_pages != HugePages::Always
        // A follower's numbers of frames have 32 bits.
        && bytes >> BASE_PAGE_BITS <= u64::from(u32::MAX)
}

/// Machines that run the program of a source as these groups, which differ in their fast memory alone.
/// `all_fast` is the same group with all memory fast. What the leader does ends with the source, or
/// when the last of the machines is dropped.
pub fn lead(
    config: &ReferenceConfig,
    all_fast: &ReferenceGroup,
    groups: Vec<ReferenceGroup>,
    source: Box<dyn ReferenceSource>,
) -> Result<Vec<Follower>, MachineError> {
    let footprint_bytes = source.footprint_bytes();
    let leader = Leader::new(config, all_fast, footprint_bytes)?;
    let root = leader.os.space(leader.space).path(VirtualAddress(0));
    let (mut senders, mut followers) = (Vec::new(), Vec::new());
    for group in groups {
        let (sender, receiver): (_, Receiver<Sent>) = sync_channel(STEPS_AHEAD);
        followers.push(Follower::new(config, group, footprint_bytes, &root, receiver)?);
        senders.push(sender);
    }
    std::thread::spawn(move || leader.run(source, senders));
    Ok(followers)
}

struct Leader {
    name: String,
    node: Node<Writer>,
    os: Os,
    space: SpaceId,
    page_size: PageSize,
    ahead: Prefetcher,
    /// Misses of the first level before this block.
    misses_before: u64,
}

impl Leader {
    fn new(
        config: &ReferenceConfig,
        group: &ReferenceGroup,
        footprint_bytes: Option<u64>,
    ) -> Result<Self, MachineError> {
        let failed = |e: terrace_hardware::error::ConfigError| MachineError(e.to_string());
        let memory = TieredMemory::new(&config.hardware.tiers).map_err(failed)?;
        let mut os = system::new(config, &memory)?;
        let (space, _) = system::create_process(&mut os, group, footprint_bytes)?;
        let hardware = Hardware::new(&config.hardware.node).map_err(failed)?;
        let node =
            Node::with_front(&config.hardware.node, Writer::new(hardware)).map_err(failed)?;
        Ok(Leader {
            name: group.name.clone(),
            node,
            os,
            space,
            page_size: group.page_size,
            ahead: Prefetcher::default(),
            misses_before: 0,
        })
    }

    /// Sends each step to everyone who is still there.
    fn run(mut self, mut source: Box<dyn ReferenceSource>, mut senders: Vec<SyncSender<Sent>>) {
        while !senders.is_empty() {
            let step = source.next_step().map_err(|e| self.failed(&e.0));
            let led = match step.and_then(|step| self.step(step)) {
                Ok(None) => continue,
                Ok(Some(led)) => Ok(led),
                Err(error) => Err(error.0),
            };
            let is_last = matches!(led, Ok(Led::Ended) | Err(_));
            senders.retain(|sender| sender.send(led.clone()).is_ok());
            if is_last {
                return;
            }
        }
    }

    fn failed(&self, message: &str) -> MachineError {
        MachineError(format!("group '{}': {message}", self.name))
    }

    /// What followers get of a step of the source; `None` for one that changes nothing.
    fn step(&mut self, step: Step) -> Result<Option<Led>, MachineError> {
        Ok(match step {
            Step::Accesses(accesses) => Some(Led::Accesses(Arc::new(self.accesses(accesses)?))),
            // One thread waits for nobody.
            Step::Barrier | Step::MainBegins => None,
            Step::Map { start, size_bytes, huge_eligible } => {
                self.unmap(start, size_bytes)?;
                let huge = huge_eligible && self.page_size == PageSize::Huge;
                let mapped = self.os.map(self.space, start, size_bytes, huge);
                mapped.map_err(|e| self.failed(&e.to_string()))?;
                Some(Led::Map { start, size_bytes, huge_eligible: huge })
            }
            Step::Unmap { start, size_bytes } => {
                self.unmap(start, size_bytes)?;
                Some(Led::Unmap { start, size_bytes })
            }
            Step::Ended => Some(Led::Ended),
        })
    }

    fn unmap(&mut self, start: u64, size_bytes: u64) -> Result<(), MachineError> {
        let unmapped = self.os.unmap(self.space, start, size_bytes);
        let unmapped = unmapped.map_err(|e| self.failed(&e.to_string()))?;
        let hardware = self.node.front_mut().hardware_mut();
        if let Some(shootdown) = &unmapped.shootdown {
            if shootdown.full {
                hardware.flush_translations(CORE);
            } else {
                for range in &shootdown.ranges {
                    hardware.invalidate_range(CORE, VirtualAddress(range.start), range.size_bytes);
                }
            }
        }
        Ok(())
    }

    fn accesses(&mut self, accesses: Vec<Access>) -> Result<LedAccesses, MachineError> {
        let looks_ahead = self.looks_ahead(accesses.len());
        let (mut next, mut mapped) = (0, Vec::new());
        while next < accesses.len() {
            let stopped = match looks_ahead {
                true => self.make::<true>(&accesses, next),
                false => self.make::<false>(&accesses, next),
            };
            let Some((at, fault)) = stopped else { break };
            next = at;
            let (outcome, _) = system::serve(&mut self.os, self.space, &fault);
            outcome.map_err(|e: OsError| self.failed(&e.to_string()))?;
            mapped.push(self.os.space(self.space).path(fault.address));
        }
        let trace = Arc::new(self.node.front_mut().take());
        Ok(LedAccesses { accesses, trace, mapped })
    }

    /// Makes accesses from this one on; the one that faulted, if one did.
    fn make<const LOOK_AHEAD: bool>(
        &mut self,
        accesses: &[Access],
        first: usize,
    ) -> Option<(usize, Fault)> {
        let space = self.os.space_mut(self.space);
        for (n, access) in accesses.iter().enumerate().skip(first) {
            if LOOK_AHEAD {
                let next = accesses.get(n + AHEAD).map(|a| (CORE, VirtualAddress(a.address)));
                let caches = self.node.front().hardware().caches();
                self.ahead.step(n, next, caches, space);
            }
            if let Err(fault) = self.node.warm(CORE, &access.reference(), space) {
                return Some((n, fault));
            }
        }
        None
    }

    /// Whether looking ahead is worth it: the block before missed the first level often enough.
    fn looks_ahead(&mut self, accesses: usize) -> bool {
        let misses = self.node.front().hardware().caches().private(CORE).0.counts().misses();
        let missed = misses - std::mem::replace(&mut self.misses_before, misses);
        self.ahead.clear();
        missed >= accesses as u64 / MISSES_WORTH_LOOKING
    }
}

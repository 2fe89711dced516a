//! A program on the machine: the position in its stream, the cores of its threads, and running it
//! up to a point in time.

use terrace_core::page::SpaceId;
use terrace_hardware::address::VirtualAddress;
use terrace_hardware::node::Node;
use terrace_hardware::prefetch::{AHEAD, Prefetcher};
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::Fault;
use terrace_os::Os;
use terrace_os::moves::MoveId;

use super::counts::{CoreSums, Counts};
use super::machine::Killed;
use super::port::Port;
use super::source::{Access, ReferenceSource, Step};

/// Misses of the first level: one in so many accesses makes looking ahead worth its cost.
pub(super) const MISSES_WORTH_LOOKING: u64 = 16;

/// Why a program stopped running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The program has reached the horizon.
    Horizon,
    /// The program touched a page that is not mapped.
    Fault(usize, Fault),
    /// The accesses are used up: the next step of the source is needed.
    Hungry,
}

/// The state of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The program starts at this time.
    Before(Picoseconds),
    /// The program runs.
    Running,
    /// The program has made the references requested.
    Paused,
    /// The program waits for the page of this address, which moves, on this core and since then.
    Waiting(MoveId, u64, usize, Picoseconds),
    /// The program ended at this time.
    Ended(Picoseconds),
}

/// A program.
pub(super) struct Program {
    pub(super) name: String,
    pub(super) space: SpaceId,
    pub(super) source: Box<dyn ReferenceSource>,
    /// The core of each thread.
    pub(super) cores: Vec<usize>,
    /// Those cores, each once.
    pub(super) own_cores: Vec<usize>,
    pub(super) phase: Phase,
    /// The machine's number of its last turn, where programs share a core; else 0.
    pub(super) last_turn: u64,
    /// Time at which the program is ended, if it has not ended by itself.
    pub(super) stop_at: Option<Picoseconds>,
    /// The program at the end of whose start-up it is ended.
    pub(super) stop_after_start_up_of: Option<String>,
    block: Vec<Access>,
    next: usize,
    /// The program pauses after so many references.
    pub(super) pause_at: u64,
    /// Accesses of a block beyond the pause.
    held: Vec<Access>,
    /// References change caches, TLBs and page tables, and take no time.
    pub(super) is_warming: bool,
    /// Its start-up is over.
    pub(super) is_in_main: bool,
    ahead: Prefetcher,
    /// Whether looking ahead is worth it: the block before missed much.
    looks_ahead: bool,
    /// Misses of its cores' first levels before this block.
    misses_before: u64,
    /// Cost so far.
    pub(super) counts: Counts,
    /// Accesses to unmapped memory that the machine mapped, because the source may not report all
    /// memory.
    pub(super) unmapped_accesses: u64,
    /// The program was killed because memory ran out.
    pub(super) killed: Option<Killed>,
    /// The program was ended before it ended by itself.
    pub(super) was_stopped: bool,
}

impl Program {
    pub(super) fn new(
        name: String,
        space: SpaceId,
        source: Box<dyn ReferenceSource>,
        cores: Vec<usize>,
        start: Picoseconds,
        stop_at: Option<Picoseconds>,
    ) -> Self {
        let mut own_cores = cores.clone();
        own_cores.sort_unstable();
        own_cores.dedup();
        Program {
            name,
            space,
            source,
            cores,
            own_cores,
            phase: Phase::Before(start),
            last_turn: 0,
            stop_at,
            stop_after_start_up_of: None,
            block: Vec::new(),
            next: 0,
            pause_at: u64::MAX,
            held: Vec::new(),
            is_warming: false,
            is_in_main: false,
            ahead: Prefetcher::default(),
            looks_ahead: false,
            misses_before: 0,
            counts: Counts::default(),
            unmapped_accesses: 0,
            killed: None,
            was_stopped: false,
        }
    }

    /// The core of the program's next access.
    pub(super) fn next_core(&self) -> usize {
        let access = self.block.get(self.next).or(self.block.last());
        self.core_of(access.map_or(0, |a| a.thread))
    }

    #[inline(always)]
    fn core_of(&self, thread: u16) -> usize {
        self.cores[usize::from(thread) % self.cores.len()]
    }

    /// The time at which the program can go on; `None` when it waits for something else than time.
    pub(super) fn ready_at(&self, node: &Node) -> Option<Picoseconds> {
        match self.phase {
            Phase::Before(start) => Some(start),
            Phase::Running => Some(node.core(self.next_core()).now()),
            Phase::Paused | Phase::Waiting(..) | Phase::Ended(_) => None,
        }
    }

    /// The latest time of its cores.
    pub(super) fn latest(&self, node: &Node) -> Picoseconds {
        let times = self.own_cores.iter().map(|&core| node.core(core).now());
        times.max().unwrap_or(Picoseconds::ZERO)
    }

    /// Lets no core of the program be behind this time.
    pub(super) fn catch_up(&self, node: &mut Node, time: Picoseconds) {
        for &core in &self.own_cores {
            node.core_mut(core).wait_until(time);
        }
    }

    /// Whether the program has reached its pause.
    pub(super) fn is_at_pause(&self) -> bool {
        self.next == self.block.len() && self.counts.references >= self.pause_at
    }

    /// Takes the source's next step. Accesses are kept here; any other step is for the machine.
    pub(super) fn refill(
        &mut self,
        node: &Node,
    ) -> Result<Option<Step>, terrace_recordings::source::SourceError> {
        let mut block = match std::mem::take(&mut self.held) {
            held if !held.is_empty() => held,
            _ => match self.source.next_step()? {
                Step::Accesses(block) => block,
                other => return Ok(Some(other)),
            },
        };
        let left = self.pause_at - self.counts.references;
        if left < block.len() as u64 {
            self.held = block.split_off(left as usize);
        }
        self.decide_to_look_ahead(node);
        (self.block, self.next) = (block, 0);
        Ok(None)
    }

    /// Decides to look ahead in the next block if this one missed the first level often enough.
    fn decide_to_look_ahead(&mut self, node: &Node) {
        let misses = |&core: &usize| node.caches().private(core).0.counts().misses();
        let misses: u64 = self.own_cores.iter().map(misses).sum();
        let missed = misses - std::mem::replace(&mut self.misses_before, misses);
        self.looks_ahead = missed >= self.block.len() as u64 / MISSES_WORTH_LOOKING;
        self.ahead.clear();
    }

    /// Makes accesses until the horizon, a fault, or the end of the block.
    pub(super) fn run(
        &mut self,
        horizon: Picoseconds,
        node: &mut Node,
        os: &mut Os,
        port: &mut Port<'_>,
    ) -> Stop {
        let before = CoreSums::of(node, &self.own_cores);
        let first = self.next;
        let stop = match self.is_warming {
            false => self.run_as::<false>(horizon, node, os, port),
            true => self.run_as::<true>(horizon, node, os, port),
        };
        let references = (self.next - first) as u64;
        self.counts.references += references;
        if self.is_in_main {
            self.counts.main_references += references;
        }
        self.counts.add_cores(&before, &CoreSums::of(node, &self.own_cores));
        port.give(&mut self.counts);
        stop
    }

    #[inline(always)]
    fn run_as<const WARM: bool>(
        &mut self,
        horizon: Picoseconds,
        node: &mut Node,
        os: &mut Os,
        port: &mut Port<'_>,
    ) -> Stop {
        let of_thread = |cores: &[usize], thread| cores[usize::from(thread) % cores.len()];
        match (self.cores.len(), self.looks_ahead) {
            (1, false) => self.run_on::<false, WARM>(horizon, node, os, port, |cores, _| cores[0]),
            (1, true) => self.run_on::<true, WARM>(horizon, node, os, port, |cores, _| cores[0]),
            (_, false) => self.run_on::<false, WARM>(horizon, node, os, port, of_thread),
            (_, true) => self.run_on::<true, WARM>(horizon, node, os, port, of_thread),
        }
    }

    #[inline(always)]
    fn run_on<const LOOK_AHEAD: bool, const WARM: bool>(
        &mut self,
        horizon: Picoseconds,
        node: &mut Node,
        os: &mut Os,
        port: &mut Port<'_>,
        core_of: impl Fn(&[usize], u16) -> usize,
    ) -> Stop {
        let space = os.space_mut(self.space);
        for access in &self.block[self.next..] {
            let core = core_of(&self.cores, access.thread);
            if LOOK_AHEAD {
                let next = self.block.get(self.next + AHEAD);
                let next =
                    next.map(|a| (core_of(&self.cores, a.thread), VirtualAddress(a.address)));
                self.ahead.step(self.next, next, node.caches(), space);
            }
            let reference = access.reference();
            let made = match WARM {
                false => node.reference(core, &reference, space, port),
                true => node.warm(core, &reference, space),
            };
            if let Err(fault) = made {
                // The instructions are dispatched; the access is made again without them.
                self.block[self.next].instructions = 0;
                return Stop::Fault(core, fault);
            }
            self.next += 1;
            if node.core(core).now() > horizon {
                return Stop::Horizon;
            }
        }
        Stop::Hungry
    }
}

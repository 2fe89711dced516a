//! A core: how much of memory's time becomes time of the program.
//!
//! An interval model with leading misses (Eyerman et al., "A mechanistic performance model for
//! superscalar out-of-order processors", TOCS 2009; the leading-load idea of the granularity paper,
//! section 5). The core dispatches instructions at a constant rate. A load that leaves the first
//! level waits in a window of `window_instructions`; dispatch goes on until the window is full of
//! the oldest unfinished load, then the core stalls until that load is done. Loads within one
//! window overlap, so a group of misses costs about one latency. Bounds:
//! - the oldest unfinished load and what is behind it hold one of `load_store_queue` entries for each
//!   load and store, where that is given;
//! - at most `outstanding_misses` lines are under way; a further miss starts when one is done;
//! - a load that needs the one before (a pointer chase) starts when that one is done;
//! - stores leave the window at once and wait in a store buffer, which stalls dispatch when full;
//! - page walks need one of `page_walkers`.
//!
//! Not modelled: branch mispredictions and instruction fetch (they are in `instructions_per_cycle`),
//! and that a second load of a line under way waits for the first (its leading load already holds
//! the window). Prefetchers are the node's.
//!
//! A completion time that memory does not know yet ([`When::Pending`]) is passed later with
//! [`Core::resolve`]. The core goes on without it as long as it can; [`Core::blocked`] reports when
//! it cannot, and the caller then lets memory run to its next completion.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check_range};
use crate::request::{RequestId, When};
use crate::units::Picoseconds;

/// One core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CoreConfig {
    /// Clock frequency.
    #[schemars(range(min = 1, max = 100000))]
    pub clock_mhz: u32,
    /// Instructions dispatched per cycle without stalls.
    #[schemars(range(min = 0.01, max = 64.0))]
    pub instructions_per_cycle: f64,
    /// Instructions in flight (reorder buffer).
    #[schemars(range(min = 1, max = 65536))]
    pub window_instructions: u32,
    /// Loads and stores among these (load and store queue); as many as the window if not given.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65536))]
    pub load_store_queue: Option<u32>,
    /// Lines that the first level can have under way (line fill buffers).
    #[schemars(range(min = 1, max = 4096))]
    pub outstanding_misses: u32,
    /// Stores waiting after they retired.
    #[schemars(range(min = 1, max = 65536))]
    pub store_buffer: u32,
    /// Page walks at once.
    #[schemars(range(min = 1, max = 64))]
    pub page_walkers: u32,
}

/// The cause of a stall; the caller passes it with each miss. Indexes [`CoreCounts::stall_ps`].
pub type Cause = u8;
/// Number of causes counted apart.
pub const CAUSES: usize = 8;
/// Stalls that waited for a page walk; indexes [`CoreCounts::stall_ps`].
pub const CAUSE_WALK: Cause = 0;
/// Causes from this on are memories, those before caches and walks.
pub const FIRST_MEMORY_CAUSE: Cause = 3;

/// Whether a load needs the result of the load before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependence {
    /// The address was known.
    None,
    /// The address is the result of the load before.
    PreviousLoad,
    /// The address is known from this time on: the caller follows its sources.
    Until(Picoseconds),
}

/// Counters of one core. Times in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CoreCounts {
    /// Instructions dispatched.
    pub instructions: u64,
    /// Time of dispatching.
    pub compute_ps: u64,
    /// Stalls with a full window, by what the oldest load waited for at the time: its page walk
    /// until it was translated, and its own cause from then on.
    pub stall_ps: [u64; CAUSES],
    /// Stalls with a full store buffer.
    pub store_stall_ps: u64,
    /// Time that misses waited for one of the `outstanding_misses`.
    pub miss_queue_ps: u64,
    /// Time that page walks waited for a walker.
    pub walk_queue_ps: u64,
    /// Loads from memory that found no other under way.
    pub leading_loads: u64,
    /// Total time of the leading loads: the memory time of the leading-load model.
    pub leading_load_ps: u64,
}

/// A time that may not be known yet.
#[derive(Debug, Clone, Copy)]
struct Finish {
    /// The time, or [`UNKNOWN`].
    time: u64,
    /// The request, while the time is unknown.
    id: RequestId,
}

const UNKNOWN: u64 = u64::MAX;

impl Finish {
    fn new(when: When) -> Self {
        match when {
            When::At(time) => Finish { time: time.0, id: RequestId(0) },
            When::Pending(id) => Finish { time: UNKNOWN, id },
        }
    }

    fn is_unknown(&self) -> bool {
        self.time == UNKNOWN
    }

    /// Sets the time if it is this request's; returns whether it was.
    fn resolve(&mut self, id: RequestId, time: Picoseconds) -> bool {
        let mine = self.is_unknown() && self.id == id;
        if mine {
            self.time = time.0;
        }
        mine
    }
}

/// The load or store that waits for a miss: its number, counted from the beginning.
#[derive(Debug, Clone, Copy)]
enum Waits {
    Load(u64),
    Store(u64),
}

/// A load that holds the window.
#[derive(Debug, Clone, Copy)]
struct Load {
    /// Instructions dispatched before it.
    instruction: u64,
    /// Loads and stores dispatched up to it.
    reference: u64,
    finish: Finish,
    cause: Cause,
    /// When its page walk was done; 0 without one.
    walked_ps: u64,
}

/// One core.
#[derive(Debug, Clone)]
pub struct Core {
    now: Picoseconds,
    /// Time per instruction in femtoseconds, and the remainder of the last step.
    instruction_fs: u64,
    remainder_fs: u64,
    cycle_fs: u64,
    window: u64,
    /// Entries for loads and stores.
    queue: u64,
    store_buffer: usize,
    outstanding: usize,
    loads: VecDeque<Load>,
    /// The instruction at which the window is full of the oldest load; without a load, none.
    full_at: u64,
    /// Loads and stores dispatched, and the one at which the queue is full of the oldest load.
    references: u64,
    queue_full_at: u64,
    stores: VecDeque<Finish>,
    /// Arrival times of lines under way, where they are known, in their order.
    misses: VecDeque<u64>,
    /// The other lines under way: their requests, and what waits for them.
    unknown: Vec<(RequestId, Waits)>,
    /// Loads and stores that have left their queues.
    loads_gone: u64,
    stores_gone: u64,
    /// When each page walker is free.
    walkers: Vec<u64>,
    last_load: Finish,
    /// The last leading load, and when it started.
    leading: Finish,
    leading_start: u64,
    /// Number of unknown finishes.
    pending: usize,
    counts: CoreCounts,
}

impl Core {
    /// A core at time 0.
    pub fn new(config: &CoreConfig) -> Result<Self, ConfigError> {
        let part = "core";
        check_range(part, "clock_mhz", u64::from(config.clock_mhz), 1..=100_000)?;
        check_range(part, "window_instructions", u64::from(config.window_instructions), 1..=65536)?;
        check_range(part, "outstanding_misses", u64::from(config.outstanding_misses), 1..=4096)?;
        check_range(part, "store_buffer", u64::from(config.store_buffer), 1..=65536)?;
        check_range(part, "page_walkers", u64::from(config.page_walkers), 1..=64)?;
        if let Some(entries) = config.load_store_queue {
            check_range(part, "load_store_queue", u64::from(entries), 1..=65536)?;
        }
        let ipc = config.instructions_per_cycle;
        if !(0.01..=64.0).contains(&ipc) {
            return Err(ConfigError::new(
                part,
                format!("instructions_per_cycle is {ipc}; expected 0.01 to 64"),
            ));
        }
        let cycle_fs = 1_000_000_000 / u64::from(config.clock_mhz);
        Ok(Core {
            now: Picoseconds::ZERO,
            instruction_fs: (cycle_fs as f64 / ipc).round() as u64,
            remainder_fs: 0,
            cycle_fs,
            window: u64::from(config.window_instructions),
            queue: config.load_store_queue.map_or(u64::MAX >> 1, u64::from),
            store_buffer: config.store_buffer as usize,
            outstanding: config.outstanding_misses as usize,
            loads: VecDeque::with_capacity(config.window_instructions as usize),
            full_at: u64::MAX,
            references: 0,
            queue_full_at: u64::MAX,
            stores: VecDeque::with_capacity(config.store_buffer as usize),
            misses: VecDeque::with_capacity(config.outstanding_misses as usize),
            unknown: Vec::new(),
            loads_gone: 0,
            stores_gone: 0,
            walkers: vec![0; config.page_walkers as usize],
            last_load: Finish { time: 0, id: RequestId(0) },
            leading: Finish { time: 0, id: RequestId(0) },
            leading_start: 0,
            pending: 0,
            counts: CoreCounts::default(),
        })
    }

    /// The current time of dispatch.
    #[inline]
    pub fn now(&self) -> Picoseconds {
        self.now
    }

    /// The counters so far.
    pub fn counts(&self) -> CoreCounts {
        self.counts
    }

    /// This many cycles of this core's clock.
    #[inline]
    pub fn cycles(&self, cycles: u32) -> Picoseconds {
        Picoseconds(u64::from(cycles) * self.cycle_fs / 1000)
    }

    /// Dispatches `instructions`, the last of which is the next reference. Then, before the
    /// reference, [`Core::blocked`] must return `None`.
    #[inline]
    pub fn step(&mut self, instructions: u32) {
        let fs = u64::from(instructions) * self.instruction_fs + self.remainder_fs;
        self.remainder_fs = fs % 1000;
        let ps = fs / 1000;
        self.counts.instructions += u64::from(instructions);
        // 0 if the instructions were dispatched before.
        self.references += u64::from(instructions > 0);
        self.counts.compute_ps += ps;
        self.now += Picoseconds(ps);
    }

    /// Lets the loads leave the window that the instructions dispatched so far push out, stalling
    /// for those not done. `true` if a completion must be passed first; then call again.
    #[inline(always)]
    pub fn blocked(&mut self, dependence: Dependence) -> bool {
        if self.counts.instructions < self.full_at
            && self.references < self.queue_full_at
            && self.pending == 0
        {
            return false;
        }
        self.make_room(dependence)
    }

    fn make_room(&mut self, dependence: Dependence) -> bool {
        while self.full_at <= self.counts.instructions || self.queue_full_at <= self.references {
            let Some(oldest) = self.loads.front() else { break };
            if oldest.finish.is_unknown() {
                return true;
            }
            // Instructions after the one at which the window is full are dispatched after the
            // stall. The queue is full at the last one, which is the reference.
            let after =
                self.counts.instructions.saturating_sub(self.full_at) * self.instruction_fs / 1000;
            let resumed = Picoseconds(oldest.finish.time + after);
            let oldest = *oldest;
            self.stall(oldest, resumed);
            self.loads.pop_front();
            self.loads_gone += 1;
            self.full_at = self.loads.front().map_or(u64::MAX, |l| l.instruction + self.window);
            self.queue_full_at = self.loads.front().map_or(u64::MAX, |l| l.reference + self.queue);
        }
        // With every miss entry taken by an unknown, the first to be free is unknown too.
        self.pending > 0
            && ((dependence == Dependence::PreviousLoad && self.last_load.is_unknown())
                || self.pending == self.outstanding)
    }

    /// The core waits for `load` until `until`, if that is later than now.
    fn stall(&mut self, load: Load, until: Picoseconds) {
        if until <= self.now {
            return;
        }
        let walk = load.walked_ps.clamp(self.now.0, until.0) - self.now.0;
        self.counts.stall_ps[usize::from(CAUSE_WALK)] += walk;
        self.counts.stall_ps[usize::from(load.cause)] += (until - self.now).0 - walk;
        self.now = until;
    }

    /// When the next reference may start.
    #[inline]
    pub fn issue_time(&self, dependence: Dependence) -> Picoseconds {
        match dependence {
            Dependence::None => self.now,
            Dependence::PreviousLoad => self.now.max(Picoseconds(self.last_load.time)),
            Dependence::Until(known) => self.now.max(known),
        }
    }

    /// When the last load was or will be served; the largest time as long as that is unknown.
    #[inline]
    pub fn last_load(&self) -> Picoseconds {
        Picoseconds(self.last_load.time)
    }

    /// Dispatch time of so many instructions without stalls.
    #[inline]
    pub fn dispatch_time(&self, instructions: u64) -> Picoseconds {
        Picoseconds(instructions * self.instruction_fs / 1000)
    }

    /// A load served by the first level at `done`: only the next load may have to wait for it.
    #[inline]
    pub fn load_hit(&mut self, done: Picoseconds) {
        self.last_load.time = done.0;
    }

    /// A miss of the first level that could start at `at`; returns its start, delayed until a miss
    /// entry is free.
    pub fn start_miss(&mut self, at: Picoseconds) -> Picoseconds {
        if self.misses.len() + self.unknown.len() < self.outstanding {
            return at;
        }
        // Some are known: [`Core::blocked`] waits where none is.
        let first = self.misses.pop_front().unwrap_or(UNKNOWN);
        let start = at.max(Picoseconds(first));
        self.counts.miss_queue_ps += (start - at).0;
        start
    }

    /// The load started at `start` by [`Core::start_miss`] is served at `done`. Its page walk took
    /// until `walked`, which is 0 without one.
    pub fn load_miss(&mut self, start: Picoseconds, done: When, cause: Cause, walked: Picoseconds) {
        let finish = Finish::new(done);
        self.take(finish, Waits::Load(self.loads_gone + self.loads.len() as u64));
        if cause >= FIRST_MEMORY_CAUSE && start.0 >= self.leading.time {
            self.counts.leading_loads += 1;
            self.leading = finish;
            self.leading_start = start.0;
            if let When::At(done) = done {
                self.counts.leading_load_ps += done.since(start).0;
            }
        }
        self.last_load = finish;
        self.hold_window(finish, cause, walked);
    }

    /// A load whose page walk took until `done`, without a miss of the first level.
    pub fn late_load(&mut self, done: Picoseconds) {
        self.last_load = Finish::new(When::At(done));
        self.hold_window(self.last_load, CAUSE_WALK, done);
    }

    /// A store whose page walk took until `done`: it leaves the window then. No load needs it.
    pub fn late_store(&mut self, done: Picoseconds) {
        self.hold_window(Finish::new(When::At(done)), CAUSE_WALK, done);
    }

    fn hold_window(&mut self, finish: Finish, cause: Cause, walked: Picoseconds) {
        let (instruction, reference) = (self.counts.instructions, self.references);
        self.full_at = self.full_at.min(instruction + self.window);
        self.queue_full_at = self.queue_full_at.min(reference + self.queue);
        let load = Load { instruction, reference, finish, cause, walked_ps: walked.0 };
        self.loads.push_back(load);
    }

    /// The store whose line was requested from `start` on by [`Core::start_miss`] has it at `done`.
    pub fn store_miss(&mut self, done: When) {
        let finish = Finish::new(done);
        self.take(finish, Waits::Store(self.stores_gone + self.stores.len() as u64));
        self.stores.push_back(finish);
    }

    /// Makes room in the store buffer for another store. `true` if a completion must be passed
    /// first; then call again.
    pub fn store_blocked(&mut self) -> bool {
        while let Some(oldest) = self.stores.front() {
            let full = self.stores.len() == self.store_buffer;
            if oldest.time > self.now.0 && !full {
                break;
            }
            if oldest.is_unknown() {
                return true;
            }
            if oldest.time > self.now.0 {
                self.counts.store_stall_ps += oldest.time - self.now.0;
                self.now = Picoseconds(oldest.time);
            }
            self.stores.pop_front();
            self.stores_gone += 1;
        }
        false
    }

    fn take(&mut self, finish: Finish, waits: Waits) {
        if finish.is_unknown() {
            self.pending += 1;
            self.unknown.push((finish.id, waits));
        } else {
            self.add_miss(finish.time);
        }
    }

    /// A line under way arrives at this time: mostly later than the others.
    #[inline]
    fn add_miss(&mut self, time: u64) {
        let after = self.misses.iter().rposition(|&miss| miss <= time);
        self.misses.insert(after.map_or(0, |n| n + 1), time);
    }

    /// A page walk that could start at `at`; returns its start, delayed until a walker is free.
    /// Ends with [`Core::end_walk`].
    pub fn start_walk(&mut self, at: Picoseconds) -> Picoseconds {
        let first = self.first_walker();
        let start = at.max(Picoseconds(self.walkers[first]));
        self.counts.walk_queue_ps += (start - at).0;
        start
    }

    /// The walk that [`Core::start_walk`] started is done.
    pub fn end_walk(&mut self, done: Picoseconds) {
        let first = self.first_walker();
        self.walkers[first] = done.0;
    }

    fn first_walker(&self) -> usize {
        (0..self.walkers.len()).min_by_key(|&w| self.walkers[w]).unwrap_or(0)
    }

    /// Passes the completion of a request that was pending. Completions are passed in the order of
    /// their times.
    pub fn resolve(&mut self, id: RequestId, done: Picoseconds) {
        let Some(at) = self.unknown.iter().position(|(of, _)| *of == id) else { return };
        let (_, waits) = self.unknown.swap_remove(at);
        self.add_miss(done.0);
        self.pending -= 1;
        // A load or store with an unknown time has not left its queue.
        match waits {
            Waits::Load(n) => {
                self.loads[(n - self.loads_gone) as usize].finish.resolve(id, done);
            }
            Waits::Store(n) => {
                self.stores[(n - self.stores_gone) as usize].resolve(id, done);
            }
        }
        self.last_load.resolve(id, done);
        if self.leading.resolve(id, done) {
            self.counts.leading_load_ps += done.0.saturating_sub(self.leading_start);
        }
    }

    /// A reference waits until `known`, and the core has gone on without it: lets it go on by no
    /// more than `most` of time, as if its window were full then. Completions must be known.
    pub fn keep_up(&mut self, known: Picoseconds, most: Picoseconds) {
        let until = known.0.saturating_sub(most.0);
        while let Some(oldest) = self.loads.front()
            && oldest.finish.time <= until
        {
            let oldest = *oldest;
            self.stall(oldest, Picoseconds(oldest.finish.time));
            self.loads.pop_front();
            self.loads_gone += 1;
        }
        self.full_at = self.loads.front().map_or(u64::MAX, |l| l.instruction + self.window);
        self.queue_full_at = self.loads.front().map_or(u64::MAX, |l| l.reference + self.queue);
    }

    /// The core is busy otherwise until `time`: a page fault, an interrupt. No stall is counted.
    pub fn wait_until(&mut self, time: Picoseconds) {
        self.now = self.now.max(time);
    }

    /// The program ends: waits for everything under way. `true` if a completion must be passed
    /// first; then call again.
    pub fn drain(&mut self) -> bool {
        if self.pending > 0 {
            return true;
        }
        self.full_at = u64::MAX;
        self.queue_full_at = u64::MAX;
        while let Some(load) = self.loads.pop_front() {
            self.loads_gone += 1;
            self.stall(load, Picoseconds(load.finish.time));
        }
        while let Some(store) = self.stores.pop_front() {
            self.stores_gone += 1;
            if store.time > self.now.0 {
                self.counts.store_stall_ps += store.time - self.now.0;
                self.now = Picoseconds(store.time);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;

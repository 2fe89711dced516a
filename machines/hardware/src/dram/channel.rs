//! One channel: queues of requests and the choice of the next command.
//!
//! Nothing is done per cycle. [`Channel::plan`] considers one candidate command for each bank that
//! has requests (the column command of its oldest row hit, or the first command that its oldest
//! request needs) and finds the earliest that can be given. Ties go to column commands and then to
//! the oldest request: first-ready, first-come first-served. Time then jumps to that command.
//!
//! Reads go before writes. Writes are accepted at once and held back until `write_high` of them
//! wait, then drained down to `write_low`; or they go when there are no reads. A read of a line
//! that waits to be written is answered from the queue, a write of such a line is merged into it.

use std::collections::VecDeque;

use crate::dram::address_map::Location;
use crate::dram::config::{DramConfig, PagePolicy, Scheduler};
use crate::dram::constraint::Command;
use crate::dram::device::{CLOSED, Device};
use crate::request::RequestId;

/// A request in its channel.
#[derive(Debug, Clone, Copy)]
pub struct Queued {
    /// The request's number.
    pub id: RequestId,
    /// The place of the line.
    pub location: Location,
    /// Whether the request writes.
    pub write: bool,
}

/// A request and its state so far.
#[derive(Debug, Clone, Copy)]
struct Slot {
    request: Queued,
    /// Order of arrival.
    sequence: u64,
    /// A row was opened, or another closed, for this request.
    activated: bool,
    conflicted: bool,
}

/// A request was served: its data was on the bus, or in the write queue, at `cycle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// The request's number.
    pub id: RequestId,
    /// Cycle of the service.
    pub cycle: u64,
}

/// A command as given; [`super::checker`] checks these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// Cycle of the command.
    pub cycle: u64,
    /// The command.
    pub command: Command,
    /// The bank of the channel; the first of its rank for commands to the whole rank.
    pub bank: u32,
    /// The row, for activations and column commands.
    pub row: u32,
}

/// Counters of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct ChannelCounts {
    /// Reads served from the array.
    pub reads: u64,
    /// Writes to the array.
    pub writes: u64,
    /// Reads answered from the write queue.
    pub forwarded: u64,
    /// Writes merged in the write queue.
    pub merged: u64,
    /// Requests whose row was open.
    pub row_hits: u64,
    /// Requests whose bank was closed.
    pub row_misses: u64,
    /// Requests whose bank had another row open.
    pub row_conflicts: u64,
    /// Activations.
    pub activations: u64,
    /// Refreshes.
    pub refreshes: u64,
    /// Turns from reading to writing.
    pub write_drains: u64,
}

impl std::ops::AddAssign for ChannelCounts {
    fn add_assign(&mut self, o: ChannelCounts) {
        self.reads += o.reads;
        self.writes += o.writes;
        self.forwarded += o.forwarded;
        self.merged += o.merged;
        self.row_hits += o.row_hits;
        self.row_misses += o.row_misses;
        self.row_conflicts += o.row_conflicts;
        self.activations += o.activations;
        self.refreshes += o.refreshes;
        self.write_drains += o.write_drains;
    }
}

/// The next command that a bank with requests needs, the request it is for, and its age.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    command: Command,
    index: u32,
    sequence: u64,
}

/// Requests of one kind, by bank, oldest first.
#[derive(Debug, Clone)]
struct Queue {
    banks: Vec<Vec<Slot>>,
    /// The candidate of each bank, until its requests or its row change.
    candidates: Vec<Option<Candidate>>,
    /// Banks that have requests, in no order.
    active: Vec<u32>,
    /// Position of each bank in `active`.
    place: Vec<u32>,
    length: usize,
    capacity: usize,
    /// Requests that found no room, in order of arrival.
    waiting: VecDeque<Slot>,
}

impl Queue {
    fn new(banks: usize, capacity: u32) -> Self {
        Queue {
            banks: vec![Vec::new(); banks],
            candidates: vec![None; banks],
            active: Vec::with_capacity(banks),
            place: vec![0; banks],
            length: 0,
            capacity: capacity as usize,
            waiting: VecDeque::new(),
        }
    }

    fn push(&mut self, slot: Slot) {
        if self.length == self.capacity {
            self.waiting.push_back(slot);
            return;
        }
        let bank = slot.request.location.bank as usize;
        if self.banks[bank].is_empty() {
            self.place[bank] = self.active.len() as u32;
            self.active.push(bank as u32);
        }
        self.banks[bank].push(slot);
        self.candidates[bank] = None;
        self.length += 1;
    }

    fn remove(&mut self, bank: usize, index: usize) -> Slot {
        let slot = self.banks[bank].remove(index);
        if self.banks[bank].is_empty() {
            let place = self.place[bank] as usize;
            self.active.swap_remove(place);
            if let Some(&moved) = self.active.get(place) {
                self.place[moved as usize] = place as u32;
            }
        }
        self.length -= 1;
        if let Some(next) = self.waiting.pop_front() {
            self.push(next);
        }
        slot
    }

    /// Whether the bank has a request for this place among those that can be chosen from.
    fn holds(&self, location: &Location) -> bool {
        self.banks[location.bank as usize].iter().any(|s| s.request.location == *location)
    }
}

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// Give a command for the request at `index` of the bank's queue.
    Request { command: Command, bank: u32, index: u32 },
    /// Give a command for no request: precharges of a refresh or a timeout, refresh.
    Own { command: Command, bank: u32 },
    /// A rank must be refreshed from now on.
    StartRefresh { rank: u32 },
}

/// The refresh of one rank.
#[derive(Debug, Clone, Copy)]
struct Refresh {
    /// Cycle at which the next refresh is due.
    due: u64,
    /// No other command goes to the rank until the refresh is done.
    started: bool,
    /// Requests to the rank that are not served.
    requests: u32,
}

/// One channel.
#[derive(Debug, Clone)]
pub struct Channel {
    device: Device,
    reads: Queue,
    writes: Queue,
    draining: bool,
    sequence: u64,
    /// No command is given before this cycle.
    clock: u64,
    /// The result of [`Channel::plan`], until something changes.
    planned: Option<Option<(u64, Action)>>,
    refreshes: Vec<Refresh>,
    /// Column commands to the open row since it was opened.
    streak: Vec<u32>,
    last_column: Vec<u64>,
    served: Vec<Served>,
    log: Option<Vec<Logged>>,
    counts: ChannelCounts,
    // From the configuration:
    scheduler: Scheduler,
    policy: PagePolicy,
    timeout: u64,
    hit_streak: u32,
    write_high: usize,
    write_low: usize,
    read_cycles: u64,
    write_cycles: u64,
    refresh: bool,
    refi: u64,
    postpone: u64,
}

/// Order of the commands possible in one cycle, before the order of arrival.
const REFRESH: u64 = 0;
const COLUMN: u64 = 1 << 62;
const ROW: u64 = 2 << 62;
const TIMEOUT: u64 = 3 << 62;

impl Channel {
    /// The idle channel number `index` of a configuration that was checked.
    pub fn new(config: &DramConfig, index: u32) -> Self {
        let device = Device::new(config);
        let (c, t) = (&config.controller, &config.timing);
        let burst = config.organization.burst_cycles();
        let ranks = config.organization.ranks;
        let refi = u64::from(t.refi);
        // Ranks and channels take turns, so that some work while others are refreshed.
        let all = u64::from(ranks * config.organization.channels);
        let refreshes = (0..ranks)
            .map(|r| Refresh {
                due: refi * u64::from(r * config.organization.channels + index + 1) / all,
                started: false,
                requests: 0,
            })
            .collect();
        Channel {
            reads: Queue::new(device.banks(), c.read_queue),
            writes: Queue::new(device.banks(), c.write_queue),
            draining: false,
            sequence: 0,
            clock: 0,
            planned: None,
            refreshes,
            streak: vec![0; device.banks()],
            last_column: vec![0; device.banks()],
            served: Vec::new(),
            log: None,
            counts: ChannelCounts::default(),
            scheduler: c.scheduler,
            policy: c.page_policy,
            timeout: u64::from(c.page_timeout_cycles),
            hit_streak: c.hit_streak,
            write_high: c.write_high as usize,
            write_low: c.write_low as usize,
            read_cycles: u64::from(t.cl + burst),
            write_cycles: u64::from(t.cwl + burst),
            refresh: c.refresh,
            refi,
            postpone: u64::from(c.refresh_postpone) * refi,
            device,
        }
    }

    /// The counters so far.
    pub fn counts(&self) -> ChannelCounts {
        self.counts
    }

    /// Keeps every command given from now on, for [`Channel::log`].
    pub fn keep_log(&mut self) {
        self.log = Some(Vec::new());
    }

    /// The commands given, if they are kept.
    pub fn log(&self) -> &[Logged] {
        self.log.as_deref().unwrap_or(&[])
    }

    /// Whether a request of this kind would be among those that can be chosen from.
    pub fn has_room(&self, write: bool) -> bool {
        let queue = if write { &self.writes } else { &self.reads };
        queue.length < queue.capacity
    }

    /// Requests served since the last call, in the order in which their commands were given.
    pub fn take_served(&mut self) -> std::vec::Drain<'_, Served> {
        self.served.drain(..)
    }

    /// A request arrives at `cycle`. The channel was run up to the cycle before.
    pub fn push(&mut self, request: Queued, cycle: u64) {
        self.clock = self.clock.max(cycle);
        if self.writes.holds(&request.location) {
            if request.write {
                self.counts.merged += 1;
            } else {
                self.counts.forwarded += 1;
            }
            self.served.push(Served { id: request.id, cycle: cycle + 1 });
            return;
        }
        self.planned = None;
        self.sequence += 1;
        let slot = Slot { request, sequence: self.sequence, activated: false, conflicted: false };
        self.refreshes[self.device.rank(request.location.bank as usize)].requests += 1;
        if request.write {
            self.writes.push(slot);
        } else {
            self.reads.push(slot);
        }
        self.choose_direction();
    }

    /// When the next command goes out, as far as is known now.
    pub fn next_event(&mut self) -> Option<u64> {
        let planned = match self.planned {
            Some(planned) => planned,
            None => {
                let plan = self.plan();
                *self.planned.insert(plan)
            }
        };
        planned.map(|(at, _)| at)
    }

    /// Gives every command up to and including `cycle`.
    pub fn run_until(&mut self, cycle: u64) {
        while self.next_event().is_some_and(|at| at <= cycle) {
            let Some(Some((at, action))) = self.planned.take() else { return };
            self.act(at, action);
        }
    }

    fn writing(&self) -> bool {
        self.draining || (self.reads.length == 0 && self.writes.length > 0)
    }

    fn choose_direction(&mut self) {
        if self.draining {
            self.draining = self.writes.length > self.write_low && self.writes.length > 0;
        } else if self.writes.length >= self.write_high {
            self.draining = true;
            self.counts.write_drains += 1;
        }
    }

    /// The next command and its cycle.
    fn plan(&mut self) -> Option<(u64, Action)> {
        let mut best = (u64::MAX, u64::MAX);
        let mut best_action = None;
        let clock = self.clock;
        let mut consider = |at: u64, class: u64, sequence: u64, action: Action| {
            let key = (at.max(clock), class | sequence);
            if key < best {
                best = key;
                best_action = Some(action);
            }
        };
        if self.refresh {
            for (rank, r) in self.refreshes.iter().enumerate() {
                let first = self.device.first_bank(rank);
                let (at, action) = if r.started {
                    let command =
                        if self.device.any_open(rank) { Command::Prea } else { Command::Ref };
                    let at = self.device.earliest(command, first);
                    (at, Action::Own { command, bank: first as u32 })
                } else {
                    let put_off = if r.requests == 0 { 0 } else { self.postpone };
                    (r.due + put_off, Action::StartRefresh { rank: rank as u32 })
                };
                consider(at, REFRESH, rank as u64, action);
            }
        }
        let writing = self.writing();
        let queue = if writing { &mut self.writes } else { &mut self.reads };
        let only = match self.scheduler {
            Scheduler::FrFcfs => None,
            Scheduler::Fcfs => {
                queue.active.iter().copied().min_by_key(|&b| queue.banks[b as usize][0].sequence)
            }
        };
        for &bank in only.as_ref().map_or(&queue.active[..], std::slice::from_ref) {
            let b = bank as usize;
            let candidate = match queue.candidates[b] {
                Some(candidate) => candidate,
                None => {
                    let capped = self.hit_streak > 0 && self.streak[b] >= self.hit_streak;
                    let only_oldest = capped || self.scheduler == Scheduler::Fcfs;
                    let open = self.device.open_row(b);
                    *queue.candidates[b].insert(candidate(&queue.banks[b], open, only_oldest))
                }
            };
            let Candidate { command, index, sequence } = candidate;
            // Before a refresh, a row that was opened for a request is still read or written.
            if self.refreshes[self.device.rank(b)].started
                && !(command.is_column() && queue.banks[b][index as usize].activated)
            {
                continue;
            }
            let class = if command.is_column() { COLUMN } else { ROW };
            let at = self.device.earliest(command, b);
            consider(at, class, sequence, Action::Request { command, bank, index });
        }
        if self.policy == PagePolicy::Timeout {
            for bank in 0..self.device.banks() {
                let started = self.refreshes[self.device.rank(bank)].started;
                if self.device.open_row(bank) == CLOSED
                    || started
                    || !self.reads.banks[bank].is_empty()
                    || !self.writes.banks[bank].is_empty()
                {
                    continue;
                }
                let idle = self.last_column[bank] + self.timeout;
                let at = self.device.earliest(Command::Pre, bank).max(idle);
                let action = Action::Own { command: Command::Pre, bank: bank as u32 };
                consider(at, TIMEOUT, bank as u64, action);
            }
        }
        best_action.map(|action| (best.0, action))
    }

    /// Whether a queued request other than the one being served needs this row.
    fn wanted_again(&self, bank: usize, row: u32) -> bool {
        let wants =
            |q: &Queue| q.banks[bank].iter().filter(|s| s.request.location.row == row).count();
        wants(&self.reads) + wants(&self.writes) > 1
    }

    fn act(&mut self, at: u64, action: Action) {
        self.clock = at;
        let (command, bank, request) = match action {
            Action::StartRefresh { rank } => {
                self.refreshes[rank as usize].started = true;
                return;
            }
            Action::Own { command, bank } => (command, bank as usize, None),
            Action::Request { command, bank, index } => {
                (command, bank as usize, Some(index as usize))
            }
        };
        let writing = self.writing();
        let queue = if writing { &self.writes } else { &self.reads };
        let row = request.map_or(0, |index| queue.banks[bank][index].request.location.row);
        // Whether the row closes by itself makes no difference to when the command may be given.
        let command = match command {
            Command::Rd | Command::Wr
                if self.policy == PagePolicy::Closed && !self.wanted_again(bank, row) =>
            {
                if writing { Command::Wra } else { Command::Rda }
            }
            command => command,
        };
        self.device.give(command, bank, row, at);
        if let Some(log) = &mut self.log {
            log.push(Logged { cycle: at, command, bank: bank as u32, row });
        }
        self.clock = at + 1;
        let changed = match command {
            Command::Prea => {
                let first = self.device.first_bank(self.device.rank(bank));
                first..first + self.device.banks() / self.refreshes.len()
            }
            _ => bank..bank + 1,
        };
        self.reads.candidates[changed.clone()].fill(None);
        self.writes.candidates[changed].fill(None);
        let queue = if writing { &mut self.writes } else { &mut self.reads };
        match (command, request) {
            (Command::Act, Some(index)) => {
                queue.banks[bank][index].activated = true;
                self.streak[bank] = 0;
                self.last_column[bank] = at;
                self.counts.activations += 1;
            }
            (Command::Pre, Some(index)) => queue.banks[bank][index].conflicted = true,
            (Command::Ref, _) => {
                self.counts.refreshes += 1;
                let rank = self.device.rank(bank);
                let refresh = &mut self.refreshes[rank];
                refresh.started = false;
                refresh.due += self.refi;
            }
            (_, Some(index)) => {
                let slot = queue.remove(bank, index);
                self.column(at, bank, &slot);
            }
            _ => {}
        }
    }

    fn column(&mut self, at: u64, bank: usize, slot: &Slot) {
        let write = slot.request.write;
        let cycle = at + if write { self.write_cycles } else { self.read_cycles };
        self.served.push(Served { id: slot.request.id, cycle });
        self.refreshes[self.device.rank(bank)].requests -= 1;
        self.streak[bank] += 1;
        self.last_column[bank] = at;
        self.counts.reads += u64::from(!write);
        self.counts.writes += u64::from(write);
        match (slot.activated, slot.conflicted) {
            (false, _) => self.counts.row_hits += 1,
            (true, false) => self.counts.row_misses += 1,
            (true, true) => self.counts.row_conflicts += 1,
        }
        self.choose_direction();
    }
}

/// The next command of a bank whose oldest request comes first in `slots`.
fn candidate(slots: &[Slot], open: u32, only_oldest: bool) -> Candidate {
    let oldest = slots[0].sequence;
    if open == CLOSED {
        return Candidate { command: Command::Act, index: 0, sequence: oldest };
    }
    let reach = if only_oldest { 1 } else { slots.len() };
    match slots[..reach].iter().position(|s| s.request.location.row == open) {
        None => Candidate { command: Command::Pre, index: 0, sequence: oldest },
        Some(hit) => Candidate {
            command: if slots[hit].request.write { Command::Wr } else { Command::Rd },
            index: hit as u32,
            sequence: slots[hit].sequence,
        },
    }
}

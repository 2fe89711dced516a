//! All channels of a DRAM system behind one interface: requests in at their times, completions out
//! in the order of theirs.
//!
//! A scheduler that may let a later request go first cannot know at submission when a request will
//! be done. So the system is run: [`Dram::submit`] first runs it to the time of the request,
//! [`Dram::next_event`] and [`Dram::advance_to`] run it further, [`Dram::pop_completion`] returns
//! the requests done by then; [`Dram::next_completion`] does all of these.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::dram::address_map::AddressMap;
use crate::dram::channel::{Channel, ChannelCounts, Logged, Queued};
use crate::dram::config::DramConfig;
use crate::error::ConfigError;
use crate::request::{Completion, Request, RequestId};
use crate::units::Picoseconds;

/// A DRAM system.
#[derive(Debug, Clone)]
pub struct Dram {
    map: AddressMap,
    channels: Vec<Channel>,
    /// The cycle of each channel's next action, so that the others can be skipped; `u64::MAX` for
    /// never.
    next: Vec<u64>,
    clock_ps: u64,
    /// From a column command to the end of its burst, at least.
    least_cycles: u64,
    frontend: Picoseconds,
    backend: Picoseconds,
    now: Picoseconds,
    /// By time, then in the order in which they became known.
    completions: BinaryHeap<Reverse<(Picoseconds, u64, RequestId)>>,
    known: u64,
    submitted: u64,
    completed: u64,
}

impl Dram {
    /// An idle system; an error if the configuration cannot work.
    pub fn new(config: &DramConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let c = &config.controller;
        let ns = |name, ns| Picoseconds::from_parameter_ns("dram.controller", name, ns);
        let mut channels: Vec<Channel> =
            (0..config.organization.channels).map(|i| Channel::new(config, i)).collect();
        Ok(Dram {
            map: AddressMap::new(&config.organization, c)?,
            next: channels.iter_mut().map(|c| c.next_event().unwrap_or(u64::MAX)).collect(),
            channels,
            clock_ps: u64::from(config.timing.clock_ps),
            least_cycles: u64::from(
                config.timing.cl.min(config.timing.cwl) + config.organization.burst_cycles(),
            ),
            frontend: ns("frontend_ns", c.frontend_ns)?,
            backend: ns("backend_ns", c.backend_ns)?,
            now: Picoseconds::ZERO,
            completions: BinaryHeap::new(),
            known: 0,
            submitted: 0,
            completed: 0,
        })
    }

    /// The time that the system has been run to.
    pub fn now(&self) -> Picoseconds {
        self.now
    }

    /// Requests whose completion was not returned yet.
    pub fn outstanding(&self) -> u64 {
        self.submitted - self.completed
    }

    /// The counters of all channels together.
    pub fn counts(&self) -> ChannelCounts {
        let mut sum = ChannelCounts::default();
        for channel in &self.channels {
            sum += channel.counts();
        }
        sum
    }

    /// Keeps every command given from now on, for [`Dram::log`].
    pub fn keep_log(&mut self) {
        self.channels.iter_mut().for_each(Channel::keep_log);
    }

    /// The commands given by one channel, if they are kept.
    pub fn log(&self, channel: usize) -> &[Logged] {
        self.channels[channel].log()
    }

    /// Whether the queue of a request has room now. A request submitted without room waits in line
    /// before the queue.
    pub fn has_room(&self, request: &Request) -> bool {
        let channel = self.map.locate(request.address).channel as usize;
        self.channels[channel].has_room(request.kind.is_write())
    }

    /// A request is made at `at`. Time does not run backwards: a late request counts as made now.
    pub fn submit(&mut self, at: Picoseconds, request: Request) {
        let location = self.map.locate(request.address);
        let arrival = at.max(self.now) + self.frontend;
        let cycle = arrival.0.div_ceil(self.clock_ps);
        let channel = &mut self.channels[location.channel as usize];
        channel.run_until(cycle.saturating_sub(1));
        channel.push(Queued { id: request.id, location, write: request.kind.is_write() }, cycle);
        self.submitted += 1;
        self.settle(location.channel as usize);
    }

    /// Moves a channel's served requests to the completions, after a change of the channel.
    fn settle(&mut self, channel: usize) {
        self.next[channel] = self.channels[channel].next_event().unwrap_or(u64::MAX);
        for served in self.channels[channel].take_served() {
            let done = Picoseconds(served.cycle * self.clock_ps) + self.backend;
            self.known += 1;
            self.completions.push(Reverse((done, self.known, served.id)));
        }
    }

    /// The next time at which something happens: a command or a completion. `None` only if nothing
    /// is left to do and there is no refresh.
    pub fn next_event(&self) -> Option<Picoseconds> {
        let cycle = self.next.iter().copied().min().filter(|&cycle| cycle != u64::MAX);
        let command = cycle.map(|cycle| Picoseconds(cycle * self.clock_ps).max(self.now));
        let done = self.completions.peek().map(|Reverse(c)| c.0.max(self.now));
        [command, done].into_iter().flatten().min()
    }

    /// A time before which no request completes that is submitted by now: a command not given yet
    /// takes its time. `None` if nothing is left to do and there is no refresh.
    pub fn completion_bound(&self) -> Option<Picoseconds> {
        let cycle = self.next.iter().copied().min().filter(|&cycle| cycle != u64::MAX);
        let unknown = cycle
            .map(|cycle| Picoseconds((cycle + self.least_cycles) * self.clock_ps) + self.backend);
        let known = self.completions.peek().map(|Reverse(c)| c.0);
        [unknown, known].into_iter().flatten().min().map(|bound| bound.max(self.now))
    }

    /// Gives every command up to `time`.
    pub fn advance_to(&mut self, time: Picoseconds) {
        self.now = self.now.max(time);
        let cycle = self.now.0 / self.clock_ps;
        for channel in 0..self.channels.len() {
            if self.next[channel] <= cycle {
                self.channels[channel].run_until(cycle);
                self.settle(channel);
            }
        }
    }

    /// Returns the first completion of those up to [`Dram::now`].
    pub fn pop_completion(&mut self) -> Option<Completion> {
        let Reverse((done, _, _)) = self.completions.peek()?;
        if *done > self.now {
            return None;
        }
        let Reverse((done, _, id)) = self.completions.pop()?;
        self.completed += 1;
        Some(Completion { id, done })
    }

    /// Runs to the next completion and returns it; `None` if no request is outstanding.
    pub fn next_completion(&mut self) -> Option<Completion> {
        while self.outstanding() > 0 {
            if let Some(completion) = self.pop_completion() {
                return Some(completion);
            }
            let time = self.completion_bound()?;
            self.advance_to(time);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Kind, PhysicalAddress};
    use crate::dram::presets;

    fn request(id: u64, line: u64, kind: Kind) -> Request {
        Request { id: RequestId(id), address: PhysicalAddress(line * 64), kind }
    }

    #[test]
    fn a_line_waiting_to_be_written_answers_reads_and_takes_writes() {
        let config = presets::by_name("ddr4-2400").unwrap();
        let mut dram = Dram::new(&config).unwrap();
        dram.submit(Picoseconds(0), request(1, 5, Kind::Write));
        dram.submit(Picoseconds(0), request(2, 5, Kind::Write));
        dram.submit(Picoseconds(0), request(3, 5, Kind::Read));
        let first = dram.next_completion().unwrap();
        let second = dram.next_completion().unwrap();
        assert_eq!((first.id, second.id), (RequestId(2), RequestId(3)));
        assert_eq!(dram.next_completion().unwrap().id, RequestId(1));
        assert_eq!(dram.next_completion(), None);
        let c = dram.counts();
        assert_eq!((c.merged, c.forwarded, c.writes, c.reads), (1, 1, 1, 0));
    }

    #[test]
    fn a_row_hit_passes_an_older_conflict() {
        let mut config = presets::by_name("ddr4-2400").unwrap();
        config.controller.bank_hash = false;
        let mut dram = Dram::new(&config).unwrap();
        let row = 1u64 << 11; // lines of one row of all 16 banks
        dram.submit(Picoseconds(0), request(1, 0, Kind::Read));
        dram.next_completion();
        let at = dram.now();
        dram.submit(at, request(2, row, Kind::Read));
        dram.submit(at, request(3, 4, Kind::Read));
        assert_eq!(dram.next_completion().unwrap().id, RequestId(3));
        assert_eq!(dram.next_completion().unwrap().id, RequestId(2));
        let c = dram.counts();
        assert_eq!((c.row_hits, c.row_misses, c.row_conflicts), (1, 1, 1));
    }

    #[test]
    fn an_idle_system_still_refreshes() {
        let config = presets::by_name("ddr4-2400").unwrap();
        let mut dram = Dram::new(&config).unwrap();
        dram.advance_to(Picoseconds::from_ns(1_000_000));
        assert_eq!(dram.counts().refreshes, 128);
        assert_eq!(dram.next_completion(), None);
    }
}

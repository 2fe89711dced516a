//! DRAM accesses that no core waits for: pages on their way in and out. A memory controller takes
//! them in the time that demand leaves, so that a batch of pages does not delay a miss.
//!
//! While a demand read is in the controller, at most a few reads of copies are there with it;
//! without demand, more are. Writes wait in the controller's write queue, where they delay nothing
//! until it must be drained: a share of the queue is left to demand. So that pages arrive at all
//! where demand never ends, one access of copies goes for every few of demand.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use terrace_hardware::error::{ConfigError, check_range};

/// How a memory controller treats copies of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackgroundConfig {
    /// Whether demand goes first; otherwise copies are accesses like all others.
    pub demand_first: bool,
    /// Reads of copies in the controller while a demand read is there ...
    pub reads_beside_demand: u32,
    /// ... and while none is.
    pub reads_alone: u32,
    /// Writes of copies in the controller.
    pub writes: u32,
    /// Demand reads for which at least one access of copies is issued.
    pub demand_for_one: u32,
}

impl Default for BackgroundConfig {
    fn default() -> Self {
        // Half of the controller's write queue of 64 at most, and well below the 48 at which it is
        // drained in front of reads.
        BackgroundConfig {
            demand_first: true,
            reads_beside_demand: 1,
            reads_alone: 16,
            writes: 24,
            demand_for_one: 4,
        }
    }
}

impl BackgroundConfig {
    /// Checks that copies can ever end.
    pub fn check(&self, part: &str) -> Result<(), ConfigError> {
        for (name, value) in [
            ("reads_alone", self.reads_alone),
            ("writes", self.writes),
            ("demand_for_one", self.demand_for_one),
        ] {
            check_range(part, name, value.into(), 1..=1 << 16)?;
        }
        check_range(part, "reads_beside_demand", self.reads_beside_demand.into(), 0..=1 << 16)
    }
}

/// Accesses that wait for a memory controller, in order.
#[derive(Debug)]
pub struct Background<T> {
    config: BackgroundConfig,
    reads: VecDeque<T>,
    writes: VecDeque<T>,
    reads_under_way: u32,
    writes_under_way: u32,
    /// Whether a write goes next if both kinds wait.
    write_next: bool,
    /// Demand reads since the last access of copies.
    passed: u32,
}

impl<T> Background<T> {
    /// No access waits.
    pub fn new(config: BackgroundConfig) -> Self {
        Background {
            config,
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            reads_under_way: 0,
            writes_under_way: 0,
            write_next: false,
            passed: 0,
        }
    }

    /// Adds an access to the queue.
    pub fn push(&mut self, write: bool, access: T) {
        if write { &mut self.writes } else { &mut self.reads }.push_back(access);
    }

    /// Removes the access that is issued now, if one is, with so many demand reads in the
    /// controller; returns also whether it writes.
    pub fn next(&mut self, demand: u32) -> Option<(bool, T)> {
        if self.reads.is_empty() && self.writes.is_empty() {
            return None;
        }
        let c = &self.config;
        let due = !c.demand_first || self.passed >= c.demand_for_one;
        let most = if demand > 0 { c.reads_beside_demand } else { c.reads_alone };
        let read = !self.reads.is_empty() && (due || self.reads_under_way < most);
        let write = !self.writes.is_empty() && (due || self.writes_under_way < c.writes);
        let write = match (read, write) {
            (false, false) => return None,
            (true, true) => self.write_next,
            (_, write) => write,
        };
        self.write_next = !write;
        self.passed = 0;
        let access = if write {
            self.writes_under_way += 1;
            self.writes.pop_front()
        } else {
            self.reads_under_way += 1;
            self.reads.pop_front()
        };
        access.map(|access| (write, access))
    }

    /// Records that an access is done.
    pub fn done(&mut self, write: bool) {
        if write {
            self.writes_under_way -= 1;
        } else {
            self.reads_under_way -= 1;
        }
    }

    /// Records that a demand read was served.
    pub fn demand_done(&mut self) {
        if !self.is_empty() {
            self.passed += 1;
        }
    }

    /// Number of waiting accesses.
    pub fn len(&self) -> usize {
        self.reads.len() + self.writes.len()
    }

    /// Whether no access waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(config: BackgroundConfig) -> Background<u32> {
        let mut b = Background::new(config);
        (0..40).for_each(|n| b.push(false, n));
        (100..140).for_each(|n| b.push(true, n));
        b
    }

    #[test]
    fn few_reads_of_copies_are_beside_demand_and_more_alone() {
        let config = BackgroundConfig::default();
        let mut b = filled(config);
        let all: Vec<_> = std::iter::from_fn(|| b.next(1)).collect();
        assert_eq!(all.iter().filter(|a| !a.0).count(), config.reads_beside_demand as usize);
        assert_eq!(all.iter().filter(|a| a.0).count(), config.writes as usize);
        let alone: Vec<_> = std::iter::from_fn(|| b.next(0)).collect();
        assert_eq!(alone.len() as u32, config.reads_alone - config.reads_beside_demand);
        b.done(false);
        assert!(b.next(1).is_none());
        assert_eq!(b.next(0), Some((false, 16)));
    }

    #[test]
    fn demand_that_never_ends_does_not_stop_copies() {
        let mut b = filled(BackgroundConfig::default());
        while b.next(1).is_some() {}
        for _ in 0..BackgroundConfig::default().demand_for_one - 1 {
            b.demand_done();
        }
        assert!(b.next(1).is_none());
        b.demand_done();
        assert!(b.next(1).is_some());
        assert!(b.next(1).is_none());
    }

    #[test]
    fn without_priority_everything_goes_at_once() {
        let mut b = filled(BackgroundConfig { demand_first: false, ..Default::default() });
        let all: Vec<_> = std::iter::from_fn(|| b.next(9)).collect();
        assert_eq!(all.len(), 80);
        // Alternating, each kind in its order.
        assert_eq!(all[..4], [(false, 0), (true, 100), (false, 1), (true, 101)]);
    }
}

//! Miss-status holding registers: the misses that a cache can have under way at once, and their
//! lines. Separate from the cache array, which has no time.

use crate::address::LineAddress;
use crate::error::{ConfigError, check_range};
use crate::units::Picoseconds;

/// The outcome of a miss that arrives at a given time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MshrOutcome {
    /// The same line is already under way and will arrive at this time: no new request.
    Merged(Picoseconds),
    /// A register is free now.
    Free,
    /// All are taken; the first becomes free at this time.
    FullUntil(Picoseconds),
}

/// A fixed number of registers.
#[derive(Debug, Clone)]
pub struct Mshrs {
    lines: Vec<LineAddress>,
    done: Vec<Picoseconds>,
    capacity: usize,
}

impl Mshrs {
    /// Registers, all free.
    pub fn new(capacity: u32) -> Result<Self, ConfigError> {
        check_range("mshrs", "capacity", u64::from(capacity), 1..=4096)?;
        let capacity = capacity as usize;
        Ok(Mshrs {
            lines: Vec::with_capacity(capacity),
            done: Vec::with_capacity(capacity),
            capacity,
        })
    }

    /// Requests `line` at `now`; registers whose line has arrived by then are freed.
    pub fn ask(&mut self, now: Picoseconds, line: LineAddress) -> MshrOutcome {
        let mut i = 0;
        while i < self.done.len() {
            if self.done[i] <= now {
                self.done.swap_remove(i);
                self.lines.swap_remove(i);
            } else if self.lines[i] == line {
                return MshrOutcome::Merged(self.done[i]);
            } else {
                i += 1;
            }
        }
        match self.done.iter().min() {
            Some(&first) if self.done.len() == self.capacity => MshrOutcome::FullUntil(first),
            _ => MshrOutcome::Free,
        }
    }

    /// Takes a register for `line` until `done`. The caller has called [`ask`](Self::ask) before.
    ///
    /// # Panics
    /// If none is free.
    pub fn take(&mut self, line: LineAddress, done: Picoseconds) {
        assert!(self.done.len() < self.capacity, "no free register; ask() first");
        self.lines.push(line);
        self.done.push(done);
    }

    /// Registers taken.
    pub fn taken(&self) -> usize {
        self.done.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_miss_to_a_line_waits_for_the_first() {
        let mut m = Mshrs::new(2).unwrap();
        let (a, b, c) = (LineAddress(1), LineAddress(2), LineAddress(3));
        let t = Picoseconds;
        assert_eq!(m.ask(t(0), a), MshrOutcome::Free);
        m.take(a, t(100));
        assert_eq!(m.ask(t(10), a), MshrOutcome::Merged(t(100)));
        m.take(b, t(150));
        assert_eq!(m.ask(t(20), c), MshrOutcome::FullUntil(t(100)));
        assert_eq!(m.ask(t(100), c), MshrOutcome::Free);
        assert_eq!(m.taken(), 1);
        assert!(Mshrs::new(0).is_err());
    }
}

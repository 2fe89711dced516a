//! The windows in which scans of ranges find base pages accessed: pure, without a kernel.
//!
//! A scan that comes long after the one before finds nearly all pages of a busy program, and they look
//! alike. So bits are cleared a short while before they are read, and this window follows the program as
//! the interval of other samples does ([`crate::sampling`]): it is halved while many ranges are found
//! accessed all over, and doubled when even the busiest hardly are. How many there are in a period is
//! bounded by the time that scans take: where it allows, each begins as the one before ends, with one
//! scan each; else they are apart, with two. A group of more ranges than
//! are known by base page has one scan a period, as its window.

use std::time::Duration;

use crate::refiner::MOST_RANGES;
use crate::sampling::{Trend, trend};

/// Shortest window.
const SHORTEST: Duration = Duration::from_millis(1);
/// The first is so much of a period.
const FIRST: u32 = 20;
/// Windows of a period, at most: their counts have to fit.
const MOST: u32 = 30;
/// A period would be full of so many at least.
const LEAST: u32 = 2;
/// Share of a processor that scans of one group may take, beyond a window a period.
const CPU_SHARE: f64 = 0.02;

/// The windows of a group's periods.
#[derive(Debug, Clone)]
pub(crate) struct Windows {
    period: Duration,
    /// Windows of which a period would be full.
    wanted: u32,
    /// Processor time of a scan, averaged.
    scan_ns: f64,
    ranges: usize,
}

impl Windows {
    pub(crate) fn new(period: Duration) -> Self {
        let most = (period.as_micros() / SHORTEST.as_micros()).max(1) as u32;
        Windows { period, wanted: FIRST.min(most), scan_ns: 0.0, ranges: 0 }
    }

    /// How many a period has, and how long each is: where they fill it there is no time between them.
    pub(crate) fn of_period(&self) -> (u32, Duration) {
        if self.ranges > MOST_RANGES {
            return (1, self.period);
        }
        let scans = CPU_SHARE * self.period.as_nanos() as f64 / self.scan_ns.max(1.0);
        if scans >= f64::from(self.wanted) && self.wanted <= MOST {
            return (self.wanted, self.period / self.wanted);
        }
        let apart = (scans / 2.0).clamp(1.0, f64::from(MOST)) as u32;
        (apart.min(self.wanted), self.period / self.wanted)
    }

    /// Sets the number of the group's ranges.
    pub(crate) fn set_ranges(&mut self, ranges: usize) {
        self.ranges = ranges;
    }

    /// A scan took so much of a processor's time.
    pub(crate) fn took(&mut self, scan_ns: u64) {
        self.scan_ns = match self.scan_ns {
            0.0 => scan_ns as f64,
            old => old + (scan_ns as f64 - old) / 8.0,
        };
    }

    /// Takes the counts of a period's ranges, of so many.
    pub(crate) fn follow(&mut self, counts: &[u8], samples: u8) {
        let most = (self.period.as_micros() / SHORTEST.as_micros()).max(1) as u32;
        self.wanted = match trend(counts, samples) {
            Trend::Shorter => (self.wanted * 2).min(most),
            Trend::Longer => (self.wanted / 2).max(LEAST.min(most)),
            Trend::Same => self.wanted,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn there_are_as_many_windows_as_scans_have_time_for() {
        let mut windows = Windows::new(100 * MS);
        assert_eq!(windows.of_period(), (20, 5 * MS), "nothing is known of their time");
        // 2 ms of a processor for scans of 0.05, 0.2 and 5 ms.
        for (scan_ns, count) in [(50_000, 20), (200_000, 5), (6_000_000, 1)] {
            windows.scan_ns = 0.0;
            windows.took(scan_ns);
            assert_eq!(windows.of_period(), (count, 5 * MS), "{scan_ns} ns");
        }
        windows.set_ranges(MOST_RANGES);
        assert_eq!(windows.of_period(), (1, 5 * MS));
        windows.set_ranges(MOST_RANGES + 1);
        assert_eq!(windows.of_period(), (1, 100 * MS));
    }

    #[test]
    fn windows_follow_the_program_and_stay_within_their_bounds() {
        let mut windows = Windows::new(100 * MS);
        (0..10).for_each(|_| windows.follow(&[16; 8], 16));
        assert_eq!(windows.of_period(), (30, MS), "accessed all over");
        (0..10).for_each(|_| windows.follow(&[1; 8], 16));
        assert_eq!(windows.of_period(), (2, 50 * MS), "hardly accessed");
        windows.follow(&[4, 8, 9, 5], 16);
        assert_eq!(windows.of_period(), (2, 50 * MS), "as it should be");
        assert_eq!(Windows::new(MS / 2).of_period(), (1, MS / 2));
    }
}

//! How often something is looked at that costs time.

use std::time::Duration;

/// Time that looking for changes may take, as a share of the period.
const CHECK_SHARE: f64 = 0.02;
/// Checks are left out for at most this many periods.
const MOST_SKIPPED: u32 = 8;

/// How often to look for changes, from what a look costs.
#[derive(Debug, Default)]
pub(crate) struct CheckPace {
    /// Periods from the last check to the next.
    every: u32,
    /// Periods until the next check.
    left: u32,
}

impl CheckPace {
    /// Whether it is time, asked once a period.
    pub(crate) fn due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// A look took so long.
    pub(crate) fn took(&mut self, time: Duration, period: Duration) {
        let share = time.as_secs_f64() / (period.as_secs_f64() * CHECK_SHARE);
        self.every = (share.ceil() as u32).clamp(1, MOST_SKIPPED);
        self.left = self.every;
    }

    /// Periods from one look to the next.
    pub(crate) fn every(&self) -> u32 {
        self.every.max(1)
    }
}

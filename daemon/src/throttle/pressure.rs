//! Reduces migration when it costs more waiting for memory than it gains.
//!
//! Linux reports how long tasks waited for memory (pressure stall information): for a control group
//! the time in which *some* task waited, for the whole host that in which *all* runnable tasks did.
//! Migration adds to both: tasks wait for pages under migration, and reclaim makes room for them.
//! The gain is the time that hits save: the share of time spent waiting for memory, times the extra
//! latency of slow memory, times the gain of hit ratio over doing nothing. When the larger of the
//! two stalls exceeds the gain and a lower bound, half as many pages are moved in the next period;
//! in each period without that, twice as many again.

use std::time::Instant;

/// Shares of a period in which tasks waited for memory, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stall {
    /// Time in which some task of the group waited.
    pub group: f64,
    /// Time in which all runnable tasks of the host waited.
    pub host: f64,
}

impl Stall {
    /// The larger of the two.
    pub fn worst(&self) -> f64 {
        self.group.max(self.host)
    }
}

/// Turns totals of waiting time into shares of the time between two readings.
#[derive(Debug, Clone, Copy, Default)]
pub struct StallClock {
    last: Option<(Instant, u64, u64)>,
}

impl StallClock {
    /// The stalls since the last reading. `None` for the first reading, and if they are unknown.
    pub fn since_last(&mut self, now: Instant, totals_us: Option<(u64, u64)>) -> Option<Stall> {
        let (group_us, host_us) = totals_us?;
        let last = self.last.replace((now, group_us, host_us));
        let (then, group_before_us, host_before_us) = last?;
        let passed_us = now.saturating_duration_since(then).as_micros() as f64;
        let share = |now_us: u64, before_us: u64| {
            (now_us.saturating_sub(before_us) as f64 / passed_us).clamp(0.0, 1.0)
        };
        (passed_us > 0.0).then(|| Stall {
            group: share(group_us, group_before_us),
            host: share(host_us, host_before_us),
        })
    }
}

/// The value of a hit in place of a miss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HitWorth {
    /// Share of a program's time, with all memory fast, that it waits for memory.
    pub memory_share: f64,
    /// Latency of slow over that of fast memory.
    pub latency_ratio: f64,
}

impl Default for HitWorth {
    fn default() -> Self {
        HitWorth { memory_share: 0.4, latency_ratio: 2.0 }
    }
}

/// Share of a period's time that such a gain of hit ratio saves.
pub fn gained_share(hit_ratio_gain: f64, worth: &HitWorth) -> f64 {
    worth.memory_share * (worth.latency_ratio - 1.0).max(0.0) * hit_ratio_gain.max(0.0)
}

/// The bound on moved pages for the next period, `None` without one: `bound` is that of the last
/// period, in which `moved` pages were moved.
pub fn next_bound(
    bound: Option<u64>,
    moved: u64,
    stall: f64,
    gained: f64,
    trifle: f64,
    least: u64,
) -> Option<u64> {
    if stall > trifle && stall > gained {
        // Nothing was moved, and still tasks wait: migration is not the cause.
        let from = bound.unwrap_or(moved).min(moved.max(least));
        return Some((from / 2).max(least));
    }
    let pages = bound?;
    // Removed when it no longer binds.
    (moved >= pages / 2).then(|| pages.saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_beyond_the_gain_halve_moves_and_quiet_periods_double_them() {
        let next = |bound, moved, stall, gained| next_bound(bound, moved, stall, gained, 0.05, 8);
        assert_eq!(next(None, 100, 0.2, 0.1), Some(50));
        assert_eq!(next(Some(50), 50, 0.2, 0.1), Some(25));
        assert_eq!(next(Some(9), 9, 0.9, 0.0), Some(8));
        // Migration that gains more than it costs goes on, and so does migration that costs next to
        // nothing.
        assert_eq!(next(None, 100, 0.2, 0.3), None);
        assert_eq!(next(None, 100, 0.04, 0.0), None);
        assert_eq!(next(Some(25), 25, 0.01, 0.0), Some(50));
        assert_eq!(next(Some(200), 40, 0.0, 0.0), None);
    }

    #[test]
    fn totals_become_shares_of_the_time_between_readings() {
        let mut clock = StallClock::default();
        let begin = Instant::now();
        let after = |s: u64| begin + std::time::Duration::from_secs(s);
        assert_eq!(clock.since_last(begin, Some((7, 3))), None);
        let stall = clock.since_last(after(2), Some((500_007, 3)));
        assert_eq!(stall, Some(Stall { group: 0.25, host: 0.0 }));
        // A group that was made anew begins from nothing.
        let stall = clock.since_last(after(3), Some((0, 1_000_003)));
        assert_eq!(stall, Some(Stall { group: 0.0, host: 1.0 }));
        assert_eq!(clock.since_last(after(4), None), None);
    }

    #[test]
    fn a_gain_is_time_that_hits_save() {
        let worth = HitWorth { memory_share: 0.4, latency_ratio: 3.0 };
        assert!((gained_share(0.5, &worth) - 0.4).abs() < 1e-12);
        assert_eq!(gained_share(-0.5, &worth), 0.0);
        assert_eq!(gained_share(1.0, &HitWorth { latency_ratio: 0.5, ..worth }), 0.0);
    }
}

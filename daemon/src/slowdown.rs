//! Slowdown of a group by slow memory: the extended leading-load model as a live estimate
//! (`docs/coverage.md`, G6).
//!
//! The model needs compute time `C`, memory time `M` with all memory fast, and the tiers of misses.
//! A stock kernel reports none of them for another process without the processor's counters, which
//! virtual machines do not have. So two assumptions are made and their errors shown:
//! - the share of time spent waiting for memory, `M / (C + M)`, is a parameter
//!   (`memory_share`, off by `memory_share_error` either way);
//! - the hit ratio of pages stands for that of accesses. It is taken as a sample, one for each
//!   accessed page of the last period (Wilson's interval).
//!
//! The cost of migration is measured: time in calls that move pages, over the period. It counts in
//! full, as if the program waited for all of it, which is an upper bound.

use terrace_core::projection::{HitRatio, ThreadTime};

use crate::status::Estimate;

/// Measured values of a group in a period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Facts {
    /// Accessed pages.
    pub accessed_pages: u64,
    /// Accessed pages in fast memory.
    pub hit_pages: u64,
    /// Time in calls that moved its pages.
    pub move_ns: u64,
    /// Length of the period.
    pub period_ns: u64,
}

/// Assumptions of the estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumed {
    /// Latency of slow over that of fast memory.
    pub latency_ratio: f64,
    /// Share of time that waits for memory with all of it fast.
    pub memory_share: f64,
    /// Error of that share, either way.
    pub memory_share_error: f64,
}

/// Run time over run time with all memory fast and nothing moved. `None` for a group without
/// accesses.
pub fn estimate(facts: &Facts, assumed: &Assumed) -> Option<Estimate> {
    if facts.accessed_pages == 0 || facts.period_ns == 0 {
        return None;
    }
    let hit_ratio = HitRatio::sampled(facts.hit_pages, facts.accessed_pages);
    let period_ns = facts.period_ns as f64;
    let with = |memory_share: f64| {
        let share = memory_share.clamp(0.0, 1.0);
        let thread = ThreadTime {
            compute_ns: period_ns * (1.0 - share),
            memory_ns: period_ns * share,
            hit_ratio,
            shootdown_ns: facts.move_ns as f64,
            copy_ns: 0.0,
        };
        let projected = thread.project(assumed.latency_ratio);
        (projected.time_ns / period_ns, projected.error_ns / period_ns)
    };
    let (value, of_model) = with(assumed.memory_share);
    let (low, _) = with(assumed.memory_share - assumed.memory_share_error);
    let (high, _) = with(assumed.memory_share + assumed.memory_share_error);
    let of_share = (high - value).max(value - low);
    Some(Estimate { value, error: of_model.hypot(of_share) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ASSUMED: Assumed =
        Assumed { latency_ratio: 3.0, memory_share: 0.4, memory_share_error: 0.2 };

    fn facts(hit_pages: u64) -> Facts {
        Facts { accessed_pages: 1_000_000, hit_pages, move_ns: 0, period_ns: 1_000_000_000 }
    }

    #[test]
    fn by_hand_and_the_assumption_widens_the_error() {
        // 0.6 + 0.4 * 0.75 + 0.4 * 0.25 * 3.
        let got = estimate(&facts(750_000), &ASSUMED).unwrap();
        assert!((got.value - 1.2).abs() < 1e-3, "{got:?}");
        // 0.2 more or less of the time waits: 0.2 * 0.25 * 2 = 0.1, and the model's 2.7 %.
        assert!((got.error - 0.1f64.hypot(1.2 * 0.027)).abs() < 2e-3, "{got:?}");
        let sure = Assumed { memory_share_error: 0.0, ..ASSUMED };
        assert!(estimate(&facts(750_000), &sure).unwrap().error < got.error);
        assert_eq!(estimate(&Facts { accessed_pages: 0, ..facts(0) }, &ASSUMED), None);
    }

    #[test]
    fn moves_count_in_full() {
        let moved = Facts { move_ns: 50_000_000, ..facts(1_000_000) };
        let got = estimate(&moved, &ASSUMED).unwrap();
        assert!((got.value - 1.05).abs() < 1e-3, "{got:?}");
    }

    proptest! {
        #[test]
        fn slower_with_fewer_hits_and_never_faster_than_all_fast(hits in 0u64..1_000_000) {
            let got = estimate(&facts(hits), &ASSUMED).unwrap();
            prop_assert!(got.value >= 1.0 - 1e-9 && got.value <= 1.8 + 1e-9);
            prop_assert!(got.error >= 0.0);
            let better = estimate(&facts(hits + 1), &ASSUMED).unwrap();
            prop_assert!(better.value <= got.value + 1e-12);
        }
    }
}

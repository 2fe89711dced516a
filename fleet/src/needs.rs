//! The least share of fast memory for a slowdown, read off a curve of the planner.
//!
//! The planner's answer is the least share that it has tried and found to be enough. Over many hosts
//! that rounding up would add to every answer, so the share where the straight line between that
//! point and the one below it crosses the target is taken. What meets the target only by a lucky dip
//! is no answer, as in the planner.
//!
//! The *safe* share is the planner's own: a share that was tried. Upper ends between two shares are
//! not known, and with all memory fast the planner's error is none where just below it is not.

use serde::{Deserialize, Serialize};
use terrace_planner::player::CurvePoint;
use terrace_planner::recording::Waiting;

/// How near the crossing the planner looks, as a share of the footprint.
pub const RESOLUTION: f64 = 0.015;

/// Half of that: by so much the share on the line can be off where the curve is not straight.
pub const HALF_STEP: f64 = RESOLUTION / 2.0;

/// A slowdown may exceed the target by this much: sums of times are rounded.
const ROUNDING: f64 = 1e-6;

/// What a group, a service or a host needs in fast memory: shares of a footprint, or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Need {
    /// Expected.
    pub fast: f64,
    /// Enough even at the upper end of the planner's error.
    pub safe: f64,
    /// Expected where the program waits for memory less than assumed, by the error of that.
    pub waits_less: f64,
    /// The same, where it waits more.
    pub waits_more: f64,
}

impl Need {
    /// With every part changed alike.
    pub fn map(self, change: impl Fn(f64) -> f64) -> Need {
        Need {
            fast: change(self.fast),
            safe: change(self.safe),
            waits_less: change(self.waits_less),
            waits_more: change(self.waits_more),
        }
    }

    /// Adds another.
    pub fn add(&mut self, other: &Need) {
        self.fast += other.fast;
        self.safe += other.safe;
        self.waits_less += other.waits_less;
        self.waits_more += other.waits_more;
    }
}

/// The need of a group of so many pages as shares of them, from its curve by share.
pub fn need(points: &[CurvePoint], target: f64, waiting: Waiting, pages: u64) -> Need {
    let at = |p: &CurvePoint| whole_pages(p.share, pages);
    // The model makes all of the slowdown of waiting, so that it grows with the share of that.
    let scaled = |share: f64| {
        let factor = share / waiting.share.max(1e-9);
        move |p: &CurvePoint| 1.0 + (p.slowdown - 1.0) * factor
    };
    let least = |value: &dyn Fn(&CurvePoint) -> f64| {
        let points = points.iter().map(|p| (at(p), value(p)));
        crossing(&points.collect::<Vec<_>>(), target)
    };
    Need {
        fast: least(&|p| p.slowdown),
        safe: tried(&points.iter().map(|p| (at(p), p.high)).collect::<Vec<_>>(), target),
        waits_less: least(&scaled((waiting.share - waiting.error).max(0.0))),
        waits_more: least(&scaled((waiting.share + waiting.error).min(1.0))),
    }
}

/// The share that was really fast: a limit is rounded down to whole pages.
fn whole_pages(share: f64, pages: u64) -> f64 {
    if pages == 0 { share } else { (share * pages as f64).floor() / pages as f64 }
}

/// Where slowdowns by share come down to the target for good: 0 where all of them meet it, 1 where
/// the last one does not.
fn crossing(points: &[(f64, f64)], target: f64) -> f64 {
    let Some(fails) = points.iter().rposition(|p| p.1 > target + ROUNDING) else { return 0.0 };
    let Some(meets) = points.get(fails + 1) else { return 1.0 };
    let (from, to) = (points[fails], *meets);
    let part = ((from.1 - target) / (from.1 - to.1)).clamp(0.0, 1.0);
    from.0 + part * (to.0 - from.0)
}

/// The least share from which on every tried one meets the target; 1 where the last one does not.
fn tried(points: &[(f64, f64)], target: f64) -> f64 {
    let fails = points.iter().rposition(|p| p.1 > target + ROUNDING);
    points.get(fails.map_or(0, |fails| fails + 1)).map_or(1.0, |p| p.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use terrace_planner::uncertainty::Uncertainty;

    fn point(share: f64, slowdown: f64) -> CurvePoint {
        CurvePoint {
            share,
            slowdown,
            uncertainty: Uncertainty::default(),
            low: slowdown,
            high: slowdown + 0.01,
            hit_ratio: 1.0,
            moved_pages: 0,
            periods: 1,
            cost: None,
        }
    }

    const WAITING: Waiting = Waiting { share: 0.4, error: 0.2 };

    #[test]
    fn the_share_is_where_the_line_crosses_the_target() {
        // 20 % slower without fast memory, straight down to nothing with all of it.
        let shares = (0..=10).map(|n| f64::from(n) / 10.0);
        let line: Vec<_> = shares.map(|s| point(s, 1.2 - 0.2 * s)).collect();
        let found = need(&line, 1.05, WAITING, 1000);
        assert!((found.fast - 0.75).abs() < 1e-9, "{found:?}");
        // A point of error more is 5 points of memory more.
        assert!((found.safe - 0.8).abs() < 1e-9, "{found:?}");
        // Half and three halves of the slowdown.
        assert!((found.waits_less - 0.5).abs() < 1e-9, "{found:?}");
        assert!((found.waits_more - 5.0 / 6.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn nothing_and_everything_are_answers_and_a_lucky_dip_is_none() {
        let flat = [point(0.0, 1.01), point(1.0, 1.0)];
        assert_eq!(need(&flat, 1.05, WAITING, 10).fast, 0.0);
        let steep = [point(0.0, 1.3), point(1.0, 1.3)];
        assert_eq!(need(&steep, 1.05, WAITING, 10).fast, 1.0);
        let dip = [point(0.0, 1.3), point(0.2, 1.0), point(0.4, 1.3), point(1.0, 1.0)];
        assert!(need(&dip, 1.05, WAITING, 10).fast > 0.4);
    }

    #[test]
    fn shares_are_those_of_whole_pages() {
        // Of three pages 0.9 are two.
        let points = [point(0.0, 1.2), point(0.9, 1.1), point(1.0, 1.0)];
        let found = need(&points, 1.1, WAITING, 3).fast;
        assert!((found - 2.0 / 3.0).abs() < 1e-9, "{found}");
    }

    #[test]
    fn the_safe_share_is_one_that_was_tried() {
        // With all memory fast there is no error, and just below it there is.
        let last = CurvePoint { high: 1.0, ..point(1.0, 1.0) };
        let points = [point(0.0, 1.2), point(0.9, 1.06), last.clone()];
        assert_eq!(need(&points, 1.05, WAITING, 0).safe, 1.0);
        let points = [point(0.0, 1.2), point(0.8, 1.05), point(0.9, 1.03), last];
        assert_eq!(need(&points, 1.05, WAITING, 0).safe, 0.9);
    }

    proptest! {
        #[test]
        fn the_safe_share_and_all_above_it_meet_the_target(
            heights in prop::collection::vec(1.0f64..1.2, 10), target in 1.0f64..1.2,
        ) {
            let mut points: Vec<_> =
                heights.iter().enumerate().map(|(n, h)| point(n as f64 / 10.0, *h)).collect();
            points.push(CurvePoint { high: 1.0, ..point(1.0, 1.0) });
            let safe = need(&points, target, WAITING, 0).safe;
            prop_assert!(points.iter().any(|p| p.share == safe), "{safe} was not tried");
            let mut above = points.iter().filter(|p| p.share >= safe);
            prop_assert!(above.all(|p| p.high <= target + ROUNDING), "{safe} is not enough");
        }

        #[test]
        fn a_stricter_target_never_needs_less(
            heights in prop::collection::vec(1.0f64..2.0, 11),
            target in 1.0f64..2.0, stricter in 0.0f64..0.5,
        ) {
            let points: Vec<_> =
                heights.iter().enumerate().map(|(n, h)| point(n as f64 / 10.0, *h)).collect();
            let (lax, strict) = (
                need(&points, target, WAITING, 0),
                need(&points, (target - stricter).max(1.0), WAITING, 0),
            );
            prop_assert!(strict.fast >= lax.fast);
            for share in [lax.fast, lax.safe, lax.waits_less, lax.waits_more] {
                prop_assert!((0.0..=1.0).contains(&share));
            }
            prop_assert!(lax.safe >= lax.fast);
            prop_assert!(lax.waits_less <= lax.fast && lax.fast <= lax.waits_more);
        }
    }
}

//! The time of an interval when a part of its reads is slow: the curve through measured points.

/// The time of an interval in a run with a part of the memory slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixedRun {
    /// Lines read from slow memory, of a million lines read.
    pub slow_ppm: u64,
    /// Time of the interval, in ps.
    pub took_ps: u64,
}

/// Shares of slow reads outside this range are not used: too few reads were slow, or too few fast.
const TELLING: std::ops::RangeInclusive<f64> = 0.005..=0.95;
/// Exponents of single runs are held in these bounds.
const EXPONENTS: std::ops::RangeInclusive<f64> = 0.5..=10.0;

/// Of the extra time of an interval with all of its reads slow, the part that it has with a share
/// of them slow.
///
/// A group of overlapping reads takes as long as its slowest. If all groups had `n` reads, and each
/// read were slow with the same probability, a share `s` would cost the part `1 - (1 - s)^n`.
/// Groups differ, and with all memory slow the bandwidth limits: the first slow reads cost several
/// times their share, and the later ones little. So the exponent is measured at several shares. In
/// logarithms of the remainders, `-ln(1 - part)` over `-ln(1 - s)`, the formula is a straight line
/// through the origin; the curve is linear between measured shares, and beyond the last it is the
/// line through the origin and that one.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// (`-ln(1 - s)`, `-ln(1 - part)`), ascending in both.
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// The curve of an interval from its times with all memory fast, all of it slow, and mixed.
    pub fn new(fast_ps: u64, slow_ps: u64, runs: &[MixedRun]) -> Self {
        let extra = slow_ps as f64 - fast_ps as f64;
        let mut points = Vec::with_capacity(runs.len());
        if extra >= 0.01 * fast_ps as f64 {
            for run in runs {
                let share = run.slow_ppm as f64 / 1e6;
                if !TELLING.contains(&share) {
                    continue;
                }
                let left = -(1.0 - share).ln();
                let part = ((run.took_ps as f64 - fast_ps as f64) / extra).clamp(0.001, 0.99);
                let exponent = -(1.0 - part).ln() / left;
                points.push((left, left * exponent.clamp(*EXPONENTS.start(), *EXPONENTS.end())));
            }
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        // More slow reads never cost less: this removes noise of single runs.
        let mut most = 0.0f64;
        for point in &mut points {
            most = most.max(point.1);
            point.1 = most;
        }
        Curve { points }
    }

    /// The part of the extra time that comes with a share of slow reads, both 0 to 1.
    pub fn part(&self, share: f64) -> f64 {
        let share = share.clamp(0.0, 1.0);
        if share >= 1.0 {
            return 1.0;
        }
        let left = -(1.0 - share).ln();
        let mut before = (0.0, 0.0);
        for &point in &self.points {
            if left < point.0 {
                let slope = (point.1 - before.1) / (point.0 - before.0);
                return 1.0 - (-(before.1 + slope * (left - before.0))).exp();
            }
            before = point;
        }
        let exponent = if before.0 > 0.0 { before.1 / before.0 } else { 1.0 };
        1.0 - (1.0 - share).powf(exponent)
    }

    /// The least exponent: `1 - (1 - s)^least` is nowhere above the curve. 1 where nothing was
    /// measured.
    pub fn least_exponent(&self) -> f64 {
        let least = self.points.iter().map(|(left, t)| t / left).fold(f64::INFINITY, f64::min);
        if least.is_finite() { least } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_curve_goes_through_what_was_measured() {
        let runs = [(30_000, 1_150), (125_000, 1_300), (500_000, 1_500)]
            .map(|(slow_ppm, took_ps)| MixedRun { slow_ppm, took_ps });
        let curve = Curve::new(1000, 2000, &runs);
        for run in runs {
            let part = curve.part(run.slow_ppm as f64 / 1e6);
            assert!((part - (run.took_ps as f64 - 1000.0) / 1000.0).abs() < 1e-9, "{part} {run:?}");
        }
        assert_eq!((curve.part(0.0), curve.part(1.0)), (0.0, 1.0));
        // Halfway to the first: nearly half of its cost, five times the share.
        assert!((0.076..0.079).contains(&curve.part(0.015)), "{}", curve.part(0.015));
        assert!((curve.least_exponent() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn one_run_gives_one_exponent_and_none_the_proportion() {
        let curve = Curve::new(1000, 3000, &[MixedRun { slow_ppm: 500_000, took_ps: 2500 }]);
        assert!((curve.part(0.25) - (1.0 - 0.75f64.powi(2))).abs() < 1e-12);
        assert!((curve.least_exponent() - 2.0).abs() < 1e-12);
        // Runs with all or no reads slow are not used, nor those of a program that slow memory does
        // not slow down.
        for (slow_ppm, slow_ps) in [(1_000_000, 3000), (0, 3000), (500_000, 1005)] {
            let curve = Curve::new(1000, slow_ps, &[MixedRun { slow_ppm, took_ps: 1004 }]);
            assert_eq!(curve.part(0.3), 1.0 - 0.7f64.powf(1.0));
        }
    }

    proptest! {
        #[test]
        fn more_slow_reads_never_cost_less_and_never_more_than_all(
            fast in 1u64..1 << 40, slow in 1u64..1 << 40,
            runs in prop::collection::vec((0u64..=1_000_000, 0u64..1 << 41), 0..5),
            mut shares in prop::collection::vec(0.0..=1.0f64, 2..20),
        ) {
            let runs: Vec<_> =
                runs.into_iter().map(|(slow_ppm, took_ps)| MixedRun { slow_ppm, took_ps }).collect();
            let curve = Curve::new(fast, slow, &runs);
            shares.sort_by(f64::total_cmp);
            let parts: Vec<f64> = shares.iter().map(|s| curve.part(*s)).collect();
            prop_assert!(parts.iter().all(|p| (0.0..=1.0).contains(p)), "{parts:?}");
            prop_assert!(parts.windows(2).all(|p| p[0] <= p[1] + 1e-12), "{parts:?}");
            let least = curve.least_exponent();
            for (share, part) in shares.iter().zip(&parts) {
                prop_assert!(*part >= 1.0 - (1.0 - share).powf(least) - 1e-9);
            }
        }
    }
}

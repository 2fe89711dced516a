//! The ratio of two times from windows, with its 95 % confidence interval.
//!
//! Each window is simulated both ways, so that what windows differ in falls out of the ratio: its
//! error is that of the residuals (Cochran, "Sampling Techniques", third edition, section 6.4).
//! Windows are drawn one from each equal part of the program; the interval takes them as drawn from
//! all of it, which makes it no narrower.

/// A ratio and half the width of its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The ratio.
    pub value: f64,
    /// Half of the interval's width.
    pub half_width: f64,
}

/// Times of windows, one way: of each window, and what comes once beside all windows.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// Time of each window, in ps.
    pub windows_ps: Vec<f64>,
    /// Time that is known of the whole program, in ps.
    pub once_ps: f64,
}

impl Times {
    /// Time of the whole program, which is `parts` windows long.
    pub fn whole_ps(&self, parts: f64) -> f64 {
        mean(&self.windows_ps) * parts + self.once_ps
    }
}

/// The ratio of `above` to `below`; the whole is `parts` windows long.
///
/// # Panics
/// When they have different numbers of windows.
pub fn ratio(above: &Times, below: &Times, parts: f64) -> Ratio {
    assert_eq!(above.windows_ps.len(), below.windows_ps.len(), "both of the same windows");
    let count = above.windows_ps.len();
    let base_ps = below.whole_ps(parts);
    let value = above.whole_ps(parts) / base_ps;
    if count < 2 {
        return Ratio { value, half_width: f64::INFINITY };
    }
    let pairs = above.windows_ps.iter().zip(&below.windows_ps);
    let residuals: Vec<f64> = pairs.map(|(above, below)| above - value * below).collect();
    let middle = mean(&residuals);
    let squares: f64 = residuals.iter().map(|r| (r - middle) * (r - middle)).sum();
    let variance_of_mean = squares / (count - 1) as f64 / count as f64;
    let half_width = student_95(count - 1) * variance_of_mean.sqrt() * parts / base_ps;
    Ratio { value, half_width }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The 97.5 % quantile of Student's t: of one and two degrees by its closed form, of more by a series
/// (Abramowitz and Stegun, 26.7.5), within one percent.
fn student_95(degrees: usize) -> f64 {
    if degrees < 3 {
        return if degrees < 2 { 12.706_205 } else { 4.302_653 };
    }
    let (x, n) = (1.959_964_f64, degrees as f64);
    let powers = [x, x.powi(3), x.powi(5), x.powi(7), x.powi(9)];
    let terms = [
        (powers[1] + powers[0]) / 4.0,
        (5.0 * powers[2] + 16.0 * powers[1] + 3.0 * powers[0]) / 96.0,
        (3.0 * powers[3] + 19.0 * powers[2] + 17.0 * powers[1] - 15.0 * powers[0]) / 384.0,
        (79.0 * powers[4] + 776.0 * powers[3] + 1482.0 * powers[2]
            - 1920.0 * powers[1]
            - 945.0 * powers[0])
            / 92_160.0,
    ];
    let corrections = terms.iter().zip(1..).map(|(term, power)| term / n.powi(power));
    x + corrections.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (degrees, expected) in [
            (1, 12.706),
            (2, 4.303),
            (3, 3.182),
            (5, 2.571),
            (10, 2.228),
            (30, 2.042),
            (1000, 1.962),
        ] {
            let got = student_95(degrees);
            assert!((got / expected - 1.0).abs() < 0.01, "{degrees}: {got}");
        }
    }

    #[test]
    fn windows_that_differ_alike_leave_no_error() {
        let below = Times { windows_ps: vec![1.0, 50.0, 7.0, 20.0], once_ps: 0.0 };
        let above = Times {
            windows_ps: below.windows_ps.iter().map(|t| t * 1.5).collect(),
            ..below.clone()
        };
        let got = ratio(&above, &below, 100.0);
        assert!((got.value - 1.5).abs() < 1e-12 && got.half_width < 1e-9, "{got:?}");
    }

    #[test]
    fn by_hand() {
        // Four windows of a program of eight; 10 ps come once, both ways.
        let below = Times { windows_ps: vec![10.0; 4], once_ps: 10.0 };
        let above = Times { windows_ps: vec![12.0, 16.0, 12.0, 16.0], once_ps: 10.0 };
        let got = ratio(&above, &below, 8.0);
        assert!((got.value - 122.0 / 90.0).abs() < 1e-12);
        // The residuals' deviation is sqrt(16 / 3), that of their mean half of it.
        let expected = student_95(3) * (4.0f64 / 3.0).sqrt() * 8.0 / 90.0;
        assert!((got.half_width - expected).abs() < 1e-12, "{got:?}");
    }

    #[test]
    fn one_window_is_no_evidence() {
        let times = Times { windows_ps: vec![1.0], once_ps: 0.0 };
        assert_eq!(ratio(&times, &times, 3.0).half_width, f64::INFINITY);
    }
}

//! Confidence intervals of estimates from samples.

/// Student's t for 95 % on both sides, at so many degrees of freedom: a table, and an expansion
/// that is right to a thousandth beyond it. Infinite for none.
#[must_use]
pub fn student_95(freedom: u64) -> f64 {
    const TABLE: [f64; 10] =
        [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    let f = freedom as f64;
    match (freedom as usize).checked_sub(1) {
        None => f64::INFINITY,
        Some(n) => match TABLE.get(n) {
            Some(known) => *known,
            None => 1.959_964 + 2.372_27 / f + 2.822_5 / (f * f),
        },
    }
}

/// Half the 95 % confidence interval of a mean, from the number of values and the sum of their
/// squared deviations. `None` with fewer than two values.
#[must_use]
pub fn half_interval_95(values: u64, squared_deviations: f64) -> Option<f64> {
    if values < 2 {
        return None;
    }
    let variance = squared_deviations.max(0.0) / (values - 1) as f64;
    Some(student_95(values - 1) * (variance / values as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_factor_joins_its_expansion() {
        for (freedom, expected) in [(1, 12.706), (11, 2.201), (30, 2.042), (1000, 1.962)] {
            assert!((student_95(freedom) / expected - 1.0).abs() < 1e-3, "{freedom}");
        }
        assert_eq!(student_95(0), f64::INFINITY);
    }

    #[test]
    fn an_interval_is_that_of_the_mean() {
        // 4, 6: a variance of 2 and one degree of freedom.
        assert_eq!(half_interval_95(2, 2.0), Some(12.706));
        assert_eq!(half_interval_95(1, 0.0), None);
    }
}

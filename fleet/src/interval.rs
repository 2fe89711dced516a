//! Quantiles and ratios over hosts, and how sure they are.
//!
//! - A quantile of hosts has an *order-statistic interval* (Hahn and Meeker, Statistical Intervals,
//!   section 5.2): how many of `n` hosts are below the true quantile is binomial, whatever the
//!   distribution is. It exists only with enough hosts: 72 for the 95 % quantile at 95 %.
//! - A mean over hosts, weighed by their memory, is a ratio of sums. It has a *studentized bootstrap*
//!   over hosts (Efron and Tibshirani, An Introduction to the Bootstrap, section 12.5): hosts are
//!   drawn with replacement, whole, because the groups of one host are alike.

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Hosts below which a mean gets no interval.
pub const LEAST_HOSTS: usize = 10;

/// Draws of the bootstrap.
const RESAMPLES: usize = 999;

/// The quantile of sorted values, unbiased in the median (Hyndman and Fan, type 8); `None` of none.
pub fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let n = sorted.len() as f64;
    let at = part * (n + 1.0 / 3.0) + 1.0 / 3.0;
    let low = at.floor().clamp(1.0, n.max(1.0));
    let high = (low + 1.0).min(n.max(1.0));
    let (a, b) = (*sorted.get(low as usize - 1)?, *sorted.get(high as usize - 1)?);
    Some(a + (b - a) * (at - low).clamp(0.0, 1.0))
}

/// The order-statistic interval of a quantile of sorted values; `None` where there are too few.
pub fn quantile_interval(sorted: &[f64], part: f64, confidence: f64) -> Option<(f64, f64)> {
    let n = sorted.len();
    let tail = (1.0 - confidence) / 2.0;
    // P(at most k of n are below the quantile), k = 0, 1, ...
    let (mut log_mass, mut below) = (n as f64 * (1.0 - part).ln(), 0.0);
    let odds = (part / (1.0 - part)).ln();
    let (mut low, mut high) = (None, None);
    for k in 0..n {
        below += f64::exp(log_mass);
        if below <= tail {
            low = Some(k + 1);
        }
        if below >= 1.0 - tail {
            high = Some(k + 1);
            break;
        }
        log_mass += ((n - k) as f64 / (k + 1) as f64).ln() + odds;
    }
    Some((sorted[low? - 1], sorted[high? - 1]))
}

/// The sum of the first values over that of the second; `None` where that is 0.
pub fn ratio(hosts: &[(f64, f64)]) -> Option<f64> {
    let (over, under) = hosts.iter().fold((0.0, 0.0), |sum, h| (sum.0 + h.0, sum.1 + h.1));
    (under > 0.0).then(|| over / under)
}

/// A ratio and its standard error over hosts.
fn studied(hosts: &[(f64, f64)]) -> Option<(f64, f64)> {
    let value = ratio(hosts)?;
    let n = hosts.len() as f64;
    let squares: f64 = hosts.iter().map(|h| (h.0 - value * h.1).powi(2)).sum();
    let under: f64 = hosts.iter().map(|h| h.1).sum();
    Some((value, (n / (n - 1.0).max(1.0) * squares).sqrt() / under))
}

/// The studentized bootstrap interval of a ratio over hosts, within 0 and 1; `None` with fewer hosts
/// than [`LEAST_HOSTS`].
pub fn ratio_interval(hosts: &[(f64, f64)], confidence: f64, seed: u64) -> Option<(f64, f64)> {
    let (value, error) = studied(hosts).filter(|_| hosts.len() >= LEAST_HOSTS)?;
    if error <= 1e-12 * value.abs() {
        return Some((value, value));
    }
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut drawn = Vec::with_capacity(hosts.len());
    let mut apart = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        drawn.clear();
        drawn.extend(hosts.iter().map(|_| {
            let at = (u128::from(random.next_u64()) * hosts.len() as u128) >> 64;
            hosts[at as usize]
        }));
        // Draws of hosts that are all alike have no error to be measured by. They are as far apart as
        // can be: without them the interval would end where most hosts are.
        if let Some((again, its_error)) = studied(&drawn) {
            let difference = again - value;
            let is_equal = difference == 0.0;
            apart.push(if is_equal { 0.0 } else { difference / its_error });
        }
    }
    apart.sort_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    let nth = |part: f64| {
        let at = ((apart.len() + 1) as f64 * part).round() as usize;
        apart.get(at.clamp(1, apart.len().max(1)) - 1).copied()
    };
    let (least, most) = (nth(tail)?, nth(1.0 - tail)?);
    // An end without bound is that of all shares.
    let within = |end: f64| end.clamp(0.0, 1.0);
    Some((within(value - most * error).min(value), within(value - least * error).max(value)))
}

/// A seed for one number of the answer: what it is about, and the fleet's seed.
pub fn seed_of(seed: u64, about: &[&str]) -> u64 {
    // FNV-1a: the same on every machine and release.
    let bytes = about.iter().flat_map(|text| text.bytes().chain([0]));
    let start = 0xcbf2_9ce4_8422_2325u64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bytes.fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand_core::RngCore;
    use rand_distr::{Distribution, LogNormal};

    fn sorted(mut values: Vec<f64>) -> Vec<f64> {
        values.sort_by(f64::total_cmp);
        values
    }

    #[test]
    fn quantiles_are_those_of_the_definition() {
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(quantile(&ten, 0.5), Some(5.5));
        // 0.9 * (10 + 1/3) + 1/3 = 9.6333.
        assert!((quantile(&ten, 0.9).unwrap() - 9.633_333).abs() < 1e-5);
        assert_eq!(quantile(&ten, 0.999), Some(10.0));
        assert_eq!(quantile(&[7.0], 0.95), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn an_upper_quantile_takes_72_hosts_for_an_interval() {
        // 0.95^71 = 0.0262 and 0.95^72 = 0.0249, with 0.025 allowed at each end.
        let hosts = |n: u32| (0..n).map(f64::from).collect::<Vec<_>>();
        assert_eq!(quantile_interval(&hosts(71), 0.95, 0.95), None);
        assert_eq!(quantile_interval(&hosts(72), 0.95, 0.95).unwrap().1, 71.0);
        // Of 100 hosts: P(B <= 89) = 0.0115, P(B <= 90) = 0.0282, P(B <= 98) = 0.9629 and
        // P(B <= 99) = 0.9941 of the binomial, so the 90th and the 100th.
        assert_eq!(quantile_interval(&hosts(100), 0.95, 0.95), Some((89.0, 99.0)));
        assert!(quantile_interval(&hosts(100_000), 0.95, 0.95).is_some());
    }

    #[test]
    fn intervals_contain_the_truth_as_often_as_they_say() {
        let skewed = LogNormal::new(-1.0, 0.25).unwrap();
        let mean = f64::exp(-1.0 + 0.25f64.powi(2) / 2.0);
        let upper = f64::exp(-1.0 + 0.25 * 1.644_853_627);
        let mut random = Pcg64Mcg::seed_from_u64(7);
        let (mut means, mut quantiles) = (0, 0);
        for round in 0..400 {
            let values: Vec<f64> = (0..120).map(|_| skewed.sample(&mut random)).collect();
            let few: Vec<_> = values[..15].iter().map(|v| (*v, 1.0)).collect();
            let (low, high) = ratio_interval(&few, 0.95, round).unwrap();
            means += u32::from(low <= mean && mean <= high);
            let (low, high) = quantile_interval(&sorted(values), 0.95, 0.95).unwrap();
            quantiles += u32::from(low <= upper && upper <= high);
        }
        // 95 % of 400 are 380, give or take 9 (two standard errors).
        assert!((368..=396).contains(&means), "{means} of 400");
        assert!((368..=400).contains(&quantiles), "{quantiles} of 400");
    }

    #[test]
    fn the_interval_of_a_need_that_few_hosts_have_is_wide() {
        // One of 30 needs all: in 36 % of the draws none does.
        let hosts: Vec<_> = (0..30).map(|n| (f64::from(u8::from(n == 0)), 1.0)).collect();
        let (low, high) = ratio_interval(&hosts, 0.95, 1).unwrap();
        assert!(low <= 0.01 && high > 0.2, "{low} {high}");
        // As often as it says, where any host of those that are known needs it.
        let mut random = Pcg64Mcg::seed_from_u64(11);
        let (mut within, mut rounds) = (0, 0);
        while rounds < 200 {
            let draw = |_| (f64::from(u8::from(random.next_u64() < u64::MAX / 20)), 1.0);
            let hosts: Vec<(f64, f64)> = (0..60).map(draw).collect();
            if hosts.iter().all(|h| h.0 == 0.0) {
                continue;
            }
            rounds += 1;
            let (low, high) = ratio_interval(&hosts, 0.95, rounds).unwrap();
            within += u32::from(low <= 0.05 && 0.05 <= high);
        }
        assert!(within >= 184, "{within} of 200");
    }

    #[test]
    fn means_of_few_hosts_have_no_interval_and_of_equal_ones_no_width() {
        let hosts = |n: usize| vec![(1.0, 4.0); n];
        assert_eq!(ratio_interval(&hosts(LEAST_HOSTS - 1), 0.95, 1), None);
        assert_eq!(ratio_interval(&hosts(LEAST_HOSTS), 0.95, 1), Some((0.25, 0.25)));
        assert_eq!(ratio(&[]), None);
    }

    proptest! {
        #[test]
        fn an_estimate_is_within_its_interval_and_its_values(
            values in prop::collection::vec((0.0f64..1.0, 0.1f64..9.0), 10..150),
            part in 0.5f64..0.99, seed: u64,
        ) {
            let shares = sorted(values.iter().map(|v| v.0).collect());
            let found = quantile(&shares, part).unwrap();
            prop_assert!(shares[0] <= found && found <= shares[shares.len() - 1]);
            prop_assert!(quantile(&shares, part - 0.1).unwrap() <= found);
            if let Some((low, high)) = quantile_interval(&shares, part, 0.95) {
                prop_assert!(low <= found && found <= high, "{low} {found} {high}");
                let sure = quantile_interval(&shares, part, 0.8).unwrap();
                prop_assert!(low <= sure.0 && sure.1 <= high);
            }
            let hosts: Vec<_> = values.iter().map(|v| (v.0 * v.1, v.1)).collect();
            let mean = ratio(&hosts).unwrap();
            let (low, high) = ratio_interval(&hosts, 0.95, seed).unwrap();
            prop_assert!(0.0 <= low && low <= mean && mean <= high && high <= 1.0);
            // The same draws, whatever the unit.
            let scaled: Vec<_> = hosts.iter().map(|h| (h.0 * 1024.0, h.1 * 1024.0)).collect();
            let again = ratio_interval(&scaled, 0.95, seed).unwrap();
            prop_assert!((again.0 - low).abs() < 1e-9 && (again.1 - high).abs() < 1e-9);
        }

        #[test]
        fn more_memory_on_every_host_is_more_memory_in_the_answer(
            values in prop::collection::vec(0.0f64..0.5, 72..120), more in 0.01f64..0.5,
        ) {
            let now = sorted(values.clone());
            let then = sorted(values.iter().map(|v| v + more).collect());
            let (a, b) = (quantile(&now, 0.95).unwrap(), quantile(&then, 0.95).unwrap());
            prop_assert!((b - a - more).abs() < 1e-9);
            let (a, b) = (quantile_interval(&now, 0.95, 0.95), quantile_interval(&then, 0.95, 0.95));
            prop_assert!((b.unwrap().1 - a.unwrap().1 - more).abs() < 1e-9);
        }
    }
}

//! How often accessed bits were set: a bit once a period says *whether* a page was accessed, samples
//! of it within the period say *how often*.
//!
//! A page that was accessed in `m` of `n` samples, each of length `d`, has about
//! `-ln(1 - m/n) / d` accesses a second, if they come independently of each other. Where pages are
//! compared with each other, the share `m/n` is enough: it has the same order. [`SampledShares`]
//! keeps a moving average of it and ranks pages by it.

use std::sync::{Arc, LazyLock};

use crate::remap::Remap;

/// The samples of a period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessCounts {
    /// Samples of each page in the period, not 0.
    pub samples: u8,
    /// Time between two of them, in microseconds.
    pub interval_us: u32,
    /// In how many of them each page had been accessed.
    pub counts: Arc<[u8]>,
}

impl AccessCounts {
    /// The share of the samples in which a page had been accessed, 0 to 1.
    pub fn share(&self, page: usize) -> f64 {
        f64::from(self.counts[page]) / f64::from(self.samples)
    }

    /// For each count from 0 to the number of samples, accesses per sample. A page that was
    /// accessed in every sample may have any number of accesses: it counts as if half a sample had
    /// been without.
    pub fn accesses_per_sample(&self) -> Vec<f32> {
        let samples = f64::from(self.samples);
        let of = |count: u8| -(1.0 - f64::from(count).min(samples - 0.5) / samples).ln();
        (0..=self.samples).map(|count| of(count) as f32).collect()
    }

    /// These counts, raised to what pages would have if they had at least so many accesses a second,
    /// spread evenly over so many accessed bits each. Where another signal has seen accesses that go to
    /// few of a page's bits, samples of its bits by chance have missed them.
    pub fn raised(&self, accesses_per_s: &[f32], bits_per_page: u32) -> AccessCounts {
        let samples = f64::from(self.samples);
        let look_s = f64::from(self.interval_us) / 1e6 / f64::from(bits_per_page.max(1));
        let raise = |(&count, &rate): (&u8, &f32)| {
            let seen = samples * (1.0 - (-f64::from(rate) * look_s).exp());
            count.max(seen.round() as u8)
        };
        let counts = self.counts.iter().zip(accesses_per_s).map(raise).collect();
        AccessCounts { counts, ..self.clone() }
    }
}

/// The rank of a page that is hardly ever accessed; 0 is that of pages accessed in every sample.
pub const COLDEST: u8 = 64;

/// A share of 1.
const WHOLE: u16 = 0xfffe;
/// The share of a new page: not known yet.
const NONE: u16 = u16::MAX;
/// Weight of a period's share in the average of a page: 1 over this, at most and at least. Half of
/// the average is of the last 5 periods, or of the last 44.
const PERIODS: [u32; 2] = [8, 64];
/// An average spans as many periods as this number of samples take that find the page accessed: less
/// is chance, and pages alike would change their order with each of them.
const FOUND: u32 = 8;
/// As many in one period are no chance: a page that was seldom accessed has changed.
const SURPRISE: u32 = 4;
/// Bits of a share that do not enter the rank.
const COARSE: u32 = 4;

/// Ranks by share. Steps are equal in terms of chance: the variance of the arcsine of the root of a
/// share hardly depends on the share, so equally accessed pages differ by as many ranks at any
/// share.
static RANKS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let rank = |coarse: u32| {
        // The smallest is next to nothing, the greatest is all.
        let most = if coarse == 0 { 0 } else { (coarse << COARSE) + (1 << COARSE) - 1 };
        let share = f64::from(most) / f64::from(WHOLE);
        let angle = share.min(1.0).sqrt().asin() / std::f64::consts::FRAC_PI_2;
        COLDEST - (angle * f64::from(COLDEST)).round() as u8
    };
    (0..=u32::from(WHOLE) >> COARSE).map(rank).collect()
});

/// The share that pages of a rank have, 0 to 1.
pub fn share_of(rank: u8) -> f64 {
    let angle = f64::from(COLDEST - rank.min(COLDEST)) / f64::from(COLDEST);
    (angle * std::f64::consts::FRAC_PI_2).sin().powi(2)
}

/// Moving averages of the shares of samples in which pages were accessed, 2 bytes a page. Empty until
/// samples come.
#[derive(Debug, Clone, Default)]
pub struct SampledShares {
    shares: Vec<u16>,
    interval_us: u32,
}

impl SampledShares {
    /// Whether there are any shares.
    pub fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// Time between the samples of the shares, in seconds.
    pub fn interval_s(&self) -> f64 {
        f64::from(self.interval_us) / 1e6
    }

    /// Applies a change of layout.
    pub fn remap(&mut self, remap: &Remap) {
        if !self.shares.is_empty() {
            self.shares = remap.values(&self.shares, NONE, remap.new_pages());
        }
    }

    /// Adds the samples of a period.
    pub fn observe(&mut self, counts: &AccessCounts) {
        self.shares.resize(counts.counts.len(), NONE);
        let interval_us = counts.interval_us.max(1);
        if self.interval_us != 0 && interval_us != self.interval_us {
            self.convert(f64::from(interval_us) / f64::from(self.interval_us));
        }
        self.interval_us = interval_us;
        let samples = u32::from(counts.samples.max(1));
        for (share, &count) in self.shares.iter_mut().zip(counts.counts.iter()) {
            let now = u32::from(count).min(samples) * u32::from(WHOLE) / samples;
            *share = match *share {
                NONE => now as u16,
                before => {
                    let periods = periods(before, samples, count.into());
                    let step = (now as i32 - i32::from(before)) / periods;
                    // Less than a step would stay for ever.
                    let step =
                        if step == 0 { (now as i32 - i32::from(before)).signum() } else { step };
                    (i32::from(before) + step) as u16
                }
            };
        }
    }

    /// Samples that are longer by this factor find more pages accessed.
    fn convert(&mut self, factor: f64) {
        for share in self.shares.iter_mut().filter(|share| **share != NONE) {
            let idle = 1.0 - f64::from(*share) / f64::from(WHOLE);
            *share = ((1.0 - idle.powf(factor)) * f64::from(WHOLE)).round() as u16;
        }
    }

    /// The rank of a page, 0 to [`COLDEST`]; the coldest of one that is new.
    pub fn rank(&self, page: usize) -> u8 {
        match self.shares.get(page) {
            None | Some(&NONE) => COLDEST,
            Some(&share) => RANKS[usize::from(share >> COARSE)],
        }
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        self.shares.capacity() * size_of::<u16>()
    }
}

/// Periods that the average of a page with this share spans, in a period in which so many of the
/// samples found it accessed.
fn periods(share: u16, samples: u32, count: u32) -> i32 {
    let [least, most] = PERIODS;
    // Samples of a period that find it accessed, times the whole.
    let found = u32::from(share) * samples;
    let spans = FOUND * u32::from(WHOLE) / found.max(1);
    (if count >= SURPRISE { least } else { spans.clamp(least, most) }) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::RngCore as _;

    #[test]
    fn accesses_to_few_bits_of_a_page_raise_its_count_and_lower_none() {
        // 20 looks of 5 ms at one of 512 bits: 100,000 accesses a second are 0.98 a look.
        let counts = period(20, 5000, &[3, 3, 20, 0]);
        let raised = counts.raised(&[100_000.0, 0.0, 1000.0, 1e9], 512);
        assert_eq!(&raised.counts[..], &[12, 3, 20, 20]);
        assert_eq!((raised.samples, raised.interval_us), (20, 5000));
    }

    fn period(samples: u8, interval_us: u32, counts: &[u8]) -> AccessCounts {
        AccessCounts { samples, interval_us, counts: counts.into() }
    }

    #[test]
    fn accesses_a_sample_are_those_of_independent_accesses_and_finite() {
        let counts = period(20, 50_000, &[0, 10, 20]);
        assert_eq!(counts.share(1), 0.5);
        let of = counts.accesses_per_sample();
        assert_eq!((of.len(), of[0]), (21, 0.0));
        assert!(
            (of[10] - std::f32::consts::LN_2).abs() < 1e-3 && of[20] > of[19] && of[20] < 4.0,
            "{of:?}"
        );
    }

    #[test]
    fn pages_are_ranked_by_how_often_they_are_accessed_and_the_average_follows() {
        let mut shares = SampledShares::default();
        assert_eq!(shares.rank(0), COLDEST);
        for _ in 0..20 {
            shares.observe(&period(20, 50_000, &[20, 10, 5, 1, 0]));
        }
        let ranks: Vec<u8> = (0..5).map(|page| shares.rank(page)).collect();
        assert!(ranks.is_sorted_by(|a, b| a + 2 <= *b), "{ranks:?}");
        assert_eq!((ranks[0], ranks[1], ranks[4]), (0, 32, COLDEST));
        assert!((share_of(ranks[2]) - 0.25).abs() < 0.02);
        // The first and the fourth swap roles: within six periods the order is the other.
        for _ in 0..6 {
            shares.observe(&period(20, 50_000, &[1, 10, 5, 20, 0]));
        }
        assert!(shares.rank(3) < shares.rank(0), "{} {}", shares.rank(3), shares.rank(0));
        // A page that is not accessed any more ends cold.
        for _ in 0..400 {
            shares.observe(&period(20, 50_000, &[0, 0, 0, 0, 0]));
        }
        assert_eq!(shares.rank(1), COLDEST);
    }

    /// As in ranges of base pages, of which a sample asks one: of 96 pages a third is found accessed once
    /// in 4 periods, the others once in 40. By the last periods alone chance decides who is ahead.
    #[test]
    fn pages_that_are_seldom_found_accessed_keep_their_order() {
        const PAGES: usize = 96;
        let mut random = rand_pcg::Pcg64Mcg::new(7);
        let mut shares = SampledShares::default();
        let (mut right, mut changes, mut before) = (0, 0, Vec::new());
        for number in 0..300 {
            let mut counts = [0; PAGES];
            for (page, count) in counts.iter_mut().enumerate() {
                let odds = if page < PAGES / 3 { 80 } else { 800 };
                *count = (0..20).filter(|_| random.next_u64().is_multiple_of(odds)).count() as u8;
            }
            shares.observe(&period(20, 50_000, &counts));
            let mut order: Vec<usize> = (0..PAGES).collect();
            order.sort_by_key(|&page| (shares.rank(page), page));
            let mut best = order[..PAGES / 3].to_vec();
            best.sort_unstable();
            if number >= 100 {
                right += best.iter().filter(|&&page| page < PAGES / 3).count();
                changes += best.iter().filter(|page| !before.contains(*page)).count();
            }
            before = best;
        }
        let right = right as f64 / (200 * PAGES / 3) as f64;
        assert!(right > 0.9 && changes < 200, "{right} are right, {changes} changes");
    }

    #[test]
    fn another_interval_changes_no_rank_of_pages_that_go_on_as_they_did() {
        let (mut shares, mut steady) = (SampledShares::default(), SampledShares::default());
        // 10 accesses a second: 63 % of samples of 100 ms have one, 39 % of those of 50 ms.
        for _ in 0..30 {
            shares.observe(&period(100, 100_000, &[63]));
            steady.observe(&period(100, 50_000, &[39]));
        }
        shares.observe(&period(100, 50_000, &[39]));
        assert!(shares.rank(0).abs_diff(steady.rank(0)) <= 1);
        assert_eq!(shares.interval_s(), 0.05);
    }
}

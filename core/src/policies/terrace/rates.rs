//! How often each page is read, by three moving averages with different horizons, and
//! keys of these rates for the selection.

use crate::page::Layout;
use crate::remap::Remap;

/// How many horizons there are.
pub const HORIZONS: usize = 3;

/// The key of pages that are hardly read at all.
pub const COLDEST: u8 = 127;

/// Steps of the key to a doubling of the rate.
const STEPS: u32 = 8;
/// The smallest rate that differs from none, as bits of the number: 2^-6.
const LEAST_BITS: u32 = (127 - 6) << STEPS.ilog2();

/// The key of a rate, smaller for greater ones: eight to a doubling, from 1/64 to 1024.
pub fn key(rate: f32) -> u8 {
    let step = rate.to_bits() >> (23 - STEPS.ilog2());
    match step.checked_sub(LEAST_BITS) {
        Some(above) if rate > 0.0 => COLDEST - 1 - (above.min(126)) as u8,
        _ => COLDEST,
    }
}

/// The least rate that has this key; 0 of the coldest.
pub fn rate_of(key: u8) -> f32 {
    match key {
        COLDEST => 0.0,
        key => {
            let above = u32::from(COLDEST - 1 - key);
            f32::from_bits((LEAST_BITS + above) << (23 - STEPS.ilog2()))
        }
    }
}

/// Moving averages of the reads of each page, 12 bytes a page.
#[derive(Debug, Default)]
pub struct Rates {
    averages: [Vec<f32>; HORIZONS],
    /// Part of an average that is kept after a period.
    keep: [f32; HORIZONS],
    /// How much of the averages is due to observed periods: they begin at 0.
    seen: [f32; HORIZONS],
}

impl Rates {
    pub fn new(keep: [f32; HORIZONS]) -> Self {
        Rates { keep, ..Rates::default() }
    }

    pub fn remap(&mut self, remap: &Remap) {
        for averages in &mut self.averages {
            *averages = remap.values(averages, 0.0, remap.new_pages());
        }
    }

    /// Adds the reads of a period.
    pub fn observe(&mut self, reads: &[f32]) {
        for (averages, (keep, seen)) in
            self.averages.iter_mut().zip(self.keep.iter().zip(&mut self.seen))
        {
            for (average, &now) in averages.iter_mut().zip(reads) {
                *average = *average * keep + now * (1.0 - keep);
            }
            *seen = *seen * keep + 1.0 - keep;
        }
    }

    /// Reads count in another unit from now on: so many of it for one of the unit before.
    pub fn scale(&mut self, factor: f32) {
        if factor != 1.0 {
            self.averages.iter_mut().flatten().for_each(|average| *average *= factor);
        }
    }

    /// Nothing has been observed.
    pub fn clear(&mut self) {
        self.averages.iter_mut().flatten().for_each(|average| *average = 0.0);
        self.seen = [0.0; HORIZONS];
    }

    /// The first so many horizons take over the averages of the shortest: the earlier ones are of
    /// another phase.
    pub fn forget(&mut self, horizons: usize) {
        let seen = self.seen[0];
        let [first, others @ ..] = &mut self.averages;
        for averages in others.iter_mut().take(horizons.saturating_sub(1)) {
            averages.clone_from(first);
        }
        self.seen[..horizons].fill(seen);
    }

    /// How like each other these reads and a horizon's rates are: the part of the larger of
    /// the two sums that they have in common.
    pub fn likeness(&self, horizon: usize, reads: &[f32]) -> f32 {
        let seen = self.seen[horizon].max(1e-6);
        // Sums of 32 bits stop at 2^24, which the reads of much memory exceed.
        let (mut common, mut all, mut expected) = (0.0f64, 0.0f64, 0.0f64);
        for (&average, &now) in self.averages[horizon].iter().zip(reads) {
            let average = average / seen;
            common += f64::from(now.min(average));
            all += f64::from(now);
            expected += f64::from(average);
        }
        (common / all.max(expected).max(1e-6)) as f32
    }

    /// The rates of a horizon, from its averages. Where `region_bytes` is more than a page, a page
    /// is taken to be like the others of its region as far as they are alike: the difference of
    /// pages that chance alone would make is taken off (James and Stein's estimator).
    pub fn rates(&self, horizon: usize, layout: &Layout, region_bytes: u64, rates: &mut Vec<f32>) {
        let seen = self.seen[horizon].max(1e-6);
        rates.clear();
        rates.extend(self.averages[horizon].iter().map(|average| average / seen));
        if region_bytes <= layout.page_size().bytes() {
            return;
        }
        let noise = self.noise(horizon);
        layout.regions(region_bytes, |pages| {
            let n = pages.len() as f32;
            if n < 3.0 {
                return;
            }
            let mean = rates[pages.clone()].iter().sum::<f32>() / n;
            let of_pages =
                rates[pages.clone()].iter().map(|r| (r - mean) * (r - mean)).sum::<f32>();
            let by_chance = mean * noise * (n - 3.0).max(1.0);
            let own = (1.0 - by_chance / of_pages.max(1e-9)).clamp(0.0, 1.0);
            for rate in &mut rates[pages] {
                *rate = mean + own * (*rate - mean);
            }
        });
    }

    /// The variance of a rate over the rate, were reads independent of each other.
    pub fn noise(&self, horizon: usize) -> f32 {
        let keep = self.keep[horizon];
        let settled = (1.0 - keep) / (1.0 + keep);
        // A young average is of fewer periods.
        (settled / self.seen[horizon].max(1e-6)).min(1.0)
    }

    pub fn size_bytes(&self) -> usize {
        self.averages.iter().map(|a| a.capacity() * size_of::<f32>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageSize;

    #[test]
    fn keys_keep_the_order_of_rates_and_are_within_an_eighth() {
        let mut last = COLDEST;
        let mut rate = 0.01f32;
        while rate < 1000.0 {
            let now = key(rate);
            assert!(now <= last, "{rate}");
            if now < COLDEST {
                let back = rate_of(now);
                assert!(back <= rate && rate < back * 1.13, "{rate} {back}");
            }
            last = now;
            rate *= 1.01;
        }
        assert_eq!((key(0.0), key(1e9), rate_of(COLDEST)), (COLDEST, 0, 0.0));
    }

    #[test]
    fn pages_that_differ_by_chance_only_are_taken_as_alike() {
        let layout = Layout::contiguous(PageSize::Base, 32);
        let mut rates = Rates::new([0.5, 0.8, 0.95]);
        rates.remap(&Remap::from_nothing(&layout));
        // The first region: one sample here or there. The second: one page has them all.
        for period in 0..40 {
            let reads: Vec<f32> = (0..32)
                .map(|page| match page {
                    0..16 => f32::from((page + period) % 8 == 0),
                    20 => 2.0,
                    _ => 0.0,
                })
                .collect();
            rates.observe(&reads);
        }
        let mut got = Vec::new();
        rates.rates(1, &layout, 16 * 4096, &mut got);
        assert!(got[..16].iter().all(|r| (r - 0.125).abs() < 0.06), "{:?}", &got[..16]);
        assert!(got[20] > 1.6 && got[21] < 0.05, "{:?}", &got[16..]);
    }

    #[test]
    fn reads_beyond_what_a_small_number_can_count_are_part_of_the_likeness() {
        let pages = 1 << 20;
        let layout = Layout::contiguous(PageSize::Base, pages);
        let mut rates = Rates::new([0.5, 0.8, 0.95]);
        rates.remap(&Remap::from_nothing(&layout));
        // One page has 2^24 reads. In the next period each of the others has one, too.
        let reads = |others: f32| -> Vec<f32> {
            (0..pages).map(|page| if page == 0 { (1 << 24) as f32 } else { others }).collect()
        };
        rates.observe(&reads(0.0));
        let likeness = rates.likeness(1, &reads(1.0));
        assert!((likeness - 16.0 / 17.0).abs() < 1e-3, "{likeness}");
    }

    #[test]
    fn a_young_average_is_not_too_low_and_forgetting_takes_the_shortest() {
        let layout = Layout::contiguous(PageSize::Base, 2);
        let mut rates = Rates::new([0.5, 0.8, 0.95]);
        rates.remap(&Remap::from_nothing(&layout));
        rates.observe(&[4.0, 0.0]);
        let mut got = Vec::new();
        for horizon in 0..HORIZONS {
            rates.rates(horizon, &layout, 0, &mut got);
            assert!((got[0] - 4.0).abs() < 1e-4);
        }
        for _ in 0..20 {
            rates.observe(&[0.0, 4.0]);
        }
        assert!(rates.likeness(2, &[4.0, 0.0]) < 0.5);
        rates.forget(HORIZONS);
        rates.rates(2, &layout, 0, &mut got);
        assert!(got[0] < 1e-3 && got[1] > 3.9, "{got:?}");
    }

    #[test]
    fn rates_follow_their_unit_and_begin_anew() {
        let layout = Layout::contiguous(PageSize::Base, 2);
        let mut rates = Rates::new([0.6, 0.95, 0.995]);
        rates.remap(&Remap::from_nothing(&layout));
        let of_all = |rates: &Rates| {
            (0..HORIZONS)
                .map(|horizon| {
                    let mut all = Vec::new();
                    rates.rates(horizon, &layout, 0, &mut all);
                    (all[0].round(), all[1].round())
                })
                .collect::<Vec<_>>()
        };
        (0..10).for_each(|_| rates.observe(&[80.0, 8.0]));
        assert_eq!(of_all(&rates), [(80.0, 8.0); HORIZONS]);
        // Each sample stands for four times as many reads, and there are a quarter of them.
        rates.scale(0.25);
        rates.observe(&[20.0, 2.0]);
        assert_eq!(of_all(&rates), [(20.0, 2.0); HORIZONS]);
        rates.clear();
        rates.observe(&[3.0, 5.0]);
        assert_eq!(of_all(&rates), [(3.0, 5.0); HORIZONS], "a young average is no smaller");
    }
}

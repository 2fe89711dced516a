//! Rates of accesses of base pages from samples: pure, without a kernel.
//!
//! A sample names the base page that was read, of fast and of slow memory alike. Each counts less the
//! older it is, so a count over the time that it stands for is the page's rate of late. Samples come
//! independently of each other, so a count of `n` is off by some `√n`; a page without a sample may
//! have had one just missed. A source may change how many accesses a sample is of, so counts are in the
//! number of the first one.
//!
//! Ranges of 2 MB of which some page was sampled are kept, with all of their pages: which of them are
//! not sampled is as good to know.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_core::refine::PageRate;

use crate::refiner::{FADES_S, KNOWN_EVERY_S, MOST_RANGES, Observed, PAGES_OF_RANGE as PAGES};

/// Nothing is known of a range before it was observed for so long.
const LEAST_S: f64 = 0.5;
/// Counts are brought to today's measure when a new sample would count so much.
const MOST_WEIGHT: f64 = 1e6;
/// A range whose samples count less than this together is forgotten.
const LEAST_COUNT: f64 = 0.25;

/// A range of which some page was sampled.
#[derive(Debug)]
struct Counts {
    /// Samples by page, in the measure of their time.
    pages: Box<[f32; PAGES]>,
    /// When it was sampled first.
    since_s: f64,
}

/// Samples by base page, of one group.
#[derive(Debug, Default)]
pub(super) struct BasePages {
    /// Accesses that a count of 1 stands for; 0 before there was any.
    unit: u32,
    /// By process and start.
    ranges: BTreeMap<(u32, u64), Counts>,
    /// The time at which a sample counts 1; others count as their time is later or earlier.
    measured_s: f64,
    now_s: f64,
    version: u64,
    known_s: f64,
}

impl BasePages {
    /// What comes now is of this time; time does not go back.
    pub(super) fn at(&mut self, now: Duration) {
        self.now_s = self.now_s.max(now.as_secs_f64());
        if self.weight() > MOST_WEIGHT {
            self.measure();
        }
    }

    /// What a sample of this time counts in the measure of those that are kept.
    fn weight(&self) -> f64 {
        ((self.now_s - self.measured_s) / FADES_S).exp()
    }

    /// Brings all counts to the measure of this time, and forgets ranges that have hardly any.
    fn measure(&mut self) {
        let factor = 1.0 / self.weight();
        self.ranges.retain(|_, counts| {
            let sum: f64 = counts.pages.iter().map(|count| f64::from(*count) * factor).sum();
            counts.pages.iter_mut().for_each(|count| *count *= factor as f32);
            sum >= LEAST_COUNT
        });
        self.measured_s = self.now_s;
    }

    /// A read of this page of the range that begins here was sampled, which stands for so many.
    pub(super) fn add(&mut self, (pid, start): (u32, u64), page: usize, accesses: u32) {
        if self.unit == 0 {
            self.unit = accesses;
        }
        let units = f64::from(accesses) / f64::from(self.unit.max(1));
        let weight = (self.weight() * units) as f32;
        let is_room = self.ranges.len() < MOST_RANGES;
        if let Some(counts) = self.ranges.get_mut(&(pid, start)) {
            counts.pages[page] += weight;
        } else if is_room {
            let mut pages = Box::new([0.0; PAGES]);
            pages[page] = weight;
            self.ranges.insert((pid, start), Counts { pages, since_s: self.now_s });
        }
    }

    /// Ends a period; more is known after some of them.
    pub(super) fn end_period(&mut self) {
        if !self.ranges.is_empty() && self.now_s - self.known_s >= KNOWN_EVERY_S {
            // Once in a while, so that ranges without samples make room.
            if self.ranges.len() == MOST_RANGES {
                self.measure();
            }
            self.known_s = self.now_s;
            self.version += 1;
        }
    }

    /// Another number whenever more became known.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// What is known of each base page of the range that begins here, where one sample is of so many
    /// accesses.
    pub(super) fn of_range(
        &self,
        pid: u32,
        start: u64,
        accesses_per_sample: u32,
    ) -> Option<Vec<Observed>> {
        let counts = self.ranges.get(&(pid, start))?;
        let observed_s = self.now_s - counts.since_s;
        if observed_s < LEAST_S {
            return None;
        }
        // The time that a count of now stands for.
        let stands_for_s = FADES_S * (1.0 - (-observed_s / FADES_S).exp());
        let per_count = f64::from(self.unit) / stands_for_s;
        let factor = 1.0 / self.weight();
        // What a sample of now counts.
        let sample = f64::from(accesses_per_sample) / f64::from(self.unit.max(1));
        let of = |&count: &f32| {
            let count = f64::from(count) * factor;
            let error = (count * sample).sqrt();
            let rate = PageRate {
                least_per_s: ((count - error).max(0.0) * per_count) as f32,
                most_per_s: ((count + error + sample) * per_count) as f32,
            };
            // Pages are sampled wherever they are, so silence is coldness.
            Observed { rate: Some(rate), answered: true }
        };
        Some(counts.pages.iter().map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::page::PageSize;

    const MS: Duration = Duration::from_millis(1);

    /// Samples of two pages of a range, 40 and 8 a second, for so many seconds.
    fn observe(pages: &mut BasePages, from_s: u32, seconds: u32) {
        for tenth in from_s * 10..(from_s + seconds) * 10 {
            pages.at(tenth * 100 * MS);
            (0..4).for_each(|_| pages.add((7, 0), 3, 100));
            if tenth % 5 == 0 {
                (0..4).for_each(|_| pages.add((7, 0), 9, 100));
            }
            pages.end_period();
        }
    }

    fn rates(pages: &BasePages) -> Vec<PageRate> {
        pages.of_range(7, 0, 100).unwrap().iter().map(|page| page.rate.unwrap()).collect()
    }

    #[test]
    fn rates_are_between_their_bounds_however_long_they_were_observed() {
        for seconds in [1, 3, 10, 60, 400] {
            let mut pages = BasePages::default();
            observe(&mut pages, 0, seconds);
            let rates = rates(&pages);
            for (page, per_s) in [(3, 4000.0), (9, 800.0)] {
                let PageRate { least_per_s, most_per_s } = rates[page];
                assert!(least_per_s < per_s && per_s < most_per_s, "{seconds} s: {rates:?}");
            }
            assert!(rates[3].most_per_s < 4.0 * 4000.0 && rates[3].least_per_s > 1000.0);
            // A page without samples has at most the rate of one just missed.
            assert_eq!(rates[0].least_per_s, 0.0);
            assert!(rates[0].most_per_s < 0.1 * rates[3].least_per_s, "{seconds} s: {rates:?}");
        }
    }

    #[test]
    fn what_is_read_no_more_cools_and_is_forgotten() {
        let mut pages = BasePages::default();
        observe(&mut pages, 0, 60);
        let before = rates(&pages)[3].least_per_s;
        pages.at(90_000 * MS);
        let after = rates(&pages)[3];
        assert!(after.most_per_s < 0.1 * before, "{after:?}");
        // It would count for nothing long before another is that hot.
        pages.at(Duration::from_secs(300));
        assert_eq!(pages.of_range(7, 0, 100), None);
    }

    #[test]
    fn nothing_is_known_at_first_and_then_now_and_again() {
        let mut pages = BasePages::default();
        pages.at(1000 * MS);
        pages.add((7, 0), 3, 100);
        assert_eq!(pages.of_range(7, 0, 100), None);
        pages.end_period();
        let first = pages.version();
        pages.at(1200 * MS);
        pages.end_period();
        assert_eq!(pages.version(), first, "it was just known");
        pages.at(1600 * MS);
        pages.end_period();
        assert_eq!(pages.version(), first + 1);
        assert!(pages.of_range(7, 0, 100).is_some());
        assert_eq!((pages.of_range(7, 1 << 21, 100), pages.of_range(8, 0, 100)), (None, None));
    }

    #[test]
    fn ranges_beyond_the_bound_are_left_out_until_others_have_cooled() {
        let mut pages = BasePages::default();
        pages.at(1000 * MS);
        let start = |nth: usize| nth as u64 * PageSize::Huge.bytes();
        (0..MOST_RANGES).for_each(|nth| pages.add((7, start(nth)), 0, 100));
        pages.add((7, start(MOST_RANGES)), 0, 100);
        pages.at(61_000 * MS);
        pages.end_period();
        assert_eq!(pages.ranges.len(), 0, "a sample a minute ago");
        pages.add((7, start(MOST_RANGES)), 0, 100);
        pages.at(62_000 * MS);
        assert!(pages.of_range(7, start(MOST_RANGES), 100).is_some());
    }

    /// A source that halves and doubles the number of accesses for each sample has as many of them.
    #[test]
    fn rates_are_the_same_whatever_a_sample_stands_for() {
        let observe = |of: fn(u32) -> u32| {
            let mut pages = BasePages::default();
            for tenth in 0..300 {
                pages.at(tenth * 100 * MS);
                let accesses = of(tenth);
                (0..1600 / accesses).for_each(|_| pages.add((7, 0), 3, accesses));
                pages.end_period();
            }
            let found = pages.of_range(7, 0, of(299)).unwrap();
            found.iter().map(|page| page.rate.unwrap()).collect::<Vec<PageRate>>()
        };
        let steady = observe(|_| 100);
        let middle = |rate: PageRate| f64::from(rate.least_per_s + rate.most_per_s) / 2.0;
        for changing in [observe(|tenth| if tenth < 150 { 100 } else { 800 }), observe(|_| 800)] {
            let ratio = middle(changing[3]) / middle(steady[3]);
            assert!((0.9..1.1).contains(&ratio), "{ratio}");
            // Fewer samples are less sure.
            let width = |rate: PageRate| rate.most_per_s - rate.least_per_s;
            assert!(width(changing[3]) > 2.0 * width(steady[3]), "{changing:?}");
        }
    }
}

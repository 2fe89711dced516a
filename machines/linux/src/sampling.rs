//! Number of samples of each accessed bit in a period: pure, without a kernel.
//!
//! One bit a period does not distinguish the pages of a busy program, because nearly all of them
//! are used in every period. Samples within the period do, if their interval suits the rate of
//! accesses: where every sample finds a page accessed, or none does, pages look alike again. So the
//! interval follows the program. It is halved while many pages are accessed in nearly all samples,
//! and doubled when even the busiest are accessed in few.
//!
//! Each sample of a page is a check that costs the kernel up to a microsecond. A bound on checks
//! per second bounds the processor time, whatever the group's size: large groups are sampled less
//! often, down to once a period.
//!
//! A range of 2 MB has many accessed bits, and a sample that reads one of them says little about
//! the others. The rest of the bound is used for parts of each range that are sampled separately:
//! more checks for a program that is small enough.

use std::time::Duration;

/// How often accessed bits are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Samples {
    /// Once a period: a scan has a bit for each page.
    #[default]
    One,
    /// As often as suits the program, within bounds: a scan has a count for each page.
    Several,
    /// Several samples where a page is a range of base pages: its parts are sampled separately, and
    /// its count is their sum.
    OfParts,
}

/// Shortest interval.
const SHORTEST: Duration = Duration::from_millis(5);
/// Checks a second of one group: 1 to 2 % of a processor.
const CHECKS_PER_S: f64 = 20_000.0;
/// Samples of a period: at the start, at most and, if there are several, at least.
const FIRST: u32 = 20;
const MOST: u32 = 240;
const LEAST: u32 = 5;
/// Most parts of a range that are sampled separately.
const PARTS: u32 = 8;
/// Most parts of all ranges together: setting one up takes the kernel up to a millisecond.
const ALL_PARTS: u32 = 1024;
/// Share of the samples from which on a page counts as accessed in nearly all.
const NEARLY_ALL: f64 = 0.875;
/// Share of the pages that may be accessed in nearly all.
const MANY: f64 = 0.125;
/// The busiest quarter of the used pages is accessed in few samples below this share.
const FEW: f64 = 0.15;

/// The interval between samples of one group.
#[derive(Debug, Clone)]
pub struct Sampling {
    period: Duration,
    kind: Samples,
    /// Samples of a period that suit the program, before the bound on checks.
    wanted: u32,
    pages: usize,
}

impl Sampling {
    /// For a group with this period.
    pub fn new(period: Duration, kind: Samples) -> Self {
        Sampling { period, kind, wanted: FIRST, pages: 0 }
    }

    /// Sets the number of the group's pages.
    pub fn set_pages(&mut self, pages: usize) {
        self.pages = pages;
    }

    /// Samples of a period, not 0.
    pub fn samples(&self) -> u8 {
        if self.kind == Samples::One {
            return 1;
        }
        let by_time = self.period.as_micros() / SHORTEST.as_micros();
        let by_checks = CHECKS_PER_S * self.period.as_secs_f64() / self.pages.max(1) as f64;
        let most = (by_time as u32).min(by_checks as u32).min(MOST);
        // Two or three samples say little and cost as much as an additional bit each.
        if most < LEAST { 1 } else { self.wanted.min(most) as u8 }
    }

    /// Parts of a page that are sampled separately: a power of two.
    pub fn parts(&self) -> u8 {
        let samples = u32::from(self.samples());
        if self.kind != Samples::OfParts || samples < 2 {
            return 1;
        }
        let pages = self.pages.max(1) as u32;
        let by_checks =
            CHECKS_PER_S * self.period.as_secs_f64() / f64::from(samples) / f64::from(pages);
        // The sum of their counts must fit a count.
        let most = PARTS.min(by_checks as u32).min(ALL_PARTS / pages).min(MOST / samples).max(1);
        1 << most.ilog2()
    }

    /// Checks of a page in a period: samples of all of its parts.
    pub fn samples_in_all(&self) -> u8 {
        self.samples() * self.parts()
    }

    /// The time between two samples.
    pub fn interval(&self) -> Duration {
        self.period / u32::from(self.samples())
    }

    /// Takes the number of checks of a period, of so many, that found each page accessed. Returns
    /// whether the interval changes.
    pub fn follow(&mut self, counts: &[u8], looks: u8) -> bool {
        let before = self.samples();
        if before < 2 {
            return false;
        }
        match trend(counts, looks) {
            Trend::Shorter => self.wanted = (u32::from(before) * 2).min(MOST),
            Trend::Longer => self.wanted = (u32::from(before) / 2).max(LEAST),
            Trend::Same => {}
        }
        self.samples() != before
    }
}

/// What would suit a program better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trend {
    /// Samples that are closer together.
    Shorter,
    /// Samples that are further apart.
    Longer,
    /// What there was.
    Same,
}

/// By the number of checks of a period, of so many, that found each page accessed.
pub(crate) fn trend(counts: &[u8], looks: u8) -> Trend {
    let samples = f64::from(looks);
    let mut pages_with = [0usize; 256];
    counts.iter().for_each(|&count| pages_with[usize::from(count)] += 1);
    let in_use = counts.len() - pages_with[0];
    let at_least = |share: f64| -> usize {
        pages_with[((share * samples).ceil() as usize).max(1)..].iter().sum()
    };
    if at_least(NEARLY_ALL) as f64 > MANY * counts.len() as f64 {
        Trend::Shorter
    } else if in_use > 0 && at_least(FEW) * 4 < in_use {
        Trend::Longer
    } else {
        Trend::Same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(pages: usize) -> Sampling {
        let mut sampling = Sampling::new(Duration::from_secs(1), Samples::Several);
        sampling.set_pages(pages);
        sampling
    }

    #[test]
    fn checks_a_second_are_bounded_whatever_the_size() {
        assert_eq!(sampling(100).samples(), 20);
        assert_eq!(sampling(100).interval(), Duration::from_millis(50));
        assert_eq!(sampling(2000).samples(), 10);
        assert_eq!(sampling(100_000).samples(), 1);
        assert_eq!(Sampling::new(Duration::from_secs(1), Samples::One).samples(), 1);
        let mut busy = sampling(400);
        for _ in 0..9 {
            let all = vec![busy.samples(); 400];
            busy.follow(&all, busy.samples_in_all());
        }
        assert_eq!(busy.samples(), 50, "20,000 checks a second");
        // Not more often than every 5 ms, nor so rarely that counts are meaningless.
        let mut quick = Sampling::new(Duration::from_millis(100), Samples::Several);
        quick.set_pages(10);
        assert_eq!(quick.samples(), 20);
        quick.period = Duration::from_millis(20);
        assert_eq!(quick.samples(), 1);
    }

    #[test]
    fn what_the_bound_leaves_over_goes_into_parts_of_ranges() {
        let parts = |pages: usize, period_ms: u64| {
            let mut sampling = Sampling::new(Duration::from_millis(period_ms), Samples::OfParts);
            sampling.set_pages(pages);
            (sampling.samples(), sampling.parts())
        };
        // 20 samples a second of 8 parts of 50 ranges are 8,000 checks a second.
        assert_eq!(parts(50, 1000), (20, 8));
        assert_eq!(parts(50, 100), (20, 2));
        assert_eq!(parts(300, 1000), (20, 2));
        assert_eq!(parts(2000, 1000), (10, 1));
        assert_eq!(parts(100_000, 1000), (1, 1));
        let mut pages = sampling(50);
        assert_eq!((pages.parts(), pages.samples_in_all()), (1, 20));
        // Fewer samples leave room for more parts.
        let mut quick = Sampling::new(Duration::from_millis(100), Samples::OfParts);
        quick.set_pages(50);
        assert!(quick.follow(&[1; 50], 40));
        assert_eq!((quick.samples(), quick.parts(), quick.samples_in_all()), (10, 4, 40));
        assert!(pages.follow(&[1; 50], 20));
    }

    #[test]
    fn the_interval_follows_the_rate_of_accesses_and_comes_to_rest() {
        // Rates in accesses a second: the busiest third at the first, the others at the second.
        for (busy, others, expected) in
            [(20.0, 1.0, 10..41), (400.0, 40.0, 60..241), (2.0, 0.1, 5..11)]
        {
            let mut sampling = sampling(60);
            let mut changes = 0;
            for _ in 0..20 {
                let samples = f64::from(sampling.samples());
                let count = |page: usize| {
                    let rate: f64 = if page < 20 { busy } else { others };
                    ((1.0 - (-rate / samples).exp()) * samples).round() as u8
                };
                let counts: Vec<u8> = (0..60).map(count).collect();
                changes += u32::from(sampling.follow(&counts, sampling.samples_in_all()));
            }
            let samples = u32::from(sampling.samples());
            assert!(expected.contains(&samples), "{samples} for {busy} a second");
            assert!(changes <= 5, "{changes} changes");
            if busy > 100.0 {
                assert!(changes > 0);
            }
        }
    }

    #[test]
    fn a_group_at_rest_changes_nothing() {
        let mut sampling = sampling(60);
        assert!(!sampling.follow(&[0; 60], 20));
        assert_eq!(sampling.samples(), 20);
    }
}

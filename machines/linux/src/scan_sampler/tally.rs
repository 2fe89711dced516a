//! What the scans of a period have found, together.

use std::sync::Arc;
use std::time::Duration;

use terrace_core::bits::PageBits;
use terrace_core::counts::AccessCounts;

/// Base pages of a range.
pub(super) const PAGES_OF_RANGE: u32 = crate::refiner::PAGES_OF_RANGE as u32;

/// Weight of a sample in a range's count: a count is in eighths of a range's base pages.
const LOOKS_OF_RANGE: u8 = 8;

/// The samples of a period.
#[derive(Default)]
pub(super) struct Tally {
    samples: u8,
    counts: Vec<u8>,
    /// Accessed at any time.
    accessed: Option<PageBits>,
    /// Accessed base pages of each range, summed over all samples.
    of_range: Vec<u32>,
}

impl Tally {
    /// Pages that were accessed, however long the time was in which they were.
    pub(super) fn accessed(&mut self, accessed: &PageBits) {
        match &mut self.accessed {
            Some(all) => accessed.iter_ones().for_each(|page| all.set(page, true)),
            none => *none = Some(accessed.clone()),
        }
    }

    pub(super) fn add(&mut self, accessed: &PageBits, of_range: &[u16]) {
        self.counts.resize(accessed.len(), 0);
        self.of_range.resize(of_range.len(), 0);
        self.accessed(accessed);
        self.samples = self.samples.saturating_add(1);
        accessed
            .iter_ones()
            .for_each(|page| self.counts[page] = self.counts[page].saturating_add(1));
        for (sum, &pages) in self.of_range.iter_mut().zip(of_range) {
            *sum += u32::from(pages);
        }
    }

    /// Accessed pages and their counts: for a range the share of its base pages. A page that was found
    /// accessed only where bits were read beside samples counts as in one.
    /// No counts where no sample counted.
    pub(super) fn counts(self, interval: Duration) -> (PageBits, Option<AccessCounts>) {
        let accessed = self.accessed.unwrap_or_default();
        let interval_us = interval.as_micros() as u32;
        if self.samples == 0 {
            return (accessed, None);
        }
        if self.of_range.is_empty() {
            let counts = at_least_one(self.counts, &accessed);
            let counts = AccessCounts { samples: self.samples, interval_us, counts };
            return (accessed, Some(counts));
        }
        let weight = LOOKS_OF_RANGE.min(u8::MAX / self.samples.max(1));
        let of = |sum: u32| (sum * u32::from(weight)).div_ceil(PAGES_OF_RANGE) as u8;
        let counts = at_least_one(self.of_range.into_iter().map(of).collect(), &accessed);
        (accessed, Some(AccessCounts { samples: self.samples * weight, interval_us, counts }))
    }
}

/// These counts, of accessed pages no less than 1.
fn at_least_one(mut counts: Vec<u8>, accessed: &PageBits) -> Arc<[u8]> {
    accessed.iter_ones().for_each(|page| counts[page] = counts[page].max(1));
    counts.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_a_range_is_the_share_of_its_base_pages() {
        let mut tally = Tally::default();
        let all: PageBits = [true, true, true].into_iter().collect();
        for of_range in [[512, 64, 1], [512, 64, 0], [512, 0, 0], [512, 0, 0]] {
            tally.add(&all, &of_range);
        }
        tally.accessed(&[false, false, false].into_iter().collect());
        let (accessed, counts) = tally.counts(Duration::from_millis(25));
        let counts = counts.expect("four samples");
        assert_eq!(accessed.count(), 3);
        assert_eq!((counts.samples, counts.interval_us), (32, 25_000));
        // All of 4 times 512, 128 of them, and one, which counts.
        assert_eq!(*counts.counts, [32, 2, 1]);
    }

    #[test]
    fn a_page_that_no_sample_but_another_scan_found_counts_once() {
        for of_range in [&[512, 0][..], &[]] {
            let mut tally = Tally::default();
            tally.add(&[true, false].into_iter().collect(), of_range);
            tally.accessed(&[false, true].into_iter().collect());
            let (accessed, counts) = tally.counts(Duration::from_millis(25));
            let counts = counts.expect("a sample");
            assert_eq!((accessed.count(), counts.counts[1]), (2, 1), "{of_range:?}");
        }
    }
}

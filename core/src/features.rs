//! The features of a period (adaptive-migration-policy paper, section 4.1), counted 64 pages at
//! a time, and the moving average that AMP judges policies by.

use std::collections::VecDeque;

use crate::bits::PageBits;
use crate::plan::Features;
use crate::remap::{LayoutFollower, Remap};
use crate::scan::Scan;

/// Counts features; remembers the pages of the scan before and where they were.
#[derive(Debug, Clone, Default)]
pub struct FeatureCounter {
    layout: LayoutFollower,
    previous: PageBits,
}

impl FeatureCounter {
    /// To be called first with every scan: applies a change of layout and returns it, so that the
    /// caller can apply it too. Fresh pages count as stable: the paper compares a page's place with
    /// its last, and they had none.
    pub fn follow(&mut self, scan: &Scan) -> Option<Remap> {
        let remap = self.layout.follow(&scan.layout)?;
        self.previous = remap.bits_or(&self.previous, &scan.fast);
        Some(remap)
    }

    /// Placement in the scan before; that of fresh pages is the present one.
    pub fn previous_fast(&self) -> &PageBits {
        &self.previous
    }

    /// The features of this scan, and how many pages are in fast memory. Where accessed bits were
    /// sampled several times, a page counts by the share of samples in which it had been accessed:
    /// the features are the mean of those that the samples would have as periods.
    pub fn count(&mut self, scan: &Scan) -> (Features, u64) {
        let (mut accessed, mut hits, mut moved, mut resident) = (0u64, 0u64, 0u64, 0u64);
        let words = scan.accessed.words().iter().zip(scan.fast.words());
        for ((&a, &f), previous) in words.zip(self.previous.words_mut()) {
            accessed += u64::from(a.count_ones());
            hits += u64::from((a & f).count_ones());
            resident += u64::from(f.count_ones());
            moved += u64::from((f ^ *previous).count_ones());
            *previous = f;
        }
        let pages = scan.pages() as u64;
        let (mut accesses, mut fast_accesses) = (accessed as f64, hits as f64);
        if scan.counts.is_some() {
            (accesses, fast_accesses) = (scan.accesses(), scan.accesses_in(&scan.fast));
        }
        let features = Features {
            hit_ratio: part_of(fast_accesses, accesses),
            hit_ratio_of_all: part_of(fast_accesses, pages as f64),
            stability: ratio(pages - moved, pages),
            accessed_ratio: part_of(accesses, pages as f64),
            lru_hit_average: None,
            lfu_hit_average: None,
        };
        (features, resident)
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        self.previous.size_bytes()
    }
}

/// `part` over `whole`, 0 of nothing.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    part_of(part as f64, whole as f64)
}

/// `part` over `whole`, 0 of nothing.
pub(crate) fn part_of(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

/// The mean of the last values, as many as the window holds.
#[derive(Debug, Clone)]
pub struct MovingAverage {
    window: usize,
    values: VecDeque<f64>,
}

impl MovingAverage {
    /// A window of this many values, at least 1.
    pub fn new(window: usize) -> Self {
        MovingAverage { window: window.max(1), values: VecDeque::new() }
    }

    /// Adds a value; the oldest is dropped when the window is full.
    pub fn push(&mut self, value: f64) {
        if self.values.len() == self.window {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    /// The mean, 0 of nothing. Summed anew each time, so that rounding cannot pile up and equal
    /// windows have equal means.
    pub fn mean(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Layout, PageSize};
    use std::sync::Arc;

    fn bits(text: &str) -> PageBits {
        text.chars().map(|c| c == '1').collect()
    }

    #[test]
    fn ratios_are_those_of_the_paper() {
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, 8));
        let mut counter = FeatureCounter::default();
        let first = Scan::new(0, Arc::clone(&layout), bits("11100000"), bits("11110000"));
        assert!(counter.follow(&first).is_some());
        let (f, resident) = counter.count(&first);
        assert_eq!(resident, 4);
        assert_eq!((f.hit_ratio, f.hit_ratio_of_all), (1.0, 3.0 / 8.0));
        assert_eq!((f.stability, f.accessed_ratio), (1.0, 3.0 / 8.0));
        let next = Scan::new(1, Arc::clone(&layout), bits("11000011"), bits("11010001"));
        assert!(counter.follow(&next).is_none());
        let (f, _) = counter.count(&next);
        assert_eq!((f.hit_ratio, f.hit_ratio_of_all), (3.0 / 4.0, 3.0 / 8.0));
        assert_eq!((f.stability, f.accessed_ratio), (6.0 / 8.0, 4.0 / 8.0));
    }

    #[test]
    fn a_group_without_pages_has_ratios_of_0() {
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, 0));
        let scan = Scan::new(0, layout, PageBits::default(), PageBits::default());
        assert_eq!(FeatureCounter::default().count(&scan).0, Features::default());
    }

    #[test]
    fn the_moving_average_forgets() {
        let mut average = MovingAverage::new(3);
        assert_eq!(average.mean(), 0.0);
        for value in [9.0, 1.0, 2.0, 3.0] {
            average.push(value);
        }
        assert_eq!(average.mean(), 2.0);
    }
}

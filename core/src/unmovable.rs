//! Pages that could not be moved again and again, remembered for a while: pinned for a device
//! (VFIO, RDMA, O_DIRECT, io_uring), shared with others, or of a kind that the kernel does not
//! move. Without this the same hottest pages would be planned each period and no others promoted.
//!
//! A first failure may be chance: a page is busy for a moment. From the second in a row on a page
//! is left out for `2^n` periods, 4 at first and 256 at most. One that is not planned for as long
//! again has moved or is no longer hot, and is forgotten. At most [`MOST_PAGES`] are remembered.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bits::PageBits;
use crate::counts::AccessCounts;
use crate::page::{PageSize, SpaceId, VirtualRange};
use crate::plan::{Exchange, FailureReason, Outcome, Plan};
use crate::scan::{PeriodCounters, Scan};

/// Most remembered pages: some 1 MB.
pub const MOST_PAGES: usize = 16_384;
/// Periods for which a page is left out after two failures, as a power of two.
const FIRST: u32 = 2;
/// Most such periods, as a power of two.
const LAST: u32 = 8;

#[derive(Debug, Clone, Copy)]
struct Entry {
    failures: u32,
    /// The period in which it may be planned again.
    until: u64,
}

impl Entry {
    /// Periods for which it is left out.
    fn wait(failures: u32) -> u64 {
        if failures < 2 { 0 } else { 1 << (failures - 2 + FIRST).min(LAST) }
    }
}

/// Pages that cannot be moved at present.
#[derive(Debug, Clone, Default)]
pub struct Unmovable {
    pages: BTreeMap<(SpaceId, u64), Entry>,
    period: u64,
}

/// Whether a failure of this kind is a property of the page.
fn is_of_page(reason: FailureReason) -> bool {
    use FailureReason::{Busy, Denied, StayedPut, Unsupported};
    matches!(reason, Busy | Denied | StayedPut | Unsupported)
}

impl Unmovable {
    /// Begins a period; forgets pages that were not planned for long.
    pub fn next_period(&mut self) {
        self.period += 1;
        let period = self.period;
        self.pages.retain(|_, e| period <= e.until + Entry::wait(e.failures).max(1 << FIRST));
    }

    /// Takes the failures of an outcome.
    pub fn learn(&mut self, outcome: &Outcome, size: PageSize) {
        for failure in outcome.failures.iter().filter(|f| is_of_page(f.reason)) {
            for nth in 0..failure.range.pages(size) {
                let page = (failure.range.space, failure.range.start + nth * size.bytes());
                if self.pages.len() >= MOST_PAGES && !self.pages.contains_key(&page) {
                    continue;
                }
                let entry = self.pages.entry(page).or_insert(Entry { failures: 0, until: 0 });
                entry.failures = entry.failures.saturating_add(1);
                entry.until = self.period + Entry::wait(entry.failures);
            }
        }
    }

    fn is_left_out(&self, space: SpaceId, address: u64) -> bool {
        self.pages.get(&(space, address)).is_some_and(|e| self.period < e.until)
    }

    /// Pages of this scan that are left out now.
    pub fn left_out(&self, scan: &Scan) -> PageBits {
        let mut bits = PageBits::new(scan.pages());
        for (&(space, address), entry) in &self.pages {
            if self.period < entry.until
                && let Some(index) = scan.layout.index(space, address)
            {
                bits.set(index, true);
            }
        }
        bits
    }

    /// The scan for a policy, so that it chooses other pages: an unmovable slow page looks unused, an
    /// unmovable fast one used as much as fast pages in the mean, if it is used less. As the most used one
    /// it would stay for long where policies remember, and placements without it would look bad.
    #[must_use]
    pub fn mask(scan: &Scan, left_out: &PageBits) -> Scan {
        let words = scan.accessed.words().iter().zip(scan.fast.words()).zip(left_out.words());
        let accessed = words.map(|((&accessed, &fast), &out)| accessed & !out | fast & out);
        let accessed = PageBits::from_words(accessed.collect(), scan.pages());
        let mut masked = Scan { accessed, ..scan.clone() };
        if let Some(counts) = &mut masked.counts {
            let values = instead(&counts.counts, left_out, &scan.fast);
            *counts = AccessCounts { counts: values, ..counts.clone() };
        }
        if let Some(counters) = &scan.counters
            && let Some(samples) = &counters.samples
        {
            let samples = Some(instead(samples, left_out, &scan.fast));
            let counters = PeriodCounters { samples, ..PeriodCounters::clone(counters) };
            masked.counters = Some(Arc::new(counters));
        }
        masked
    }

    /// Removes unmovable pages from a plan; returns how many.
    pub fn take_out(&self, plan: &mut Plan, size: PageSize) -> u64 {
        if self.pages.is_empty() {
            return 0;
        }
        let before = plan.pages(size);
        let pages = |range: &VirtualRange| -> Vec<VirtualRange> {
            let page = |nth| VirtualRange {
                start: range.start + nth * size.bytes(),
                size_bytes: size.bytes(),
                ..*range
            };
            (0..range.pages(size)).map(page).collect()
        };
        let stays = |page: &VirtualRange| !self.is_left_out(page.space, page.start);
        let filter = |ranges: &[VirtualRange]| {
            join(ranges.iter().flat_map(pages).filter(stays).collect(), |last, next| {
                (last.space == next.space && last.end() == next.start)
                    .then(|| last.size_bytes += next.size_bytes)
            })
        };
        plan.promotions = filter(&plan.promotions);
        plan.demotions = filter(&plan.demotions);
        let pairs =
            plan.exchanges.iter().flat_map(|e| pages(&e.up).into_iter().zip(pages(&e.down)));
        let pairs = pairs
            .filter(|(up, down)| stays(up) && stays(down))
            .map(|(up, down)| Exchange { up, down });
        plan.exchanges = join(pairs.collect(), |last, next| {
            let follows =
                |a: &VirtualRange, b: &VirtualRange| a.space == b.space && a.end() == b.start;
            (follows(&last.up, &next.up) && follows(&last.down, &next.down)).then(|| {
                last.up.size_bytes += next.up.size_bytes;
                last.down.size_bytes += next.down.size_bytes;
            })
        });
        let after = plan.pages(size);
        before.0 + before.1 - after.0 - after.1
    }

    /// Number of remembered pages.
    pub fn remembered(&self) -> usize {
        self.pages.len()
    }
}

/// Values of pages: for those that are left out, none if they are slow, and at least the mean of the fast
/// ones that have any if they are fast.
fn instead<T>(values: &[T], left_out: &PageBits, fast: &PageBits) -> Arc<[T]>
where
    T: Copy + Default + Ord + Into<u64> + TryFrom<u64>,
{
    let used = fast.iter_ones().map(|page| values[page].into()).filter(|value| *value > 0);
    let (sum, pages) = used.fold((0, 0), |(sum, pages), value| (sum + value, pages + 1));
    let mean = T::try_from(sum.div_ceil(pages.max(1)).max(1)).unwrap_or_default();
    let mut values = values.to_vec();
    for page in left_out.iter_ones() {
        values[page] = if fast.get(page) { values[page].max(mean) } else { T::default() };
    }
    values.into()
}

/// Merges neighbours in a list, where `extend` can.
fn join<T>(items: Vec<T>, extend: impl Fn(&mut T, &T) -> Option<()>) -> Vec<T> {
    let mut joined: Vec<T> = Vec::with_capacity(items.len());
    for item in items {
        if joined.last_mut().and_then(|last| extend(last, &item)).is_none() {
            joined.push(item);
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Layout;

    /// Pages of four ranges: 0 and 1 are fast; all are read as often as their number says.
    fn scan(layout: &Arc<Layout>, fast: &PageBits) -> Scan {
        let counts = AccessCounts { samples: 9, interval_us: 10, counts: [1, 2, 3, 4].into() };
        let counters = PeriodCounters {
            samples: Some([10, 20, 30, 40].into()),
            reads_per_sample: 1,
            ..PeriodCounters::default()
        };
        Scan::new(0, Arc::clone(layout), PageBits::ones(4), fast.clone())
            .with_counts(counts)
            .with_counters(Arc::new(counters))
    }

    #[test]
    fn of_what_is_left_out_all_signals_say_the_same() {
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, 4));
        let fast: PageBits = (0..4).map(|page| page < 2).collect();
        let left_out: PageBits = [true, false, false, true].into_iter().collect();
        let masked = Unmovable::mask(&scan(&layout, &fast), &left_out);
        assert_eq!(masked.accessed.iter_ones().collect::<Vec<_>>(), [0, 1, 2]);
        // The mean of the first two, rounded up.
        assert_eq!(masked.counts.as_ref().unwrap().counts[..], [2, 2, 3, 0]);
        assert_eq!(masked.samples().unwrap(), [15, 20, 30, 0]);
        // What is used more keeps its value, and what is the only one that is fast is used.
        let left_out: PageBits = [false, true, true, false].into_iter().collect();
        let masked = Unmovable::mask(&scan(&layout, &fast), &left_out);
        assert_eq!(masked.samples().unwrap(), [10, 20, 0, 40]);
        let values = instead(&[0u8, 0, 7, 7], &left_out, &fast);
        assert_eq!(values[..], [0, 1, 0, 7]);
    }
}

//! What a tracker observed in one period, and how much fast memory the group may use.

use std::ops::Range;
use std::sync::Arc;

use crate::bits::PageBits;
use crate::counts::AccessCounts;
use crate::page::Layout;

/// The accessed pages of one group in one period, with the place of each.
///
/// `fast` is the placement *during* the period, before any move that the scan leads to.
#[derive(Debug, Clone)]
pub struct Scan {
    /// Number of the period, from 0; a tracker that loses periods leaves gaps.
    pub period: u64,
    /// Periods lost since the scan before this one. Their accesses are unknown.
    pub lost_periods: u32,
    /// Which pages the group has. The same `Arc` as in the scan before when nothing changed.
    pub layout: Arc<Layout>,
    /// One bit per page: its accessed bit was set during the period.
    pub accessed: PageBits,
    /// One bit per page: it was in the fast tier.
    pub fast: PageBits,
    /// Number of each page's physical frame, in frames of the page's size, where the machine
    /// reports it. Frames of the two tiers do not overlap.
    pub frames: Option<Arc<[u64]>>,
    /// One bit per page: the kernel has it on an active list, where the machine reports that. A
    /// page that is on no list is not active.
    pub active: Option<PageBits>,
    /// In how many samples of the period each page had been accessed, where its accessed bit was
    /// sampled several times. A page has a count where it has a bit in `accessed`, and no other.
    pub counts: Option<AccessCounts>,
    /// Further counters, where the machine measures them.
    pub counters: Option<Arc<PeriodCounters>>,
}

/// What a machine measured of a group's memory during a period: counters of the processor, and
/// samples of reads as PEBS and IBS give them. Policies must do without it: most live machines have none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeriodCounters {
    /// Time that the period took the program, in ns, waits for the moves of the plan before
    /// included.
    pub elapsed_ns: u64,
    /// Of it, time that the program was stopped for moves.
    pub migration_stall_ns: u64,
    /// Of it, time that it waited for lines of slow memory.
    pub slow_stall_ns: u64,
    /// Loads and stores since the program began: how far it has come.
    pub references: u64,
    /// Lines read from fast and from slow memory in the period.
    pub reads: [u64; 2],
    /// Mean time of a read from fast and from slow memory, queues included, in ps; 0 where it is
    /// not known.
    pub read_latency_ps: [u64; 2],
    /// Sampled reads of each page, where reads are sampled.
    pub samples: Option<Arc<[u16]>>,
    /// Reads for each sample.
    pub reads_per_sample: u32,
}

impl Scan {
    /// A scan; the bit vectors must have a bit for every page.
    ///
    /// # Panics
    /// When they do not.
    pub fn new(period: u64, layout: Arc<Layout>, accessed: PageBits, fast: PageBits) -> Self {
        assert_eq!(accessed.len(), layout.pages(), "accessed bits for every page");
        assert_eq!(fast.len(), layout.pages(), "fast bits for every page");
        let lost_periods = 0;
        let (frames, active, counts, counters) = (None, None, None, None);
        Scan { period, lost_periods, layout, accessed, fast, frames, active, counts, counters }
    }

    /// The same scan with the frame of every page.
    ///
    /// # Panics
    /// When there are more or fewer frames than pages.
    pub fn with_frames(self, frames: Arc<[u64]>) -> Self {
        assert_eq!(frames.len(), self.pages(), "a frame for every page");
        Scan { frames: Some(frames), ..self }
    }

    /// The same scan with the pages on the kernel's active lists.
    ///
    /// # Panics
    /// When there are more or fewer bits than pages.
    pub fn with_active(self, active: PageBits) -> Self {
        assert_eq!(active.len(), self.pages(), "active bits for every page");
        Scan { active: Some(active), ..self }
    }

    /// The same scan with how often pages were accessed.
    ///
    /// # Panics
    /// When there are more or fewer counts than pages.
    pub fn with_counts(self, counts: AccessCounts) -> Self {
        assert_eq!(counts.counts.len(), self.pages(), "a count for every page");
        Scan { counts: Some(counts), ..self }
    }

    /// Accesses to the pages of `places`, in page-periods: a page that was accessed in all samples of
    /// the period, or of which only that is known, counts as 1, one that was accessed in half of them
    /// as a half.
    ///
    /// # Panics
    /// When there are more or fewer bits than pages.
    pub fn accesses_in(&self, places: &PageBits) -> f64 {
        let Some(counts) = &self.counts else {
            return self.accessed.count_and(places) as f64;
        };
        let words = self.accessed.words().iter().zip(places.words());
        let mut sum = 0u64;
        for ((&accessed, &places), counts) in words.zip(counts.counts.chunks(64)) {
            let mut bits = accessed & places;
            while bits != 0 {
                sum += u64::from(counts[bits.trailing_zeros() as usize]);
                bits &= bits - 1;
            }
        }
        sum as f64 / f64::from(counts.samples.max(1))
    }

    /// Accesses to all pages, as [`Scan::accesses_in`].
    pub fn accesses(&self) -> f64 {
        self.accesses_in(&self.accessed)
    }

    /// The same scan with measured counters.
    ///
    /// # Panics
    /// When there are samples of more or fewer pages than it has.
    pub fn with_counters(self, counters: Arc<PeriodCounters>) -> Self {
        let sampled = counters.samples.as_ref().is_none_or(|s| s.len() == self.pages());
        assert!(sampled, "samples for every page");
        Scan { counters: Some(counters), ..self }
    }

    /// The scan of some of its pages, which come in order: `layout` is theirs, as
    /// [`Layout::of_pages`] makes it.
    ///
    /// # Panics
    /// When the layout has more or fewer pages.
    #[must_use]
    pub fn of_pages(&self, layout: &Arc<Layout>, pages: &[Range<usize>]) -> Self {
        let bits = |all: &PageBits| {
            let mut some = PageBits::new(layout.pages());
            let mut at = 0;
            for range in pages {
                some.copy_range(at, all, range.clone());
                at += range.len();
            }
            some
        };
        fn values<T: Copy>(all: &[T], pages: &[Range<usize>]) -> Arc<[T]> {
            pages.iter().flat_map(|range| &all[range.clone()]).copied().collect()
        }
        let mut scan =
            Scan::new(self.period, Arc::clone(layout), bits(&self.accessed), bits(&self.fast));
        scan.lost_periods = self.lost_periods;
        scan.frames = self.frames.as_ref().map(|frames| values(frames, pages));
        scan.active = self.active.as_ref().map(bits);
        scan.counts = self
            .counts
            .as_ref()
            .map(|counts| AccessCounts { counts: values(&counts.counts, pages), ..counts.clone() });
        scan.counters = self.counters.as_ref().map(|counters| {
            let samples = counters.samples.as_ref().map(|samples| values(samples, pages));
            Arc::new(PeriodCounters { samples, ..PeriodCounters::clone(counters) })
        });
        scan
    }

    /// Sampled reads of each page, where reads are sampled.
    pub fn samples(&self) -> Option<&[u16]> {
        self.counters.as_ref()?.samples.as_deref()
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.layout.pages()
    }
}

/// What a plan may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Pages of the group that may be in the fast tier.
    pub fast_pages: u64,
    /// Pages that one plan may move, counting both pages of an exchange. Demotions that bring
    /// the group back within `fast_pages` come first.
    pub moved_pages: u64,
}

impl Budget {
    /// A budget of this much fast memory and any number of moves.
    pub fn fast(fast_pages: u64) -> Self {
        Budget { fast_pages, moved_pages: u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::page::PageSize;

    proptest! {
        /// The scan of some pages says of each of them what the scan of all says.
        #[test]
        fn of_some_pages_everything_is_as_it_is_of_all(
            values in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>(), 0u8..20), 1..200),
            cuts in prop::collection::btree_set(0usize..200, 0..8),
        ) {
            let count = values.len();
            let layout = Arc::new(Layout::contiguous(PageSize::Base, count as u64));
            let bits = |of: &dyn Fn(usize) -> bool| {
                let mut bits = PageBits::new(count);
                (0..count).for_each(|page| bits.set(page, of(page)));
                bits
            };
            let accessed = bits(&|page| values[page].0);
            let counts: Arc<[u8]> = values.iter().map(|v| v.3).collect();
            let samples: Arc<[u16]> = values.iter().map(|v| u16::from(v.3) + 7).collect();
            let counters = PeriodCounters { samples: Some(samples), references: 3, ..Default::default() };
            let scan = Scan::new(5, Arc::clone(&layout), accessed, bits(&|page| values[page].1))
                .with_active(bits(&|page| values[page].2))
                .with_counts(AccessCounts { samples: 20, interval_us: 9, counts })
                .with_frames((0..count as u64).map(|page| page * 3).collect())
                .with_counters(Arc::new(counters));
            let cuts: Vec<usize> = cuts.into_iter().filter(|&cut| cut <= count).collect();
            let pages: Vec<Range<usize>> = cuts.chunks_exact(2).map(|c| c[0]..c[1]).collect();
            let some = Arc::new(layout.of_pages(&pages));
            let got = scan.of_pages(&some, &pages);
            prop_assert_eq!((got.period, got.pages()), (5, some.pages()));
            let pages = pages.into_iter().flatten();
            for (nth, page) in pages.enumerate() {
                prop_assert_eq!(got.accessed.get(nth), scan.accessed.get(page));
                prop_assert_eq!(got.fast.get(nth), scan.fast.get(page));
                let active = |scan: &Scan, page| scan.active.as_ref().unwrap().get(page);
                prop_assert_eq!(active(&got, nth), active(&scan, page));
                let frame = |scan: &Scan, page: usize| scan.frames.as_ref().unwrap()[page];
                prop_assert_eq!(frame(&got, nth), frame(&scan, page));
                let count = |scan: &Scan, page: usize| scan.counts.as_ref().unwrap().counts[page];
                prop_assert_eq!(count(&got, nth), count(&scan, page));
                prop_assert_eq!(got.samples().unwrap()[nth], scan.samples().unwrap()[page]);
            }
            prop_assert_eq!(got.counters.unwrap().references, 3);
        }
    }
}

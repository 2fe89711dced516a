//! Assembles DAMON's records into the accessed pages of whole periods, and detects missing records.

use std::time::Duration;

use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize};

use crate::damon::Target;
use crate::ring::Record;

/// The regions of a layout: one per page, as configured in DAMON.
#[derive(Debug)]
pub struct Regions {
    /// One target per address space, in the order of the layout.
    pub targets: Vec<Target>,
    /// Size of each region.
    pub region_bytes: u64,
    /// Regions per page.
    per_page: usize,
    /// Whether the regions of a page have accessed bits of their own.
    are_parts: bool,
    /// Number of the first page of each target, and the number of pages at the end.
    first_page: Vec<usize>,
}

impl Regions {
    /// The regions of a layout that has pages, of which each is sampled in so many parts.
    pub fn new(layout: &Layout, parts: u8) -> Self {
        let page_bytes = layout.page_size().bytes();
        // DAMON splits a lone region, because it wants more than half of its maximum, which is at
        // least 3: a lone huge page is configured as two halves, which share one accessed bit. A
        // lone base page is the smallest region and cannot be split.
        let lone = layout.pages() == 1 && layout.page_size() == PageSize::Huge;
        let per_page = match usize::from(parts.max(1)) {
            1 if lone => 2,
            parts => parts,
        };
        let region_bytes = page_bytes / per_page as u64;
        let mut targets: Vec<Target> = Vec::new();
        let mut first_page = Vec::new();
        let mut pages = 0;
        for extent in layout.extents() {
            if targets.last().is_none_or(|t| t.pid != extent.space.0) {
                targets.push(Target { pid: extent.space.0, starts: Vec::new() });
                first_page.push(pages);
            }
            if let Some(target) = targets.last_mut() {
                let regions = extent.pages * per_page as u64;
                target.starts.extend((0..regions).map(|n| extent.start + n * region_bytes));
            }
            pages += extent.pages as usize;
        }
        first_page.push(pages);
        Regions { targets, region_bytes, per_page, are_parts: parts > 1, first_page }
    }

    /// Number of regions.
    pub fn count(&self) -> usize {
        self.pages() * self.per_page
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.first_page.last().copied().unwrap_or(0)
    }

    /// The number of the record's region; `None` for a foreign region, such as one that was merged
    /// or split.
    fn of(&self, record: &Record) -> Option<usize> {
        let target = usize::try_from(record.target).ok()?;
        let starts = &self.targets.get(target)?.starts;
        let nth = starts.binary_search(&record.start).ok()?;
        if record.end.checked_sub(record.start)? != self.region_bytes {
            return None;
        }
        Some(self.first_page[target] * self.per_page + nth)
    }
}

/// The accesses of a period, by page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Accesses {
    /// The accessed pages.
    pub accessed: PageBits,
    /// In how many samples of the period each page was accessed.
    pub counts: Vec<u8>,
}

impl Accesses {
    fn new(pages: usize) -> Self {
        Accesses { accessed: PageBits::new(pages), counts: vec![0; pages] }
    }

    /// Records that a region of a page was accessed in so many of so many samples. Halves of a huge
    /// page have one accessed bit, so the greater count is the page's; the counts of parts are
    /// added.
    fn note(&mut self, page: usize, accesses: u64, samples: u8, is_part: bool) {
        if accesses > 0 {
            self.accessed.set(page, true);
            let count = accesses.min(samples.into()) as u8;
            let before = self.counts[page];
            self.counts[page] =
                if is_part { before.saturating_add(count) } else { before.max(count) };
        }
    }
}

/// The end of a period, as the records show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeriodEnd {
    /// Every region was reported.
    Complete(Accesses),
    /// Some regions were not reported.
    Incomplete {
        /// Reported regions.
        reported: usize,
        /// Regions in all.
        expected: usize,
    },
}

/// Collects records into periods.
#[derive(Debug)]
pub struct Collector {
    regions: Regions,
    /// The kernel thread of the records.
    pid: u32,
    /// Gaps between records of one period are shorter than this, those between periods longer.
    gap_ns: u64,
    /// Samples of a period.
    samples: u8,
    seen: PageBits,
    accesses: Accesses,
    reported: usize,
    first_ns: u64,
    /// Records of the thread about foreign regions.
    foreign: u64,
}

impl Collector {
    /// Collects the records of kernel thread `pid`: one period of so many samples every
    /// `period_ns`.
    pub fn new(regions: Regions, pid: u32, period_ns: u64, samples: u8) -> Self {
        let seen = PageBits::new(regions.count());
        let accesses = Accesses::new(regions.pages());
        Collector {
            regions,
            pid,
            gap_ns: period_ns / 2,
            samples,
            seen,
            accesses,
            reported: 0,
            first_ns: 0,
            foreign: 0,
        }
    }

    /// The kernel thread.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Regions in all.
    pub fn expected(&self) -> usize {
        self.regions.count()
    }

    /// Regions reported in the unfinished period.
    pub fn reported(&self) -> usize {
        self.reported
    }

    /// Records about foreign regions. Not 0 means that DAMON changed its regions.
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Takes a record; returns the end of a period if this is one.
    pub fn take(&mut self, record: &Record) -> Option<PeriodEnd> {
        if record.pid != self.pid {
            return None;
        }
        let Some(region) = self.regions.of(record) else {
            self.foreign += 1;
            return None;
        };
        let late = self.reported > 0 && record.time_ns.saturating_sub(self.first_ns) > self.gap_ns;
        let ended = (late || self.seen.get(region)).then(|| self.give_up());
        if self.reported == 0 {
            self.first_ns = record.time_ns;
        }
        self.seen.set(region, true);
        self.reported += 1;
        let page = region / self.regions.per_page;
        self.accesses.note(page, record.accesses, self.samples, self.regions.are_parts);
        if self.reported == self.expected() {
            // A period that ends here and one that was given up cannot both result from one record
            // unless there is a single region.
            let accesses = std::mem::take(&mut self.accesses);
            self.reset();
            return Some(PeriodEnd::Complete(accesses));
        }
        ended
    }

    /// Why its records are missing after so long, in words: the kernel thread may be `over`, and others
    /// may have been `missed`.
    pub fn why_lost(&self, over: bool, waited: Duration, missed: bool) -> String {
        if over {
            return "DAMON stopped: the group's processes ended, or another program turned it off"
                .to_owned();
        }
        if self.foreign > 0 {
            return format!(
                "{} of DAMON's records were about other regions than configured",
                self.foreign
            );
        }
        format!(
            "{} of {} records arrived within {} ms{}",
            self.reported,
            self.expected(),
            waited.as_millis(),
            if missed { "; others were overwritten" } else { "" }
        )
    }

    /// Gives up the unfinished period.
    pub fn give_up(&mut self) -> PeriodEnd {
        let ended = PeriodEnd::Incomplete { reported: self.reported, expected: self.expected() };
        self.reset();
        ended
    }

    fn reset(&mut self) {
        self.seen = PageBits::new(self.regions.count());
        self.accesses = Accesses::new(self.regions.pages());
        self.reported = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use terrace_core::page::{Extent, SpaceId};

    const HUGE: u64 = 2 << 20;
    const PERIOD: u64 = 1_000_000;

    fn layout(extents: &[(u32, u64, u64)]) -> Layout {
        let extents = extents
            .iter()
            .map(|&(space, page, pages)| Extent {
                space: SpaceId(space),
                start: page * HUGE,
                pages,
            })
            .collect();
        Layout::new(PageSize::Huge, extents).unwrap()
    }

    fn record(time_ns: u64, target: u64, page: u64, accesses: u64) -> Record {
        let start = page * HUGE;
        Record { time_ns, pid: 9, target, start, end: start + HUGE, accesses }
    }

    fn collector() -> Collector {
        // Space 4: pages 1, 2 and 8; space 6: page 3.
        let layout = layout(&[(4, 1, 2), (4, 8, 1), (6, 3, 1)]);
        Collector::new(Regions::new(&layout, 1), 9, PERIOD, 4)
    }

    fn ones(end: &PeriodEnd) -> Vec<usize> {
        match end {
            PeriodEnd::Complete(accesses) => accesses.accessed.iter_ones().collect(),
            PeriodEnd::Incomplete { .. } => panic!("incomplete"),
        }
    }

    #[test]
    fn a_period_is_complete_when_every_region_was_reported() {
        let mut c = collector();
        assert_eq!(c.take(&record(1, 0, 1, 0)), None);
        assert_eq!(c.take(&record(2, 0, 2, 1)), None);
        // Another thread's record, and one of a foreign region.
        assert_eq!(c.take(&Record { pid: 8, ..record(2, 0, 8, 1) }), None);
        assert_eq!(c.take(&record(2, 1, 8, 1)), None);
        assert_eq!(c.take(&record(3, 0, 8, 0)), None);
        let end = c.take(&record(4, 1, 3, 5)).unwrap();
        assert_eq!(ones(&end), [1, 3]);
        // Never more than the number of samples.
        assert!(matches!(end, PeriodEnd::Complete(accesses) if accesses.counts == [0, 1, 0, 4]));
        assert_eq!(c.foreign(), 1);
        assert_eq!(c.reported(), 0);
    }

    #[test]
    fn a_missing_record_shows_when_the_next_period_begins() {
        let mut c = collector();
        for page in [1, 2, 8] {
            assert_eq!(c.take(&record(page, 0, page, 1)), None);
        }
        let lost = PeriodEnd::Incomplete { reported: 3, expected: 4 };
        assert_eq!(c.take(&record(PERIOD, 1, 3, 0)), Some(lost));
        // The late record belongs to the new period, which completes without it.
        assert_eq!(c.take(&record(PERIOD + 1, 0, 1, 0)), None);
        assert_eq!(c.take(&record(PERIOD + 2, 0, 2, 0)), None);
        assert_eq!(ones(&c.take(&record(PERIOD + 3, 0, 8, 1)).unwrap()), [2]);
    }

    #[test]
    fn a_lone_huge_page_is_reported_in_halves() {
        let regions = Regions::new(&layout(&[(4, 7, 1)]), 1);
        assert_eq!(regions.targets[0].starts, [7 * HUGE, 7 * HUGE + HUGE / 2]);
        let mut c = Collector::new(regions, 9, PERIOD, 1);
        let half = |nth: u64, accesses| Record {
            end: 7 * HUGE + (nth + 1) * HUGE / 2,
            ..record(nth, 0, 7, accesses)
        };
        let half =
            |nth: u64, accesses| Record { start: 7 * HUGE + nth * HUGE / 2, ..half(nth, accesses) };
        assert_eq!(c.take(&half(0, 0)), None);
        assert_eq!(ones(&c.take(&half(1, 1)).unwrap()), [0]);
    }

    #[test]
    fn the_counts_of_parts_add_up() {
        let layout = layout(&[(4, 1, 2)]);
        let regions = Regions::new(&layout, 4);
        assert_eq!((regions.count(), regions.region_bytes), (8, HUGE / 4));
        let mut c = Collector::new(regions, 9, PERIOD, 5);
        let part = |nth: u64, accesses| {
            let start = HUGE + nth * HUGE / 4;
            Record { start, end: start + HUGE / 4, ..record(nth, 0, 1, accesses) }
        };
        for (nth, accesses) in [(0, 5), (1, 0), (2, 3), (3, 9), (4, 0), (5, 0), (6, 0)] {
            assert_eq!(c.take(&part(nth, accesses)), None);
        }
        let end = c.take(&part(7, 1)).unwrap();
        assert!(matches!(end, PeriodEnd::Complete(accesses) if accesses.counts == [13, 1]));
    }

    #[test]
    fn merged_and_split_regions_are_foreign() {
        let mut c = collector();
        c.take(&Record { end: 3 * HUGE, ..record(1, 0, 1, 1) });
        c.take(&Record { start: HUGE + 4096, ..record(1, 0, 1, 1) });
        c.take(&record(1, 99, 1, 1));
        assert_eq!((c.foreign(), c.reported()), (3, 0));
    }

    proptest! {
        #[test]
        fn periods_without_loss_come_back_whole(
            pages in 1u64..40,
            periods in prop::collection::vec(prop::collection::vec(any::<bool>(), 40), 1..5),
        ) {
            let layout = layout(&[(4, 0, pages.div_ceil(2)), (5, 0, pages / 2 + 1)]);
            let mut c = Collector::new(Regions::new(&layout, 1), 9, PERIOD, 4);
            for (number, accessed) in periods.iter().enumerate() {
                let mut ends = Vec::new();
                for index in 0..layout.pages() {
                    let (space, address) = layout.address(index);
                    let time = number as u64 * PERIOD + index as u64;
                    let target = u64::from(space.0 == 5);
                    let page = address / HUGE;
                    ends.extend(c.take(&record(time, target, page, accessed[index % 40].into())));
                }
                prop_assert_eq!(ends.len(), 1);
                let expected: Vec<usize> =
                    (0..layout.pages()).filter(|i| accessed[i % 40]).collect();
                prop_assert_eq!(ones(&ends[0]), expected);
            }
        }
    }
}

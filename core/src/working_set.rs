//! How much memory a group uses, by the time since each page was last accessed, and how its accesses
//! are spread over its pages: what to know before anybody speaks of tiers.
//!
//! An access that falls between two samples is not seen, so idle times are upper bounds of what is
//! known and not of what is; counts of samples are those of DAMON, or bits.

use std::time::Duration;

use crate::page::Layout;
use crate::remap::LayoutFollower;
use crate::scan::Scan;

/// A page that was not accessed yet.
const NEVER: u64 = u64::MAX;

/// Follows the pages of one group.
#[derive(Debug, Default)]
pub struct WorkingSet {
    follower: LayoutFollower,
    /// Period in which each page was last accessed.
    last: Vec<u64>,
    /// Period in which each page was first there.
    born: Vec<u64>,
    /// For each page, the sum over all periods of the share of samples in which it was accessed.
    accesses: Vec<f64>,
    page_bytes: u64,
    /// Periods that have passed.
    now: u64,
}

impl WorkingSet {
    /// Takes in a scan.
    pub fn observe(&mut self, scan: &Scan) {
        if let Some(remap) = self.follower.follow(&scan.layout) {
            let pages = scan.pages();
            self.last = remap.values(&self.last, NEVER, pages);
            self.born = remap.values(&self.born, scan.period, pages);
            self.accesses = remap.values(&self.accesses, 0.0, pages);
        }
        self.page_bytes = Layout::page_size(&scan.layout).bytes();
        self.now = scan.period;
        for page in scan.accessed.iter_ones() {
            self.last[page] = scan.period;
            let share = scan.counts.as_ref().map_or(1.0, |counts| counts.share(page));
            self.accesses[page] += share;
        }
    }

    /// Memory that is followed, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.last.len() as u64 * self.page_bytes
    }

    /// Memory that was accessed within the last `time`, in bytes, with periods of this length. The
    /// period that has just ended always counts.
    pub fn accessed_within(&self, time: Duration, period: Duration) -> u64 {
        let periods = periods(time, period);
        let is_recent = |last: &&u64| **last != NEVER && self.now - **last < periods;
        self.last.iter().filter(is_recent).count() as u64 * self.page_bytes
    }

    /// Memory that has been there for `time` at least and was not accessed in it, in bytes; `None`
    /// before so much time has passed.
    pub fn idle_for(&self, time: Duration, period: Duration) -> Option<u64> {
        let periods = periods(time, period);
        let begin = (self.now + 1).checked_sub(periods)?;
        let pages = self.last.iter().zip(&self.born);
        let idle = pages.filter(|&(&last, &born)| born <= begin && (last == NEVER || last < begin));
        Some(idle.count() as u64 * self.page_bytes)
    }

    /// The least memory that would have had this share of all sampled accesses to the memory that is
    /// there, in bytes: that of the busiest pages. 0 where there were none.
    pub fn bytes_of_accesses(&self, share: f64) -> u64 {
        let mut accesses: Vec<f64> = self.accesses.iter().copied().filter(|a| *a > 0.0).collect();
        accesses.sort_unstable_by(|a, b| b.total_cmp(a));
        let all: f64 = accesses.iter().sum();
        let mut had = 0.0;
        let pages = accesses.iter().take_while(|of_page| {
            let more = had < share * all;
            had += **of_page;
            more
        });
        pages.count() as u64 * self.page_bytes
    }
}

fn periods(time: Duration, period: Duration) -> u64 {
    (time.as_secs_f64() / period.as_secs_f64()).round().max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bits::PageBits;
    use crate::page::{Extent, PageSize, SpaceId};

    const SECOND: Duration = Duration::from_secs(1);
    const HUGE: u64 = 2 << 20;

    fn scan(period: u64, layout: &Arc<Layout>, accessed: &[usize]) -> Scan {
        let mut bits = PageBits::new(layout.pages());
        accessed.iter().for_each(|&page| bits.set(page, true));
        Scan::new(period, Arc::clone(layout), bits, PageBits::new(layout.pages()))
    }

    fn layout(pages: u64) -> Arc<Layout> {
        let extent = Extent { space: SpaceId(1), start: 0, pages };
        Arc::new(Layout::new(PageSize::Huge, vec![extent]).unwrap())
    }

    #[test]
    fn memory_is_counted_by_the_time_since_its_last_access() {
        let (mut set, of) = (WorkingSet::default(), layout(10));
        for period in 0..10 {
            // Page 0 always, page 1 in every fourth, pages 2 and 3 at the start.
            let pages: &[usize] = match period {
                0 => &[0, 1, 2, 3],
                4 | 8 => &[0, 1],
                _ => &[0],
            };
            set.observe(&scan(period, &of, pages));
        }
        assert_eq!(set.total_bytes(), 10 * HUGE);
        assert_eq!(set.accessed_within(SECOND, SECOND), HUGE);
        assert_eq!(set.accessed_within(2 * SECOND, SECOND), 2 * HUGE);
        assert_eq!(set.accessed_within(100 * SECOND, SECOND), 4 * HUGE);
        assert_eq!(set.idle_for(5 * SECOND, SECOND), Some(8 * HUGE));
        assert_eq!(set.idle_for(10 * SECOND, SECOND), Some(6 * HUGE));
        assert_eq!(set.idle_for(11 * SECOND, SECOND), None, "nobody knows yet");
    }

    #[test]
    fn memory_that_is_new_is_not_idle_before_its_time() {
        let mut set = WorkingSet::default();
        let (small, large) = (layout(2), layout(6));
        (0..5).for_each(|period| set.observe(&scan(period, &small, &[0])));
        (5..8).for_each(|period| set.observe(&scan(period, &large, &[0])));
        assert_eq!(set.idle_for(3 * SECOND, SECOND), Some(5 * HUGE));
        assert_eq!(set.idle_for(4 * SECOND, SECOND), Some(HUGE), "four pages came 3 s ago");
    }

    #[test]
    fn the_busiest_pages_have_most_of_the_accesses() {
        let (mut set, of) = (WorkingSet::default(), layout(100));
        let all: Vec<usize> = (0..100).collect();
        for period in 0..200 {
            // Ten pages always, all once in 20 periods.
            set.observe(&scan(period, &of, if period % 20 == 0 { &all } else { &all[..10] }));
        }
        let most = set.bytes_of_accesses(0.6) / HUGE;
        assert!((6..=10).contains(&most), "{most}");
        assert!(set.bytes_of_accesses(1.0) >= 99 * HUGE);
        assert_eq!(WorkingSet::default().bytes_of_accesses(0.9), 0);
    }

    #[test]
    fn accesses_of_long_ago_count_as_much_as_the_last_ones() {
        let (mut set, of) = (WorkingSet::default(), layout(200));
        let first: Vec<usize> = (0..100).collect();
        (0..300).for_each(|period| set.observe(&scan(period, &of, &first)));
        (300..600).for_each(|period| set.observe(&scan(period, &of, &[100])));
        // 101 pages with as many accesses each: 99 % of them are those of all but one.
        assert_eq!(set.bytes_of_accesses(0.99) / HUGE, 100);
        assert_eq!(set.bytes_of_accesses(0.5) / HUGE, 51);
    }
}

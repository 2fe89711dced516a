//! How long each page has gone unused, or how seldom it is accessed, and which pages of fast memory
//! can best give up their place.
//!
//! Accessed bits tell periods without use. Where bits are sampled several times a period, nearly every
//! page of a busy program is used in each; there pages are distinguished by their share of samples.

use std::cmp::Reverse;

use crate::bits::PageBits;
use crate::counts::SampledShares;
use crate::page::VirtualRange;
use crate::plan::{Exchange, Plan};
use crate::remap::Remap;
use crate::scan::Scan;

/// Ages that are distinguished: the last is for all that are older.
const AGES: usize = 256;
/// Ranks by which a page must be colder than the one that gets its place, where pages are ranked by
/// share of samples: what chance makes of pages alike.
const CHANCE_RANKS: usize = 4;

/// Periods since each page was last used, up to 255: a byte a page, and the shares of samples.
#[derive(Debug, Clone, Default)]
pub struct Coldness {
    idle_periods: Vec<u8>,
    shares: SampledShares,
}

impl Coldness {
    /// Pages have new indices.
    pub fn remap(&mut self, remap: &Remap) {
        self.idle_periods = remap.values(&self.idle_periods, 0, remap.new_pages());
        self.shares.remap(remap);
    }

    /// Takes in a scan.
    pub fn observe(&mut self, scan: &Scan) {
        match &scan.counts {
            Some(counts) => self.shares.observe(counts),
            // Sampled once a period, as from when the group has grown: periods without use tell.
            None => self.shares = SampledShares::default(),
        }
        self.idle_periods.resize(scan.pages(), 0);
        for (pages, &accessed) in self.idle_periods.chunks_mut(64).zip(scan.accessed.words()) {
            for (nth, idle) in pages.iter_mut().enumerate() {
                *idle = if accessed >> nth & 1 == 0 { idle.saturating_add(1) } else { 0 };
            }
        }
    }

    /// For promotions of a plan the pages of fast memory that may give up their places: the hottest
    /// that comes with the coldest that the plan leaves where it is, as long as the first was used
    /// more lately, or more often. None of those that are left out.
    pub fn victims(&self, scan: &Scan, plan: &Plan, left_out: &PageBits) -> Vec<Exchange> {
        let size = scan.layout.page_size();
        let pages = |range: &VirtualRange| {
            let first = scan.layout.index(range.space, range.start).unwrap_or(usize::MAX);
            let end = first.saturating_add(range.pages(size) as usize).min(scan.pages());
            first.min(end)..end
        };
        let mut going = PageBits::new(scan.pages());
        left_out.iter_ones().for_each(|page| going.set(page, true));
        let downs = plan.demotions.iter().chain(plan.exchanges.iter().map(|e| &e.down));
        downs.for_each(|range| going.set_range(pages(range), true));
        let sampled = !self.shares.is_empty();
        let least_difference = if sampled { CHANCE_RANKS } else { 1 };
        // Of a page that no scan had yet nothing is known: it counts as in use.
        let idle = |page: usize| match sampled {
            true => usize::from(self.shares.rank(page)),
            false => self.idle_periods.get(page).map_or(0, |&idle| usize::from(idle)),
        };
        let mut coming: Vec<usize> = plan.promotions.iter().flat_map(pages).collect();
        coming.sort_by_key(|&page| (idle(page), page));

        let able = || scan.fast.iter_ones().filter(|&page| idle(page) > 0 && !going.get(page));
        // The pages of each age are counted first: few more than the wanted ones are sorted.
        let mut of_age = [0usize; AGES];
        able().for_each(|page| of_age[idle(page)] += 1);
        let (mut least, mut found) = (AGES, 0);
        while least > 1 && found < coming.len() {
            least -= 1;
            found += of_age[least];
        }
        let mut coldest: Vec<usize> = able().filter(|&page| idle(page) >= least).collect();
        coldest.sort_by_key(|&page| (Reverse(idle(page)), page));

        let range = |page: usize| {
            let (space, start) = scan.layout.address(page);
            VirtualRange { space, start, size_bytes: size.bytes() }
        };
        let pairs = coming.iter().zip(&coldest);
        pairs
            .take_while(|&(&up, &down)| idle(up) + least_difference <= idle(down))
            .map(|(&up, &down)| Exchange { up: range(up), down: range(down) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::AccessCounts;
    use crate::page::{Layout, PageSize};
    use crate::remap::LayoutFollower;
    use std::sync::Arc;

    const HUGE: u64 = PageSize::Huge.bytes();

    fn range(layout: &Layout, page: usize, pages: u64) -> VirtualRange {
        let (space, start) = layout.address(page);
        VirtualRange { space, start, size_bytes: pages * HUGE }
    }

    #[test]
    fn the_hottest_page_gets_the_place_of_the_coldest_and_none_that_of_a_hotter_one() {
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, 10));
        let fast: PageBits = (0..10).map(|p| p < 6).collect();
        let mut coldness = Coldness::default();
        // Idle periods: 0 1 2 3 4 4 in fast memory, 0 4 1 4 in slow.
        let used = [0, 1, 2, 3, 9, 9, 0, 9, 1, 9];
        let mut scan = None;
        for ago in (0..4).rev() {
            let accessed: PageBits = used.iter().map(|&idle| idle == ago).collect();
            let now = Scan::new(0, Arc::clone(&layout), accessed, fast.clone());
            coldness.observe(&now);
            scan = Some(now);
        }
        let scan = scan.unwrap();
        let plan = Plan {
            promotions: vec![range(&layout, 6, 4)],
            demotions: vec![range(&layout, 4, 1)],
            ..Plan::default()
        };
        let index = |r: &VirtualRange| layout.index(r.space, r.start).unwrap();
        let pairs = |coldness: &Coldness, plan: &Plan| -> Vec<(usize, usize)> {
            let victims = coldness.victims(&scan, plan, &PageBits::default());
            victims.iter().map(|v| (index(&v.up), index(&v.down))).collect()
        };
        // Page 4 goes anyway; pages 7 and 9 are no hotter than any.
        assert_eq!(pairs(&coldness, &plan), [(6, 5), (8, 3)]);
        let none = Plan { promotions: Vec::new(), ..plan.clone() };
        assert!(pairs(&coldness, &none).is_empty());

        // Where bits are sampled: all are used in every period, and pages 7, 9 and 3 most often.
        let mut sampled = Coldness::default();
        let counts = AccessCounts {
            samples: 20,
            interval_us: 50_000,
            counts: [6, 5, 1, 18, 3, 9, 6, 20, 2, 15].into(),
        };
        let every = Scan::new(0, Arc::clone(&layout), PageBits::ones(10), fast.clone());
        let every = every.with_counts(counts);
        (0..8).for_each(|_| sampled.observe(&every));
        // The busiest gets the place of the most idle but for page 4, which goes anyway; page 6 and
        // page 0 are alike, and page 8 is colder than any that may go.
        assert_eq!(pairs(&sampled, &plan), [(7, 2), (9, 1)]);

        // The last page goes.
        let mut follower = LayoutFollower::default();
        follower.follow(&layout);
        let mut extents = layout.extents().to_vec();
        extents[0].pages -= 1;
        let smaller = Arc::new(Layout::new(PageSize::Huge, extents).unwrap());
        coldness.remap(&follower.follow(&smaller).unwrap());
        assert_eq!(coldness.idle_periods, [0, 1, 2, 3, 4, 4, 0, 4, 1]);
    }
}

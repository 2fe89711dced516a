//! The policy on small memories made by hand: where its scans go, what they set, what moves.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::operations::OperationSize;
use crate::page::{Extent, Layout, PageSize};
use crate::plan::{Direction, Plan};
use crate::policy::build;

/// Base pages of a 2 MB region.
const LARGE: usize = 512;
/// The same of 64 KB.
const MEDIUM: usize = 16;

/// A group of base pages under a policy, whose moves succeed.
struct Group {
    policy: Box<dyn Policy>,
    layout: Arc<Layout>,
    fast: PageBits,
    budget: Budget,
    period: u64,
}

impl Group {
    /// `pages` pages, the first `fast` of them in fast memory, which has room for no more.
    fn new(name: &str, parameters: Value, pages: usize, fast: usize) -> Self {
        let layout = Layout::contiguous(PageSize::Base, pages as u64);
        let fast_bits = (0..pages).map(|page| page < fast).collect();
        Group::placed(name, parameters, layout, fast_bits, Budget::fast(fast as u64))
    }

    fn placed(
        name: &str,
        parameters: Value,
        layout: Layout,
        fast: PageBits,
        budget: Budget,
    ) -> Self {
        let policy = build(name, &parameters, 1).unwrap();
        Group { policy, layout: Arc::new(layout), fast, budget, period: 0 }
    }

    fn period(&mut self, accessed: impl Fn(usize) -> bool) -> Decision {
        let accessed = (0..self.layout.pages()).map(accessed).collect();
        let layout = Arc::clone(&self.layout);
        let scan = Scan::new(self.period, layout, accessed, self.fast.clone());
        self.period += 1;
        let decision = self.policy.decide(&scan, &self.budget);
        let before = self.fast.clone();
        decision.plan.apply(&self.layout, &mut self.fast);
        let moved = self.fast.words().iter().zip(before.words()).map(|(a, b)| (a ^ b).count_ones());
        let (up, down) = decision.plan.pages(PageSize::Base);
        assert_eq!(u64::from(moved.sum::<u32>()), up + down, "no page twice, none for nothing");
        assert!(self.fast.count() as u64 <= self.budget.fast_pages.max(before.count() as u64));
        decision
    }

    fn fast_pages(&self) -> Vec<usize> {
        self.fast.iter_ones().collect()
    }
}

fn size(plan: &Plan) -> OperationSize {
    plan.operation_sizes[0]
}

/// The name applied after `periods` of this.
fn level(group: &mut Group, periods: usize, accessed: impl Fn(usize) -> bool) -> &'static str {
    (0..periods).map(|_| group.period(&accessed).applied).last().unwrap()
}

#[test]
fn dense_2mb_regions_in_slow_memory_set_2mb() {
    // Eight regions in slow memory, `dense` of them with 481 accessed pages, the others idle.
    let after = |dense: usize, pages: usize| {
        let mut group = Group::new("granularity", json!(null), 9 * LARGE, LARGE);
        level(&mut group, 1, |p| p >= LARGE && p / LARGE <= dense && p % LARGE < pages)
    };
    assert_eq!(after(4, 481), "granularity-2m");
    assert_eq!(after(3, 481), "granularity-64k", "three 2 MB regions are not more than three");
    assert_eq!(after(4, 480), "granularity-64k", "480 pages are not more than 480");
}

#[test]
fn dense_64kb_regions_in_slow_memory_set_64kb() {
    let after = |dense: usize, pages: usize| {
        let mut group = Group::new("granularity", json!(null), 9 * LARGE, LARGE);
        level(&mut group, 1, |p| {
            let region = p.wrapping_sub(LARGE) / MEDIUM;
            p >= LARGE && region.is_multiple_of(20) && region / 20 < dense && p % MEDIUM < pages
        })
    };
    assert_eq!(after(4, 11), "granularity-64k");
    assert_eq!(after(3, 11), "granularity-4k");
    assert_eq!(after(4, 10), "granularity-4k");
}

#[test]
fn what_is_in_fast_memory_counts_for_no_region_of_slow_memory() {
    // All pages are accessed; of each region 32 pages are in fast memory, or none.
    let after = |in_fast: usize| {
        let fast: PageBits = (0..9 * LARGE).map(|p| p % LARGE < in_fast || p < LARGE).collect();
        let layout = Layout::contiguous(PageSize::Base, 9 * LARGE as u64);
        let budget = Budget::fast(fast.count() as u64);
        let mut group = Group::placed("granularity", json!(null), layout, fast, budget);
        level(&mut group, 1, |p| p >= LARGE)
    };
    assert_eq!(after(31), "granularity-2m");
    assert_eq!(after(32), "granularity-64k", "480 of slow memory are left");
}

/// Raised to 2 MB by slow memory that is used throughout; then what is accessed of fast memory.
fn lowered(accessed: impl Fn(usize) -> bool) -> OperationSize {
    // Nothing moves up while this holds: slow memory is idle.
    let mut group = Group::new("granularity", json!(null), 16 * LARGE, 8 * LARGE);
    group.budget.moved_pages = 0;
    group.period(|_| true);
    group.budget.moved_pages = u64::MAX;
    group.budget.fast_pages -= 1;
    size(&group.period(|p| p < 8 * LARGE && accessed(p)).plan)
}

#[test]
fn sparse_regions_in_fast_memory_set_4kb() {
    let demotes = |accessed: &dyn Fn(usize) -> bool| lowered(accessed).demotion_bytes;
    // Idle 2 MB regions, each of 32 idle regions of 64 KB.
    assert_eq!(demotes(&|p| p / LARGE >= 4), 4 << 10);
    assert_eq!(demotes(&|p| p / LARGE >= 3), 2 << 20, "three are not more than three");
}

#[test]
fn sparse_2mb_regions_whose_64kb_regions_are_dense_set_64kb() {
    // Four regions of 2 MB with two idle pages in each 64 KB: 448 of 512, 14 of 16.
    let of_16 = |pages: usize| move |p: usize| p / LARGE >= 4 || p % MEDIUM < pages;
    assert_eq!(lowered(of_16(14)).demotion_bytes, 64 << 10);
    assert_eq!(lowered(of_16(10)).demotion_bytes, 64 << 10, "10 are not fewer than 10");
    assert_eq!(lowered(of_16(9)).demotion_bytes, 4 << 10);
    let of_512 = |pages: usize| move |p: usize| p / LARGE >= 4 || p % LARGE < pages;
    assert_eq!(lowered(of_512(480)).demotion_bytes, 2 << 20, "480 are not fewer than 480");
    // 33 idle pages at the end: two whole regions of 64 KB each, more than three of them.
    assert_eq!(lowered(of_512(479)).demotion_bytes, 4 << 10);
}

#[test]
fn dense_slow_memory_has_the_last_word_over_sparse_fast_memory() {
    let mut group = Group::new("granularity", json!(null), 16 * LARGE, 8 * LARGE);
    let decision = group.period(|p| p >= 8 * LARGE);
    let size = size(&decision.plan);
    assert_eq!((size.promotion_bytes, size.demotion_bytes), (2 << 20, 2 << 20));
    assert_eq!(decision.applied, "granularity-2m");
    // With nothing in slow memory to keep it up, it falls.
    assert_eq!(group.period(|_| false).applied, "granularity-4k");
}

#[test]
fn thresholds_are_parameters() {
    let parameters = json!({"thr_high_2mb": 99, "thr_high_num_reg_2mb": 0});
    let mut group = Group::new("granularity", parameters, 9 * LARGE, LARGE);
    assert_eq!(level(&mut group, 1, |p| p >= 8 * LARGE && p % LARGE < 100), "granularity-2m");
}

#[test]
fn each_scan_goes_on_where_the_one_before_ended() {
    // 100 pages a scan; every page of slow memory accessed once, in the first period.
    let parameters = json!({"scan_pages": 100});
    let mut group = Group::new("granularity-4k", parameters, 1000, 250);
    let promoted = |group: &mut Group, period: usize| {
        let before = group.fast.clone();
        group.period(|p| period == 0 && p >= 250);
        group.fast.iter_ones().filter(|&p| !before.get(p)).collect::<Vec<_>>()
    };
    // An idle page of fast memory goes down for each: its scan takes 100 of the 250.
    assert_eq!(promoted(&mut group, 0), (250..350).collect::<Vec<_>>());
    assert_eq!(group.fast_pages()[..3], [100, 101, 102]);
    // The pages that were demoted are behind: the scan comes to them when it has come round.
    assert_eq!(promoted(&mut group, 1), (350..450).collect::<Vec<_>>());
    assert_eq!(promoted(&mut group, 2), (450..550).collect::<Vec<_>>());
    for period in 3..8 {
        promoted(&mut group, period);
    }
    assert!(promoted(&mut group, 8).is_empty(), "all bits have been seen and cleared");
}

#[test]
fn a_scan_passes_gaps_and_pages_of_the_other_tier_and_comes_round_once() {
    let extent = |first: u64, pages| Extent { space: SpaceId(0), start: first * 4096, pages };
    let layout = Layout::new(PageSize::Base, vec![extent(10, 50), extent(1000, 50)]).unwrap();
    let spaces = regions::spaces(&layout);
    // Every third page is in slow memory.
    let fast: PageBits = (0..100).map(|p| p % 3 != 0).collect();
    let (none, rules) = (PageBits::new(100), Thresholds::default());
    let scan = |from, budget| {
        let s = scan::scan(&spaces[0], Tier::slow(&fast), &none, &rules, from, budget);
        (
            s.pages,
            s.spans.into_iter().map(|span| (span.start, span.end)).collect::<Vec<_>>(),
            s.next,
        )
    };
    assert_eq!(scan(0, 5), (5, vec![(0, 13)], 13));
    assert_eq!(scan(45, 4), (4, vec![(45, 55)], 55));
    assert_eq!(scan(90, 10), (10, vec![(90, 100), (0, 16)], 16));
    assert_eq!(scan(50, 1000), (34, vec![(50, 100), (0, 50)], 50));
}

#[test]
fn each_address_space_has_a_granularity_and_scans_of_its_own() {
    let extent = |space, pages| Extent { space: SpaceId(space), start: 1 << 30, pages };
    let pages = 9 * LARGE as u64;
    let layout = Layout::new(PageSize::Base, vec![extent(3, pages), extent(8, pages)]).unwrap();
    let fast: PageBits = (0..18 * LARGE).map(|p| p % (9 * LARGE) < LARGE).collect();
    let budget = Budget::fast(2 * LARGE as u64);
    let mut group = Group::placed("granularity", json!(null), layout, fast, budget);
    // The first is used throughout, of the second every eighth page.
    let plan = group.period(|p| (LARGE..9 * LARGE).contains(&p) || p % 8 == 0).plan;
    let sizes: Vec<_> =
        plan.operation_sizes.iter().map(|o| (o.space.0, o.promotion_bytes)).collect();
    assert_eq!(sizes, [(3, 2 << 20), (8, 4 << 10)]);
    assert_eq!(plan.operation_bytes(SpaceId(8), Direction::Promotion), Some(4096));
}

#[test]
fn a_region_moves_whole_for_one_accessed_page() {
    for (name, region) in
        [("granularity-4k", 1), ("granularity-64k", MEDIUM), ("granularity-2m", LARGE)]
    {
        let mut group = Group::new(name, json!(null), 8 * LARGE, 2 * LARGE);
        let plan = group.period(|p| p == 5 * LARGE + 7).plan;
        let first = (5 * LARGE + 7) / region * region;
        let up: Vec<usize> = group.fast_pages().into_iter().filter(|&p| p >= 2 * LARGE).collect();
        assert_eq!(up, (first..first + region).collect::<Vec<_>>(), "{name}");
        assert_eq!(plan.operations(PageSize::Base), 2, "{name}: one up, one down");
    }
    // Any multiple of 4 KB, also one larger than a scan.
    for (granularity, pages) in [("12K", 3), ("32M", 8192), ("49152", 12)] {
        let parameters = json!({"granularity": granularity});
        let mut group = Group::new("granularity", parameters, 3 * 8192, 8192);
        assert_eq!(group.period(|p| p == 8192 + 100).plan.pages(PageSize::Base).0, pages);
    }
}

#[test]
fn a_region_does_not_make_way_for_one_that_is_used_less() {
    // All of fast memory but eight pages is accessed; one page of slow memory.
    let mut group = Group::new("granularity-2m", json!(null), 2 * LARGE, LARGE);
    let accessed = |p: usize| p < LARGE - MEDIUM / 2 || p == LARGE + 9;
    assert!(group.period(accessed).plan.is_empty());
    assert!(!group.period(|p| p >= LARGE).plan.is_empty());
    // Unless any that has an idle page is to make way.
    let any = json!({"trade": "any"});
    for (name, pages) in [("granularity-2m", LARGE), ("granularity-64k", MEDIUM)] {
        let mut group = Group::new(name, any.clone(), 2 * LARGE, LARGE);
        assert_eq!(group.period(accessed).plan.pages(PageSize::Base), (pages as u64, pages as u64));
        let mut group = Group::new(name, any.clone(), 2 * LARGE, LARGE);
        assert!(group.period(|p| p <= LARGE).plan.is_empty(), "none is idle");
    }
}

#[test]
fn the_densest_regions_come_first() {
    let mut group = Group::new("granularity-64k", json!(null), 64 * MEDIUM, 32 * MEDIUM);
    group.budget.moved_pages = 2 * MEDIUM as u64;
    // Region 40 has 3 accessed pages, 50 has 12; in fast memory only region 7 is idle.
    group.period(|p| match p / MEDIUM {
        40 => p % MEDIUM < 3,
        50 => p % MEDIUM < 12,
        region => region < 32 && region != 7 && p % MEDIUM < 4,
    });
    assert!(group.fast.get(50 * MEDIUM) && !group.fast.get(40 * MEDIUM));
    assert!(!group.fast.get(7 * MEDIUM));
}

#[test]
fn pages_over_the_budget_leave_even_unseen_and_idle_ones_first() {
    let mut group = Group::new("granularity", json!({"scan_pages": 4}), 100, 50);
    group.budget.fast_pages = 10;
    group.period(|p| !(20..45).contains(&p));
    assert_eq!(group.fast.count(), 10);
    assert!(group.fast_pages().iter().all(|p| !(20..45).contains(p)));
}

#[test]
fn huge_pages_are_regions_of_2mb() {
    let layout = Layout::contiguous(PageSize::Huge, 20);
    let fast = (0..20).map(|p| p < 8).collect();
    let mut group = Group::placed("granularity", json!(null), layout, fast, Budget::fast(8));
    let accessed = (0..20).map(|p| p >= 16).collect();
    let scan = Scan::new(0, group.layout.clone(), accessed, group.fast.clone());
    let decision = group.policy.decide(&scan, &group.budget);
    assert_eq!(decision.applied, "granularity-2m");
    assert_eq!(decision.plan.pages(PageSize::Huge), (4, 4));
    assert_eq!(decision.plan.operations(PageSize::Huge), 8);
}

/// Fast memory after some periods, with the scans made in one go or in several.
fn after(name: &str, parameters: Value, periods: &[Vec<bool>]) -> Vec<usize> {
    let mut group = Group::new(name, parameters, 300, 100);
    for accessed in periods {
        group.period(|p| accessed[p]);
    }
    group.fast_pages()
}

proptest! {
    #[test]
    fn scans_see_no_page_twice_and_no_more_than_they_may(
        present in prop::collection::vec(any::<bool>(), 200),
        fast in prop::collection::vec(any::<bool>(), 200),
        accessed in prop::collection::vec(any::<bool>(), 200),
        from in 0usize..200,
        budget in 1u64..250,
    ) {
        let extents = (0..200u64).filter(|&p| present[p as usize]).map(|page| Extent {
            space: SpaceId(1),
            start: page * 4096,
            pages: 1,
        });
        let layout = Layout::new(PageSize::Base, extents.collect()).unwrap();
        prop_assume!(layout.pages() > 0);
        let pages = layout.pages();
        let space = &regions::spaces(&layout)[0];
        let fast: PageBits = fast[..pages].iter().copied().collect();
        let accessed: PageBits = accessed[..pages].iter().copied().collect();
        let from = from % pages;
        for (tier, in_fast) in [(Tier::fast(&fast), true), (Tier::slow(&fast), false)] {
            let rules = Thresholds { thr_low_64kb: u32::MAX, ..Thresholds::default() };
            let got = scan::scan(space, tier, &accessed, &rules, from, budget);
            let seen: Vec<usize> = got.spans.iter().cloned().flatten()
                .filter(|&p| fast.get(p) == in_fast).collect();
            // The order of the addresses from where it begins, once round.
            let expected: Vec<usize> = (from..pages).chain(0..from)
                .filter(|&p| fast.get(p) == in_fast).take(budget as usize).collect();
            prop_assert_eq!(&seen, &expected);
            prop_assert_eq!(got.pages, seen.len() as u64);
            let mut regions: Vec<(bool, u64)> = seen.iter()
                .map(|&p| (p < from, layout.address(p).1 >> 16)).collect();
            regions.dedup();
            prop_assert_eq!(got.regions.sparse_64kb as usize, regions.len());
            let counted = tier.count(0..pages);
            prop_assert_eq!(counted as usize, (0..pages).filter(|&p| fast.get(p) == in_fast).count());
        }
    }

    #[test]
    fn several_small_scans_in_a_period_see_what_one_large_one_does(
        periods in prop::collection::vec(prop::collection::vec(any::<bool>(), 300), 1..6),
    ) {
        for name in ["granularity-4k", "granularity-64k", "physical-4k"] {
            let parts = after(name, json!({"scan_pages": 20, "scans_per_period": 6}), &periods);
            let whole = after(name, json!({"scan_pages": 120}), &periods);
            prop_assert_eq!(parts, whole);
        }
    }
}

#[test]
fn a_region_moves_as_a_whole_or_waits() {
    // Fast memory holds half of one region of 2 MB and all of the next, idle; the two regions of
    // slow memory behind them are used.
    let any = json!({"trade": "any"});
    let layout = Layout::contiguous(PageSize::Base, 4 * LARGE as u64);
    let fast: PageBits = (0..4 * LARGE).map(|p| p < LARGE / 2 || p / LARGE == 1).collect();
    let budget = Budget::fast(fast.count() as u64);
    let mut group = Group::placed("granularity-2m", any.clone(), layout, fast, budget);
    let plan = group.period(|p| p >= 2 * LARGE).plan;
    let (one, both) = (LARGE as u64, (LARGE + LARGE / 2) as u64);
    assert_eq!(plan.pages(PageSize::Base), (one, both), "half a region alone is too little");
    assert!(group.fast_pages().iter().all(|page| page / LARGE == 2));
    // Room for half a region is left, and stays: no region is cut to fill it.
    group.period(|_| true);
    assert_eq!(group.fast_pages().len(), LARGE);
    // Where only half a region makes way, a whole one waits.
    let mut group = Group::new("granularity-2m", any, 2 * LARGE, LARGE / 2);
    assert!(group.period(|p| p >= LARGE).plan.is_empty());
}

#[test]
fn pages_that_a_scan_has_just_found_accessed_leave_last_when_the_budget_shrinks() {
    for name in ["granularity", "granularity-4k", "physical-4k"] {
        // The scan reads the first ten pages, all accessed; ten that it does not come to are idle.
        let mut group = Group::new(name, json!({"scan_pages": 10}), 200, 100);
        group.budget.fast_pages = 90;
        group.period(|page| !(50..60).contains(&page) && page < 100);
        let left: Vec<usize> = (0..50).chain(60..100).collect();
        assert_eq!(group.fast_pages(), left, "{name}");
    }
}

#[test]
fn what_did_not_move_goes_on_while_scans_find_nothing_and_no_longer() {
    // Of 50 pages that were accessed once ten may move up in a period, for ten that go down.
    let found = LARGE..LARGE + 50;
    let after = |name: &str, leftover: &str, later: &[usize]| -> (usize, bool) {
        let mut group = Group::new(name, json!({ "leftover": leftover }), 2 * LARGE, LARGE);
        group.budget.moved_pages = 20;
        group.period(|page| found.contains(&page));
        for accessed in later {
            group.period(|page| page == *accessed);
        }
        let fast = group.fast_pages();
        let of_found = fast.iter().filter(|page| found.contains(page)).count();
        (of_found, fast.contains(&(2 * LARGE - 1)))
    };
    for name in ["granularity", "granularity-4k", "physical-4k"] {
        // Pages in fast memory are used meanwhile: nothing is found in slow memory.
        let idle = [LARGE - 1; 9];
        assert_eq!(after(name, "drop", &idle), (10, false), "{name}");
        assert_eq!(after(name, "continue", &idle), (50, false), "{name}");
        // Another page is found after two such periods, which is what counts then.
        let other = [LARGE - 1, LARGE - 1, 2 * LARGE - 1, LARGE - 1, LARGE - 1];
        assert_eq!(after(name, "continue", &other), (30, true), "{name}");
        // A scan that waits finds it when all have moved, and not before.
        assert_eq!(after(name, "finish", &idle), (50, false), "{name}");
        assert_eq!(after(name, "finish", &other[..4]), (50, false), "{name}");
        assert_eq!(after(name, "finish", &other), (50, true), "{name}");
    }
}

#[test]
fn a_scan_waits_no_longer_for_pages_that_do_not_move() {
    for name in ["granularity", "granularity-4k", "physical-4k"] {
        let found = LARGE..LARGE + 50;
        let mut group = Group::new(name, json!({"leftover": "finish"}), 2 * LARGE, LARGE);
        group.budget.moved_pages = 0;
        group.period(|page| found.contains(&page));
        (0..60).for_each(|_| drop(group.period(|_| false)));
        group.budget.moved_pages = 20;
        assert_eq!(group.period(|_| false).plan.pages(PageSize::Base).0, 10, "{name}: it waits");
        group.budget.moved_pages = 0;
        (0..70).for_each(|_| drop(group.period(|_| false)));
        group.budget.moved_pages = 20;
        assert!(group.period(|_| false).plan.is_empty(), "{name}: it has scanned again");
    }
}

//! Of what is moved, and that it comes to rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_core::bits::PageBits;
use terrace_core::counts::AccessCounts;
use terrace_core::page::{Extent, Layout, SpaceId};

use super::*;
use crate::mover::TrackerState;
use crate::process::Process;
use crate::testing::BasePages;

const PID: u32 = 7;
const FAST: u64 = 4 * RANGE;
const SLOW: u64 = 9 * RANGE;

/// Rates of the pages of two ranges, and whether pages in fast memory fault.
struct Rates {
    version: Arc<AtomicU64>,
    do_fast_fault: bool,
}

/// Every tenth page of both ranges is accessed often.
fn is_hot(page: usize) -> bool {
    page.is_multiple_of(10)
}

impl BaseRates for Rates {
    fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    fn of_range(&self, _: u32, start: u64) -> Option<Vec<Observed>> {
        let answers = start == SLOW || self.do_fast_fault;
        let of = |page| {
            let per_s = if is_hot(page) && answers { 200.0 } else { 0.5 };
            let rate = PageRate { least_per_s: per_s, most_per_s: per_s };
            Observed { rate: Some(rate), answered: answers && is_hot(page) }
        };
        Some((0..512).map(of).collect())
    }
}

struct Setup {
    pages: BasePages,
    refiner: Refiner,
    scan: Scan,
    version: Arc<AtomicU64>,
    costs: Costs,
}

/// One range on the fast node, one on the slow; samples find pages of the fast one with this share.
fn setup(do_fast_fault: bool, count: u8) -> Setup {
    let pages = BasePages::default();
    {
        let mut state = pages.0.lock().unwrap();
        state.most = 1000;
        state.nodes.extend((0..512).map(|page| (FAST + page * BASE, 0)));
        state.nodes.extend((0..512).map(|page| (SLOW + page * BASE, 1)));
    }
    let nodes = TierNodes { fast: vec![0], slow: vec![1] };
    let state = TrackerState {
        members: vec![Process { pid: PID, start_ticks: 1 }],
        ..TrackerState::default()
    };
    let (version, costs) = (Arc::new(AtomicU64::new(1)), Costs::default());
    let rates = Box::new(Rates { version: Arc::clone(&version), do_fast_fault });
    let refiner = Refiner::new(
        Box::new(pages.clone()),
        Box::new(pages.clone()),
        rates,
        nodes.clone(),
        RangeTiers::new(nodes),
        SharedTrackerState::new(state.into()),
        costs.clone(),
    );
    let extent = |start| Extent { space: SpaceId(PID), start, pages: 1 };
    let layout = Layout::new(PageSize::Huge, vec![extent(FAST), extent(SLOW)]).unwrap();
    let mut fast = PageBits::new(2);
    fast.set(0, true);
    let counts = AccessCounts { samples: 10, interval_us: 10_000, counts: [count, 5].into() };
    let scan = Scan::new(0, Arc::new(layout), PageBits::new(2), fast).with_counts(counts);
    Setup { pages, refiner, scan, version, costs }
}

impl Setup {
    /// Gives out what is known, and moves what is worth it; which pages of a range are fast then?
    fn refine(&mut self, start: u64) -> Vec<usize> {
        self.version.fetch_add(1, Ordering::Relaxed);
        if self.refiner.has_work(&self.scan) {
            self.refiner.step(u64::MAX, Duration::MAX, &|| false);
        }
        let state = self.pages.0.lock().unwrap();
        (0..512).filter(|page| state.nodes[&(start + *page as u64 * BASE)] == 0).collect()
    }
}

#[test]
fn hot_pages_of_slow_ranges_take_the_places_of_cold_ones_of_fast_ranges() {
    let mut setup = setup(true, 5);
    assert!(!setup.refiner.has_work(&setup.scan), "nothing new is known");
    let hot: Vec<usize> = (0..512).filter(|page| is_hot(*page)).collect();
    assert_eq!(setup.refine(SLOW), hot);
    let fast = setup.refine(FAST);
    assert_eq!(fast.len(), 512 - hot.len(), "fast memory in use stays what it was");
    assert!(hot.iter().all(|page| fast.contains(page)), "{fast:?}");
    let costs = setup.costs.snapshot();
    let moved = hot.len() as u64;
    assert_eq!((costs.refined_up_pages, costs.refined_down_pages), (moved, moved));
    assert_eq!(costs.refined_failed_pages, 0);
}

#[test]
fn pages_trade_places_in_one_step_where_the_kernel_can() {
    let mut setup = setup(true, 5);
    let hot: Vec<usize> = (0..512).filter(|page| is_hot(*page)).collect();
    {
        let mut state = setup.pages.0.lock().unwrap();
        state.exchanges = true;
        // Nothing could be demoted first.
        state.room_bytes = Some(0);
        state.pinned = vec![SLOW];
    }
    assert_eq!(setup.refine(SLOW), hot[1..], "but for the one that is pinned");
    assert_eq!(setup.refine(FAST).len(), 512 - hot.len() + 1);
    let (state, costs) = (setup.pages.0.lock().unwrap(), setup.costs.snapshot());
    assert_eq!((state.exchanged, state.moved), (hot.len() - 1, 0));
    let moved = state.exchanged as u64;
    assert_eq!((costs.refined_up_pages, costs.refined_down_pages), (moved, moved));
    assert!(costs.refined_failed_pages > 0);
}

#[test]
fn pages_that_cannot_fault_are_not_taken_for_cold() {
    // Accessed in nine of ten samples of 10 ms: some 230 times a second and page.
    assert!(setup(false, 9).refine(SLOW).is_empty());
    // Hardly ever: any of its pages may go.
    let mut setup = setup(false, 0);
    assert_eq!(setup.refine(SLOW).len(), 52);
    assert_eq!(setup.refine(FAST).len(), 512 - 52);
    // They are known no more where they are, and stay.
    assert_eq!(setup.refine(SLOW).len(), 52);
    assert_eq!(setup.costs.snapshot().refined_up_pages, 52);
}

/// Rates as hint faults show them of a program of one thread: of pages in slow memory alone.
struct OfSlow {
    pages: BasePages,
    version: Arc<AtomicU64>,
}

impl BaseRates for OfSlow {
    fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    fn of_range(&self, _: u32, start: u64) -> Option<Vec<Observed>> {
        let nodes = &self.pages.0.lock().unwrap().nodes;
        let of = |page: usize| {
            let is_slow = nodes[&(start + page as u64 * BASE)] == 1;
            let per_s = if is_slow && is_hot(page) { 200.0 } else { 0.5 };
            let rate = PageRate { least_per_s: per_s, most_per_s: per_s };
            Observed { rate: Some(rate), answered: is_slow && is_hot(page) }
        };
        Some((0..512).map(of).collect())
    }
}

#[test]
fn hot_pages_of_a_program_of_one_thread_gather_in_fast_memory_and_stay() {
    // A tenth of the pages of both ranges is accessed 200 times a second, found by a tenth of the
    // samples of 10 ms.
    let mut setup = setup(false, 1);
    setup.version.store(1, Ordering::Relaxed);
    let (pages, version) = (setup.pages.clone(), Arc::clone(&setup.version));
    setup.refiner.rates = Box::new(OfSlow { pages, version });
    let hot_in_fast = |setup: &Setup| {
        let nodes = setup.pages.0.lock().unwrap().nodes.clone();
        let of = |start: u64| {
            let nodes = &nodes;
            let hot = (0..512).filter(|page| is_hot(*page));
            hot.filter(move |page| nodes[&(start + *page as u64 * BASE)] == 0).count()
        };
        [of(FAST), of(SLOW)]
    };
    assert_eq!(hot_in_fast(&setup), [52, 0]);
    setup.refine(SLOW);
    // Some of the pages that made place were hot themselves, which nothing has shown.
    let [of_fast, of_slow] = hot_in_fast(&setup);
    assert!(of_fast < 52 && of_slow == 52, "{of_fast} {of_slow}");
    for _ in 0..4 {
        setup.refine(SLOW);
    }
    assert_eq!(hot_in_fast(&setup), [52, 52]);
    let moved = setup.costs.snapshot().refined_up_pages;
    assert!(moved < 52 * 3 / 2, "{moved}");
    for _ in 0..20 {
        setup.refine(SLOW);
    }
    assert_eq!(setup.costs.snapshot().refined_up_pages, moved, "nothing goes to and fro");
    let fast = setup.pages.0.lock().unwrap().nodes.values().filter(|node| **node == 0).count();
    assert_eq!(fast, 512, "fast memory in use stays what it was");
}

#[test]
fn bounds_end_it_and_the_next_period_goes_on() {
    let mut setup = setup(true, 5);
    setup.version.store(2, Ordering::Relaxed);
    assert!(setup.refiner.has_work(&setup.scan));
    setup.refiner.step(u64::MAX, Duration::ZERO, &|| false);
    setup.refiner.step(BASE, Duration::MAX, &|| false);
    assert_eq!(setup.costs.snapshot().refined_up_pages, 0);
    assert!(setup.refiner.has_work(&setup.scan));
    setup.refiner.step(u64::MAX, Duration::MAX, &|| true);
    assert_eq!(setup.costs.snapshot().refined_up_pages, 0);
    setup.refiner.step(40 * BASE, Duration::MAX, &|| false);
    assert_eq!(setup.costs.snapshot().refined_up_pages, 20);
    setup.refiner.step(u64::MAX, Duration::MAX, &|| false);
    assert_eq!(setup.costs.snapshot().refined_up_pages, 52);
    assert!(!setup.refiner.has_work(&setup.scan));
}

#[test]
fn choosing_takes_a_small_part_of_the_time_however_long_it_takes() {
    let mut setup = setup(true, 5);
    setup.pages.0.lock().unwrap().locating = Duration::from_millis(10);
    let mut chosen_at = Vec::new();
    for ms in 0..4000 {
        let before = {
            let mut state = setup.pages.0.lock().unwrap();
            state.now = state.now.max(Duration::from_millis(ms));
            state.now
        };
        setup.version.fetch_add(1, Ordering::Relaxed);
        setup.refiner.has_work(&setup.scan);
        if setup.pages.0.lock().unwrap().now > before {
            chosen_at.push(before.as_millis());
        }
    }
    // Two ranges of 10 ms each, and a second without.
    assert_eq!(chosen_at, [0, 1020, 2040, 3060]);
}

#[test]
fn places_that_nothing_comes_to_are_given_back() {
    let mut setup = setup(true, 5);
    let pinned = (0..20).map(|nth| SLOW + nth * 10 * BASE).collect();
    setup.pages.0.lock().unwrap().pinned = pinned;
    let came = setup.refine(SLOW).len();
    assert!((1..=32).contains(&came), "{came}");
    let nodes = setup.pages.0.lock().unwrap().nodes.clone();
    let fast = nodes.values().filter(|node| **node == 0).count();
    assert_eq!(fast, 512, "fast memory in use stays what it was");
    let costs = setup.costs.snapshot();
    assert_eq!(costs.refined_up_pages, costs.refined_down_pages);
}

#[test]
fn pages_that_stay_are_counted_and_nothing_comes_without_a_place() {
    let mut setup = setup(true, 5);
    let pinned = (0..512).filter(|page| page % 10 != 0).map(|page| FAST + page * BASE).collect();
    setup.pages.0.lock().unwrap().pinned = pinned;
    assert!(setup.refine(SLOW).is_empty());
    let costs = setup.costs.snapshot();
    assert_eq!((costs.refined_up_pages, costs.refined_down_pages), (0, 0));
    assert!(costs.refined_failed_pages > 0);
}

#[test]
fn a_range_that_was_promoted_since_the_scan_stays_a_fast_one() {
    let mut setup = setup(true, 5);
    {
        let mut state = setup.pages.0.lock().unwrap();
        state.nodes.extend((0..512).map(|page| (SLOW + page * BASE, 0)));
        // Pages of another range are accessed as often, and slow.
        state.nodes.extend((0..512).map(|page| (SLOW + RANGE + page * BASE, 1)));
    }
    let extent = |start| Extent { space: SpaceId(PID), start, pages: 1 };
    let layout = Layout::new(PageSize::Huge, vec![extent(SLOW), extent(SLOW + RANGE)]).unwrap();
    let counts = AccessCounts { samples: 10, interval_us: 10_000, counts: [5, 5].into() };
    let none = PageBits::new(2);
    setup.scan = Scan::new(0, Arc::new(layout), none.clone(), none).with_counts(counts);
    let stayed = setup.refine(SLOW).len();
    assert!((256..512).contains(&stayed), "{stayed} of its 512 pages are in fast memory");
    assert_eq!(setup.refiner.range_tiers.of(PID, SLOW), Some(true));
}

#[test]
fn pairs_whose_range_has_come_up_meanwhile_cost_no_page_of_fast_memory() {
    let mut setup = setup(true, 5);
    setup.version.fetch_add(1, Ordering::Relaxed);
    assert!(setup.refiner.has_work(&setup.scan));
    let to_fast = (0..512).map(|page| (SLOW + page * BASE, 0));
    setup.pages.0.lock().unwrap().nodes.extend(to_fast);
    setup.refiner.step(u64::MAX, Duration::MAX, &|| false);
    let state = setup.pages.0.lock().unwrap();
    assert!((0..512).all(|page| state.nodes[&(FAST + page * BASE)] == 0), "all of it is there");
    assert_eq!(setup.costs.snapshot().refined_up_pages, 0);
}

/// Rates of this version, all so many a second.
struct Known(Arc<AtomicU64>, f32);

impl BaseRates for Known {
    fn version(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn of_range(&self, _: u32, _: u64) -> Option<Vec<Observed>> {
        let rate = PageRate { least_per_s: self.1, most_per_s: self.1 };
        Some(vec![Observed { rate: Some(rate), answered: true }])
    }
}

/// Of a guest on a kernel that scans base pages: a signal without samples of it does not hide its bits.
#[test]
fn bits_give_rates_of_base_pages_until_a_signal_knows_some() {
    let versions = [0, 5].map(|version| Arc::new(AtomicU64::new(version)));
    let known = |nth: usize, per_s| {
        Some(Box::new(Known(Arc::clone(&versions[nth]), per_s)) as Box<dyn BaseRates>)
    };
    let rates = first_of(known(0, 2000.0), known(1, 20.0)).unwrap();
    let per_s = || rates.of_range(7, 0).unwrap()[0].rate.unwrap().least_per_s;
    let by_bits = rates.version();
    assert_eq!((rates.version(), per_s()), (by_bits, 20.0));
    versions[0].store(5, Ordering::Relaxed);
    assert_eq!((rates.version(), per_s()), (by_bits + 1, 2000.0), "others are known now");
    versions[0].store(6, Ordering::Relaxed);
    assert_eq!(rates.version(), by_bits + 2, "what is remembered ages by one");
    versions[0].store(0, Ordering::Relaxed);
    assert_eq!((rates.version(), per_s()), (by_bits + 3, 20.0), "samples have ended");
    assert!(first_of(None, known(1, 20.0)).is_some() && first_of(None, None).is_none());
}

//! Moves base pages of ranges alone: programs mix objects in a range of 2 MB that are accessed a hundred
//! times a second with others that are not accessed at all, and a range is placed by their sum.
//!
//! What it knows are rates of base pages, from samples of reads or from hint faults. Each time that more is known, the pages of
//! slow ranges that are accessed most take the places of those of fast ranges that are accessed least
//! ([`terrace_core::refine`]): first the one is demoted, then the other promoted into the memory that it
//! has freed, so fast memory in use stays what it was. A range stays where the policy has placed it
//! ([`RangeTiers`]), and comes together again when it is moved.
//!
//! Huge pages are left whole. Pages of fast memory do not fault everywhere: not where several nodes have
//! processors, and not those of a program of one thread. So that they do not fault says something only in
//! a range of which some do; in others all fast pages are taken to be alike.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use terrace_core::page::PageSize;
use terrace_core::plan::Direction;
use terrace_core::refine::{self, BasePage, PageRate, RangePages, Swap};
use terrace_core::scan::Scan;

use crate::costs::Costs;
use crate::kernel::PageKernel;
use crate::mover::target::{self, TargetCheck};
use crate::mover::{SharedTrackerState, TierNodes};
use crate::ranges::{FolioReader, Folios, RangeTiers, move_pages};

const RANGE: u64 = PageSize::Huge.bytes();
const BASE: u64 = PageSize::Base.bytes();
/// Pairs that are moved each time that more is known, at most: 16 MB up and as much down.
const MOST_PAIRS: usize = 4096;
/// Fast ranges of which nothing is known that are located, the coldest: half of their pages may go, so
/// many of them have places for all pairs even where most are huge pages.
const MOST_ALIKE: usize = 64;
/// Pairs of a call: a program that touches one of its pages waits for some 0.1 ms.
const BATCH: usize = 32;
/// A pause between two choices is so many times as long as a choice takes: some 2 % of a processor.
const PAUSE_TIMES: u32 = 50;
/// What a page of a fast range is taken to have at most, of the mean of its range's pages.
const ABOVE_MEAN: f32 = 2.0;
/// Of a range's pages in fast memory one in so many has to have answered the last scan.
const ANSWERING: usize = 32;

/// What is known of a base page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Observed {
    /// Its rate, if it was observed often enough.
    pub(crate) rate: Option<PageRate>,
    /// It has been accessed since it was last made to fault.
    pub(crate) answered: bool,
}

/// What is known of the rates of base pages.
pub(crate) trait BaseRates: Send {
    /// Another number whenever more became known.
    fn version(&self) -> u64;

    /// Of each base page of the range that begins here; `None` if nothing is known of the range.
    fn of_range(&self, pid: u32, start: u64) -> Option<Vec<Observed>>;
}

/// A page of a process, and whether its range is placed in fast memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    pid: u32,
    address: u64,
    is_of_fast: bool,
}

/// The base pages of a range, and where they are.
struct Located {
    pid: u32,
    addresses: Vec<u64>,
    range: RangePages,
}

/// Moves base pages of one group's ranges.
pub(crate) struct Refiner {
    kernel: Box<dyn PageKernel>,
    folios: Box<dyn FolioReader>,
    rates: Box<dyn BaseRates>,
    nodes: TierNodes,
    range_tiers: RangeTiers,
    tracker_state: SharedTrackerState,
    costs: Costs,
    /// The version that was chosen by.
    version: u64,
    /// Not before this time is chosen anew: locating pages costs time.
    next_choice: Duration,
    /// Pages to promote and to demote that are still to be moved, the last first.
    pending: Vec<(Page, Page)>,
}

impl Refiner {
    pub(crate) fn new(
        kernel: Box<dyn PageKernel>,
        folios: Box<dyn FolioReader>,
        rates: Box<dyn BaseRates>,
        nodes: TierNodes,
        range_tiers: RangeTiers,
        tracker_state: SharedTrackerState,
        costs: Costs,
    ) -> Self {
        let version = rates.version();
        let pending = Vec::new();
        Refiner {
            kernel,
            folios,
            rates,
            nodes,
            range_tiers,
            tracker_state,
            costs,
            version,
            next_choice: Duration::ZERO,
            pending,
        }
    }

    /// Chooses anew if more is known; whether there is anything to move.
    pub(crate) fn has_work(&mut self, scan: &Scan) -> bool {
        let version = self.rates.version();
        let begin = self.kernel.now();
        if version != self.version && begin >= self.next_choice {
            self.version = version;
            self.pending = self.choose(scan);
            let end = self.kernel.now();
            self.next_choice = end + end.saturating_sub(begin) * PAUSE_TIMES;
        }
        !self.pending.is_empty()
    }

    /// Moves so much of what was chosen, until the deadline; the rest at the next call.
    pub(crate) fn step(&mut self, bytes: u64, deadline: Duration, stopped: &dyn Fn() -> bool) {
        let mut pairs = (bytes / (2 * BASE)) as usize;
        while pairs > 0 && !self.pending.is_empty() && self.kernel.now() < deadline && !stopped() {
            let size = BATCH.min(pairs);
            pairs -= size;
            let batch = self.pending.split_off(self.pending.len().saturating_sub(size));
            let (ups, downs): (Vec<Page>, Vec<Page>) = batch.into_iter().unzip();
            let (went, mut freed) = self.move_down(&downs);
            let came = self.move_up(&ups, &mut freed);
            // Places that nothing came to are given back, as far as nobody else has taken them.
            let back = self.move_up(&went, &mut freed);
            let down = went.len() - back;
            self.costs.refined_down_pages().add(down as u64);
            self.costs.refined_up_pages().add(came as u64);
            self.costs.refined_failed_pages().add((downs.len() + ups.len() - down - came) as u64);
            // Others have taken the memory, or the pages cannot be moved: more would only cost.
            if 2 * came < ups.len() {
                self.pending.clear();
            }
        }
    }

    fn choose(&mut self, scan: &Scan) -> Vec<(Page, Page)> {
        let ranges = self.locate(scan);
        let pages: Vec<RangePages> = ranges.iter().map(|located| located.range.clone()).collect();
        let known = pages.iter().flat_map(|range| &range.pages).filter(|page| page.rate.is_some());
        self.costs.refined_known_pages().set(known.count() as u64);
        let page = |(nth, page): refine::PageIndex| {
            let Located { pid, addresses, range } = &ranges[nth];
            Page { pid: *pid, address: addresses[page], is_of_fast: range.is_fast }
        };
        let pairs = |Swap { up, down }: Swap| (page(up), page(down));
        refine::swaps(&pages, MOST_PAIRS).into_iter().rev().map(pairs).collect()
    }

    /// The ranges whose base pages may be moved alone.
    fn locate(&mut self, scan: &Scan) -> Vec<Located> {
        let counts = scan.counts.as_ref().map(|counts| (counts, counts.accesses_per_sample()));
        let mean_per_s = |index: usize| {
            let (counts, per_sample) = counts.as_ref()?;
            let accesses = per_sample[usize::from(counts.counts[index])];
            Some(accesses * 1e6 / counts.interval_us as f32)
        };
        let mut ranges = Vec::new();
        let mut alike = Vec::new();
        let mut pids = BTreeSet::new();
        for (number, extent) in scan.layout.extents().iter().enumerate() {
            let first = scan.layout.first_index(number);
            pids.insert(extent.space.0);
            for nth in 0..extent.pages {
                let index = first + nth as usize;
                let (pid, start) = (extent.space.0, extent.start + nth * RANGE);
                let is_fast = scan.fast.get(index);
                match (self.rates.of_range(pid, start), mean_per_s(index)) {
                    (Some(observed), mean) => {
                        ranges.extend(self.located(pid, start, is_fast, Some(observed), mean));
                    }
                    (None, Some(mean)) if is_fast => alike.push((mean, pid, start)),
                    // Of a slow range of which nothing is known no page can come.
                    (None, _) => {}
                }
            }
        }
        // However much memory there is, those of which nothing is known are located only as far as
        // their pages can be of use.
        alike.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        for (mean, pid, start) in alike.into_iter().take(MOST_ALIKE) {
            ranges.extend(self.located(pid, start, true, None, Some(mean)));
        }
        self.range_tiers.keep(&pids);
        ranges
    }

    /// A range of base pages, if it is one.
    fn located(
        &mut self,
        pid: u32,
        start: u64,
        is_fast: bool,
        observed: Option<Vec<Observed>>,
        mean_per_s: Option<f32>,
    ) -> Option<Located> {
        let process = self.kernel.alive(pid)?;
        let Folios::Base(addresses) = self.folios.folios(process, start).ok()? else { return None };
        let mut places = vec![-libc::ENOENT; addresses.len()];
        self.kernel.locate(pid, &addresses, &mut places).ok()?;
        let of = |address: u64| observed.as_ref().map(|o| o[((address - start) / BASE) as usize]);
        let in_fast = || addresses.iter().zip(&places).filter(|(_, p)| self.nodes.is_fast(**p));
        let answered = in_fast().filter(|(a, _)| of(**a).is_some_and(|o| o.answered)).count();
        let do_fast_fault = answered > 0 && answered * ANSWERING >= in_fast().count();
        let alike = mean_per_s
            .filter(|_| is_fast)
            .map(|mean_per_s| PageRate { least_per_s: 0.0, most_per_s: ABOVE_MEAN * mean_per_s });
        let page = |(&address, &place): (&u64, &i32)| {
            let known = of(address).and_then(|observed| observed.rate);
            let rate = match self.nodes.is_fast(place) {
                true if !do_fast_fault => alike,
                true => known,
                false => known.filter(|_| self.nodes.is_slow(place)),
            };
            BasePage { is_fast: self.nodes.is_fast(place), rate }
        };
        let pages = addresses.iter().zip(&places).map(page).collect();
        Some(Located { pid, addresses, range: RangePages { is_fast, pages } })
    }

    /// Demotes pages; returns those that went, the last first, and how many have left each node.
    fn move_down(&mut self, pages: &[Page]) -> (Vec<Page>, BTreeMap<u32, usize>) {
        let (mut went, mut freed) = (Vec::new(), BTreeMap::new());
        for (pid, pages) in by_process(pages) {
            let Some(target) = self.check(pid, Direction::Demotion) else { continue };
            let bytes = pages.len() as u64 * BASE;
            let has_room = |node: &&u32| self.kernel.room_bytes(**node) >= bytes;
            let Some(&node) = target.nodes.iter().find(has_room) else { continue };
            let addresses: Vec<u64> = pages.iter().map(|page| page.address).collect();
            let mut before = vec![-libc::ENOENT; addresses.len()];
            if self.kernel.locate(pid, &addresses, &mut before).is_err() {
                continue;
            }
            self.remember(&pages);
            let after = self.moved(pid, &addresses, node);
            for ((page, before), after) in pages.into_iter().zip(before).zip(after) {
                if self.nodes.is_fast(before) && self.nodes.is_slow(after) {
                    *freed.entry(before as u32).or_default() += 1;
                    went.push(page);
                }
            }
        }
        went.reverse();
        (went, freed)
    }

    /// Promotes as many of these pages as memory was freed for on each node, of which it takes that;
    /// returns how many came.
    fn move_up(&mut self, pages: &[Page], freed: &mut BTreeMap<u32, usize>) -> usize {
        let mut came = 0;
        for (pid, pages) in by_process(pages) {
            let Some(target) = self.check(pid, Direction::Promotion) else { continue };
            let room = |node: &u32| freed.get(node).copied().unwrap_or(0);
            let Some(node) = target.nodes.iter().copied().max_by_key(room) else { continue };
            let pages = &pages[..room(&node).min(pages.len())];
            let addresses: Vec<u64> = pages.iter().map(|page| page.address).collect();
            self.remember(pages);
            let after = self.moved(pid, &addresses, node);
            let arrived = after.iter().filter(|place| self.nodes.is_fast(**place)).count();
            *freed.entry(node).or_default() -= arrived;
            came += arrived;
        }
        came
    }

    fn check(&mut self, pid: u32, direction: Direction) -> Option<TargetCheck> {
        target::check(self.kernel.as_mut(), &self.tracker_state, &self.nodes, pid, direction)
    }

    fn remember(&self, pages: &[Page]) {
        for page in pages {
            self.range_tiers.remember(page.pid, page.address / RANGE * RANGE, page.is_of_fast);
        }
    }

    fn moved(&mut self, pid: u32, addresses: &[u64], node: u32) -> Vec<i32> {
        let begin = self.kernel.now();
        let places = move_pages(self.kernel.as_mut(), pid, addresses, node);
        let took_ns = self.kernel.now().saturating_sub(begin).as_nanos() as u64;
        self.costs.move_calls().add(1);
        self.costs.move_ns().add(took_ns);
        self.costs.longest_move_ns().raise_to(took_ns);
        places.unwrap_or_else(|error| {
            tracing::debug!(pid, %error, "base pages stayed");
            vec![-libc::ENOENT; addresses.len()]
        })
    }
}

/// Pages by their process, in their order.
fn by_process(pages: &[Page]) -> Vec<(u32, Vec<Page>)> {
    let mut groups: Vec<(u32, Vec<Page>)> = Vec::new();
    for &page in pages {
        match groups.iter_mut().find(|(pid, _)| *pid == page.pid) {
            Some((_, pages)) => pages.push(page),
            None => groups.push((page.pid, vec![page])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
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
        let pinned =
            (0..512).filter(|page| page % 10 != 0).map(|page| FAST + page * BASE).collect();
        setup.pages.0.lock().unwrap().pinned = pinned;
        assert!(setup.refine(SLOW).is_empty());
        let costs = setup.costs.snapshot();
        assert_eq!((costs.refined_up_pages, costs.refined_down_pages), (0, 0));
        assert!(costs.refined_failed_pages > 0);
    }
}

//! Moves base pages of ranges alone: programs mix objects in a range of 2 MB that are accessed a hundred
//! times a second with others that are not accessed at all, and a range is placed by their sum.
//!
//! What it knows are rates of base pages, from samples of reads, from hint faults or from their accessed
//! bits. Each time that more is known, the pages of
//! slow ranges that are accessed most take the places of those of fast ranges that are accessed least
//! ([`terrace_core::refine`]): where the kernel can, the two trade places in one step; elsewhere first the
//! one is demoted, then the other promoted into the memory that it
//! has freed. Fast memory in use stays what it was. A range stays where the policy has placed it
//! ([`RangeTiers`]), and comes together again when it is moved.
//!
//! Huge pages are left whole. Pages of fast memory do not fault everywhere: not where several nodes have
//! processors, and not those of a program of one thread. So that they do not fault says something only in
//! a range of which some do. In others pages that came by their rates keep these for a while
//! ([`Brought`]), and all other fast pages are taken to be alike: they have what is left of the range's
//! accesses, by samples of its accessed bits, when those of known pages are subtracted. One of them that
//! goes although it is accessed often shows so in slow memory, and returns.

mod unseen;

use std::cell::Cell;
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
use unseen::{Brought, Sampled};

const RANGE: u64 = PageSize::Huge.bytes();
const BASE: u64 = PageSize::Base.bytes();
/// Pairs that are moved each time that more is known, at most: 16 MB up and as much down.
const MOST_PAIRS: usize = 4096;
/// Fast ranges of which nothing is known that are located, the coldest: half of their pages may go, so
/// many of them have places for all pairs even where most are huge pages.
const MOST_ALIKE: usize = 64;
/// Pairs of a call: a program that touches one of its pages waits for some 0.1 ms.
const BATCH: usize = 32;
/// Calls in which most pages do not come, one after the other, until what was chosen is given up.
const MOST_STUCK: u32 = 3;
/// A pause between two choices is so many times as long as a choice takes: some 2 % of a processor.
const PAUSE_TIMES: u32 = 50;
/// Of a range's pages in fast memory one in so many has to have answered the last scan.
const ANSWERING: usize = 32;

/// Base pages of a range.
pub(crate) const PAGES_OF_RANGE: usize = (RANGE / BASE) as usize;
/// Ranges of a group whose base pages are known, 2 KB for each: of 4 GB of memory.
pub(crate) const MOST_RANGES: usize = 2048;
/// What was observed counts e times less after so many seconds.
pub(crate) const FADES_S: f64 = 10.0;
/// More is known once so much time has passed.
pub(crate) const KNOWN_EVERY_S: f64 = 0.5;

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

    /// These base pages were in fast memory until now, where they may have answered nothing, whatever
    /// their rates.
    fn forget(&self, _pid: u32, _addresses: &[u64]) {}
}

/// Rates of base pages by the first of two sources that knows any now.
struct FirstOf {
    first: Box<dyn BaseRates>,
    second: Box<dyn BaseRates>,
    /// Which of them it was last, and its version then.
    last: Cell<(bool, u64)>,
    /// Goes on by one with each change of these: what is remembered of pages ages by it.
    version: Cell<u64>,
}

impl FirstOf {
    fn now(&self) -> &dyn BaseRates {
        if self.first.version() > 0 { &*self.first } else { &*self.second }
    }
}

impl BaseRates for FirstOf {
    fn version(&self) -> u64 {
        let now = match self.first.version() {
            0 => (false, self.second.version()),
            version => (true, version),
        };
        if now.1 == 0 {
            return 0;
        }
        if self.last.replace(now) != now {
            self.version.set(self.version.get() + 1);
        }
        self.version.get()
    }

    fn of_range(&self, pid: u32, start: u64) -> Option<Vec<Observed>> {
        self.now().of_range(pid, start)
    }

    fn forget(&self, pid: u32, addresses: &[u64]) {
        self.now().forget(pid, addresses);
    }
}

/// Those of a signal beside accessed bits, as soon as it knows pages of the group, and of bits until then.
pub(crate) fn first_of(
    signal: Option<Box<dyn BaseRates>>,
    bits: Option<Box<dyn BaseRates>>,
) -> Option<Box<dyn BaseRates>> {
    match (signal, bits) {
        (Some(first), Some(second)) => {
            let (last, version) = (Cell::new((false, 0)), Cell::new(0));
            Some(Box::new(FirstOf { first, second, last, version }))
        }
        (signal, bits) => signal.or(bits),
    }
}

/// A page of a process, and whether its range is placed in fast memory.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Page {
    pid: u32,
    address: u64,
    is_of_fast: bool,
    /// Accesses a second, at least, where it was in slow memory.
    per_s: f32,
}

/// The base pages of a range, and where they are.
struct Located {
    pid: u32,
    addresses: Vec<u64>,
    range: RangePages,
    /// Pages of it that were in fast memory all the time answer there.
    do_fast_fault: bool,
}

/// A range, and what is known of it.
struct Known {
    pid: u32,
    start: u64,
    is_fast: bool,
    observed: Option<Vec<Observed>>,
    sampled: Option<Sampled>,
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
    brought: Brought,
    /// Ranges that were in fast memory when they were last located.
    were_fast: BTreeSet<(u32, u64)>,
    /// Processes whose pages in fast memory faulted when they were last located: of those what is known
    /// of a page that is demoted holds.
    faulting: BTreeSet<u32>,
    /// Calls that ended because most pages did not come.
    stuck: u32,
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
            brought: Brought::default(),
            were_fast: BTreeSet::new(),
            faulting: BTreeSet::new(),
            stuck: 0,
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
            let batch = self.still_slow(batch);
            let chosen = batch.len();
            let left = self.exchange(batch);
            let exchanged = chosen - left.len();
            let (ups, downs): (Vec<Page>, Vec<Page>) = left.into_iter().unzip();
            let (went, mut freed) = self.move_down(&downs);
            let came = self.move_up(&ups, &mut freed);
            // Places that nothing came to are given back, as far as nobody else has taken them.
            let back = self.move_up(&went, &mut freed);
            let down = went.len() - back;
            self.costs.refined_down_pages().add(down as u64);
            self.costs.refined_up_pages().add(came as u64);
            self.costs.refined_failed_pages().add((downs.len() + ups.len() - down - came) as u64);
            if 2 * (came + exchanged) >= exchanged + ups.len() {
                self.stuck = 0;
                continue;
            }
            // The processors' lists of free pages have taken the memory, which are emptied between
            // periods; or others have, or the pages cannot be moved, and more would only cost.
            self.stuck += 1;
            if self.stuck > MOST_STUCK {
                self.pending.clear();
                self.stuck = 0;
            }
            break;
        }
    }

    /// Those pairs of which the page that is to come up has not come with its range since they were chosen.
    fn still_slow(&mut self, pairs: Vec<(Page, Page)>) -> Vec<(Page, Page)> {
        let ups: Vec<Page> = pairs.iter().map(|(up, _)| *up).collect();
        let mut slow = BTreeSet::new();
        for (pid, pages) in by_process(&ups) {
            let addresses: Vec<u64> = pages.iter().map(|page| page.address).collect();
            let mut places = vec![-libc::ENOENT; addresses.len()];
            if self.kernel.locate(pid, &addresses, &mut places).is_ok() {
                let of_slow =
                    addresses.iter().zip(&places).filter(|(_, p)| self.nodes.is_slow(**p));
                slow.extend(of_slow.map(|(address, _)| (pid, *address)));
            }
        }
        pairs.into_iter().filter(|(up, _)| slow.contains(&(up.pid, up.address))).collect()
    }

    fn choose(&mut self, scan: &Scan) -> Vec<(Page, Page)> {
        self.brought.forget_old(self.version);
        let ranges = self.locate(scan);
        let pages: Vec<RangePages> = ranges.iter().map(|located| located.range.clone()).collect();
        let known = pages.iter().flat_map(|range| &range.pages).filter(|page| page.rate.is_some());
        self.costs.refined_known_pages().set(known.count() as u64);
        let page = |(nth, page): refine::PageIndex| {
            let Located { pid, addresses, range, .. } = &ranges[nth];
            let per_s = range.pages[page].rate.map_or(0.0, |rate| rate.least_per_s);
            Page { pid: *pid, address: addresses[page], is_of_fast: range.is_fast, per_s }
        };
        let pairs = |Swap { up, down }: Swap| (page(up), page(down));
        refine::swaps(&pages, MOST_PAIRS).into_iter().rev().map(pairs).collect()
    }

    /// The ranges whose base pages may be moved alone.
    fn locate(&mut self, scan: &Scan) -> Vec<Located> {
        let sampled = |index: usize| {
            let counts = scan.counts.as_ref()?;
            Some(Sampled {
                share: counts.share(index) as f32,
                samples: f32::from(counts.samples),
                interval_s: counts.interval_us as f32 / 1e6,
            })
        };
        let (mut known, mut alike) = (Vec::new(), Vec::new());
        let mut pids = BTreeSet::new();
        let mut were_fast = BTreeSet::new();
        for (number, extent) in scan.layout.extents().iter().enumerate() {
            let first = scan.layout.first_index(number);
            pids.insert(extent.space.0);
            for nth in 0..extent.pages {
                let index = first + nth as usize;
                let (pid, start) = (extent.space.0, extent.start + nth * RANGE);
                let is_fast = scan.fast.get(index);
                if is_fast {
                    were_fast.insert((pid, start));
                } else if self.were_fast.contains(&(pid, start)) && !self.faulting.contains(&pid) {
                    let pages: Vec<u64> = (start..start + RANGE).step_by(BASE as usize).collect();
                    self.rates.forget(pid, &pages);
                }
                let (observed, sampled) = (self.rates.of_range(pid, start), sampled(index));
                let range = Known { pid, start, is_fast, observed, sampled };
                match (&range.observed, range.sampled) {
                    (Some(_), _) => known.push(range),
                    (None, Some(sampled)) if is_fast => alike.push((sampled.share, range)),
                    // Of a slow range of which nothing is known no page can come.
                    (None, _) => {}
                }
            }
        }
        self.were_fast = were_fast;
        // However much memory there is, those of which nothing is known are located only as far as
        // their pages can be of use.
        alike
            .sort_by(|(a, x), (b, y)| a.total_cmp(b).then((x.pid, x.start).cmp(&(y.pid, y.start))));
        known.extend(alike.into_iter().take(MOST_ALIKE).map(|(_, range)| range));
        // Fast ranges first: they show whether the program's pages in fast memory fault.
        known.sort_by_key(|range| !range.is_fast);
        let mut faulting = BTreeSet::new();
        let mut ranges = Vec::new();
        for range in known {
            let located = self.located(&range, faulting.contains(&range.pid));
            if located.as_ref().is_some_and(|located| located.do_fast_fault) {
                faulting.insert(range.pid);
            }
            ranges.extend(located);
        }
        self.faulting = faulting;
        self.range_tiers.keep(&pids);
        ranges
    }

    /// A range of base pages, if it is one. `others_fault`: fast pages of the process's other ranges do.
    fn located(&mut self, range: &Known, others_fault: bool) -> Option<Located> {
        let Known { pid, start, ref observed, sampled, .. } = *range;
        let process = self.kernel.alive(pid)?;
        let Folios::Base(addresses) = self.folios.folios(process, start).ok()? else { return None };
        let mut places = vec![-libc::ENOENT; addresses.len()];
        self.kernel.locate(pid, &addresses, &mut places).ok()?;
        // The plan of this period may have moved it since the scan.
        let in_fast = places.iter().filter(|place| self.nodes.is_fast(**place)).count();
        let is_fast = self.range_tiers.of(pid, start).unwrap_or(2 * in_fast > addresses.len());
        let of = |address: u64| observed.as_ref().map(|o| o[((address - start) / BASE) as usize]);
        // What came only now has answered elsewhere.
        let stayed = || {
            let in_fast = addresses.iter().zip(&places).filter(|(_, p)| self.nodes.is_fast(**p));
            in_fast.filter(|(a, _)| self.brought.per_s(pid, **a, self.version).is_none())
        };
        let answered = stayed().filter(|(a, _)| of(**a).is_some_and(|o| o.answered)).count();
        let do_fast_fault = match stayed().count() {
            0 => others_fault,
            stayed => answered > 0 && answered * ANSWERING >= stayed,
        };
        let known = |(&address, &place): (&u64, &i32)| {
            let observed = of(address).and_then(|observed| observed.rate);
            match self.nodes.is_fast(place) {
                true if !do_fast_fault => {
                    let per_s = self.brought.per_s(pid, address, self.version)?;
                    Some(PageRate { least_per_s: per_s, most_per_s: per_s })
                }
                true => observed,
                false => observed.filter(|_| self.nodes.is_slow(place)),
            }
        };
        let rates: Vec<Option<PageRate>> = addresses.iter().zip(&places).map(known).collect();
        let alike = sampled.filter(|_| is_fast && !do_fast_fault).map(|sampled| {
            let known = rates.iter().flatten().map(|rate| rate.least_per_s);
            let most_per_s = sampled.of_others(addresses.len(), known);
            PageRate { least_per_s: 0.0, most_per_s }
        });
        let page = |(place, rate): (&i32, Option<PageRate>)| {
            let is_fast = self.nodes.is_fast(*place);
            BasePage { is_fast, rate: rate.or(alike.filter(|_| is_fast)) }
        };
        let pages = places.iter().zip(rates).map(page).collect();
        Some(Located { pid, addresses, range: RangePages { is_fast, pages }, do_fast_fault })
    }

    /// Lets pairs of pages trade places in one step, where the kernel can; returns those that have not.
    fn exchange(&mut self, pairs: Vec<(Page, Page)>) -> Vec<(Page, Page)> {
        if !self.kernel.exchanges() {
            return pairs;
        }
        let is_of_one = |(up, down): &(Page, Page)| up.pid == down.pid;
        let (of_one, mut left): (Vec<_>, Vec<_>) = pairs.into_iter().partition(is_of_one);
        let mut rest = of_one.as_slice();
        while let Some((first, _)) = rest.first() {
            let pid = first.pid;
            let (batch, after) = rest.split_at(rest.iter().take_while(|p| p.0.pid == pid).count());
            rest = after;
            let mut ways = [Direction::Promotion, Direction::Demotion].into_iter();
            let is_able =
                ways.all(|way| self.check(pid, way).is_some_and(|target| !target.nodes.is_empty()));
            match is_able {
                true => left.extend(self.exchange_in(pid, batch)),
                false => left.extend_from_slice(batch),
            }
        }
        left
    }

    /// The same of one process.
    fn exchange_in(&mut self, pid: u32, pairs: &[(Page, Page)]) -> Vec<(Page, Page)> {
        let all: Vec<u64> =
            pairs.iter().flat_map(|(up, down)| [up.address, down.address]).collect();
        let mut places = vec![-libc::ENOENT; all.len()];
        if self.kernel.locate(pid, &all, &mut places).is_err() {
            return pairs.to_vec();
        }
        let are_apart = places
            .chunks_exact(2)
            .map(|place| self.nodes.is_slow(place[0]) && self.nodes.is_fast(place[1]));
        let (mut able, mut left) = (Vec::new(), Vec::new());
        for (pair, is_able) in pairs.iter().zip(are_apart) {
            if is_able { able.push(*pair) } else { left.push(*pair) }
        }
        let (ups, downs): (Vec<Page>, Vec<Page>) = able.iter().copied().unzip();
        self.remember(&ups);
        self.remember(&downs);
        let addresses = |pages: &[Page]| pages.iter().map(|p| p.address).collect::<Vec<u64>>();
        let mut status = vec![-libc::EOPNOTSUPP; able.len()];
        let begin = self.kernel.now();
        let answer = self.kernel.exchange(pid, &addresses(&downs), &addresses(&ups), &mut status);
        self.timed(begin);
        if let Err(error) = answer {
            tracing::debug!(pid, %error, "base pages were not exchanged");
            return pairs.to_vec();
        }
        for ((up, down), status) in able.into_iter().zip(status) {
            if status != 0 {
                left.push((up, down));
                continue;
            }
            self.brought.remove(down);
            if !self.faulting.contains(&pid) {
                self.rates.forget(pid, &[down.address]);
            }
            self.brought.add(up, self.version);
            self.costs.refined_up_pages().add(1);
            self.costs.refined_down_pages().add(1);
        }
        left
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
                    self.brought.remove(page);
                    if !self.faulting.contains(&page.pid) {
                        self.rates.forget(page.pid, &[page.address]);
                    }
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
            let mut arrived = 0;
            for (page, _) in pages.iter().zip(after).filter(|(_, place)| self.nodes.is_fast(*place))
            {
                self.brought.add(*page, self.version);
                arrived += 1;
            }
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
        self.timed(begin);
        places.unwrap_or_else(|error| {
            tracing::debug!(pid, %error, "base pages stayed");
            vec![-libc::ENOENT; addresses.len()]
        })
    }

    /// Accounts for a call that moved pages.
    fn timed(&mut self, begin: Duration) {
        let took_ns = self.kernel.now().saturating_sub(begin).as_nanos() as u64;
        self.costs.move_calls().add(1);
        self.costs.move_ns().add(took_ns);
        self.costs.longest_move_ns().raise_to(took_ns);
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
mod tests;

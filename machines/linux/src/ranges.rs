//! Ranges of 2 MB as pages, whatever maps them: most programs have base pages for some of their
//! memory, and some for all of it.
//!
//! Accessed bits are sampled per range, and the mover moves ranges. This kernel is placed between
//! the mover and the real one. The node of a range is that of a few of its base pages; a move of a
//! range moves all of its pages that are elsewhere in one call: a huge page by one address, base
//! pages each by its own. A range is on the node of more than half of its pages. Pages of it that
//! cannot be moved stay behind. Two ranges trade places page by page, where the kernel exchanges pages.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use terrace_core::interfaces::Headroom;
use terrace_core::page::PageSize;

use crate::kernel::PageKernel;
use crate::mover::TierNodes;
use crate::pagemap::Pagemap;
use crate::process::Process;
use crate::roots::Roots;

/// Size of a range.
const RANGE: u64 = PageSize::Huge.bytes();
const BASE: u64 = PageSize::Base.bytes();
/// Base pages of a range that are located.
const ASKED: u64 = 16;
/// How often the pages that the kernel did not reach are tried again.
const ATTEMPTS: usize = 3;
/// A status that the kernel never writes.
const UNWRITTEN: i32 = i32::MIN;

/// The pages of a range, as a call names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Folios {
    /// One huge page.
    Huge,
    /// Base pages at these addresses.
    Base(Vec<u64>),
}

/// Which pages a range of a process has.
pub(crate) trait FolioReader: Send {
    /// The pages of the range that begins at this address.
    fn folios(&mut self, process: Process, start: u64) -> io::Result<Folios>;
}

/// From `/proc/PID/pagemap`.
#[derive(Debug)]
pub(crate) struct PagemapFolios {
    roots: Roots,
    last: Option<Pagemap>,
}

impl PagemapFolios {
    pub(crate) fn new(roots: Roots) -> Self {
        PagemapFolios { roots, last: None }
    }
}

impl FolioReader for PagemapFolios {
    fn folios(&mut self, process: Process, start: u64) -> io::Result<Folios> {
        if self.last.as_ref().is_none_or(|p| p.process() != process) {
            self.last = Pagemap::open(&self.roots, process).map_err(io::Error::other)?;
        }
        let Some(pagemap) = &self.last else {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        };
        let mut base = Vec::new();
        let mut is_huge = false;
        let answer = pagemap.present(start, start + RANGE, |from, to, huge| {
            is_huge |= huge;
            base.extend((from..to).step_by(BASE as usize));
        });
        match answer {
            Ok(()) if is_huge => Ok(Folios::Huge),
            Ok(()) => Ok(Folios::Base(base)),
            Err(e) => {
                // Of memory that is gone, after exec(2) too: opened again the next time.
                self.last = None;
                Err(e)
            }
        }
    }
}

/// The tiers of ranges of which up to half of the pages are in the other tier, for they were moved alone.
#[derive(Debug, Clone)]
pub(crate) struct RangeTiers {
    nodes: TierNodes,
    /// By process and start of the range: whether it is placed in fast memory.
    is_fast: Arc<Mutex<BTreeMap<(u32, u64), bool>>>,
}

impl RangeTiers {
    pub(crate) fn new(nodes: TierNodes) -> Self {
        RangeTiers { nodes, is_fast: Arc::default() }
    }

    /// Pages of this range are moved alone.
    pub(crate) fn remember(&self, pid: u32, start: u64, is_fast: bool) {
        self.lock().insert((pid, start), is_fast);
    }

    /// The tier of a range whose pages were moved alone since it was last moved as a whole.
    pub(crate) fn of(&self, pid: u32, start: u64) -> Option<bool> {
        self.lock().get(&(pid, start)).copied()
    }

    /// Only these processes are there still.
    pub(crate) fn keep(&self, pids: &BTreeSet<u32>) {
        self.lock().retain(|(pid, _), _| pids.contains(pid));
    }

    /// These ranges are moved as wholes.
    fn forget(&self, pid: u32, starts: &[u64]) {
        let mut is_fast = self.lock();
        for start in starts {
            is_fast.remove(&(pid, *start));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u32, u64), bool>> {
        self.is_fast.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nodes of ranges: the node of most of the located pages of each, or a negated errno. Of a range whose
/// tier is remembered, it is of those that are in it, if there are any. Other pages are located at each
/// `turn`, so that no error lasts.
pub(crate) fn locate(
    kernel: &mut dyn PageKernel,
    pid: u32,
    starts: &[u64],
    status: &mut [i32],
    turn: u64,
    range_tiers: &RangeTiers,
) -> io::Result<()> {
    let stride = RANGE / ASKED;
    let offset = turn * 7 * BASE % stride;
    let asked: Vec<u64> = starts
        .iter()
        .flat_map(|start| (0..ASKED).map(move |nth| start + nth * stride + offset))
        .collect();
    let mut places = vec![-libc::ENOENT; asked.len()];
    kernel.locate(pid, &asked, &mut places)?;
    let is_fast = range_tiers.lock();
    for ((start, status), places) in
        starts.iter().zip(status.iter_mut()).zip(places.chunks(ASKED as usize))
    {
        let known = is_fast.get(&(pid, *start)).and_then(|&is_fast| {
            let is_there = |place: &i32| range_tiers.nodes.is_fast(*place) == is_fast;
            most(&places.iter().copied().filter(is_there).collect::<Vec<i32>>())
        });
        *status = known.or_else(|| most(places)).unwrap_or(-libc::ENOENT);
    }
    Ok(())
}

/// Moves base pages, or huge ones by an address of each, to a node; returns the node of each at the end,
/// or why it is not there.
pub(crate) fn move_pages(
    kernel: &mut dyn PageKernel,
    pid: u32,
    pages: &[u64],
    node: u32,
) -> io::Result<Vec<i32>> {
    let mut places = vec![-libc::ENOENT; pages.len()];
    kernel.locate(pid, pages, &mut places)?;
    let is_away = |place: i32| place >= 0 && place != node as i32;
    let mut going: Vec<usize> = (0..pages.len()).filter(|&i| is_away(places[i])).collect();
    for _ in 0..ATTEMPTS {
        if going.is_empty() {
            break;
        }
        let sent: Vec<u64> = going.iter().map(|&i| pages[i]).collect();
        let mut reported = vec![UNWRITTEN; sent.len()];
        let answer = kernel.migrate(pid, &sent, node, &mut reported);
        let mut now = vec![-libc::ENOENT; sent.len()];
        kernel.locate(pid, &sent, &mut now)?;
        let mut again = Vec::new();
        for ((&index, &reported), &now) in going.iter().zip(&reported).zip(&now) {
            // The present node decides; for pages that stayed, the error.
            let refused = is_away(now) && reported < 0 && reported != UNWRITTEN;
            places[index] = if refused { reported } else { now };
            if is_away(now) && (reported == UNWRITTEN || reported == -libc::EBUSY) {
                again.push(index);
            }
        }
        if let Err(error) = answer {
            // Nothing moved at all: the whole call was refused.
            if again.len() == going.len() {
                return Err(error);
            }
        }
        // Reversed, so that pages behind the one that ended the call come first.
        again.reverse();
        going = again;
    }
    Ok(places)
}

/// The node of most of these; the lowest of equals.
fn most(places: &[i32]) -> Option<i32> {
    let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
    places.iter().filter(|&&place| place >= 0).for_each(|&p| *counts.entry(p).or_default() += 1);
    counts.into_iter().rev().max_by_key(|&(_, count)| count).map(|(node, _)| node)
}

/// Pairs of pages for one call, and what goes with it.
#[derive(Default)]
struct PairsOfPages {
    a: Vec<u64>,
    b: Vec<u64>,
    /// By number of a pair of ranges, where its pages are in `a` and `b`.
    of_pair: Vec<(usize, Range<usize>)>,
    /// Pages without a partner, and the nodes that they go to.
    rest: Vec<(u32, Vec<u64>)>,
}

impl PairsOfPages {
    fn add(&mut self, nth: usize, a: &[u64], b: &[u64]) {
        let first = self.a.len();
        self.a.extend_from_slice(a);
        self.b.extend_from_slice(b);
        self.of_pair.push((nth, first..self.a.len()));
    }
}

/// A kernel whose pages are ranges.
pub(crate) struct RangeKernel {
    inner: Box<dyn PageKernel>,
    folios: Box<dyn FolioReader>,
    range_tiers: RangeTiers,
    turn: u64,
}

impl RangeKernel {
    pub(crate) fn new(
        inner: Box<dyn PageKernel>,
        folios: Box<dyn FolioReader>,
        range_tiers: RangeTiers,
    ) -> Self {
        RangeKernel { inner, folios, range_tiers, turn: 0 }
    }

    /// Adds the base pages of two ranges that are on different nodes: each goes to the node where most
    /// of the other range is.
    fn add_apart(
        &mut self,
        pid: u32,
        nth: usize,
        (of_a, of_b): (&[u64], &[u64]),
        calls: &mut PairsOfPages,
    ) -> io::Result<()> {
        let mut places = [vec![-libc::ENOENT; of_a.len()], vec![-libc::ENOENT; of_b.len()]];
        for (pages, places) in [of_a, of_b].into_iter().zip(&mut places) {
            self.inner.locate(pid, pages, places)?;
        }
        let (Some(from), Some(to)) = (most(&places[0]), most(&places[1])) else { return Ok(()) };
        if from == to {
            return Ok(());
        }
        let on = |pages: &[u64], places: &[i32], node: i32| -> Vec<u64> {
            let there = pages.iter().zip(places).filter(|(_, place)| **place == node);
            there.map(|(&page, _)| page).collect()
        };
        let (mut a, mut b) = (on(of_a, &places[0], from), on(of_b, &places[1], to));
        let pairs = a.len().min(b.len());
        for (rest, node) in [(a.split_off(pairs), to), (b.split_off(pairs), from)] {
            if !rest.is_empty() {
                calls.rest.push((node as u32, rest));
            }
        }
        calls.add(nth, &a, &b);
        Ok(())
    }

    /// The folios of some ranges of a living process.
    fn folios_of(&mut self, pid: u32, starts: &[u64]) -> io::Result<Vec<Folios>> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let process = self.inner.alive(pid).ok_or_else(gone)?;
        starts.iter().map(|&start| self.folios.folios(process, start)).collect()
    }
}

impl PageKernel for RangeKernel {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn locate(&mut self, pid: u32, addresses: &[u64], status: &mut [i32]) -> io::Result<()> {
        self.turn += 1;
        locate(self.inner.as_mut(), pid, addresses, status, self.turn, &self.range_tiers)
    }

    fn migrate(
        &mut self,
        pid: u32,
        addresses: &[u64],
        node: u32,
        status: &mut [i32],
    ) -> io::Result<u64> {
        let folios = self.folios_of(pid, addresses)?;
        let mut pages = Vec::new();
        let mut ends = Vec::with_capacity(addresses.len());
        for (&start, folios) in addresses.iter().zip(&folios) {
            match folios {
                Folios::Huge => pages.push(start),
                Folios::Base(base) => pages.extend_from_slice(base),
            }
            ends.push(pages.len());
        }
        self.range_tiers.forget(pid, addresses);
        let places = move_pages(self.inner.as_mut(), pid, &pages, node)?;
        let mut left = 0;
        let mut first = 0;
        for (status, end) in status.iter_mut().zip(ends) {
            let places = &places[first..end];
            first = end;
            let there = places.iter().filter(|&&place| place == node as i32).count();
            *status = if places.is_empty() {
                -libc::ENOENT
            } else if 2 * there > places.len() {
                node as i32
            } else {
                // The reasons of the pages that stayed.
                let reasons: Vec<i32> =
                    places.iter().filter(|&&p| p < 0).map(|&errno| -errno).collect();
                most(&reasons).map_or(-libc::EBUSY, |errno| -errno)
            };
            left += u64::from(*status < 0);
        }
        Ok(left)
    }

    fn exchanges(&self) -> bool {
        self.inner.exchanges()
    }

    /// Exchanges pairs of huge pages, and pairs of ranges of base pages page by page, all in one call.
    /// Of two ranges the one may have more pages than the other: the rest moves where there is room.
    /// A huge page and base pages are refused, and become two moves.
    fn exchange(&mut self, pid: u32, a: &[u64], b: &[u64], status: &mut [i32]) -> io::Result<()> {
        let (of_a, of_b) = (self.folios_of(pid, a)?, self.folios_of(pid, b)?);
        let mut calls = PairsOfPages::default();
        status.fill(-libc::EOPNOTSUPP);
        for (nth, pair) in of_a.iter().zip(&of_b).enumerate() {
            match pair {
                (Folios::Huge, Folios::Huge) => calls.add(nth, &[a[nth]], &[b[nth]]),
                (Folios::Base(of_a), Folios::Base(of_b)) => {
                    self.add_apart(pid, nth, (of_a, of_b), &mut calls)?;
                }
                _ => {}
            }
        }
        self.range_tiers.forget(pid, a);
        self.range_tiers.forget(pid, b);
        let mut answers = vec![UNWRITTEN; calls.a.len()];
        if !answers.is_empty() {
            self.inner.exchange(pid, &calls.a, &calls.b, &mut answers)?;
        }
        for (nth, pages) in calls.of_pair {
            let answers = &answers[pages];
            let done = answers.iter().filter(|&&answer| answer == 0).count();
            let errors: Vec<i32> = answers.iter().filter(|&&s| s < 0).map(|&s| -s).collect();
            status[nth] = match 2 * done > answers.len() {
                true => 0,
                false => -most(&errors).unwrap_or(libc::EBUSY),
            };
        }
        for (node, pages) in calls.rest {
            let bytes = pages.len() as u64 * BASE;
            if self.inner.room_bytes(node) >= bytes {
                move_pages(self.inner.as_mut(), pid, &pages, node)?;
            }
        }
        Ok(())
    }

    fn room_bytes(&mut self, node: u32) -> u64 {
        self.inner.room_bytes(node)
    }

    fn headroom(&mut self, node: u32) -> Headroom {
        self.inner.headroom(node)
    }

    fn allowed_nodes(&mut self, pid: u32) -> Option<Vec<u32>> {
        self.inner.allowed_nodes(pid)
    }

    fn alive(&mut self, pid: u32) -> Option<Process> {
        self.inner.alive(pid)
    }

    fn now(&mut self) -> Duration {
        self.inner.now()
    }

    fn sleep(&mut self, time: Duration) {
        self.inner.sleep(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::BasePages;

    fn range_tiers() -> RangeTiers {
        RangeTiers::new(TierNodes { fast: vec![0], slow: vec![1] })
    }

    fn kernel(most: usize) -> (BasePages, RangeKernel) {
        let small = BasePages::default();
        small.0.lock().unwrap().most = most;
        let kernel =
            RangeKernel::new(Box::new(small.clone()), Box::new(small.clone()), range_tiers());
        (small, kernel)
    }

    fn put(small: &BasePages, start: u64, pages: std::ops::Range<u64>, node: i32) {
        let mut state = small.0.lock().unwrap();
        state.nodes.extend(pages.map(|page| (start + page * BASE, node)));
    }

    #[test]
    fn a_range_is_where_most_of_it_is_and_only_what_is_elsewhere_moves() {
        let (small, mut kernel) = kernel(1000);
        put(&small, RANGE, 0..400, 1);
        put(&small, RANGE, 400..512, 0);
        put(&small, 5 * RANGE, 100..400, 0);
        let mut status = [0; 3];
        kernel.locate(7, &[RANGE, 5 * RANGE, 9 * RANGE], &mut status).unwrap();
        assert_eq!(status, [1, 0, -libc::ENOENT]);
        let mut status = [UNWRITTEN; 2];
        assert_eq!(kernel.migrate(7, &[RANGE, 9 * RANGE], 0, &mut status).unwrap(), 1);
        assert_eq!(status, [0, -libc::ENOENT]);
        assert_eq!(small.0.lock().unwrap().moved, 400, "the other pages were there");
    }

    #[test]
    fn a_call_that_ends_early_is_gone_on_with_and_pinned_pages_stay_behind() {
        let (small, mut kernel) = kernel(200);
        put(&small, RANGE, 0..512, 1);
        small.0.lock().unwrap().pinned = (0..5).map(|page| RANGE + page * BASE).collect();
        let mut status = [UNWRITTEN];
        kernel.migrate(7, &[RANGE], 0, &mut status).unwrap();
        assert_eq!(status, [0]);
        assert!(small.0.lock().unwrap().moved > 480, "{}", small.0.lock().unwrap().moved);
        // If most of its pages cannot be moved, the range has not moved, and reports why.
        put(&small, 3 * RANGE, 0..100, 1);
        small.0.lock().unwrap().pinned = (0..80).map(|page| 3 * RANGE + page * BASE).collect();
        let mut status = [UNWRITTEN];
        assert_eq!(kernel.migrate(7, &[3 * RANGE], 0, &mut status).unwrap(), 1);
        assert_eq!(status, [-libc::EBUSY]);
    }

    #[test]
    fn ranges_of_base_pages_trade_places_page_by_page() {
        let (small, mut kernel) = kernel(1000);
        let range_tiers = kernel.range_tiers.clone();
        let on = |start: u64, node: i32| {
            let state = small.0.lock().unwrap();
            state.nodes.range(start..start + RANGE).filter(|(_, n)| **n == node).count()
        };
        // A fast range of 512 pages, 12 of which are away already, and a slow one of 400. The first is
        // remembered as fast; both go as wholes.
        put(&small, RANGE, 0..500, 0);
        put(&small, RANGE, 500..512, 1);
        put(&small, 3 * RANGE, 0..400, 1);
        range_tiers.remember(7, RANGE, true);
        small.0.lock().unwrap().exchanges = true;
        let mut status = [UNWRITTEN];
        kernel.exchange(7, &[RANGE], &[3 * RANGE], &mut status).unwrap();
        assert_eq!((status, small.0.lock().unwrap().exchanged), ([0], 400));
        assert_eq!(
            (on(RANGE, 1), on(3 * RANGE, 0)),
            (512, 400),
            "100 have moved without a partner"
        );
        let mut place = [0];
        kernel.locate(7, &[RANGE], &mut place).unwrap();
        assert_eq!(place, [1], "no part of it is fast by itself any more");
        // Back, where the fast node has no room for the 112 that find no partner.
        small.0.lock().unwrap().room_bytes = Some(100 * BASE);
        kernel.exchange(7, &[3 * RANGE], &[RANGE], &mut status).unwrap();
        assert_eq!((on(RANGE, 0), on(3 * RANGE, 1)), (400, 400));
        // Of pinned pages the reason; of a huge page and base pages, and of two ranges on one node, that
        // they are not exchanged.
        small.0.lock().unwrap().pinned = (0..300).map(|page| RANGE + page * BASE).collect();
        put(&small, 5 * RANGE, 0..1, 1);
        put(&small, 7 * RANGE, 0..200, 0);
        let downs = [RANGE, RANGE, 7 * RANGE];
        let mut status = [UNWRITTEN; 3];
        kernel.exchange(7, &downs, &[3 * RANGE, 5 * RANGE, RANGE], &mut status).unwrap();
        let refused = -libc::EOPNOTSUPP;
        assert_eq!(status, [-libc::EBUSY, refused, refused]);
    }

    #[test]
    fn a_huge_page_goes_by_one_address() {
        let (small, mut kernel) = kernel(1000);
        put(&small, RANGE, 0..1, 1);
        let mut status = [UNWRITTEN];
        assert_eq!(kernel.migrate(7, &[RANGE], 0, &mut status).unwrap(), 0);
        assert_eq!((status, small.0.lock().unwrap().moved), ([0], 1));
    }

    #[test]
    fn a_range_of_which_pages_are_away_is_where_the_others_are_until_it_moves() {
        let (small, mut kernel) = kernel(1000);
        let range_tiers = kernel.range_tiers.clone();
        put(&small, RANGE, 0..512, 1);
        put(&small, RANGE, 100..400, 0);
        let place = |kernel: &mut RangeKernel| {
            let mut status = [0];
            kernel.locate(7, &[RANGE], &mut status).unwrap();
            status[0]
        };
        assert_eq!(place(&mut kernel), 0, "most of it is there");
        range_tiers.remember(7, RANGE, false);
        assert_eq!(place(&mut kernel), 1);
        put(&small, RANGE, 0..512, 0);
        assert_eq!(place(&mut kernel), 0, "nothing of it is there");
        put(&small, RANGE, 0..300, 1);
        range_tiers.remember(7, RANGE, true);
        assert_eq!(place(&mut kernel), 0);
        kernel.migrate(7, &[RANGE], 1, &mut [UNWRITTEN]).unwrap();
        put(&small, RANGE, 0..200, 0);
        assert_eq!(place(&mut kernel), 1, "it has no tier of its own any more");
        range_tiers.remember(7, RANGE, true);
        range_tiers.keep(&BTreeSet::from([8]));
        assert_eq!(place(&mut kernel), 1, "its process is gone");
    }
}

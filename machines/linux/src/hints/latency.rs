//! Rates of accesses from the time that the pages of a process take to fault after the kernel has made
//! them: pure, without a kernel.
//!
//! A page that is accessed `r` times a second faults `1/r` seconds after a scan in the mean. One such
//! time says little, and its inverse is no estimate of the rate: its mean is infinite. Of two or more,
//! the number less one over their sum is one without bias, where accesses come independently of each
//! other. A scan that a page does not answer until the next adds the time between them.
//!
//! Ranges of 2 MB of which some page has faulted are kept, with all of their pages: which of them do not
//! fault is as good to know. Counts of ranges are raised by pages that are accessed very often alone, for
//! accessed bits show the others.

use std::collections::BTreeMap;

use terrace_core::page::PageSize;
use terrace_core::refine::PageRate;

use crate::refiner::Observed;

const PAGE: u64 = PageSize::Base.bytes();
const RANGE: u64 = PageSize::Huge.bytes();
const PAGES: usize = (RANGE / PAGE) as usize;
/// Pages with fewer accesses a second raise no count.
const OFTEN_PER_S: f32 = 250.0;
/// What a fault and a scan take themselves: a shorter time cannot be distinguished from it.
const SHORTEST_NS: u64 = 2_000;
/// Faults are counted in such parts, which are whole when they are halved.
const PARTS: u8 = 16;
/// Faults and scans without one of a page, from which on older ones count half.
const MANY: u8 = 8;
/// A range that nothing was heard of for so long is forgotten.
const OLD_NS: u64 = 60_000_000_000;

/// What is known of a page.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Page {
    /// Time from scans to its faults, or to the next scan; older ones count less.
    waited_s: f32,
    /// Parts of faults after scans; the same.
    faults: u8,
    /// Parts of scans that it did not answer until the next; the same.
    unanswered: u8,
    /// It has not faulted since it was last scanned.
    waits: bool,
}

impl Page {
    const NEW: Page = Page { waited_s: 0.0, faults: 0, unanswered: 0, waits: true };

    fn faults(&self) -> f32 {
        f32::from(self.faults) / f32::from(PARTS)
    }

    fn rate_per_s(&self) -> f32 {
        if self.faults < 2 * PARTS { 0.0 } else { (self.faults() - 1.0) / self.waited_s }
    }

    /// Between which rates it is taken to be; nothing after fewer than two scans.
    fn between(&self) -> Option<PageRate> {
        (self.faults + self.unanswered >= 2 * PARTS).then(|| PageRate {
            least_per_s: self.rate_per_s(),
            most_per_s: (self.faults() + 1.0) / self.waited_s,
        })
    }

    fn add(&mut self, has_faulted: bool, waited_ns: u64) {
        if self.faults + self.unanswered >= MANY * PARTS {
            self.faults /= 2;
            self.unanswered /= 2;
            self.waited_s /= 2.0;
        }
        *if has_faulted { &mut self.faults } else { &mut self.unanswered } += PARTS;
        self.waited_s += waited_ns.max(SHORTEST_NS) as f32 / 1e9;
    }
}

/// A range of which some page has faulted.
#[derive(Debug)]
struct RangePages {
    pages: Box<[Page; PAGES]>,
    /// When one of its pages was last scanned.
    scanned_ns: u64,
    /// Of pages that are accessed often: accesses a second, and how many they are. Summed up again
    /// after a change only, since this is asked for in every period.
    often: Option<(f32, u32)>,
}

impl RangePages {
    fn often(&mut self) -> (f32, u32) {
        let pages = &self.pages;
        *self.often.get_or_insert_with(|| {
            let often = pages.iter().map(Page::rate_per_s).filter(|r| *r >= OFTEN_PER_S);
            often.fold((0.0, 0), |(sum, pages), rate| (sum + rate, pages + 1))
        })
    }
}

/// One process.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    /// Memory that was scanned, by its start: where it ends, and when. Pieces do not overlap.
    scanned: BTreeMap<u64, (u64, u64)>,
    /// By thread, what it is scanning.
    scanning: BTreeMap<u32, Vec<(u64, u64)>>,
    ranges: BTreeMap<u64, RangePages>,
}

impl Latencies {
    /// This thread begins to make memory from `start` to `end` fault.
    pub(super) fn scan(&mut self, thread: u32, start: u64, end: u64, time_ns: u64) {
        if start >= end {
            return;
        }
        self.scanning.entry(thread).or_default().push((start, end));
        for (&from, range) in self.ranges.range_mut(start / RANGE * RANGE..end) {
            (range.scanned_ns, range.often) = (time_ns, None);
            let (first, last) = (from.max(start), (from + RANGE).min(end));
            let pieces = self.scanned.range(..last).rev();
            for (&piece, &(until, at)) in pieces.take_while(|(_, (until, _))| *until > first) {
                let pages = of_range(from, piece.max(first), until.min(last));
                for page in range.pages[pages].iter_mut().filter(|page| page.waits) {
                    page.add(false, time_ns.saturating_sub(at));
                }
            }
            range.pages[of_range(from, first, last)].iter_mut().for_each(|page| page.waits = true);
        }
        self.cut(start, end);
        self.scanned.insert(start, (end, time_ns));
    }

    /// This thread goes on after its scans. Only now can it access what it has scanned, which may have
    /// taken milliseconds.
    pub(super) fn resume(&mut self, thread: u32, time_ns: u64) {
        for (start, end) in self.scanning.remove(&thread).unwrap_or_default() {
            for (_, (_, at)) in self.scanned.range_mut(start..end) {
                *at = time_ns.max(*at);
            }
        }
    }

    /// A page faulted at this time. Its range is begun with if there `is_room`; returns whether it was.
    pub(super) fn fault(&mut self, address: u64, time_ns: u64, is_room: bool) -> bool {
        let found = self.scanned.range(..=address).next_back();
        let Some((_, &(_, scanned_ns))) = found.filter(|(_, (end, _))| address < *end) else {
            return false;
        };
        let Some(waited_ns) = time_ns.checked_sub(scanned_ns) else { return false };
        let start = address / RANGE * RANGE;
        let is_new = !self.ranges.contains_key(&start);
        if is_new && !is_room {
            return false;
        }
        let new = || RangePages { pages: Box::new([Page::NEW; PAGES]), scanned_ns, often: None };
        let range = self.ranges.entry(start).or_insert_with(new);
        let page = &mut range.pages[((address - start) / PAGE) as usize];
        // If it does not wait, this is another kind of fault.
        if std::mem::take(&mut page.waits) {
            page.add(true, waited_ns);
            range.often = None;
        }
        is_new
    }

    /// Nothing is known of this page any more, until it is scanned again.
    pub(super) fn forget(&mut self, address: u64) {
        let start = address / RANGE * RANGE;
        if let Some(range) = self.ranges.get_mut(&start) {
            range.pages[((address - start) / PAGE) as usize] = Page { waits: false, ..Page::NEW };
            range.often = None;
        }
    }

    /// Forgets what has not been heard of for long, once a phase is over: the threads that scanned in it
    /// have gone on, or have ended.
    pub(super) fn age(&mut self, now_ns: u64) {
        let is_new = |at: u64| now_ns.saturating_sub(at) < OLD_NS;
        self.ranges.retain(|_, range| is_new(range.scanned_ns));
        self.scanned.retain(|_, (_, at)| is_new(*at));
        self.scanning.clear();
    }

    /// Ranges that are kept, each of 4 KB.
    pub(super) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Accesses a second that go to pages which fault soon, and how many those are, of each range of 2 MB
    /// with such pages that begins between these addresses.
    pub(super) fn often_between(
        &mut self,
        addresses: std::ops::Range<u64>,
    ) -> impl Iterator<Item = (u64, (f32, u32))> {
        let ranges = self.ranges.range_mut(addresses);
        ranges.map(|(start, range)| (*start, range.often())).filter(|(_, (_, pages))| *pages > 0)
    }

    /// What is known of each base page of the range that begins here.
    pub(super) fn of_range(&self, start: u64) -> Option<Vec<Observed>> {
        let of = |page: &Page| Observed { rate: page.between(), answered: !page.waits };
        Some(self.ranges.get(&start)?.pages.iter().map(of).collect())
    }

    /// Takes this out of what was scanned.
    fn cut(&mut self, start: u64, end: u64) {
        let touched: Vec<u64> = self
            .scanned
            .range(..end)
            .rev()
            .take_while(|(_, (until, _))| *until > start)
            .map(|(from, _)| *from)
            .collect();
        for from in touched {
            let Some((until, at)) = self.scanned.remove(&from) else { continue };
            if from < start {
                self.scanned.insert(from, (start, at));
            }
            if until > end {
                self.scanned.insert(end, (until, at));
            }
        }
    }
}

/// The pages between two addresses, of the range that begins at `start`.
fn of_range(start: u64, from: u64, until: u64) -> std::ops::Range<usize> {
    ((from - start) / PAGE) as usize..(until - start).div_ceil(PAGE) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// Pages with these rates through so many scans, a second apart; times to a page's next access are
    /// spread over the quantiles of the exponential distribution.
    fn observe(rates: &[f64], scans: u64) -> Latencies {
        let mut latencies = Latencies::default();
        for scan in 1..=scans {
            let at = scan * 1000 * MS;
            latencies.scan(1, 0, rates.len() as u64 * PAGE, at);
            for (page, rate) in rates.iter().enumerate() {
                let quantile = (page as f64 * 0.618_034 + scan as f64 * 0.414_214 + 0.1).fract();
                let wait_s = -(1.0 - quantile).ln() / rate;
                if wait_s < 1.0 {
                    latencies.fault(page as u64 * PAGE + 8, at + (wait_s * 1e9) as u64, true);
                }
            }
        }
        latencies
    }

    fn sum(latencies: &mut Latencies) -> f64 {
        latencies.often_between(0..u64::MAX).map(|(_, (rate, _))| f64::from(rate)).sum()
    }

    #[test]
    fn a_few_hot_pages_of_a_range_are_found_and_their_rate_is_right_in_size() {
        let mut rates = vec![5.0; 512];
        rates[17] = 50_000.0;
        rates[300] = 20_000.0;
        let found = sum(&mut observe(&rates, 8));
        assert!((35_000.0..140_000.0).contains(&found), "{found}");
    }

    #[test]
    fn a_range_that_is_accessed_evenly_has_no_more_than_it_has() {
        for rate in [5.0, 60.0, 300.0] {
            let found = sum(&mut observe(&[rate; 512], 8));
            assert!(found < 1.5 * 512.0 * rate, "{found} of {}", 512.0 * rate);
        }
    }

    #[test]
    fn one_scan_says_nothing_and_silence_is_forgotten() {
        assert_eq!(sum(&mut observe(&[1e5; 4], 1)), 0.0);
        let mut latencies = observe(&[1e5; 4], 3);
        assert!(sum(&mut latencies) > 0.0);
        // Accessed no more: scans go by without faults.
        for scan in 4..8 {
            latencies.scan(1, 0, 4 * PAGE, scan * 1000 * MS);
        }
        assert_eq!(sum(&mut latencies), 0.0);
        let mut latencies = observe(&[1e5; 4], 3);
        latencies.age(3000 * MS + OLD_NS);
        assert_eq!(latencies.ranges(), 0);
        // Nor of memory that is long unmapped, and of threads that have ended.
        assert!(latencies.scanned.is_empty() && latencies.scanning.is_empty());
    }

    #[test]
    fn a_page_that_was_forgotten_is_known_again_by_its_next_scans_alone() {
        // It could not fault where it was, and seems to be cold.
        let mut latencies = observe(&[1e5, 1e-3, 1e-3, 1e-3], 7);
        latencies.fault(PAGE, 7000 * MS + MS, true);
        let of = |latencies: &Latencies| latencies.of_range(0).unwrap()[1].rate;
        assert!(of(&latencies).unwrap().least_per_s < 1.0);
        latencies.forget(PAGE);
        assert_eq!(of(&latencies), None);
        for scan in 8..11 {
            latencies.scan(1, 0, 4 * PAGE, scan * 1000 * MS);
            latencies.fault(PAGE, scan * 1000 * MS + MS, true);
        }
        assert!(of(&latencies).unwrap().least_per_s > 300.0);
    }

    #[test]
    fn pages_that_do_not_fault_are_known_to_be_seldom_accessed() {
        let mut rates = vec![0.01; 512];
        rates[40] = 100.0;
        let pages = observe(&rates, 5).of_range(0).unwrap();
        let most = |page: usize| pages[page].rate.unwrap().most_per_s;
        let least = |page: usize| pages[page].rate.unwrap().least_per_s;
        assert!((20.0..500.0).contains(&least(40)), "{}", least(40));
        // Four seconds without a fault, for nearly all of them.
        let cold = (0..512).filter(|&page| most(page) <= 0.6).count();
        assert!(cold > 480, "{cold}");
        // After two scans nothing is known: of one wait.
        assert_eq!(observe(&rates, 2).of_range(0).unwrap()[0].rate, None);
    }

    #[test]
    fn ranges_beyond_the_bound_are_left_out() {
        let mut latencies = Latencies::default();
        latencies.scan(1, 0, 4 * RANGE, MS);
        assert!(latencies.fault(PAGE, 2 * MS, true));
        assert!(!latencies.fault(2 * PAGE, 2 * MS, true), "the same range");
        assert!(!latencies.fault(RANGE, 2 * MS, false));
        assert_eq!((latencies.ranges(), latencies.of_range(RANGE)), (1, None));
    }

    #[test]
    fn a_fault_counts_from_the_scan_of_its_own_page() {
        let mut latencies = Latencies::default();
        for second in 1..4 {
            let at = second * 1000 * MS;
            latencies.scan(1, 0, 2 * PAGE, at);
            latencies.scan(1, 2 * PAGE, 4 * PAGE, at + 100 * MS);
            latencies.fault(PAGE, at + 101 * MS, true);
            latencies.fault(3 * PAGE, at + 101 * MS, true);
            latencies.fault(9 * PAGE, at + 101 * MS, true);
        }
        let rates: Vec<f32> =
            [1, 3, 9].iter().map(|&page| latencies.ranges[&0].pages[page].rate_per_s()).collect();
        // Three faults, each 101 ms and 1 ms after its own scan; the last page was never scanned.
        assert_eq!(rates.iter().map(|r| r.round()).collect::<Vec<f32>>(), [7.0, 667.0, 0.0]);
        assert_eq!(sum(&mut latencies).round(), 667.0);
    }

    #[test]
    fn a_thread_that_scans_accesses_nothing_until_it_goes_on() {
        let mut latencies = Latencies::default();
        for second in 1..4 {
            let at = second * 1000 * MS;
            latencies.scan(1, 0, 4 * PAGE, at);
            latencies.scan(1, 4 * PAGE, 8 * PAGE, at + 8 * MS);
            // Another thread is not held up.
            latencies.fault(6 * PAGE, at + 10 * MS, true);
            latencies.resume(1, at + 20 * MS);
            latencies.fault(2 * PAGE, at + 20 * MS + 10_000, true);
        }
        let rates: Vec<f32> =
            [2, 6].iter().map(|&page| latencies.ranges[&0].pages[page].rate_per_s()).collect();
        // Two of three faults over 30 and 6,000 us.
        assert!((rates[0] - 66_667.0).abs() < 10.0 && (rates[1] - 333.0).abs() < 1.0, "{rates:?}");
        assert!(latencies.scanning.is_empty());
    }

    proptest! {
        /// Pieces never overlap, each address has its newest scan, and work and memory are bounded.
        #[test]
        fn the_newest_scan_of_an_address_counts(
            events in proptest::collection::vec((0u64..40, 1u64..20, any::<bool>()), 1..80),
        ) {
            let mut latencies = Latencies::default();
            let mut newest = BTreeMap::new();
            for (time, &(page, length, is_scan)) in events.iter().enumerate() {
                let time = time as u64 * MS;
                if is_scan {
                    latencies.scan(1, page * PAGE, (page + length) * PAGE, time);
                    newest.extend((page..page + length).map(|p| (p, time)));
                } else {
                    latencies.fault(page * PAGE, time, true);
                }
            }
            let mut last = 0;
            for (&start, &(end, _)) in &latencies.scanned {
                prop_assert!(start >= last && end > start);
                last = end;
            }
            for (page, time) in newest {
                let piece = latencies.scanned.range(..=page * PAGE).next_back();
                prop_assert!(piece.is_some_and(|(_, (end, at))| *end > page * PAGE && *at == time));
            }
            let pages = latencies.ranges.values().flat_map(|range| range.pages.iter());
            for page in pages.filter_map(Page::between) {
                prop_assert!(page.least_per_s >= 0.0 && page.least_per_s <= page.most_per_s);
                prop_assert!(page.most_per_s.is_finite());
            }
        }
    }
}

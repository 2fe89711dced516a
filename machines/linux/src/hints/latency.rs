//! Rates of accesses from the time that the pages of a process take to fault after the kernel has made
//! them: pure, without a kernel.
//!
//! A page that is accessed `r` times a second faults `1/r` seconds after a scan in the mean. One such
//! time says little, and its inverse is no estimate of the rate: its mean is infinite. Of two or more,
//! the number less one over their sum is one without bias, where accesses come independently of each
//! other. A scan that a page does not answer until the next adds the time between them.
//!
//! Only pages that are accessed very often matter here: accessed bits tell the others. So only a page
//! that faults soon is kept, and only as long as it goes on to.

use std::collections::BTreeMap;

use terrace_core::page::PageSize;

const PAGE: u64 = PageSize::Base.bytes();
const RANGE: u64 = PageSize::Huge.bytes();
/// A page that faults later after a scan is not begun with: it has less than some 250 accesses a second.
const SOON_NS: u64 = 4_000_000;
/// What a fault and a scan take themselves: a shorter time cannot be distinguished from it.
const SHORTEST_NS: u64 = 2_000;
/// Pages with fewer accesses a second are forgotten.
const FEW_PER_S: f32 = 50.0;
/// Faults and scans without one of a page, from which on older ones count half.
const MANY: f32 = 8.0;
/// Pages of a process that are kept, at most: 2 MB of this process's memory.
const MOST_PAGES: usize = 1 << 15;
/// A page that nothing was heard of for so long is forgotten.
const OLD_NS: u64 = 60_000_000_000;

/// What is known of a page that faults soon.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Page {
    /// Faults after scans; older ones count less.
    faults: f32,
    /// Scans that it did not answer until the next; the same.
    unanswered: f32,
    /// Time from scans to its faults, or to the next scan.
    waited_s: f32,
    /// When it was last scanned.
    scanned_ns: u64,
    /// It has not faulted since.
    waits: bool,
}

impl Page {
    fn rate_per_s(&self) -> f32 {
        if self.faults < 2.0 { 0.0 } else { (self.faults - 1.0) / self.waited_s }
    }

    fn add(&mut self, faults: f32, unanswered: f32, waited_ns: u64) {
        if self.faults + self.unanswered >= MANY {
            self.faults /= 2.0;
            self.unanswered /= 2.0;
            self.waited_s /= 2.0;
        }
        self.faults += faults;
        self.unanswered += unanswered;
        self.waited_s += waited_ns.max(SHORTEST_NS) as f32 / 1e9;
    }
}

/// One process.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    /// Memory that was scanned, by its start: where it ends, and when. Pieces do not overlap.
    scanned: BTreeMap<u64, (u64, u64)>,
    /// By thread, what it is scanning.
    scanning: BTreeMap<u32, Vec<(u64, u64)>>,
    pages: BTreeMap<u64, Page>,
}

impl Latencies {
    /// This thread begins to make memory from `start` to `end` fault.
    pub(super) fn scan(&mut self, thread: u32, start: u64, end: u64, time_ns: u64) {
        if start >= end {
            return;
        }
        self.scanning.entry(thread).or_default().push((start, end));
        self.cut(start, end);
        self.scanned.insert(start, (end, time_ns));
        let mut forgotten = Vec::new();
        for (&address, page) in self.pages.range_mut(start..end) {
            if page.waits {
                page.add(0.0, 1.0, time_ns.saturating_sub(page.scanned_ns));
            }
            (page.scanned_ns, page.waits) = (time_ns, true);
            // One fault and a short wait are a rate too, until more is known.
            if page.faults / page.waited_s < FEW_PER_S {
                forgotten.push(address);
            }
        }
        for address in forgotten {
            self.pages.remove(&address);
        }
    }

    /// This thread goes on after its scans. Only now can it access what it has scanned, which may have
    /// taken milliseconds.
    pub(super) fn resume(&mut self, thread: u32, time_ns: u64) {
        for (start, end) in self.scanning.remove(&thread).unwrap_or_default() {
            for (_, (_, at)) in self.scanned.range_mut(start..end) {
                *at = time_ns.max(*at);
            }
            for (_, page) in self.pages.range_mut(start..end).filter(|(_, page)| page.waits) {
                page.scanned_ns = time_ns.max(page.scanned_ns);
            }
        }
    }

    /// A page faulted at this time.
    pub(super) fn fault(&mut self, address: u64, time_ns: u64) {
        let found = self.scanned.range(..=address).next_back();
        let Some((_, &(_, scanned_ns))) = found.filter(|(_, (end, _))| address < *end) else {
            return;
        };
        let Some(waited_ns) = time_ns.checked_sub(scanned_ns) else { return };
        let address = address / PAGE * PAGE;
        let has_room = self.pages.len() < MOST_PAGES;
        match self.pages.get_mut(&address) {
            Some(page) if page.waits => {
                page.add(1.0, 0.0, waited_ns);
                page.waits = false;
            }
            // Another kind of fault.
            Some(_) => {}
            None if waited_ns <= SOON_NS && has_room => {
                let mut page =
                    Page { faults: 0.0, unanswered: 0.0, waited_s: 0.0, scanned_ns, waits: false };
                page.add(1.0, 0.0, waited_ns);
                self.pages.insert(address, page);
            }
            None => {}
        }
    }

    /// Forgets what has not been heard of for long.
    pub(super) fn age(&mut self, now_ns: u64) {
        self.pages.retain(|_, page| now_ns.saturating_sub(page.scanned_ns) < OLD_NS);
    }

    /// Accesses a second that go to pages which fault soon, and how many those are, by range of 2 MB.
    pub(super) fn rates_per_s(&self) -> BTreeMap<u64, (f32, u32)> {
        let mut rates = BTreeMap::new();
        for (address, page) in &self.pages {
            let rate = page.rate_per_s();
            if rate > 0.0 {
                let (sum, pages) = rates.entry(address / RANGE * RANGE).or_insert((0.0, 0));
                *sum += rate;
                *pages += 1;
            }
        }
        rates
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
                    latencies.fault(page as u64 * PAGE + 8, at + (wait_s * 1e9) as u64);
                }
            }
        }
        latencies
    }

    fn sum(latencies: &Latencies) -> f64 {
        latencies.rates_per_s().values().map(|&(rate, _)| f64::from(rate)).sum()
    }

    #[test]
    fn a_few_hot_pages_of_a_range_are_found_and_their_rate_is_right_in_size() {
        let mut rates = vec![5.0; 512];
        rates[17] = 50_000.0;
        rates[300] = 20_000.0;
        let found = sum(&observe(&rates, 8));
        assert!((35_000.0..140_000.0).contains(&found), "{found}");
    }

    #[test]
    fn a_range_that_is_accessed_evenly_has_no_more_than_it_has() {
        for rate in [5.0, 60.0, 300.0] {
            let found = sum(&observe(&[rate; 512], 8));
            assert!(found < 1.5 * 512.0 * rate, "{found} of {}", 512.0 * rate);
        }
    }

    #[test]
    fn one_scan_says_nothing_and_silence_is_forgotten() {
        assert_eq!(sum(&observe(&[1e5; 4], 1)), 0.0);
        let mut latencies = observe(&[1e5; 4], 3);
        assert!(sum(&latencies) > 0.0);
        // Accessed no more: scans go by without faults.
        for scan in 4..8 {
            latencies.scan(1, 0, 4 * PAGE, scan * 1000 * MS);
        }
        assert_eq!((sum(&latencies), latencies.pages.len()), (0.0, 0));
        let mut latencies = observe(&[1e5; 4], 3);
        latencies.age(3000 * MS + OLD_NS);
        assert!(latencies.pages.is_empty());
    }

    #[test]
    fn a_fault_counts_from_the_scan_of_its_own_page() {
        let mut latencies = Latencies::default();
        for second in 1..4 {
            let at = second * 1000 * MS;
            latencies.scan(1, 0, 2 * PAGE, at);
            latencies.scan(1, 2 * PAGE, 4 * PAGE, at + 100 * MS);
            latencies.fault(PAGE, at + 101 * MS);
            latencies.fault(3 * PAGE, at + 101 * MS);
            latencies.fault(9 * PAGE, at + 101 * MS);
        }
        let kept: Vec<u64> = latencies.pages.keys().copied().collect();
        assert_eq!(kept, [3 * PAGE]);
        // Three faults, 1 ms each after its own scan.
        assert_eq!(sum(&latencies).round(), 667.0);
    }

    #[test]
    fn a_thread_that_scans_accesses_nothing_until_it_goes_on() {
        let mut latencies = Latencies::default();
        for second in 1..4 {
            let at = second * 1000 * MS;
            latencies.scan(1, 0, 4 * PAGE, at);
            latencies.scan(1, 4 * PAGE, 8 * PAGE, at + 8 * MS);
            // Another thread is not held up.
            latencies.fault(6 * PAGE, at + 10 * MS);
            latencies.resume(1, at + 20 * MS);
            latencies.fault(2 * PAGE, at + 20 * MS + 10_000);
        }
        let rates: Vec<f32> = latencies.pages.values().map(Page::rate_per_s).collect();
        assert_eq!(latencies.pages.keys().copied().collect::<Vec<u64>>(), [2 * PAGE, 6 * PAGE]);
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
                    latencies.fault(page * PAGE, time);
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
            prop_assert!(latencies.pages.values().all(|p| p.waited_s > 0.0 && p.rate_per_s() >= 0.0));
        }
    }
}

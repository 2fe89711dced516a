//! Rates of accesses of base pages from their accessed bits, where a scan has them all: pure, without
//! a kernel.
//!
//! A scan finds the bit of a base page set or not, in fast memory as in slow. A page that is accessed
//! `r` times a second, independently of each other, is found so in a share `1 - exp(-r d)` of scans that
//! are `d` apart; the share of late, in which older scans count less, gives its rate. A share of `n`
//! scans is off by some `√(p (1 - p) / n)`. Where all scans find a page it may have any rate above some,
//! and half a scan is taken to differ.
//!
//! Kept are the ranges of 2 MB of base pages, with all of their pages: those that are never found are as
//! good to know. A huge page has one bit, and nothing is known of its parts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use terrace_core::refine::PageRate;

use crate::refiner::{
    BaseRates, FADES_S, KNOWN_EVERY_S, MOST_RANGES, Observed, PAGES_OF_RANGE as PAGES,
};

/// A scan counts e times less after [`FADES_S`], or after so many scans where they are rarer.
const FADES_SCANS: f64 = 16.0;
/// Nothing is known of a range before so many scans.
const LEAST_SCANS: f32 = 8.0;
/// A range that so many scans have not had is forgotten.
const FORGOTTEN_SCANS: u64 = 16;

/// A range of base pages.
#[derive(Debug)]
struct Found {
    /// In how many scans each page was found accessed, older ones faded.
    pages: Box<[f32; PAGES]>,
    /// Scans, faded alike, and the time between them together.
    scans: f32,
    observed_s: f32,
    /// When it was scanned last, and the number of that scan.
    last_s: f64,
    last: u64,
}

/// The ranges of one group.
#[derive(Debug, Default)]
struct Ranges {
    /// By process and start.
    found: BTreeMap<(u32, u64), Found>,
    now_s: f64,
    /// Scans so far.
    scans: u64,
    version: u64,
    known_s: f64,
}

/// What a group's scans have found; its copies are of the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct BitRates(Arc<Mutex<Ranges>>);

impl BitRates {
    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Base pages of the range that begins here were found accessed, a bit each, so long after the scan
    /// before.
    pub(crate) fn add(&self, pid: u32, start: u64, accessed: &[u64; PAGES / 64], since: Duration) {
        let mut ranges = self.lock();
        let (now_s, scan) = (ranges.now_s, ranges.scans);
        let is_room = ranges.found.len() < MOST_RANGES;
        let found = match ranges.found.get_mut(&(pid, start)) {
            Some(found) => found,
            None if is_room => ranges.found.entry((pid, start)).or_insert_with(|| Found {
                pages: Box::new([0.0; PAGES]),
                scans: 0.0,
                observed_s: 0.0,
                last_s: now_s,
                last: scan,
            }),
            None => return,
        };
        let age = ((now_s - found.last_s) / FADES_S).clamp(0.0, 1.0 / FADES_SCANS);
        let kept = (-age).exp() as f32;
        for (pages, &bits) in found.pages.chunks_exact_mut(64).zip(accessed) {
            for (bit, page) in pages.iter_mut().enumerate() {
                *page = *page * kept + (bits >> bit & 1) as f32;
            }
        }
        found.scans = found.scans * kept + 1.0;
        found.observed_s = found.observed_s * kept + since.as_secs_f32();
        (found.last_s, found.last) = (now_s, scan);
    }

    /// A scan begins at this time.
    pub(crate) fn at(&self, now: Duration) {
        let mut ranges = self.lock();
        ranges.now_s = now.as_secs_f64();
        ranges.scans += 1;
    }

    /// Ends a period; more is known after some of them.
    pub(crate) fn end_period(&self) {
        let mut ranges = self.lock();
        let now_s = ranges.now_s;
        if now_s - ranges.known_s >= KNOWN_EVERY_S {
            let scans = ranges.scans;
            ranges.found.retain(|_, found| scans - found.last < FORGOTTEN_SCANS);
            ranges.known_s = now_s;
            ranges.version += u64::from(!ranges.found.is_empty());
        }
    }
}

/// Between which rates a page is that is found in so many scans, which are so far apart.
fn rate(found: f32, scans: f32, interval_s: f32) -> PageRate {
    let share = (found / scans).clamp(0.0, 1.0);
    let off = (share * (1.0 - share) / scans).sqrt() + 0.5 / scans;
    // Half a scan may always differ.
    let per_s = |share: f32| -(1.0 - share.clamp(0.0, 1.0 - 0.5 / scans)).ln() / interval_s;
    PageRate { least_per_s: per_s(share - off), most_per_s: per_s(share + off) }
}

impl BaseRates for BitRates {
    fn version(&self) -> u64 {
        self.lock().version
    }

    fn of_range(&self, pid: u32, start: u64) -> Option<Vec<Observed>> {
        let ranges = self.lock();
        let Found { pages, scans, observed_s, .. } = ranges.found.get(&(pid, start))?;
        if *scans < LEAST_SCANS {
            return None;
        }
        let interval_s = observed_s / scans;
        // Pages have bits wherever they are, so one that is not found is cold.
        let of =
            |&found: &f32| Observed { rate: Some(rate(found, *scans, interval_s)), answered: true };
        Some(pages.iter().map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::page::PageSize;

    const MS: Duration = Duration::from_millis(1);

    /// Scans 5 ms apart, for so many ms: page 3 is found in all, page 9 in every second, page 70 in each
    /// of a period in 40.
    fn observe(rates: &BitRates, from_ms: u32, length_ms: u32) {
        for scan in from_ms / 5..(from_ms + length_ms) / 5 {
            rates.at(scan * 5 * MS);
            let mut bits = [0; 8];
            bits[0] = 1 << 3 | u64::from(scan % 2 == 0) << 9;
            bits[1] = u64::from(scan % 40 == 0) << 6;
            rates.add(7, 0, &bits, 5 * MS);
            if scan % 20 == 19 {
                rates.end_period();
            }
        }
    }

    fn of(rates: &BitRates, page: usize) -> PageRate {
        rates.of_range(7, 0).unwrap()[page].rate.unwrap()
    }

    #[test]
    fn rates_are_between_their_bounds_and_in_order() {
        for length_ms in [500, 2000, 30_000] {
            let rates = BitRates::default();
            observe(&rates, 0, length_ms);
            // ln 2 in 5 ms, and one in 40 scans.
            for (page, per_s) in [(9, 138.6), (70, 5.06)] {
                let PageRate { least_per_s, most_per_s } = of(&rates, page);
                assert!(least_per_s < per_s && per_s < most_per_s, "{length_ms} ms: {:?}", page);
            }
            let (all, half, few, none) =
                (of(&rates, 3), of(&rates, 9), of(&rates, 70), of(&rates, 0));
            assert!(all.least_per_s > 2.0 * half.most_per_s, "{all:?} {half:?}");
            assert!(half.least_per_s > 2.0 * few.most_per_s, "{half:?} {few:?}");
            assert_eq!(none.least_per_s, 0.0);
            assert!(none.most_per_s < half.least_per_s && all.most_per_s.is_finite());
        }
    }

    #[test]
    fn what_is_accessed_no_more_cools_and_what_is_scanned_no_more_is_forgotten() {
        let rates = BitRates::default();
        observe(&rates, 0, 20_000);
        let before = of(&rates, 3).least_per_s;
        for scan in 4000..8000_u32 {
            rates.at(scan * 5 * MS);
            rates.add(7, 0, &[0; 8], 5 * MS);
        }
        assert!(of(&rates, 3).most_per_s < 0.1 * before, "{:?}", of(&rates, 3));
        // Rare scans are no reason to forget it.
        rates.at(43_000 * MS);
        rates.end_period();
        assert!(rates.of_range(7, 0).is_some());
        (0..FORGOTTEN_SCANS).for_each(|scan| rates.at((44_000 + scan as u32) * MS));
        rates.end_period();
        assert!(rates.of_range(7, 0).is_none());
    }

    #[test]
    fn rates_follow_in_seconds_however_rare_windows_are() {
        // A window of 5 ms each 100 ms: hot for 60 s, then cold for as long; and each 5 s.
        for every_ms in [100, 5000] {
            let rates = BitRates::default();
            for (turn, bits) in [(0, [1; 8]), (1, [0; 8])] {
                for window in 1..=600 {
                    rates.at((turn * 600 + window) * every_ms * MS);
                    rates.add(7, 0, &bits, 5 * MS);
                }
            }
            assert!(of(&rates, 0).most_per_s < 20.0, "{:?} each {every_ms} ms", of(&rates, 0));
            assert!(rates.of_range(7, 0).is_some(), "as many scans as it takes count");
        }
    }

    #[test]
    fn nothing_is_known_at_first_and_then_now_and_again() {
        let rates = BitRates::default();
        observe(&rates, 1000, 30);
        assert!(rates.of_range(7, 0).is_none() && rates.of_range(8, 0).is_none());
        observe(&rates, 1030, 170);
        let first = rates.version();
        assert!(first > 0 && rates.of_range(7, 0).is_some());
        observe(&rates, 1200, 300);
        assert_eq!(rates.version(), first, "it was just known");
        observe(&rates, 1500, 300);
        assert_eq!(rates.version(), first + 1);
    }

    #[test]
    fn ranges_beyond_the_bound_are_left_out() {
        let rates = BitRates::default();
        let start = |nth: usize| nth as u64 * PageSize::Huge.bytes();
        for _ in 0..10 {
            (0..=MOST_RANGES).for_each(|nth| rates.add(7, start(nth), &[1; 8], 5 * MS));
        }
        assert!(rates.of_range(7, start(MOST_RANGES - 1)).is_some());
        assert!(rates.of_range(7, start(MOST_RANGES)).is_none());
    }
}

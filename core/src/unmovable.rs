//! Pages that could not be moved again and again, remembered for a while: pinned for a device
//! (VFIO, RDMA, O_DIRECT, io_uring), shared with others, or of a kind that the kernel does not
//! move. Without this the same hottest pages would be planned each period and no others promoted.
//!
//! A first failure may be chance: a page is busy for a moment. From the second in a row on a page
//! is left out for `2^n` periods, 4 at first and 256 at most. One that is not planned for as long
//! again has moved or is no longer hot, and is forgotten. At most [`MOST_PAGES`] are remembered.

use std::collections::BTreeMap;

use terrace_core::bits::PageBits;
use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_core::plan::{Exchange, FailureReason, Outcome, Plan};
use terrace_core::scan::Scan;

/// Most remembered pages: some 1 MB.
pub(super) const MOST_PAGES: usize = 16_384;
/// Periods for which a page is left out after two failures, as a power of two.
const FIRST: u32 = 2;
/// Most such periods, as a power of two.
const LAST: u32 = 8;

#[derive(Debug, Clone, Copy)]
struct Entry {
    failures: u32,
    /// The period in which it may be planned again.
    until: u64,
}

impl Entry {
    /// Periods for which it is left out.
    fn wait(failures: u32) -> u64 {
        if failures < 2 { 0 } else { 1 << (failures - 2 + FIRST).min(LAST) }
    }
}

/// Pages that cannot be moved at present.
#[derive(Debug, Clone, Default)]
pub(super) struct Unmovable {
    pages: BTreeMap<(SpaceId, u64), Entry>,
    period: u64,
}

/// Whether a failure of this kind is a property of the page.
fn is_of_page(reason: FailureReason) -> bool {
    use FailureReason::{Busy, Denied, StayedPut, Unsupported};
    matches!(reason, Busy | Denied | StayedPut | Unsupported)
}

impl Unmovable {
    /// Begins a period; forgets pages that were not planned for long.
    pub(super) fn next_period(&mut self) {
        self.period += 1;
        let period = self.period;
        self.pages.retain(|_, e| period <= e.until + Entry::wait(e.failures).max(1 << FIRST));
    }

    /// Takes the failures of an outcome.
    pub(super) fn learn(&mut self, outcome: &Outcome, size: PageSize) {
        for failure in outcome.failures.iter().filter(|f| is_of_page(f.reason)) {
            for nth in 0..failure.range.pages(size) {
                let page = (failure.range.space, failure.range.start + nth * size.bytes());
                if self.pages.len() >= MOST_PAGES && !self.pages.contains_key(&page) {
                    continue;
                }
                let entry = self.pages.entry(page).or_insert(Entry { failures: 0, until: 0 });
                entry.failures = entry.failures.saturating_add(1);
                entry.until = self.period + Entry::wait(entry.failures);
            }
        }
    }

    fn is_left_out(&self, space: SpaceId, address: u64) -> bool {
        self.pages.get(&(space, address)).is_some_and(|e| self.period < e.until)
    }

    /// Pages of this scan that are left out now.
    pub(super) fn left_out(&self, scan: &Scan) -> PageBits {
        let mut bits = PageBits::new(scan.pages());
        for (&(space, address), entry) in &self.pages {
            if self.period < entry.until
                && let Some(index) = scan.layout.index(space, address)
            {
                bits.set(index, true);
            }
        }
        bits
    }

    /// The scan for a policy, so that it chooses other pages: an unmovable slow page looks unused,
    /// an unmovable fast one in use.
    pub(super) fn mask(scan: &Scan, left_out: &PageBits) -> Scan {
        let words = scan.accessed.words().iter().zip(scan.fast.words()).zip(left_out.words());
        let accessed = words.map(|((&accessed, &fast), &out)| accessed & !out | fast & out);
        let accessed = PageBits::from_words(accessed.collect(), scan.pages());
        Scan { accessed, ..scan.clone() }
    }

    /// Removes unmovable pages from a plan; returns how many.
    pub(super) fn take_out(&self, plan: &mut Plan, size: PageSize) -> u64 {
        if self.pages.is_empty() {
            return 0;
        }
        let before = plan.pages(size);
        let pages = |range: &VirtualRange| -> Vec<VirtualRange> {
            let page = |nth| VirtualRange {
                start: range.start + nth * size.bytes(),
                size_bytes: size.bytes(),
                ..*range
            };
            (0..range.pages(size)).map(page).collect()
        };
        let stays = |page: &VirtualRange| !self.is_left_out(page.space, page.start);
        let filter = |ranges: &[VirtualRange]| {
            join(ranges.iter().flat_map(pages).filter(stays).collect(), |last, next| {
                (last.space == next.space && last.end() == next.start)
                    .then(|| last.size_bytes += next.size_bytes)
            })
        };
        plan.promotions = filter(&plan.promotions);
        plan.demotions = filter(&plan.demotions);
        let pairs =
            plan.exchanges.iter().flat_map(|e| pages(&e.up).into_iter().zip(pages(&e.down)));
        let pairs = pairs
            .filter(|(up, down)| stays(up) && stays(down))
            .map(|(up, down)| Exchange { up, down });
        plan.exchanges = join(pairs.collect(), |last, next| {
            let follows =
                |a: &VirtualRange, b: &VirtualRange| a.space == b.space && a.end() == b.start;
            (follows(&last.up, &next.up) && follows(&last.down, &next.down)).then(|| {
                last.up.size_bytes += next.up.size_bytes;
                last.down.size_bytes += next.down.size_bytes;
            })
        });
        let after = plan.pages(size);
        before.0 + before.1 - after.0 - after.1
    }

    /// Number of remembered pages.
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }
}

/// Merges neighbours in a list, where `extend` can.
fn join<T>(items: Vec<T>, extend: impl Fn(&mut T, &T) -> Option<()>) -> Vec<T> {
    let mut joined: Vec<T> = Vec::with_capacity(items.len());
    for item in items {
        if joined.last_mut().and_then(|last| extend(last, &item)).is_none() {
            joined.push(item);
        }
    }
    joined
}

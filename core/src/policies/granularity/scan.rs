//! One scan of one tier of one address space: the pages it read, and how many regions were densely
//! and how many sparsely used (migration-granularity paper, section 4).

use std::ops::Range;

use super::regions::Space;
use super::thresholds::{REGION_2MB, REGION_64KB, Regions, Thresholds};
use crate::bits::PageBits;

/// The pages of one tier, as bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tier<'a> {
    fast: &'a PageBits,
    /// XOR mask of the bits of `fast`: all ones for the slow tier.
    flip: u64,
}

impl<'a> Tier<'a> {
    pub fn fast(fast: &'a PageBits) -> Self {
        Tier { fast, flip: 0 }
    }

    pub fn slow(fast: &'a PageBits) -> Self {
        Tier { fast, flip: !0 }
    }

    /// The bits of `count` pages (1 to 64) from `page` on.
    pub fn bits_at(&self, page: usize, count: usize) -> u64 {
        (self.fast.bits_at(page, count) ^ self.flip) & (!0 >> (64 - count))
    }

    /// Number of these pages that are in the tier.
    pub fn count(&self, pages: Range<usize>) -> u64 {
        let fast = self.fast.count_range(pages.clone());
        (if self.flip == 0 { fast } else { pages.len() - fast }) as u64
    }

    /// The first page of the tier in `pages`.
    pub fn first(&self, pages: Range<usize>) -> Option<usize> {
        let words = self.fast.words();
        let mut word = pages.start / 64;
        let mut bits = (words.get(word)? ^ self.flip) & !0 << (pages.start % 64);
        while bits == 0 {
            word += 1;
            if 64 * word >= pages.end {
                return None;
            }
            bits = words[word] ^ self.flip;
        }
        let page = 64 * word + bits.trailing_zeros() as usize;
        (page < pages.end).then_some(page)
    }

    /// Calls `each` with every stretch of neighbours in the tier among `pages`, ascending.
    pub fn stretches(&self, pages: Range<usize>, mut each: impl FnMut(Range<usize>)) {
        let other = Tier { fast: self.fast, flip: !self.flip };
        let mut from = pages.start;
        while let Some(start) = (from < pages.end).then(|| self.first(from..pages.end)).flatten() {
            let end = other.first(start..pages.end).unwrap_or(pages.end);
            each(start..end);
            from = end;
        }
    }
}

/// The extent of a scan.
#[derive(Debug, Clone, Default)]
pub(super) struct Scanned {
    /// First and last page of each part, in the order of the scan.
    pub spans: Vec<Range<usize>>,
    /// Pages of the tier in them.
    pub pages: u64,
    /// Counts of their regions by use.
    pub regions: Regions,
    /// Start of the next scan: the page after the last.
    pub next: usize,
}

/// Scans the pages of a space from `from` on, and from its start when it comes to the end, until
/// `budget` pages of the tier have been read or all of them. Pages of the other tier are skipped
/// and not counted.
pub(super) fn scan(
    space: &Space,
    tier: Tier<'_>,
    accessed: &PageBits,
    thresholds: &Thresholds,
    from: usize,
    budget: u64,
) -> Scanned {
    let mut scanned = Scanned { next: from, ..Scanned::default() };
    let mut large = Large { thresholds, number: None, accessed: 0 };
    for leg in [from..space.pages.end, space.pages.start..from] {
        let mut at = leg.start;
        while scanned.pages < budget && at < leg.end {
            // Where nothing of the tier is left the scan has read the rest of the leg.
            let Some(first) = tier.first(at..leg.end) else {
                at = leg.end;
                break;
            };
            let (_, region) = space.region(first, REGION_64KB.max(space.page_bytes()));
            let end = region.end.min(leg.end);
            let (pages, hits, stop) = count(tier, accessed, first..end, budget - scanned.pages);
            at = stop;
            scanned.pages += pages;
            let weight = (space.page_bytes() / 4096) as u32;
            // A page larger than the region is as many regions, each of them accessed or not.
            let parts = (space.page_bytes() / REGION_64KB).max(1) as u32;
            for _ in 0..parts {
                thresholds.region_64kb(hits * weight / parts, &mut scanned.regions);
            }
            let number = space.address(first) / REGION_2MB.max(space.page_bytes());
            large.add(number, hits * weight, &mut scanned.regions);
        }
        if at > leg.start {
            scanned.spans.push(leg.start..at);
            scanned.next = at;
        }
        large.end(&mut scanned.regions);
        if scanned.pages == budget {
            break;
        }
    }
    scanned
}

/// Pages of the tier, and accessed ones, among `pages`, no more than `most`; and where that was
/// reached.
fn count(tier: Tier<'_>, accessed: &PageBits, pages: Range<usize>, most: u64) -> (u64, u32, usize) {
    let (mut at, mut seen, mut hits) = (pages.start, 0u64, 0);
    while at < pages.end && seen < most {
        let mut length = (pages.end - at).min(64);
        let mut bits = tier.bits_at(at, length);
        let left = most - seen;
        if u64::from(bits.count_ones()) >= left {
            // It ends behind the last page of the budget.
            let mut rest = bits;
            (1..left).for_each(|_| rest &= rest - 1);
            length = rest.trailing_zeros() as usize + 1;
            bits &= !0 >> (64 - length);
        }
        seen += u64::from(bits.count_ones());
        hits += (bits & accessed.bits_at(at, length)).count_ones();
        at += length;
    }
    (seen, hits, at)
}

/// The region of 2 MB that a scan is in.
struct Large<'a> {
    thresholds: &'a Thresholds,
    number: Option<u64>,
    accessed: u32,
}

impl Large<'_> {
    fn add(&mut self, number: u64, accessed: u32, regions: &mut Regions) {
        if self.number != Some(number) {
            self.end(regions);
            self.number = Some(number);
        }
        self.accessed += accessed;
    }

    fn end(&mut self, regions: &mut Regions) {
        if self.number.take().is_some() {
            self.thresholds.region_2mb(self.accessed, regions);
        }
        self.accessed = 0;
    }
}

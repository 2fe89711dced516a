//! What fast memory is worth to a group: hits as a function of its size, the complement of a
//! miss-ratio curve (`docs/coverage.md`, B4).
//!
//! Computed from the accessed bits that the scans of the last 64 periods set: a page that was
//! accessed in `f` of `n` scans yields `f / n` hits a period when it is in fast memory. With the
//! most frequently accessed pages first, that is the best that any fixed placement can reach, and a
//! concave curve: the marginal benefit falls. A hit is *a page that was accessed in a period and
//! was in fast memory*; an accessed bit does not report how often it was accessed in the period.
//! Where bits are sampled several times a period, a hit is an access, as far as samples show.

use crate::hotness::{HISTORY_PERIODS, Hotness};
use crate::page::PageSize;

/// Hits per second by size of fast memory: straight lines between points, level beyond the last.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HitCurve {
    /// Bytes ascending, hits not descending; the first is (0, 0).
    points: Vec<(u64, f64)>,
}

impl HitCurve {
    /// Of the histories of a group's pages, as `scans` scans have filled them (more than 64 count
    /// as 64), a period of `period_s` seconds each.
    pub fn of(hotness: &Hotness, page_size: PageSize, scans: u32, period_s: f64) -> Self {
        let mut pages = [0u64; HISTORY_PERIODS + 1];
        for &idle in &hotness.idle_counts()[..hotness.pages()] {
            pages[HISTORY_PERIODS - usize::from(idle).min(HISTORY_PERIODS)] += 1;
        }
        let mut points = vec![(0, 0.0)];
        let (mut bytes, mut hits) = (0, 0.0);
        for (frequency, &pages) in pages.iter().enumerate().rev() {
            if pages > 0 {
                bytes += pages * page_size.bytes();
                let idle = (HISTORY_PERIODS - frequency) as u8;
                hits += pages as f64 * hotness.accesses_per_s(idle, scans, period_s);
                points.push((bytes, hits));
            }
        }
        HitCurve { points }
    }

    /// A curve through these points, which may come in any order; hits that fall with size are
    /// raised to the hits of smaller sizes.
    pub fn through(mut points: Vec<(u64, f64)>) -> Self {
        points.retain(|(_, hits)| hits.is_finite());
        points.sort_by_key(|p| p.0);
        let mut curve = vec![(0, 0.0)];
        for (bytes, hits) in points {
            let (last_bytes, last_hits) = curve[curve.len() - 1];
            let hits = f64::max(hits, last_hits);
            if bytes == last_bytes && curve.len() > 1 {
                curve.pop();
            }
            if bytes > 0 {
                curve.push((bytes, hits));
            }
        }
        HitCurve { points: curve }
    }

    /// The points, from (0, 0) on.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    /// Size of all pages: more fast memory brings nothing.
    pub fn footprint_bytes(&self) -> u64 {
        self.points.last().map_or(0, |p| p.0)
    }

    /// Hits per second with all memory fast.
    pub fn most(&self) -> f64 {
        self.points.last().map_or(0.0, |p| p.1)
    }

    /// Hits per second with this much fast memory.
    pub fn hits(&self, bytes: u64) -> f64 {
        let after = self.points.partition_point(|p| p.0 <= bytes);
        let Some(&(from, low)) = after.checked_sub(1).and_then(|i| self.points.get(i)) else {
            return 0.0;
        };
        match self.points.get(after) {
            None => low,
            Some(&(to, high)) => low + (high - low) * ((bytes - from) as f64 / (to - from) as f64),
        }
    }

    /// Hits over accesses with this much fast memory, 0 to 1; 1 of a group without accesses, which
    /// has no misses.
    pub fn hit_ratio(&self, bytes: u64) -> f64 {
        let most = self.most();
        if most > 0.0 { self.hits(bytes) / most } else { 1.0 }
    }

    /// The least fast memory that gives this many hits per second; all of it where none does.
    pub fn least_bytes(&self, hits: f64) -> u64 {
        if hits <= 0.0 {
            return 0;
        }
        for pair in self.points.windows(2) {
            let ((from, low), (to, high)) = (pair[0], pair[1]);
            if high >= hits {
                let part = if high > low { (hits - low) / (high - low) } else { 0.0 };
                return from + (part.clamp(0.0, 1.0) * (to - from) as f64).ceil() as u64;
            }
        }
        self.footprint_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::PageBits;
    use crate::page::Layout;
    use crate::remap::Remap;
    use crate::scan::Scan;
    use std::sync::Arc;

    #[test]
    fn the_hottest_pages_come_first_and_each_yields_its_frequency() {
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, 4));
        let mut hotness = Hotness::new();
        hotness.remap(&Remap::from_nothing(&layout));
        for period in 0..4u64 {
            let mut accessed = PageBits::new(4);
            accessed.set(1, true);
            accessed.set(2, period % 2 == 0);
            hotness.observe(&Scan::new(period, Arc::clone(&layout), accessed, PageBits::new(4)));
        }
        let curve = HitCurve::of(&hotness, PageSize::Huge, 4, 0.5);
        let huge = PageSize::Huge.bytes();
        // Page 1 in each period of half a second, page 2 in every other, the rest never.
        assert_eq!(curve.points(), [(0, 0.0), (huge, 2.0), (2 * huge, 3.0), (4 * huge, 3.0)]);
        assert_eq!(curve.hits(huge / 2), 1.0);
        assert_eq!(curve.hit_ratio(huge), 2.0 / 3.0);
        assert_eq!(curve.least_bytes(2.5), huge + huge / 2);
        assert_eq!(curve.least_bytes(9.0), 4 * huge);
        assert_eq!(curve.hits(u64::MAX), 3.0);
    }

    #[test]
    fn a_group_that_accesses_nothing_misses_nothing() {
        let curve = HitCurve::default();
        assert_eq!((curve.hits(7), curve.hit_ratio(0), curve.least_bytes(1.0)), (0.0, 1.0, 0));
    }
}

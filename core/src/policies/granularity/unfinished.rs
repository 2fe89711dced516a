//! What becomes of candidates that did not move before the next scan.
//!
//! The paper scans 4,096 pages in 100 microseconds, in which its shootdowns alone let some eight pages
//! move (migration-granularity paper, sections 3 and 5). It does not say what becomes of the others.
//! Three ways are known here:
//! - They are given up with the next scan. Of a program that streams most scans find nothing and the
//!   others hundreds of pages, so nearly all of them are.
//! - They go on while scans find nothing. Of a program that reaches its memory at random each scan
//!   finds some, so only the first pages of each scan move, wherever most of the used ones are.
//! - The next scan waits for them, as where a thread scans, moves what it found and scans again.

use serde::Deserialize;

use super::choose::Granule;
use super::scan::Tier;
use crate::bits::PageBits;

/// Periods without a move after which a scan waits no longer: what it waits for cannot move.
const PATIENCE: u32 = 64;

/// What becomes of candidates that did not move before the next scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::policies) enum Leftover {
    /// They are dropped: the next scan of their memory finds them again, if they are still used.
    #[default]
    Drop,
    /// They are planned again by scans that find nothing to promote, as used as they were found.
    Continue,
    /// The next scan of a tier waits until they have moved.
    Finish,
}

/// Which tiers are scanned in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::policies) struct Due {
    pub slow: bool,
    pub fast: bool,
}

impl Due {
    pub const BOTH: Due = Due { slow: true, fast: true };
}

/// Candidates that may not have moved yet.
#[derive(Debug, Default)]
pub(in crate::policies) struct Unfinished {
    ups: Vec<Granule>,
    downs: Vec<Granule>,
    /// Pages of `ups` that were left in the last period, and for how many periods no fewer.
    waiting: (u64, u32),
}

impl Unfinished {
    /// Which scans are due in this period, given where pages are now.
    pub fn due(&mut self, leftover: Leftover, fast: &PageBits) -> Due {
        if leftover != Leftover::Finish {
            return Due::BOTH;
        }
        self.update(fast);
        let left = self.ups.iter().map(|granule| granule.in_tier).sum();
        let periods = if left == self.waiting.0 { self.waiting.1 + 1 } else { 0 };
        self.waiting = (left, periods);
        if left == 0 || periods > PATIENCE {
            self.waiting = (0, 0);
            return Due::BOTH;
        }
        Due { slow: false, fast: self.downs.is_empty() }
    }

    /// The candidates of the scans that were due, with what is left of earlier ones.
    pub fn candidates(
        &mut self,
        leftover: Leftover,
        due: Due,
        fast: &PageBits,
        ups: Vec<Granule>,
        downs: Vec<Granule>,
    ) -> (Vec<Granule>, Vec<Granule>) {
        match leftover {
            Leftover::Drop => return (ups, downs),
            Leftover::Continue if ups.is_empty() => self.update(fast),
            Leftover::Continue => (self.ups, self.downs) = (ups, downs),
            Leftover::Finish => {
                if due.slow {
                    self.ups = ups;
                }
                if due.fast {
                    self.downs = downs;
                }
            }
        }
        (self.ups.clone(), self.downs.clone())
    }

    /// Leaves out what has moved.
    fn update(&mut self, fast: &PageBits) {
        let left = |tier: Tier<'_>, granules: &mut Vec<Granule>| {
            for granule in granules.iter_mut() {
                granule.in_tier = tier.count(granule.pages.clone());
            }
            granules.retain(|granule| granule.in_tier > 0);
        };
        left(Tier::slow(fast), &mut self.ups);
        left(Tier::fast(fast), &mut self.downs);
    }

    /// Pages have other numbers now.
    pub fn forget(&mut self) {
        *self = Unfinished::default();
    }

    /// Memory of it, in bytes.
    pub fn size_bytes(&self) -> usize {
        (self.ups.capacity() + self.downs.capacity()) * size_of::<Granule>()
    }
}

//! From the result of the scans to a plan: which granules are promoted and which demoted.
//!
//! A granule is what one operation moves: the pages of one tier in one aligned region. Those with
//! an accessed page in slow memory may go up, those with a page in fast memory that was not
//! accessed may go down (migration-granularity paper, section 5). Where the paper is silent:
//! - The most used granules go up first and the least used go down first; of equals those with
//!   the smallest addresses.
//! - Granules trade places only when the one that goes up has the larger share of accessed pages,
//!   unless `Trade::Any` is asked for. Of single pages that is always so. With `Trade::Any` a region
//!   in fast memory of which a 64th is idle makes way for one with a single accessed page, which is
//!   what the paper's words say of pages: they are candidates by their own accessed bits.
//! - A granule goes as a whole or not at all, and whole ones make way for it: an operation migrates
//!   a region (section 3). So a region that is larger than what made way for it waits, room that is
//!   left over stays free for the next one, and fast memory is not cut into parts of regions.
//! - Pages that exceed the budget leave even when the scan found too few: those that were not
//!   accessed before those that were.

use std::ops::Range;

use serde::Deserialize;

use super::scan::Tier;
use crate::bits::PageBits;
use crate::builder::PlanBuilder;
use crate::plan::Plan;
use crate::scan::{Budget, Scan};
use crate::select::MoveLimits;

/// Which granules trade places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::policies) enum Trade {
    /// One with an accessed page for one that a smaller share of was accessed.
    #[default]
    MoreUsed,
    /// One with an accessed page for one with idle pages, a 64th of it at least.
    Any,
}

/// Steps of the share of accessed pages: rounded up, so that 0 means none.
pub(in crate::policies) const SHARES: u64 = 64;

/// The pages of one tier in one region.
#[derive(Debug, Clone)]
pub(in crate::policies) struct Granule {
    /// The region; what of it is in the other tier does not count.
    pub pages: Range<usize>,
    /// Its pages in the tier.
    pub in_tier: u64,
    /// Accessed pages of those scanned, in 64ths.
    pub share: u8,
    /// Pages that are to move.
    take: u64,
}

impl Granule {
    /// `accessed` of the `scanned` pages were accessed.
    pub fn new(pages: Range<usize>, in_tier: u64, accessed: u64, scanned: u64) -> Self {
        let share = (accessed * SHARES).div_ceil(scanned.max(1)) as u8;
        Granule { pages, in_tier, share, take: 0 }
    }
}

/// Granules by their share, to be taken from one end.
struct Queue<'a> {
    granules: &'a mut [Granule],
    order: std::vec::IntoIter<usize>,
    now: Option<usize>,
}

impl<'a> Queue<'a> {
    fn new(granules: &'a mut [Granule], hottest_first: bool) -> Self {
        let mut by_share = vec![Vec::new(); SHARES as usize + 1];
        for (number, granule) in granules.iter().enumerate() {
            by_share[usize::from(granule.share)].push(number);
        }
        if hottest_first {
            by_share.reverse();
        }
        let mut order = by_share.concat().into_iter();
        let now = order.next();
        Queue { granules, order, now }
    }

    /// The next granule that has pages left: its share, and how many.
    fn next(&mut self) -> Option<(u8, u64)> {
        loop {
            let granule = &self.granules[self.now?];
            let left = granule.in_tier - granule.take;
            if left > 0 {
                return Some((granule.share, left));
            }
            self.now = self.order.next();
        }
    }

    /// Pages of the next whole granules that have `pages` at least, if there are such and `may`
    /// accepts the share of each.
    fn whole(&self, pages: u64, may: impl Fn(u8) -> bool) -> Option<u64> {
        let left = |number: usize| {
            let granule = &self.granules[number];
            (granule.share, granule.in_tier - granule.take)
        };
        let mut sum = 0;
        let mut coming = self.now.iter().chain(self.order.as_slice()).map(|&n| left(n));
        while sum < pages {
            let (share, left) = coming.next()?;
            if left > 0 && !may(share) {
                return None;
            }
            sum += left;
        }
        Some(sum)
    }

    /// Takes this many pages, granule by granule; returns how many there were.
    fn take(&mut self, pages: u64) -> u64 {
        let mut taken = 0;
        while taken < pages {
            let Some((_, left)) = self.next() else { break };
            let step = left.min(pages - taken);
            if let Some(now) = self.now {
                self.granules[now].take += step;
            }
            taken += step;
        }
        taken
    }
}

/// The plan that moves these granules as far as the budget goes. Both lists are ascending;
/// `accessed` has the accessed bits of all pages.
pub(in crate::policies) fn plan(
    scan: &Scan,
    budget: &Budget,
    resident: u64,
    accessed: &PageBits,
    mut ups: Vec<Granule>,
    mut downs: Vec<Granule>,
    trade: Trade,
) -> Plan {
    let pages = |granules: &[Granule]| granules.iter().map(|g| g.in_tier).sum::<u64>();
    let (risers, yielders) = (pages(&ups), pages(&downs));
    let due = resident.saturating_sub(budget.fast_pages).min(budget.moved_pages);
    let allowed = MoveLimits::new(budget, resident, risers, yielders.max(due));
    let mut builder = PlanBuilder::new(&scan.layout);
    let (mut rise, mut sink) = (Queue::new(&mut ups, true), Queue::new(&mut downs, false));
    let missing = allowed.demotions - sink.take(allowed.demotions);
    let mut room = budget.fast_pages.saturating_sub(resident);
    let mut may_move = budget.moved_pages - allowed.demotions;
    while let Some((share, rising)) = rise.next() {
        let yields = |down: u8| trade == Trade::Any || share > down;
        let Some(sinking) = sink.whole(rising.saturating_sub(room), yields) else { break };
        if rising + sinking > may_move {
            break;
        }
        rise.take(rising);
        sink.take(sinking);
        may_move -= rising + sinking;
        room = room + sinking - rising;
    }
    let taken = |tier: Tier<'_>, granules: &[Granule]| {
        let mut stretches = Vec::new();
        for granule in granules.iter().filter(|g| g.take > 0) {
            let mut left = granule.take as usize;
            tier.stretches(granule.pages.clone(), |stretch| {
                let end = stretch.end.min(stretch.start + left);
                left -= end - stretch.start;
                if end > stretch.start {
                    stretches.push(stretch.start..end);
                }
            });
        }
        stretches
    };
    taken(Tier::slow(&scan.fast), &ups).into_iter().for_each(|pages| builder.promote(pages));
    let mut down = taken(Tier::fast(&scan.fast), &downs);
    if missing > 0 {
        add_others(&scan.fast, accessed, missing, &mut down);
    }
    down.into_iter().for_each(|pages| builder.demote(pages));
    builder.finish()
}

/// Adds `missing` more pages of fast memory to an ascending list, those that were not accessed
/// first.
fn add_others(
    fast: &PageBits,
    accessed: &PageBits,
    mut missing: u64,
    down: &mut Vec<Range<usize>>,
) {
    let mut others = fast.clone();
    down.iter().for_each(|pages| others.set_range(pages.clone(), false));
    for flip in [!0, 0] {
        let words = others.words().iter().zip(accessed.words());
        let bits = words.map(|(&other, &accessed)| other & (accessed ^ flip)).collect();
        let bits = PageBits::from_words(bits, fast.len());
        Tier::fast(&bits).stretches(0..fast.len(), |pages| {
            let end = pages.end.min(pages.start + missing as usize);
            missing -= (end - pages.start) as u64;
            if end > pages.start {
                down.push(pages.start..end);
            }
        });
    }
    // Two ascending lists behind the first.
    down.sort_unstable_by_key(|pages| pages.start);
}

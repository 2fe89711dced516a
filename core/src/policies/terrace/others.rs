//! Pages that changed their tier without a move of the policy, and those that moved as it planned.
//!
//! The kernel moves pages, too, and the tier of a range of which only a part is allocated changes as
//! the program touches the rest of it. The policy has neither gained nor lost by that: it would have
//! happened under any placement, so the initial one and the shadow placements change likewise. If they
//! kept the old tier, the policy would be charged with what others did, and would move nothing more.

use crate::bits::PageBits;
use crate::remap::Remap;

/// The placement at the scan before, and what the policy planned to move then.
#[derive(Debug, Default)]
pub struct Others {
    fast: PageBits,
    /// One bit per page that was planned to move, up or down.
    planned: PageBits,
}

impl Others {
    /// Applies a change of layout; `fast` has the tiers of fresh pages.
    pub fn remap(&mut self, remap: &Remap, fast: &PageBits) {
        self.fast = remap.bits_or(&self.fast, fast);
        self.planned = remap.bits_or(&self.planned, &PageBits::new(fast.len()));
    }

    /// Gives pages that others have moved since the scan before their new tier in these placements,
    /// which have one bit for each page as `fast` has.
    pub fn follow(&self, fast: &PageBits, placements: [&mut PageBits; 4]) {
        for placement in placements {
            let before = self.fast.words().iter().zip(self.planned.words());
            let words = placement.words_mut().iter_mut().zip(fast.words()).zip(before);
            for ((place, now), (before, planned)) in words {
                let by_others = (before ^ now) & !planned;
                *place = (*place & !by_others) | (now & by_others);
            }
        }
    }

    /// How many pairs of pages have moved as planned: the larger number of those that went up and
    /// those that went down.
    pub fn moved_pairs(&self, fast: &PageBits) -> u64 {
        let ones = |word: u64| u64::from(word.count_ones());
        let planned = self.fast.words().iter().zip(self.planned.words()).zip(fast.words());
        let (ups, downs) = planned.fold((0u64, 0u64), |(ups, downs), ((before, planned), now)| {
            let moved = (before ^ now) & planned;
            (ups + ones(moved & now), downs + ones(moved & before))
        });
        ups.max(downs)
    }

    /// Remembers the placement of a scan and the moves that are planned from it.
    pub fn plans(&mut self, fast: &PageBits, ups: &PageBits, downs: &PageBits) {
        self.fast.clone_from(fast);
        self.planned.clone_from(ups);
        self.planned.or_with(downs);
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        self.fast.size_bytes() + self.planned.size_bytes()
    }
}

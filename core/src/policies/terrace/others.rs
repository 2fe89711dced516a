//! Pages that changed their tier without a move of the policy, and those that moved as it planned.
//!
//! The kernel moves pages, too, and the tier of a range of which only a part is allocated changes as
//! the program touches the rest of it. The policy has neither gained nor lost by that: it would have
//! happened under any placement, so the initial one and the shadow placements change likewise. If they
//! kept the old tier, the policy would be charged with what others did, and would move nothing more.
//! What the kernel demotes to make room for a promotion of the policy looks the same and is not
//! charged either; budgets leave it room, so that it seldom has to.

use crate::bits::PageBits;
use crate::remap::Remap;

/// The placement at the scan before, and what the policy planned to move then.
#[derive(Debug, Default)]
pub struct Others {
    fast: PageBits,
    /// One bit per page that was planned to move, up or down.
    planned: PageBits,
    /// The same of the plan before, for those that had not moved then: a move may take that long.
    late: PageBits,
}

impl Others {
    /// Applies a change of layout; `fast` has the tiers of fresh pages.
    pub fn remap(&mut self, remap: &Remap, fast: &PageBits) {
        self.fast = remap.bits_or(&self.fast, fast);
        let none = PageBits::new(fast.len());
        self.planned = remap.bits_or(&self.planned, &none);
        self.late = remap.bits_or(&self.late, &none);
    }

    /// Gives pages that others have moved since the scan before their new tier in these placements,
    /// which have one bit for each page as `fast` has.
    pub fn follow(&self, fast: &PageBits, placements: [&mut PageBits; 4]) {
        for placement in placements {
            for (place, (before, planned, now)) in
                placement.words_mut().iter_mut().zip(self.since(fast))
            {
                let by_others = (before ^ now) & !planned;
                *place = (*place & !by_others) | (now & by_others);
            }
        }
    }

    /// Words of the placement at the scan before, of what was planned, and of the placement now.
    fn since<'a>(&'a self, fast: &'a PageBits) -> impl Iterator<Item = (u64, u64, u64)> + 'a {
        let planned = self.planned.words().iter().zip(self.late.words());
        let words = self.fast.words().iter().zip(planned).zip(fast.words());
        words.map(|((&before, (planned, late)), &now)| (before, planned | late, now))
    }

    /// How many pairs of pages have moved as planned: the larger number of those that went up and
    /// those that went down.
    pub fn moved_pairs(&self, fast: &PageBits) -> u64 {
        let ones = |word: u64| u64::from(word.count_ones());
        let (ups, downs) = self.since(fast).fold((0, 0), |(ups, downs), (before, planned, now)| {
            let moved = (before ^ now) & planned;
            (ups + ones(moved & now), downs + ones(moved & before))
        });
        ups.max(downs)
    }

    /// Remembers the placement of a scan and the moves that are planned from it.
    pub fn plans(&mut self, fast: &PageBits, ups: &PageBits, downs: &PageBits) {
        self.late.clone_from(&self.planned);
        let moved = self.fast.words().iter().zip(fast.words());
        for (late, (before, now)) in self.late.words_mut().iter_mut().zip(moved) {
            *late &= !(before ^ now);
        }
        self.fast.clone_from(fast);
        self.planned.clone_from(ups);
        self.planned.or_with(downs);
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        self.fast.size_bytes() + self.planned.size_bytes() + self.late.size_bytes()
    }
}

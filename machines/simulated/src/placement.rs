//! The placement of one group's pages: allocation on first touch, and freeing.
//!
//! A new page is placed by the group's [`Allocation`] and never causes a migration (nimble paper,
//! section 3.2). Where its tier is full the page is placed in the other, beyond the group's budget
//! if need be: Linux does not kill a program while there is memory.

use std::ops::Range;
use std::sync::Arc;

use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize};
use terrace_core::policy::Allocation;
use terrace_core::remap::Remap;

use crate::tiers::Tiers;

/// The tier of each page of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The group's pages.
    pub layout: Arc<Layout>,
    /// One bit per page: it is in the fast tier.
    pub fast: PageBits,
}

/// Neither tier has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfMemory {
    /// Pages that could not be placed.
    pub(crate) pages: u64,
}

impl Placement {
    pub(crate) fn empty(page_size: PageSize) -> Self {
        Placement { layout: Arc::new(Layout::contiguous(page_size, 0)), fast: PageBits::new(0) }
    }

    /// Pages in the fast tier.
    pub fn fast_pages(&self) -> u64 {
        self.fast.count() as u64
    }

    /// Pages in the slow tier.
    pub fn slow_pages(&self) -> u64 {
        self.layout.pages() as u64 - self.fast_pages()
    }

    /// Takes room in the tiers for the pages.
    pub(crate) fn occupy(&self, tiers: &mut Tiers) -> Result<(), OutOfMemory> {
        let page_size = self.layout.page_size();
        let (fast, slow) = (self.fast_pages(), self.slow_pages());
        let missing = fast.saturating_sub(tiers.fast.free_pages(page_size))
            + slow.saturating_sub(tiers.slow.free_pages(page_size));
        if missing > 0 {
            return Err(OutOfMemory { pages: missing });
        }
        tiers.fast.take(fast, page_size);
        tiers.slow.take(slow, page_size);
        Ok(())
    }

    /// Frees every page.
    pub(crate) fn vacate(&mut self, tiers: &mut Tiers) {
        let page_size = self.layout.page_size();
        tiers.fast.give_back(self.fast_pages(), page_size);
        tiers.slow.give_back(self.slow_pages(), page_size);
        *self = Placement::empty(page_size);
    }

    /// Switches to the next layout: frees the pages that are gone, then allocates the new ones, in
    /// the order of touch where that is known. Without memory for the new pages, only the freeing
    /// takes effect.
    pub(crate) fn follow(
        &mut self,
        layout: &Arc<Layout>,
        allocation: Allocation,
        budget_pages: u64,
        order: Option<&[usize]>,
        tiers: &mut Tiers,
    ) -> Result<(), OutOfMemory> {
        if Arc::ptr_eq(&self.layout, layout) {
            return Ok(());
        }
        if self.layout == *layout {
            self.layout = layout.clone();
            return Ok(());
        }
        let page_size = layout.page_size();
        let remap = Remap::between(&self.layout, layout);
        let mut fast = remap.bits(&self.fast);
        let kept: usize = remap.runs().iter().map(|r| r.pages).sum();
        let kept_fast = fast.count();
        let gone_fast = self.fast_pages() - kept_fast as u64;
        let gone = (self.layout.pages() - kept) as u64;
        tiers.fast.give_back(gone_fast, page_size);
        tiers.slow.give_back(gone - gone_fast, page_size);

        let fresh = Fresh {
            pages: (layout.pages() - kept) as u64,
            budget: budget_pages.saturating_sub(kept_fast as u64),
            fast_room: tiers.fast.free_pages(page_size),
            slow_room: tiers.slow.free_pages(page_size),
        };
        let into_fast = match fresh.fast_share() {
            Ok(pages) => pages,
            Err(e) => {
                // Pages that have gone are freed; the others keep their place.
                self.keep(&remap);
                return Err(e);
            }
        };
        match allocation {
            Allocation::FastFirst => match order {
                None => fill(&mut fast, remap.fresh(), into_fast),
                Some(order) => fill_in_order(&mut fast, &remap, order, into_fast),
            },
            Allocation::Interleave => spread(&mut fast, remap.fresh(), into_fast, fresh.pages),
        }
        tiers.fast.take(into_fast, page_size);
        tiers.slow.take(fresh.pages - into_fast, page_size);
        *self = Placement { layout: layout.clone(), fast };
        Ok(())
    }

    /// Drops the pages that the remap does not map to the new layout.
    fn keep(&mut self, remap: &Remap) {
        let kept = remap.runs().iter().flat_map(|r| r.old..r.old + r.pages);
        let extents = self.layout.ranges(kept).into_iter().map(|r| terrace_core::page::Extent {
            space: r.space,
            start: r.start,
            pages: r.pages(self.layout.page_size()),
        });
        let layout = Layout::new(self.layout.page_size(), extents.collect())
            .expect("ranges of a layout are sorted and apart");
        let fast = Remap::between(&self.layout, &layout).bits(&self.fast);
        *self = Placement { layout: Arc::new(layout), fast };
    }
}

/// Pages to be placed.
struct Fresh {
    pages: u64,
    /// The rest of the group's budget of fast memory.
    budget: u64,
    fast_room: u64,
    slow_room: u64,
}

impl Fresh {
    /// Number of fresh pages for the fast tier: as many as budget and room allow, and more where
    /// the slow tier is full.
    fn fast_share(&self) -> Result<u64, OutOfMemory> {
        let wanted = self.pages.min(self.budget);
        let needed = self.pages.saturating_sub(self.slow_room);
        let pages = wanted.max(needed).min(self.fast_room);
        match self.pages - pages {
            rest if rest > self.slow_room => Err(OutOfMemory { pages: rest - self.slow_room }),
            _ => Ok(pages),
        }
    }
}

/// The first `count` fresh pages are fast.
fn fill(fast: &mut PageBits, fresh: impl Iterator<Item = Range<usize>>, mut count: u64) {
    for range in fresh {
        let here = count.min(range.len() as u64);
        fast.set_range(range.start..range.start + here as usize, true);
        count -= here;
    }
}

/// The first `count` fresh pages in this order are fast, then others by address.
fn fill_in_order(fast: &mut PageBits, remap: &Remap, order: &[usize], mut count: u64) {
    let mut fresh = PageBits::new(remap.new_pages());
    remap.fresh().for_each(|range| fresh.set_range(range, true));
    let by_address = remap.fresh().flatten();
    for page in order.iter().copied().chain(by_address) {
        if count == 0 {
            return;
        }
        if fresh.get(page) && !fast.get(page) {
            fast.set(page, true);
            count -= 1;
        }
    }
}

/// Makes `count` of the `total` fresh pages fast, as evenly as possible.
fn spread(fast: &mut PageBits, fresh: impl Iterator<Item = Range<usize>>, count: u64, total: u64) {
    let before = |page: u64| u128::from(page) * u128::from(count) / u128::from(total);
    for (number, page) in fresh.flatten().enumerate() {
        let number = number as u64;
        if before(number + 1) > before(number) {
            fast.set(page, true);
        }
    }
}

//! Per-page data across a change of a group's layout: data moves with its page to the new index,
//! pages that were not there before start fresh.
//!
//! The two sorted lists of extents are merged once, in time linear in their number; the data is
//! then moved run by run, in time linear in the pages.

use std::ops::Range;
use std::sync::Arc;

use crate::bits::PageBits;
use crate::page::Layout;

/// Pages that both layouts have, contiguous in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Index of the first page in the old layout.
    pub old: usize,
    /// Index of the same page in the new layout.
    pub new: usize,
    /// Number of pages, not 0.
    pub pages: usize,
}

/// How the pages of one layout map to those of the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remap {
    runs: Vec<Run>,
    old_pages: usize,
    new_pages: usize,
}

impl Remap {
    /// From no layout at all: every page is fresh.
    pub fn from_nothing(new: &Layout) -> Self {
        Remap { runs: Vec::new(), old_pages: 0, new_pages: new.pages() }
    }

    /// From one layout to the next, by address. Layouts of different page sizes share nothing.
    pub fn between(old: &Layout, new: &Layout) -> Self {
        let mut remap = Remap { runs: Vec::new(), old_pages: old.pages(), new_pages: new.pages() };
        if old.page_size() != new.page_size() {
            return remap;
        }
        let size = new.page_size().bytes();
        let (mut i, mut j) = (0, 0);
        while let (Some(a), Some(b)) = (old.extents().get(i), new.extents().get(j)) {
            let (a_end, b_end) = (a.start + a.pages * size, b.start + b.pages * size);
            let (start, end) = (a.start.max(b.start), a_end.min(b_end));
            if a.space == b.space && start < end {
                remap.push(Run {
                    old: old.first_index(i) + ((start - a.start) / size) as usize,
                    new: new.first_index(j) + ((start - b.start) / size) as usize,
                    pages: ((end - start) / size) as usize,
                });
            }
            if (a.space, a_end) <= (b.space, b_end) {
                i += 1;
            } else {
                j += 1;
            }
        }
        remap
    }

    fn push(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last) if last.old + last.pages == run.old && last.new + last.pages == run.new => {
                last.pages += run.pages;
            }
            _ => self.runs.push(run),
        }
    }

    /// Whether every page keeps its index and none came or went: only the way in which the
    /// extents are cut may differ.
    pub fn is_identity(&self) -> bool {
        let kept = match self.runs.as_slice() {
            [] => 0,
            [run] => run.pages,
            _ => return false,
        };
        self.old_pages == self.new_pages && kept == self.new_pages
    }

    /// Pages of the new layout.
    pub fn new_pages(&self) -> usize {
        self.new_pages
    }

    /// Pages of the old layout.
    pub fn old_pages(&self) -> usize {
        self.old_pages
    }

    /// The pages that both have, ascending in both.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Indices in the new layout of the pages that the old one did not have, ascending.
    pub fn fresh(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let ends = self.runs.iter().map(|r| r.new + r.pages);
        let starts = self.runs.iter().map(|r| r.new);
        std::iter::once(0)
            .chain(ends)
            .zip(starts.chain(std::iter::once(self.new_pages)))
            .filter(|(start, end)| start < end)
            .map(|(start, end)| start..end)
    }

    /// The old pages' bits at their new indices; 0 for fresh pages.
    pub fn bits(&self, old: &PageBits) -> PageBits {
        let mut new = PageBits::new(self.new_pages);
        for run in &self.runs {
            new.copy_range(run.new, old, run.old..run.old + run.pages);
        }
        new
    }

    /// As [`Remap::bits`], but fresh pages take the bit that `fresh` (of the new layout) has.
    pub fn bits_or(&self, old: &PageBits, fresh: &PageBits) -> PageBits {
        let mut new = self.bits(old);
        for range in self.fresh() {
            new.copy_range(range.start, fresh, range);
        }
        new
    }

    /// The old pages' values at their new indices in a vector of `length` (at least the number
    /// of new pages); `fresh` everywhere else.
    pub fn values<T: Copy>(&self, old: &[T], fresh: T, length: usize) -> Vec<T> {
        let mut new = vec![fresh; length];
        for run in &self.runs {
            new[run.new..run.new + run.pages].copy_from_slice(&old[run.old..run.old + run.pages]);
        }
        new
    }
}

/// Remembers the layout of the scan before and reports a change.
#[derive(Debug, Clone, Default)]
pub struct LayoutFollower {
    layout: Option<Arc<Layout>>,
}

impl LayoutFollower {
    /// Compares with the layout of the next scan. `None` when every page kept its index.
    pub fn follow(&mut self, layout: &Arc<Layout>) -> Option<Remap> {
        let remap = match &self.layout {
            None => Some(Remap::from_nothing(layout)),
            Some(old) if Arc::ptr_eq(old, layout) => return None,
            Some(old) if old == layout => None,
            Some(old) => Some(Remap::between(old, layout)).filter(|c| !c.is_identity()),
        };
        self.layout = Some(Arc::clone(layout));
        remap
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Extent, PageSize, SpaceId};
    use proptest::prelude::*;

    fn layout(extents: &[(u32, u64, u64)]) -> Layout {
        let extents = extents
            .iter()
            .map(|&(space, page, pages)| Extent {
                space: SpaceId(space),
                start: page * 4096,
                pages,
            })
            .collect();
        Layout::new(PageSize::Base, extents).unwrap()
    }

    #[test]
    fn extents_cut_differently_are_the_same_pages() {
        let whole = Arc::new(layout(&[(1, 0, 10)]));
        let cut = Arc::new(layout(&[(1, 0, 3), (1, 3, 7)]));
        assert!(Remap::between(&whole, &cut).is_identity());
        let mut follower = LayoutFollower::default();
        assert!(follower.follow(&whole).is_some());
        assert!(follower.follow(&cut).is_none());
        assert!(follower.follow(&whole).is_none());
    }

    #[test]
    fn another_page_size_or_the_last_page_gone_is_a_change() {
        let base = layout(&[(0, 0, 10)]);
        let huge = Layout::contiguous(PageSize::Huge, 10);
        assert_eq!(Remap::between(&base, &huge).runs(), []);
        assert!(!Remap::between(&base, &layout(&[])).is_identity());
        assert!(!Remap::between(&base, &layout(&[(0, 1, 10)])).is_identity());
        assert!(Remap::between(&layout(&[]), &layout(&[])).is_identity());
    }

    /// A layout with the pages whose bit is set, cut wherever `cuts` says.
    fn of_pages(present: &[bool], cuts: &[bool]) -> Layout {
        let mut extents: Vec<(u32, u64, u64)> = Vec::new();
        for (page, _) in present.iter().enumerate().filter(|(_, here)| **here) {
            let (space, page) = (page as u32 / 32, page as u64);
            match extents.last_mut() {
                Some(e) if e.0 == space && e.1 + e.2 == page && !cuts[page as usize] => e.2 += 1,
                _ => extents.push((space, page, 1)),
            }
        }
        layout(&extents)
    }

    proptest! {
        #[test]
        fn every_page_keeps_what_it_had(
            before in prop::collection::vec(any::<bool>(), 100),
            after in prop::collection::vec(any::<bool>(), 100),
            cuts in prop::collection::vec(any::<bool>(), 200),
        ) {
            let old = of_pages(&before, &cuts[..100]);
            let new = of_pages(&after, &cuts[100..]);
            let remap = Remap::between(&old, &new);
            let names: Vec<_> = (0..old.pages()).map(|i| Some(old.address(i))).collect();
            let remapped = remap.values(&names, None, new.pages());
            let mut fresh = vec![false; new.pages()];
            for range in remap.fresh() {
                fresh[range].fill(true);
            }
            for (index, name) in remapped.iter().enumerate() {
                let (space, address) = new.address(index);
                let was = old.index(space, address).map(|_| (space, address));
                prop_assert_eq!(*name, was);
                prop_assert_eq!(fresh[index], was.is_none());
            }
            let odd: PageBits = (0..old.pages()).map(|i| i % 2 == 1).collect();
            let ones = PageBits::ones(new.pages());
            let bits = remap.bits_or(&odd, &ones);
            for index in 0..new.pages() {
                let (space, address) = new.address(index);
                prop_assert_eq!(
                    bits.get(index),
                    old.index(space, address).is_none_or(|i| i % 2 == 1)
                );
            }
        }
    }
}

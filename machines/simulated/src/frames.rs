//! The page frame of each page of a group, for groups whose policy needs it: policies that scan
//! physical memory.
//!
//! Interval simulation counts memory by tier and needs no frames, so frames are kept apart from the
//! placement: after each change of the placement, pages that left a tier free their frames, then
//! pages that arrived take frames, in address order. The frame that was freed last is taken first,
//! as from Linux's per-processor lists; without any, the next that was never used. So memory that
//! is touched in order is in order, and migration scatters it.

use std::sync::Arc;

use terrace_core::page::PageSize;
use terrace_core::remap::Remap;

use crate::placement::Placement;

/// First frames of fast and slow memory; huge frames are apart from base frames.
const FIRST: [[u64; 2]; 2] = [[0, 1 << 40], [1 << 38, 1 << 40 | 1 << 38]];

/// The frames of one tier in one size.
#[derive(Debug, Clone, Default)]
struct Pool {
    used: u64,
    free: Vec<u64>,
}

/// The frames of the machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frames {
    pools: [[Pool; 2]; 2],
}

impl Frames {
    fn size(page_size: PageSize) -> usize {
        usize::from(page_size == PageSize::Huge)
    }

    fn take(&mut self, page_size: PageSize, fast: bool) -> u64 {
        let (size, tier) = (Self::size(page_size), usize::from(!fast));
        let pool = &mut self.pools[size][tier];
        pool.free.pop().unwrap_or_else(|| {
            pool.used += 1;
            FIRST[size][tier] + pool.used - 1
        })
    }

    fn give_back(&mut self, page_size: PageSize, fast: bool, frame: u64) {
        self.pools[Self::size(page_size)][usize::from(!fast)].free.push(frame);
    }
}

/// The frames of one group's pages, as of a placement.
#[derive(Debug, Clone)]
pub(crate) struct GroupFrames {
    placement: Placement,
    frames: Arc<[u64]>,
}

impl GroupFrames {
    /// The frames of a group without pages.
    pub(crate) fn new(page_size: PageSize) -> Self {
        GroupFrames { placement: Placement::empty(page_size), frames: Arc::new([]) }
    }

    /// Switches to the current placement; returns the frame of each page.
    pub(crate) fn follow(&mut self, now: &Placement, machine: &mut Frames) -> Arc<[u64]> {
        if self.placement == *now {
            return self.frames.clone();
        }
        let before = &self.placement;
        let page_size = now.layout.page_size();
        let remap = Remap::between(&before.layout, &now.layout);
        let mut frames = vec![None; now.layout.pages()];
        let mut gone = 0;
        let mut give_back = |pages: std::ops::Range<usize>| {
            for page in pages {
                machine.give_back(page_size, before.fast.get(page), self.frames[page]);
            }
        };
        for run in remap.runs() {
            give_back(gone..run.old);
            gone = run.old + run.pages;
            for nth in 0..run.pages {
                let (old, new) = (run.old + nth, run.new + nth);
                if before.fast.get(old) == now.fast.get(new) {
                    frames[new] = Some(self.frames[old]);
                } else {
                    give_back(old..old + 1);
                }
            }
        }
        give_back(gone..before.layout.pages());
        self.frames = frames
            .into_iter()
            .enumerate()
            .map(|(page, kept)| kept.unwrap_or_else(|| machine.take(page_size, now.fast.get(page))))
            .collect();
        self.placement = now.clone();
        self.frames.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::bits::PageBits;
    use terrace_core::page::{Extent, Layout, SpaceId};

    fn placement(first: u64, fast: &str) -> Placement {
        let extent = Extent { space: SpaceId(1), start: first << 12, pages: fast.len() as u64 };
        let extents = Some(extent).filter(|e| e.pages > 0).into_iter().collect();
        let layout = Arc::new(Layout::new(PageSize::Base, extents).unwrap());
        let fast: PageBits = fast.chars().map(|c| c == '1').collect();
        Placement { layout, fast }
    }

    #[test]
    fn memory_is_in_order_until_it_moves() {
        const SLOW: u64 = 1 << 40;
        let (mut machine, mut group) = (Frames::default(), GroupFrames::new(PageSize::Base));
        let mut follow = |p: &Placement| group.follow(p, &mut machine).to_vec();
        let first = placement(8, "11000");
        assert_eq!(follow(&first), [0, 1, SLOW, SLOW + 1, SLOW + 2]);
        assert_eq!(follow(&first), [0, 1, SLOW, SLOW + 1, SLOW + 2]);
        // Page 0 and page 4 are exchanged.
        assert_eq!(follow(&placement(8, "01001")), [SLOW + 2, 1, SLOW, SLOW + 1, 0]);
        // The first two pages go, two come at the end: the frames freed last are taken first.
        assert_eq!(follow(&placement(10, "00110")), [SLOW, SLOW + 1, 0, 1, SLOW + 2]);
        assert!(follow(&placement(10, "")).is_empty());
        let again = follow(&placement(20, "1111"));
        assert_eq!(again, [1, 0, 2, 3], "frames that were free, then new ones");
    }

    #[test]
    fn groups_share_the_frames_and_never_have_the_same_one() {
        let mut machine = Frames::default();
        let mut groups = [GroupFrames::new(PageSize::Base), GroupFrames::new(PageSize::Base)];
        let mut all = Vec::new();
        for (group, fast) in groups.iter_mut().zip(["1010", "1100"]) {
            all.extend(group.follow(&placement(0, fast), &mut machine).iter().copied());
        }
        let sorted = std::collections::BTreeSet::from_iter(all.iter().copied());
        assert_eq!(sorted.len(), all.len());
    }
}

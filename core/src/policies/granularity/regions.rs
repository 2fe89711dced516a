//! Regions of virtual memory as runs of page indices. A layout numbers the pages of an address
//! space in the order of their addresses, so the pages of an aligned region are side by side in
//! index, whatever gaps are between them and however the extents are cut.

use std::ops::Range;

use crate::page::{Layout, SpaceId};

/// Pages side by side in virtual memory.
#[derive(Debug, Clone, Copy)]
struct Run {
    first: usize,
    pages: usize,
    start: u64,
}

/// The pages of one address space.
#[derive(Debug, Clone)]
pub(super) struct Space {
    pub id: SpaceId,
    pub pages: Range<usize>,
    page_bytes: u64,
    runs: Vec<Run>,
}

/// The address spaces of a layout, in order.
pub(super) fn spaces(layout: &Layout) -> Vec<Space> {
    let page_bytes = layout.page_size().bytes();
    let mut spaces: Vec<Space> = Vec::new();
    for (number, extent) in layout.extents().iter().enumerate() {
        let (first, pages) = (layout.first_index(number), extent.pages as usize);
        if spaces.last().is_none_or(|s| s.id != extent.space) {
            let pages = first..first;
            spaces.push(Space { id: extent.space, pages, page_bytes, runs: Vec::new() });
        }
        let Some(space) = spaces.last_mut() else { continue };
        space.pages.end = first + pages;
        match space.runs.last_mut() {
            Some(run) if run.start + run.pages as u64 * page_bytes == extent.start => {
                run.pages += pages;
            }
            _ => space.runs.push(Run { first, pages, start: extent.start }),
        }
    }
    spaces
}

impl Space {
    /// The first page at this address or above it; the end of the space when there is none.
    pub fn at_or_above(&self, address: u64) -> usize {
        let after = self.runs.partition_point(|run| run.start <= address);
        let Some(run) = after.checked_sub(1).map(|r| &self.runs[r]) else {
            return self.pages.start;
        };
        let pages = (address - run.start).div_ceil(self.page_bytes);
        run.first + (pages as usize).min(run.pages)
    }

    /// The address of a page of this space.
    pub fn address(&self, page: usize) -> u64 {
        let run = &self.runs[self.runs.partition_point(|run| run.first <= page) - 1];
        run.start + (page - run.first) as u64 * self.page_bytes
    }

    /// Size of its pages.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// The aligned region of this size that holds a page: its number, and its pages.
    pub fn region(&self, page: usize, size_bytes: u64) -> (u64, Range<usize>) {
        let number = self.address(page) / size_bytes;
        let start = number * size_bytes;
        let end = start.checked_add(size_bytes).map_or(self.pages.end, |end| self.at_or_above(end));
        (number, self.at_or_above(start)..end)
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        size_of::<Space>() + self.runs.capacity() * size_of::<Run>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Extent, PageSize};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_region_has_the_pages_that_its_addresses_say(
            present in prop::collection::vec(any::<bool>(), 1..120),
            cuts in prop::collection::vec(any::<bool>(), 120),
            region_pages in 1u64..20,
        ) {
            let mut extents: Vec<Extent> = Vec::new();
            for (page, _) in present.iter().enumerate().filter(|(_, here)| **here) {
                let (space, page, cut) = (SpaceId(page as u32 / 70), page as u64, cuts[page]);
                match extents.last_mut() {
                    Some(e) if e.space == space && e.start / 4096 + e.pages == page && !cut => {
                        e.pages += 1;
                    }
                    _ => extents.push(Extent { space, start: page * 4096, pages: 1 }),
                }
            }
            let layout = Layout::new(PageSize::Base, extents).unwrap();
            let mut seen = 0;
            for space in spaces(&layout) {
                prop_assert_eq!(space.pages.start, seen);
                seen = space.pages.end;
                for page in space.pages.clone() {
                    let (id, address) = layout.address(page);
                    prop_assert_eq!((id, address), (space.id, space.address(page)));
                    prop_assert_eq!(space.at_or_above(address), page);
                    let (number, pages) = space.region(page, region_pages * 4096);
                    let same = |p: &usize| {
                        layout.address(*p).1 / (region_pages * 4096) == number
                    };
                    let expected: Vec<_> = space.pages.clone().filter(same).collect();
                    prop_assert!(expected.contains(&page));
                    prop_assert_eq!(pages.collect::<Vec<_>>(), expected);
                }
            }
            prop_assert_eq!(seen, layout.pages());
        }
    }
}

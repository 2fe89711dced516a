//! Pages and where they are in virtual memory: page sizes, ranges, and the layout that gives every
//! page of a group a dense index.

use serde::{Deserialize, Deserializer, Serialize};

/// The size of the pages a group is tracked and moved in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PageSize {
    /// A base page of 4 KB.
    #[serde(rename = "4K")]
    Base,
    /// A huge page of 2 MB, mapped by one page-middle-directory entry.
    #[serde(rename = "2M")]
    Huge,
}

impl PageSize {
    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            PageSize::Base => 4 << 10,
            PageSize::Huge => 2 << 20,
        }
    }
}

/// What is tracked and moved as a page, as configurations name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum GroupPages {
    /// Ranges of 2 MB, whatever maps them. Where memory is simulated, as huge pages.
    #[default]
    #[serde(rename = "auto")]
    Ranges,
    /// Huge pages; memory in base pages is not managed.
    #[serde(rename = "2M")]
    Huge,
    /// Base pages; memory in huge pages is not managed.
    #[serde(rename = "4K")]
    Base,
}

impl GroupPages {
    /// Size of what counts as a page.
    pub fn size(self) -> PageSize {
        match self {
            GroupPages::Ranges | GroupPages::Huge => PageSize::Huge,
            GroupPages::Base => PageSize::Base,
        }
    }
}

impl<'de> Deserialize<'de> for GroupPages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "auto" => Ok(GroupPages::Ranges),
            "2M" => Ok(GroupPages::Huge),
            "4K" => Ok(GroupPages::Base),
            other => Err(serde::de::Error::custom(format!(
                "got '{other}', expected \"auto\", \"2M\" or \"4K\""
            ))),
        }
    }
}

/// One address space (a process) within a group. The number is chosen by the tracker and
/// stays the same for as long as the process lives; it is the process identifier on Linux.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
pub struct SpaceId(pub u32);

/// A contiguous range of virtual addresses in one address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VirtualRange {
    /// The address space.
    pub space: SpaceId,
    /// First address, a multiple of the page size.
    pub start: u64,
    /// Length in bytes, a multiple of the page size and not 0.
    pub size_bytes: u64,
}

impl VirtualRange {
    /// One past the last address.
    pub fn end(&self) -> u64 {
        self.start + self.size_bytes
    }

    /// How many pages of `page_size` the range holds.
    pub fn pages(&self, page_size: PageSize) -> u64 {
        self.size_bytes / page_size.bytes()
    }
}

/// A run of pages of a layout: contiguous in virtual memory and in index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The address space.
    pub space: SpaceId,
    /// Address of the first page, a multiple of the layout's page size.
    pub start: u64,
    /// Number of pages, not 0.
    pub pages: u64,
}

/// Which pages a group has: a sorted list of extents that gives every page a dense index,
/// 0 to `pages() - 1`, so that per-page data needs no address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    page_size: PageSize,
    extents: Vec<Extent>,
    /// `first[i]` is the index of the first page of extent `i`; one more entry holds the total.
    first: Vec<u64>,
}

/// Why a list of extents is not a layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// An extent with no pages, or not aligned to the page size, or past the end of memory.
    #[error(
        "extent {index}: start {start:#x} with {pages} pages is empty, unaligned or too long for {page_size_bytes}-byte pages"
    )]
    BadExtent {
        /// Position in the list.
        index: usize,
        /// Its start address.
        start: u64,
        /// Its number of pages.
        pages: u64,
        /// The layout's page size.
        page_size_bytes: u64,
    },
    /// Extents that overlap or are not sorted by space and address.
    #[error(
        "extent {index} overlaps or precedes the one before it; extents must be sorted by space and address"
    )]
    NotSorted {
        /// Position in the list.
        index: usize,
    },
}

impl Layout {
    /// A layout of these extents, which must be sorted by space and address and not overlap.
    pub fn new(page_size: PageSize, extents: Vec<Extent>) -> Result<Self, LayoutError> {
        let size = page_size.bytes();
        let mut first = Vec::with_capacity(extents.len() + 1);
        let mut total = 0u64;
        first.push(0);
        for (index, e) in extents.iter().enumerate() {
            let bad = || LayoutError::BadExtent {
                index,
                start: e.start,
                pages: e.pages,
                page_size_bytes: size,
            };
            let length = e.pages.checked_mul(size).ok_or_else(bad)?;
            if e.pages == 0 || e.start % size != 0 || e.start.checked_add(length).is_none() {
                return Err(bad());
            }
            if index > 0 {
                let p = &extents[index - 1];
                let before = p.space < e.space
                    || (p.space == e.space && p.start + p.pages * size <= e.start);
                if !before {
                    return Err(LayoutError::NotSorted { index });
                }
            }
            total = total.checked_add(e.pages).ok_or_else(bad)?;
            first.push(total);
        }
        Ok(Layout { page_size, extents, first })
    }

    /// A layout of one extent of `pages` pages at address 0 of space 0: tests and generators.
    pub fn contiguous(page_size: PageSize, pages: u64) -> Self {
        let extents = if pages == 0 {
            Vec::new()
        } else {
            vec![Extent { space: SpaceId(0), start: 0, pages }]
        };
        Layout::new(page_size, extents).expect("one aligned extent is a layout")
    }

    /// The layout of some of its pages, which come in order and by ranges that do not touch one
    /// another.
    ///
    /// # Panics
    /// When a page comes after a later one, or is none of the layout's.
    #[must_use]
    pub fn of_pages(&self, pages: &[std::ops::Range<usize>]) -> Self {
        let mut extents = Vec::new();
        let mut number = 0;
        for range in pages {
            let mut page = range.start;
            while page < range.end {
                while self.first[number + 1] <= page as u64 {
                    number += 1;
                }
                let extent = &self.extents[number];
                let end = range.end.min(self.first[number + 1] as usize);
                let before = page as u64 - self.first[number];
                let start = extent.start + before * self.page_size.bytes();
                extents.push(Extent { space: extent.space, start, pages: (end - page) as u64 });
                page = end;
            }
        }
        Layout::new(self.page_size, extents).expect("pages in order")
    }

    /// The page size.
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        *self.first.last().unwrap_or(&0) as usize
    }

    /// The extents, sorted by space and address.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Index of the first page of extent `extent`.
    pub fn first_index(&self, extent: usize) -> usize {
        self.first[extent] as usize
    }

    /// Address space and virtual address of the page with this index.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn address(&self, index: usize) -> (SpaceId, u64) {
        let extent = self.first.partition_point(|&f| f <= index as u64) - 1;
        let e = &self.extents[extent];
        (e.space, e.start + (index as u64 - self.first[extent]) * self.page_size.bytes())
    }

    /// Index of the page that holds this address, if the layout has it.
    pub fn index(&self, space: SpaceId, address: u64) -> Option<usize> {
        let after = self.extents.partition_point(|e| (e.space, e.start) <= (space, address));
        let extent = after.checked_sub(1)?;
        let e = &self.extents[extent];
        let page = address.checked_sub(e.start)? / self.page_size.bytes();
        (e.space == space && page < e.pages).then(|| (self.first[extent] + page) as usize)
    }

    /// Calls `each` with the pages of every aligned region of `bytes` (a multiple of the page size)
    /// that has some, ascending; however the extents are cut.
    pub fn regions(&self, bytes: u64, mut each: impl FnMut(std::ops::Range<usize>)) {
        let size = self.page_size.bytes();
        let mut open: Option<(SpaceId, u64, std::ops::Range<usize>)> = None;
        for (number, extent) in self.extents.iter().enumerate() {
            let first = self.first_index(number);
            let mut page = 0;
            while page < extent.pages {
                let region = (extent.start + page * size) / bytes;
                // Past the end of memory there is no next region.
                let end = (region + 1).saturating_mul(bytes).saturating_sub(extent.start);
                let end = end.div_ceil(size).min(extent.pages);
                match &mut open {
                    Some((space, last, pages)) if *space == extent.space && *last == region => {
                        pages.end = first + end as usize;
                    }
                    _ => {
                        let here = first + page as usize..first + end as usize;
                        if let Some((.., pages)) = open.replace((extent.space, region, here)) {
                            each(pages);
                        }
                    }
                }
                page = end;
            }
        }
        if let Some((.., pages)) = open {
            each(pages);
        }
    }

    /// Turns an ascending list of page indices into the fewest virtual ranges, in order.
    pub fn ranges(&self, indices: impl IntoIterator<Item = usize>) -> Vec<VirtualRange> {
        let size = self.page_size.bytes();
        let mut ranges: Vec<VirtualRange> = Vec::new();
        let mut extent = 0;
        for index in indices {
            let index = index as u64;
            while self.first[extent + 1] <= index {
                extent += 1;
            }
            let e = &self.extents[extent];
            let start = e.start + (index - self.first[extent]) * size;
            match ranges.last_mut() {
                Some(r) if r.space == e.space && r.end() == start => r.size_bytes += size,
                _ => ranges.push(VirtualRange { space: e.space, start, size_bytes: size }),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_extents() -> Layout {
        let e = |space, start, pages| Extent { space: SpaceId(space), start, pages };
        Layout::new(PageSize::Base, vec![e(1, 0x1000, 3), e(1, 0x8000, 2), e(2, 0x1000, 1)])
            .unwrap()
    }

    #[test]
    fn an_index_and_an_address_name_the_same_page() {
        let layout = two_extents();
        assert_eq!(layout.pages(), 6);
        for index in 0..layout.pages() {
            let (space, address) = layout.address(index);
            assert_eq!(layout.index(space, address), Some(index));
            assert_eq!(layout.index(space, address + 0xfff), Some(index));
        }
        assert_eq!(layout.index(SpaceId(1), 0x4000), None);
        assert_eq!(layout.index(SpaceId(1), 0), None);
        assert_eq!(layout.index(SpaceId(3), 0x1000), None);
    }

    #[test]
    fn a_layout_of_some_pages_has_their_addresses_and_no_others() {
        let layout = two_extents();
        let cuts: [&[(usize, usize)]; 5] =
            [&[], &[(0, 6)], &[(1, 4)], &[(0, 1), (2, 3), (4, 6)], &[(5, 6)]];
        for cut in cuts {
            let pages: Vec<_> = cut.iter().map(|&(from, to)| from..to).collect();
            let some = layout.of_pages(&pages);
            let all: Vec<_> = pages.iter().cloned().flatten().map(|p| layout.address(p)).collect();
            let got: Vec<_> = (0..some.pages()).map(|page| some.address(page)).collect();
            assert_eq!(got, all, "{pages:?}");
        }
        assert_eq!(layout.of_pages(&[0..3, 3..6]), layout);
    }

    #[test]
    fn regions_are_aligned_and_do_not_stop_where_extents_are_cut() {
        let e = |space, page: u64, pages| {
            let start = page * 4096;
            Extent { space: SpaceId(space), start, pages }
        };
        // Regions of 4 pages: 2..4, 4..8 in two extents, 8..9; another space begins anew.
        let layout = vec![e(1, 2, 4), e(1, 6, 3), e(2, 9, 1)];
        let layout = Layout::new(PageSize::Base, layout).unwrap();
        let mut regions = Vec::new();
        layout.regions(4 * 4096, |pages| regions.push((pages.start, pages.end)));
        assert_eq!(regions, [(0, 2), (2, 6), (6, 7), (7, 8)]);
    }

    #[test]
    fn ranges_join_neighbours_and_stop_at_gaps() {
        let layout = two_extents();
        let ranges = layout.ranges([0, 1, 2, 3, 5]);
        let got: Vec<_> = ranges.iter().map(|r| (r.space.0, r.start, r.size_bytes)).collect();
        assert_eq!(got, [(1, 0x1000, 0x3000), (1, 0x8000, 0x1000), (2, 0x1000, 0x1000)]);
    }

    #[test]
    fn unsorted_overlapping_and_unaligned_extents_are_refused() {
        let e = |start, pages| Extent { space: SpaceId(1), start, pages };
        let new = |v| Layout::new(PageSize::Base, v);
        assert!(matches!(new(vec![e(1, 1)]), Err(LayoutError::BadExtent { .. })));
        assert!(matches!(new(vec![e(0, 0)]), Err(LayoutError::BadExtent { .. })));
        assert!(matches!(new(vec![e(0x1000, u64::MAX)]), Err(LayoutError::BadExtent { .. })));
        assert!(matches!(
            new(vec![e(0x1000, 2), e(0x2000, 1)]),
            Err(LayoutError::NotSorted { index: 1 })
        ));
    }
}

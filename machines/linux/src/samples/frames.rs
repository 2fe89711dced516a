//! From physical addresses to a group's pages: the frames of its pages, read from the page maps of its
//! processes.
//!
//! A refresh reads 8 bytes for each base page of the group; its cost limits how often it is made.
//! The map has a run for each stretch of neighbouring frames of a page: one for a huge page, at
//! most 512 for a range of base pages. Beyond a bound on runs pages are left out.

use terrace_core::page::{Layout, PageSize, SpaceId};

use crate::files::FileError;
use crate::pagemap::Pagemap;
use crate::process;
use crate::roots::Roots;

/// Most runs of a map: 16 MB, enough for 4 GB of base pages without neighbours.
const MOST_RUNS: usize = 1 << 20;

/// Neighbouring frames of one page. A page has 512 at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Frames {
    first: u64,
    count: u16,
    /// Which base page of the page the first frame is.
    base: u16,
    page: u32,
}

/// The frames of a group's pages.
#[derive(Debug, Default)]
pub struct FrameMap {
    runs: Vec<Frames>,
    /// Base pages that were left out because of the bound.
    left_out: u64,
}

impl FrameMap {
    /// Reads the frames of this layout's pages. Processes that have ended have none.
    pub fn read(roots: &Roots, layout: &Layout) -> Result<Self, FileError> {
        let mut map = FrameMap::default();
        let of_page = layout.page_size().bytes() / PageSize::Base.bytes();
        let mut open: Option<(SpaceId, Option<Pagemap>)> = None;
        for (number, extent) in layout.extents().iter().enumerate() {
            if open.as_ref().is_none_or(|(space, _)| *space != extent.space) {
                let process = process::alive(roots, extent.space.0)?;
                let pagemap = process.map(|process| Pagemap::open(roots, process)).transpose()?;
                open = Some((extent.space, pagemap.flatten()));
            }
            let Some((_, Some(pagemap))) = &open else { continue };
            let first_page = layout.first_index(number) as u64;
            pagemap.frames(extent.start, extent.pages * of_page, |nth, frame| {
                map.add(frame, (first_page + nth / of_page) as u32, (nth % of_page) as u16);
            })?;
        }
        map.runs.sort_unstable();
        Ok(map)
    }

    fn add(&mut self, frame: u64, page: u32, base: u16) {
        let full = self.runs.len() == MOST_RUNS;
        let continues = |run: &Frames| {
            run.page == page
                && run.first + u64::from(run.count) == frame
                && run.base + run.count == base
        };
        match self.runs.last_mut() {
            Some(run) if continues(run) => run.count += 1,
            _ if full => self.left_out += 1,
            _ => self.runs.push(Frames { first: frame, count: 1, base, page }),
        }
    }

    /// The page of this physical address, if it belongs to the group, and which base page of it.
    pub fn page(&self, physical: u64) -> Option<(usize, usize)> {
        let frame = physical / PageSize::Base.bytes();
        let after = self.runs.partition_point(|run| run.first <= frame);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let nth = frame - run.first;
        (nth < u64::from(run.count))
            .then_some((run.page as usize, usize::from(run.base) + nth as usize))
    }

    /// Base pages whose frames were left out because of the bound on runs.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use terrace_core::page::Extent;

    const STAT: &str = "4 (a) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 777 0 0\n";

    /// A page map with these frames from page 1 of memory on; 0: absent.
    fn map_of(size: PageSize, extents: &[(u64, u64)], frames: &[(u64, u64)]) -> FrameMap {
        let (keep, roots) = folder(&[("proc/4/stat", STAT)]);
        let mut entries = vec![0u64; 4096];
        for &(page, frame) in frames {
            entries[page as usize] = if frame > 0 { 1 << 63 | frame } else { 0 };
        }
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_ne_bytes()).collect();
        std::fs::write(keep.path().join("proc/4/pagemap"), bytes).unwrap();
        let extent = |&(start, pages): &(u64, u64)| Extent {
            space: SpaceId(4),
            start: start * size.bytes(),
            pages,
        };
        let layout = Layout::new(size, extents.iter().map(extent).collect()).unwrap();
        FrameMap::read(&roots, &layout).unwrap()
    }

    #[test]
    fn base_pages_are_found_by_their_frames() {
        let frames = [(1, 90), (2, 91), (3, 7), (5, 92)];
        let map = map_of(PageSize::Base, &[(1, 3), (5, 1)], &frames);
        let page = |frame: u64| map.page(frame * 4096 + 77);
        assert_eq!([90, 91, 7, 92].map(page), [0, 1, 2, 3].map(|nth| Some((nth, 0))));
        assert_eq!([6, 8, 89, 93].map(page), [None; 4]);
        assert_eq!(map.runs.len(), 4);
    }

    #[test]
    fn a_huge_page_is_one_run_and_a_range_of_base_pages_many() {
        let mut frames: Vec<(u64, u64)> = (0..512).map(|n| (512 + n, 1024 + n)).collect();
        // The next range has every other page, in descending frames.
        frames.extend((0..256).map(|n| (1024 + 2 * n, 900 - n)));
        let map = map_of(PageSize::Huge, &[(1, 2)], &frames);
        assert_eq!(map.runs.len(), 257);
        let page = |frame: u64| map.page(frame * 4096 + 9);
        assert_eq!((page(1024), page(1024 + 511)), (Some((0, 0)), Some((0, 511))));
        assert_eq!((page(900), page(645)), (Some((1, 0)), Some((1, 510))));
        assert_eq!((page(644), page(901)), (None, None));
    }

    #[test]
    fn neighbouring_frames_of_pages_that_are_no_neighbours_are_two_runs() {
        let map = map_of(PageSize::Huge, &[(1, 1)], &[(512, 70), (514, 71)]);
        assert_eq!((map.page(70 * 4096), map.page(71 * 4096)), (Some((0, 0)), Some((0, 2))));
    }

    #[test]
    fn a_process_that_has_ended_has_no_frames() {
        let (_keep, roots) = folder(&[]);
        let extents = vec![Extent { space: SpaceId(4), start: 0, pages: 3 }];
        let layout = Layout::new(PageSize::Base, extents).unwrap();
        assert_eq!(FrameMap::read(&roots, &layout).unwrap().page(0), None);
    }
}

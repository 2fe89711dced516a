//! Pages of a process: extents of huge or base pages from the `PAGEMAP_SCAN` ioctl, and their
//! frames, so that a page that two processes map is counted once.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use terrace_core::page::PageSize;

use crate::files::{FileError, is_gone};
use crate::process::{self, Process};
use crate::raw::{
    Categories, PAGE_IS_FILE, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PageRegion,
    pagemap_scan,
};
use crate::roots::Roots;

/// A run of present pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// First address, a multiple of the page size.
    pub start: u64,
    /// Number of pages, not 0.
    pub pages: u64,
}

/// Present memory of a process that is left out of its runs, in bytes, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    /// Mapped pages of files that are neither shared memory nor data ([`process::data_mappings`]).
    pub file_bytes: u64,
    /// Pages of ranges that hold too few.
    pub few_pages_bytes: u64,
}

/// End of the addresses that a program can map on x86-64 unless it asks for more.
pub(crate) const ADDRESS_END: u64 = 0x7fff_ffff_f000;
const BASE_BYTES: u64 = PageSize::Base.bytes();

/// A process's `/proc/PID/pagemap`, held open.
#[derive(Debug)]
pub struct Pagemap {
    process: Process,
    path: PathBuf,
    file: File,
}

/// Buffer for the kernel's answers to one call: 24 KB, shared by all processes of a group.
#[derive(Debug)]
pub struct Answers(Vec<PageRegion>);

impl Default for Answers {
    fn default() -> Self {
        Answers(vec![PageRegion::default(); 1024])
    }
}

impl Pagemap {
    /// Opens it; `None` when the process is gone.
    pub fn open(roots: &Roots, process: Process) -> Result<Option<Self>, FileError> {
        let path = roots.process(process.pid).join("pagemap");
        match File::open(&path) {
            Ok(file) => Ok(Some(Pagemap { process, path, file })),
            Err(e) if is_gone(&e) => Ok(None),
            Err(source) => Err(FileError::Read { path, source }),
        }
    }

    /// The process that it belongs to.
    pub fn process(&self) -> Process {
        self.process
    }

    /// Calls `take` with the parts of `start..end` that have present pages, and whether each is a
    /// huge page.
    pub fn present(
        &self,
        start: u64,
        end: u64,
        mut take: impl FnMut(u64, u64, bool),
    ) -> std::io::Result<()> {
        // No more regions than base pages.
        let mut regions = vec![PageRegion::default(); 512];
        let categories = Categories {
            set: PAGE_IS_PRESENT,
            clear: PAGE_IS_PFNZERO,
            reported: PAGE_IS_HUGE | PAGE_IS_PRESENT,
        };
        let mut from = start;
        while from < end {
            let scan = pagemap_scan(self.file.as_fd(), from, end, categories, &mut regions);
            let (filled, reached) = match scan {
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => continue,
                scan => scan?,
            };
            for region in &regions[..filled] {
                take(region.start, region.end, region.categories & PAGE_IS_HUGE != 0);
            }
            if reached <= from {
                break;
            }
            from = reached;
        }
        Ok(())
    }

    /// Ranges of 2 MB that hold present pages, whatever maps them, by address: those of a huge page
    /// and those with at least [`LEAST_PAGES`] base pages. `None` when the process is gone. Pages of
    /// files count as for [`Pagemap::runs`].
    pub fn ranges(
        &self,
        roots: &Roots,
        answers: &mut Answers,
        left_out: &mut LeftOut,
    ) -> Result<Option<Vec<Run>>, FileError> {
        let mut counter = RangeCounter::default();
        let categories = Categories {
            set: PAGE_IS_PRESENT,
            clear: PAGE_IS_PFNZERO,
            reported: PAGE_IS_FILE | PAGE_IS_HUGE,
        };
        let read = self.regions(roots, categories, answers, left_out, |start, end, _| {
            counter.add(start, end);
        })?;
        let (runs, few_pages) = counter.finish();
        left_out.few_pages_bytes += few_pages * BASE_BYTES;
        Ok(read.then_some(runs))
    }

    /// Runs of present pages of this size, by address; `None` when the process is gone.
    ///
    /// Pages of files are left out unless they are shared memory or data
    /// ([`process::data_mappings`]): a library's text is shared by all programs. The shared page of zeros is no
    /// memory. Huge pages count as huge only where one page-middle-directory entry maps them.
    pub fn runs(
        &self,
        roots: &Roots,
        size: PageSize,
        answers: &mut Answers,
        left_out: &mut LeftOut,
    ) -> Result<Option<Vec<Run>>, FileError> {
        let categories = match size {
            PageSize::Huge => Categories {
                set: PAGE_IS_PRESENT | PAGE_IS_HUGE,
                clear: PAGE_IS_PFNZERO,
                reported: PAGE_IS_FILE,
            },
            PageSize::Base => Categories {
                set: PAGE_IS_PRESENT,
                clear: PAGE_IS_PFNZERO | PAGE_IS_HUGE,
                reported: PAGE_IS_FILE,
            },
        };
        let mut runs = Vec::new();
        let read = self.regions(roots, categories, answers, left_out, |start, end, _| {
            push(&mut runs, size, start, end)
        })?;
        Ok(read.then_some(runs))
    }

    /// Calls `take` with each region of these categories, by address, that belongs to the process:
    /// without pages of files that are neither shared memory nor data. Returns whether the process still exists.
    fn regions(
        &self,
        roots: &Roots,
        categories: Categories,
        answers: &mut Answers,
        left_out: &mut LeftOut,
        mut take: impl FnMut(u64, u64, u64),
    ) -> Result<bool, FileError> {
        // Mappings are read only when there is a file page to judge.
        let mut shared: Option<Shared> = None;
        let mut start = 0;
        while start < ADDRESS_END {
            let scan =
                pagemap_scan(self.file.as_fd(), start, ADDRESS_END, categories, &mut answers.0);
            let (filled, reached) = match scan {
                Ok(done) => done,
                Err(e) if is_gone(&e) => return Ok(false),
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => continue,
                Err(source) => return Err(FileError::Read { path: self.path.clone(), source }),
            };
            for region in &answers.0[..filled] {
                if region.categories & PAGE_IS_FILE == 0 {
                    take(region.start, region.end, region.categories);
                    continue;
                }
                let shared = match &mut shared {
                    Some(shared) => shared,
                    none => none.insert(Shared::of(data_mappings(roots, self.process.pid)?)),
                };
                let mut taken = 0;
                shared.overlaps(region.start, region.end, |from, to| {
                    taken += to - from;
                    take(from, to, region.categories);
                });
                left_out.file_bytes += region.end - region.start - taken;
            }
            if reached <= start {
                break;
            }
            start = reached;
        }
        Ok(true)
    }

    /// Calls `take` with each of so many base pages from `start` on that is present, and its frame:
    /// the number of the page from 0, and the frame's. Returns whether the process still exists.
    /// Without the right to see frame numbers (CAP_SYS_ADMIN) there are none.
    pub fn frames(
        &self,
        start: u64,
        pages: u64,
        mut take: impl FnMut(u64, u64),
    ) -> Result<bool, FileError> {
        let mut buffer = [0u8; 512 * 8];
        let mut page = 0;
        while page < pages {
            let stretch = (pages - page).min(512);
            let buffer = &mut buffer[..stretch as usize * 8];
            match self.file.read_exact_at(buffer, (start / BASE_BYTES + page) * 8) {
                Ok(()) => {}
                Err(e) if is_gone(&e) || e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Ok(false);
                }
                Err(source) => return Err(FileError::Read { path: self.path.clone(), source }),
            }
            for (nth, entry) in buffer.as_chunks::<8>().0.iter().enumerate() {
                if let Some(frame) = frame(u64::from_ne_bytes(*entry)) {
                    take(page + nth as u64, frame);
                }
            }
            page += stretch;
        }
        Ok(true)
    }

    /// Removes from `runs` the pages whose frame is in `seen`, and adds the others to it. Without
    /// the right to see frame numbers (CAP_SYS_ADMIN) nothing is removed. After `most` kept pages
    /// the rest is kept unread: no more than that are tracked, and no more frames are remembered.
    pub fn leave_out_seen(
        &self,
        runs: Vec<Run>,
        size: PageSize,
        seen: &mut HashSet<u64>,
        most: u64,
    ) -> Result<Vec<Run>, FileError> {
        let mut kept = Vec::with_capacity(runs.len());
        let mut left = most;
        let mut entries = [0u8; 512 * 8];
        for run in runs {
            let mut page = 0;
            while page < run.pages {
                if left == 0 {
                    let start = run.start + page * size.bytes();
                    push(&mut kept, size, start, run.start + run.pages * size.bytes());
                    break;
                }
                // Base pages in stretches; the first present page of a range of 2 MB stands for the
                // range.
                let (stretch, entries_of_each) = match size {
                    PageSize::Base => ((run.pages - page).min(512).min(left), 1),
                    PageSize::Huge => (1, 512),
                };
                let address = run.start + page * size.bytes();
                let buffer = &mut entries[..stretch as usize * entries_of_each * 8];
                match self.file.read_exact_at(buffer, address / BASE_BYTES * 8) {
                    Ok(()) => {}
                    Err(e) if is_gone(&e) || e.kind() == std::io::ErrorKind::UnexpectedEof => {
                        return Ok(kept);
                    }
                    Err(source) => return Err(FileError::Read { path: self.path.clone(), source }),
                }
                let entries = buffer.as_chunks::<8>().0;
                for (nth, entries) in entries.chunks(entries_of_each).enumerate() {
                    let entries = || entries.iter().map(|entry| u64::from_ne_bytes(*entry));
                    let known = standing_for(entries()).and_then(frame);
                    let is_new = known.is_none_or(|frame| seen.insert(frame));
                    let is_range = entries_of_each > 1;
                    if is_new || (is_range && is_mostly_own(entries(), known)) {
                        left -= 1;
                        let start = address + nth as u64 * size.bytes();
                        push(&mut kept, size, start, start + size.bytes());
                    }
                }
                page += stretch;
            }
        }
        Ok(kept)
    }
}

/// The first present page that others may map, or else the first present one.
fn standing_for(entries: impl Iterator<Item = u64> + Clone) -> Option<u64> {
    let mut present = entries.filter(|entry| entry >> 63 != 0);
    present.clone().find(|entry| !is_own(*entry)).or_else(|| present.next())
}

/// Whether no other process maps most of these pages: a range whose first pages are the zero page,
/// or merged ones, is not what another process has. Pages with the frame that stands for the range are
/// not counted, for the zero page may be there many times.
fn is_mostly_own(entries: impl Iterator<Item = u64>, known: Option<u64>) -> bool {
    let (mut own, mut present) = (0, 0);
    for entry in entries.filter(|&entry| entry >> 63 != 0 && frame(entry) != known) {
        present += 1;
        own += u64::from(is_own(entry));
    }
    2 * own > present
}

/// Whether a page is mapped once, and so by this process alone: bit 56.
fn is_own(entry: u64) -> bool {
    entry >> 56 & 1 != 0
}

/// Frame of an entry, if its page is present and the kernel shows the frame: bits 0-54 are its
/// number, bit 63 means present (Documentation/admin-guide/mm/pagemap.rst).
fn frame(entry: u64) -> Option<u64> {
    let frame = entry & ((1 << 55) - 1);
    (entry >> 63 != 0 && frame != 0).then_some(frame)
}

/// Minimum of base pages for a range of 2 MB to be tracked: a range with fewer costs as much to
/// track and counts as much against a limit as a full one.
pub const LEAST_PAGES: u64 = 128;

/// Counts the pages of ranges of 2 MB; regions are added in the order of addresses.
#[derive(Debug, Default)]
struct RangeCounter {
    runs: Vec<Run>,
    /// The current range, and its base pages so far.
    range: u64,
    pages: u64,
    /// Base pages of ranges that are left out.
    left_out: u64,
}

impl RangeCounter {
    fn add(&mut self, start: u64, end: u64) {
        let bytes = PageSize::Huge.bytes();
        let mut start = start;
        while start < end {
            let range = start / bytes * bytes;
            let to = end.min(range + bytes);
            if range != self.range {
                self.close();
                self.range = range;
            }
            self.pages += (to - start) / BASE_BYTES;
            // Whole ranges of a long region need no separate counting.
            let whole = (end - to) / bytes * bytes;
            if whole > 0 {
                self.close();
                push(&mut self.runs, PageSize::Huge, to, to + whole);
            }
            start = to + whole;
        }
    }

    fn close(&mut self) {
        match std::mem::take(&mut self.pages) {
            few if few < LEAST_PAGES => self.left_out += few,
            _ => {
                let end = self.range + PageSize::Huge.bytes();
                push(&mut self.runs, PageSize::Huge, self.range, end);
            }
        }
    }

    /// The runs, and the base pages outside of them.
    fn finish(mut self) -> (Vec<Run>, u64) {
        self.close();
        (self.runs, self.left_out)
    }
}

/// Shared mappings, traversed once in step with regions by address: a process may have tens of
/// thousands of both.
struct Shared {
    mappings: Vec<(u64, u64)>,
    /// The first that may overlap a later region.
    next: usize,
    /// Mappings compared so far.
    #[cfg(test)]
    steps: u64,
}

impl Shared {
    fn of(mappings: Vec<(u64, u64)>) -> Self {
        Shared {
            mappings,
            next: 0,
            #[cfg(test)]
            steps: 0,
        }
    }

    /// Calls `take` for each part of `start..end` that is shared. Called in the order of addresses.
    fn overlaps(&mut self, start: u64, end: u64, mut take: impl FnMut(u64, u64)) {
        while let Some(&(from, to)) = self.mappings.get(self.next) {
            #[cfg(test)]
            {
                self.steps += 1;
            }
            if to > start {
                if from >= end {
                    return;
                }
                take(start.max(from), end.min(to));
                // It may overlap the next region.
                if to > end {
                    return;
                }
            }
            self.next += 1;
        }
    }
}

fn data_mappings(roots: &Roots, pid: u32) -> Result<Vec<(u64, u64)>, FileError> {
    let mappings = process::mappings(roots, pid)?;
    Ok(process::data_mappings(&mappings).iter().map(|m| (m.start, m.end)).collect())
}

/// Adds the whole pages of `start..end`, merged with the run before if adjacent.
fn push(runs: &mut Vec<Run>, size: PageSize, start: u64, end: u64) {
    let bytes = size.bytes();
    let (Some(start), end) = (start.checked_next_multiple_of(bytes), end / bytes * bytes) else {
        return;
    };
    if start >= end {
        return;
    }
    let pages = (end - start) / bytes;
    match runs.last_mut() {
        Some(last) if last.start + last.pages * bytes == start => last.pages += pages,
        _ => runs.push(Run { start, pages }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> (Roots, Pagemap) {
        let roots = Roots::default();
        let process = process::alive(&roots, std::process::id()).unwrap().unwrap();
        let pagemap = Pagemap::open(&roots, process).unwrap().unwrap();
        (roots, pagemap)
    }

    /// The kernel of the machine that runs the tests may be older than 6.7.
    fn scan(pagemap: &mut Pagemap, roots: &Roots, size: PageSize) -> Option<Vec<Run>> {
        match pagemap.runs(roots, size, &mut Answers::default(), &mut LeftOut::default()) {
            Ok(runs) => runs,
            Err(e) if matches!(e.errno(), Some(libc::ENOTTY | libc::EPERM)) => None,
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn pages_that_were_written_are_found_and_the_others_not() {
        let (roots, mut pagemap) = own();
        // 4 MB that are certainly base pages: half of each 2 MB is never touched.
        let mut memory = vec![0u8; 4 << 20];
        let first = (memory.as_ptr() as u64).next_multiple_of(4096);
        let offset = (first - memory.as_ptr() as u64) as usize;
        for page in (0..512).step_by(4) {
            memory[offset + page * 4096] = 1;
        }
        let Some(runs) = scan(&mut pagemap, &roots, PageSize::Base) else { return };
        let has = |page: u64| {
            let address = first + page * 4096;
            runs.iter().any(|r| r.start <= address && address < r.start + r.pages * 4096)
        };
        let huge = scan(&mut pagemap, &roots, PageSize::Huge).unwrap_or_default();
        let is_huge = huge.iter().any(|r| r.start <= first && first < r.start + (r.pages << 21));
        if !is_huge {
            assert!(has(0) && has(4) && has(508));
            assert!(!has(1) && !has(6));
        }
        assert_eq!(memory[offset], 1);
    }

    #[test]
    fn a_range_that_begins_with_a_page_of_all_is_not_what_another_process_has() {
        let present = 1 << 63;
        let own = |frame: u64| present | 1 << 56 | frame;
        let zero_page = present | 5;
        // Zero pages, then some of its own: it is its own, and the zero page stands for what may be
        // shared.
        let sparse = [0, zero_page, zero_page, zero_page, own(10), own(11)];
        assert!(is_mostly_own(sparse.into_iter(), Some(5)));
        assert_eq!(standing_for(sparse.into_iter()), Some(zero_page));
        // Shared memory, of which it alone has used a page.
        let shared = [own(20), present | 21, present | 22, present | 23];
        assert!(!is_mostly_own(shared.into_iter(), Some(21)));
        assert_eq!(standing_for(shared.into_iter()), Some(present | 21));
        assert_eq!(standing_for([0, own(30), own(31)].into_iter()), Some(own(30)));
        assert_eq!(standing_for([0, 0].into_iter()), None);
        assert!(!is_mostly_own([0, 0].into_iter(), None));
    }

    #[test]
    fn a_frame_that_was_seen_is_left_out() {
        let (roots, mut pagemap) = own();
        let Some(runs) = scan(&mut pagemap, &roots, PageSize::Base) else { return };
        let mut seen = HashSet::new();
        let pages = |runs: &[Run]| runs.iter().map(|r| r.pages).sum::<u64>();
        let first =
            pagemap.leave_out_seen(runs.clone(), PageSize::Base, &mut seen, u64::MAX).unwrap();
        assert!(pages(&first) <= pages(&runs));
        if !seen.is_empty() {
            let again =
                pagemap.leave_out_seen(runs.clone(), PageSize::Base, &mut seen, u64::MAX).unwrap();
            // Only pages that this test itself has allocated meanwhile.
            assert!(pages(&again) < pages(&first) / 2);
            // No more frames are remembered than pages are tracked; all pages are still counted.
            let mut few = HashSet::new();
            let kept = pagemap.leave_out_seen(runs.clone(), PageSize::Base, &mut few, 8).unwrap();
            assert!(few.len() <= 8, "{} frames", few.len());
            assert!(pages(&kept) > 8);
        }
    }

    #[test]
    fn many_regions_and_many_mappings_take_as_many_steps_as_there_are_of_both() {
        let mappings: Vec<(u64, u64)> =
            (0..100_000u64).map(|n| (n * 0x10000, n * 0x10000 + 0x8000)).collect();
        let mut shared = Shared::of(mappings.clone());
        let mut pages = 0;
        let regions = 65_536u64;
        for n in 0..regions {
            let (start, end) = (n * 0x10000 + 0x4000, n * 0x10000 + 0xc000);
            shared.overlaps(start, end, |from, to| pages += (to - from) >> 12);
        }
        assert_eq!(pages, regions * 4);
        let both = regions + mappings.len() as u64;
        assert!(shared.steps <= 2 * both, "{} steps for {both}", shared.steps);
    }

    proptest::proptest! {
        #[test]
        fn overlaps_are_those_of_every_pair(
            cuts in proptest::collection::btree_set(0u64..200, 0..20),
            others in proptest::collection::btree_set(0u64..200, 0..20),
        ) {
            let pairs = |cuts: &std::collections::BTreeSet<u64>| -> Vec<(u64, u64)> {
                let cuts: Vec<u64> = cuts.iter().copied().collect();
                cuts.chunks_exact(2).map(|c| (c[0], c[1])).collect()
            };
            let (regions, mappings) = (pairs(&cuts), pairs(&others));
            let mut expected = Vec::new();
            for &(start, end) in &regions {
                for &(from, to) in &mappings {
                    if start.max(from) < end.min(to) {
                        expected.push((start.max(from), end.min(to)));
                    }
                }
            }
            let mut got = Vec::new();
            let mut shared = Shared::of(mappings);
            for &(start, end) in &regions {
                shared.overlaps(start, end, |from, to| got.push((from, to)));
            }
            proptest::prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn ranges_with_enough_pages_are_tracked_whatever_maps_them() {
        const MB2: u64 = 2 << 20;
        let mut counter = RangeCounter::default();
        // A huge page; a range of which a quarter is there, in two parts; one with too little; then a
        // region that begins and ends within ranges.
        counter.add(MB2, 2 * MB2);
        counter.add(2 * MB2, 2 * MB2 + 64 * 4096);
        counter.add(2 * MB2 + 100 * 4096, 2 * MB2 + 164 * 4096);
        counter.add(5 * MB2, 5 * MB2 + 127 * 4096);
        counter.add(7 * MB2 + 500 * 4096, 10 * MB2 + 128 * 4096);
        let (runs, left_out) = counter.finish();
        assert_eq!(runs, [Run { start: MB2, pages: 2 }, Run { start: 8 * MB2, pages: 3 }]);
        // Pages in no run are counted.
        assert_eq!(left_out, 127 + 12);
    }

    #[test]
    fn runs_hold_whole_pages_only_and_join() {
        let mut runs = Vec::new();
        push(&mut runs, PageSize::Huge, 0x1000, 0x40_0000);
        push(&mut runs, PageSize::Huge, 0x40_0000, 0x80_1000);
        push(&mut runs, PageSize::Huge, 0xa0_1000, 0xb0_0000);
        push(&mut runs, PageSize::Huge, 0xb0_0000, 0xa0_0000);
        push(&mut runs, PageSize::Huge, u64::MAX - 1, u64::MAX);
        assert_eq!(runs, [Run { start: 0x20_0000, pages: 3 }]);
    }
}

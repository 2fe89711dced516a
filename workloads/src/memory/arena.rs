//! One mapping of whole pages of a known size, aligned to 2 MB: the memory that the
//! programs of this folder touch. Owns every unsafe line of theirs.

use std::ffi::c_void;
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::Path;
use std::sync::atomic::AtomicU64;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use terrace_core::page::PageSize;

use crate::field::field;

/// Why an arena cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// A size of 0, or more than an address space.
    #[error(
        "cannot map {pages} pages of {page_bytes} bytes: expected 1 page or more and at most 2^46 bytes in all"
    )]
    BadSize {
        /// Pages requested.
        pages: usize,
        /// Size of a page.
        page_bytes: u64,
    },
    /// More than the machine's free memory. Filled all the same, it would make the kernel kill one
    /// program or another.
    #[error(
        "{size_bytes} bytes: expected at most the {available_bytes} that are available here; ask for fewer pages"
    )]
    TooLarge {
        /// Bytes requested.
        size_bytes: u64,
        /// Bytes available.
        available_bytes: u64,
    },
    /// The kernel rejected the call.
    #[error("{call} of {size_bytes} bytes: {source}; free memory or ask for fewer pages")]
    Refused {
        /// The system call.
        call: &'static str,
        /// Bytes requested.
        size_bytes: u64,
        /// The kernel's error.
        source: rustix::io::Errno,
    },
    /// The file of shared memory could not be opened or made as large as that.
    #[error(
        "{path}: {source}; expected a file of shared memory that may be written, such as in /dev/shm"
    )]
    File {
        /// The file.
        path: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// `/proc/self/smaps` could not be read or understood.
    #[error("/proc/self/smaps: {0}; expected a kernel with CONFIG_PROC_PAGE_MONITOR")]
    Smaps(String),
    /// The kernel backed the arena with another page size.
    #[error(
        "{huge_bytes} of {size_bytes} bytes are huge pages, expected {expected_bytes}; for huge pages write 'madvise' or 'always' to /sys/kernel/mm/transparent_hugepage/enabled and have enough memory in 2 MB blocks"
    )]
    NotAsAsked {
        /// Bytes in huge pages.
        huge_bytes: u64,
        /// Bytes in all.
        size_bytes: u64,
        /// Bytes that should be in huge pages.
        expected_bytes: u64,
    },
}

/// A mapping of `pages` pages of one size.
pub struct Arena {
    /// The mapping, with the slack that alignment needs.
    mapping: *mut c_void,
    mapping_bytes: usize,
    /// First aligned address.
    start: *const AtomicU64,
    pages: usize,
    page_size: PageSize,
    /// Whether the kernel is advised on the size of pages.
    is_advised: bool,
}

impl Arena {
    /// Maps huge pages of the kernel's pool (hugetlb), all of which it has to have free.
    pub fn map_pool(pages: usize) -> Result<Arena, ArenaError> {
        let page_bytes = PageSize::Huge.bytes();
        let size_bytes = (pages as u64)
            .checked_mul(page_bytes)
            .filter(|&b| b > 0 && b <= 1 << 46)
            .ok_or(ArenaError::BadSize { pages, page_bytes })?;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory
        // that anyone else holds.
        let mapping = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                size_bytes as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB,
            )
        }
        .map_err(|source| ArenaError::Refused {
            call: "mmap of the pool",
            size_bytes,
            source,
        })?;
        // Such a mapping is aligned to its pages.
        Ok(Arena {
            mapping,
            mapping_bytes: size_bytes as usize,
            start: mapping.cast_const().cast(),
            pages,
            page_size: PageSize::Huge,
            is_advised: false,
        })
    }

    /// Maps a file of shared memory, which is made and made large enough where it is not. The kernel
    /// chooses the size of its pages.
    pub fn map_file(path: &Path, page_size: PageSize, pages: usize) -> Result<Arena, ArenaError> {
        let size_bytes = size_bytes(page_size, pages)?;
        let failed = |source| ArenaError::File { path: path.display().to_string(), source };
        let options =
            File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = options.map_err(failed)?;
        if file.metadata().map_err(failed)?.len() < size_bytes {
            file.set_len(size_bytes).map_err(failed)?;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Arena::of_file(&file, page_size, pages, access, MapFlags::empty())
    }

    /// Maps a file or a block device for reading alone: its words must not be written. All its pages
    /// are there when this returns.
    pub fn map_file_to_read(
        path: &Path,
        page_size: PageSize,
        pages: usize,
    ) -> Result<Arena, ArenaError> {
        let size_bytes = size_bytes(page_size, pages)?;
        let failed = |source| ArenaError::File { path: path.display().to_string(), source };
        let mut file = File::open(path).map_err(failed)?;
        // The end of a block device is not in its metadata.
        let has_bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        if has_bytes < size_bytes {
            let words = format!("{has_bytes} bytes, expected {size_bytes} or more");
            return Err(failed(std::io::Error::other(words)));
        }
        Arena::of_file(&file, page_size, pages, ProtFlags::READ, MapFlags::POPULATE)
    }

    fn of_file(
        file: &File,
        page_size: PageSize,
        pages: usize,
        access: ProtFlags,
        at_once: MapFlags,
    ) -> Result<Arena, ArenaError> {
        let size_bytes = size_bytes(page_size, pages)?;
        // Aligned to 2 MB within a mapping of nothing, so that huge pages of the file are mapped as such.
        let arena = Arena::reserve(page_size, pages, size_bytes, ProtFlags::empty())?;
        // SAFETY: replaces a part of the mapping of nothing that was made just now; the file's words
        // are accessed as atomics alone, whoever else writes them.
        unsafe {
            rustix::mm::mmap(
                arena.start.cast_mut().cast(),
                size_bytes as usize,
                access,
                MapFlags::SHARED | MapFlags::FIXED | at_once,
                file,
                0,
            )
        }
        .map_err(|source| ArenaError::Refused {
            call: "mmap of the file",
            size_bytes,
            source,
        })?;
        Ok(arena)
    }

    /// Maps the pages without touching them. Huge pages are requested with `MADV_HUGEPAGE`, base
    /// pages with `MADV_NOHUGEPAGE`.
    pub fn map(page_size: PageSize, pages: usize) -> Result<Arena, ArenaError> {
        let size_bytes = size_bytes(page_size, pages)?;
        let refused = |source| ArenaError::Refused { call: "madvise", size_bytes, source };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mut arena = Arena::reserve(page_size, pages, size_bytes, access)?;
        arena.is_advised = true;
        let start = arena.start.cast_mut().cast();
        let advice = match page_size {
            PageSize::Huge => Advice::LinuxHugepage,
            PageSize::Base => Advice::LinuxNoHugepage,
        };
        // SAFETY: the range is within the mapping made above, and the advice only chooses the size
        // of the pages that back it; contents stay.
        unsafe { rustix::mm::madvise(start, size_bytes as usize, advice) }.map_err(refused)?;
        Ok(arena)
    }

    /// A private mapping, aligned to 2 MB.
    fn reserve(
        page_size: PageSize,
        pages: usize,
        size_bytes: u64,
        access: ProtFlags,
    ) -> Result<Arena, ArenaError> {
        let align = PageSize::Huge.bytes();
        let refused = |source| ArenaError::Refused { call: "mmap", size_bytes, source };
        let mapping_bytes = (size_bytes + align) as usize;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory in
        // use.
        let mapping = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapping_bytes,
                access,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(refused)?;
        let slack = mapping.align_offset(align as usize);
        let start = mapping.wrapping_byte_add(slack);
        let start = start.cast_const().cast();
        Ok(Arena { mapping, mapping_bytes, start, pages, page_size, is_advised: false })
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Size of a page.
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.pages as u64 * self.page_size.bytes()
    }

    /// Address of a page.
    pub fn address(&self, page: usize) -> u64 {
        self.start as u64 + page as u64 * self.page_size.bytes()
    }

    /// The words of a page. Atomics, so that every load and store of a program that only touches
    /// memory really happens.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn page(&self, page: usize) -> &[AtomicU64] {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        let words = self.page_size.bytes() as usize / size_of::<AtomicU64>();
        // SAFETY: `page < pages`, so the words are within the mapping, which lives as long as
        // `self`, is readable and writable, starts as zeros, and is aligned to 2 MB. The slices are
        // shared and their elements atomic, so that returning several is sound.
        unsafe { std::slice::from_raw_parts(self.start.add(page * words), words) }
    }

    /// Checks that all touched pages have the size requested, where one was. Huge pages that the
    /// kernel did not give at first touch are collapsed, once.
    pub fn check_page_size(&self) -> Result<(), ArenaError> {
        if !self.is_advised {
            return Ok(());
        }
        let size_bytes = self.size_bytes();
        let expected_bytes = match self.page_size {
            PageSize::Huge => size_bytes,
            PageSize::Base => 0,
        };
        let mut huge_bytes = self.huge_bytes()?;
        if huge_bytes < expected_bytes {
            let start = self.start.cast_mut().cast();
            // SAFETY: within the mapping; collapsing keeps contents and addresses. A failure
            // shows in the count below. (libc, because rustix has no such advice.)
            unsafe { libc::madvise(start, size_bytes as usize, libc::MADV_COLLAPSE) };
            huge_bytes = self.huge_bytes()?;
        }
        if huge_bytes == expected_bytes {
            Ok(())
        } else {
            Err(ArenaError::NotAsAsked { huge_bytes, size_bytes, expected_bytes })
        }
    }

    fn huge_bytes(&self) -> Result<u64, ArenaError> {
        let text = std::fs::read_to_string("/proc/self/smaps")
            .map_err(|e| ArenaError::Smaps(e.to_string()))?;
        huge_bytes(&text, self.address(0), self.address(0) + self.size_bytes())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made; every reference into it borrows `self`.
        let _ = unsafe { rustix::mm::munmap(self.mapping, self.mapping_bytes) };
    }
}

/// The size in bytes of so many pages; an error if this machine cannot have them.
pub fn size_bytes(page_size: PageSize, pages: usize) -> Result<u64, ArenaError> {
    let page_bytes = page_size.bytes();
    let size_bytes = (pages as u64)
        .checked_mul(page_bytes)
        .filter(|&b| b > 0 && b <= 1 << 46)
        .ok_or(ArenaError::BadSize { pages, page_bytes })?;
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match field(&meminfo, "MemAvailable").map(|kb| kb << 10) {
        Some(available_bytes) if size_bytes > available_bytes => {
            Err(ArenaError::TooLarge { size_bytes, available_bytes })
        }
        _ => Ok(size_bytes),
    }
}

/// Sums `AnonHugePages` over the mappings that overlap `start..end` in the text of a `smaps`.
fn huge_bytes(smaps: &str, start: u64, end: u64) -> Result<u64, ArenaError> {
    let bad = |line: &str| ArenaError::Smaps(format!("cannot read the line '{line}'"));
    let (mut inside, mut seen, mut total) = (false, false, 0u64);
    for line in smaps.lines() {
        let Some((first, rest)) = line.split_once(' ') else { continue };
        if let Some(key) = first.strip_suffix(':') {
            if inside && key == "AnonHugePages" {
                let kb = rest.trim().strip_suffix(" kB").and_then(|n| n.parse::<u64>().ok());
                let bytes = kb.and_then(|kb| kb.checked_mul(1024));
                let sum = bytes.and_then(|bytes| total.checked_add(bytes));
                total = sum.ok_or_else(|| bad(line))?;
                seen = true;
            }
        } else if let Some((from, to)) = first.split_once('-') {
            let hex = |t| u64::from_str_radix(t, 16).map_err(|_| bad(line));
            inside = hex(from)? < end && hex(to)? > start;
        }
    }
    if seen { Ok(total) } else { Err(ArenaError::Smaps("the mapping is not listed".into())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn pages_are_aligned_distinct_and_start_as_zeros() {
        let arena = Arena::map(PageSize::Base, 3).unwrap();
        assert_eq!(arena.address(0) % PageSize::Huge.bytes(), 0);
        assert_eq!(arena.address(2) - arena.address(0), 2 * PageSize::Base.bytes());
        for page in 0..3 {
            assert!(arena.page(page).iter().all(|w| w.load(Relaxed) == 0));
            arena.page(page)[511].store(page as u64 + 1, Relaxed);
        }
        assert_eq!(arena.page(0)[511].load(Relaxed), 1);
        arena.check_page_size().unwrap();
    }

    #[test]
    fn a_file_is_the_same_memory_to_all_that_map_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shared");
        let [one, two] = [4, 2].map(|pages| Arena::map_file(&path, PageSize::Base, pages).unwrap());
        one.page(1)[7].store(5, Relaxed);
        assert_eq!(two.page(1)[7].load(Relaxed), 5);
        assert_eq!(two.address(0) % PageSize::Huge.bytes(), 0);
        // The larger one wins.
        one.page(3)[0].store(1, Relaxed);
        two.check_page_size().unwrap();
        let none = Arena::map_file(folder.path(), PageSize::Base, 1).err().unwrap().to_string();
        assert!(none.contains("expected a file of shared memory"), "{none}");
    }

    #[test]
    fn sizes_of_nothing_and_of_everything_are_refused() {
        for pages in [0, usize::MAX, 1 << 40, 1 << 25] {
            assert!(Arena::map(PageSize::Huge, pages).is_err(), "{pages}");
        }
    }

    #[test]
    fn huge_bytes_of_overlapping_mappings_are_summed() {
        let text = "1000-2000 rw-p 0 0:0 0\nAnonHugePages:      2048 kB\nVmFlags: rd\n\
                    2000-4000 rw-p 0 0:0 0 [heap]\nSize: 8 kB\nAnonHugePages: 4096 kB\n\
                    9000-a000 rw-p 0 0:0 0\nAnonHugePages: 6144 kB\n";
        assert_eq!(huge_bytes(text, 0x1fff, 0x2001).unwrap(), 6 << 20);
        assert!(huge_bytes(text, 0x5000, 0x6000).is_err());
        assert!(huge_bytes(&text.replace("4096 kB", "much"), 0x1fff, 0x2001).is_err());
        // Each of them is a number of bytes, and their sum is not.
        let half = (u64::MAX / 2048 + 1).to_string();
        let much = text.replace("2048", &half).replace("4096", &half);
        assert!(huge_bytes(&much, 0x1fff, 0x2001).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_an_error_or_a_count(text in "([0-9a-f]{1,9}-[0-9a-f]{1,20} x\n|AnonHugePages: [0-9]{1,25} kB\n|.{0,20}\n){0,8}") {
            let _ = huge_bytes(&text, 0, u64::MAX);
        }
    }
}

//! Memory in huge pages. `unsafe` because `madvise` takes a range of addresses.

use std::ffi::c_void;

use rustix::mm::{Advice, madvise};

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A vector whose items from the returned index on, `len` of them, are in huge pages where the
/// system has some. A table that is read at random beside a recorded program, whose pages fill the
/// processor's TLBs, would otherwise wait for page walks.
pub fn in_huge_pages<T>(len: usize, make: impl FnMut() -> T) -> (Vec<T>, usize) {
    let spare = if len * size_of::<T>() < HUGE_PAGE_BYTES {
        0
    } else {
        HUGE_PAGE_BYTES.div_ceil(size_of::<T>().max(1))
    };
    let mut items: Vec<T> = Vec::with_capacity(len + spare);
    let mut start = 0;
    if spare > 0 {
        let pages = items.as_mut_ptr();
        start = pages.cast::<u8>().align_offset(HUGE_PAGE_BYTES) / size_of::<T>();
        let start = pages.wrapping_add(start).cast::<c_void>();
        // SAFETY: this advice changes no contents; the range is the vector's own, and whole huge
        // pages of it. The range is unused until then, so that its pages are allocated huge.
        let _ = unsafe {
            let length = len * size_of::<T>() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            madvise(start, length, Advice::LinuxHugepage)
        };
    }
    items.resize_with(start + len, make);
    (items, start)
}

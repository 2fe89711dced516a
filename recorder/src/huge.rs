//! Memory in huge pages. `unsafe` because the system is told about a range of addresses.

use std::ffi::c_void;

use rustix::mm::{Advice, madvise};

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A vector whose items from the returned place on, `len` of them, lie in huge pages where the
/// system has some: a table that is read at random by a program that is itself recorded, and whose
/// own pages take up the processor's translations, otherwise waits for page walks too.
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
        // pages of it. It is not used yet, so that the pages come huge.
        let _ = unsafe {
            let length = len * size_of::<T>() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            madvise(start, length, Advice::LinuxHugepage)
        };
    }
    items.resize_with(start + len, make);
    (items, start)
}

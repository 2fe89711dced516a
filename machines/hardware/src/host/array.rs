//! Arrays of plain values that are aligned to a line of the host and, if they are large, are on
//! huge pages: a simulation of random references touches all of them, and would spend as long on
//! the host's page walks as on the simulated ones.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a huge page of the host.
const HUGE: usize = 2 << 20;
/// Bytes of a line of the host.
const LINE: usize = 64;
/// Arrays from this size on are on huge pages.
const LARGE: usize = HUGE / 2;

/// An array of plain values.
pub struct Array<T: Copy> {
    first: NonNull<T>,
    len: usize,
    capacity: usize,
}

// SAFETY: it owns its elements as a `Vec` does.
unsafe impl<T: Copy + Send> Send for Array<T> {}
// SAFETY: the same.
unsafe impl<T: Copy + Sync> Sync for Array<T> {}

impl<T: Copy> Array<T> {
    /// An array of `len` times this value.
    pub fn new(len: usize, value: T) -> Self {
        let mut array = Array { first: NonNull::dangling(), len: 0, capacity: 0 };
        array.resize(len, value);
        array
    }

    /// The memory layout of so many elements.
    fn layout(capacity: usize) -> Layout {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= LINE) };
        let bytes = capacity.checked_mul(size_of::<T>()).expect("an array that fits into memory");
        let (bytes, align) = if bytes >= LARGE {
            (bytes.next_multiple_of(HUGE), HUGE)
        } else {
            (bytes.next_multiple_of(LINE), LINE)
        };
        Layout::from_size_align(bytes, align).expect("an array that fits into memory")
    }

    /// Sets the length; new elements have this value.
    pub fn resize(&mut self, len: usize, value: T) {
        if len > self.capacity {
            self.grow(len.max(2 * self.capacity));
        }
        for n in self.len..len {
            // SAFETY: `n` is below the capacity, so that this is ours to write.
            unsafe { self.first.add(n).write(value) };
        }
        self.len = len;
    }

    fn grow(&mut self, capacity: usize) {
        let layout = Self::layout(capacity);
        // SAFETY: the layout is not empty: the capacity is more than that of an empty array.
        let memory = unsafe { alloc(layout) };
        let Some(first) = NonNull::new(memory.cast::<T>()) else { handle_alloc_error(layout) };
        if layout.align() == HUGE {
            // Where the host has no huge pages the memory stays as it is.
            // SAFETY: this memory is ours, and the advice changes nothing in it.
            let _ = unsafe {
                rustix::mm::madvise(memory.cast(), layout.size(), rustix::mm::Advice::LinuxHugepage)
            };
        }
        // SAFETY: both hold at least `len` elements, and do not overlap: one was just made.
        unsafe { first.copy_from_nonoverlapping(self.first, self.len) };
        self.free();
        (self.first, self.capacity) = (first, capacity);
    }

    fn free(&mut self) {
        if self.capacity > 0 {
            // SAFETY: it was allocated with this layout, and is not used after this.
            unsafe { dealloc(self.first.as_ptr().cast(), Self::layout(self.capacity)) };
        }
    }
}

impl<T: Copy> Drop for Array<T> {
    fn drop(&mut self) {
        self.free();
    }
}

impl<T: Copy> Deref for Array<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements from `first` on have been written, and are borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Array<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the same, and nobody else borrows them.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<T: Copy> Clone for Array<T> {
    fn clone(&self) -> Self {
        let mut clone = Array { first: NonNull::dangling(), len: 0, capacity: 0 };
        if let Some(&value) = self.first() {
            clone.resize(self.len, value);
            clone.copy_from_slice(self);
        }
        clone
    }
}

impl<T: Copy + fmt::Debug> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_vector_that_it_stands_for() {
        let (mut array, mut vector) = (Array::new(3, 7u64), vec![7u64; 3]);
        for len in [3, 1, 0, 5, 64, 63, 70_000, 300_000, 12, 300_001] {
            array.resize(len, len as u64);
            vector.resize(len, len as u64);
            if let Some(last) = vector.last_mut() {
                *last += 1;
                array[len - 1] += 1;
            }
            assert!(*array == *vector, "{len}");
            assert!(*array.clone() == *vector, "{len}");
        }
    }

    #[test]
    fn it_begins_where_a_line_or_a_huge_page_does() {
        for (len, align) in [(1, LINE), (1000, LINE), (LARGE / 4, HUGE), (3 * HUGE, HUGE)] {
            let array = Array::new(len, 1u32);
            assert!((array.as_ptr() as usize).is_multiple_of(align), "{len}");
        }
        assert_eq!(Array::new(0, 1u8).len(), 0);
    }
}

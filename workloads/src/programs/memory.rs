//! The memory that programs compute on: typed arrays, and the trait through which a kernel
//! loads and stores their elements. A kernel written against [`Memory`] is compiled once with
//! [`Native`](super::native::Native), where a load is a load, and once with
//! [`Traced`](super::traced::Traced), where it is also reported.
//!
//! Elements are cells with relaxed atomic access, which on every 64-bit machine is the plain load
//! or store instruction: several threads may share an array without a line of unsafe code. The
//! drawback is that the compiler does not make vector instructions of a loop over them; for arrays
//! larger than the caches memory hides it (measured in the tests of `stream`).

use std::ops::Range;
use std::sync::atomic::{
    AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::AcqRel,
    Ordering::Relaxed,
};

use super::ProgramError;

/// An element type of arrays.
pub trait Element: Copy + Default + PartialEq + Send + Sync + 'static {
    /// The cell of an element in memory.
    type Cell: bytemuck::Zeroable + Send + Sync;
    /// Loads the element.
    fn load(cell: &Self::Cell) -> Self;
    /// Stores the element.
    fn store(cell: &Self::Cell, value: Self);
    /// The value with some of its bits inverted, as by a memory fault.
    fn damaged(self) -> Self;
}

/// An integer that several threads can change at once.
pub trait Integer: Element {
    /// `self + other`, wrapping.
    fn plus(self, other: Self) -> Self;
    /// `self ^ other`.
    fn xor(self, other: Self) -> Self;
    /// Adds atomically; returns the old value.
    fn atomic_add(cell: &Self::Cell, value: Self) -> Self;
    /// Exclusive-ors atomically; returns the old value.
    fn atomic_xor(cell: &Self::Cell, value: Self) -> Self;
    /// Stores `new` if the value is `old`; returns the old value.
    fn atomic_exchange(cell: &Self::Cell, old: Self, new: Self) -> Result<Self, Self>;
}

macro_rules! integers {
    ($($type:ty, $cell:ty);*) => {$(
        impl Element for $type {
            type Cell = $cell;
            #[inline(always)]
            fn load(cell: &$cell) -> $type {
                cell.load(Relaxed)
            }
            #[inline(always)]
            fn store(cell: &$cell, value: $type) {
                cell.store(value, Relaxed);
            }
            fn damaged(self) -> $type {
                self ^ 1
            }
        }
        impl Integer for $type {
            #[inline(always)]
            fn plus(self, other: $type) -> $type {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn xor(self, other: $type) -> $type {
                self ^ other
            }
            fn atomic_add(cell: &$cell, value: $type) -> $type {
                cell.fetch_add(value, AcqRel)
            }
            fn atomic_xor(cell: &$cell, value: $type) -> $type {
                cell.fetch_xor(value, AcqRel)
            }
            fn atomic_exchange(cell: &$cell, old: $type, new: $type) -> Result<$type, $type> {
                cell.compare_exchange(old, new, AcqRel, Relaxed)
            }
        }
    )*};
}

integers!(u8, AtomicU8; u16, AtomicU16; u32, AtomicU32; u64, AtomicU64; i32, AtomicI32; i64, AtomicI64);

impl Element for f64 {
    type Cell = AtomicU64;
    #[inline(always)]
    fn load(cell: &AtomicU64) -> f64 {
        f64::from_bits(cell.load(Relaxed))
    }
    #[inline(always)]
    fn store(cell: &AtomicU64, value: f64) {
        cell.store(value.to_bits(), Relaxed);
    }
    /// A bit of the exponent and one of the mantissa: never a change that rounding could hide.
    fn damaged(self) -> f64 {
        if self == 0.0 { 1.0 } else { f64::from_bits(self.to_bits() ^ (1 << 52 | 1 << 51)) }
    }
}

/// An array in the memory of a program.
pub struct Array<T: Element> {
    pub(super) cells: Box<[T::Cell]>,
    /// Start in the traced address space; 0 when native.
    pub(super) start: u64,
    name: &'static str,
}

impl<T: Element> Array<T> {
    /// An array of zeros without any touch: pages are allocated at their first touch.
    pub(super) fn new(
        name: &'static str,
        len: usize,
        start: u64,
    ) -> Result<Array<T>, ProgramError> {
        let size_bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let cells = bytemuck::allocation::try_zeroed_slice_box(len)
            .map_err(|()| ProgramError::Allocation { name, size_bytes })?;
        Ok(Array { cells, start, name })
    }

    /// The program's name for the array.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Number of elements.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        size_of_val(&*self.cells) as u64
    }

    /// Traced address of an element.
    #[inline(always)]
    pub(super) fn address(&self, index: usize) -> u64 {
        self.start + (index * size_of::<T>()) as u64
    }
}

/// Beginning or end of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// The phase begins.
    Begin,
    /// The phase ends.
    End,
}

/// The phases that every program has; a program may name more.
pub mod phase {
    /// Allocating and filling.
    pub const INIT: &str = "init";
    /// The program's purpose; the time of this phase is the program's duration.
    pub const MAIN: &str = "main";
    /// One turn of the main loop.
    pub const ITERATION: &str = "iteration";
    /// Checking the result. Not traced, unless the benchmark itself does it.
    pub const VERIFY: &str = "verify";
}

/// The memory that a kernel computes on. One value of it is one thread's view.
pub trait Memory: Sized {
    /// Makes an array of zeros. Natively its pages are allocated at their first touch.
    fn array<T: Element>(
        &mut self,
        name: &'static str,
        len: usize,
    ) -> Result<Array<T>, ProgramError>;

    /// Loads an element.
    ///
    /// # Panics
    /// When there is no such element.
    fn get<T: Element>(&mut self, array: &Array<T>, index: usize) -> T;

    /// Stores an element.
    ///
    /// # Panics
    /// When there is no such element.
    fn set<T: Element>(&mut self, array: &Array<T>, index: usize, value: T);

    /// Adds to an element; returns the old value. A load and a store, indivisible.
    fn add<T: Integer>(&mut self, array: &Array<T>, index: usize, value: T) -> T;

    /// Exclusive-ors into an element; returns the old value. Indivisible.
    fn xor<T: Integer>(&mut self, array: &Array<T>, index: usize, value: T) -> T;

    /// Stores `new` if the element is `old`; returns whether it was. Indivisible.
    fn claim<T: Integer>(&mut self, array: &Array<T>, index: usize, old: T, new: T) -> bool;

    /// Reports that the processor executes about this many instructions here that neither load from
    /// nor store to an array. Costs nothing natively. The figures in the kernels were fitted to the
    /// instructions that the release build executes on x86-64 in the main phase: within a tenth for
    /// most programs (`perf stat -e instructions:u` at two lengths of run, their difference).
    fn work(&mut self, instructions: u32);

    /// Marks a beginning or end of a phase. On the main thread only.
    fn mark(&mut self, phase: &'static str, iteration: u64, edge: Edge);

    /// Runs work that is not part of the program, such as its verification, without reporting it.
    fn quietly<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R;

    /// Number of threads that [`Memory::parallel`] uses.
    fn threads(&self) -> usize;

    /// Divides `0..items` over the threads, each a contiguous share, and waits for all. Each has an
    /// accumulator of its own, made by `start` from the thread's number; they are returned in the
    /// order of the shares. Equal `items`, equal shares. `body` may get its share in pieces, in
    /// order: traced, the threads take turns of `grain` items, so that their references interleave.
    fn parallel<A, F>(
        &mut self,
        items: usize,
        grain: usize,
        start: impl Fn(usize) -> A,
        body: F,
    ) -> Vec<A>
    where
        A: Send,
        F: Fn(&mut Self, &mut A, Range<usize>) + Sync;

    /// Runs a phase between its marks.
    fn phase<R>(
        &mut self,
        phase: &'static str,
        iteration: u64,
        body: impl FnOnce(&mut Self) -> R,
    ) -> R {
        self.mark(phase, iteration, Edge::Begin);
        let result = body(self);
        self.mark(phase, iteration, Edge::End);
        result
    }

    /// Runs `body` for each item, divided over the threads.
    fn each(&mut self, items: usize, body: impl Fn(&mut Self, usize) + Sync) {
        let run = |m: &mut Self, (): &mut (), range: Range<usize>| {
            for i in range {
                body(m, i);
            }
        };
        self.parallel(items, GRAIN, |_| (), run);
    }

    /// Sums `body` over the items, divided over the threads. Adds up in blocks of a fixed size,
    /// so that the result does not depend on the number of threads.
    fn sum(&mut self, items: usize, body: impl Fn(&mut Self, usize) -> f64 + Sync) -> f64 {
        let run = |m: &mut Self, sums: &mut Vec<f64>, blocks: Range<usize>| {
            for block in blocks {
                let range = block * GRAIN..((block + 1) * GRAIN).min(items);
                let mut sum = 0.0;
                for i in range {
                    sum += body(m, i);
                }
                sums.push(sum);
            }
        };
        self.parallel(items.div_ceil(GRAIN), 1, |_| Vec::new(), run).into_iter().flatten().sum()
    }
}

/// Items of a plain loop that a thread does in one turn when traced, and the block of a sum.
pub const GRAIN: usize = 64;

/// The contiguous share of thread `thread` of `threads` in `0..items`.
pub(super) fn share(items: usize, threads: usize, thread: usize) -> Range<usize> {
    let at = |t: usize| (items as u128 * t as u128 / threads as u128) as usize;
    at(thread)..at(thread + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for (items, threads) in [(0, 1), (1, 3), (7, 3), (64, 8), (1000, 7)] {
            let all: Vec<usize> = (0..threads).flat_map(|t| share(items, threads, t)).collect();
            assert_eq!(all, (0..items).collect::<Vec<_>>(), "{items} over {threads}");
        }
    }

    #[test]
    fn damage_changes_every_value() {
        assert_ne!(0.0f64.damaged(), 0.0);
        assert_ne!(1.5f64.damaged(), 1.5);
        assert_ne!(7u32.damaged(), 7);
    }
}

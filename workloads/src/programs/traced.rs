//! Programs as generators of references: every load and store of an array is reported to a
//! [`Sink`], at addresses that are the same on every machine.
//!
//! Address space: arrays follow each other upwards from [`BASE_ADDRESS`] in the order in which the
//! program makes them; those of 2 MB and more start at a multiple of 2 MB, as Linux places large
//! anonymous mappings since 6.7, smaller ones at a multiple of 4 KB. An unmapped page is between
//! any two.
//!
//! Threads: the program runs on one thread of the host. In a parallel section the threads take
//! turns, in order, each doing so many items of its share (the section's grain); thread 0 runs
//! everything outside of parallel sections. So the stream is the same at every run.

use std::ops::{ControlFlow, Range};

use terrace_core::page::PageSize;

use super::ProgramError;
use super::memory::{Array, Edge, Element, Integer, Memory, share};
use super::native::Clock;
use super::sink::{Mark, Reference, Region, Sink};

/// Where the first array of a traced program starts.
pub const BASE_ADDRESS: u64 = 1 << 44;

/// References passed to the sink at once.
const BLOCK: usize = 4096;

/// Payload that unwinds a program whose sink has stopped.
pub(super) struct Stopped;

/// The memory of a program whose references are reported.
pub struct Traced<'a> {
    sink: &'a mut dyn Sink,
    block: Vec<Reference>,
    quiet: bool,
    threads: usize,
    /// The thread whose turn it is.
    thread: u16,
    /// Instructions since the last reference of the thread whose turn it is.
    gap: u32,
    next_address: u64,
    footprint_bytes: u64,
    clock: Clock,
}

impl<'a> Traced<'a> {
    /// Memory for a program of so many threads.
    pub(super) fn new(threads: usize, sink: &'a mut dyn Sink) -> Traced<'a> {
        Traced {
            sink,
            block: Vec::with_capacity(BLOCK),
            quiet: false,
            threads,
            thread: 0,
            gap: 0,
            next_address: BASE_ADDRESS,
            footprint_bytes: 0,
            clock: Clock::default(),
        }
    }

    /// Bytes of all arrays that were made.
    pub(super) fn footprint_bytes(&self) -> u64 {
        self.footprint_bytes
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline(always)]
    fn report<T: Element>(&mut self, array: &Array<T>, index: usize, is_store: bool) {
        if self.quiet {
            return;
        }
        let reference = Reference {
            address: array.address(index),
            gap: self.gap,
            thread: self.thread,
            size: size_of::<T>() as u8,
            is_store,
        };
        self.gap = 0;
        self.block.push(reference);
        if self.block.len() == BLOCK {
            self.flush();
        }
    }

    /// Passes on the references gathered.
    #[cold]
    pub(super) fn flush(&mut self) {
        let flow = self.sink.references(&self.block);
        self.block.clear();
        if let ControlFlow::Break(()) = flow {
            // Not a panic: unwinds to `trace`, past kernels that need not know of it.
            std::panic::resume_unwind(Box::new(Stopped));
        }
    }
}

impl Memory for Traced<'_> {
    fn array<T: Element>(
        &mut self,
        name: &'static str,
        len: usize,
    ) -> Result<Array<T>, ProgramError> {
        let size_bytes = len as u64 * size_of::<T>() as u64;
        let huge_eligible = size_bytes >= PageSize::Huge.bytes();
        let page = if huge_eligible { PageSize::Huge } else { PageSize::Base };
        let start = self.next_address.next_multiple_of(page.bytes());
        let array = Array::new(name, len, start)?;
        let base = PageSize::Base.bytes();
        self.next_address = (start + size_bytes).next_multiple_of(base) + base;
        self.footprint_bytes += size_bytes;
        self.flush();
        self.sink.region(&Region { name, start, size_bytes, huge_eligible });
        Ok(array)
    }

    #[inline(always)]
    fn get<T: Element>(&mut self, array: &Array<T>, index: usize) -> T {
        self.report(array, index, false);
        T::load(&array.cells[index])
    }

    #[inline(always)]
    fn set<T: Element>(&mut self, array: &Array<T>, index: usize, value: T) {
        self.report(array, index, true);
        T::store(&array.cells[index], value);
    }

    fn add<T: Integer>(&mut self, array: &Array<T>, index: usize, value: T) -> T {
        let old = self.get(array, index);
        self.set(array, index, old.plus(value));
        old
    }

    fn xor<T: Integer>(&mut self, array: &Array<T>, index: usize, value: T) -> T {
        let old = self.get(array, index);
        self.set(array, index, old.xor(value));
        old
    }

    fn claim<T: Integer>(&mut self, array: &Array<T>, index: usize, old: T, new: T) -> bool {
        let free = self.get(array, index) == old;
        if free {
            self.set(array, index, new);
        }
        free
    }

    #[inline(always)]
    fn work(&mut self, instructions: u32) {
        // Quiet work is not the program's.
        if !self.quiet {
            self.gap = self.gap.saturating_add(instructions);
        }
    }

    fn mark(&mut self, phase: &'static str, iteration: u64, edge: Edge) {
        self.flush();
        self.clock.mark(phase, edge);
        self.sink.mark(&Mark { phase, iteration, edge });
    }

    fn quietly<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.quiet, true);
        let result = body(self);
        self.quiet = before;
        result
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn parallel<A, F>(
        &mut self,
        items: usize,
        grain: usize,
        start: impl Fn(usize) -> A,
        body: F,
    ) -> Vec<A>
    where
        A: Send,
        F: Fn(&mut Self, &mut A, Range<usize>) + Sync,
    {
        let mut accumulators: Vec<A> = (0..self.threads).map(start).collect();
        if let [only] = &mut accumulators[..] {
            body(self, only, 0..items);
            return accumulators;
        }
        let mut shares: Vec<Range<usize>> =
            (0..self.threads).map(|t| share(items, self.threads, t)).collect();
        let mut gaps = vec![0; self.threads];
        gaps[0] = self.gap;
        while shares.iter().any(|s| !s.is_empty()) {
            for (thread, (share, accumulator)) in
                shares.iter_mut().zip(&mut accumulators).enumerate()
            {
                let piece = share.start..share.end.min(share.start + grain);
                share.start = piece.end;
                if !piece.is_empty() {
                    self.thread = thread as u16;
                    self.gap = gaps[thread];
                    body(self, accumulator, piece);
                    gaps[thread] = self.gap;
                }
            }
        }
        self.thread = 0;
        self.gap = gaps[0];
        accumulators
    }
}

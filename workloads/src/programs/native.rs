//! Programs at full speed: a load is a load, a store is a store, a thread is a thread.

use std::ops::Range;
use std::time::Instant;

use super::ProgramError;
use super::memory::{Array, Edge, Element, Integer, Memory, share};
use super::sink::Mark;

/// Listener for marks while a native program runs.
pub type MarkListener<'a> = dyn FnMut(&Mark) + Send + 'a;

/// The memory of a program that runs untraced.
pub struct Native<'a> {
    threads: usize,
    footprint_bytes: u64,
    clock: Clock,
    listener: Option<Box<MarkListener<'a>>>,
}

/// Time of each phase, in the order in which they first began; iterations are added up.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock {
    open: Vec<(&'static str, Instant)>,
    phases: Vec<(&'static str, f64)>,
}

impl Clock {
    pub(super) fn mark(&mut self, phase: &'static str, edge: Edge) {
        match edge {
            Edge::Begin => {
                if !self.phases.iter().any(|(name, _)| *name == phase) {
                    self.phases.push((phase, 0.0));
                }
                self.open.push((phase, Instant::now()));
            }
            Edge::End => {
                let (name, since) = self.open.pop().expect("a phase that ends has begun");
                assert_eq!(name, phase, "phases nest");
                let total = self.phases.iter_mut().find(|(n, _)| *n == phase);
                total.expect("begun").1 += since.elapsed().as_secs_f64();
            }
        }
    }

    pub(super) fn phases(&self) -> &[(&'static str, f64)] {
        &self.phases
    }
}

impl<'a> Native<'a> {
    /// Memory for a program of so many threads.
    pub(super) fn new(threads: usize, listener: Option<Box<MarkListener<'a>>>) -> Native<'a> {
        Native { threads, footprint_bytes: 0, clock: Clock::default(), listener }
    }

    /// Bytes of all arrays that were made.
    pub(super) fn footprint_bytes(&self) -> u64 {
        self.footprint_bytes
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl Memory for Native<'_> {
    fn array<T: Element>(
        &mut self,
        name: &'static str,
        len: usize,
    ) -> Result<Array<T>, ProgramError> {
        let array = Array::new(name, len, 0)?;
        self.footprint_bytes += array.size_bytes();
        Ok(array)
    }

    #[inline(always)]
    fn get<T: Element>(&mut self, array: &Array<T>, index: usize) -> T {
        T::load(&array.cells[index])
    }

    #[inline(always)]
    fn set<T: Element>(&mut self, array: &Array<T>, index: usize, value: T) {
        T::store(&array.cells[index], value);
    }

    // A lone thread needs no lock prefix, which costs more than the rest of the loop.
    #[inline(always)]
    fn add<T: Integer>(&mut self, array: &Array<T>, index: usize, value: T) -> T {
        let cell = &array.cells[index];
        if self.threads > 1 {
            return T::atomic_add(cell, value);
        }
        let old = T::load(cell);
        T::store(cell, old.plus(value));
        old
    }

    #[inline(always)]
    fn xor<T: Integer>(&mut self, array: &Array<T>, index: usize, value: T) -> T {
        let cell = &array.cells[index];
        if self.threads > 1 {
            return T::atomic_xor(cell, value);
        }
        let old = T::load(cell);
        T::store(cell, old.xor(value));
        old
    }

    #[inline(always)]
    fn claim<T: Integer>(&mut self, array: &Array<T>, index: usize, old: T, new: T) -> bool {
        let cell = &array.cells[index];
        if self.threads > 1 {
            return T::atomic_exchange(cell, old, new).is_ok();
        }
        let free = T::load(cell) == old;
        if free {
            T::store(cell, new);
        }
        free
    }

    #[inline(always)]
    fn work(&mut self, _instructions: u32) {}

    fn mark(&mut self, phase: &'static str, iteration: u64, edge: Edge) {
        self.clock.mark(phase, edge);
        if let Some(listener) = &mut self.listener {
            listener(&Mark { phase, iteration, edge });
        }
    }

    fn quietly<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        body(self)
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn parallel<A, F>(
        &mut self,
        items: usize,
        _grain: usize,
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
        let (threads, body) = (self.threads, &body);
        std::thread::scope(|scope| {
            for (thread, accumulator) in accumulators.iter_mut().enumerate() {
                scope.spawn(move || {
                    body(
                        &mut Native::new(threads, None),
                        accumulator,
                        share(items, threads, thread),
                    );
                });
            }
        });
        accumulators
    }
}

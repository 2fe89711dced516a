//! Memory that fails once, for the tests of the programs' own checks.

use std::ops::Range;

use super::ProgramError;
use super::memory::{Array, Edge, Element, Integer, Memory};
use super::native::Native;

/// Native memory of one thread that damages one store to one array in one phase.
pub struct Faulty {
    native: Native<'static>,
    phase: &'static str,
    array: &'static str,
    /// The store to damage, counted from 0.
    damaged: u64,
    /// Stores to the array in the phase so far.
    stores: u64,
    in_phase: bool,
}

impl Faulty {
    /// Damages this store to the array in the phase, counted from 0.
    pub fn new(phase: &'static str, array: &'static str, damaged: u64) -> Faulty {
        let native = Native::new(1, None);
        Faulty { native, phase, array, damaged, stores: 0, in_phase: false }
    }

    /// Stores to the array in the phase.
    pub fn stores(&self) -> u64 {
        self.stores
    }
}

impl Memory for Faulty {
    fn array<T: Element>(
        &mut self,
        name: &'static str,
        len: usize,
    ) -> Result<Array<T>, ProgramError> {
        self.native.array(name, len)
    }

    fn get<T: Element>(&mut self, array: &Array<T>, index: usize) -> T {
        self.native.get(array, index)
    }

    fn set<T: Element>(&mut self, array: &Array<T>, index: usize, value: T) {
        let mut stored = value;
        if self.in_phase && array.name() == self.array {
            if self.stores == self.damaged {
                stored = value.damaged();
            }
            self.stores += 1;
        }
        self.native.set(array, index, stored);
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

    fn work(&mut self, _instructions: u32) {}

    fn mark(&mut self, name: &'static str, _iteration: u64, edge: Edge) {
        if name == self.phase {
            self.in_phase = edge == Edge::Begin;
        }
    }

    fn quietly<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        body(self)
    }

    fn threads(&self) -> usize {
        1
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
        let mut accumulator = start(0);
        body(self, &mut accumulator, 0..items);
        vec![accumulator]
    }
}

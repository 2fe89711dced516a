//! Receivers of a traced program's references: the [`Sink`] trait, its events, and two sinks of
//! general use.

use std::ops::ControlFlow;

use super::memory::Edge;
use crate::memory::checked::mix;

/// One load or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// Virtual address.
    pub address: u64,
    /// Instructions that the same thread executed between its last reference and this one; the
    /// loading or storing instruction itself is not among them.
    pub gap: u32,
    /// Thread of the program, from 0.
    pub thread: u16,
    /// Bytes loaded or stored.
    pub size: u8,
    /// Whether it stores.
    pub is_store: bool,
}

/// A range of the address space with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// The program's name for the region.
    pub name: &'static str,
    /// First address.
    pub start: u64,
    /// Size.
    pub size_bytes: u64,
    /// Whether a huge page fits in it.
    pub huge_eligible: bool,
}

/// A beginning or end of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Mark {
    /// The phase: see [`super::memory::phase`].
    pub phase: &'static str,
    /// Turn of the phase, from 0.
    pub iteration: u64,
    /// Beginning or end.
    pub edge: Edge,
}

/// Receives the references, regions and marks of a program, in program order.
pub trait Sink {
    /// A load or store. `Break` ends the program there.
    fn reference(&mut self, reference: &Reference) -> ControlFlow<()>;

    /// A new region. Comes before the first reference to it.
    fn region(&mut self, region: &Region) {
        let _ = region;
    }

    /// A beginning or end of a phase.
    fn mark(&mut self, mark: &Mark) {
        let _ = mark;
    }

    /// Several references at once; a traced program calls this. Worth overriding where the sink
    /// does something per block.
    fn references(&mut self, block: &[Reference]) -> ControlFlow<()> {
        block.iter().try_for_each(|r| self.reference(r))
    }
}

/// Counts the references, regions and marks.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counter {
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Bytes loaded and stored.
    pub bytes: u64,
    /// Instructions in all: references and the gaps between them.
    pub instructions: u64,
    /// Marks.
    pub marks: u64,
    /// Regions.
    pub regions: u64,
    /// Bytes of all regions.
    pub region_bytes: u64,
}

impl Sink for Counter {
    fn reference(&mut self, r: &Reference) -> ControlFlow<()> {
        self.stores += u64::from(r.is_store);
        self.loads += u64::from(!r.is_store);
        self.bytes += u64::from(r.size);
        self.instructions += u64::from(r.gap) + 1;
        ControlFlow::Continue(())
    }

    fn region(&mut self, region: &Region) {
        self.regions += 1;
        self.region_bytes += region.size_bytes;
    }

    fn mark(&mut self, _mark: &Mark) {
        self.marks += 1;
    }
}

/// Hashes everything received, in order: equal hashes, equal streams. Stops after a number of
/// references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hasher {
    hash: u64,
    left: u64,
}

impl Hasher {
    /// A hasher that ends the program after so many references.
    pub fn stop_after(references: u64) -> Hasher {
        Hasher { hash: 0, left: references }
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    fn add(&mut self, value: u64) {
        self.hash = mix(self.hash ^ value);
    }

    fn add_name(&mut self, name: &str) {
        name.bytes().for_each(|b| self.add(b.into()));
    }
}

impl Sink for Hasher {
    fn reference(&mut self, r: &Reference) -> ControlFlow<()> {
        if self.left == 0 {
            return ControlFlow::Break(());
        }
        self.left -= 1;
        let rest = u64::from(r.gap) << 32
            | u64::from(r.thread) << 16
            | u64::from(r.size) << 8
            | u64::from(r.is_store);
        self.add(r.address ^ rest.rotate_left(40));
        ControlFlow::Continue(())
    }

    fn region(&mut self, region: &Region) {
        self.add_name(region.name);
        self.add(region.start);
        self.add(region.size_bytes);
    }

    fn mark(&mut self, mark: &Mark) {
        self.add_name(mark.phase);
        self.add(mark.iteration << 1 | u64::from(mark.edge == Edge::Begin));
    }
}

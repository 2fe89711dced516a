//! What references do to translations and caches, apart from the times that they take.
//!
//! It depends on the order of references alone. So a [`Node`](super::Node) asks a [`Front`] what a
//! reference finds and computes when that is done: [`Hardware`] has the TLBs, walkers and caches, and
//! [`Reader`](super::trace::Reader) has only what they did for another node.

use super::{NodeConfig, Streams};
use crate::address::{LineAddress, PhysicalAddress, VirtualAddress};
use crate::cache::array::Access;
use crate::cache::hierarchy::{CacheHierarchy, Entry, Level};
use crate::error::ConfigError;
use crate::tlb::{Lookup, Tlbs};
use crate::units::Picoseconds;
use crate::walker::{Fault, PageTable, WalkMemory, Walker};

/// A page to be translated for a reference.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The core that makes the reference.
    pub core: usize,
    /// An address in the page.
    pub address: VirtualAddress,
    /// Whether the reference is a store.
    pub write: bool,
}

/// Translations and caches, as a node uses them for each reference, in the order of these functions.
pub trait Front {
    /// Binary logarithm of the line size.
    fn line_bits(&self) -> u32;

    /// A reference begins.
    fn begin(&mut self);

    /// The physical address, where the first-level TLB has it.
    fn lookup_first_level(&mut self, page: Wanted) -> Option<PhysicalAddress>;

    /// The rest of a lookup that the first level does not serve.
    fn lookup_farther(&mut self, page: Wanted) -> Lookup;

    /// A whole lookup.
    #[inline]
    fn lookup(&mut self, page: Wanted) -> Lookup {
        match self.lookup_first_level(page) {
            Some(physical) => Lookup::L1(physical),
            None => self.lookup_farther(page),
        }
    }

    /// Walks from `start` on for a lookup that found nothing, and fills the TLBs. `access` is given the
    /// time of each access of the walk, the level that serves it, its line, and the lines that it evicts
    /// to memory, and returns when it is done. Returns when the walk is, and the physical address.
    fn walk(
        &mut self,
        page: Wanted,
        lookup: Lookup,
        start: Picoseconds,
        table: &mut impl PageTable,
        access: impl FnMut(Picoseconds, Level, LineAddress, &[LineAddress]) -> Picoseconds,
    ) -> Result<(Picoseconds, PhysicalAddress), Fault>;

    /// One line in the first level. After a miss [`Front::access_farther`] must follow.
    fn access_first_level(&mut self, core: usize, line: LineAddress, write: bool) -> Access;

    /// The level that serves a line that the first level missed.
    fn access_farther(&mut self, core: usize, line: LineAddress, l1: Access) -> Level;

    /// One line: the level that serves it.
    #[inline]
    fn access(&mut self, core: usize, line: LineAddress, write: bool) -> Level {
        let l1 = self.access_first_level(core, line, write);
        if l1.is_hit() { Level::L1 } else { self.access_farther(core, line, l1) }
    }

    /// Dirty lines that the last [`Front::access_farther`] evicted to memory, in order.
    fn writebacks(&self) -> &[LineAddress];

    /// Trains the prefetcher with a line that the first level missed. `read` is given each line that it
    /// reads from memory, and the dirty lines that this evicts.
    fn prefetch(
        &mut self,
        core: usize,
        line: LineAddress,
        read: impl FnMut(LineAddress, &[LineAddress]),
    );
}

/// The TLBs, walkers, caches and prefetchers of a processor.
#[derive(Debug, Clone)]
pub struct Hardware {
    pub(super) tlbs: Vec<Tlbs>,
    pub(super) walkers: Vec<Walker>,
    pub(super) caches: CacheHierarchy,
    pub(super) walks_enter: Entry,
    /// By core; empty without prefetchers.
    streams: Vec<Streams>,
}

impl Hardware {
    /// Nothing translated and nothing cached.
    pub fn new(config: &NodeConfig) -> Result<Self, ConfigError> {
        let n = config.cores as usize;
        let caches = CacheHierarchy::new(&config.caches, n).map_err(|e| e.within("caches"))?;
        let streams = match &config.prefetcher {
            Some(prefetcher) => {
                prefetcher.check(&config.caches)?;
                vec![Streams::new(prefetcher, caches.line_bits()); n]
            }
            None => Vec::new(),
        };
        Ok(Hardware {
            tlbs: vec![Tlbs::new(&config.tlbs)?; n],
            walkers: vec![Walker::new(&config.walker)?; n],
            caches,
            walks_enter: config.walks_enter,
            streams,
        })
    }

    /// The caches.
    pub fn caches(&self) -> &CacheHierarchy {
        &self.caches
    }

    /// Drops every translation of a range on a core, like a series of `invlpg`.
    pub fn invalidate_range(&mut self, core: usize, start: VirtualAddress, size_bytes: u64) {
        self.tlbs[core].invalidate_range(start, size_bytes);
        self.walkers[core].flush();
    }

    /// Drops all translations of a core (a write to `cr3`).
    pub fn flush_translations(&mut self, core: usize) {
        self.tlbs[core].flush();
        self.walkers[core].flush();
    }
}

impl Front for Hardware {
    #[inline]
    fn line_bits(&self) -> u32 {
        self.caches.line_bits()
    }

    #[inline(always)]
    fn begin(&mut self) {}

    #[inline(always)]
    fn lookup_first_level(&mut self, page: Wanted) -> Option<PhysicalAddress> {
        self.tlbs[page.core].lookup_first_level(page.address, page.write)
    }

    #[inline(always)]
    fn lookup_farther(&mut self, page: Wanted) -> Lookup {
        self.tlbs[page.core].lookup_farther(page.address, page.write)
    }

    #[inline(always)]
    fn walk(
        &mut self,
        page: Wanted,
        lookup: Lookup,
        start: Picoseconds,
        table: &mut impl PageTable,
        access: impl FnMut(Picoseconds, Level, LineAddress, &[LineAddress]) -> Picoseconds,
    ) -> Result<(Picoseconds, PhysicalAddress), Fault> {
        let Wanted { core, address, write } = page;
        let enter = self.walks_enter;
        let mut through = Through { caches: &mut self.caches, enter, core, access };
        let walk = self.walkers[core].walk(start, address, write, &*table, &mut through)?;
        if walk.set_accessed || walk.set_dirty {
            table.set_bits(address, walk.set_dirty);
        }
        let leaf = walk.leaf;
        self.tlbs[core].fill(lookup, address, leaf.size, leaf.frame, write || leaf.dirty);
        let offset = address.0 & (leaf.size.bytes() - 1);
        Ok((walk.done, PhysicalAddress(leaf.frame.0 | offset)))
    }

    #[inline(always)]
    fn access_first_level(&mut self, core: usize, line: LineAddress, write: bool) -> Access {
        self.caches.access_first_level(core, line, write)
    }

    #[inline(always)]
    fn access_farther(&mut self, core: usize, line: LineAddress, l1: Access) -> Level {
        self.caches.access_farther(core, line, l1)
    }

    #[inline]
    fn writebacks(&self) -> &[LineAddress] {
        self.caches.writebacks()
    }

    #[inline]
    fn prefetch(
        &mut self,
        core: usize,
        line: LineAddress,
        mut read: impl FnMut(LineAddress, &[LineAddress]),
    ) {
        let Some(streams) = self.streams.get_mut(core) else { return };
        for line in streams.train(line) {
            if self.caches.prefetch_line(core, line) == Level::Memory {
                read(line, self.caches.writebacks());
            }
        }
    }
}

/// A walk's path through the caches.
struct Through<'a, A> {
    caches: &'a mut CacheHierarchy,
    enter: Entry,
    core: usize,
    access: A,
}

impl<A> WalkMemory for Through<'_, A>
where
    A: FnMut(Picoseconds, Level, LineAddress, &[LineAddress]) -> Picoseconds,
{
    #[inline(always)]
    fn walk_access(
        &mut self,
        now: Picoseconds,
        _level: usize,
        entry: PhysicalAddress,
        write: bool,
    ) -> Picoseconds {
        let line = entry.line(self.caches.line_bits());
        let level = self.caches.access_from(self.enter, self.core, line, write);
        // A hit in the first level evicts nothing.
        let evicted = if level == Level::L1 { &[] } else { self.caches.writebacks() };
        (self.access)(now, level, line, evicted)
    }
}

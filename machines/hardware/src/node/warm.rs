//! Functional simulation: a reference that changes translations and caches and takes no time.
//!
//! Between the windows of a sampled simulation nothing is timed, but TLBs, paging-structure caches,
//! page-table bits and caches must be as if it had been. What they do depends on the order of
//! references alone, so that leaving out the core and the memory leaves them the same.

use super::{Entry, Node, Reference};
use crate::address::{PhysicalAddress, VirtualAddress};
use crate::cache::hierarchy::{CacheHierarchy, Level};
use crate::tlb::Lookup;
use crate::units::Picoseconds;
use crate::walker::{Fault, PageTable, WalkMemory};

impl Node {
    /// One reference of one core as by [`Node::reference`], except that no time passes and memory
    /// is not asked. Returns the level that served it (the farther one of two lines).
    #[inline]
    pub fn warm(
        &mut self,
        core: usize,
        reference: &Reference,
        table: &mut impl PageTable,
    ) -> Result<Level, Fault> {
        let (address, write) = (reference.address, reference.kind.is_write());
        let last = VirtualAddress(address.0 + u64::from(reference.size.max(1) - 1));
        if (address.0 ^ last.0) >> self.line_bits == 0 {
            let physical = match self.tlbs[core].lookup_first_level(address, write) {
                Some(physical) => physical,
                None => {
                    let lookup = self.tlbs[core].lookup_farther(address, write);
                    self.warm_translation(core, lookup, address, write, table)?
                }
            };
            return Ok(self.warm_line(core, physical, write));
        }
        // Both are translated before either is used, as by a timed reference.
        let lookup = self.tlbs[core].lookup(address, write);
        let first = self.warm_translation(core, lookup, address, write, table)?;
        let lookup = self.tlbs[core].lookup(last, write);
        let second = self.warm_translation(core, lookup, last, write, table)?;
        let level = self.warm_line(core, first, write);
        Ok(level.max(self.warm_line(core, second, write)))
    }

    /// One line, and those that a prefetcher asks for with it.
    #[inline]
    fn warm_line(&mut self, core: usize, physical: PhysicalAddress, write: bool) -> Level {
        let line = physical.line(self.line_bits);
        let level = self.caches.access(core, line, write);
        if level != Level::L1
            && let Some(prefetchers) = &mut self.prefetchers
        {
            for line in prefetchers.streams[core].train(line) {
                self.caches.prefetch_line(core, line);
            }
        }
        level
    }

    fn warm_translation(
        &mut self,
        core: usize,
        lookup: Lookup,
        address: VirtualAddress,
        write: bool,
        table: &mut impl PageTable,
    ) -> Result<PhysicalAddress, Fault> {
        if let Lookup::L1(physical) | Lookup::L2(physical) = lookup {
            return Ok(physical);
        }
        let now = self.cores[core].now();
        let mut caches = Untimed {
            caches: &mut self.caches,
            enter: self.walks_enter,
            line_bits: self.line_bits,
            core,
        };
        let walk = self.walkers[core].walk(now, address, write, &*table, &mut caches)?;
        if walk.set_accessed || walk.set_dirty {
            table.set_bits(address, walk.set_dirty);
        }
        let leaf = walk.leaf;
        self.tlbs[core].fill(lookup, address, leaf.size, leaf.frame, write || leaf.dirty);
        Ok(PhysicalAddress(leaf.frame.0 | (address.0 & (leaf.size.bytes() - 1))))
    }
}

/// A walk's path through the caches, in no time.
struct Untimed<'a> {
    caches: &'a mut CacheHierarchy,
    enter: Entry,
    line_bits: u32,
    core: usize,
}

impl WalkMemory for Untimed<'_> {
    fn walk_access(
        &mut self,
        now: Picoseconds,
        _level: usize,
        entry: PhysicalAddress,
        write: bool,
    ) -> Picoseconds {
        self.caches.access_from(self.enter, self.core, entry.line(self.line_bits), write);
        now
    }
}

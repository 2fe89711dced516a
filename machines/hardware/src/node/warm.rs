//! Functional simulation: a reference that changes translations and caches and takes no time.
//!
//! Between the windows of a sampled simulation nothing is timed, but TLBs, paging-structure caches,
//! page-table bits and caches must be as if it had been. What they do depends on the order of
//! references alone, so that leaving out the core and the memory leaves them the same.

use super::front::{Front, Wanted};
use super::{Node, Reference};
use crate::address::{PhysicalAddress, VirtualAddress};
use crate::cache::hierarchy::Level;
use crate::tlb::Lookup;
use crate::walker::{Fault, PageTable};

impl<F: Front> Node<F> {
    /// One reference of one core as by [`Node::reference`], except that no time passes and memory
    /// is not asked. Returns the level that served it (the farther one of two lines).
    #[inline]
    pub fn warm(
        &mut self,
        core: usize,
        reference: &Reference,
        table: &mut impl PageTable,
    ) -> Result<Level, Fault> {
        self.front.begin();
        let (address, write) = (reference.address, reference.kind.is_write());
        let last = VirtualAddress(address.0 + u64::from(reference.size.max(1) - 1));
        let page = Wanted { core, address, write };
        if (address.0 ^ last.0) >> self.line_bits == 0 {
            let physical = match self.front.lookup_first_level(page) {
                Some(physical) => physical,
                None => {
                    let lookup = self.front.lookup_farther(page);
                    self.warm_translation(page, lookup, table)?
                }
            };
            return Ok(self.warm_line(core, physical, write));
        }
        // Both are translated before either is used, as by a timed reference.
        let lookup = self.front.lookup(page);
        let first = self.warm_translation(page, lookup, table)?;
        let page = Wanted { address: last, ..page };
        let lookup = self.front.lookup(page);
        let second = self.warm_translation(page, lookup, table)?;
        let level = self.warm_line(core, first, write);
        Ok(level.max(self.warm_line(core, second, write)))
    }

    /// One line, and those that a prefetcher asks for with it.
    #[inline]
    fn warm_line(&mut self, core: usize, physical: PhysicalAddress, write: bool) -> Level {
        let line = physical.line(self.line_bits);
        let level = self.front.access(core, line, write);
        if level != Level::L1 && self.arrivals.is_some() {
            self.front.prefetch(core, line, |_, _| {});
        }
        level
    }

    fn warm_translation(
        &mut self,
        page: Wanted,
        lookup: Lookup,
        table: &mut impl PageTable,
    ) -> Result<PhysicalAddress, Fault> {
        if let Lookup::L1(physical) | Lookup::L2(physical) = lookup {
            return Ok(physical);
        }
        let now = self.cores[page.core].now();
        let walked = self.front.walk(page, lookup, now, table, |now, _, _, _| now);
        walked.map(|(_, physical)| physical)
    }
}

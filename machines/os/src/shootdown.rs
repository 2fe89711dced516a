//! The translations that processors must drop when entries change, and the cost of that
//! (granularity paper, sections 3 and 5).

use terrace_core::page::{SpaceId, VirtualRange};
use terrace_hardware::units::Picoseconds;

use crate::costs::ns;
use crate::os::Os;

/// One shootdown: an interrupt to every processor that runs the address space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shootdown {
    /// The address space whose translations are dropped.
    pub space: SpaceId,
    /// The ranges to invalidate. With `full` the processors drop everything of the space instead.
    pub ranges: Vec<VirtualRange>,
    /// Pages invalidated one by one; 0 with `full`.
    pub invalidations: u64,
    /// Everything is flushed: the pages are more than single invalidations are worth.
    pub full: bool,
    /// Page-table pages changed too: paging-structure caches must be flushed.
    pub tables: bool,
    /// Time of the initiating processor's own invalidations.
    pub local: Picoseconds,
    /// Additional time on that processor, once, if any other processor runs the address space.
    pub send: Picoseconds,
    /// Additional time on that processor for each other one that is interrupted.
    pub wait_per_processor: Picoseconds,
    /// Time on each interrupted processor: the interrupt and the invalidations.
    pub remote: Picoseconds,
}

impl Shootdown {
    /// The whole time on the initiating processor, with so many others interrupted.
    pub fn initiator(&self, others: u64) -> Picoseconds {
        let send = if others > 0 { self.send } else { Picoseconds::ZERO };
        self.local + send + self.wait_per_processor * others
    }
}

impl Os {
    /// One shootdown for `pages` mapped pages (of either size) in these ranges, counted.
    pub(crate) fn shootdown(
        &mut self,
        space: SpaceId,
        ranges: Vec<VirtualRange>,
        pages: u64,
        tables: bool,
    ) -> Shootdown {
        let full = pages > u64::from(self.config.migration.single_invalidations);
        let invalidations = if full { 0 } else { pages };
        self.counters.shootdowns += 1;
        self.counters.single_invalidations += invalidations;
        self.counters.full_flushes += u64::from(full);
        let costs = &self.costs;
        let invalidate =
            if full { ns(costs.full_flush_ns, 1) } else { ns(costs.invlpg_ns, invalidations) };
        Shootdown {
            space,
            ranges,
            invalidations,
            full,
            tables,
            local: invalidate,
            send: ns(costs.shootdown_ns, 1),
            wait_per_processor: ns(costs.shootdown_wait_ns, 1),
            remote: ns(costs.shootdown_interrupt_ns, 1) + invalidate,
        }
    }
}

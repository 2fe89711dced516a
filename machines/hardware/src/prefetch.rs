//! Looking ahead: the data that a reference of the near future will read is prefetched on the
//! simulating machine some references before, so that its own misses overlap. Results do not depend
//! on it.
//!
//! In three steps, each of which needs the data of the one before: the entry of the page table; the
//! sets that the entry's line and the data's line may be in; the sets that take the evicted lines.

use crate::address::{LineAddress, VirtualAddress};
use crate::cache::hierarchy::CacheHierarchy;
use crate::walker::{PageTable, PrefetchEntry};

/// References from one step to the next. A step's data takes some 50 to 100 ns, a reference without
/// waits about as long: a few of them are enough, and more would evict each other.
const STEP: usize = 6;
/// Number of references looked ahead.
pub const AHEAD: usize = 3 * STEP;
/// Entries of the ring, at least [`AHEAD`] and one.
const RING: usize = 32;

/// State of a coming reference.
#[derive(Debug, Clone, Copy, Default)]
struct Coming {
    core: usize,
    address: VirtualAddress,
    entry: Option<PrefetchEntry>,
    line: Option<LineAddress>,
}

/// State of the coming references.
#[derive(Debug, Clone, Default)]
pub struct Prefetcher {
    coming: [Coming; RING],
}

impl Prefetcher {
    /// Drops everything: another sequence of references begins.
    pub fn clear(&mut self) {
        *self = Prefetcher::default();
    }

    /// Reference number `n` is made now, and `next` will be number `n + AHEAD`: a core and an
    /// address.
    #[inline]
    pub fn step(
        &mut self,
        n: usize,
        next: Option<(usize, VirtualAddress)>,
        caches: &CacheHierarchy,
        table: &impl PageTable,
    ) {
        let first = &mut self.coming[(n + AHEAD) % RING];
        *first = match next {
            Some((core, address)) => {
                Coming { core, address, entry: table.prefetch(address), line: None }
            }
            None => Coming::default(),
        };
        let second = &mut self.coming[(n + 2 * STEP) % RING];
        if let Some(entry) = second.entry {
            let bits = caches.line_bits();
            caches.prefetch(second.core, entry.entry.line(bits));
            if let Some(physical) = table.prefetched(entry, second.address) {
                let line = physical.line(bits);
                caches.prefetch(second.core, line);
                second.line = Some(line);
            }
        }
        let third = &mut self.coming[(n + STEP) % RING];
        if let Some(line) = third.line {
            caches.prefetch_victims(third.core, line);
        }
    }
}

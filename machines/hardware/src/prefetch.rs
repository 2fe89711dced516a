//! Looking ahead: what a reference of the near future will look at is asked of the simulating
//! machine some references before, so that its own misses overlap. Results do not depend on it.
//!
//! In three steps, each of which needs what the one before has asked for: the entry of the page
//! table; the sets that the entry's line and the data's line may be in; the sets that take what
//! those lines drive out.

use crate::address::{LineAddress, VirtualAddress};
use crate::node::Node;
use crate::walker::{PageTable, PrefetchEntry};

/// References from one step to the next. A step's answers take some 50 to 100 ns, a reference that
/// waits for nothing about as long: a few of them are enough, and more would push each other out.
const STEP: usize = 6;
/// References that are looked ahead.
pub const AHEAD: usize = 3 * STEP;
/// Places of the ring, at least [`AHEAD`] and one.
const RING: usize = 32;

/// What is known of a reference to come.
#[derive(Debug, Clone, Copy, Default)]
struct Coming {
    core: usize,
    address: VirtualAddress,
    entry: Option<PrefetchEntry>,
    line: Option<LineAddress>,
}

/// What is known of the references to come.
#[derive(Debug, Clone, Default)]
pub struct Prefetcher {
    coming: [Coming; RING],
}

impl Prefetcher {
    /// Forgets everything: another sequence of references begins.
    pub fn clear(&mut self) {
        *self = Prefetcher::default();
    }

    /// The reference of number `n` is made now, that of `n + AHEAD` will be `next`: a core and an
    /// address.
    #[inline]
    pub fn step(
        &mut self,
        n: usize,
        next: Option<(usize, VirtualAddress)>,
        node: &Node,
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
            let caches = node.caches();
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
            node.caches().prefetch_victims(third.core, line);
        }
    }
}

//! What managing one group costs, and what is left out of sight: counters that the tracker
//! and the mover add to and anybody may read meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::time::{ClockId, clock_gettime};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        struct Cells { $($name: AtomicU64,)* }

        /// The costs of a group so far.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct CostSnapshot { $($(#[$doc])* pub $name: u64,)* }

        impl Costs {
            /// All counters at about the same time.
            pub fn snapshot(&self) -> CostSnapshot {
                CostSnapshot { $($name: self.0.$name.load(Relaxed),)* }
            }
            $(
                #[allow(dead_code)]
                pub(crate) fn $name(&self) -> Counter<'_> { Counter(&self.0.$name) }
            )*
        }
    };
}

counters! {
    /// Processor time of the tracker: DAMON's kernel thread and the thread that observes.
    tracker_cpu_ns,
    /// Processor time of the thread that moves pages, copying included.
    mover_cpu_ns,
    /// Pages that are tracked now.
    tracked_pages,
    /// Pages of the group's size beyond the cap on regions, which are not tracked.
    truncated_pages,
    /// Memory of the group in fast memory that is not tracked: pages of another size, page cache.
    untracked_fast_bytes,
    /// The same in slow memory.
    untracked_slow_bytes,
    /// Processes whose translations could not be flushed at the start of a period: pages that
    /// stayed in a TLB may have been taken for unused.
    failed_flushes,
    /// Processes whose turn to be flushed did not come in a period, because the host's budget of
    /// flushes was used.
    skipped_flushes,
    /// How often the tracker was set up anew because the group's pages changed.
    rebuilds,
    /// Time that the last setting up took.
    setup_ns,
    /// Time that setting up anew took in all: accesses in it went unseen.
    unseen_ns,
    /// Periods that were lost.
    lost_periods,
    /// Calls that moved pages.
    move_calls,
    /// Time those calls took.
    move_ns,
    /// The longest of them.
    longest_move_ns,
    /// Pages that a plan wanted moved and that lay where it wanted them already.
    already_there_pages,
}

/// The counters of one group. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Costs(Arc<Cells>);

/// One of them.
pub(crate) struct Counter<'a>(&'a AtomicU64);

impl Counter<'_> {
    pub(crate) fn add(self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn set(self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub(crate) fn raise_to(self, n: u64) {
        self.0.fetch_max(n, Relaxed);
    }
}

/// Processor time of this thread.
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

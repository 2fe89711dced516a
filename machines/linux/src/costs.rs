//! Costs of managing one group, and its untracked memory: counters that the tracker and the mover
//! write and any thread may read.

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
    /// Pages of the group's size beyond the bound on regions, which are not tracked.
    truncated_pages,
    /// Memory of the group in fast memory that is not tracked: pages of another size, page cache.
    untracked_fast_bytes,
    /// The same in slow memory.
    untracked_slow_bytes,
    /// Of both, page cache that no process maps.
    untracked_unmapped_bytes,
    /// Of both, mapped pages of files that are not shared memory, such as programs and libraries.
    untracked_file_bytes,
    /// Of both, memory in pages of another size than the group's.
    untracked_other_size_bytes,
    /// Of both, pages of ranges of 2 MB that hold too few to be tracked.
    untracked_few_pages_bytes,
    /// Of both, memory beyond the bound on tracked memory.
    untracked_over_bound_bytes,
    /// Of both, memory of processes whose page map could not be read.
    untracked_unreadable_bytes,
    /// Of both, shared memory that another group moves.
    untracked_another_group_bytes,
    /// Of both, the rest: memory allocated since the last scan, shared with other processes, or
    /// left behind by a process.
    untracked_other_bytes,
    /// Processes whose translations could not be flushed at the start of a period: pages that
    /// stayed in a TLB may appear unused.
    failed_flushes,
    /// Processes that were not flushed in a period, because the host's budget of flushes was used
    /// up.
    skipped_flushes,
    /// How often the tracker was set up again because the group's pages changed.
    rebuilds,
    /// Duration of the last set-up.
    setup_ns,
    /// Total duration of set-ups: accesses in that time were not observed.
    unseen_ns,
    /// Periods that were lost.
    lost_periods,
    /// Calls that moved pages.
    move_calls,
    /// Time those calls took.
    move_ns,
    /// The longest of these calls.
    longest_move_ns,
    /// Pages of plans that were already in their target tier.
    already_there_pages,
    /// Base pages of ranges whose rates were known when pages to be moved alone were last chosen.
    refined_known_pages,
    /// Base pages of slow ranges that were promoted alone, each in the place of another.
    refined_up_pages,
    /// Base pages of fast ranges that were demoted alone.
    refined_down_pages,
    /// Base pages that were to be moved alone and stayed.
    refined_failed_pages,
}

impl CostSnapshot {
    /// Base pages that moved alone, both ways.
    pub fn base_pages_moved(&self) -> u64 {
        self.refined_up_pages + self.refined_down_pages
    }

    /// Memory that is not tracked, in bytes, by the name of the reason: the same as
    /// `untracked_fast_bytes` and `untracked_slow_bytes` together.
    pub fn untracked_by_reason(&self) -> [(&'static str, u64); 8] {
        [
            ("unmapped", self.untracked_unmapped_bytes),
            ("file", self.untracked_file_bytes),
            ("other_size", self.untracked_other_size_bytes),
            ("few_pages", self.untracked_few_pages_bytes),
            ("over_bound", self.untracked_over_bound_bytes),
            ("unreadable", self.untracked_unreadable_bytes),
            ("another_group", self.untracked_another_group_bytes),
            ("other", self.untracked_other_bytes),
        ]
    }
}

/// The counters of one group. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Costs(Arc<Cells>);

/// One of the counters.
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

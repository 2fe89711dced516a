//! The cost of one program: instructions, time by cause, references by tier.

use std::ops::{AddAssign, Sub};

use serde::Serialize;
use terrace_hardware::cpu::{CAUSE_WALK, CAUSES, Cause, CoreCounts};
use terrace_hardware::node::{CAUSE_L2, CAUSE_LLC, CAUSE_MEMORY, Node};

/// Tiers that are counted apart; a machine with more counts them to the last.
pub const TIERS: usize = 4;

/// Counts of one program in some span of time. Times are summed over its cores, in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Loads and stores.
    pub references: u64,
    /// Those after the program's start-up; 0 where that does not show, as in a recording.
    pub main_references: u64,
    /// Instructions.
    pub instructions: u64,
    /// Time of dispatching instructions.
    pub compute_ps: u64,
    /// Waiting for page walks.
    pub walk_stall_ps: u64,
    /// Waiting for the second-level and last-level caches.
    pub cache_stall_ps: u64,
    /// Waiting for lines of each tier.
    pub memory_stall_ps: [u64; TIERS],
    /// Waiting for room in the store buffer.
    pub store_stall_ps: u64,
    /// Page faults: the operating system's time for them.
    pub fault_ps: u64,
    /// Of that, allocating page-table pages.
    pub table_allocation_ps: u64,
    /// Stopped for migration: shootdowns, cores taken away, pages under way.
    pub migration_ps: u64,
    /// Page faults.
    pub faults: u64,
    /// Faults in which page-table pages were allocated.
    pub table_faults: u64,
    /// Faults that waited for a page under way.
    pub waits: u64,
    /// Page walks.
    pub walks: u64,
    /// Time from the start of each walk to its end; walks overlap with other work.
    pub walk_ps: u64,
    /// Lines read from each tier: misses of the last level, walks included.
    pub reads: [u64; TIERS],
    /// Lines written back to each tier.
    pub writes: [u64; TIERS],
    /// Loads from memory that found no other under way, and their total time (leading loads:
    /// migration granularity paper, section 5).
    pub leading_loads: u64,
    /// Total time of the leading loads, see `leading_loads`.
    pub leading_load_ps: u64,
}

/// Counters of those cores of a node that run one program.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CoreSums {
    counts: CoreCounts,
    walks: u64,
    walk_ps: u64,
}

impl CoreSums {
    /// The counts of these cores so far.
    pub(super) fn of(node: &Node, cores: &[usize]) -> CoreSums {
        let mut sums = CoreSums::default();
        for &core in cores {
            let c = node.core(core).counts();
            let s = &mut sums.counts;
            s.instructions += c.instructions;
            s.compute_ps += c.compute_ps;
            for cause in 0..CAUSES {
                s.stall_ps[cause] += c.stall_ps[cause];
            }
            s.store_stall_ps += c.store_stall_ps;
            s.leading_loads += c.leading_loads;
            s.leading_load_ps += c.leading_load_ps;
            let w = node.walker(core).counts();
            sums.walks += w.walks;
            sums.walk_ps += w.walk_ps;
        }
        sums
    }
}

impl Counts {
    /// Adds the counts of cores between two readings.
    pub(super) fn add_cores(&mut self, before: &CoreSums, after: &CoreSums) {
        let (b, a) = (&before.counts, &after.counts);
        self.instructions += a.instructions - b.instructions;
        self.compute_ps += a.compute_ps - b.compute_ps;
        let stall = |cause: u8| a.stall_ps[usize::from(cause)] - b.stall_ps[usize::from(cause)];
        self.walk_stall_ps += stall(CAUSE_WALK);
        self.cache_stall_ps += stall(CAUSE_L2) + stall(CAUSE_LLC);
        for cause in CAUSE_MEMORY..CAUSES as Cause {
            let tier = usize::from(cause - CAUSE_MEMORY).min(TIERS - 1);
            self.memory_stall_ps[tier] += stall(cause);
        }
        self.store_stall_ps += a.store_stall_ps - b.store_stall_ps;
        self.leading_loads += a.leading_loads - b.leading_loads;
        self.leading_load_ps += a.leading_load_ps - b.leading_load_ps;
        self.walks += after.walks - before.walks;
        self.walk_ps += after.walk_ps - before.walk_ps;
    }

    /// Lines read from the fast tier over lines read: the exact hit ratio of references, which
    /// accessed bits only estimate. 0 when nothing was read.
    pub fn reference_hit_ratio(&self) -> f64 {
        let all: u64 = self.reads.iter().sum();
        if all == 0 { 0.0 } else { self.reads[0] as f64 / all as f64 }
    }
}

macro_rules! each_field {
    ($($field:ident),* ; $($array:ident),*) => {
        impl AddAssign for Counts {
            fn add_assign(&mut self, other: Counts) {
                $(self.$field += other.$field;)*
                $(for tier in 0..TIERS { self.$array[tier] += other.$array[tier]; })*
            }
        }

        impl Sub for Counts {
            type Output = Counts;
            fn sub(mut self, other: Counts) -> Counts {
                $(self.$field -= other.$field;)*
                $(for tier in 0..TIERS { self.$array[tier] -= other.$array[tier]; })*
                self
            }
        }
    };
}
each_field!(
    references, main_references, instructions, compute_ps, walk_stall_ps, cache_stall_ps,
    store_stall_ps, fault_ps, table_allocation_ps, migration_ps, faults, table_faults, waits, walks, walk_ps, leading_loads, leading_load_ps;
    memory_stall_ps, reads, writes
);

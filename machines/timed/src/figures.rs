//! Counters of a timed machine at a mark.

use serde::{Deserialize, Serialize};

/// Counters of one tier.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TierFigures {
    /// The tier's name.
    pub tier: String,
    /// Lines read.
    pub reads: u64,
    /// Lines written.
    pub writes: u64,
    /// Sum of all reads' times from request to answer.
    pub read_ns: f64,
    /// Time that processors stalled for loads from the tier.
    pub stall_ns: f64,
}

impl TierFigures {
    /// Mean latency of a read beyond the caches, under load; `None` without reads.
    #[must_use]
    pub fn loaded_latency_ns(&self) -> Option<f64> {
        (self.reads > 0).then(|| self.read_ns / self.reads as f64)
    }
}

/// Time of the kernel for one cause.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CauseFigures {
    /// [`crate::causes::Cause::name`].
    pub cause: String,
    /// Time that processors ran in the kernel for it.
    pub busy_ns: f64,
}

/// Counters since the clock began to model memory timing. Summed over all processors unless stated
/// otherwise.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Guest time.
    pub time_ns: u64,
    /// Instructions, of programs and of the kernel.
    pub instructions: [u64; 2],
    /// Time that processors ran, in programs and in the kernel.
    pub busy_ns: [u64; 2],
    /// The kernel's part of that by cause. Causes without any are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel: Vec<CauseFigures>,
    /// Loads and stores of memory.
    pub references: u64,
    /// Accesses to devices.
    pub devices: u64,
    /// Time of dispatching instructions.
    pub compute_ns: f64,
    /// Stalls for page walks.
    pub walk_stall_ns: f64,
    /// Stalls for the second and the last level.
    pub cache_stall_ns: [f64; 2],
    /// Stalls for a store buffer that was full.
    pub store_stall_ns: f64,
    /// Page walks.
    pub walks: u64,
    /// Page-table entries that walks read.
    pub walk_reads: u64,
    /// Sum of the walks' times from start to end.
    pub walk_ns: f64,
    /// Uses and misses of the first, second and last level, page walks among them.
    pub caches: [[u64; 2]; 3],
    /// Loads and stores that missed the first, the second, and the last level: of programs, and of the
    /// kernel. Page walks are not among them.
    #[serde(default)]
    pub misses: [[u64; 3]; 2],
    /// Loads that had to wait for an earlier one that was under way.
    pub dependent_loads: u64,
    /// Loads that found no other load from memory under way.
    pub leading_loads: u64,
    /// The tiers, fastest first.
    pub tiers: Vec<TierFigures>,
}

impl Figures {
    /// The counts since an earlier mark.
    #[must_use]
    pub fn since(&self, before: &Figures) -> Figures {
        let two = |a: [u64; 2], b: [u64; 2]| [a[0].saturating_sub(b[0]), a[1].saturating_sub(b[1])];
        let tier = |(at, tier): (usize, &TierFigures)| {
            let none = TierFigures::default();
            let before = before.tiers.get(at).unwrap_or(&none);
            TierFigures {
                tier: tier.tier.clone(),
                reads: tier.reads.saturating_sub(before.reads),
                writes: tier.writes.saturating_sub(before.writes),
                read_ns: tier.read_ns - before.read_ns,
                stall_ns: tier.stall_ns - before.stall_ns,
            }
        };
        let earlier = |cause: &str| {
            let of_cause = before.kernel.iter().find(|c| c.cause == cause);
            of_cause.map_or(0.0, |c| c.busy_ns)
        };
        let kernel = self.kernel.iter().map(|c| CauseFigures {
            cause: c.cause.clone(),
            busy_ns: c.busy_ns - earlier(&c.cause),
        });
        Figures {
            kernel: kernel.filter(|c| c.busy_ns != 0.0).collect(),
            time_ns: self.time_ns.saturating_sub(before.time_ns),
            instructions: two(self.instructions, before.instructions),
            busy_ns: two(self.busy_ns, before.busy_ns),
            references: self.references.saturating_sub(before.references),
            devices: self.devices.saturating_sub(before.devices),
            compute_ns: self.compute_ns - before.compute_ns,
            walk_stall_ns: self.walk_stall_ns - before.walk_stall_ns,
            cache_stall_ns: [
                self.cache_stall_ns[0] - before.cache_stall_ns[0],
                self.cache_stall_ns[1] - before.cache_stall_ns[1],
            ],
            store_stall_ns: self.store_stall_ns - before.store_stall_ns,
            walks: self.walks.saturating_sub(before.walks),
            walk_reads: self.walk_reads.saturating_sub(before.walk_reads),
            walk_ns: self.walk_ns - before.walk_ns,
            caches: std::array::from_fn(|level| two(self.caches[level], before.caches[level])),
            misses: std::array::from_fn(|side| {
                let (now, before) = (self.misses[side], before.misses[side]);
                std::array::from_fn(|level| now[level].saturating_sub(before[level]))
            }),
            dependent_loads: self.dependent_loads.saturating_sub(before.dependent_loads),
            leading_loads: self.leading_loads.saturating_sub(before.leading_loads),
            tiers: self.tiers.iter().enumerate().map(tier).collect(),
        }
    }
}

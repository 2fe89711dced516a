//! Counters of a timed machine at a mark.

use serde::{Deserialize, Serialize};

use crate::windows::WindowFigures;

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
    /// Loads and stores that missed the last level: of programs, and of the kernel. What is read ahead
    /// and page walks are not among them.
    #[serde(default)]
    pub misses: [u64; 2],
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
    /// Instructions of programs, by processor.
    #[serde(default)]
    pub program_instructions: Vec<u64>,
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
    /// With sampling windows: what they found. The counters above, but for time and instructions,
    /// are those of windows and of the beginning; [`extrapolated`](Self::extrapolated) estimates all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<WindowFigures>,
}

impl Figures {
    /// The share of last-level misses that were of the first tier: of programs, and of the kernel;
    /// `None` where there were none. Policies place the memory of programs. The kernel's own, such as
    /// buffers of sockets, stays where it was allocated; but it copies programs' memory, too.
    #[must_use]
    pub fn first_tier_shares(&self) -> [Option<f64>; 2] {
        std::array::from_fn(|side| {
            let all: u64 = self.tiers.iter().map(|tier| tier.misses[side]).sum();
            let first = self.tiers.first().map_or(0, |tier| tier.misses[side]);
            (all > 0).then(|| first as f64 / all as f64)
        })
    }

    /// The counts since an earlier mark.
    #[must_use]
    pub fn since(&self, before: &Figures) -> Figures {
        let windows = self.windows.as_ref().map(|windows| match &before.windows {
            Some(before) => windows.since(before),
            None => windows.clone(),
        });
        Figures { windows, ..self.combine(before, u64::saturating_sub, |now, before| now - before) }
    }

    /// The sum of both, without what is known of windows.
    pub(crate) fn and(&self, other: &Figures) -> Figures {
        self.combine(other, |a, b| a + b, |a, b| a + b)
    }

    /// The same counts, with time, instructions and what processors were busy with of another.
    pub(crate) fn with_time_of(self, other: &Figures) -> Figures {
        Figures {
            time_ns: other.time_ns,
            instructions: other.instructions,
            program_instructions: other.program_instructions.clone(),
            busy_ns: other.busy_ns,
            kernel: other.kernel.clone(),
            ..self
        }
    }

    /// Estimates of all counters, where a part of them was counted in sampling windows only: as
    /// often as in the windows beside them. Time and instructions are whole already.
    #[must_use]
    pub fn extrapolated(&self) -> Figures {
        let Some(windows) = &self.windows else { return self.clone() };
        let more = windows.more_often();
        let estimated = self.combine(
            &windows.counted,
            |all, of_windows| all + (of_windows as f64 * more).round() as u64,
            |all, of_windows| all + of_windows * more,
        );
        Figures { windows: self.windows.clone(), ..estimated.with_time_of(self) }
    }

    /// Combines each counter with the other's.
    fn combine(
        &self,
        other: &Figures,
        whole: impl Fn(u64, u64) -> u64,
        real: impl Fn(f64, f64) -> f64,
    ) -> Figures {
        let two = |a: [u64; 2], b: [u64; 2]| [whole(a[0], b[0]), whole(a[1], b[1])];
        let no_tier = TierFigures::default();
        let tiers = (0..self.tiers.len().max(other.tiers.len())).map(|at| {
            let tier = |figures: &Figures| figures.tiers.get(at).cloned();
            let name = tier(self).or_else(|| tier(other)).map(|tier| tier.tier);
            let (a, b) = (tier(self).unwrap_or(no_tier.clone()), tier(other));
            let b = b.unwrap_or(no_tier.clone());
            TierFigures {
                tier: name.unwrap_or_default(),
                reads: whole(a.reads, b.reads),
                writes: whole(a.writes, b.writes),
                read_ns: real(a.read_ns, b.read_ns),
                stall_ns: real(a.stall_ns, b.stall_ns),
                misses: two(a.misses, b.misses),
            }
        });
        let busy = |figures: &Figures, cause: &str| -> f64 {
            figures.kernel.iter().filter(|c| c.cause == cause).map(|c| c.busy_ns).sum()
        };
        let by_processor = |figures: &Figures, cpu: usize| {
            figures.program_instructions.get(cpu).copied().unwrap_or_default()
        };
        let processors = self.program_instructions.len().max(other.program_instructions.len());
        let mut kernel = self.kernel.clone();
        let more = other.kernel.iter().filter(|c| self.kernel.iter().all(|k| k.cause != c.cause));
        kernel.extend(more.map(|c| CauseFigures { busy_ns: 0.0, ..c.clone() }));
        for of_cause in &mut kernel {
            of_cause.busy_ns = real(of_cause.busy_ns, busy(other, &of_cause.cause));
        }
        kernel.retain(|of_cause| of_cause.busy_ns != 0.0);
        Figures {
            time_ns: whole(self.time_ns, other.time_ns),
            instructions: two(self.instructions, other.instructions),
            program_instructions: (0..processors)
                .map(|cpu| whole(by_processor(self, cpu), by_processor(other, cpu)))
                .collect(),
            busy_ns: two(self.busy_ns, other.busy_ns),
            kernel,
            references: whole(self.references, other.references),
            devices: whole(self.devices, other.devices),
            compute_ns: real(self.compute_ns, other.compute_ns),
            walk_stall_ns: real(self.walk_stall_ns, other.walk_stall_ns),
            cache_stall_ns: std::array::from_fn(|level| {
                real(self.cache_stall_ns[level], other.cache_stall_ns[level])
            }),
            store_stall_ns: real(self.store_stall_ns, other.store_stall_ns),
            walks: whole(self.walks, other.walks),
            walk_reads: whole(self.walk_reads, other.walk_reads),
            walk_ns: real(self.walk_ns, other.walk_ns),
            caches: std::array::from_fn(|level| two(self.caches[level], other.caches[level])),
            misses: std::array::from_fn(|side| {
                let (a, b) = (self.misses[side], other.misses[side]);
                std::array::from_fn(|level| whole(a[level], b[level]))
            }),
            dependent_loads: whole(self.dependent_loads, other.dependent_loads),
            leading_loads: whole(self.leading_loads, other.leading_loads),
            tiers: tiers.collect(),
            windows: None,
        }
    }
}

//! The extended leading-load model: what a program's run time would be on tiers of other latencies
//! (migration-granularity paper, section 5, figures 6 and 7; `docs/coverage.md`, G6).
//!
//! # The model
//! The leading-load model splits the time of a run in two: *compute time*, which does not depend
//! on memory latency, and *memory time*, in which the processor waits for the leading load of a
//! group of misses and which grows with the latency. The paper extends it for two tiers and for
//! migration. A run is measured, or simulated, with both tiers as fast as the fast one. Then, with
//!
//! - `C` compute time and `M` memory time of one thread,
//! - `h` the fast-memory hit ratio of its misses,
//! - `S` the time of shootdowns and other overhead of migration, `K` the time of copying,
//! - `N` the latency of slow memory over that of fast memory,
//!
//! ```text
//! T(N) = C + M h + M (1 - h) N + S + K N
//! ```
//!
//! Accesses to slow memory take N times as long; shootdowns do not touch slow memory (the
//! kernel's own memory is fast); copying is read from one tier and written to the other and scales
//! with N. The run time of a program is that of its slowest thread.
//!
//! # How exact
//! The paper gives the original model's mean error as below 2.7 %, after Su et al. (2014), over
//! core frequencies and latencies. That is the error of a projected time, [`MODEL_ERROR`]; on top
//! comes that of a hit ratio estimated from samples ([`HitRatio::sampled`]), which counts the more
//! the larger N is. What the model leaves out: bandwidth, and misses that overlap otherwise when
//! latencies differ.
//!
//! Pure functions of their arguments: machines of any kind fill in what they measured.

/// Mean relative error of the leading-load model (migration-granularity paper, section 5).
pub const MODEL_ERROR: f64 = 0.027;

/// The quantile of the normal distribution for 95 % on both sides.
const NORMAL_95: f64 = 1.959_963_984_540_054;

/// A fast-memory hit ratio and how well it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HitRatio {
    /// Accesses to fast memory over accesses to memory, 0 to 1.
    pub ratio: f64,
    /// Half of its 95 % confidence interval; 0 when all accesses were counted.
    pub error: f64,
}

impl HitRatio {
    /// A ratio counted over all accesses.
    pub fn counted(fast_accesses: u64, accesses: u64) -> Self {
        HitRatio { ratio: crate::features::ratio(fast_accesses, accesses), error: 0.0 }
    }

    /// Estimated from independent samples. The interval is Wilson's (1927), which holds for small
    /// numbers and ratios near 0 and 1 too; of no samples nothing is known. The ratio is that of
    /// the samples; the error reaches to the far end of the interval.
    pub fn sampled(fast_samples: u64, samples: u64) -> Self {
        if samples == 0 {
            return HitRatio { ratio: 0.5, error: 0.5 };
        }
        let (n, z2) = (samples as f64, NORMAL_95 * NORMAL_95);
        let ratio = fast_samples as f64 / n;
        let centre = (ratio + z2 / (2.0 * n)) / (1.0 + z2 / n);
        let spread = (ratio * (1.0 - ratio) / n + z2 / (4.0 * n * n)).sqrt();
        let half = NORMAL_95 * spread / (1.0 + z2 / n);
        HitRatio { ratio, error: (centre - ratio).abs() + half }
    }
}

/// The times of one thread of a run, with both tiers at the latency of the fast one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThreadTime {
    /// Time that does not depend on memory, in ns.
    pub compute_ns: f64,
    /// Time in which it waited for memory (leading loads), in ns.
    pub memory_ns: f64,
    /// The hit ratio of its misses.
    pub hit_ratio: HitRatio,
    /// Shootdowns and other overhead of migration in its time, in ns.
    pub shootdown_ns: f64,
    /// Copying in its time, in ns, at the latency of fast memory.
    pub copy_ns: f64,
}

/// A projected time with its error bar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Projection {
    /// The time, in ns.
    pub time_ns: f64,
    /// By how much it may be off either way, in ns: the mean error of the model and the 95 %
    /// interval of the hit ratio, which are independent, put together as a root of squares.
    pub error_ns: f64,
}

impl Projection {
    /// This time over another, with the error that follows when the two are independent.
    pub fn over(&self, other: &Projection) -> (f64, f64) {
        let ratio = self.time_ns / other.time_ns;
        let relative = (self.error_ns / self.time_ns).hypot(other.error_ns / other.time_ns);
        (ratio, ratio * relative)
    }
}

impl ThreadTime {
    /// Its time when slow memory has `latency_ratio` times the latency of fast memory (1 or
    /// more; any number above 0 is computed).
    pub fn project(&self, latency_ratio: f64) -> Projection {
        let HitRatio { ratio, error } = self.hit_ratio;
        let fast_ns = self.memory_ns * ratio;
        let slow_ns = self.memory_ns * (1.0 - ratio) * latency_ratio;
        let copy_ns = self.copy_ns * latency_ratio;
        let time_ns = self.compute_ns + fast_ns + slow_ns + self.shootdown_ns + copy_ns;
        // dT/dh = -M (N - 1).
        let of_ratio_ns = self.memory_ns * (latency_ratio - 1.0).abs() * error;
        Projection { time_ns, error_ns: (time_ns * MODEL_ERROR).hypot(of_ratio_ns) }
    }
}

/// The time of a program: that of its slowest thread. `None` of no threads.
pub fn project(threads: &[ThreadTime], latency_ratio: f64) -> Option<Projection> {
    let times = threads.iter().map(|thread| thread.project(latency_ratio));
    times.max_by(|a, b| a.time_ns.total_cmp(&b.time_ns))
}

/// The time that migration takes, for a run of which operations and pages are counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MigrationCost {
    /// One operation but for its copying: unmapping, shootdown, mapping, in ns.
    pub operation_ns: f64,
    /// Copying one byte between tiers of the same latency, in ns.
    pub copy_ns_per_byte: f64,
}

impl MigrationCost {
    /// 13.2 us for a shootdown (migration-granularity paper, section 2.2, after Oskin and Loh
    /// 2015). The paper gives no figure for copying: 10 GB/s are assumed.
    pub const PAPER: MigrationCost =
        MigrationCost { operation_ns: 13_200.0, copy_ns_per_byte: 0.1 };

    /// Shootdown and copy time, in ns: the last two of [`ThreadTime`].
    pub fn times_ns(&self, operations: u64, moved_bytes: u64) -> (f64, f64) {
        (operations as f64 * self.operation_ns, moved_bytes as f64 * self.copy_ns_per_byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 6 s of computing, 4 s of memory of which 75 % hits fast memory, 0.5 s of shootdowns and
    /// 0.25 s of copying.
    fn thread() -> ThreadTime {
        ThreadTime {
            compute_ns: 6e9,
            memory_ns: 4e9,
            hit_ratio: HitRatio::counted(75, 100),
            shootdown_ns: 0.5e9,
            copy_ns: 0.25e9,
        }
    }

    #[test]
    fn figure_7_by_hand() {
        // At 1:1 the parts as measured: 6 + 3 + 1 + 0.5 + 0.25.
        // At 1:3: 6 + 3 + 1 * 3 + 0.5 + 0.25 * 3; 1:2 and 1:8 alike.
        for (ratio, expected) in [(1.0, 10.75e9), (2.0, 12.0e9), (3.0, 13.25e9), (8.0, 19.5e9)] {
            assert_eq!(thread().project(ratio).time_ns, expected, "1:{ratio}");
        }
    }

    #[test]
    fn each_part_scales_as_it_should() {
        let zero = ThreadTime {
            compute_ns: 0.0,
            memory_ns: 0.0,
            shootdown_ns: 0.0,
            copy_ns: 0.0,
            ..thread()
        };
        let growth = |t: ThreadTime| t.project(3.0).time_ns / t.project(1.0).time_ns;
        assert_eq!(growth(ThreadTime { compute_ns: 1.0, ..zero }), 1.0);
        assert_eq!(growth(ThreadTime { shootdown_ns: 1.0, ..zero }), 1.0);
        assert_eq!(growth(ThreadTime { copy_ns: 1.0, ..zero }), 3.0);
        let memory = ThreadTime { memory_ns: 1.0, ..zero };
        let at = |ratio| ThreadTime { hit_ratio: HitRatio { ratio, error: 0.0 }, ..memory };
        assert_eq!([growth(at(1.0)), growth(at(0.5)), growth(at(0.0))], [1.0, 2.0, 3.0]);
    }

    #[test]
    fn the_slowest_thread_is_the_program() {
        // At 1:1 the first is slower, at 1:8 the second.
        let threads = [
            ThreadTime { compute_ns: 9e9, memory_ns: 1e9, ..thread() },
            ThreadTime { compute_ns: 1e9, memory_ns: 8e9, ..thread() },
        ];
        // 9 + 0.75 + 0.25 + 0.5 + 0.25; 1 + 6 + 2 * 8 + 0.5 + 0.25 * 8.
        assert_eq!(project(&threads, 1.0).unwrap().time_ns, 10.75e9);
        assert_eq!(project(&threads, 8.0).unwrap().time_ns, 25.5e9);
        assert_eq!(project(&[], 3.0), None);
    }

    #[test]
    fn the_error_is_that_of_the_model_and_of_the_hit_ratio() {
        let counted = thread().project(3.0);
        assert!((counted.error_ns - 0.027 * 13.25e9).abs() < 1.0);
        // A ratio known to 5 points: 4 s * 2 * 0.05 = 0.4 s.
        let hit_ratio = HitRatio { ratio: 0.75, error: 0.05 };
        let sampled = ThreadTime { hit_ratio, ..thread() }.project(3.0);
        assert_eq!(sampled.time_ns, counted.time_ns);
        let expected = ((0.027 * 13.25e9f64).powi(2) + 0.4e9f64.powi(2)).sqrt();
        assert!((sampled.error_ns - expected).abs() < 1.0);
        // At 1:1 the tier of an access does not matter.
        assert_eq!(ThreadTime { hit_ratio, ..thread() }.project(1.0), thread().project(1.0));
        let (slowdown, error) = counted.over(&thread().project(1.0));
        assert!((slowdown - 13.25 / 10.75).abs() < 1e-12);
        assert!((error - slowdown * 0.027 * 2f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn samples_tell_as_much_as_there_are_of_them() {
        // Wilson's interval of 75 of 100 is 0.6570 to 0.8245 (from its formula, by hand).
        let got = HitRatio::sampled(75, 100);
        assert_eq!(got.ratio, 0.75);
        assert!((got.error - (0.75 - 0.6570)).abs() < 5e-4, "{}", got.error);
        assert_eq!(HitRatio::sampled(0, 0), HitRatio { ratio: 0.5, error: 0.5 });
        let all = HitRatio::sampled(10, 10);
        assert!(all.ratio == 1.0 && (0.2..0.35).contains(&all.error), "{all:?}");
        assert!(HitRatio::sampled(750_000, 1_000_000).error < 0.001);
    }

    #[test]
    fn operations_and_bytes_make_the_time_of_migration() {
        // 512 pages of 4 KB one by one, or in one operation.
        let bytes = 2 << 20;
        let (one_by_one, copy_ns) = MigrationCost::PAPER.times_ns(512, bytes);
        let (at_once, same) = MigrationCost::PAPER.times_ns(1, bytes);
        assert_eq!((one_by_one, at_once), (512.0 * 13_200.0, 13_200.0));
        assert!(copy_ns == same && (copy_ns - 209_715.2).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn more_latency_never_helps_and_more_hits_never_hurt(
            parts in prop::array::uniform4(0.0f64..1e12),
            ratio in 0.0f64..=1.0, better in 0.0f64..=1.0, latency in 1.0f64..20.0,
        ) {
            let [compute_ns, memory_ns, shootdown_ns, copy_ns] = parts;
            let at = |ratio: f64| {
                let hit_ratio = HitRatio { ratio, error: 0.01 };
                ThreadTime { compute_ns, memory_ns, hit_ratio, shootdown_ns, copy_ns }
            };
            let (low, high) = (ratio.min(better), ratio.max(better));
            let near = |a: f64, b: f64| a <= b * (1.0 + 1e-12) + 1e-9;
            prop_assert!(near(at(high).project(latency).time_ns, at(low).project(latency).time_ns));
            prop_assert!(near(at(low).project(latency).time_ns, at(low).project(latency + 1.0).time_ns));
            prop_assert!(at(low).project(latency).error_ns >= 0.0);
        }
    }
}

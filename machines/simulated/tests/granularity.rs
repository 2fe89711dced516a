//! The best migration granularity for each workload, and whether the adaptive policy finds it
//! (migration-granularity paper, sections 4 and 6; the experiments of `examples/granularity`).

use serde_json::{Value, json};
use terrace_core::interfaces::{Mover, Observation, Tracker};
use terrace_core::page::PageSize;
use terrace_core::policy;
use terrace_core::projection::{HitRatio, MigrationCost, ThreadTime};
use terrace_core::scan::Budget;
use terrace_simulated::{GroupConfig, Machine, MachineConfig};
use terrace_workloads::generators::{self, Timing};

const PERIODS: usize = 300;
/// Periods before anything is counted.
const WARM_UP: usize = 100;
/// A page that is touched in a period misses the caches for each of its 64 lines, 100 ns each.
const MISSES_NS: f64 = 64.0 * 100.0;

/// The counts of a run.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    accessed: u64,
    hits: u64,
    moved: u64,
    operations: u64,
    /// Pages moved while 4 KB, 64 KB and 2 MB were applied.
    at: [u64; 3],
}

impl Counts {
    fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.accessed as f64
    }

    /// Projected time of memory and migration at slow memory of three times the latency, in s.
    fn time_s(&self) -> f64 {
        let (shootdown_ns, copy_ns) =
            MigrationCost::PAPER.times_ns(self.operations, self.moved * 4096);
        let thread = ThreadTime {
            compute_ns: 0.0,
            memory_ns: self.accessed as f64 * MISSES_NS,
            hit_ratio: HitRatio::counted(self.hits, self.accessed),
            shootdown_ns,
            copy_ns,
        };
        thread.project(3.0).time_ns / 1e9
    }
}

fn run(workload: &str, parameters: &Value, fast_ratio: f64, policy: &str, of: &Value) -> Counts {
    let timing = Timing { page_size: PageSize::Base, period_ms: 100, seed: 3 };
    let source = generators::build(workload, parameters, timing).unwrap();
    let pages = generators::footprint_bytes(workload, parameters).unwrap() / 4096;
    let mut policy = policy::build(policy, of, 1).unwrap();
    let budget_pages = (pages as f64 * fast_ratio) as u64;
    let config = GroupConfig {
        name: workload.to_owned(),
        page_size: PageSize::Base,
        allocation: policy.allocation(),
        fast_budget: Box::new(move |_| budget_pages),
        initial: None,
    };
    let machine = Machine::new(MachineConfig::new(1 << 40, 1 << 40, 100)).unwrap();
    let (mut tracker, mut mover) = machine.add_group(config, source).unwrap();
    if policy.needs_frames() {
        tracker.tell_frames();
    }
    let mut counts = Counts::default();
    for period in 0..PERIODS {
        let Observation::Period(scan) = tracker.observe().unwrap() else { panic!("it never ends") };
        let decision = policy.decide(&scan, &Budget::fast(budget_pages));
        let outcome = mover.apply(&decision.plan).unwrap();
        assert!(outcome.failures.is_empty());
        assert_eq!(outcome.operations, decision.plan.operations(PageSize::Base));
        if period >= WARM_UP {
            counts.accessed += scan.accessed.count() as u64;
            counts.hits += scan.accessed.count_and(&scan.fast) as u64;
            counts.moved += outcome.promoted_pages + outcome.demoted_pages;
            counts.operations += outcome.operations;
            if let Some(level) = STATIC.iter().position(|name| *name == decision.applied) {
                counts.at[level] += outcome.promoted_pages + outcome.demoted_pages;
            }
        }
    }
    counts
}

/// Four working sets in turn, each a quarter of 256 MiB, laid out in runs of so many pages; fast
/// memory holds 28 of the 128 regions of 2 MB, as a whole number because a region is moved whole or
/// not at all.
fn turns(run_pages: u64, policy: &str) -> Counts {
    let parameters = json!({
        "footprint_mib": 256,
        "startup_ms": 0,
        "run_pages": run_pages,
        "dwell_ms": 4000,
        "sweep_ms": 50,
    });
    run("lru-favor", &parameters, 28.0 / 128.0, policy, &Value::Null)
}

const STATIC: [&str; 3] = ["granularity-4k", "granularity-64k", "granularity-2m"];

#[test]
fn the_dynamic_granularity_is_near_the_best_static_one_whichever_that_is() {
    // Runs of single pages, of 64 KB, and whole sets. A scan that reaches the edge of a set finds
    // three dense regions of 2 MB or fewer, which are moved at 64 KB.
    for (run_pages, best, share) in [(1, 0, 0.9), (16, 1, 0.9), (4096, 2, 0.7)] {
        let statics = STATIC.map(|policy| turns(run_pages, policy));
        let dynamic = turns(run_pages, "granularity");
        let times = statics.map(|counts| counts.time_s());
        let least = times.into_iter().fold(f64::INFINITY, f64::min);
        let reported = format!("runs of {run_pages}: {statics:?}, dynamic {dynamic:?}");
        assert_eq!(times[best], least, "{reported}");
        assert!(dynamic.time_s() <= 1.01 * least, "{} over {least}: {reported}", dynamic.time_s());
        assert!(dynamic.hit_ratio() >= statics[best].hit_ratio() - 0.01, "{reported}");
        // Most moves are made at that granularity.
        let at_best = dynamic.at[best] as f64 / dynamic.moved as f64;
        assert!(at_best > share, "{at_best} of the pages: {reported}");
        // The difference between granularities is large.
        let most = times.into_iter().fold(0.0, f64::max);
        assert!(most > 1.05 * least, "{reported}");
    }
}

#[test]
fn too_large_a_granularity_costs_hits_and_too_small_a_one_shootdowns() {
    let [small, _, large] = STATIC.map(|policy| turns(1, policy));
    assert!(large.hit_ratio() < small.hit_ratio() - 0.4, "{large:?} {small:?}");
    let [small, medium, large] = STATIC.map(|policy| turns(4096, policy));
    for counts in [medium, large] {
        assert!((counts.hit_ratio() - small.hit_ratio()).abs() < 0.01, "{counts:?} {small:?}");
    }
    assert_eq!(small.operations, small.moved);
    assert!(medium.operations * 15 < small.operations && large.operations * 300 < small.operations);
}

#[test]
fn the_baseline_over_physical_memory_is_close_to_4kb_over_virtual_memory() {
    // Section 6 of the paper: "close to or slightly less".
    for run_pages in [1, 16, 4096] {
        let (physical, small) = (turns(run_pages, "physical-4k"), turns(run_pages, STATIC[0]));
        assert_eq!(physical.operations, physical.moved, "one page at a time");
        let ratio = physical.time_s() / small.time_s();
        assert!((0.97..1.1).contains(&ratio), "{ratio}: {physical:?} {small:?}");
    }
}

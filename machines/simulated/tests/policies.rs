//! The synthetic workloads favour the policies that they are named for, and AMP finds the favoured
//! policy (adaptive-migration-policy paper, sections 4.2 and 6.6).

use serde_json::{Value, json};
use terrace_core::interfaces::{Mover, Observation, Tracker};
use terrace_core::page::PageSize;
use terrace_core::policy::{self, Policy};
use terrace_core::scan::Budget;
use terrace_simulated::{GroupConfig, Machine, MachineConfig, SimulatedMover, SimulatedTracker};
use terrace_workloads::generators::{self, MIXES, Timing};

/// Periods in which a policy may still be learning: AMP's window of averages.
const WARM_UP: usize = 36;

/// A group running under a policy, with half its memory fast.
struct Run {
    tracker: SimulatedTracker,
    mover: SimulatedMover,
    policy: Box<dyn Policy>,
    /// Of each period: policy applied, accessed pages that were fast, accessed pages, pages
    /// moved for the next.
    periods: Vec<(&'static str, u64, u64, u64)>,
}

impl Run {
    fn new(
        machine: &Machine,
        workload: &str,
        parameters: &Value,
        policy: &str,
        ratio: f64,
    ) -> Self {
        let timing = Timing { page_size: PageSize::Huge, period_ms: machine.period_ms(), seed: 11 };
        let source = generators::build(workload, parameters, timing).unwrap();
        let pages = generators::footprint_bytes(workload, parameters).unwrap() / (2 << 20);
        let policy = policy::build(policy, &Value::Null, 5).unwrap();
        let budget = (pages as f64 * ratio) as u64;
        let config = GroupConfig {
            name: workload.to_owned(),
            page_size: PageSize::Huge,
            allocation: policy.allocation(),
            fast_budget: Box::new(move |_| budget),
            initial: None,
        };
        let (tracker, mover) = machine.add_group(config, source).unwrap();
        Run { tracker, mover, policy, periods: Vec::new() }
    }

    /// False when the group has ended.
    fn period(&mut self, budget_pages: u64) -> bool {
        let Observation::Period(scan) = self.tracker.observe().unwrap() else { return false };
        let budget = Budget::fast(budget_pages);
        let decision = self.policy.decide(&scan, &budget);
        let outcome = self.mover.apply(&decision.plan).unwrap();
        assert!(outcome.failures.is_empty(), "a whole plan can be carried out");
        let hits = scan.accessed.count_and(&scan.fast) as u64;
        let moved = outcome.promoted_pages + outcome.demoted_pages;
        self.periods.push((decision.applied, hits, scan.accessed.count() as u64, moved));
        true
    }

    /// Accessed pages that were fast over accessed pages, after the warm-up.
    fn hit_ratio(&self) -> f64 {
        let sum = |of: fn(&(&str, u64, u64, u64)) -> u64| -> f64 {
            self.periods[WARM_UP..].iter().map(of).sum::<u64>() as f64
        };
        sum(|p| p.1) / sum(|p| p.2)
    }

    fn moved_pages(&self) -> u64 {
        self.periods[WARM_UP..].iter().map(|p| p.3).sum()
    }

    /// The part of the periods in `range` in which this policy was applied.
    fn share(&self, policy: &str, range: std::ops::Range<usize>) -> f64 {
        let length = range.len() as f64;
        self.periods[range].iter().filter(|p| p.0 == policy).count() as f64 / length
    }
}

fn machine(period_ms: u64) -> Machine {
    Machine::new(MachineConfig::new(1 << 40, 1 << 40, period_ms)).unwrap()
}

/// 200 periods of 1 GiB, 512 huge pages, of which 256 may be fast.
fn run(workload: &str, policy: &str, period_ms: u64) -> Run {
    let mut run = Run::new(&machine(period_ms), workload, &Value::Null, policy, 0.5);
    (0..200).for_each(|_| assert!(run.period(256)));
    run
}

#[test]
fn each_workload_is_served_best_by_the_policy_it_is_named_for() {
    for period_ms in [500, 1000, 2000, 5000] {
        let ratios = |workload: &str| {
            ["lru", "lfu", "random"].map(|policy| run(workload, policy, period_ms).hit_ratio())
        };
        let [lru, lfu, random] = ratios("lru-favor");
        assert!(lru > lfu + 0.15 && lru > random + 0.15, "{lru} {lfu} {random}");
        let [lru, lfu, random] = ratios("lfu-favor");
        assert!(lfu > lru + 0.15 && lfu > random + 0.15, "{lru} {lfu} {random}");
        let [lru, lfu, random] = ratios("random-favor");
        assert!(random > lru - 0.02 && random > lfu - 0.02, "{lru} {lfu} {random}");
        let moved = |policy| run("random-favor", policy, period_ms).moved_pages();
        assert_eq!(moved("random"), 0, "no better, but at no cost");
        assert!(moved("lru") > 0 && moved("lfu") > 0);
    }
}

#[test]
fn phases_of_four_seconds_seen_every_five_favour_nothing_recent() {
    // The reason that the default dwell grows with the period.
    for startup_ms in [0, 1000, 2000, 3000, 4000] {
        let ratio = |policy| {
            let parameters = json!({"dwell_ms": 4000, "sweep_ms": 500, "startup_ms": startup_ms});
            let mut run = Run::new(&machine(5000), "lru-favor", &parameters, policy, 0.5);
            (0..200).for_each(|_| assert!(run.period(256)));
            run.hit_ratio()
        };
        let (lru, random) = (ratio("lru"), ratio("random"));
        assert!((0.35..0.48).contains(&lru) && random > 0.48, "{lru} {random}");
    }
}

#[test]
fn amp_chooses_the_policy_that_each_workload_is_named_for() {
    for period_ms in [500, 1000, 2000, 5000] {
        for favoured in ["lru", "lfu", "random"] {
            let run = run(&format!("{favoured}-favor"), "amp", period_ms);
            let share = run.share(favoured, WARM_UP..200);
            assert!(share >= 0.98, "{favoured} in {share} of the periods of {period_ms} ms");
        }
    }
}

#[test]
fn amp_follows_the_six_mixes_of_one_workload_after_another() {
    for [first, second] in MIXES {
        let part = |name: &str| json!({"generator": name, "parameters": {"duration_ms": 150_000}});
        let parameters = json!({"parts": [part(first), part(second)]});
        let mut run = Run::new(&machine(1000), "mix", &parameters, "amp", 0.5);
        while run.period(256) {}
        assert_eq!(run.periods.len(), 300);
        for (name, periods) in [(first, 50..150), (second, 200..300)] {
            let favoured = name.trim_end_matches("-favor");
            let share = run.share(favoured, periods.clone());
            assert!(share >= 0.98, "{first}, {second}: {favoured} in {share} of {periods:?}");
        }
    }
}

#[test]
fn two_groups_at_once_have_each_its_own_policy() {
    for [first, second] in MIXES {
        // Fast memory for half of both together.
        let config = MachineConfig::new(512 * (2 << 20), 1 << 40, 1000);
        let machine = Machine::new(config).unwrap();
        let mut runs =
            [first, second].map(|name| Run::new(&machine, name, &Value::Null, "amp", 0.5));
        for _ in 0..200 {
            runs.iter_mut().for_each(|run| assert!(run.period(256)));
        }
        for (run, name) in runs.iter().zip([first, second]) {
            let favoured = name.trim_end_matches("-favor");
            let share = run.share(favoured, WARM_UP..200);
            assert!(share >= 0.98, "{first}, {second}: {favoured} in {share}");
        }
    }
}

#[test]
fn every_policy_runs_every_generator_deterministically() {
    for kind in terrace_core::policies::REGISTRY.iter().map(|k| k.name) {
        for generator in generators::REGISTRY.iter().filter(|g| g.name != "mix") {
            let periods = |_| {
                let mut run = Run::new(&machine(1000), generator.name, &Value::Null, kind, 0.5);
                (0..60).for_each(|_| assert!(run.period(256)));
                run.periods
            };
            assert_eq!(periods(0), periods(1), "{kind} on {}", generator.name);
        }
    }
}

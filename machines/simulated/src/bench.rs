//! The benchmarks of this crate: whole periods of the simulated machine, with the policy timed
//! apart.

use serde_json::json;
use terrace_core::interfaces::{Mover, Observation, Tracker};
use terrace_core::page::PageSize;
use terrace_core::policy::{self, Policy};
use terrace_core::scan::Budget;
use terrace_workloads::generators::{self, Timing};

use crate::machine::{GroupConfig, Machine, MachineConfig, SimulatedMover, SimulatedTracker};

/// One group of huge pages under a policy, with half its memory fast, ready to run periods.
pub struct PeriodBench {
    tracker: SimulatedTracker,
    mover: SimulatedMover,
    policy: Box<dyn Policy>,
}

/// The counts of one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeriodWork {
    /// Pages of the group.
    pub pages: u64,
    /// Pages promoted and demoted.
    pub moved_pages: u64,
}

impl PeriodBench {
    /// `huge_pages` huge pages touched as the generator `workload` does by default, under the
    /// policy `policy`. 524,288 huge pages are 1 TiB.
    ///
    /// # Panics
    /// When there is no such generator or policy: a benchmark cannot report the error.
    pub fn new(huge_pages: u64, workload: &str, policy: &str) -> Self {
        let timing = Timing { page_size: PageSize::Huge, period_ms: 1000, seed: 1 };
        let parameters = json!({"footprint_mib": 2 * huge_pages, "startup_ms": 0});
        let source = generators::build(workload, &parameters, timing).expect("a generator");
        let policy = policy::build(policy, &serde_json::Value::Null, 1).expect("a policy");
        let half_bytes = huge_pages / 2 * PageSize::Huge.bytes();
        let config = MachineConfig::new(half_bytes, 2 * half_bytes, timing.period_ms);
        let group = GroupConfig {
            name: workload.to_owned(),
            page_size: timing.page_size,
            allocation: policy.allocation(),
            fast_budget: Box::new(|layout| layout.pages() as u64 / 2),
            initial: None,
        };
        let machine = Machine::new(config).expect("a machine");
        let (tracker, mover) = machine.add_group(group, source).expect("an empty machine");
        PeriodBench { tracker, mover, policy }
    }

    /// Lets a period pass, decides and moves. `around_policy` gets the call of the policy, so that
    /// a benchmark can subtract the call's time, or measure it alone.
    ///
    /// # Panics
    /// When the machine fails.
    pub fn period(&mut self, around_policy: impl FnOnce(&mut dyn FnMut())) -> PeriodWork {
        let Ok(Observation::Period(scan)) = self.tracker.observe() else {
            panic!("a generator without duration does not end");
        };
        let pages = scan.pages() as u64;
        let budget = Budget::fast(pages / 2);
        let mut plan = None;
        around_policy(&mut || plan = Some(self.policy.decide(&scan, &budget).plan));
        let plan = plan.unwrap_or_default();
        let outcome = self.mover.apply(&plan).expect("the policy plans whole pages");
        PeriodWork { pages, moved_pages: outcome.promoted_pages + outcome.demoted_pages }
    }
}

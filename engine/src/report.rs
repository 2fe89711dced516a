//! The engine's report of each period: the interface to recordings, tables and screens.

use terrace_core::interfaces::MachineError;
use terrace_core::plan::{Decision, Outcome};
use terrace_core::scan::{Budget, Scan};

/// One period of one group, after its moves.
#[derive(Debug)]
pub struct PeriodReport<'a> {
    /// Position of the group in the engine's list.
    pub group: usize,
    /// The scan of the tracker.
    pub scan: &'a Scan,
    /// Pages of fast memory that the group's share allows. The budget is less where there is no room.
    pub limit_pages: u64,
    /// Pages for which there was room beside those that the group has; `None` where that is not known.
    pub room_pages: Option<u64>,
    /// The budget of the plan.
    pub budget: Budget,
    /// The decision of the policy.
    pub decision: &'a Decision,
    /// The outcome of the plan, retries included.
    pub outcome: &'a Outcome,
    /// Processor time since the report before, in ns, where it is known.
    pub cpu: Cpu,
    /// Memory of the group that was not tracked, in bytes, where it is known.
    pub untracked_bytes: Option<u64>,
}

/// Processor time of one period by its part of the loop, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cpu {
    /// Time of the tracker, in ns.
    pub tracker_ns: Option<u64>,
    /// Time of the policy, in ns.
    pub policy_ns: Option<u64>,
    /// Time of the mover, in ns.
    pub mover_ns: Option<u64>,
}

/// Receives the engine's reports. An error ends the run.
pub trait Observer {
    /// A period of a group is over.
    fn period(&mut self, report: &PeriodReport<'_>) -> Result<(), MachineError>;

    /// The tracker of a group lost periods.
    fn lost(&mut self, group: usize, periods: u32, reason: &str) -> Result<(), MachineError>;

    /// A group has ended.
    fn ended(&mut self, _group: usize) -> Result<(), MachineError> {
        Ok(())
    }
}

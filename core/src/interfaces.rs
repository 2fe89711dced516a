//! The two interfaces between the engine and a machine. The third, [`crate::policy::Policy`], is
//! the core's own. A machine implements these; the engine uses nothing else of it.

use crate::plan::{Outcome, Plan};
use crate::scan::Scan;

/// A tracker's answer to a request for the next period.
#[derive(Debug, Clone)]
pub enum Observation {
    /// A period passed: its accesses.
    Period(Scan),
    /// One or more periods were lost; there is no scan. The reason is for people.
    Lost {
        /// Number of periods lost.
        periods: u32,
        /// The reason, in one line.
        reason: String,
    },
    /// The group has ended; there will be no more scans.
    Ended,
}

/// Why a machine cannot continue.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MachineError(pub String);

/// Observes which pages of one group are used.
pub trait Tracker {
    /// The name it has in results.
    fn name(&self) -> &'static str;

    /// Waits for the current period of the group to end and returns its accesses. On a simulated
    /// machine the group's time passes in this call.
    fn observe(&mut self) -> Result<Observation, MachineError>;

    /// Processor time spent on tracking this group so far, in ns, kernel threads included; `None`
    /// where there is no such time or it cannot be measured.
    fn cpu_ns(&self) -> Option<u64> {
        None
    }

    /// Memory of the group that is not tracked at the moment, in bytes: on Linux, what is not
    /// mapped by pages of the layout's size.
    fn untracked_bytes(&self) -> Option<u64> {
        None
    }
}

/// Fast memory that is to stay free, for what is allocated outside of all groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Headroom {
    /// How much, in bytes.
    pub wanted_bytes: u64,
    /// How much of it is in use: at most all of it.
    pub lacking_bytes: u64,
    /// How much more fast memory can take beyond it, whoever asks; `None` where that is not known.
    pub room_bytes: Option<u64>,
}

/// Moves the pages of one group.
pub trait Mover {
    /// The name it has in results.
    fn name(&self) -> &'static str;

    /// Executes a plan as far as its bounds allow, demotions before promotions, and reports the
    /// outcome of every page of it.
    fn apply(&mut self, plan: &Plan) -> Result<Outcome, MachineError>;

    /// Moves what is smaller than the pages of the scan, where the machine knows more of it: called once
    /// a period, after the plan was applied. At most as much memory as so many pages of the scan have;
    /// fast memory in use stays what it was.
    fn refine(&mut self, _scan: &Scan, _pages: u64) -> Result<(), MachineError> {
        Ok(())
    }

    /// Fast memory that is to stay free: budgets are reduced by what is lacking, and by no more than is
    /// wanted, however often others take it. Nor do they count on more room than there is. None is
    /// wanted, and no room known, where this is left out.
    fn headroom(&mut self) -> Headroom {
        Headroom::default()
    }

    /// Processor time spent on moving this group's pages so far, in ns; `None` where there is no
    /// such time or it cannot be measured.
    fn cpu_ns(&self) -> Option<u64> {
        None
    }
}

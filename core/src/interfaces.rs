//! The two interfaces between the engine and a machine. The third, [`crate::policy::Policy`], is the
//! core's own. A machine implements these; the engine knows nothing else of it.

use crate::plan::{Outcome, Plan};
use crate::scan::Scan;

/// What a tracker says when asked for the next period.
#[derive(Debug, Clone)]
pub enum Observation {
    /// A period passed and this is what was accessed.
    Period(Scan),
    /// One or more periods were lost; there is no scan. The reason is for people.
    Lost {
        /// How many.
        periods: u32,
        /// Why.
        reason: String,
    },
    /// The group has ended; there will be no more scans.
    Ended,
}

/// Why a machine can go no further.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MachineError(pub String);

/// Finds out which pages of one group are used.
pub trait Tracker {
    /// The name it has in results.
    fn name(&self) -> &'static str;

    /// Waits for the current period of the group to end and says what was accessed in it.
    /// On a simulated machine this is what lets the group's time pass.
    fn observe(&mut self) -> Result<Observation, MachineError>;

    /// Processor time spent on tracking this group so far, in ns, kernel threads included;
    /// `None` where there is none to speak of or it cannot be known.
    fn cpu_ns(&self) -> Option<u64> {
        None
    }

    /// Memory of the group that is not tracked at the moment, in bytes: on Linux, what is not
    /// mapped by pages of the layout's size.
    fn untracked_bytes(&self) -> Option<u64> {
        None
    }
}

/// Moves the pages of one group.
pub trait Mover {
    /// The name it has in results.
    fn name(&self) -> &'static str;

    /// Carries out a plan as far as it can within its bounds, demotions before promotions, and
    /// says what became of every page of it.
    fn apply(&mut self, plan: &Plan) -> Result<Outcome, MachineError>;

    /// Processor time spent on moving this group's pages so far, in ns; `None` where there is
    /// none to speak of or it cannot be known.
    fn cpu_ns(&self) -> Option<u64> {
        None
    }
}

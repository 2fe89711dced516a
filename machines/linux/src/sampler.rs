//! What reads the accessed bits of a group's pages: the interface between the tracker, which knows the
//! group, and the kernel's mechanism.

use std::time::{Duration, Instant};

use terrace_core::bits::PageBits;
use terrace_core::counts::AccessCounts;
use terrace_core::page::Layout;

use crate::files::FileError;
use crate::session::SessionError;

/// Why a period came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("process {pid} cannot be scanned: {source}")]
    Process { pid: u32, source: std::io::Error },
    #[error("DAMON is used by somebody else, who has turned our thread off: stop that user")]
    DamonTaken,
    #[error("the trace instance is gone; this is a defect of Terrace, please report it")]
    NoTrace,
}

/// What was observed of a layout's pages in a period.
pub(crate) struct Observed {
    /// Which were accessed in it.
    pub accessed: PageBits,
    /// In how many samples of it each was, where there were several.
    pub counts: Option<AccessCounts>,
    /// Which are on an active list of the kernel's as it ends, where that can be known.
    pub active: Option<PageBits>,
}

/// How a period ended.
pub(crate) enum Waited {
    /// As it should.
    Complete {
        /// By page of the layout.
        observed: Observed,
        /// Periods before it that went by without being told on their own.
        superseded: u32,
    },
    /// It cannot be known.
    Lost {
        /// How many periods.
        periods: u32,
        /// Why, for people.
        reason: String,
        /// Whether the sampler has to be set up anew.
        is_over: bool,
    },
    /// The group is to end.
    Stopped,
}

/// Sees which pages of a layout are accessed, period after period.
pub(crate) trait Sampler: Send {
    /// The name it has in results.
    fn name(&self) -> &'static str;

    /// Begins with this layout, which has pages. The first period begins as this returns. An error
    /// leaves nothing on.
    fn start(&mut self, layout: &Layout) -> Result<(), StepError>;

    /// Waits for the end of the period that began at `since`, while `stopped` says no: it is asked
    /// several times, at least once in each interval between samples, but not more often than is of
    /// use. The next period begins as this returns.
    fn wait(
        &mut self,
        since: Instant,
        stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, StepError>;

    /// The time between two samples of a page's accessed bit.
    fn interval(&self) -> Duration;

    /// Waits until no bit is being read or cleared, for a short while at most.
    fn settle(&mut self) {}

    /// Ends the watch, and all that a start which failed may have left on.
    fn stop(&mut self) -> Result<(), FileError>;

    /// Processor time of kernel threads that work for it alone, in ns.
    fn kernel_ns(&self) -> u64 {
        0
    }
}

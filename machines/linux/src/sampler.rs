//! The interface between the tracker, which has the group, and the mechanism that reads accessed
//! bits of pages.

use std::time::{Duration, Instant};

use terrace_core::bits::PageBits;
use terrace_core::counts::AccessCounts;
use terrace_core::page::Layout;

use crate::files::FileError;
use crate::refiner::BaseRates;
use crate::session::SessionError;

/// Why a period has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("process {pid} cannot be scanned: {source}")]
    Process { pid: u32, source: std::io::Error },
    #[error("DAMON is used by another program, which has turned our thread off: stop that user")]
    DamonTaken,
    #[error("the trace instance is gone; this is a defect of Terrace, please report it")]
    NoTrace,
}

/// Observations of a layout's pages in a period.
pub(crate) struct Observed {
    /// The accessed pages.
    pub accessed: PageBits,
    /// In how many samples each page was accessed, if there were several.
    pub counts: Option<AccessCounts>,
    /// Pages on an active list of the kernel at its end, if known.
    pub active: Option<PageBits>,
}

/// How a period ended.
pub(crate) enum Waited {
    /// Complete.
    Complete {
        /// Observations, by page of the layout.
        observed: Observed,
        /// Periods before it that passed without a result of their own.
        superseded: u32,
    },
    /// Without a result.
    Lost {
        /// How many periods.
        periods: u32,
        /// The reason, in words.
        reason: String,
        /// Whether the sampler has to be set up anew.
        is_over: bool,
    },
    /// The group is to end.
    Stopped,
}

/// Reads which pages of a layout are accessed, period after period.
pub(crate) trait Sampler: Send {
    /// The name it has in results.
    fn name(&self) -> &'static str;

    /// Starts with this layout, which has pages. The first period begins as this returns, or earlier
    /// (`begun`). After an error nothing is left running.
    fn start(&mut self, layout: &Layout) -> Result<(), StepError>;

    /// Waits for the end of the period that began at `since`, until `stopped` returns true: it is
    /// called several times, at least once in each interval between samples, but not more often
    /// than useful. The next period begins as this returns, or earlier (`begun`).
    fn wait(
        &mut self,
        since: Instant,
        stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, StepError>;

    /// When the period began that the last call of `start` or `wait` has begun, if that was before it
    /// returned: some of setting up goes on beside sampling.
    fn begun(&mut self) -> Option<Instant> {
        None
    }

    /// The time between two samples of a page's accessed bit.
    fn interval(&self) -> Duration;

    /// Rates of the base pages of ranges, where it reads the bits of all of them.
    fn base_rates(&self) -> Option<Box<dyn BaseRates>> {
        None
    }

    /// Waits until no bit is being read or cleared, for a short while at most.
    fn settle(&mut self) {}

    /// Stops sampling, and everything that a failed start may have left on.
    fn stop(&mut self) -> Result<(), FileError>;

    /// Processor time of kernel threads that work for it alone, in ns.
    fn kernel_ns(&self) -> u64 {
        0
    }
}

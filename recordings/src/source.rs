//! The stream that the simulated machine reads: accessed pages, period by period.

use std::sync::Arc;

use terrace_core::bits::PageBits;
use terrace_core::page::Layout;

/// The pages that one group touched in one period.
#[derive(Debug, Clone)]
pub struct PeriodAccesses {
    /// The pages it had. The same `Arc` as in the period before when nothing changed.
    pub layout: Arc<Layout>,
    /// One bit per page: it was accessed in the period.
    pub accessed: PageBits,
    /// Unknown periods between the one before and this one: those that a recording's tracker lost.
    /// Generators lose none.
    pub lost_periods: u32,
}

/// Why a source cannot continue: got, expected, what to do, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// Yields the accessed pages of one group, period by period: a generator or a recording.
/// Deterministic: the same source built with the same seed yields the same periods.
pub trait PeriodSource: Send {
    /// The next period, or `None` when the program has ended.
    fn next_period(&mut self) -> Result<Option<PeriodAccesses>, SourceError>;
}

impl PeriodSource for Box<dyn PeriodSource> {
    fn next_period(&mut self) -> Result<Option<PeriodAccesses>, SourceError> {
        (**self).next_period()
    }
}

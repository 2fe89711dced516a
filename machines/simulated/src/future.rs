//! The future accesses of a program, read beforehand for a policy that plans with an oracle trace.

use terrace_core::oracle::{OracleTrace, Span};
use terrace_core::page::PageSize;
use terrace_hardware::error::ConfigError;
use terrace_os::OsConfig;
use terrace_recordings::source::{PeriodSource, SourceError};

use crate::timed::{IntervalSource, MoveCosts};

/// Where time is not known, an access in a period and a promotion both count as this many ns. A
/// demotion is free.
pub const ACCESS_NS: f64 = 1000.0;

/// The future of a program that is played by intervals, with the cost of a move in a batch of
/// `batch_pages`.
pub fn of_intervals(
    source: &mut dyn IntervalSource,
    os: &OsConfig,
    page_size: PageSize,
    batch_pages: u64,
    period_ms: u64,
) -> Result<OracleTrace, SourceError> {
    let source_error = |e: ConfigError| SourceError(e.to_string());
    let (promotion_ns, demotion_ns) =
        MoveCosts::new(os).map_err(source_error)?.page_ns(page_size, batch_pages);
    let period_ns = period_ms as f64 * 1e6;
    let spans = Vec::new();
    let mut oracle = OracleTrace { spans, promotion_ns, demotion_ns, period_ns };
    let mut references = 0;
    while let Some(interval) = source.next_interval()? {
        references += interval.references;
        let reads = (interval.reads.iter().enumerate())
            .filter(|(_, reads)| **reads > 0)
            .map(|(page, &reads)| (page as u32, u32::try_from(reads).unwrap_or(u32::MAX)));
        oracle.spans.push(Span {
            end: references,
            layout: interval.layout.clone(),
            reads: reads.collect(),
            fast_ns: interval.fast_ps as f64 / 1000.0,
            extra_ns: interval.slow_ps.saturating_sub(interval.fast_ps) as f64 / 1000.0,
            overlap: interval.curve().least_exponent(),
        });
    }
    Ok(oracle)
}

/// The future of a group whose accessed pages are known by period, up to `periods` of them.
pub fn of_periods(source: &mut dyn PeriodSource, periods: u64) -> Result<OracleTrace, SourceError> {
    // Every period is one span.
    let (spans, period_ns) = (Vec::new(), 0.0);
    let mut oracle = OracleTrace { spans, promotion_ns: ACCESS_NS, demotion_ns: 0.0, period_ns };
    let mut number = 0;
    for _ in 0..periods {
        let Some(period) = source.next_period()? else { break };
        number += 1 + u64::from(period.lost_periods);
        oracle.spans.push(Span {
            end: number,
            layout: period.layout,
            reads: period.accessed.iter_ones().map(|page| (page as u32, 1)).collect(),
            fast_ns: 0.0,
            extra_ns: period.accessed.count() as f64 * ACCESS_NS,
            overlap: 1.0,
        });
    }
    Ok(oracle)
}

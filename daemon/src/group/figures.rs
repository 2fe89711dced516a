//! Figures of a group's status that are made of a period's scan, outcome and costs.

use std::collections::BTreeMap;

use terrace_core::hotness::{Hotness, IDLE};
use terrace_core::page::PageSize;
use terrace_core::plan::{Direction, Failure, FailureReason, Outcome};
use terrace_core::scan::Scan;
use terrace_engine::PeriodReport;
use terrace_linux::costs::CostSnapshot;

use crate::status::{GroupStatus, Heat, ProcessStatus, UntrackedBytes};

/// Processes that a status lists.
const LISTED_PROCESSES: usize = 32;

/// What is not tracked, by reason.
pub(super) fn untracked(costs: &CostSnapshot) -> Vec<UntrackedBytes> {
    let of = |(reason, bytes): (&str, u64)| UntrackedBytes { reason: reason.to_owned(), bytes };
    costs.untracked_by_reason().map(of).into()
}

/// Adds a period's base pages that moved alone, and those that were to. A group that is attached anew
/// has costs that begin at 0, and its status goes on.
pub(super) fn add_refined(status: &mut GroupStatus, before: &CostSnapshot, now: &CostSnapshot) {
    status.refined_pages += now.refined_up_pages - before.refined_up_pages;
    status.refined_failed_pages += now.refined_failed_pages - before.refined_failed_pages;
}

/// Processor time since the scan before in percent of a processor: it is of the lost periods too.
pub(super) fn cpu_percent(ns: u64, lost_periods: u32, period_s: f64) -> f64 {
    ns as f64 / ((1.0 + f64::from(lost_periods)) * period_s * 1e9) * 100.0
}

/// Pages of the group that moved in a period, both ways, with those base pages that moved alone.
pub(super) fn moved_pages(outcome: &Outcome, base_pages: u64, size: PageSize) -> f64 {
    let base = PageSize::Base.bytes() as f64 / size.bytes() as f64;
    (outcome.promoted_pages + outcome.demoted_pages) as f64 + base_pages as f64 * base
}

/// Bytes that were to be promoted and found no room; or, if that is more, that are in use in slow memory
/// and could not be asked for, since the limit allows them and there is no room. Where room is not known,
/// a period without promotions, such as one of a pause, shows nothing: what was known stays.
pub(super) fn no_room_bytes(before: u64, report: &PeriodReport, size: PageSize) -> u64 {
    let outcome = report.outcome;
    let is_late =
        |f: &&Failure| f.direction == Direction::Promotion && f.reason == FailureReason::NoRoom;
    let failed: u64 = outcome.failures.iter().filter(is_late).map(|f| f.range.size_bytes).sum();
    let promoted = outcome.promoted_pages * size.bytes();
    // Some few found none among many that did: others came first.
    let late = if failed < promoted { 0 } else { failed };
    match report.room_pages {
        Some(room) => {
            let wanted = report.limit_pages.min(report.scan.pages() as u64);
            let unasked = wanted.saturating_sub(report.budget.fast_pages);
            let short = slow_used_pages(report.scan).saturating_sub(room).min(unasked);
            late.max(short * size.bytes())
        }
        None if failed == 0 && promoted == 0 => before,
        None => late,
    }
}

/// Pages in slow memory that were accessed in the period.
fn slow_used_pages(scan: &Scan) -> u64 {
    let words = scan.accessed.words().iter().zip(scan.fast.words());
    words.map(|(accessed, fast)| u64::from((accessed & !fast).count_ones())).sum()
}

/// Takes the whole page-periods out of accesses and of those that were hits: never more hits than
/// accesses, although their parts come together in different periods.
pub(super) fn take_whole(accesses: &mut [f64; 2]) -> (u64, u64) {
    let accessed = accesses[0].floor();
    let hits = accesses[1].floor().min(accessed);
    accesses[0] -= accessed;
    accesses[1] -= hits;
    (accessed as u64, hits as u64)
}

/// Tracked memory by how it was used and where it is: fast, slow.
pub(super) fn by_heat(scan: &Scan, hotness: &Hotness, scans: u32) -> (Heat, Heat) {
    let size = scan.layout.page_size().bytes();
    let half = (scans.div_ceil(2)).max(1);
    // Where bits are sampled, hot pages are those with more accesses than pages in use have on average.
    let mean = hotness.is_sampled().then(|| {
        let in_use = hotness.idle_counts().iter().take(scan.pages()).filter(|&&idle| idle < IDLE);
        let rates: Vec<f64> = in_use.map(|&idle| hotness.accesses_per_s(idle, 1, 1.0)).collect();
        rates.iter().sum::<f64>() / (rates.len() as f64).max(1.0)
    });
    let (mut fast, mut slow) = (Heat::default(), Heat::default());
    let idle = hotness.idle_counts();
    for (page, &idle) in idle.iter().enumerate().take(scan.pages()) {
        let tier = if scan.fast.get(page) { &mut fast } else { &mut slow };
        let frequency = u32::from(IDLE - idle.min(IDLE));
        let cell = match frequency {
            0 => &mut tier.cold_bytes,
            _ if mean.is_some_and(|mean| hotness.accesses_per_s(idle, 1, 1.0) < mean) => {
                &mut tier.warm_bytes
            }
            f if mean.is_some() || f >= half => &mut tier.hot_bytes,
            _ => &mut tier.warm_bytes,
        };
        *cell += size;
    }
    (fast, slow)
}

/// The processes with the most tracked memory, and how many have any.
pub(super) fn processes(scan: &Scan) -> (Vec<ProcessStatus>, u64) {
    let size = scan.layout.page_size().bytes();
    let mut all: BTreeMap<u32, ProcessStatus> = BTreeMap::new();
    for (number, extent) in scan.layout.extents().iter().enumerate() {
        let first = scan.layout.first_index(number);
        let range = first..first + extent.pages as usize;
        let process = all.entry(extent.space.0).or_default();
        process.pid = extent.space.0;
        process.bytes += extent.pages * size;
        process.fast_bytes += scan.fast.count_range(range.clone()) as u64 * size;
        process.accessed_bytes += scan.accessed.count_range(range) as u64 * size;
    }
    let count = all.len() as u64;
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by_key(|p| (std::cmp::Reverse(p.bytes), p.pid));
    all.truncate(LISTED_PROCESSES);
    (all, count)
}

#[cfg(test)]
mod tests;

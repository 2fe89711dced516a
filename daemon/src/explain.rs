//! Why pages are where they are, and what would change that: `terrace explain GROUP`.
//!
//! Answered from the last scan of the group's thread. Pages are ordered by frequency, then age; a
//! policy may rank otherwise, and the answer names the deciding policy.

use terrace_core::page::SpaceId;
use terrace_core::plan::{Direction, FailureReason};
use terrace_core::policy::ExternalReport;
use terrace_core::scan::Scan;

use crate::group::View;
use crate::status::{Explanation, GroupStatus, RangeExplanation, UntrackedBytes};

/// Most ranges of an answer.
const MOST_RANGES: usize = 40;

/// Use of a page: neighbours in one range have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Hot,
    Warm,
    Cold,
}

fn use_of(frequency: u8, scans: u64) -> Use {
    match u64::from(frequency) {
        0 => Use::Cold,
        f if 2 * f >= scans.clamp(1, 64) => Use::Hot,
        _ => Use::Warm,
    }
}

/// Explains a group, or the page at an address of one of its processes.
pub fn explain(view: &View, address: Option<u64>) -> Result<Explanation, String> {
    let status = &view.status;
    let mut answer = Explanation { group: status.name.clone(), ..Explanation::default() };
    let Some(scan) = &view.scan else {
        answer.facts.push(format!("it is {}: no scan yet", status.state));
        answer.facts.extend(status.error.clone());
        return Ok(answer);
    };
    answer.facts = facts(view, scan);
    let all = ranges(view, scan);
    match address {
        None => {
            answer.ranges = all;
            answer.ranges.sort_by_key(|r| (std::cmp::Reverse(r.size_bytes), r.pid, r.address));
            answer.ranges.truncate(MOST_RANGES);
        }
        Some(address) => {
            let page = scan.layout.page_size().bytes();
            answer.ranges = all
                .into_iter()
                .filter(|r| (r.address..r.address + r.size_bytes).contains(&address))
                .map(|r| {
                    let index = scan.layout.index(SpaceId(r.pid), address);
                    let (age, frequency) = index
                        .map_or((None, 0), |i| (view.hotness.age(i), view.hotness.frequency(i)));
                    RangeExplanation {
                        address: address / page * page,
                        size_bytes: page,
                        age_periods: (age, age),
                        frequency: (frequency, frequency),
                        ..r
                    }
                })
                .collect();
            if answer.ranges.is_empty() {
                return Err(format!(
                    "no tracked page of '{}' holds address {address:#x}; it is not mapped by pages of {} bytes, or beyond the bound on tracked memory",
                    status.name, page
                ));
            }
        }
    }
    Ok(answer)
}

/// Pages of fast memory that the group's share allows, whether there is room or not.
fn granted_pages(view: &View, scan: &Scan) -> u64 {
    view.status.granted_bytes / scan.layout.page_size().bytes()
}

/// Whether there is room for less of the group than its share allows.
fn is_short(view: &View, scan: &Scan) -> bool {
    view.budget_pages < granted_pages(view, scan).min(scan.pages() as u64)
}

fn facts(view: &View, scan: &Scan) -> Vec<String> {
    let s = &view.status;
    let mut facts = vec![format!(
        "policy {}{}: {} of {} pages may be in fast memory ({}), {} do",
        s.policy,
        if s.applied == s.policy || s.applied.is_empty() {
            String::new()
        } else {
            format!(" (applies {})", s.applied)
        },
        granted_pages(view, scan).min(scan.pages() as u64),
        scan.pages(),
        s.limit,
        scan.fast.count(),
    )];
    if is_short(view, scan) {
        let room = view.budget_pages;
        facts.push(format!("others leave room for {room} of them in fast memory"));
    }
    if let (Some(entitled), Some(loss)) = (s.entitled_bytes, s.loss) {
        let granted = s.granted_bytes;
        facts.push(format!(
            "partitioning gives it {} MiB; by weight alone it would have {} MiB; its hit ratio is {:.1} points lower for that",
            granted >> 20, entitled >> 20, 100.0 * loss
        ));
    }
    let more = s.granted_bytes.saturating_add(64 << 20);
    let gain = view.curve.hit_ratio(more) - view.curve.hit_ratio(s.granted_bytes);
    facts.push(format!(
        "64 MiB more of fast memory would be worth {:.1} points of hit ratio, best placed",
        100.0 * gain
    ));
    facts.extend(s.external.iter().map(ExternalReport::words));
    if let Some(message) = &s.throttle.message {
        facts.push(format!("moves are throttled: {message}"));
    }
    if s.throttle.thrashed_pages > 0 {
        facts.push(format!("{} pages were moved back and forth so far", s.throttle.thrashed_pages));
    }
    if s.untracked_fast_bytes + s.untracked_slow_bytes > 0 {
        let reasons = untracked_reasons(s);
        facts.push(format!(
            "{} MiB in fast and {} MiB in slow memory are not tracked and stay where they are{}",
            s.untracked_fast_bytes >> 20,
            s.untracked_slow_bytes >> 20,
            if reasons.is_empty() { String::new() } else { format!(": {reasons}") },
        ));
    }
    if s.truncated_pages > 0 {
        facts.push(format!("{} pages are beyond the bound on tracked memory", s.truncated_pages));
    }
    facts.extend(s.error.iter().map(|e| format!("last fault: {e}")));
    facts
}

/// Why memory is not tracked, the largest part first, in words; empty if no reason is known.
#[must_use]
pub fn untracked_reasons(s: &GroupStatus) -> String {
    let words = |reason: &str| match reason {
        "another_group" => "shared memory that another group moves",
        "unmapped" => "unmapped page cache",
        "file" => "programs, libraries and other files",
        "other_size" => "pages of another size",
        "few_pages" => "ranges with too few pages",
        "over_bound" => "beyond the bound on tracked memory",
        "unreadable" => "of unreadable processes",
        _ => "for an unknown reason",
    };
    let mut known: Vec<_> = s.untracked.iter().filter(|u| u.bytes >= 1 << 20).collect();
    known.sort_by_key(|u| std::cmp::Reverse(u.bytes));
    let text = |u: &&UntrackedBytes| format!("{} MiB {}", u.bytes >> 20, words(&u.reason));
    known.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// All ranges of neighbours with the same use in the same tier.
fn ranges(view: &View, scan: &Scan) -> Vec<RangeExplanation> {
    let size = scan.layout.page_size().bytes();
    let known = view.hotness.pages() == scan.pages();
    let mut ranges: Vec<(RangeExplanation, Use)> = Vec::new();
    for (number, extent) in scan.layout.extents().iter().enumerate() {
        let first = scan.layout.first_index(number);
        for nth in 0..extent.pages {
            let index = first + nth as usize;
            let frequency = if known { view.hotness.frequency(index) } else { 0 };
            let age = if known { view.hotness.age(index) } else { None };
            let is_fast = scan.fast.get(index);
            let used = use_of(frequency, view.status.scans + view.status.restored_scans);
            let address = extent.start + nth * size;
            if let Some((last, last_used)) = ranges.last_mut()
                && last.pid == extent.space.0
                && last.address + last.size_bytes == address
                && (last.is_fast, *last_used) == (is_fast, used)
            {
                last.size_bytes += size;
                last.frequency.0 = last.frequency.0.min(frequency);
                last.frequency.1 = last.frequency.1.max(frequency);
                last.age_periods.0 = match (last.age_periods.0, age) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
                last.age_periods.1 = match (last.age_periods.1, age) {
                    (Some(a), Some(b)) => Some(a.max(b)),
                    _ => None,
                };
                continue;
            }
            let range = RangeExplanation {
                pid: extent.space.0,
                address,
                size_bytes: size,
                is_fast,
                age_periods: (age, age),
                frequency: (frequency, frequency),
                ..RangeExplanation::default()
            };
            ranges.push((range, used));
        }
    }
    ranges
        .into_iter()
        .map(|(range, used)| {
            let (why, would_change) = reason(view, scan, &range, used);
            RangeExplanation { why, would_change, ..range }
        })
        .collect()
}

fn reason(view: &View, scan: &Scan, range: &RangeExplanation, used: Use) -> (String, String) {
    let s = &view.status;
    let resident = scan.fast.count() as u64;
    let full = resident >= view.budget_pages;
    let failed = view.failures.iter().find(|(r, direction, _)| {
        r.space.0 == range.pid
            && r.start < range.address + range.size_bytes
            && range.address < r.end()
            && (*direction == Direction::Promotion) != range.is_fast
    });
    if let Some((_, _, reason)) = failed {
        let what = if range.is_fast { "demote" } else { "promote" };
        return (
            format!("the policy's plan to {what} some of it failed: {}", reason.name()),
            remedy(*reason).to_owned(),
        );
    }
    let stays = "it stays where it is";
    match (range.is_fast, used) {
        (true, Use::Hot) => {
            ("hot, and in fast memory".into(), "less use of it, or a smaller share".into())
        }
        (true, _) if !full => (
            format!("less used, but fast memory of the group is not full: {stays}"),
            "hotter pages that need its room".into(),
        ),
        (true, _) => (
            format!("{} finds no page in slow memory hotter by enough", s.policy),
            "a hotter page in slow memory, or a smaller share".into(),
        ),
        (false, Use::Cold) => ("not used in any remembered scan".into(), "use of it".into()),
        (false, _) if s.dry_run => ("dry run: nothing is moved".into(), "dry_run = false".into()),
        (false, _) if s.throttle.pause_left > 0 => (
            "migration is paused, because it did not pay".into(),
            format!("the end of the pause, in {} periods", s.throttle.pause_left),
        ),
        (false, _) if granted_pages(view, scan) == 0 => {
            ("the group has no fast memory".into(), "a larger share".into())
        }
        (false, Use::Hot | Use::Warm) if full && is_short(view, scan) => (
            format!(
                "others leave less room than the share allows, and {} keeps other pages there",
                s.policy
            ),
            remedy(FailureReason::NoRoom).to_owned(),
        ),
        (false, Use::Hot) if full => (
            format!("fast memory of the group is full, and {} keeps other pages there", s.policy),
            "a larger share, or more use of it than of what is in fast memory".into(),
        ),
        (false, Use::Warm) if full => (
            "used now and then, less than what fills fast memory".into(),
            "a larger share, or more use of it".into(),
        ),
        (false, _) => (
            "there is room: it waits for its move".into(),
            "the next periods, or a larger budget of bandwidth".into(),
        ),
    }
}

fn remedy(reason: FailureReason) -> &'static str {
    match reason {
        FailureReason::Busy => "nothing to do: pinned or locked for the moment, tried again",
        FailureReason::Absent => "nothing to do: it is no longer mapped",
        FailureReason::NoRoom => {
            "room on the target node: smaller shares, or less other memory there"
        }
        FailureReason::NotAllowed => "a cpuset of the group that has nodes of both tiers",
        FailureReason::Denied => "CAP_SYS_NICE for terraced, or no sharing with other groups",
        FailureReason::ProcessGone => "nothing to do: the process has ended",
        FailureReason::StayedPut => {
            "nothing to do: the kernel reported a move that did not happen; tried again"
        }
        FailureReason::OutOfTime => "a larger move_share or a longer period",
        FailureReason::Unsupported => "nothing: this machine cannot move such pages",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::GroupStatus;
    use std::sync::Arc;
    use terrace_core::bits::PageBits;
    use terrace_core::page::{Extent, Layout, PageSize, VirtualRange};
    use terrace_core::remap::Remap;

    const HUGE: u64 = PageSize::Huge.bytes();

    /// Pages 0 and 1 hot, 2 warm, 3 to 7 cold; 0 and 7 in fast memory.
    fn view() -> View {
        let extents = vec![Extent { space: SpaceId(9), start: HUGE, pages: 8 }];
        let layout = Arc::new(Layout::new(PageSize::Huge, extents).unwrap());
        let mut view = View::default();
        view.hotness.remap(&Remap::from_nothing(&layout));
        let fast: PageBits = (0..8).map(|p| p == 0 || p == 7).collect();
        for period in 0..8 {
            let accessed: PageBits = (0..8).map(|p| p < 2 || (p == 2 && period == 3)).collect();
            let scan = Scan::new(period, Arc::clone(&layout), accessed, fast.clone());
            view.hotness.observe(&scan);
            view.scan = Some(scan);
        }
        view.status = GroupStatus {
            name: "g".into(),
            policy: "lru".into(),
            scans: 8,
            granted_bytes: 2 * HUGE,
            ..GroupStatus::default()
        };
        view.budget_pages = 2;
        view
    }

    fn at(view: &View, page: u64) -> RangeExplanation {
        explain(view, Some((1 + page) * HUGE + 17)).unwrap().ranges.remove(0)
    }

    #[test]
    fn neighbours_alike_are_listed_together_with_their_reason() {
        let answer = explain(&view(), None).unwrap();
        let got: Vec<_> = answer
            .ranges
            .iter()
            .map(|r| (r.address / HUGE, r.size_bytes / HUGE, r.is_fast))
            .collect();
        assert_eq!(got, [(4, 4, false), (1, 1, true), (2, 1, false), (3, 1, false), (8, 1, true)]);
        assert!(answer.facts[0].contains("2 of 8 pages may be"), "{:?}", answer.facts);
        assert_eq!(answer.ranges[1].frequency, (8, 8));
        assert_eq!(answer.ranges[3].age_periods, (Some(4), Some(4)));
    }

    #[test]
    fn each_page_has_its_reason_and_its_remedy() {
        let mut view = view();
        assert!(at(&view, 0).why.starts_with("hot, and in fast"));
        assert!(at(&view, 1).why.contains("is full"), "{:?}", at(&view, 1));
        assert!(at(&view, 2).why.contains("now and then"));
        assert!(at(&view, 5).why.contains("not used in any remembered scan"));
        assert!(at(&view, 7).why.contains("no page in slow memory hotter"));
        view.status.granted_bytes = 5 * HUGE;
        assert!(at(&view, 1).why.contains("others leave less room"), "{:?}", at(&view, 1));
        assert!(at(&view, 1).would_change.contains("less other memory"));
        let facts = explain(&view, None).unwrap().facts;
        assert!(facts[0].contains("5 of 8 pages may be"), "{facts:?}");
        assert!(facts[1].contains("room for 2 of them"), "{facts:?}");
        view.budget_pages = 5;
        assert!(at(&view, 1).why.contains("there is room"));
        assert!(at(&view, 7).why.contains("not full"));
        view.status.throttle.pause_left = 6;
        assert!(at(&view, 1).would_change.contains("in 6 periods"));
        let range = VirtualRange { space: SpaceId(9), start: 2 * HUGE, size_bytes: HUGE };
        view.failures = vec![(range, Direction::Promotion, FailureReason::NotAllowed)];
        assert!(
            at(&view, 1).why.contains("not_allowed")
                && at(&view, 1).would_change.contains("cpuset")
        );
        assert!(!at(&view, 2).why.contains("not_allowed"));
    }

    #[test]
    fn what_is_not_tracked_is_refused_and_what_was_not_seen_is_reported() {
        assert!(explain(&view(), Some(0)).unwrap_err().contains("0x0"));
        let answer = explain(&View::default(), None).unwrap();
        assert!(answer.facts[0].contains("no scan yet"), "{answer:?}");
    }
}

//! Tests of a group's room and accesses.

use std::sync::Arc;

use terrace_core::page::{Layout, SpaceId, VirtualRange};
use terrace_core::plan::{Decision, Plan};
use terrace_core::scan::Budget;
use terrace_engine::Cpu;

use super::*;

#[test]
fn what_found_no_room_is_reported_until_promotions_find_some() {
    let failure = |direction, reason, pages: u64| Failure {
        range: VirtualRange {
            space: SpaceId(1),
            start: 0,
            size_bytes: pages * PageSize::Huge.bytes(),
        },
        direction,
        reason,
    };
    let outcome =
        |promoted_pages, failures| Outcome { promoted_pages, failures, ..Outcome::default() };
    // Of 20 pages it has 3 and uses these and 4 more; its limit is 8 pages.
    let layout = Arc::new(Layout::contiguous(PageSize::Huge, 20));
    let scan =
        Scan::new(0, layout, (0..20).map(|p| p < 7).collect(), (0..20).map(|p| p < 3).collect());
    let decision = Decision { plan: Plan::default(), applied: "", features: Default::default() };
    let of = |before, outcome: &Outcome, limit_pages: u64, room_pages: Option<u64>| {
        let fast_pages = room_pages.map_or(limit_pages, |room| limit_pages.min(3 + room));
        let report = PeriodReport {
            group: 0,
            scan: &scan,
            limit_pages,
            room_pages,
            budget: Budget::fast(fast_pages),
            decision: &decision,
            outcome,
            cpu: Cpu::default(),
            untracked_bytes: None,
        };
        no_room_bytes(before, &report, PageSize::Huge)
    };
    let next = |before, outcome: &Outcome| of(before, outcome, 8, None);
    let refused = || failure(Direction::Promotion, FailureReason::NoRoom, 4);
    let mut now = next(0, &outcome(0, vec![refused()]));
    assert_eq!(now, 8 << 20);
    // A pause, and demotions without room: they tell nothing about fast memory.
    now = next(now, &outcome(0, vec![failure(Direction::Demotion, FailureReason::NoRoom, 9)]));
    assert_eq!(now, 8 << 20);
    assert_eq!(next(now, &outcome(1, vec![refused()])), 8 << 20);
    assert_eq!(next(now, &outcome(5, vec![refused()])), 0);
    assert_eq!(next(now, &outcome(1, vec![])), 0);
    // Room for so many more: of the four that are in use in slow memory the others are short, within
    // the limit. With room for all nothing is, whatever was before.
    let none = outcome(0, vec![]);
    let short = |limit_pages, room| of(4 << 20, &none, limit_pages, Some(room)) >> 21;
    assert_eq!([0, 1, 3, 4, 90].map(|room| short(8, room)), [4, 3, 1, 0, 0]);
    assert_eq!((short(5, 0), short(5, 1), short(5, 2), short(1000, 0)), (2, 1, 0, 4));
    // Those that failed are some of them.
    assert_eq!(of(0, &outcome(0, vec![refused()]), 8, Some(0)), 8 << 20);
}

#[test]
fn parts_of_accesses_are_counted_in_the_end_and_hits_are_never_more() {
    let (mut left, mut sums, mut given) = ([0.0; 2], (0, 0), [0.0; 2]);
    // Alone, the first two periods would give one hit and no access in the second.
    for (accesses, hits) in [(2.5, 1.6), (0.4, 0.4), (3.25, 3.25), (0.0, 0.0), (7.1, 2.05)] {
        left[0] += accesses;
        left[1] += hits;
        given[0] += accesses;
        given[1] += hits;
        let (accessed, hits) = take_whole(&mut left);
        assert!(hits <= accessed, "{hits} of {accessed}");
        sums = (sums.0 + accessed, sums.1 + hits);
    }
    assert_eq!(sums, (given[0] as u64, given[1] as u64));
}

#[test]
fn base_pages_that_moved_alone_count_by_their_size() {
    let outcome = Outcome { promoted_pages: 2, demoted_pages: 1, ..Outcome::default() };
    assert_eq!(moved_pages(&outcome, 256, PageSize::Huge), 3.5);
    assert_eq!(moved_pages(&outcome, 2, PageSize::Base), 5.0);
}

#[test]
fn base_pages_that_moved_alone_go_on_when_a_group_is_attached_anew() {
    let costs = |refined_up_pages, refined_failed_pages| CostSnapshot {
        refined_up_pages,
        refined_failed_pages,
        ..CostSnapshot::default()
    };
    let mut status = GroupStatus::default();
    add_refined(&mut status, &costs(0, 0), &costs(5, 1));
    add_refined(&mut status, &costs(5, 1), &costs(7, 1));
    // Attached anew: the counters begin at 0.
    add_refined(&mut status, &costs(0, 0), &costs(2, 3));
    assert_eq!((status.refined_pages, status.refined_failed_pages), (9, 4));
}

#[test]
fn processor_time_of_lost_periods_is_not_of_the_one_after_them() {
    assert_eq!(cpu_percent(20_000_000, 0, 1.0), 2.0);
    assert_eq!(cpu_percent(20_000_000, 9, 1.0), 0.2);
}

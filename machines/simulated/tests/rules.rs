//! The rules of allocation and migration, one by one.

mod support;

use std::collections::VecDeque;

use support::{Script, fast, group, layout, range, scan, script};
use terrace_core::bits::PageBits;
use terrace_core::interfaces::{Mover, Observation, Tracker};
use terrace_core::operations::OperationSize;
use terrace_core::page::PageSize::{Base, Huge};
use terrace_core::plan::{Direction, Exchange, FailureReason, Plan};
use terrace_core::policy::Allocation::{FastFirst, Interleave};
use terrace_recordings::profile::Interval;
use terrace_recordings::source::SourceError;
use terrace_simulated::os::OsConfig;
use terrace_simulated::timed::IntervalSource;
use terrace_simulated::{GroupConfig, Machine, MachineConfig, Placement};

const MIB: u64 = 1 << 20;

/// A machine with room for these many huge pages.
fn machine(fast: u64, slow: u64) -> Machine {
    Machine::new(MachineConfig::new(fast * 2 * MIB, slow * 2 * MIB, 1000)).unwrap()
}

/// Failures as (first page, pages, direction, reason).
fn failures(outcome: &terrace_core::plan::Outcome) -> Vec<(u64, u64, Direction, FailureReason)> {
    let page = |f: &terrace_core::plan::Failure| {
        (f.range.start / Huge.bytes(), f.range.pages(Huge), f.direction, f.reason)
    };
    outcome.failures.iter().map(page).collect()
}

#[test]
fn new_pages_fill_the_budget_then_go_to_slow_memory() {
    let source = script([layout(Huge, &[(0, 4)]), layout(Huge, &[(0, 10)])]);
    let machine = machine(100, 100);
    let (mut tracker, _) = machine.add_group(group(Huge, FastFirst, 6), source).unwrap();
    assert_eq!(fast(&scan(&mut tracker)), [0, 1, 2, 3]);
    assert_eq!(fast(&scan(&mut tracker)), [0, 1, 2, 3, 4, 5]);
    let (fast, slow) = machine.tiers();
    assert_eq!((fast.used_bytes, slow.used_bytes), (12 * MIB, 8 * MIB));
}

#[test]
fn a_full_fast_tier_sends_new_pages_to_slow_memory_and_migrates_nothing() {
    let machine = machine(5, 100);
    let add = || {
        let source = script([layout(Huge, &[(0, 4)]), layout(Huge, &[(0, 4)])]);
        machine.add_group(group(Huge, FastFirst, 4), source).unwrap().0
    };
    let (mut first, mut second) = (add(), add());
    assert_eq!(fast(&scan(&mut first)).len(), 4);
    assert_eq!(fast(&scan(&mut second)), [0]);
    assert_eq!(fast(&scan(&mut first)).len(), 4);
}

#[test]
fn pages_go_beyond_the_budget_before_the_program_is_killed() {
    let source = script([layout(Huge, &[(0, 7)]), layout(Huge, &[(0, 11)])]);
    let (mut tracker, _) = machine(6, 4).add_group(group(Huge, FastFirst, 2), source).unwrap();
    assert_eq!(fast(&scan(&mut tracker)), [0, 1, 2]);
    let e = tracker.observe().unwrap_err().to_string();
    assert_eq!(
        e,
        "group 'g': no memory for 1 pages of 2097152 bytes of its workload (fast tier 6291456 of \
         12582912 bytes in use, slow tier 8388608 of 8388608); give the machine more slow memory"
    );
}

#[test]
fn interleaved_pages_alternate_in_proportion_to_the_budget() {
    let source = script([layout(Huge, &[(0, 12)])]);
    let (mut tracker, _) = machine(100, 100).add_group(group(Huge, Interleave, 4), source).unwrap();
    assert_eq!(fast(&scan(&mut tracker)), [2, 5, 8, 11]);
}

#[test]
fn pages_that_vanish_free_their_place_and_the_others_keep_theirs() {
    let layouts = [
        layout(Huge, &[(0, 8)]),
        layout(Huge, &[(2, 6)]),
        layout(Huge, &[(0, 1), (2, 6), (20, 2)]),
    ];
    let machine = machine(4, 100);
    let (mut tracker, _) = machine.add_group(group(Huge, FastFirst, 4), script(layouts)).unwrap();
    assert_eq!(fast(&scan(&mut tracker)), [0, 1, 2, 3]);
    assert_eq!(fast(&scan(&mut tracker)), [0, 1]);
    assert_eq!(machine.tiers().0.used_bytes, 4 * MIB);
    // Pages 0 and 20 are new and take the room; pages that were fast still are.
    assert_eq!(fast(&scan(&mut tracker)), [0, 1, 2, 7]);
    assert!(matches!(tracker.observe().unwrap(), Observation::Ended));
    let (fast, slow) = machine.tiers();
    assert_eq!((fast.used_bytes, slow.used_bytes), (0, 0), "the end frees everything");
    assert!(matches!(tracker.observe().unwrap(), Observation::Ended));
}

#[test]
fn demotions_make_room_for_promotions() {
    let source = script(vec![layout(Huge, &[(0, 8)]); 2]);
    let (mut tracker, mut mover) =
        machine(4, 8).add_group(group(Huge, FastFirst, 4), source).unwrap();
    scan(&mut tracker);
    let plan = Plan {
        promotions: vec![range(Huge, 4, 3)],
        demotions: vec![range(Huge, 1, 2)],
        ..Plan::default()
    };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (2, 2));
    assert_eq!(failures(&outcome), [(6, 1, Direction::Promotion, FailureReason::NoRoom)]);
    assert_eq!(fast(&scan(&mut tracker)), [0, 3, 4, 5]);
}

#[test]
fn a_promotion_beyond_the_budget_finds_no_room() {
    let source = script(vec![layout(Huge, &[(0, 8)])]);
    let config = GroupConfig { initial: None, ..group(Huge, FastFirst, 4) };
    let (mut tracker, mut mover) = machine(100, 100).add_group(config, source).unwrap();
    scan(&mut tracker);
    let plan = Plan { promotions: vec![range(Huge, 4, 2)], ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!(failures(&outcome), [(4, 2, Direction::Promotion, FailureReason::NoRoom)]);
}

#[test]
fn an_exchange_needs_no_free_page() {
    let source = script(vec![layout(Huge, &[(0, 8)]); 2]);
    let machine = machine(4, 4);
    let (mut tracker, mut mover) = machine.add_group(group(Huge, FastFirst, 4), source).unwrap();
    scan(&mut tracker);
    let exchange = Exchange { up: range(Huge, 5, 2), down: range(Huge, 0, 2) };
    let outcome = mover.apply(&Plan { exchanges: vec![exchange], ..Plan::default() }).unwrap();
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages, outcome.exchanged_pairs), (2, 2, 2));
    assert!(outcome.failures.is_empty());
    assert_eq!(fast(&scan(&mut tracker)), [2, 3, 5, 6]);
}

/// Intervals of 300 us that read each of eight huge pages.
struct Eight;

impl IntervalSource for Eight {
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError> {
        Ok(Some(Interval {
            references: 1000,
            fast_ps: 300_000_000,
            slow_ps: 400_000_000,
            mixed: Vec::new(),
            scan_ps: 0,
            layout: layout(Huge, &[(0, 8)]),
            accessed: PageBits::ones(8),
            fresh: Vec::new(),
            reads: vec![10; 8],
        }))
    }
}

#[test]
fn an_operating_system_without_exchange_moves_pairs_down_and_up() {
    let outcome = |exchange| {
        let mut os = OsConfig::default();
        os.migration.exchange = exchange;
        let machine = Machine::new(MachineConfig::new(8 * MIB, 24 * MIB, 1_000)).unwrap();
        let config = group(Huge, FastFirst, 4);
        let (mut tracker, mut mover) =
            machine.add_timed_group(config, Box::new(Eight), &os).unwrap();
        scan(&mut tracker);
        let exchange = Exchange { up: range(Huge, 5, 2), down: range(Huge, 0, 2) };
        let plan = Plan { exchanges: vec![exchange], ..Plan::default() };
        let outcome = mover.apply(&plan).unwrap();
        assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (2, 2), "{outcome:?}");
        assert_eq!(fast(&scan(&mut tracker)), [2, 3, 5, 6]);
        outcome.exchanged_pairs
    };
    assert_eq!((outcome(true), outcome(false)), (2, 0));
}

#[test]
fn a_pair_with_one_side_gone_falls_back_to_the_other_side_alone() {
    let layouts =
        [layout(Huge, &[(0, 8)]), layout(Huge, &[(0, 5), (6, 2)]), layout(Huge, &[(0, 5), (6, 2)])];
    let (mut tracker, mut mover) =
        machine(4, 8).add_group(group(Huge, FastFirst, 4), script(layouts)).unwrap();
    scan(&mut tracker);
    scan(&mut tracker);
    // Page 5 has gone, 6 has not.
    let exchange = Exchange { up: range(Huge, 5, 2), down: range(Huge, 0, 2) };
    let outcome = mover.apply(&Plan { exchanges: vec![exchange], ..Plan::default() }).unwrap();
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages, outcome.exchanged_pairs), (1, 2, 1));
    assert_eq!(failures(&outcome), [(5, 1, Direction::Promotion, FailureReason::Absent)]);
    let scan = scan(&mut tracker);
    let fast_addresses: Vec<_> =
        fast(&scan).into_iter().map(|i| scan.layout.address(i).1 / Huge.bytes()).collect();
    assert_eq!(fast_addresses, [2, 3, 6]);
}

#[test]
fn a_page_that_is_already_there_is_distinguished_from_a_move() {
    let source = script(vec![layout(Huge, &[(0, 8)])]);
    let (mut tracker, mut mover) =
        machine(8, 8).add_group(group(Huge, FastFirst, 4), source).unwrap();
    scan(&mut tracker);
    let plan = Plan { demotions: vec![range(Huge, 3, 2)], ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!(outcome.demoted_pages, 1);
    assert_eq!(failures(&outcome), [(4, 1, Direction::Demotion, FailureReason::Unsupported)]);
}

#[test]
fn a_plan_for_a_group_that_has_ended_finds_no_page() {
    let source = script(vec![layout(Huge, &[(0, 8)])]);
    let (mut tracker, mut mover) =
        machine(8, 8).add_group(group(Huge, FastFirst, 4), source).unwrap();
    scan(&mut tracker);
    tracker.observe().unwrap();
    let plan = Plan { demotions: vec![range(Huge, 0, 8)], ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!(failures(&outcome), [(0, 8, Direction::Demotion, FailureReason::Absent)]);
}

#[test]
fn busy_pages_fail_at_the_rate_asked_for_and_alike_for_the_same_seed() {
    let run = |seed| {
        let config =
            MachineConfig { busy_rate: 0.1, seed, ..MachineConfig::new(1 << 40, 1 << 40, 1000) };
        let source = script(vec![layout(Base, &[(0, 10_000)]); 2]);
        let machine = Machine::new(config).unwrap();
        let (mut tracker, mut mover) =
            machine.add_group(group(Base, FastFirst, 10_000), source).unwrap();
        scan(&mut tracker);
        let plan = Plan { demotions: vec![range(Base, 0, 10_000)], ..Plan::default() };
        let outcome = mover.apply(&plan).unwrap();
        let busy: u64 = outcome.failures.iter().map(|f| f.range.pages(Base)).sum();
        assert!(outcome.failures.iter().all(|f| f.reason == FailureReason::Busy));
        assert_eq!(outcome.demoted_pages + busy, 10_000);
        assert!((850..1150).contains(&busy), "{busy}");
        fast(&scan(&mut tracker))
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn groups_of_both_page_sizes_share_the_tiers() {
    let machine = machine(2, 100);
    let huge = script([layout(Huge, &[(0, 4)])]);
    let base = script([layout(Base, &[(0, 2000)])]);
    let (mut base, _) = machine.add_group(group(Base, FastFirst, 600), base).unwrap();
    let (mut huge, _) = machine.add_group(group(Huge, FastFirst, 4), huge).unwrap();
    assert_eq!(fast(&scan(&mut base)).len(), 600);
    assert_eq!(
        fast(&scan(&mut huge)).len(),
        0,
        "600 base pages leave no room for a huge one but 1696 KB"
    );
    assert_eq!(machine.tiers().0.used_bytes, 600 * 4096);
}

#[test]
fn an_initial_placement_is_where_the_first_period_starts() {
    let initial = |pages: &[usize]| {
        let layout = layout(Huge, &[(0, 6)]);
        let mut fast = PageBits::new(6);
        pages.iter().for_each(|&p| fast.set(p, true));
        Some(Placement { layout, fast })
    };
    let machine = machine(3, 100);
    let config = GroupConfig { initial: initial(&[1, 4]), ..group(Huge, FastFirst, 3) };
    // Page 0 has gone before the first period, 6 and 7 are new.
    let source = script([layout(Huge, &[(1, 7)])]);
    let (mut tracker, _) = machine.add_group(config, source).unwrap();
    assert_eq!(fast(&scan(&mut tracker)), [0, 3, 5]);
    let config = GroupConfig { initial: initial(&[0, 1, 2, 3]), ..group(Huge, FastFirst, 3) };
    let e = machine.add_group(config, script([])).err().unwrap().to_string();
    assert!(e.starts_with("group 'g': no memory for 4 pages"), "{e}");
}

#[test]
fn lost_periods_leave_a_gap_in_the_numbers() {
    struct Lossy(Script);
    impl terrace_recordings::source::PeriodSource for Lossy {
        fn next_period(
            &mut self,
        ) -> Result<
            Option<terrace_recordings::source::PeriodAccesses>,
            terrace_recordings::source::SourceError,
        > {
            let mut period = self.0.next_period()?;
            if self.0.0.len() == 1 {
                period.as_mut().unwrap().lost_periods = 3;
            }
            Ok(period)
        }
    }
    let source = Lossy(Script(VecDeque::from(vec![layout(Huge, &[(0, 1)]); 3])));
    let (mut tracker, _) =
        machine(1, 1).add_group(group(Huge, FastFirst, 1), Box::new(source)).unwrap();
    let seen: Vec<_> =
        (0..3).map(|_| scan(&mut tracker)).map(|scan| (scan.period, scan.lost_periods)).collect();
    assert_eq!(seen, [(0, 0), (4, 3), (5, 0)]);
}

#[test]
fn impossible_machines_and_mismatched_groups_are_refused_in_one_line() {
    let error = |config| Machine::new(config).err().unwrap().to_string();
    assert_eq!(
        error(MachineConfig { busy_rate: 1.5, ..MachineConfig::new(1, 1, 1) }),
        "busy_rate is 1.5, expected 0 to 1: the part of moves that fail"
    );
    assert!(
        error(MachineConfig { busy_rate: f64::NAN, ..MachineConfig::new(1, 1, 1) }).contains("NaN")
    );
    assert!(error(MachineConfig::new(1, 1, 0)).contains("period_ms is 0"));

    let source = script([layout(Base, &[(0, 8)])]);
    let (mut tracker, mut mover) =
        machine(8, 8).add_group(group(Huge, FastFirst, 4), source).unwrap();
    let e = tracker.observe().unwrap_err().to_string();
    assert_eq!(
        e,
        "group 'g': its workload has pages of 4096 bytes, expected 2097152; give both the same page size"
    );
    let plan = Plan { promotions: vec![range(Base, 1, 1)], ..Plan::default() };
    let e = mover.apply(&plan).unwrap_err().to_string();
    assert!(e.contains("expected whole pages of 2097152 bytes"), "{e}");
}

#[test]
fn moves_are_counted_in_operations_of_the_plans_granularity() {
    let operations = |size_bytes: Option<u64>, plan: Plan| {
        let source = script(vec![layout(Base, &[(0, 1024)])]);
        let (mut tracker, mut mover) =
            machine(1, 100).add_group(group(Base, FastFirst, 300), source).unwrap();
        scan(&mut tracker);
        let space = terrace_core::page::SpaceId(0);
        let size = size_bytes.map(|bytes| OperationSize::both_ways(space, bytes));
        let plan = Plan { operation_sizes: size.into_iter().collect(), ..plan };
        mover.apply(&plan).unwrap().operations
    };
    let swap = Plan {
        exchanges: vec![Exchange { up: range(Base, 512, 256), down: range(Base, 0, 256) }],
        ..Plan::default()
    };
    for (size, expected) in [(None, 512), (Some(64 << 10), 32), (Some(2 << 20), 2)] {
        assert_eq!(operations(size, swap.clone()), expected, "{size:?}");
    }
    // Only actual moves count: 44 pages leave, as many find room, the rest does not.
    let demotions = vec![range(Base, 256, 44)];
    let plan = Plan { promotions: vec![range(Base, 512, 512)], demotions, ..Plan::default() };
    assert_eq!(operations(Some(64 << 10), plan.clone()), 3 + 3);
    assert_eq!(operations(None, plan), 88);
}

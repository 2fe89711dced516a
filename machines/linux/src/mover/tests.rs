//! Tests of the mover with a kernel that behaves as `do_pages_move` does.

mod kernel;
mod room;
mod stuck;

use super::*;
use crate::session::Session;
use crate::testing::folder;
use kernel::{EXCHANGE, Fake, Later, World};
use proptest::prelude::*;
use std::io;
use std::sync::Mutex;
use terrace_core::plan::{Exchange, Failure};

const HUGE: u64 = 2 << 20;

/// A mover of huge pages over this world, for process 7.
fn mover(world: World, total: Duration) -> (PageMover, Arc<Mutex<World>>, Costs) {
    let fake = Fake(Arc::new(Mutex::new(world)));
    let shared = Arc::clone(&fake.0);
    let costs = Costs::default();
    let mover = PageMover::new(
        Box::new(fake),
        TierNodes { fast: vec![0], slow: vec![1] },
        PageSize::Huge,
        MoverOptions { stall: Duration::from_millis(20), total },
        Arc::new(RwLock::new(TrackerState {
            members: vec![Process { pid: 7, start_ticks: 1 }],
            boundary: None,
        })),
        costs.clone(),
    );
    (mover, shared, costs)
}

fn range(first: u64, pages: u64) -> VirtualRange {
    VirtualRange { space: SpaceId(7), start: first * HUGE, size_bytes: pages * HUGE }
}

fn placed(fast: std::ops::Range<u64>, slow: std::ops::Range<u64>) -> BTreeMap<u64, i32> {
    fast.map(|p| (p * HUGE, 0)).chain(slow.map(|p| (p * HUGE, 1))).collect()
}

fn failures(outcome: &Outcome) -> Vec<(u64, u64, Direction, FailureReason)> {
    let page =
        |f: &Failure| (f.range.start / HUGE, f.range.size_bytes / HUGE, f.direction, f.reason);
    outcome.failures.iter().map(page).collect()
}

#[test]
fn demotions_go_before_promotions_and_exchanges_pairwise_between() {
    let world = World { place: placed(0..4, 10..14), ..World::default() };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    let plan = Plan {
        promotions: vec![range(10, 1)],
        demotions: vec![range(0, 1)],
        exchanges: vec![Exchange { up: range(11, 3), down: range(1, 3) }],
        ..Plan::default()
    };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (4, 4));
    assert_eq!((outcome.exchanged_pairs, outcome.failures.len()), (0, 0));
    let world = world.lock().unwrap();
    assert_eq!(world.place, placed(10..14, 0..4));
    let nodes: Vec<u32> = world.calls.iter().map(|(node, _)| *node).collect();
    assert_eq!(nodes, [1, 1, 0, 1, 0, 0]);
}

#[test]
fn without_room_each_page_that_comes_up_goes_with_one_that_goes_down() {
    let room_bytes = [(0, 0)].into();
    let world = World { place: placed(0..6, 10..14), room_bytes, ..World::default() };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    mover.batch_sizer = BatchSizer::new(Duration::from_millis(20), 2, 2);
    // Two more demotions than promotions: those go first.
    let plan =
        Plan { promotions: vec![range(10, 4)], demotions: vec![range(0, 6)], ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (4, 6));
    assert!(outcome.failures.is_empty(), "{outcome:?}");
    let nodes: Vec<u32> = world.lock().unwrap().calls.iter().map(|(node, _)| *node).collect();
    assert_eq!(nodes, [1, 1, 0, 1, 0]);
}

#[test]
fn a_promotion_that_finds_no_room_gets_the_place_of_a_victim() {
    let room_bytes = [(0, HUGE)].into();
    let world = World { place: placed(0..6, 10..16), room_bytes, ..World::default() };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    // One page fits; the victim of another is in slow memory already, and one has none.
    let victim = |up, down| Exchange { up: range(up, 1), down: range(down, 1) };
    let victims = vec![victim(10, 0), victim(11, 3), victim(12, 15), victim(13, 1)];
    let plan = Plan { promotions: vec![range(10, 5)], victims, ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages, outcome.victim_pages), (3, 2, 2));
    let mut failed = failures(&outcome);
    failed.sort_unstable();
    use Direction::Promotion;
    let no_room = FailureReason::NoRoom;
    assert_eq!(failed, [(12, 1, Promotion, no_room), (14, 1, Promotion, no_room)]);
    let world = world.lock().unwrap();
    assert!([10, 11, 13].iter().all(|p| world.place[&(p * HUGE)] == 0));
    assert!([1, 3].iter().all(|p| world.place[&(p * HUGE)] == 1));
    assert!([0, 2, 4, 5].iter().all(|p| world.place[&(p * HUGE)] == 0));
}

#[test]
fn victims_stay_where_there_is_room_and_where_no_page_comes() {
    // Pages 10 and 11 fit; pages 20 and 21 do not exist.
    for (promotions, room, promoted) in [(range(10, 2), 9, 2), (range(20, 2), 0, 0)] {
        let room_bytes = [(0, room * HUGE)].into();
        let world = World { place: placed(0..4, 10..12), room_bytes, ..World::default() };
        let (mut mover, world, _) = mover(world, Duration::from_secs(1));
        let victims = vec![Exchange { up: promotions, down: range(0, 2) }];
        let plan = Plan { promotions: vec![promotions], victims, ..Plan::default() };
        let outcome = mover.apply(&plan).unwrap();
        assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (promoted, 0));
        assert!((0..4).all(|p| world.lock().unwrap().place[&(p * HUGE)] == 0));
    }
}

#[test]
fn a_page_keeps_its_place_when_the_one_that_is_to_have_it_cannot_come() {
    let world = World { place: placed(0..4, 10..11), ..World::default() };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    // Pages 20 and 21 are absent, page 3 is in fast memory already.
    let exchange = |up, down, pages| Exchange { up: range(up, pages), down: range(down, pages) };
    let plan = Plan { exchanges: vec![exchange(20, 0, 2), exchange(3, 2, 1)], ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages, outcome.kept_pages), (1, 0, 3));
    assert_eq!(failures(&outcome), [(20, 2, Direction::Promotion, FailureReason::Absent)]);
    assert!(world.lock().unwrap().calls.is_empty());
}

#[test]
fn no_further_pair_is_tried_once_others_took_the_memory_that_a_page_left() {
    let room_bytes = [(0, 0)].into();
    let world = World { place: placed(0..4, 10..14), room_bytes, thief: true, ..World::default() };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    let plan = Plan {
        exchanges: vec![Exchange { up: range(10, 4), down: range(0, 4) }],
        ..Plan::default()
    };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages, outcome.kept_pages), (0, 1, 3));
    assert_eq!(failures(&outcome), [(10, 4, Direction::Promotion, FailureReason::NoRoom)]);
    assert_eq!(world.lock().unwrap().place.values().filter(|n| **n == 0).count(), 3);
}

#[test]
fn what_a_page_leaves_is_room_for_another_on_a_node_below_its_watermark() {
    // The kernel would take eight pages more; by the watermark there is no room for any.
    let room_bytes = [(0, 8 * HUGE)].into();
    let deficit_bytes = 9 * HUGE;
    let place = placed(0..4, 10..14);
    let world = World { place, room_bytes, deficit_bytes, ..World::default() };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    let plan = Plan {
        exchanges: vec![Exchange { up: range(10, 3), down: range(0, 3) }],
        promotions: vec![range(13, 1)],
        victims: vec![Exchange { up: range(13, 1), down: range(3, 1) }],
        ..Plan::default()
    };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (4, 4), "{outcome:?}");
    assert!(outcome.failures.is_empty());
    let fast: Vec<u64> = {
        let world = world.lock().unwrap();
        world.place.iter().filter(|(_, n)| **n == 0).map(|(a, _)| a / HUGE).collect()
    };
    assert_eq!(fast, [10, 11, 12, 13]);
    // A promotion without room still finds none.
    let more = Plan { promotions: vec![range(0, 1)], ..Plan::default() };
    let outcome = mover.apply(&more).unwrap();
    assert_eq!(failures(&outcome), [(0, 1, Direction::Promotion, FailureReason::NoRoom)]);
}

#[test]
fn each_page_gets_a_place_on_the_node_that_its_partner_left() {
    // Two full fast nodes: what one page leaves is room on its own node alone.
    let room_bytes = [(0, 8 * HUGE), (2, 8 * HUGE)].into();
    let mut place = placed(0..4, 10..14);
    place.extend([(2 * HUGE, 2), (3 * HUGE, 2)]);
    let world = World { place, room_bytes, deficit_bytes: 9 * HUGE, ..World::default() };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    mover.nodes = TierNodes { fast: vec![0, 2], slow: vec![1] };
    let exchanges = vec![Exchange { up: range(10, 4), down: range(0, 4) }];
    let outcome = mover.apply(&Plan { exchanges, ..Plan::default() }).unwrap();
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (4, 4), "{outcome:?}");
    let world = world.lock().unwrap();
    let nodes: Vec<i32> = (10..14).map(|page| world.place[&(page * HUGE)]).collect();
    assert_eq!(nodes, [0, 0, 2, 2]);
}

#[test]
fn a_run_that_is_to_stop_makes_no_further_call() {
    let stop = Arc::new(AtomicBool::new(false));
    let world = World {
        place: placed(0..4, 10..20),
        later: Some((2, Later::Stop(Arc::clone(&stop)))),
        ..World::default()
    };
    let (mover, world, _) = mover(world, Duration::from_secs(1));
    let mut mover = mover.stopping(Some(Arc::clone(&stop)));
    mover.batch_sizer = BatchSizer::new(Duration::from_millis(20), 1, 1);
    let exchanges = vec![Exchange { up: range(14, 4), down: range(0, 4) }];
    let plan = Plan { promotions: vec![range(10, 4)], exchanges, ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    // The first pair was exchanged.
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (1, 1));
    let rest: u64 = failures(&outcome).iter().map(|f| f.1).sum();
    assert_eq!(rest, 3 + 3 + 4);
    assert!(outcome.failures.iter().all(|f| f.reason == FailureReason::OutOfTime));
    assert_eq!(world.lock().unwrap().calls.len(), 2);

    // In the wait for the end of a period, too.
    let (mover, world, _) = self::mover(World::default(), Duration::from_secs(1));
    let mut mover = mover.stopping(Some(stop));
    mover.tracker_state.write().unwrap().boundary =
        Some((Duration::from_millis(10), Duration::from_secs(500)));
    mover.apply(&Plan { promotions: vec![range(10, 4)], ..Plan::default() }).unwrap();
    assert!(world.lock().unwrap().now < Duration::from_secs(1));
}

#[test]
fn a_process_that_takes_over_an_identifier_in_the_midst_of_a_plan_is_not_touched() {
    let later = Some((3, Later::Reused));
    let world = World { place: placed(0..0, 10..20), later, ..World::default() };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    mover.batch_sizer = BatchSizer::new(Duration::from_millis(20), 1, 1);
    let plan = Plan { promotions: vec![range(10, 10)], ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!(world.lock().unwrap().calls.len(), 3);
    assert_eq!(failures(&outcome), [(13, 7, Direction::Promotion, FailureReason::ProcessGone)]);
}

#[test]
fn a_cpuset_that_changes_in_the_midst_of_a_plan_is_obeyed() {
    let later = Some((3, Later::Cpuset(vec![1])));
    let world = World { place: placed(0..0, 10..20), later, ..World::default() };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    mover.batch_sizer = BatchSizer::new(Duration::from_millis(20), 1, 1);
    let plan = Plan { promotions: vec![range(10, 10)], ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!(world.lock().unwrap().calls.len(), 3);
    assert_eq!(failures(&outcome), [(13, 7, Direction::Promotion, FailureReason::NotAllowed)]);
}

#[test]
fn pairs_are_exchanged_in_one_step_where_the_plan_bounds_operations_too() {
    let world = World {
        place: placed(0..4, 10..14),
        room_bytes: [(0, 0)].into(),
        exchanges: true,
        ..World::default()
    };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    mover.batch_sizer = BatchSizer::new(Duration::from_millis(20), 4, 4);
    let plan = Plan {
        exchanges: vec![Exchange { up: range(10, 4), down: range(0, 4) }],
        operation_sizes: vec![OperationSize::both_ways(SpaceId(7), 2 * HUGE)],
        ..Plan::default()
    };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!((outcome.exchanged_pairs, outcome.operations), (4, 2));
    let calls = &world.lock().unwrap().calls;
    let pages = |pages: [u64; 4]| (EXCHANGE, pages.map(|p| p * HUGE).to_vec());
    assert_eq!(*calls, [pages([0, 1, 10, 11]), pages([2, 3, 12, 13])]);
}

#[test]
fn each_failure_has_its_reason() {
    let world = World {
        place: placed(0..2, 10..16),
        stuck: vec![10 * HUGE],
        refused: [(11 * HUGE, libc::EACCES)].into(),
        liars: vec![12 * HUGE],
        ..World::default()
    };
    let (mut mover, world, costs) = mover(world, Duration::from_secs(1));
    // Pages 10 to 15 and one that does not exist; 0 is in fast memory already.
    let plan = Plan { promotions: vec![range(10, 7), range(0, 1)], ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    use Direction::Promotion;
    assert_eq!(
        failures(&outcome),
        [
            (10, 1, Promotion, FailureReason::Busy),
            (11, 1, Promotion, FailureReason::Denied),
            (12, 1, Promotion, FailureReason::StayedPut),
            (16, 1, Promotion, FailureReason::Absent),
        ]
    );
    assert_eq!(outcome.promoted_pages, 4);
    assert_eq!(costs.snapshot().already_there_pages, 1);
    assert_eq!(world.lock().unwrap().place[&(15 * HUGE)], 0);
}

#[test]
fn a_full_node_is_not_filled_into_its_reserve() {
    let world = World {
        place: placed(0..0, 0..5),
        room_bytes: [(0, 3 * HUGE + 5)].into(),
        ..World::default()
    };
    let (mut mover, _, _) = mover(world, Duration::from_secs(1));
    let plan = Plan { promotions: vec![range(0, 5)], ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!(outcome.promoted_pages, 3);
    assert_eq!(failures(&outcome), [(3, 2, Direction::Promotion, FailureReason::NoRoom)]);
}

#[test]
fn an_exchange_whose_page_stays_down_there_leaves_its_partner() {
    let world = World { place: placed(0..2, 10..12), stuck: vec![0], ..World::default() };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    let plan = Plan {
        exchanges: vec![Exchange { up: range(10, 2), down: range(0, 2) }],
        ..Plan::default()
    };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (1, 1));
    let mut got = failures(&outcome);
    got.sort_by_key(|f| f.0);
    assert_eq!(
        got,
        [
            (0, 1, Direction::Demotion, FailureReason::Busy),
            (10, 1, Direction::Promotion, FailureReason::NoRoom)
        ]
    );
    assert_eq!(world.lock().unwrap().place[&(10 * HUGE)], 1);
}

#[test]
fn pairs_trade_places_where_the_kernel_can_and_move_where_it_refuses() {
    let world = World {
        place: placed(0..4, 10..14),
        room_bytes: [(0, 0)].into(),
        refused: [(12 * HUGE, libc::EBUSY)].into(),
        exchanges: true,
        ..World::default()
    };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    mover.batch_sizer = BatchSizer::new(Duration::from_millis(20), 4, 4);
    let plan = Plan {
        exchanges: vec![Exchange { up: range(10, 4), down: range(0, 4) }],
        ..Plan::default()
    };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!(outcome.exchanged_pairs, 3);
    // The fourth pair became two moves, of which the promotion was refused, too; its partner is
    // demoted, as on a stock kernel.
    assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (3, 4));
    assert_eq!(failures(&outcome).len(), 1);
    let world = world.lock().unwrap();
    assert_eq!(world.calls[0], (EXCHANGE, [0, 1, 2, 3, 10, 11, 12, 13].map(|p| p * HUGE).to_vec()));
    assert_eq!([0, 1, 3].map(|p| world.place[&(p * HUGE)]), [1; 3]);
    assert_eq!([10, 11, 13].map(|p| world.place[&(p * HUGE)]), [0; 3]);
}

#[test]
fn batches_shrink_to_the_stall_allowed_and_time_runs_out_at_the_bound() {
    let world = World {
        place: placed(0..0, 0..100),
        per_page: Duration::from_millis(7),
        ..World::default()
    };
    let (mut mover, world, costs) = mover(world, Duration::from_millis(300));
    let plan = Plan { promotions: vec![range(0, 100)], ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert!(costs.snapshot().longest_move_ns <= 28_000_000);
    assert!(world.lock().unwrap().now <= Duration::from_millis(330));
    let left = 100 - outcome.promoted_pages;
    assert!((50..70).contains(&left), "{left} pages left");
    assert_eq!(
        failures(&outcome),
        [(100 - left, left, Direction::Promotion, FailureReason::OutOfTime)]
    );
}

#[test]
fn a_process_that_went_or_may_not_is_distinguished() {
    let plan = Plan { promotions: vec![range(0, 1)], ..Plan::default() };
    let place = placed(0..0, 0..1);
    let reason = |world: World| {
        let outcome = mover(world, Duration::from_secs(1)).0.apply(&plan).unwrap();
        outcome.failures[0].reason
    };
    let base = || World { place: place.clone(), ..World::default() };
    assert_eq!(reason(World { gone: true, ..base() }), FailureReason::ProcessGone);
    let cpuset = World { allowed: Some(vec![1]), ..base() };
    assert_eq!(reason(cpuset), FailureReason::NotAllowed);
    for (errno, expected) in [
        (libc::EACCES, FailureReason::NotAllowed),
        (libc::EPERM, FailureReason::Denied),
        (libc::ESRCH, FailureReason::ProcessGone),
        (libc::ENOMEM, FailureReason::NoRoom),
    ] {
        assert_eq!(reason(World { call_error: Some(errno), ..base() }), expected);
    }
}

#[test]
fn no_page_is_on_its_way_when_a_period_ends() {
    let ms = Duration::from_millis;
    // The period ends at 100 ms, and the margin is 40 ms: a plan in the early part is cut
    // short, one shortly before or after the end waits.
    for (now, expected) in [(0, 58), (50, 140), (90, 140), (120, 140), (150, 1040)] {
        let world =
            World { place: placed(0..0, 0..40), per_page: ms(2), now: ms(now), ..World::default() };
        let (mut mover, world, _) = mover(world, ms(200));
        mover.tracker_state.write().unwrap().boundary = Some((ms(100), ms(800)));
        let plan = Plan { promotions: vec![range(0, 40)], ..Plan::default() };
        let outcome = mover.apply(&plan).unwrap();
        let end = world.lock().unwrap().now;
        if now == 0 {
            assert!(end <= ms(60 + 20), "{end:?}");
            assert!(!outcome.failures.is_empty());
        } else {
            assert_eq!(outcome.promoted_pages, 40);
            let begin = if now == 150 { 150 } else { expected };
            assert_eq!(end, ms(begin + 80), "from {now} ms");
        }
    }
}

#[test]
fn in_every_period_there_is_time_for_moves_however_short_it_is() {
    let ms = Duration::from_millis;
    // The shortest period of an experiment and of a group, and one in which calls are as long as
    // configured.
    for (period_ms, stall_ms) in [(50, 6), (100, 12), (1000, 20)] {
        let options = MoverOptions::in_period(ms(period_ms), 0.5, ms(20));
        assert_eq!(options.stall.as_millis(), stall_ms);
        for now in (0..period_ms).step_by(5) {
            let (now, place) = (ms(now), placed(0..0, 0..40));
            let world =
                World { place, per_page: Duration::from_micros(100), now, ..World::default() };
            let (mut mover, world, _) = mover(world, options.total);
            mover.options = options;
            mover.tracker_state.write().unwrap().boundary = Some((ms(period_ms), ms(period_ms)));
            let plan = Plan { promotions: vec![range(0, 40)], ..Plan::default() };
            let outcome = mover.apply(&plan).unwrap();
            assert_eq!(outcome.promoted_pages, 40, "{period_ms} ms, from {now:?}");
            assert!(world.lock().unwrap().now <= now + ms(period_ms), "{period_ms} ms");
        }
    }
}

#[test]
fn a_stranger_with_a_members_number_is_not_touched() {
    let world = World { place: placed(0..0, 0..1), ..World::default() };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    mover.tracker_state.write().unwrap().members = vec![Process { pid: 7, start_ticks: 99 }];
    let plan = Plan { promotions: vec![range(0, 1)], ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!(outcome.failures[0].reason, FailureReason::ProcessGone);
    assert!(world.lock().unwrap().calls.is_empty());
}

/// Holds an outcome to where pages were before and are now, and to the calls that were made.
fn is_as_reported(
    outcome: &Outcome,
    before: &BTreeMap<u64, i32>,
    world: &World,
    region_bytes: u64,
) -> Result<(), TestCaseError> {
    // Pages reported as moved are in the other tier now.
    let after = &world.place;
    let went = |to: i32| before.iter().filter(|(a, n)| **n != to && after[*a] == to).count();
    prop_assert_eq!(went(0) as u64, outcome.promoted_pages);
    prop_assert_eq!(went(1) as u64, outcome.demoted_pages);
    // No call leaves a region, and no operation is empty.
    let region_of = |address: &u64| address.checked_div(region_bytes);
    for (node, pages) in &world.calls {
        let ways = if *node == EXCHANGE { 2 } else { 1 };
        for pages in pages.chunks(pages.len() / ways) {
            prop_assert!(pages.iter().all(|a| region_of(a) == region_of(&pages[0])));
        }
    }
    let exchanged = world.calls.iter().any(|(node, _)| *node == EXCHANGE);
    prop_assert!(outcome.exchanged_pairs == 0 || exchanged);
    prop_assert!(!exchanged || world.exchanges);
    prop_assert!(outcome.exchanged_pairs <= outcome.demoted_pages);
    let moved = outcome.promoted_pages + outcome.demoted_pages;
    prop_assert!(outcome.operations <= world.calls.len() as u64);
    prop_assert!(outcome.operations <= moved);
    prop_assert_eq!(outcome.operations == 0, moved == 0);
    Ok(())
}

proptest! {
    #[test]
    fn every_page_of_a_plan_is_accounted_for_and_placed_as_planned(
        slow in prop::collection::btree_set(0u64..40, 0..40),
        stuck in prop::collection::vec(0u64..40, 0..6),
        liars in prop::collection::vec(0u64..40, 0..4),
        refused in prop::collection::btree_map(0u64..40, 1i32..40, 0..6),
        absent in prop::collection::vec(0u64..40, 0..4),
        room in 0u64..40,
        call_error in prop::option::weighted(0.1, 1i32..40),
        total_ms in 0u64..600,
        per_page_ms in 0u32..30,
        pairs in 0u64..10,
        region in 0u64..5,
        can_exchange in any::<bool>(),
        spare in 0usize..8,
    ) {
        let mut place = placed(0..40, 0..0);
        for page in &slow { place.insert(page * HUGE, 1); }
        for page in &absent { place.remove(&(page * HUGE)); }
        let world = World {
            place,
            stuck: stuck.iter().map(|p| p * HUGE).collect(),
            liars: liars.iter().map(|p| p * HUGE).collect(),
            refused: refused.iter().map(|(p, e)| (p * HUGE, *e)).collect(),
            room_bytes: [(0, room * HUGE)].into(),
            call_error,
            per_page: Duration::from_millis(per_page_ms.into()),
            exchanges: can_exchange,
            ..World::default()
        };
        let (mut mover, world, _) = mover(world, Duration::from_millis(total_ms));
        let mut ups: Vec<u64> = slow.iter().copied().collect();
        let mut downs: Vec<u64> = (0..40).filter(|p| !slow.contains(p)).collect();
        let pairs = pairs.min(ups.len() as u64).min(downs.len() as u64) as usize;
        let victims = downs.split_off(downs.len().saturating_sub(spare));
        let pairs = pairs.min(downs.len());
        let exchanges = ups.drain(..pairs).zip(downs.drain(..pairs))
            .map(|(up, down)| Exchange { up: range(up, 1), down: range(down, 1) })
            .collect();
        let plan = Plan {
            promotions: ups.iter().map(|&p| range(p, 1)).collect(),
            demotions: downs.iter().map(|&p| range(p, 1)).collect(),
            exchanges,
            // Without a size, an operation is unlimited.
            operation_sizes: (region > 0)
                .then(|| OperationSize::both_ways(SpaceId(7), region * HUGE))
                .into_iter()
                .collect(),
            victims: ups.iter().zip(&victims)
                .map(|(&up, &down)| Exchange { up: range(up, 1), down: range(down, 1) })
                .collect(),
        };
        let before = world.lock().unwrap().place.clone();
        let outcome = mover.apply(&plan).unwrap();
        let failed = |direction| -> u64 {
            outcome.failures.iter().filter(|f| f.direction == direction)
                .map(|f| f.range.size_bytes / HUGE).sum()
        };
        let (up, down) = plan.pages(PageSize::Huge);
        prop_assert_eq!(outcome.promoted_pages + failed(Direction::Promotion), up);
        prop_assert_eq!(
            outcome.demoted_pages - outcome.victim_pages
                + outcome.kept_pages
                + failed(Direction::Demotion),
            down
        );
        prop_assert!(outcome.victim_pages <= victims.len() as u64);
        is_as_reported(&outcome, &before, &world.lock().unwrap(), region * HUGE)?;
    }
}

//! Tests of pages that cannot be moved beside others that can.

use super::*;
use crate::mover::batches::ATTEMPTS;

#[test]
fn a_page_that_fails_does_not_stop_those_the_kernel_did_not_come_to() {
    let world = World {
        place: placed(0..0, 0..2),
        stuck: vec![0],
        refused: [(HUGE, libc::EBUSY)].into(),
        ..World::default()
    };
    let (mut mover, world, _) = mover(world, Duration::from_secs(1));
    let plan = Plan { promotions: vec![range(0, 2)], ..Plan::default() };
    // Page 0 ends the first call before page 1 has a status: page 1 gets its own status later.
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!(failures(&outcome)[0].1, 2);
    assert!(world.lock().unwrap().calls.len() <= ATTEMPTS);
}

#[test]
fn a_page_that_takes_long_and_never_moves_leaves_the_time_to_others() {
    let world = World {
        place: placed(0..0, 0..2),
        refused: [(0, libc::EBUSY)].into(),
        per_page: Duration::from_millis(600),
        ..World::default()
    };
    let (mut mover, world, _) = mover(world, Duration::from_millis(100));
    let plan = Plan { promotions: vec![range(0, 2)], ..Plan::default() };
    let mut of = || failures(&mover.apply(&plan).unwrap());
    let [busy, late] = [FailureReason::Busy, FailureReason::OutOfTime]
        .map(|reason| move |page| (page, 1, Direction::Promotion, reason));
    assert_eq!(of(), [busy(0), late(1)]);
    assert_eq!(of(), [busy(0)]);
    let tried = |world: &Mutex<World>| {
        let world = world.lock().unwrap();
        world.calls.iter().filter(|(_, pages)| pages.contains(&0)).count()
    };
    assert_eq!(tried(&world), 1);
    // Sixteen times as long as the try took.
    world.lock().unwrap().now += Duration::from_secs(10);
    assert_eq!((of(), tried(&world)), (vec![busy(0)], 2));
}

#[test]
fn no_page_gives_up_its_place_for_one_that_is_not_tried() {
    let world = World {
        place: placed(0..2, 10..11),
        refused: [(10 * HUGE, libc::EBUSY)].into(),
        per_page: Duration::from_millis(600),
        ..World::default()
    };
    let (mut mover, world, _) = mover(world, Duration::from_secs(10));
    let mut exchange = |down| {
        let exchanges = vec![Exchange { up: range(10, 1), down: range(down, 1) }];
        mover.apply(&Plan { exchanges, ..Plan::default() }).unwrap()
    };
    // The first finds out, and has lost its place by then.
    assert_eq!((exchange(0).demoted_pages, exchange(1).demoted_pages), (1, 0));
    assert_eq!(exchange(1).kept_pages, 1);
    assert_eq!(world.lock().unwrap().place[&HUGE], 0);
    // Nor is one that stays asked for its place.
    let world = World { place: placed(0..1, 10..11), stuck: vec![0], ..World::default() };
    let world = World { per_page: Duration::from_millis(600), ..world };
    let (mut mover, world, _) = super::mover(world, Duration::from_secs(10));
    let exchanges = vec![Exchange { up: range(10, 1), down: range(0, 1) }];
    let plan = Plan { exchanges, ..Plan::default() };
    let [first, second] = [(); 2].map(|()| failures(&mover.apply(&plan).unwrap()));
    let calls = world.lock().unwrap().calls.len();
    assert_eq!((first, calls), (second, 1));
}

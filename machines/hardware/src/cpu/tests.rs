//! A core's time, counted by hand.

use super::*;

/// 1 GHz and one instruction a cycle: an instruction is 1000 ps.
fn config() -> CoreConfig {
    CoreConfig {
        clock_mhz: 1000,
        instructions_per_cycle: 1.0,
        window_instructions: 100,
        load_store_queue: None,
        outstanding_misses: 10,
        store_buffer: 4,
        page_walkers: 1,
    }
}

const LATENCY: Picoseconds = Picoseconds::from_ns(200);

/// `n` loads that all miss, each the last of `gap` instructions.
fn run(config: &CoreConfig, n: u64, gap: u32, dependence: Dependence) -> Core {
    let mut core = Core::new(config).unwrap();
    for _ in 0..n {
        core.step(gap);
        assert!(!core.blocked(dependence));
        let start = core.start_miss(core.issue_time(dependence));
        core.load_miss(start, When::At(start + LATENCY), 3, Picoseconds::ZERO);
    }
    assert!(!core.drain());
    core
}

#[test]
fn a_pointer_chase_costs_the_latency_each_time() {
    let core = run(&config(), 1000, 1, Dependence::PreviousLoad);
    assert_eq!(core.now(), Picoseconds(1000) + LATENCY * 1000);
    assert_eq!(core.counts().leading_loads, 1000);
    assert_eq!(core.counts().leading_load_ps, LATENCY.0 * 1000);
}

#[test]
fn independent_misses_overlap_up_to_the_outstanding_ones() {
    let core = run(&config(), 1000, 1, Dependence::None);
    // 10 at a time: 100 rounds of 200 ns, and the 10 instructions that start the first round.
    let expected = LATENCY.0 * 100;
    let got = core.now().0;
    assert!(got >= expected && got < expected + 20_000, "{got} against {expected}");
    let total = core.counts().compute_ps + core.counts().stall_ps[3];
    assert_eq!(total, got);
}

#[test]
fn the_window_bounds_overlap_when_misses_are_far_apart() {
    // A miss every 50 instructions and a window of 100: two under way. Each pair takes the
    // 200 ns of the first; the 100 instructions that fill the window run meanwhile.
    let core = run(&config(), 1000, 50, Dependence::None);
    let expected = LATENCY.0 * 500;
    let got = core.now().0;
    assert!(got.abs_diff(expected) < expected / 100, "{got} against {expected}");
}

#[test]
fn a_full_load_store_queue_bounds_overlap_before_the_window_does() {
    // Of 8 entries the oldest load holds one: 8 loads take one latency together, as with 8
    // lines under way, whatever the window and the lines allow.
    let bounded = CoreConfig { load_store_queue: Some(8), ..config() };
    let lines = CoreConfig { outstanding_misses: 8, ..config() };
    let time = |config: &CoreConfig| run(config, 800, 1, Dependence::None).now();
    assert!(time(&bounded) > time(&config()));
    assert!(time(&bounded).0.abs_diff(time(&lines).0) < time(&lines).0 / 20);
    // As many as the window holds never fill before it.
    assert_eq!(time(&CoreConfig { load_store_queue: Some(100), ..config() }), time(&config()));
    // Other instructions take no entries: a miss every 20 of a window of 100 needs 5 entries.
    let sparse = |queue| CoreConfig { load_store_queue: queue, ..config() };
    let far = |queue| run(&sparse(queue), 800, 20, Dependence::None).now();
    assert_eq!(far(Some(5)), far(None));
    assert!(far(Some(2)) > far(None));
}

#[test]
fn a_short_latency_hides_behind_the_window() {
    let mut core = Core::new(&config()).unwrap();
    for _ in 0..1000 {
        core.step(10);
        assert!(!core.blocked(Dependence::None));
        let start = core.start_miss(core.now());
        core.load_miss(start, When::At(start + Picoseconds::from_ns(14)), 1, Picoseconds::ZERO);
    }
    assert_eq!(core.counts().stall_ps, [0; CAUSES]);
    assert_eq!(core.now(), Picoseconds::from_ns(10_000));
}

#[test]
fn a_stall_is_of_the_walk_until_the_translation_and_of_memory_from_then_on() {
    let mut core = Core::new(&config()).unwrap();
    core.step(1);
    // The walk takes 150 ns, the line another 200.
    let walked = core.now() + Picoseconds::from_ns(150);
    let start = core.start_miss(walked);
    core.load_miss(start, When::At(start + LATENCY), 3, walked);
    // 50 instructions run beside it.
    core.step(50);
    assert!(!core.drain());
    let counts = core.counts();
    assert_eq!(counts.stall_ps[usize::from(CAUSE_WALK)], 100_000);
    assert_eq!(counts.stall_ps[3], LATENCY.0);
    assert_eq!(core.now(), walked + LATENCY);

    // What the window hides of a walk is no stall, and all of the rest is memory's.
    let mut core = Core::new(&config()).unwrap();
    core.step(1);
    let walked = core.now() + Picoseconds::from_ns(30);
    core.load_miss(walked, When::At(walked + LATENCY), 3, walked);
    core.step(60);
    assert!(!core.drain());
    assert_eq!(core.counts().stall_ps[usize::from(CAUSE_WALK)], 0);
    assert_eq!(core.counts().stall_ps[3], LATENCY.0 - 30_000);
}

#[test]
fn stores_stall_only_with_a_full_buffer() {
    let mut core = Core::new(&config()).unwrap();
    for _ in 0..4 {
        core.step(1);
        assert!(!core.store_blocked());
        let start = core.start_miss(core.now());
        core.store_miss(When::At(start + LATENCY));
    }
    assert_eq!(core.now(), Picoseconds::from_ns(4));
    core.step(1);
    assert!(!core.store_blocked());
    assert_eq!(core.now(), Picoseconds::from_ns(201));
    assert_eq!(core.counts().store_stall_ps, 196_000);
}

#[test]
fn walks_queue_for_the_walker() {
    let mut core = Core::new(&config()).unwrap();
    let a = core.start_walk(Picoseconds(0));
    core.end_walk(a + Picoseconds(500));
    assert_eq!(core.start_walk(Picoseconds(100)), Picoseconds(500));
    assert_eq!(core.counts().walk_queue_ps, 400);
}

#[test]
fn a_load_waits_for_the_load_before_it_whatever_stores_walk_between() {
    let mut core = Core::new(&config()).unwrap();
    core.step(1);
    let start = core.start_miss(core.now());
    core.load_miss(start, When::At(start + LATENCY), 3, Picoseconds::ZERO);
    core.step(1);
    core.late_store(core.now() + Picoseconds::from_ns(5));
    core.step(1);
    assert_eq!(core.issue_time(Dependence::PreviousLoad), start + LATENCY);
    core.late_load(core.now() + LATENCY * 2);
    assert_eq!(core.issue_time(Dependence::PreviousLoad), core.now() + LATENCY * 2);
}

#[test]
fn completions_given_late_change_nothing() {
    for dependence in [Dependence::None, Dependence::PreviousLoad] {
        for gap in [1, 7, 60] {
            let known = run(&config(), 500, gap, dependence);
            let mut core = Core::new(&config()).unwrap();
            let mut under_way: VecDeque<(RequestId, Picoseconds)> = VecDeque::new();
            for n in 0..500 {
                core.step(gap);
                while core.blocked(dependence) {
                    let (id, done) = under_way.pop_front().unwrap();
                    core.resolve(id, done);
                }
                let start = core.start_miss(core.issue_time(dependence));
                under_way.push_back((RequestId(n), start + LATENCY));
                core.load_miss(start, When::Pending(RequestId(n)), 3, Picoseconds::ZERO);
            }
            while core.drain() {
                let (id, done) = under_way.pop_front().unwrap();
                core.resolve(id, done);
            }
            assert_eq!(core.now(), known.now(), "{dependence:?} {gap}");
            assert_eq!(core.counts().stall_ps, known.counts().stall_ps);
        }
    }
}

#[test]
fn a_core_that_cannot_work_is_refused() {
    for broken in [
        CoreConfig { clock_mhz: 0, ..config() },
        CoreConfig { instructions_per_cycle: 0.0, ..config() },
        CoreConfig { instructions_per_cycle: f64::NAN, ..config() },
        CoreConfig { window_instructions: 0, ..config() },
        CoreConfig { outstanding_misses: 0, ..config() },
        CoreConfig { store_buffer: 0, ..config() },
        CoreConfig { page_walkers: 0, ..config() },
        CoreConfig { load_store_queue: Some(0), ..config() },
    ] {
        assert!(Core::new(&broken).unwrap_err().to_string().contains("expected"));
    }
}

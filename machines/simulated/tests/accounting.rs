//! At trace fidelity: the time of shootdowns, which thread pays for it, programs that share a core,
//! and that every page of a plan is accounted for.

use terrace_core::interfaces::{Mover, Observation, Tracker};
use terrace_core::operations::OperationSize;
use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_core::plan::{Direction, Exchange, Outcome, Plan};
use terrace_os::config::ShootdownPer;
use terrace_os::costs::{CostConfig, CostPreset};
use terrace_simulated::hardware::units::Bytes;
use terrace_simulated::reference::{
    Access, BackgroundDemotion, Options, ReferenceConfig, ReferenceMachine, ReferenceMover,
    ReferenceTracker, Step,
};

mod support;

use support::references::*;

const MIB: u64 = 1 << 20;
const PAGE: u64 = PageSize::Base.bytes();

/// A machine on which nothing of the operating system takes time but what is given here.
fn free_but(costs: CostConfig) -> ReferenceConfig {
    let mut config = config(64 * MIB, 64 * MIB);
    config.os.costs = CostConfig { preset: CostPreset::Free, ..costs };
    config
}

/// The machine with one program.
fn with(
    config: ReferenceConfig,
    page_size: PageSize,
    source: Script,
) -> (ReferenceMachine, ReferenceTracker, ReferenceMover) {
    let machine = ReferenceMachine::new(config).unwrap();
    let (tracker, mover) = machine.add_group(group(page_size, 1.0), Box::new(source)).unwrap();
    (machine, tracker, mover)
}

/// Pages in this direction that an outcome accounts for.
fn accounted(outcome: &Outcome, page_size: PageSize, direction: Direction) -> u64 {
    let moved = match direction {
        Direction::Promotion => outcome.promoted_pages,
        Direction::Demotion => outcome.demoted_pages,
    };
    let failures = outcome.failures.iter().filter(|f| f.direction == direction);
    moved + failures.map(|f| f.range.pages(page_size)).sum::<u64>()
}

/// A whole period of touches of the pages of `bytes` over and over.
fn touches(bytes: u64, times: u64) -> impl Iterator<Item = Access> {
    let pages = bytes / PAGE;
    (0..times * pages).map(move |n| load(START + n % pages * PAGE))
}

#[test]
fn sending_shootdowns_takes_the_time_of_the_thread_that_moves() {
    // A period of 1 ms, a tenth of it for moves, and shootdowns of 10 us each.
    let demoted = |cores: u32| {
        let mut config =
            free_but(CostConfig { shootdown_ns: Some(10_000), ..CostConfig::default() });
        config.hardware.node.cores = cores;
        config.options = Options { move_share: 0.1, ..Options::default() };
        config.os.migration.shootdown_per = ShootdownPer::Page;
        config.os.migration.batch_base_pages = 1;
        let source = script(2 * MIB, touches(2 * MIB, 20_000));
        let (_machine, mut tracker, mut mover) = with(config, PageSize::Base, source);
        let mut scan = observe(&mut tracker);
        while scan.pages() < 512 {
            scan = observe(&mut tracker);
        }
        let demotions = scan.layout.ranges(0..512);
        mover.apply(&Plan { demotions, ..Plan::default() }).unwrap().demoted_pages
    };
    let sent = demoted(4);
    assert!((9..=10).contains(&sent), "{sent} pages in 100 us");
    // On the program's own core there is nobody to interrupt.
    assert!(demoted(1) > 10 * sent, "{} pages alone, {sent} with interrupts", demoted(1));
}

#[test]
fn a_thread_that_unmaps_interrupts_the_others_and_not_itself() {
    let time_ns = |threads: u16, interrupt_ns: u64| {
        let costs =
            CostConfig { shootdown_interrupt_ns: Some(interrupt_ns), ..CostConfig::default() };
        let all = (0..1024u64)
            .map(move |n| Access { thread: n as u16 % threads, ..load(START + n % 256 * PAGE) });
        let map = Step::Map { start: START, size_bytes: MIB, huge_eligible: false };
        let unmap = Step::Unmap { start: START, size_bytes: MIB };
        let steps = vec![map, Step::Accesses(all.collect()), Step::Barrier, unmap];
        let source = Script {
            steps: Box::new(steps.into_iter()),
            footprint_bytes: Some(MIB),
            threads: threads.into(),
        };
        let (ns, counts) = alone(free_but(costs), group(PageSize::Base, 1.0), source);
        (ns, counts.fault_ps, counts.migration_ps)
    };
    let (alone_ns, ..) = time_ns(1, 0);
    assert_eq!(time_ns(1, 1_000_000).0, alone_ns, "there is no other processor");
    let (before, after) = (time_ns(2, 0), time_ns(2, 1_000_000));
    assert!(after.0 - before.0 > 900_000.0, "{} ns, then {}", before.0, after.0);
    // It is the program's own work, and no migration.
    assert_eq!((after.1 - before.1, after.2), (1_000_000_000, 0));
}

#[test]
fn programs_that_share_a_core_have_its_time_in_turn() {
    let mut config = config(64 * MIB, 64 * MIB);
    config.hardware.node.cores = 1;
    let machine = ReferenceMachine::new(config).unwrap();
    let _interfaces: Vec<_> = (0..3)
        .map(|_| {
            let source = script(4 * MIB, touches(4 * MIB, 2_000));
            machine.add_group(group(PageSize::Base, 1.0), Box::new(source)).unwrap()
        })
        .collect();
    machine.run_to_end().unwrap();
    machine.check().unwrap();
    let ended: Vec<f64> = (0..3).map(|n| machine.duration(n).unwrap().as_ns()).collect();
    // Each has a third of the core until the first ends.
    let first = ended.iter().copied().fold(f64::INFINITY, f64::min);
    let last = ended.iter().copied().fold(0.0, f64::max);
    assert!(first > 0.85 * last, "{ended:?}");
}

#[test]
fn page_tables_and_walkers_have_one_number_of_levels() {
    let mut c = config(64 * MIB, 64 * MIB);
    c.os.levels = 5;
    let message = ReferenceMachine::new(c.clone()).err().expect("refused").to_string();
    assert!(message.contains("os.levels is 5") && message.contains("is 4"), "{message}");
    c.hardware.node.walker.levels = 5;
    let source = script(MIB, touches(MIB, 2));
    assert_eq!(alone(c, group(PageSize::Base, 1.0), source).1.faults, 256);
}

#[test]
fn stalls_of_every_tier_are_counted() {
    let mut config = config(2 * MIB, 2 * MIB);
    let slow = config.hardware.tiers[1].clone();
    config.hardware.tiers.extend([slow.clone(), slow.clone(), slow]);
    config.hardware.tiers[4].capacity = Bytes(64 * MIB);
    config.hardware.node.caches.llc.size = Bytes(MIB);
    config.hardware.node.caches.llc.ways = 16;
    let (ns, counts) =
        alone(config, group(PageSize::Base, 1.0), script(32 * MIB, chase(32 * MIB, 200_000)));
    // Most of the memory is in the fifth tier, which is counted with the fourth.
    let stalled_ns = counts.memory_stall_ps[3] as f64 / 1e3;
    assert!(stalled_ns > ns / 2.0, "{stalled_ns} of {ns} ns");
}

/// Eight huge pages, of seven of which the program unmaps a quarter while some move.
fn unmapped_while_it_moves(plan: impl FnOnce(&[VirtualRange]) -> Plan) -> (Plan, Outcome) {
    let mut config = config(64 * MIB, 64 * MIB);
    // A huge page takes 1 ms to copy.
    config.os.costs.copy_gb_per_s = Some(2.0);
    config.os.costs.exchange_gb_per_s = Some(2.0);
    config.options = Options { finish_moves: true, ..Options::default() };
    let bytes = 8 * HUGE;
    let map = Step::Map { start: START, size_bytes: bytes, huge_eligible: true };
    let all = Step::Accesses(touches(bytes, 1).collect());
    // Some 1.5 ms, in a page that does not move, and 4 ms after that.
    let last = START + 7 * HUGE;
    let stay = move |_| Step::Accesses((0..4096).map(|n| load(last + n % 64 * 64)).collect());
    let unmap = (0..7).map(|page| Step::Unmap { start: START + page * HUGE, size_bytes: HUGE / 4 });
    let steps = [map, all].into_iter().chain((0..250).map(stay)).chain(unmap);
    let steps = steps.chain((0..650).map(stay));
    let source = Script { steps: Box::new(steps), footprint_bytes: Some(bytes), threads: 1 };
    let machine = ReferenceMachine::new(config).unwrap();
    let (mut tracker, mut mover) =
        machine.add_group(group(PageSize::Huge, 0.5), Box::new(source)).unwrap();
    let mut scan = observe(&mut tracker);
    while scan.pages() < 8 {
        scan = observe(&mut tracker);
    }
    let pages: Vec<_> = (0..7).map(|page| scan.layout.ranges([page])[0]).collect();
    let plan = plan(&pages);
    let outcome = mover.apply(&plan).unwrap();
    machine.check().unwrap();
    assert!(machine.ended_at(0).is_none(), "it runs on");
    (plan, outcome)
}

#[test]
fn pages_of_which_a_part_is_unmapped_while_they_move_are_accounted_for() {
    let (plan, outcome) =
        unmapped_while_it_moves(|pages| Plan { demotions: pages[..3].to_vec(), ..Plan::default() });
    assert_eq!(accounted(&outcome, PageSize::Huge, Direction::Demotion), 3, "{outcome:?}");
    assert!(outcome.failures.iter().any(|f| f.reason.name() == "absent"), "{outcome:?}");
    assert_eq!(plan.pages(PageSize::Huge), (0, 3));
    let (_, outcome) = unmapped_while_it_moves(|pages| Plan {
        exchanges: vec![Exchange { up: pages[5], down: pages[1] }],
        ..Plan::default()
    });
    for direction in [Direction::Demotion, Direction::Promotion] {
        assert_eq!(accounted(&outcome, PageSize::Huge, direction), 1, "{outcome:?}");
    }
}

#[test]
fn operations_of_odd_sizes_move_whole_pages() {
    let source = script(2 * MIB, touches(2 * MIB, 20_000));
    let (machine, mut tracker, mut mover) =
        with(config(64 * MIB, 64 * MIB), PageSize::Base, source);
    let mut scan = observe(&mut tracker);
    while scan.pages() < 512 {
        scan = observe(&mut tracker);
    }
    let space = scan.layout.address(0).0;
    let plan = Plan {
        demotions: scan.layout.ranges(0..96),
        operation_sizes: vec![OperationSize::both_ways(space, 6_000)],
        ..Plan::default()
    };
    let outcome = mover.apply(&plan).unwrap();
    // 6,000 bytes are two pages.
    assert_eq!((outcome.demoted_pages, outcome.operations), (96, 48), "{outcome:?}");
    machine.check().unwrap();
}

#[test]
fn what_is_refused_is_no_operation() {
    let source = script(2 * MIB, touches(2 * MIB, 20_000));
    let (machine, mut tracker, mut mover) =
        with(config(64 * MIB, 64 * MIB), PageSize::Base, source);
    let mut scan = observe(&mut tracker);
    while scan.pages() < 512 {
        scan = observe(&mut tracker);
    }
    let space: SpaceId = scan.layout.address(0).0;
    let absent = VirtualRange { space, start: START - 4 * MIB, size_bytes: 8 * PAGE };
    let mut demotions = scan.layout.ranges(0..4);
    demotions.push(absent);
    let outcome = mover.apply(&Plan { demotions, ..Plan::default() }).unwrap();
    assert_eq!((outcome.demoted_pages, outcome.operations), (4, 4), "{outcome:?}");
    assert_eq!(accounted(&outcome, PageSize::Base, Direction::Demotion), 12, "{outcome:?}");
    assert_eq!(machine.os_counters().operations, 4);
}

#[test]
fn a_period_has_one_scan_though_the_program_ends_while_pages_are_demoted() {
    let mut ends_meanwhile = 0;
    for times in 1..40 {
        let mut config = config(8 * MIB, 64 * MIB);
        config.period_ns = 200_000;
        config.os.costs.copy_gb_per_s = Some(0.1);
        config.options.finish_moves = true;
        config.options.background_demotion =
            Some(BackgroundDemotion { begin_free_share: 0.5, end_free_share: 0.9 });
        let source = script(6 * MIB, touches(6 * MIB, 1).chain(touches(64 * PAGE, times * 8)));
        let (machine, mut tracker, _mover) = with(config, PageSize::Base, source);
        let mut numbers = Vec::new();
        loop {
            let running = machine.ended_at(0).is_none();
            let Observation::Period(scan) = tracker.observe().unwrap() else { break };
            let ended = running && machine.ended_at(0).is_some();
            ends_meanwhile +=
                u32::from(ended && machine.period_cost(0).background_demoted_pages > 0);
            numbers.push(scan.period);
        }
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{times}: {numbers:?}");
    }
    assert!(ends_meanwhile > 0, "no program ended while its pages were demoted");
}

//! The machine at trace fidelity for its users: the cost of programs, the effect of moves.

use serde_json::json;
use terrace_core::bits::PageBits;
use terrace_core::interfaces::{Mover, Observation, Tracker};
use terrace_core::page::PageSize;
use terrace_core::plan::{Exchange, Plan};
use terrace_core::scan::Scan;
use terrace_simulated::hardware::presets;
use terrace_simulated::hardware::units::Bytes;
use terrace_simulated::os::{TablePlacement, TablePolicy};
use terrace_simulated::reference::{
    Access, AccessKind, BackgroundDemotion, Counts, Options, ReferenceConfig, ReferenceMachine,
    ReferenceMover, ReferenceTracker, Step, program,
};
use terrace_workloads::programs::sink::Counter;
use terrace_workloads::programs::{Params, trace};

mod support;

use support::references::*;

#[test]
fn every_reference_of_a_program_is_served_once() {
    for (name, threads) in [("gups", 1), ("stream", 2), ("bfs", 2), ("mcf", 1)] {
        let params = Params { threads, ..Params::new(4 << 20, 7) };
        let mut counter = Counter::default();
        trace(name, &params, &mut counter).unwrap();
        let source = program(name, &params, false).unwrap();
        let (_, counts) = alone(config(64 << 20, 64 << 20), group(PageSize::Base, 0.5), source);
        assert_eq!(counts.references, counter.loads + counter.stores, "{name}");
        assert_eq!(counts.instructions, counter.instructions, "{name}");
    }
}

#[test]
fn a_chase_takes_the_latency_of_the_tier_it_runs_in() {
    // Beyond every cache; huge pages, so that walks hardly count.
    let bytes = 256 << 20;
    let loads = 200_000;
    let run = |ratio| {
        let (ns, counts) = alone(
            config(512 << 20, 512 << 20),
            group(PageSize::Huge, ratio),
            script(bytes, chase(bytes, loads)),
        );
        ((ns - counts.fault_ps as f64 / 1e3) / loads as f64, counts.reference_hit_ratio())
    };
    let (fast, hits) = run(1.0);
    assert!(hits > 0.99, "{hits}");
    // 108 ns and 214 ns for a program, and some hits in 30 MB of caches.
    assert!((90.0..116.0).contains(&fast), "{fast} ns a load");
    let (slow, hits) = run(0.0);
    assert!(hits < 0.01, "{hits}");
    assert!((180.0..226.0).contains(&slow), "{slow} ns a load");
    let (half, hits) = run(0.5);
    assert!((0.45..0.55).contains(&hits), "{hits}");
    assert!((half - (fast + slow) / 2.0).abs() < 0.05 * half, "{fast} {half} {slow}");
}

#[test]
fn page_tables_in_slow_memory_cost_what_their_tier_costs() {
    let bytes = 256 << 20;
    let run = |placement| {
        let mut g = group(PageSize::Base, 0.5);
        g.tables = TablePolicy { placement, migrate: false, hard: false };
        let mut c = config(512 << 20, 512 << 20);
        // Small caches: entries of half a megabyte of leaf tables come from memory.
        c.hardware.node.caches.l2 = None;
        c.hardware.node.caches.llc.size = Bytes::kib(128);
        c.hardware.node.caches.llc.ways = 8;
        c.hardware.node.caches.llc.slices = 1;
        let (_, counts) = alone(c, g, script(bytes, chase(bytes, 300_000)));
        counts.walk_ps as f64 / counts.walks as f64 / 1e3
    };
    let bound = run(TablePlacement::BindAll);
    let interleaved = run(TablePlacement::Interleave);
    // Half of the leaf tables are 106 ns farther away.
    assert!((20.0..90.0).contains(&(interleaved - bound)), "{interleaved} ns, bound {bound}");
}

/// A machine with 64 huge pages of one program that accesses all of them over and over.
fn busy(options: Options, ratio: f64) -> (ReferenceMachine, ReferenceTracker, ReferenceMover) {
    let mut c = config(256 << 20, 256 << 20);
    c.options = options;
    let machine = ReferenceMachine::new(c).unwrap();
    let bytes = 64 * HUGE;
    let source = script(bytes, chase(bytes, 400_000));
    let (tracker, mover) =
        machine.add_group(group(PageSize::Huge, ratio), Box::new(source)).unwrap();
    (machine, tracker, mover)
}

fn pages_of(scan: &Scan, fast: bool, pages: usize) -> PageBits {
    let mut bits = PageBits::new(scan.pages());
    (0..scan.pages()).filter(|&p| scan.fast.get(p) == fast).take(pages).for_each(|p| {
        bits.set(p, true);
    });
    bits
}

#[test]
fn moves_change_the_places_of_pages_and_cost_time() {
    let (machine, mut tracker, mut mover) = busy(Options::default(), 0.5);
    let mut scan = observe(&mut tracker);
    while scan.pages() < 64 {
        scan = observe(&mut tracker);
    }
    assert_eq!(scan.fast.count(), 32);
    let ones = |bits: &PageBits| (0..bits.len()).filter(|&p| bits.get(p)).collect::<Vec<_>>();
    let down = pages_of(&scan, true, 4);
    let plan = Plan { demotions: scan.layout.ranges(ones(&down)), ..Plan::default() };
    let outcome = mover.apply(&plan).unwrap();
    assert_eq!((outcome.demoted_pages, outcome.failures.len()), (4, 0), "{outcome:?}");
    let after = observe(&mut tracker);
    assert_eq!(after.fast.count(), 28);
    assert!(ones(&down).iter().all(|&p| !after.fast.get(p)));
    let cost = machine.total_cost(0);
    assert_eq!(cost.migrated_bytes, 4 * HUGE);
    assert!(cost.shootdowns >= 1 && cost.counts.migration_ps > 0, "{cost:?}");
    // Every touch of a page under way had to wait.
    assert!(machine.counts(0).waits > 0);
    machine.check().unwrap();
}

#[test]
fn exchanged_pages_trade_places_without_room_for_a_copy() {
    let (machine, mut tracker, mut mover) = busy(Options::default(), 0.5);
    let mut scan = observe(&mut tracker);
    while scan.pages() < 64 {
        scan = observe(&mut tracker);
    }
    let ones = |bits: &PageBits| (0..bits.len()).filter(|&p| bits.get(p)).collect::<Vec<_>>();
    let up = scan.layout.ranges(ones(&pages_of(&scan, false, 4)));
    let down = scan.layout.ranges(ones(&pages_of(&scan, true, 4)));
    let exchanges = up.iter().zip(&down).map(|(u, d)| Exchange { up: *u, down: *d }).collect();
    let outcome = mover.apply(&Plan { exchanges, ..Plan::default() }).unwrap();
    assert_eq!(outcome.exchanged_pairs, 4, "{outcome:?}");
    let after = observe(&mut tracker);
    assert_eq!(after.fast.count(), 32);
    assert_ne!(after.fast, scan.fast);
    // Both sides are copied.
    assert_eq!(machine.total_cost(0).migrated_bytes, 8 * HUGE);
    machine.check().unwrap();
}

#[test]
fn pairs_that_cannot_be_exchanged_move_down_and_up_in_turn() {
    let mut c = config(256 << 20, 256 << 20);
    // Time for some of the huge pages, one by one.
    c.period_ns = 2_000_000;
    c.os.migration.exchange = false;
    c.os.migration.batch_huge_pages = 1;
    let machine = ReferenceMachine::new(c).unwrap();
    let source = script(64 * HUGE, chase(64 * HUGE, 400_000));
    let (mut tracker, mut mover) =
        machine.add_group(group(PageSize::Huge, 0.5), Box::new(source)).unwrap();
    let mut scan = observe(&mut tracker);
    while scan.pages() < 64 {
        scan = observe(&mut tracker);
    }
    let pages = |fast: bool| -> Vec<_> { pages_of(&scan, fast, 32).iter_ones().collect() };
    let one = |page: usize| scan.layout.ranges([page])[0];
    let pairs = pages(false).into_iter().zip(pages(true));
    let exchanges = pairs.map(|(up, down)| Exchange { up: one(up), down: one(down) }).collect();
    let outcome = mover.apply(&Plan { exchanges, ..Plan::default() }).unwrap();
    let (up, down) = (outcome.promoted_pages, outcome.demoted_pages);
    assert!(0 < up && up < 32 && (up == down || up + 1 == down), "{outcome:?}");
    assert!(outcome.failures.iter().all(|f| f.reason.name() == "out_of_time"), "{outcome:?}");
    machine.check().unwrap();
}

#[test]
fn promotions_stop_at_the_groups_share() {
    let (machine, mut tracker, mut mover) = busy(Options::default(), 0.25);
    let mut scan = observe(&mut tracker);
    while scan.pages() < 64 {
        scan = observe(&mut tracker);
    }
    let ones = |bits: &PageBits| (0..bits.len()).filter(|&p| bits.get(p)).collect::<Vec<_>>();
    let up = scan.layout.ranges(ones(&pages_of(&scan, false, 8)));
    let outcome = mover.apply(&Plan { promotions: up, ..Plan::default() }).unwrap();
    assert_eq!(outcome.promoted_pages, 0, "{outcome:?}");
    let failed: u64 = outcome.failures.iter().map(|f| f.range.pages(PageSize::Huge)).sum();
    assert_eq!(failed, 8);
    assert_eq!(outcome.operations, 0, "what moves nothing is no operation, and has no shootdown");
    machine.check().unwrap();
}

#[test]
fn time_for_moves_is_bounded() {
    let options = Options { move_share: 0.0, ..Options::default() };
    let (_machine, mut tracker, mut mover) = busy(options, 0.5);
    let scan = observe(&mut tracker);
    let ones = |bits: &PageBits| (0..bits.len()).filter(|&p| bits.get(p)).collect::<Vec<_>>();
    let down = scan.layout.ranges(ones(&pages_of(&scan, true, 4)));
    let outcome = mover.apply(&Plan { demotions: down, ..Plan::default() }).unwrap();
    assert_eq!(outcome.demoted_pages, 0);
    assert!(outcome.failures.iter().all(|f| f.reason.name() == "out_of_time"));
}

#[test]
fn moves_that_are_to_finish_outlast_their_period_while_the_program_runs() {
    let demoted = |finish_moves| {
        let mut c = config(128 << 20, 256 << 20);
        // Eight huge pages, one by one, take many times as long.
        c.period_ns = 200_000;
        c.os.migration.batch_huge_pages = 1;
        c.options = Options { finish_moves, ..Options::default() };
        let machine = ReferenceMachine::new(c).unwrap();
        // All pages are touched once; then the program stays in the first half.
        let touches = (0..32).map(|page| load(START + page * HUGE));
        let source = script(64 << 20, touches.chain(chase(32 << 20, 400_000)));
        let (mut tracker, mut mover) =
            machine.add_group(group(PageSize::Huge, 1.0), Box::new(source)).unwrap();
        let mut scan = observe(&mut tracker);
        while scan.pages() < 32 {
            scan = observe(&mut tracker);
        }
        let mut references = || {
            observe(&mut tracker);
            machine.period_cost(0).counts.references
        };
        // The first periods miss the caches and the TLB more than later ones.
        let before = (0..4).map(|_| references()).max().unwrap();
        let down = scan.layout.ranges(24..32);
        let outcome = mover.apply(&Plan { demotions: down, ..Plan::default() }).unwrap();
        let (during, after) = (references(), references());
        machine.check().unwrap();
        (outcome, [before, during, after])
    };
    let (outcome, [before, during, after]) = demoted(true);
    assert_eq!((outcome.demoted_pages, outcome.failures.len()), (8, 0), "{outcome:?}");
    assert!(during > 4 * before, "{before} references, {during}, then {after}");
    assert!(0 < after && after < 2 * before, "{before} references, {during}, then {after}");
    let (outcome, _) = demoted(false);
    assert!(outcome.demoted_pages < 8, "{outcome:?}");
    assert!(outcome.failures.iter().all(|f| f.reason.name() == "out_of_time"), "{outcome:?}");
}

#[test]
fn programs_start_and_end_at_their_times_and_share_bandwidth() {
    let bytes = 64 << 20;
    // Independent loads of every line, again and again: bandwidth is what counts.
    let stream = |rounds: u64| {
        let lines = bytes / 64;
        script(
            bytes,
            (0..rounds * lines)
                .map(move |n| Access { instructions: 1, ..load(START + (n % lines) * 64) }),
        )
    };
    let slow_tier = |programs: usize| {
        let machine = ReferenceMachine::new(config(512 << 20, 1 << 30)).unwrap();
        let mut interfaces = Vec::new();
        for n in 0..programs {
            let mut g = group(PageSize::Huge, 0.0);
            g.start_ns = n as u64 * 100_000;
            interfaces.push(machine.add_group(g, Box::new(stream(4))).unwrap());
        }
        machine.run_to_end().unwrap();
        machine.check().unwrap();
        (0..programs).map(|n| machine.duration(n).unwrap().as_ns()).collect::<Vec<_>>()
    };
    let one = slow_tier(1)[0];
    let four = slow_tier(4);
    // Four streams over one CXL link: none is served as if it were alone.
    assert!(four.iter().all(|&ns| ns > 1.3 * one), "{one} alone, {four:?} together");
    let machine = ReferenceMachine::new(config(512 << 20, 1 << 30)).unwrap();
    let mut g = group(PageSize::Huge, 1.0);
    (g.start_ns, g.stop_ns) = (200_000, Some(400_000));
    let _interfaces = machine.add_group(g, Box::new(stream(1000))).unwrap();
    machine.run_to_end().unwrap();
    let ended = machine.ended_at(0).unwrap().as_ns();
    assert!((400_000.0..450_000.0).contains(&ended), "ended at {ended} ns");
    assert!(machine.was_stopped(0));
}

#[test]
fn a_translation_that_stays_in_the_tlb_sets_no_bit() {
    let seen = |flush_on_scan| {
        let options = Options { flush_on_scan, ..Options::default() };
        let mut c = config(64 << 20, 64 << 20);
        c.options = options;
        let machine = ReferenceMachine::new(c).unwrap();
        // One hot page for some periods.
        let source = script(HUGE, (0..4_000_000).map(|n| load(START + (n % 64) * 64)));
        let (mut tracker, _mover) =
            machine.add_group(group(PageSize::Huge, 1.0), Box::new(source)).unwrap();
        (0..4).map(|_| observe(&mut tracker).accessed.count()).collect::<Vec<_>>()
    };
    assert_eq!(seen(true), [1, 1, 1, 1]);
    assert_eq!(seen(false), [1, 0, 0, 0]);
}

#[test]
fn the_same_run_costs_the_same() {
    let run = || {
        let (machine, mut tracker, mut mover) = busy(Options::default(), 0.5);
        let mut costs = Vec::new();
        for n in 0..12 {
            let Observation::Period(scan) = tracker.observe().unwrap() else { break };
            costs.push(machine.period_cost(0));
            let pages = (0..scan.pages()).filter(|&p| scan.fast.get(p)).skip(n).take(2);
            let plan = Plan {
                demotions: scan.layout.ranges(pages.collect::<Vec<_>>()),
                ..Plan::default()
            };
            mover.apply(&plan).unwrap();
        }
        costs
    };
    assert_eq!(run(), run());
}

#[test]
fn a_footprint_beyond_all_memory_ends_in_one_line() {
    let machine = ReferenceMachine::new(config(8 << 20, 8 << 20)).unwrap();
    let bytes = 64 << 20;
    let source = script(bytes, (0..bytes / 4096).map(|n| load(START + n * 4096)));
    let _interfaces = machine.add_group(group(PageSize::Base, 0.5), Box::new(source)).unwrap();
    let ended = machine.run_to_end();
    let message = ended.unwrap_err().to_string();
    assert!(message.contains("group 'g'") && message.contains("out of memory"), "{message}");
}

#[test]
fn machines_that_cannot_work_are_refused() {
    let refuse = |change: fn(&mut ReferenceConfig)| {
        let mut c = config(64 << 20, 64 << 20);
        change(&mut c);
        ReferenceMachine::new(c).err().expect("refused").to_string()
    };
    let one_tier = refuse(|c| c.hardware.tiers.truncate(1));
    assert!(one_tier.contains("one tier, expected two"), "{one_tier}");
    let odd = refuse(|c| c.hardware.node.caches.l1.size = Bytes(3000));
    assert!(odd.contains("caches.l1"), "{odd}");
    let never = refuse(|c| c.period_ns = 0);
    assert!(never.contains("expected at least 1"), "{never}");
    let threads = refuse(|c| c.os.migration.threads = 0);
    assert!(threads.contains("threads is 0"), "{threads}");
}

#[test]
fn unused_pages_go_down_in_the_background_when_free_fast_memory_is_short() {
    const MIB: u64 = 1 << 20;
    let run = |demotion| {
        let mut config = config(8 * MIB, 64 * MIB);
        config.options.background_demotion = demotion;
        let machine = ReferenceMachine::new(config).unwrap();
        // More than fits, and 16 pages over and over.
        let all = (0..12 * MIB / 4096).flat_map(|page| [page, page % 16]);
        let all = all.map(|page| load(START + page * 4096));
        let few = (0..3_000_000).map(|n| load(START + n % 16 * 4096));
        let source = script(12 * MIB, all.chain(few));
        let interfaces = machine.add_group(group(PageSize::Base, 1.0), Box::new(source)).unwrap();
        let (mut tracker, _mover) = interfaces;
        let mut fast = Vec::new();
        while let Observation::Period(scan) = tracker.observe().unwrap() {
            machine.check().unwrap();
            assert!((0..16).all(|page| scan.fast.get(page)), "what is used stays");
            fast.push(scan.fast.count() as u64);
        }
        (fast, machine.total_cost(0).background_demoted_pages)
    };
    let (without, none) = run(None);
    assert_eq!(none, 0);
    let full = *without.last().unwrap();
    let demotion = BackgroundDemotion { begin_free_share: 0.2, end_free_share: 0.5 };
    let (with, demoted) = run(Some(demotion));
    let left = *with.last().unwrap();
    assert!(demoted > 0 && left < full, "{demoted} demoted, {left} left of {full}");
    // Half of the 2,048 frames are free, except for page tables and the growth of a period.
    assert!((900..=1024).contains(&left), "{left}");
}

#[test]
fn base_pages_of_a_whole_region_are_collapsed_where_that_is_asked_for() {
    let half = HUGE / 2;
    let run = |regions| {
        let map = |n| Step::Map { start: START + n * half, size_bytes: half, huge_eligible: true };
        let touch = |n| {
            let pages = half / 4096;
            let all = (0..200 * pages).map(move |p| load(START + n * half + p % pages * 4096));
            Step::Accesses(all.collect())
        };
        // In two parts, neither of which a huge page fits into.
        let mut steps = vec![map(0), touch(0), map(1), touch(1)];
        steps.extend((0..40).map(|n| touch(n % 2)));
        let mut config = config(64 << 20, 64 << 20);
        config.options.collapse_regions_per_period = regions;
        let machine = ReferenceMachine::new(config).unwrap();
        let source =
            Script { steps: Box::new(steps.into_iter()), footprint_bytes: None, threads: 1 };
        let interfaces = machine.add_group(group(PageSize::Huge, 1.0), Box::new(source)).unwrap();
        let (mut tracker, _mover) = interfaces;
        let mut most = 0;
        while let Observation::Period(scan) = tracker.observe().unwrap() {
            machine.check().unwrap();
            most = most.max(scan.pages());
        }
        (machine.os_counters().collapses, most, machine.counts(0).walks)
    };
    let (none, untracked, walks) = run(0);
    assert_eq!((none, untracked), (0, 0), "base pages of a group of huge pages are not tracked");
    let (collapses, pages, fewer_walks) = run(4);
    assert_eq!((collapses, pages), (1, 1));
    assert!(fewer_walks < walks, "{fewer_walks} against {walks}");
}

#[test]
fn a_thread_that_comes_late_does_not_wait_for_what_others_ask_for_later() {
    // Two threads, each along a chain of its own over memory that no cache holds. Whether their
    // loads come one by one or many at a time is a matter of how the stream was written down.
    let time_ns = |at_a_time: u64| {
        let accesses = chase(64 << 20, 40_000).enumerate().map(move |(n, access)| {
            let thread = (n as u64 / at_a_time % 2) as u16;
            Access { thread, ..access }
        });
        let source = Script { threads: 2, ..script(64 << 20, accesses) };
        alone(config(128 << 20, 64 << 20), group(PageSize::Base, 1.0), source).0
    };
    let (one_by_one, many) = (time_ns(1), time_ns(100));
    let ratio = many / one_by_one;
    assert!((0.95..1.05).contains(&ratio), "{many} ns against {one_by_one}");
}

#[test]
fn a_program_can_be_ended_with_the_start_up_of_another() {
    let machine = ReferenceMachine::new(config(64 << 20, 64 << 20)).unwrap();
    let gups = |mib: u64| Box::new(program("gups", &Params::new(mib << 20, 7), false).unwrap());
    let mut tenant = group(PageSize::Base, 1.0);
    tenant.stop_after_start_up_of = Some("late".into());
    let mut late = group(PageSize::Base, 0.0);
    (late.name, late.start_ns) = ("late".into(), 100_000);
    let _tenant = machine.add_group(tenant, gups(16)).unwrap();
    let _late = machine.add_group(late, gups(4)).unwrap();
    machine.run_to_end().unwrap();
    machine.check().unwrap();
    let (tenant, late) = (machine.ended_at(0).unwrap(), machine.ended_at(1).unwrap());
    assert!(tenant < late, "the other has its main phase before it: {tenant:?}, {late:?}");
    // Its own start-up is that of four times the memory, in which it was ended.
    assert_eq!(machine.counts(0).main_references, 0);
    assert!(machine.counts(1).main_references > 0);
}

#[test]
fn a_programs_start_up_is_counted_apart() {
    let options = |updates: f64| json!({ "updates_per_word": updates });
    let counts = |updates: f64| {
        let params = Params { options: options(updates), ..Params::new(4 << 20, 7) };
        let source = program("gups", &params, false).unwrap();
        alone(config(64 << 20, 64 << 20), group(PageSize::Base, 1.0), source).1
    };
    let (once, twice) = (counts(1.0), counts(2.0));
    let start_up = |counts: &Counts| counts.references - counts.main_references;
    // Half a million words are set up, and each is then read and written.
    assert_eq!(start_up(&once), start_up(&twice));
    assert!(start_up(&once) >= 1 << 19, "{once:?}");
    assert_eq!(twice.main_references, 2 * once.main_references);
    assert!(once.main_references >= 2 << 19, "{once:?}");
}

/// A program on two cores whose first pages are exchanged for its last ones: its scans, and the
/// machine after the run.
fn measured(reads_per_sample: u32) -> (Vec<Scan>, ReferenceMachine) {
    let params = Params { threads: 2, ..Params::new(4 << 20, 7) };
    let source = program("gups", &params, false).unwrap();
    let config = ReferenceConfig { reads_per_sample, ..config(64 << 20, 64 << 20) };
    let machine = ReferenceMachine::new(config).unwrap();
    let (mut tracker, mut mover) =
        machine.add_group(group(PageSize::Base, 0.5), Box::new(source)).unwrap();
    let mut scans = Vec::new();
    while let Observation::Period(scan) = tracker.observe().unwrap() {
        let range = |page: usize| scan.layout.ranges([page]).remove(0);
        let slow: Vec<usize> = (0..scan.pages()).filter(|&page| !scan.fast.get(page)).collect();
        let pairs = slow.into_iter().zip(scan.fast.iter_ones()).take(8);
        let exchanges = pairs.map(|(up, down)| Exchange { up: range(up), down: range(down) });
        let plan = Plan { exchanges: exchanges.collect(), ..Plan::default() };
        scans.push(scan);
        mover.apply(&plan).unwrap();
    }
    machine.check().unwrap();
    (scans, machine)
}

#[test]
fn what_is_measured_adds_up_to_what_the_run_cost() {
    let (scans, machine) = measured(0);
    let counters: Vec<_> = scans.iter().map(|s| s.counters.as_deref().unwrap()).collect();
    let sum = |of: fn(&terrace_core::scan::PeriodCounters) -> u64| -> u64 {
        counters.iter().map(|m| of(m)).sum()
    };
    let (counts, cores) = (machine.counts(0), machine.cores(0) as u64);
    assert!(scans.len() > 3 && cores == 2, "{} scans, {cores} cores", scans.len());
    assert_eq!(sum(|m| m.elapsed_ns), machine.duration(0).unwrap().0 / 1000);
    assert_eq!(sum(|m| m.migration_stall_ns), counts.migration_ps / 1000 / cores);
    let slow_ps: u64 = counts.memory_stall_ps[1..].iter().sum();
    assert_eq!(sum(|m| m.slow_stall_ns), slow_ps / 1000 / cores);
    assert_eq!(sum(|m| m.reads[0]), counts.reads[0]);
    assert_eq!(sum(|m| m.reads[1]), counts.reads[1..].iter().sum::<u64>());
    assert_eq!(counters.last().unwrap().references, counts.references);
    // Some pages were moved and some reads were slow: the sums are not of nothing.
    assert!(counts.migration_ps > 0 && slow_ps > 0 && counts.reads[1] > 0);
    // A read takes the time of an idle tier, or more.
    let tiers = &presets::by_name("server-ddr5-cxl").unwrap().tiers;
    for m in counters {
        for (tier, (reads, reported)) in tiers.iter().zip(m.reads.iter().zip(m.read_latency_ps)) {
            let idle_ps = (tier.idle_read_ns() * 1000.0) as u64;
            assert!(*reads == 0 || reported + 1000 >= idle_ps, "{reported} {idle_ps}");
        }
    }
}

#[test]
fn sampling_changes_nothing_and_shows_where_reads_go() {
    let (scans, machine) = measured(0);
    let (sampled_scans, sampled) = measured(16);
    assert_eq!(machine.counts(0), sampled.counts(0));
    assert_eq!(machine.total_cost(0), sampled.total_cost(0));
    assert_eq!(machine.duration(0), sampled.duration(0));
    assert_eq!(scans.len(), sampled_scans.len());
    let mut samples = 0;
    for (scan, with) in scans.iter().zip(&sampled_scans) {
        assert_eq!((&scan.accessed, &scan.fast), (&with.accessed, &with.fast));
        assert_eq!(scan.samples(), None);
        for (page, &n) in with.samples().unwrap().iter().enumerate() {
            assert!(n == 0 || with.accessed.get(page), "page {page} was sampled, not accessed");
            samples += u64::from(n);
        }
    }
    // Whole reads from 8 to 23 are between samples, 15.5 on average; the mean of 25,000 distances
    // is within a percent of that. Walks read memory, too, and are not sampled.
    let reads: u64 = sampled.counts(0).reads.iter().sum();
    let reported = samples * 31 / 2;
    assert!(reported > reads * 8 / 10 && reported <= reads * 101 / 100, "{reported} of {reads}");
}

#[test]
fn a_window_after_functional_simulation_reads_what_it_reads_in_a_whole_run() {
    const BEFORE: u64 = 150_000;
    const WINDOW: u64 = 20_000;
    // Every other access is within 1 MB, the others anywhere in 64 MB; a quarter are stores.
    let bytes = 64 << 20;
    let accesses = || {
        chase(1 << 20, BEFORE).zip(chase(bytes, BEFORE)).enumerate().flat_map(|(n, (near, far))| {
            let kind = if n % 2 == 0 { AccessKind::Store } else { AccessKind::Load };
            [near, Access { kind, ..far }]
        })
    };
    let window = |warm: bool| {
        let mut config = config(64 << 20, 128 << 20);
        let last_level = &mut config.hardware.node.caches.llc;
        (last_level.size, last_level.ways) = (Bytes(1 << 20), 16);
        let machine = ReferenceMachine::new(config).unwrap();
        let source = Box::new(script(bytes, accesses()));
        let _interfaces = machine.add_group(group(PageSize::Base, 0.5), source).unwrap();
        let before = if warm {
            machine.warm_references(0, BEFORE)
        } else {
            machine.run_references(0, BEFORE, false)
        };
        assert_eq!(before.unwrap().references, BEFORE);
        let first = machine.counts(0);
        assert_eq!(first.reads.iter().sum::<u64>() == 0, warm);
        let work = machine.run_references(0, WINDOW, false).unwrap();
        let counts = machine.counts(0) - first;
        let traffic = (counts.reads, counts.writes, counts.walks, counts.faults, first.faults);
        (traffic, work.took.as_ns())
    };
    let ((traffic, took), (sampled_traffic, sampled_took)) = (window(false), window(true));
    assert_eq!(sampled_traffic, traffic);
    let (reads, writes, walks, ..) = traffic;
    assert!(reads[0] > 0 && reads[1] > 0 && writes[1] > 0 && walks > 0, "{traffic:?}");
    // The window lacks only what was under way when it began.
    let ratio = sampled_took / took;
    assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
}

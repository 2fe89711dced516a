//! Machines that follow a leader, against machines that simulate everything themselves.

use terrace_core::page::PageSize;
use terrace_simulated::hardware::node::StreamPrefetcherConfig;
use terrace_simulated::hardware::units::Bytes;
use terrace_simulated::os::{HugePages, TablePolicy};
use terrace_simulated::reference::{
    Access, AccessKind, Follower, ReferenceConfig, ReferenceGroup, ReferenceMachine, Step, TIERS,
    can_lead, lead,
};

mod support;

use support::references::*;

const BYTES: u64 = 8 << 20;
const REFERENCES: u64 = 200_000;
const INTERVAL: u64 = 7_001;

/// Loads and stores near and far, some of them in two lines or two pages. Half-way a part of the memory is
/// unmapped, and mapped again; some memory is in no mapping.
fn program() -> Script {
    let accesses = |n: u64| {
        chase(BYTES, n).enumerate().map(|(n, far)| match n % 5 {
            0 => Access { kind: AccessKind::Store, ..far },
            1 => Access { address: far.address + 61, ..load(0) },
            2 => load(START + (n as u64 * 40) % (64 << 10)),
            3 if n % 1000 == 3 => load(START + 2 * BYTES + n as u64 * 4096),
            _ => Access { instructions: 3, ..far },
        })
    };
    let first = script(BYTES, accesses(REFERENCES / 2));
    let again = [
        Step::Unmap { start: START, size_bytes: BYTES / 4 },
        Step::Map { start: START, size_bytes: BYTES / 4, huge_eligible: true },
        Step::Barrier,
    ];
    let second = script(BYTES, accesses(REFERENCES / 2)).steps.skip(1);
    let steps = Box::new(first.steps.chain(again).chain(second));
    Script { steps, footprint_bytes: Some(2 * BYTES), threads: 1 }
}

/// Small caches, with a prefetcher or without.
fn machine(prefetches: bool) -> ReferenceConfig {
    let mut config = config(64 << 20, 64 << 20);
    let node = &mut config.hardware.node;
    node.prefetcher = prefetches.then(StreamPrefetcherConfig::default);
    (node.caches.llc.size, node.caches.llc.ways) = (Bytes(1 << 20), 16);
    config
}

fn late(size: PageSize, fast_ratio: f64) -> ReferenceGroup {
    ReferenceGroup { start_ns: 500, ..group(size, fast_ratio) }
}

/// References, time in ps, lines read by tier so far, and whether it has ended, of each interval.
type Intervals = Vec<(u64, u64, [u64; TIERS], bool)>;

fn followed(mut machine: Follower) -> Intervals {
    let mut intervals = Vec::new();
    loop {
        let work = machine.run_references(INTERVAL).unwrap();
        intervals.push((work.references, work.took.0, machine.reads(), work.ended));
        if work.ended {
            return intervals;
        }
    }
}

fn simulated(config: ReferenceConfig, group: ReferenceGroup) -> Intervals {
    let machine = ReferenceMachine::new(config).unwrap();
    let _interfaces = machine.add_group(group, Box::new(program())).unwrap();
    let mut intervals = Vec::new();
    loop {
        let work = machine.run_references(0, INTERVAL, false).unwrap();
        intervals.push((work.references, work.took.0, machine.counts(0).reads, work.ended));
        if work.ended {
            return intervals;
        }
    }
}

fn of_ratios(config: &ReferenceConfig, size: PageSize, ratios: &[f64]) -> Vec<Intervals> {
    let groups = ratios.iter().map(|&ratio| late(size, ratio)).collect();
    let followers = lead(config, &late(size, 1.0), groups, Box::new(program())).unwrap();
    // Each on a thread of its own: none runs far ahead of the others.
    std::thread::scope(|scope| {
        let runs = followers.into_iter().map(|machine| scope.spawn(|| followed(machine)));
        let runs: Vec<_> = runs.collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    })
}

fn all(intervals: &Intervals) -> (u64, f64, [u64; TIERS]) {
    let ps: u64 = intervals.iter().map(|i| i.1).sum();
    (intervals.iter().map(|i| i.0).sum(), ps as f64, intervals[intervals.len() - 1].2)
}

#[test]
fn with_all_memory_fast_it_is_the_machine_to_the_last_picosecond() {
    for (size, prefetches) in
        [(PageSize::Base, false), (PageSize::Huge, false), (PageSize::Base, true)]
    {
        let config = machine(prefetches);
        let [got] = &of_ratios(&config, size, &[1.0])[..] else { panic!("one") };
        let expected = simulated(config, late(size, 1.0));
        assert_eq!(*got, expected, "{size:?}, prefetcher: {prefetches}");
        assert_eq!(all(got).0, REFERENCES);
    }
}

#[test]
fn with_slow_memory_it_is_the_machine_but_for_the_sets_of_its_lines() {
    for size in [PageSize::Base, PageSize::Huge] {
        let config = machine(false);
        let got = of_ratios(&config, size, &[0.5, 0.0]);
        for (got, ratio) in got.iter().zip([0.5, 0.0]) {
            let (references, ps, reads) = all(got);
            let (of, expected_ps, expected_reads) =
                all(&simulated(config.clone(), late(size, ratio)));
            assert_eq!(references, of);
            let near = |got: f64, of: f64| (got / of - 1.0).abs() < 0.01;
            assert!(near(ps, expected_ps), "{size:?}, {ratio}: {ps} and {expected_ps} ps");
            for tier in 0..2 {
                let (got, of) = (reads[tier] as f64, expected_reads[tier] as f64);
                assert!((got - of).abs() < 0.01 * all_reads(&expected_reads), "{got} and {of}");
            }
        }
        // The same lines are read in both, and the slower memory takes longer.
        assert_eq!(all_reads(&all(&got[0]).2), all_reads(&all(&got[1]).2));
        assert!(all(&got[1]).1 > 1.1 * all(&got[0]).1);
    }
}

fn all_reads(reads: &[u64; TIERS]) -> f64 {
    reads.iter().sum::<u64>() as f64
}

#[test]
fn machines_side_by_side_are_as_each_is_alone() {
    let (config, ratios) = (machine(true), [1.0, 0.7, 0.0]);
    let together = of_ratios(&config, PageSize::Base, &ratios);
    for (together, ratio) in together.iter().zip(ratios) {
        let [alone] = &of_ratios(&config, PageSize::Base, &[ratio])[..] else { panic!("one") };
        assert_eq!(together, alone, "{ratio}");
    }
}

#[test]
fn programs_whose_order_depends_on_times_have_no_leader() {
    let fits = |threads: usize, change: fn(&mut ReferenceGroup)| {
        let mut group = late(PageSize::Base, 1.0);
        change(&mut group);
        can_lead(&machine(false), &group, &Script { threads, ..program() })
    };
    assert!(fits(1, |_| ()));
    assert!(!fits(2, |_| ()));
    assert!(!fits(1, |group| group.stop_ns = Some(1)));
    assert!(!fits(1, |group| group.stop_after_start_up_of = Some("other".into())));
    assert!(!fits(1, |group| group.tables = TablePolicy { hard: true, ..TablePolicy::default() }));
    let mut always = machine(false);
    always.os.huge_pages = HugePages::Always;
    assert!(!can_lead(&always, &late(PageSize::Huge, 1.0), &program()));
    let mut large = machine(false);
    large.hardware.tiers[1].capacity = Bytes(1 << 45);
    assert!(!can_lead(&large, &late(PageSize::Base, 1.0), &program()));
}

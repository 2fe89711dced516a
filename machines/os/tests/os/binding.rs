//! Where page tables are placed: first touch, interleaving, BHi, and binding the whole table, which
//! ends as the Radiant paper's section 3.5 says.

use terrace_core::page::SpaceId;
use terrace_hardware::address::VirtualAddress;
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::PageTable;
use terrace_os::config::{DataPolicy, HugePages, TablePlacement, TablePolicy};
use terrace_os::{Node, Os, OsConfig, OsError, ProcessSpec};

use crate::world::{MIB, PAGE, fault, os, os_with, range, touch, touch_all};

fn spec(data: DataPolicy, placement: TablePlacement, hard: bool) -> ProcessSpec {
    let tables = TablePolicy { placement, migrate: false, hard };
    ProcessSpec { data, tables, ..Default::default() }
}

/// Page-table pages on the two nodes: leaf tables, and all above.
fn tables(os: &Os, p: SpaceId) -> [[u64; 2]; 2] {
    let t = os.table_pages(p);
    [0, 1].map(|n| [t[n][0], t[n][1..].iter().sum()])
}

/// Takes all of fast memory.
fn fill_fast(os: &mut Os) -> SpaceId {
    let p =
        os.create_process(spec(DataPolicy::FastFirst, TablePlacement::FollowData, false)).unwrap();
    os.map(p, 0, 1 << 30, false).unwrap();
    let mut address = 0;
    while os.free_bytes(Node::FAST) > 0 {
        touch(os, p, address).unwrap();
        address += PAGE;
    }
    p
}

#[test]
fn page_tables_follow_data_into_slow_memory_by_default() {
    let mut os = os(4 * MIB, 32 * MIB, HugePages::Never);
    fill_fast(&mut os);
    let p = os.create_process(ProcessSpec::default()).unwrap();
    os.map(p, 0, 4 * MIB, false).unwrap();
    touch_all(&mut os, range(p, 0, 4 * MIB));
    assert_eq!(tables(&os, p), [[0, 0], [2, 3]]);
}

#[test]
fn interleaving_puts_half_of_the_tables_on_each_node_and_bhi_none_of_the_upper() {
    for (placement, upper_slow) in
        [(TablePlacement::FollowData, true), (TablePlacement::BindHighLevels, false)]
    {
        let mut os = os(32 * MIB, 32 * MIB, HugePages::Never);
        let p = os.create_process(spec(DataPolicy::Interleave, placement, true)).unwrap();
        // Sparse, so that there are many upper tables.
        for i in 0..16 {
            os.map(p, i << 39, 4 * PAGE, false).unwrap();
            touch_all(&mut os, range(p, i << 39, 4 * PAGE));
        }
        let [fast, slow] = tables(&os, p);
        assert_eq!(fast[0] + slow[0], 16);
        assert_eq!(fast[1] + slow[1], 33);
        assert_eq!(slow[1] > 0, upper_slow, "{placement:?}: {slow:?}");
        assert!(slow[0] > 0, "leaves go with the data");
        let data = os.data_bytes(p);
        assert!(data[0].abs_diff(data[1]) <= 32 * PAGE, "{data:?}");
        os.check().unwrap();
    }
}

#[test]
fn table_interleaving_is_apart_from_the_data() {
    let mut os = os(32 * MIB, 32 * MIB, HugePages::Never);
    let p =
        os.create_process(spec(DataPolicy::FastFirst, TablePlacement::Interleave, false)).unwrap();
    os.map(p, 0, 16 * MIB, false).unwrap();
    touch_all(&mut os, range(p, 0, 16 * MIB));
    assert_eq!(os.data_bytes(p), [16 * MIB, 0]);
    let [fast, slow] = tables(&os, p);
    assert_eq!(fast[0] + fast[1], 6);
    assert_eq!(slow[0] + slow[1], 5);
}

#[test]
fn a_soft_binding_gives_way_and_is_counted() {
    let mut os = os(4 * MIB, 32 * MIB, HugePages::Never);
    fill_fast(&mut os);
    let p = os
        .create_process(spec(DataPolicy::FastFirst, TablePlacement::BindHighLevels, false))
        .unwrap();
    os.map(p, 0, 4 * PAGE, false).unwrap();
    touch_all(&mut os, range(p, 0, 4 * PAGE));
    assert_eq!(tables(&os, p), [[0, 0], [1, 3]]);
    assert_eq!(os.counters().table_fallbacks, 3);
    assert_eq!(os.counters().oom_kills, 0);
}

#[test]
fn placement_is_inherited_over_fork_and_exec() {
    for levels in [4, 5] {
        let config = OsConfig { levels, ..crate::world::plain(HugePages::Never) };
        let mut os = os_with(&config, 32 * MIB, 32 * MIB);
        let bhi = spec(DataPolicy::Bind(Node::SLOW), TablePlacement::BindHighLevels, true);
        let parent = os.create_process(bhi).unwrap();
        os.map(parent, 0, 4 * PAGE, false).unwrap();
        let child = os.fork(parent).unwrap();
        touch_all(&mut os, range(child, 0, 4 * PAGE));
        let upper = u64::from(levels) - 1;
        assert_eq!(tables(&os, child), [[0, upper], [1, 0]]);
        os.exec(child).unwrap();
        assert_eq!(tables(&os, child), [[0, 1], [0, 0]]);
        assert!(matches!(touch(&mut os, child, 0), Err(OsError::Segfault { .. })));
        os.map(child, 1 << 40, 4 * PAGE, false).unwrap();
        touch_all(&mut os, range(child, 1 << 40, 4 * PAGE));
        assert_eq!(tables(&os, child), [[0, upper], [1, 0]]);
        assert_eq!(os.space(child).path(VirtualAddress(1 << 40)).lowest, 0);
        os.check().unwrap();
    }
}

#[test]
fn binding_the_whole_table_ends_in_slow_allocations_and_death_while_slow_memory_is_free() {
    // Linux's own watermarks, and some page cache for reclaim to find.
    let config = OsConfig { huge_pages: HugePages::Never, ..OsConfig::default() };
    let mut os = os_with(&config, 64 * MIB, 4096 * MIB);
    let cache = os.fill_page_cache(Node::FAST, 8 * MIB);
    assert_eq!(cache, 8 * MIB);
    let p = os.create_process(spec(DataPolicy::FastFirst, TablePlacement::BindAll, true)).unwrap();
    os.map(p, 0, 1 << 45, false).unwrap();
    let (mut before, mut after) = (Picoseconds(0), Picoseconds(0));
    let mut killed = None;
    // One page in each 2 MB region: a table for each, like a big heap's random population.
    for region in 0u64..200_000 {
        match fault(&mut os, p, region * 2 * MIB) {
            Ok(done) if os.counters().reclaim_passes == 0 => {
                before = before.max(done.table_allocation)
            }
            Ok(done) => after = after.max(done.table_allocation),
            Err(error) => {
                killed = Some(error);
                break;
            }
        }
    }
    let Some(OsError::OutOfMemory { space, killed, freed_bytes, cost }) = killed else {
        panic!("{killed:?}")
    };
    assert_eq!((space, killed), (p, p));
    assert!(freed_bytes > 32 * MIB);
    // Reclaim found the cache first, in the background and directly, then nothing.
    let c = os.counters();
    assert_eq!(c.background_reclaimed_frames + c.reclaimed_frames, 8 * MIB / PAGE);
    assert_eq!(c.oom_kills, 1);
    assert!(c.reclaim_passes >= 16);
    assert!(
        cost > before * 100,
        "{cost} is the time of a failing allocation, {before} of one before"
    );
    assert!(os.free_bytes(Node::SLOW) > 3000 * MIB);
    assert!(!os.has_process(p));
    os.check().unwrap();
    // The same program with the tables bound in part survives: reclaim can find what it needs.
    assert_eq!(os.fill_page_cache(Node::FAST, 8 * MIB), 8 * MIB);
    let p = os
        .create_process(spec(DataPolicy::FastFirst, TablePlacement::BindHighLevels, true))
        .unwrap();
    os.map(p, 0, 1 << 45, false).unwrap();
    for region in 0..40_000 {
        fault(&mut os, p, region * 2 * MIB).unwrap();
    }
    assert_eq!(os.counters().oom_kills, 1);
    assert!(tables(&os, p)[1][0] > 0);
    assert_eq!(tables(&os, p)[1][1], 0);
}

#[test]
fn direct_reclaim_makes_an_allocation_slow_and_hands_frames_to_data_again() {
    use terrace_os::config::Watermarks;
    // With equal watermarks background reclaim does not come first.
    let config = OsConfig {
        huge_pages: HugePages::Never,
        watermarks: vec![Watermarks { min: 0.01, low: 0.01, high: 0.01 }; 2],
        ..OsConfig::default()
    };
    let mut os = os_with(&config, 16 * MIB, 64 * MIB);
    os.fill_page_cache(Node::FAST, 4 * MIB);
    let p = os.create_process(spec(DataPolicy::FastFirst, TablePlacement::BindAll, true)).unwrap();
    os.map(p, 0, 1 << 40, false).unwrap();
    let (mut quickest, mut slowest) = (u64::MAX, 0);
    let (mut pages_in_slow, mut back_in_fast) = (false, false);
    for region in 0..2_000u64 {
        let fast_before = os.data_bytes(p)[0];
        let done = fault(&mut os, p, region * 2 * MIB).unwrap();
        quickest = quickest.min(done.table_allocation.0);
        slowest = slowest.max(done.table_allocation.0);
        pages_in_slow |= os.data_bytes(p)[1] > 0;
        back_in_fast |= pages_in_slow && os.data_bytes(p)[0] > fast_before;
    }
    assert!(slowest > 100 * quickest, "{slowest} {quickest}");
    // What reclaim freed for tables is taken by data: the thrashing of section 3.5.
    assert!(back_in_fast);
    assert!(os.counters().reclaimed_frames > 32);
    os.check().unwrap();
}

#[test]
fn a_groups_limit_of_fast_memory_holds_for_its_children_and_gives_way_to_none() {
    let mut os = os(32 * MIB, 8 * MIB, HugePages::Never);
    let limited = ProcessSpec { fast_limit_bytes: Some(MIB), ..Default::default() };
    let p = os.create_process(limited).unwrap();
    let child = os.fork(p).unwrap();
    for space in [p, child] {
        os.map(space, 0, 2 * MIB, false).unwrap();
        touch_all(&mut os, range(space, 0, 2 * MIB));
    }
    assert_eq!(os.group_fast_bytes(p), MIB);
    assert_eq!(os.data_bytes(child)[0], 0);
    let begun = os.begin_move(&[range(child, 0, PAGE)], Node::FAST);
    assert_eq!(begun.refused[0].reason, terrace_core::plan::FailureReason::NotAllowed);
    // When slow memory is full the limit gives way: a program is not killed beside free memory.
    os.map(p, 8 * MIB, 8 * MIB, false).unwrap();
    touch_all(&mut os, range(p, 8 * MIB, 8 * MIB));
    assert!(os.group_fast_bytes(p) > MIB);
    os.check().unwrap();
}

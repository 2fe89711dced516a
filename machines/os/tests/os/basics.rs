//! A process touches memory, its memory is migrated, and all counts agree.

use terrace_core::page::PageSize;
use terrace_core::plan::FailureReason;
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::walker::PageTable;
use terrace_os::config::{HugePages, Watermarks};
use terrace_os::fault::FaultKind;
use terrace_os::{Node, NodeMemory, OsConfig, OsError, ProcessSpec, Tier};

use crate::world::{MIB, is_fast, os, os_with, range, slow_process, touch, touch_all};

#[test]
fn first_touch_fills_the_fast_node_and_then_the_slow_one() {
    let mut os = os(2 * MIB, 8 * MIB, HugePages::Never);
    let p = os.create_process(ProcessSpec::default()).unwrap();
    os.map(p, 0x10_0000, 4 * MIB, false).unwrap();
    for page in 0..1024 {
        touch(&mut os, p, 0x10_0000 + page * 4096).unwrap();
    }
    // The root, three levels below it, and a third leaf table compete for the same frames.
    assert_eq!(os.free_bytes(Node::FAST), 0);
    let data = os.data_bytes(p);
    assert_eq!(data.iter().sum::<u64>(), 4 * MIB);
    assert_eq!(is_fast(&os, p, 0x10_0000), Some(true));
    assert_eq!(is_fast(&os, p, 0x10_0000 + 1023 * 4096), Some(false));
    os.check().unwrap();
    os.exit(p).unwrap();
    assert_eq!(os.free_bytes(Node::FAST), 2 * MIB);
    os.check().unwrap();
}

#[test]
fn an_access_outside_every_mapping_is_a_segfault() {
    let mut os = os(2 * MIB, 8 * MIB, HugePages::Never);
    let p = os.create_process(ProcessSpec::default()).unwrap();
    os.map(p, 0x1000, 0x1000, false).unwrap();
    assert_eq!(touch(&mut os, p, 0x2000), Err(OsError::Segfault { space: p, address: 0x2000 }));
    assert!(os.map(p, 0x1000, 0x1000, false).is_err());
    assert!(os.map(p, 0x1800, 0x1000, false).is_err());
}

#[test]
fn a_page_moves_in_steps_and_accesses_wait_for_it() {
    let mut os = os(4 * MIB, 8 * MIB, HugePages::Never);
    let p = slow_process(&mut os);
    os.map(p, 0, MIB, false).unwrap();
    touch_all(&mut os, range(p, 0, 0x10000));
    os.space_mut(p).set_bits(VirtualAddress(0x3000), true);
    let begun = os.begin_move(&[range(p, 0, 0x11000)], Node::FAST);
    assert_eq!((begun.pages, begun.bytes), (16, 0x10000));
    assert_eq!(begun.refused.len(), 1);
    assert_eq!(begun.refused[0].reason, FailureReason::Absent);
    assert_eq!(begun.shootdowns.len(), 1);
    assert_eq!((begun.shootdowns[0].invalidations, begun.shootdowns[0].full), (16, false));
    assert_eq!(touch(&mut os, p, 0x3000), Ok(FaultKind::WaitFor(begun.id)));
    os.check().unwrap();
    let done = os.finish_move(begun.id);
    assert_eq!((done.pages, done.gone), (16, 0));
    assert_eq!(is_fast(&os, p, 0x3000), Some(true));
    let leaf = os.space(p).path(VirtualAddress(0x3000)).leaf.unwrap();
    assert!(leaf.accessed && leaf.dirty);
    assert!(!os.space(p).path(VirtualAddress(0x4000)).leaf.unwrap().accessed);
    os.check().unwrap();
}

#[test]
fn a_page_can_be_mapped_before_the_rest_of_its_batch() {
    let mut os = os(4 * MIB, 8 * MIB, HugePages::Never);
    let p = slow_process(&mut os);
    os.map(p, 0, MIB, false).unwrap();
    touch_all(&mut os, range(p, 0, 0x10000));
    let begun = os.begin_move(&[range(p, 0, 0x10000)], Node::FAST);
    assert_eq!(os.moving_page(begun.id, 3), range(p, 0x3000, 0x1000));
    let first = os.finish_page(begun.id, 3);
    assert_eq!((first.pages, first.bytes, first.gone), (1, 4096, 0));
    os.check().unwrap();
    assert_eq!(is_fast(&os, p, 0x3000), Some(true));
    assert_eq!(touch(&mut os, p, 0x4000), Ok(FaultKind::WaitFor(begun.id)));
    // Once: neither a second time nor with the rest, even when it has moved back meanwhile.
    assert_eq!(os.finish_page(begun.id, 3).pages, 0);
    let back = os.begin_move(&[range(p, 0x3000, 0x1000)], Node::SLOW);
    os.finish_move(back.id);
    assert_eq!(os.finish_move(begun.id).pages, 15);
    assert_eq!(is_fast(&os, p, 0x3000), Some(false));
    os.check().unwrap();
}

#[test]
fn a_page_unmapped_while_it_moves_arrives_nowhere() {
    let mut os = os(8 * MIB, 16 * MIB, HugePages::Always);
    let p = os.create_process(ProcessSpec::default()).unwrap();
    os.map(p, 0, 4 * MIB, false).unwrap();
    touch(&mut os, p, 0).unwrap();
    touch(&mut os, p, 2 * MIB).unwrap();
    let begun = os.begin_move(&[range(p, 0, 4 * MIB)], Node::SLOW);
    assert_eq!((begun.pages, begun.bytes), (2, 4 * MIB));
    os.unmap(p, MIB, 2 * MIB).unwrap();
    os.check().unwrap();
    let done = os.finish_move(begun.id);
    assert_eq!((done.pages, done.gone), (512, 512));
    os.check().unwrap();
    assert_eq!(is_fast(&os, p, 0), Some(false));
    assert_eq!(is_fast(&os, p, MIB), None);
    let size = os.space(p).path(VirtualAddress(0)).leaf.unwrap().size;
    assert_eq!(size, PageSize::Base);
}

#[test]
fn a_batch_ends_at_its_caps_and_says_what_is_left() {
    let mut os = os(64 * MIB, 64 * MIB, HugePages::Eligible);
    let p = os.create_process(ProcessSpec::default()).unwrap();
    os.map(p, 0, 20 * MIB, true).unwrap();
    for i in 0..10 {
        touch(&mut os, p, i * 2 * MIB).unwrap();
    }
    let huge: Vec<_> = (0..10).map(|i| range(p, i * 2 * MIB, 2 * MIB)).collect();
    let begun = os.begin_move(&huge, Node::SLOW);
    assert_eq!((begun.pages, begun.rest.as_slice()), (8, &huge[8..]));
    assert_eq!(begun.shootdowns.len(), 8);
    os.finish_move(begun.id);
    // One operation is never cut: its granularity is the one requested.
    let q = os.create_process(ProcessSpec::default()).unwrap();
    os.map(q, 0, 4 * MIB, false).unwrap();
    touch_all(&mut os, range(q, 0, 4 * MIB));
    let begun = os.begin_move(&[range(q, 0, 4 * MIB)], Node::SLOW);
    assert_eq!((begun.pages, begun.shootdowns.len(), begun.rest.len()), (1024, 1, 0));
    os.finish_move(begun.id);
    os.check().unwrap();
}

#[test]
fn what_cannot_move_is_refused_with_its_reason() {
    let mut os = os(4 * MIB, 64 * MIB, HugePages::Never);
    let p = slow_process(&mut os);
    os.map(p, 0, 8 * MIB, false).unwrap();
    touch_all(&mut os, range(p, 0, 8 * MIB));
    let reasons = |refused: &[terrace_os::moves::Refused]| {
        let mut reasons: Vec<_> = refused.iter().map(|r| r.reason).collect();
        reasons.dedup();
        reasons
    };
    let first = os.begin_move(&[range(p, 0, MIB)], Node::FAST);
    let again = os.begin_move(&[range(p, 0, MIB)], Node::FAST);
    assert_eq!(reasons(&again.refused), [FailureReason::Busy]);
    assert_eq!((again.pages, again.shootdowns.len()), (0, 0));
    os.finish_move(first.id);
    let there = os.begin_move(&[range(p, 0, MIB)], Node::FAST);
    assert_eq!((there.already_there_bytes / 4096, there.pages, there.refused.len()), (256, 0, 0));
    let rest = os.begin_move(&[range(p, MIB, 7 * MIB)], Node::FAST);
    assert_eq!(reasons(&rest.refused), [FailureReason::NoRoom]);
    assert_eq!(rest.pages, 3 * 256);
    os.abort_move(rest.id);
    assert_eq!(os.data_bytes(p), [MIB, 7 * MIB]);
    os.exit(p).unwrap();
    let gone = os.begin_move(&[range(p, 0, MIB)], Node::FAST);
    assert_eq!(reasons(&gone.refused), [FailureReason::ProcessGone]);
    os.check().unwrap();
}

#[test]
fn first_touch_stops_at_the_low_watermark_and_reserves_nothing_below_the_minimum() {
    let config = OsConfig {
        huge_pages: HugePages::Never,
        watermarks: vec![Watermarks { min: 0.125, low: 0.25, high: 0.5 }; 2],
        ..OsConfig::default()
    };
    let mut os = os_with(&config, 8 * MIB, 8 * MIB);
    let p = os.create_process(ProcessSpec::default()).unwrap();
    os.map(p, 0, 64 * MIB, false).unwrap();
    let mut free = Vec::new();
    for page in 0.. {
        if touch(&mut os, p, page * 4096).is_err() {
            break;
        }
        free.push((os.free_bytes(Node::FAST) / MIB, os.free_bytes(Node::SLOW) / MIB));
    }
    free.dedup();
    // Fast down to its low mark, slow to its own, then both to the minimum, then nothing: 14 of 16
    // MB.
    assert!(free.contains(&(2, 7)) && !free.contains(&(1, 7)), "{free:?}");
    assert!(free.contains(&(2, 2)) && free.last() == Some(&(1, 1)), "{free:?}");
    assert_eq!(os.counters().oom_kills, 1);
}

#[test]
fn page_cache_is_there_from_the_start_and_makes_way_when_memory_is_short() {
    let config = OsConfig {
        huge_pages: HugePages::Never,
        watermarks: vec![Watermarks { min: 0.0, low: 0.0, high: 0.125 }; 2],
        page_cache: vec![0.25, 1.0],
        ..OsConfig::default()
    };
    let mut os = os_with(&config, 8 * MIB, 8 * MIB);
    assert_eq!(os.free_bytes(Node::FAST), 6 * MIB);
    assert_eq!(os.free_bytes(Node::SLOW), MIB, "down to the high watermark");
    let p = os.create_process(ProcessSpec::default()).unwrap();
    os.map(p, 0, 14 * MIB, false).unwrap();
    touch_all(&mut os, range(p, 0, 14 * MIB));
    assert_eq!(os.counters().oom_kills, 0);
    os.check().unwrap();
}

#[test]
fn impossible_configurations_are_refused_in_one_line() {
    let good = [
        NodeMemory { tier: Tier::FAST, start: PhysicalAddress(0), capacity_bytes: 4 * MIB },
        NodeMemory { tier: Tier::SLOW, start: PhysicalAddress(4 * MIB), capacity_bytes: 4 * MIB },
    ];
    let refused = |config: &OsConfig, nodes: &[NodeMemory], word: &str| {
        let error = terrace_os::Os::new(config, nodes).unwrap_err().to_string();
        assert!(error.contains(word) && !error.contains('\n'), "{error}");
    };
    let config = OsConfig::default();
    refused(&config, &[], "0 nodes");
    let with = |i: usize, f: fn(&mut NodeMemory)| {
        let mut nodes = good;
        f(&mut nodes[i]);
        nodes
    };
    refused(&config, &with(0, |n| n.start.0 = 4096), "multiple of 2 MB");
    refused(&config, &with(0, |n| n.capacity_bytes = 0), "capacity is 0");
    refused(&config, &with(0, |n| n.capacity_bytes += 4096), "overlaps");
    refused(&config, &with(0, |n| n.tier = Tier::SLOW), "expected the first to be 0");
    refused(&config, &with(1, |n| n.start.0 = 1 << 48), "48 bits");
    let levels = OsConfig { levels: 3, ..OsConfig::default() };
    refused(&levels, &good, "levels is 3");
    let marks = vec![Watermarks { min: 0.5, low: 0.1, high: 0.2 }];
    refused(&OsConfig { watermarks: marks, ..OsConfig::default() }, &good, "min 0.5");
    let cache = OsConfig { page_cache: vec![0.1, 1.5], ..OsConfig::default() };
    refused(&cache, &good, "os.page_cache[1]");
    let mut threads = OsConfig::default();
    threads.migration.threads = 0;
    refused(&threads, &good, "threads is 0");
    let unknown = toml::from_str::<OsConfig>("hugepages = true").unwrap_err().to_string();
    assert!(unknown.contains("unknown field"), "{unknown}");
    let text = "[costs]\npreset = \"granularity\"\ninvlpg_ns = 111\n[migration]\nthreads = 4\n";
    let config: OsConfig = toml::from_str(text).unwrap();
    let os = terrace_os::Os::new(&config, &good).unwrap();
    assert_eq!((os.costs().invlpg_ns, os.costs().shootdown_ns), (111, 3_000));
    assert_eq!(os.migration().threads, 4);
}

#[test]
fn mappings_side_by_side_are_one_and_unmapping_cuts_them() {
    let mut os = os(4 * MIB, 4 * MIB, HugePages::Never);
    let p = os.create_process(ProcessSpec::default()).unwrap();
    let mapped = |os: &terrace_os::Os| {
        os.space(p).mappings().map(|m| (m.start / 4096, m.end() / 4096)).collect::<Vec<_>>()
    };
    for (start, pages, eligible) in [(0, 2, false), (4, 2, false), (2, 2, false), (6, 2, true)] {
        os.map(p, start * 4096, pages * 4096, eligible).unwrap();
    }
    assert_eq!(mapped(&os), [(0, 6), (6, 8)]);
    assert_eq!(os.unmap(p, 0x1000, 0x6000).unwrap().shootdown, None, "nothing was touched");
    assert_eq!(mapped(&os), [(0, 1), (7, 8)]);
}

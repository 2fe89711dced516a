//! Two lists of pages are exchanged.

use terrace_core::page::SpaceId;
use terrace_core::plan::{Exchange, FailureReason};
use terrace_hardware::address::VirtualAddress;
use terrace_hardware::walker::PageTable;
use terrace_os::config::{DataPolicy, HugePages, TablePlacement, TablePolicy};
use terrace_os::{Node, Os, ProcessSpec};

use crate::world::{MIB, PAGE, is_fast, os, range, touch, touch_all};

/// A process on each node that fill both to the last frame but those of one more table.
fn full(huge_pages: HugePages) -> (Os, SpaceId, SpaceId) {
    let mut os = os(16 * MIB, 16 * MIB, huge_pages);
    let tables = TablePolicy { placement: TablePlacement::FollowData, migrate: true, hard: false };
    let [hot, cold] = [Node::SLOW, Node::FAST].map(|node| {
        let spec = ProcessSpec { data: DataPolicy::Bind(node), tables, ..Default::default() };
        let p = os.create_process(spec).unwrap();
        os.map(p, 0, 12 * MIB, true).unwrap();
        touch_all(&mut os, range(p, 0, 12 * MIB));
        p
    });
    (os, hot, cold)
}

#[test]
fn an_exchange_needs_no_free_memory_at_all() {
    let (mut os, hot, cold) = full(HugePages::Never);
    for (node, p) in [(Node::FAST, cold), (Node::SLOW, hot)] {
        os.map(p, 1 << 30, 8 * MIB, false).unwrap();
        let mut address = 1 << 30;
        while os.free_bytes(node) > 0 {
            touch(&mut os, p, address).unwrap();
            address += PAGE;
        }
    }
    let pair = Exchange { up: range(hot, 0, MIB), down: range(cold, MIB, MIB) };
    let frame = |os: &Os, p, a| os.space(p).path(VirtualAddress(a)).leaf.unwrap().frame;
    let before = (frame(&os, hot, 0), frame(&os, cold, MIB));
    os.space_mut(hot).set_bits(VirtualAddress(0), true);
    let begun = os.begin_exchange(&[pair]);
    assert_eq!((begun.pairs, begun.bytes, begun.swaps.len()), (256, MIB, 256));
    assert_eq!(begun.shootdowns.len(), 2);
    os.check().unwrap();
    let done = os.finish_move(begun.id);
    assert_eq!((done.pages, done.bytes), (512, 2 * MIB));
    assert_eq!((frame(&os, cold, MIB), frame(&os, hot, 0)), before);
    let bits = os.space(hot).path(VirtualAddress(0)).leaf.unwrap();
    assert!(bits.accessed && bits.dirty);
    assert!(!os.space(cold).path(VirtualAddress(MIB)).leaf.unwrap().dirty);
    let c = os.counters();
    assert_eq!((c.exchanged_pairs, c.migrated_bytes, c.copied_bytes), (256, 2 * MIB, 2 * MIB));
    // The table of the one process cannot follow: there is no frame for it.
    assert!(c.table_moves.no_room > 0);
    os.check().unwrap();
}

#[test]
fn huge_pages_trade_places_whole() {
    let (mut os, hot, cold) = full(HugePages::Always);
    let pair = Exchange { up: range(hot, 2 * MIB, 4 * MIB), down: range(cold, 0, 4 * MIB) };
    let begun = os.begin_exchange(&[pair]);
    assert_eq!((begun.pairs, begun.bytes), (2, 4 * MIB));
    assert_eq!(begun.shootdowns[0].invalidations, 2);
    os.finish_move(begun.id);
    assert_eq!(is_fast(&os, hot, 2 * MIB), Some(true));
    assert_eq!(is_fast(&os, cold, 0), Some(false));
    os.check().unwrap();
}

#[test]
fn lists_that_do_not_match_fall_back_and_absent_pages_are_refused() {
    let (mut os, hot, cold) = full(HugePages::Always);
    // A huge page against base pages.
    os.unmap(cold, 0, PAGE).unwrap();
    os.map(cold, 0, PAGE, false).unwrap();
    touch(&mut os, cold, 0).unwrap();
    let uneven = Exchange { up: range(hot, 0, 2 * MIB), down: range(cold, 0, 2 * MIB) };
    // Both sides in the wrong tier.
    let wrong = Exchange { up: range(cold, 2 * MIB, 2 * MIB), down: range(hot, 2 * MIB, 2 * MIB) };
    os.unmap(hot, 4 * MIB, 2 * MIB).unwrap();
    let absent = Exchange { up: range(hot, 4 * MIB, 2 * MIB), down: range(cold, 4 * MIB, 2 * MIB) };
    let begun = os.begin_exchange(&[uneven, wrong, absent]);
    assert_eq!((begun.pairs, begun.shootdowns.len()), (0, 0));
    assert_eq!(begun.fallback, [uneven, wrong, absent]);
    assert_eq!(begun.refused.len(), 1);
    assert_eq!(begun.refused[0].reason, FailureReason::Absent);
    let mut off = os.migration().clone();
    off.exchange = false;
    os.set_migration(off).unwrap();
    let pair = Exchange { up: range(hot, 6 * MIB, 2 * MIB), down: range(cold, 6 * MIB, 2 * MIB) };
    assert_eq!(os.begin_exchange(&[pair]).fallback, [pair]);
    os.check().unwrap();
}

#[test]
fn one_side_unmapped_meanwhile_leaves_the_other_where_it_went() {
    let (mut os, hot, cold) = full(HugePages::Always);
    let free = os.free_bytes(Node::SLOW);
    let pair = Exchange { up: range(hot, 0, 2 * MIB), down: range(cold, 0, 2 * MIB) };
    let begun = os.begin_exchange(&[pair]);
    os.exit(cold).unwrap();
    os.check().unwrap();
    let done = os.finish_move(begun.id);
    assert_eq!((done.pages, done.gone), (1, 1));
    assert_eq!(is_fast(&os, hot, 0), Some(true));
    assert_eq!(os.free_bytes(Node::SLOW), free + 2 * MIB);
    os.check().unwrap();
}

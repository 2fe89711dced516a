//! Radiant's algorithm 1, row by row, and the effect of its order of steps on late bits.

use terrace_core::page::SpaceId;
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::walker::PageTable;
use terrace_os::config::{DataPolicy, HugePages, TablePlacement, TablePolicy};
use terrace_os::counters::TableMoveCounts;
use terrace_os::tables::{TableMove, TableMoveOrder};
use terrace_os::{Node, NodeMemory, Os, OsConfig, ProcessSpec, Tier};

use crate::world::{MIB, PAGE, SLOW_START, plain, range, touch_all};

/// A small version of the two-socket machine of the paper's table 1: two fast nodes, two slow ones.
const NODES: [u64; 4] = [0, 1 << 30, SLOW_START, SLOW_START + (1 << 30)];
const FAST_2: Node = Node(1);
const SLOW: Node = Node(2);
const SLOW_2: Node = Node(3);

fn four_nodes(config: &OsConfig) -> Os {
    let node = |i: usize| NodeMemory {
        tier: if i < 2 { Tier::FAST } else { Tier::SLOW },
        start: PhysicalAddress(NODES[i]),
        capacity_bytes: 16 * MIB,
    };
    Os::new(config, &[0, 1, 2, 3].map(node)).unwrap()
}

/// A process with 8 pages on a node; its leaf table is placed like its data.
fn process(os: &mut Os, node: Node, migrate: bool) -> SpaceId {
    let tables = TablePolicy { placement: TablePlacement::FollowData, migrate, hard: false };
    let p = os
        .create_process(ProcessSpec { data: DataPolicy::Bind(node), tables, ..Default::default() })
        .unwrap();
    os.map(p, 0, 8 * PAGE, false).unwrap();
    touch_all(os, range(p, 0, 8 * PAGE));
    p
}

/// Moves the pages one after the other, like the kernel, and ends the moves of tables at once.
fn move_pages(os: &mut Os, p: SpaceId, pages: std::ops::Range<u64>, to: Node) -> Vec<TableMove> {
    let mut moves = Vec::new();
    for page in pages {
        let begun = os.begin_move(&[range(p, page * PAGE, PAGE)], to);
        assert_eq!(begun.pages, 1);
        let done = os.finish_move(begun.id);
        for t in &done.table_moves {
            assert!(os.finish_table_move(t.id).is_some());
        }
        moves.extend(done.table_moves);
    }
    os.check().unwrap();
    moves
}

fn leaf_node(os: &Os, p: SpaceId) -> Node {
    os.node_of(os.space(p).path(VirtualAddress(0)).tables[0])
}

fn counts(os: &Os) -> TableMoveCounts {
    os.counters().table_moves
}

#[test]
fn up_at_once_with_the_first_page_and_already_there_for_the_others() {
    let mut os = four_nodes(&plain(HugePages::Never));
    let p = process(&mut os, SLOW, true);
    let moves = move_pages(&mut os, p, 0..8, Node::FAST);
    assert_eq!(moves.len(), 1);
    assert_eq!((moves[0].space, moves[0].address), (p, 0));
    assert_eq!(leaf_node(&os, p), Node::FAST);
    let expected = TableMoveCounts { successful: 1, already_there: 7, ..Default::default() };
    assert_eq!(counts(&os), expected);
    assert_eq!(os.table_pages(p)[0][0], 1);
    assert_eq!(os.table_pages(p)[2], [0, 1, 1, 1, 0]);
}

#[test]
fn within_a_tier_it_stays() {
    let mut os = four_nodes(&plain(HugePages::Never));
    let p = process(&mut os, SLOW, true);
    assert!(move_pages(&mut os, p, 0..3, SLOW_2).is_empty());
    assert_eq!(leaf_node(&os, p), SLOW);
    assert_eq!(counts(&os), TableMoveCounts { within_tier: 3, ..Default::default() });
    let q = process(&mut os, Node::FAST, true);
    assert!(move_pages(&mut os, q, 0..2, FAST_2).is_empty());
    assert_eq!(counts(&os), TableMoveCounts { within_tier: 5, ..Default::default() });
}

#[test]
fn down_only_with_the_last_page_that_is_fast() {
    let mut os = four_nodes(&plain(HugePages::Never));
    let p = process(&mut os, Node::FAST, true);
    // One page in the other fast node counts as fast, too.
    move_pages(&mut os, p, 7..8, FAST_2);
    assert!(move_pages(&mut os, p, 0..7, SLOW).is_empty());
    assert_eq!(leaf_node(&os, p), Node::FAST);
    assert_eq!(counts(&os), TableMoveCounts { maps_fast: 7, within_tier: 1, ..Default::default() });
    assert_eq!(move_pages(&mut os, p, 7..8, SLOW_2).len(), 1);
    assert_eq!(leaf_node(&os, p), SLOW_2);
    assert_eq!(counts(&os).successful, 1);
}

#[test]
fn a_batch_goes_down_whole_and_takes_its_table_along() {
    let mut os = four_nodes(&plain(HugePages::Never));
    let p = process(&mut os, Node::FAST, true);
    let begun = os.begin_move(&[range(p, 0, 8 * PAGE)], SLOW);
    let done = os.finish_move(begun.id);
    assert_eq!(done.table_moves.len(), 1);
    let expected = TableMoveCounts { successful: 1, already_there: 7, ..Default::default() };
    assert_eq!(counts(&os), expected);
}

#[test]
fn a_lock_held_by_another_call_is_not_waited_for() {
    let mut os = four_nodes(&plain(HugePages::Never));
    let p = process(&mut os, SLOW, true);
    // Another table under the same page directory: moving the one holds the lock above both.
    os.map(p, 2 * MIB, 8 * PAGE, false).unwrap();
    touch_all(&mut os, range(p, 2 * MIB, 8 * PAGE));
    let first = os.begin_move(&[range(p, 0, PAGE)], Node::FAST);
    let pending = os.finish_move(first.id).table_moves;
    assert_eq!(pending.len(), 1);
    for start in [PAGE, 2 * MIB] {
        let begun = os.begin_move(&[range(p, start, PAGE)], Node::FAST);
        assert!(os.finish_move(begun.id).table_moves.is_empty());
    }
    let expected = TableMoveCounts { successful: 1, lock_contended: 2, ..Default::default() };
    assert_eq!(counts(&os), expected);
    os.check().unwrap();
    os.finish_table_move(pending[0].id).unwrap();
    // The next page tries again.
    assert_eq!(move_pages(&mut os, p, 513..514, Node::FAST).len(), 1);
}

#[test]
fn without_mig_nothing_follows_and_nothing_is_counted() {
    let mut os = four_nodes(&plain(HugePages::Never));
    let p = process(&mut os, SLOW, false);
    assert!(move_pages(&mut os, p, 0..8, Node::FAST).is_empty());
    assert_eq!(leaf_node(&os, p), SLOW);
    assert_eq!(counts(&os), TableMoveCounts::default());
}

#[test]
fn a_full_node_takes_no_table() {
    let mut os = four_nodes(&plain(HugePages::Never));
    let p = process(&mut os, SLOW, true);
    let begun = os.begin_move(&[range(p, 0, PAGE)], Node::FAST);
    let q = process(&mut os, Node::FAST, false);
    let rest = os.free_bytes(Node::FAST);
    os.map(q, 1 << 30, 16 * MIB, false).unwrap();
    let mut address = 1 << 30;
    while os.free_bytes(Node::FAST) > 0 {
        touch_all(&mut os, range(q, address, PAGE));
        address += PAGE;
        assert!(address < (1 << 30) + rest);
    }
    os.finish_move(begun.id);
    // The page's old frame was freed on the slow node; the fast one has none for the table.
    assert_eq!(counts(&os), TableMoveCounts { no_room: 1, ..Default::default() });
    assert_eq!(leaf_node(&os, p), SLOW);
}

#[test]
fn a_table_unmapped_on_its_way_arrives_nowhere() {
    let mut os = four_nodes(&plain(HugePages::Never));
    let p = process(&mut os, SLOW, true);
    let begun = os.begin_move(&[range(p, 0, 8 * PAGE)], Node::FAST);
    let done = os.finish_move(begun.id);
    os.unmap(p, 0, 8 * PAGE).unwrap();
    os.check().unwrap();
    assert_eq!(os.finish_table_move(done.table_moves[0].id), None);
    os.exit(p).unwrap();
    os.check().unwrap();
    assert_eq!(os.free_bytes(Node::FAST), 16 * MIB);
}

/// Bits set by walks between the copy and the switch: kept and lost.
fn late(order: TableMoveOrder) -> (Os, SpaceId) {
    let mut config = plain(HugePages::Never);
    config.migration.table_move_order = order;
    let mut os = four_nodes(&config);
    let p = process(&mut os, SLOW, true);
    os.space_mut(p).set_bits(VirtualAddress(0), true);
    let begun = os.begin_move(&[range(p, 0, PAGE)], Node::FAST);
    let done = os.finish_move(begun.id);
    os.space_mut(p).set_bits(VirtualAddress(PAGE), false);
    os.space_mut(p).set_bits(VirtualAddress(2 * PAGE), true);
    let moved = os.finish_table_move(done.table_moves[0].id).unwrap();
    assert_eq!(moved.late, [2, 1]);
    assert!(moved.shootdown.tables, "paging-structure caches know the old table");
    (os, p)
}

#[test]
fn late_bits_are_merged_and_in_the_printed_order_lost() {
    let bits = |os: &Os, p, page: u64| {
        let leaf = os.space(p).path(VirtualAddress(page * PAGE)).leaf.unwrap();
        (leaf.accessed, leaf.dirty)
    };
    let (os, p) = late(TableMoveOrder::SwitchFlushMerge);
    assert_eq!([0, 1, 2].map(|i| bits(&os, p, i)), [(true, true), (true, false), (true, true)]);
    let c = os.counters();
    assert_eq!([c.late_accessed, c.late_dirty, c.lost_accessed, c.lost_dirty], [2, 1, 0, 0]);
    let (os, p) = late(TableMoveOrder::AsPrinted);
    assert_eq!([0, 1, 2].map(|i| bits(&os, p, i)), [(true, true), (false, false), (false, false)]);
    let c = os.counters();
    assert_eq!([c.late_accessed, c.late_dirty, c.lost_accessed, c.lost_dirty], [0, 0, 2, 1]);
}

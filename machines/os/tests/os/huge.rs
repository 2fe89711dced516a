//! Huge pages: which mappings get them, when there are none, splitting and collapsing.

use terrace_core::page::PageSize;
use terrace_hardware::address::VirtualAddress;
use terrace_hardware::walker::PageTable;
use terrace_os::config::HugePages;
use terrace_os::{Node, ProcessSpec};

use crate::world::{MIB, PAGE, fault, os, range, slow_process, touch, touch_all};

fn size(os: &terrace_os::Os, p: terrace_core::page::SpaceId, address: u64) -> Option<PageSize> {
    os.space(p).path(VirtualAddress(address)).leaf.map(|l| l.size)
}

#[test]
fn a_fault_takes_a_huge_page_where_the_mapping_is_eligible_and_whole() {
    for (huge_pages, eligible, expected) in [
        (HugePages::Never, true, PageSize::Base),
        (HugePages::Eligible, false, PageSize::Base),
        (HugePages::Eligible, true, PageSize::Huge),
        (HugePages::Always, false, PageSize::Huge),
    ] {
        let mut os = os(16 * MIB, 16 * MIB, huge_pages);
        let p = os.create_process(ProcessSpec::default()).unwrap();
        os.map(p, MIB, 4 * MIB, eligible).unwrap();
        // The first megabyte and the last are not a whole region.
        touch(&mut os, p, MIB).unwrap();
        assert_eq!(size(&os, p, MIB), Some(PageSize::Base));
        touch(&mut os, p, 3 * MIB).unwrap();
        assert_eq!(size(&os, p, 3 * MIB), Some(expected), "{huge_pages:?} {eligible}");
        touch(&mut os, p, 4 * MIB).unwrap();
        assert_eq!(size(&os, p, 4 * MIB), Some(PageSize::Base));
        os.check().unwrap();
    }
}

#[test]
fn fragmented_memory_has_room_and_no_huge_page() {
    let mut os = os(16 * MIB, 16 * MIB, HugePages::Always);
    assert_eq!(os.fragment(Node::FAST, 100), 8);
    assert_eq!(
        (os.free_huge_pages(Node::FAST), os.free_bytes(Node::FAST)),
        (0, 16 * MIB - 8 * PAGE)
    );
    let p = os.create_process(ProcessSpec::default()).unwrap();
    os.map(p, 0, 4 * MIB, false).unwrap();
    os.map(p, 4 * MIB, 4 * MIB, true).unwrap();
    let fell_back = fault(&mut os, p, 0).unwrap();
    assert_eq!((size(&os, p, 0), os.data_bytes(p)), (Some(PageSize::Base), vec![PAGE, 0]));
    assert_eq!(os.counters().huge_fallbacks, 1);
    assert!(fell_back.cost.as_ns() > os.costs().compact_ns as f64);
    // A mapping marked for huge pages takes one of the slower node rather than none.
    touch(&mut os, p, 4 * MIB).unwrap();
    assert_eq!(size(&os, p, 4 * MIB), Some(PageSize::Huge));
    assert_eq!(os.data_bytes(p), [PAGE, 2 * MIB]);
    os.check().unwrap();
}

#[test]
fn a_part_unmapped_splits_the_page_and_the_rest_stays_in_place() {
    let mut os = os(16 * MIB, 16 * MIB, HugePages::Always);
    let p = os.create_process(ProcessSpec::default()).unwrap();
    os.map(p, 0, 2 * MIB, false).unwrap();
    touch(&mut os, p, 0).unwrap();
    os.space_mut(p).set_bits(VirtualAddress(0), true);
    let frame = os.space(p).path(VirtualAddress(0)).leaf.unwrap().frame.0;
    // The leaf table was kept for the split: no allocation, so no failure.
    let tables = os.counters().tables_allocated;
    os.unmap(p, 5 * PAGE, PAGE).unwrap();
    assert_eq!(os.counters().tables_allocated, tables);
    assert_eq!(os.counters().splits, 1);
    let leaf = os.space(p).path(VirtualAddress(6 * PAGE)).leaf.unwrap();
    assert_eq!((leaf.frame.0, leaf.size), (frame + 6 * PAGE, PageSize::Base));
    assert!(leaf.accessed && leaf.dirty);
    assert_eq!(size(&os, p, 5 * PAGE), None);
    assert_eq!(os.table_pages(p)[0][0], 1);
    os.check().unwrap();
}

#[test]
fn moved_by_the_baseline_a_huge_page_is_split_first() {
    for split in [false, true] {
        let mut os = os(16 * MIB, 16 * MIB, HugePages::Always);
        let mut migration = os.migration().clone();
        migration.split_huge_first = split;
        os.set_migration(migration).unwrap();
        let p = os.create_process(ProcessSpec::default()).unwrap();
        os.map(p, 0, 2 * MIB, false).unwrap();
        touch(&mut os, p, 0).unwrap();
        let begun = os.begin_move(&[range(p, 0, 2 * MIB)], Node::SLOW);
        assert_eq!(begun.pages, if split { 512 } else { 1 });
        assert_eq!(begun.bytes, 2 * MIB);
        os.finish_move(begun.id);
        let expected = if split { PageSize::Base } else { PageSize::Huge };
        assert_eq!(size(&os, p, 0), Some(expected));
        os.check().unwrap();
    }
}

#[test]
fn parts_of_a_huge_page_named_one_by_one_move_it_once() {
    let mut os = os(16 * MIB, 16 * MIB, HugePages::Always);
    let p = os.create_process(ProcessSpec::default()).unwrap();
    os.map(p, 0, 2 * MIB, false).unwrap();
    touch(&mut os, p, 0).unwrap();
    let parts: Vec<_> = (0..32).map(|i| range(p, i * 16 * PAGE, 16 * PAGE)).collect();
    let begun = os.begin_move(&parts, Node::SLOW);
    assert_eq!(
        (begun.pages, begun.already_there_bytes / (2 * MIB), begun.refused.len()),
        (1, 31, 0)
    );
    assert_eq!((begun.shootdowns.len(), begun.rest.len()), (1, 0));
    os.finish_move(begun.id);
    assert_eq!(os.data_bytes(p), [0, 2 * MIB]);
}

#[test]
fn base_pages_collapse_where_most_of_them_are() {
    let mut os = os(16 * MIB, 16 * MIB, HugePages::Eligible);
    let q = slow_process(&mut os);
    // Touched where there is no free block: page by page.
    os.map(q, 0, 4 * MIB, true).unwrap();
    os.fragment(Node::SLOW, 100);
    touch_all(&mut os, range(q, 0, 300 * PAGE));
    assert_eq!(size(&os, q, 0), Some(PageSize::Base));
    let begun = os.begin_move(&[range(q, 0, 200 * PAGE)], Node::FAST);
    os.finish_move(begun.id);
    assert!(os.collapse(q, 0, 8).collapsed.is_empty(), "nothing was accessed");
    os.space_mut(q).set_bits(VirtualAddress(7 * PAGE), true);
    let round = os.collapse(q, 0, 1);
    assert_eq!(round.next, 2 * MIB, "one region was asked for, there are two");
    let [c] = &round.collapsed[..] else { panic!("{round:?}") };
    assert_eq!((c.address, c.node, c.copies.len()), (0, Node::FAST, 300));
    assert_eq!(c.zeroed_bytes, 212 * PAGE);
    assert!(c.shootdown.tables);
    let leaf = os.space(q).path(VirtualAddress(0)).leaf.unwrap();
    assert_eq!((leaf.size, leaf.accessed, leaf.dirty), (PageSize::Huge, true, true));
    assert_eq!(os.data_bytes(q), [2 * MIB, 0]);
    os.check().unwrap();
    // Base pages of an unmarked mapping stay base pages.
    os.map(q, 8 * MIB, 2 * MIB, false).unwrap();
    touch_all(&mut os, range(q, 8 * MIB, 2 * MIB));
    os.space_mut(q).set_bits(VirtualAddress(8 * MIB), false);
    assert!(os.collapse(q, 8 * MIB, 8).collapsed.is_empty());
}

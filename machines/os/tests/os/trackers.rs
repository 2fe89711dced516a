//! What trackers and scans observe.

use std::sync::Arc;

use terrace_core::page::PageSize;
use terrace_hardware::address::VirtualAddress;
use terrace_hardware::walker::PageTable;
use terrace_os::config::{DataPolicy, HugePages};
use terrace_os::{Node, ProcessSpec};

use crate::world::{MIB, PAGE, os, range, touch, touch_all};

#[test]
fn a_scan_has_every_page_with_its_bit_and_its_place() {
    let mut os = os(16 * MIB, 32 * MIB, HugePages::Eligible);
    let p = os.create_process(ProcessSpec::default()).unwrap();
    os.map(p, 0, 4 * MIB, true).unwrap();
    os.map(p, 8 * MIB, 100 * PAGE, false).unwrap();
    touch(&mut os, p, 0).unwrap();
    touch(&mut os, p, 2 * MIB).unwrap();
    touch_all(&mut os, range(p, 8 * MIB, 64 * PAGE));
    touch(&mut os, p, 8 * MIB + 80 * PAGE).unwrap();
    os.space_mut(p).set_bits(VirtualAddress(2 * MIB + 5), false);
    os.space_mut(p).set_bits(VirtualAddress(8 * MIB + 80 * PAGE), true);
    let begun = os.begin_move(&[range(p, 8 * MIB, 10 * PAGE)], Node::SLOW);
    os.finish_move(begun.id);

    let huge = os.scan_accessed(p, PageSize::Huge, false);
    assert_eq!((huge.layout.pages(), huge.untracked_bytes), (2, 65 * PAGE));
    assert_eq!(huge.accessed.iter_ones().collect::<Vec<_>>(), [1]);
    assert_eq!(huge.fast.count(), 2);
    let base = os.scan_accessed(p, PageSize::Base, true);
    assert_eq!((base.layout.pages(), base.untracked_bytes), (65, 4 * MIB));
    assert_eq!(base.layout.extents().len(), 2);
    assert_eq!(base.accessed.iter_ones().collect::<Vec<_>>(), [64]);
    assert_eq!(base.fast.iter_ones().next(), Some(10));
    assert_eq!(base.fast.count(), 55);
    let frames = os.frame_numbers(p, PageSize::Base);
    assert_eq!(frames.len(), 65);
    let slow = |f: &u64| f * PAGE >= crate::world::SLOW_START;
    assert!(frames.iter().enumerate().all(|(i, f)| slow(f) != base.fast.get(i)));
    // Cleared in the one size, not in the other; the layouts are those of before.
    let again = os.scan_accessed(p, PageSize::Base, true);
    assert_eq!(again.accessed.count(), 0);
    assert!(Arc::ptr_eq(&again.layout, &base.layout));
    assert_eq!(os.scan_accessed(p, PageSize::Huge, true).accessed.count(), 1);
    // One more page makes another layout; for the other size, the layout stays the same.
    touch(&mut os, p, 8 * MIB + 70 * PAGE).unwrap();
    assert!(!Arc::ptr_eq(&os.scan_accessed(p, PageSize::Base, true).layout, &base.layout));
    assert!(Arc::ptr_eq(&os.scan_accessed(p, PageSize::Huge, true).layout, &huge.layout));
    // Bytes of scans are counted and cost.
    assert!(os.counters().scanned_entries > 300);
    assert!(again.cost.0 > 0);
}

#[test]
fn physical_order_is_not_virtual_order_and_leads_back_to_pages() {
    let mut os = os(16 * MIB, 32 * MIB, HugePages::Never);
    let spec = ProcessSpec { data: DataPolicy::Bind(Node::SLOW), ..Default::default() };
    let [p, q] = [0, 1].map(|_| os.create_process(spec).unwrap());
    for space in [p, q] {
        os.map(space, 0, MIB, false).unwrap();
    }
    // In turns, and backwards: neighbours in memory are not neighbours in the program.
    for page in (0..32).rev() {
        touch(&mut os, p, page * PAGE).unwrap();
        touch(&mut os, q, page * PAGE).unwrap();
    }
    let order: Vec<_> = os.physical_order(Node::SLOW, None).collect();
    assert_eq!(order.len(), 64);
    assert!(order.is_sorted_by_key(|o| o.0));
    assert_eq!((order[0].1, order[0].2), (p, 31 * PAGE));
    assert_eq!((order[1].1, order[1].2), (q, 31 * PAGE));
    // A scan goes on after the frame where the last one stopped (granularity paper, section 4),
    // and from its page over virtual addresses.
    let resumed: Vec<_> = os.physical_order(Node::SLOW, Some(order[10].0)).collect();
    assert_eq!(resumed, order[10..]);
    let (_, space, address, _) = resumed[0];
    os.space_mut(space).set_bits(VirtualAddress(address + PAGE), false);
    let mut seen = Vec::new();
    os.scan_range(&range(space, address, 8 * PAGE), true, |a, _, node, bit| {
        seen.push((a, node, bit));
    });
    assert_eq!(seen.len(), 6, "pages 26 to 31");
    assert_eq!(seen[1], (address + PAGE, Node::SLOW, true));
    assert!(seen.iter().filter(|s| s.2).count() == 1);
    let mut bits = 0;
    os.scan_range(&range(space, 0, MIB), false, |_, _, _, bit| bits += u64::from(bit));
    assert_eq!(bits, 0, "cleared");
    assert_eq!(os.physical_order(Node::FAST, None).count(), 0, "page tables are no data");
}

//! A process touches memory, it moves, and everything adds up.

use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_core::plan::FailureReason;
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::{Fault, PageTable};
use terrace_os::config::{DataPolicy, HugePages, Watermarks};
use terrace_os::fault::FaultKind;
use terrace_os::{Node, NodeMemory, Os, OsConfig, OsError, ProcessSpec, Tier};

const MIB: u64 = 1 << 20;
const SLOW_START: u64 = 1 << 40;

/// Two nodes without watermarks.
fn os(fast: u64, slow: u64, huge_pages: HugePages) -> Os {
    let config = OsConfig {
        huge_pages,
        watermarks: vec![Watermarks::NONE, Watermarks::NONE],
        ..OsConfig::default()
    };
    let node = |tier, start, capacity_bytes| NodeMemory {
        tier,
        start: PhysicalAddress(start),
        capacity_bytes,
    };
    Os::new(&config, &[node(Tier::FAST, 0, fast), node(Tier::SLOW, SLOW_START, slow)]).unwrap()
}

fn touch(os: &mut Os, space: SpaceId, address: u64) -> Result<FaultKind, OsError> {
    let fault =
        Fault { address: VirtualAddress(address), write: true, done: Picoseconds(0), level: 0 };
    os.fault(space, &fault).map(|f| f.kind)
}

fn is_fast(os: &Os, space: SpaceId, address: u64) -> Option<bool> {
    let leaf = os.space(space).path(VirtualAddress(address)).leaf?;
    Some(leaf.frame.0 < SLOW_START)
}

fn range(space: SpaceId, start: u64, size_bytes: u64) -> VirtualRange {
    VirtualRange { space, start, size_bytes }
}

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
    let p = os
        .create_process(ProcessSpec { data: DataPolicy::Bind(Node::SLOW), ..Default::default() })
        .unwrap();
    os.map(p, 0, MIB, false).unwrap();
    for page in 0..16 {
        touch(&mut os, p, page * 4096).unwrap();
    }
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

//! Common parts of the tests: small machines and a program that touches memory.

use terrace_core::page::{SpaceId, VirtualRange};
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::{Fault, PageTable};
use terrace_os::config::{DataPolicy, HugePages, Watermarks};
use terrace_os::fault::{FaultKind, FaultOutcome};
use terrace_os::{Node, NodeMemory, Os, OsConfig, OsError, ProcessSpec, Tier};

pub const MIB: u64 = 1 << 20;
pub const PAGE: u64 = 4096;
pub const SLOW_START: u64 = 1 << 40;

/// A machine of two nodes.
pub fn os_with(config: &OsConfig, fast: u64, slow: u64) -> Os {
    let node = |tier, start, capacity_bytes| NodeMemory {
        tier,
        start: PhysicalAddress(start),
        capacity_bytes,
    };
    Os::new(config, &[node(Tier::FAST, 0, fast), node(Tier::SLOW, SLOW_START, slow)]).unwrap()
}

/// Configuration without watermarks.
pub fn plain(huge_pages: HugePages) -> OsConfig {
    OsConfig {
        huge_pages,
        watermarks: vec![Watermarks::NONE, Watermarks::NONE],
        ..OsConfig::default()
    }
}

/// A machine of two nodes without watermarks.
pub fn os(fast: u64, slow: u64, huge_pages: HugePages) -> Os {
    os_with(&plain(huge_pages), fast, slow)
}

/// A process whose memory is allocated in the slow node.
pub fn slow_process(os: &mut Os) -> SpaceId {
    let data = DataPolicy::Bind(Node::SLOW);
    os.create_process(ProcessSpec { data, ..Default::default() }).unwrap()
}

pub fn fault(os: &mut Os, space: SpaceId, address: u64) -> Result<FaultOutcome, OsError> {
    let fault =
        Fault { address: VirtualAddress(address), write: true, done: Picoseconds(0), level: 0 };
    os.fault(space, &fault)
}

pub fn touch(os: &mut Os, space: SpaceId, address: u64) -> Result<FaultKind, OsError> {
    fault(os, space, address).map(|f| f.kind)
}

/// Touches every base page of a range.
pub fn touch_all(os: &mut Os, range: VirtualRange) {
    for address in (range.start..range.end()).step_by(PAGE as usize) {
        touch(os, range.space, address).unwrap();
    }
}

pub fn is_fast(os: &Os, space: SpaceId, address: u64) -> Option<bool> {
    let leaf = os.space(space).path(VirtualAddress(address)).leaf?;
    Some(leaf.frame.0 < SLOW_START)
}

pub fn range(space: SpaceId, start: u64, size_bytes: u64) -> VirtualRange {
    VirtualRange { space, start, size_bytes }
}

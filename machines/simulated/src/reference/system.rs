//! The operating system of a machine: made from its configuration, a process for a group, and a page
//! fault served.

use terrace_core::interfaces::MachineError;
use terrace_core::page::{Layout, PageSize, SpaceId};
use terrace_core::policy::Allocation;
use terrace_hardware::tier::memory::TieredMemory;
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::Fault;
use terrace_os::config::{DataPolicy, NodeMemory, Tier};
use terrace_os::fault::FaultOutcome;
use terrace_os::{Os, OsError, ProcessSpec};

use super::config::{ReferenceConfig, ReferenceGroup};

/// The operating system over this memory; an error in one line if it cannot work.
pub(super) fn new(config: &ReferenceConfig, memory: &TieredMemory) -> Result<Os, MachineError> {
    let (levels, walked) = (config.os.levels, config.hardware.node.walker.levels);
    if levels != walked {
        return Err(MachineError(format!(
            "os.levels is {levels} and the walker's levels is {walked}, expected the same: page \
             tables have one number of levels"
        )));
    }
    let tiers = config.hardware.tiers.iter().enumerate();
    let nodes: Vec<NodeMemory> = tiers
        .map(|(n, tier)| NodeMemory {
            tier: Tier(n as u8),
            start: memory.start(n),
            capacity_bytes: tier.capacity.0,
        })
        .collect();
    Os::new(&config.os, &nodes).map_err(|e| MachineError(e.to_string()))
}

/// A process for a group, and its limit of fast memory in bytes, where the program's footprint is known.
pub(super) fn create_process(
    os: &mut Os,
    group: &ReferenceGroup,
    footprint_bytes: Option<u64>,
) -> Result<(SpaceId, Option<u64>), MachineError> {
    let fast_limit_bytes = footprint_bytes.map(|bytes| {
        let pages = bytes.div_ceil(group.page_size.bytes());
        let layout = Layout::contiguous(group.page_size, pages);
        (group.fast_budget)(&layout) * group.page_size.bytes()
    });
    let data = match group.allocation {
        Allocation::FastFirst => DataPolicy::FastFirst,
        Allocation::Interleave => DataPolicy::Interleave,
    };
    let space = os
        .create_process(ProcessSpec { data, fast_limit_bytes, tables: group.tables })
        .map_err(|e| MachineError(format!("group '{}': {e}", group.name)))?;
    Ok((space, fast_limit_bytes))
}

/// Serves a page fault, and whether the address was in no mapping. Such memory is mapped: the source
/// does not report all of it, as the stack above its first page, or a mapping that was made before the
/// recording began.
pub(super) fn serve(
    os: &mut Os,
    space: SpaceId,
    fault: &Fault,
) -> (Result<FaultOutcome, OsError>, bool) {
    match os.fault(space, fault) {
        Err(OsError::Segfault { .. }) => {
            let page = fault.address.0 & !(PageSize::Base.bytes() - 1);
            let mapped = os.map(space, page, PageSize::Base.bytes(), false);
            (mapped.and_then(|()| os.fault(space, fault)), true)
        }
        outcome => (outcome, false),
    }
}

/// Time of a fault after its walk.
pub(super) fn time_of(os: &Os, outcome: &FaultOutcome) -> Picoseconds {
    // Clearing goes through the caches: lines are written back to memory later, or never.
    let bytes: u64 = outcome.zeroed.iter().map(|z| z.bytes).sum();
    let rate = os.costs().zero_gb_per_s.max(1e-3);
    outcome.cost + Picoseconds((bytes as f64 * 1000.0 / rate) as u64)
}

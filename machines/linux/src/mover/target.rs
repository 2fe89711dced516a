//! Checks whether a process may be touched, and which nodes have room: before each call, because
//! processes end, their identifiers and cpusets change, and other programs allocate.

use terrace_core::plan::Direction;

use super::{MigrationContext, PageMover, SharedTrackerState, TierNodes};
use crate::kernel::PageKernel;
use crate::process::Process;

/// Calls after which the room of nodes is read again: other programs allocate too.
const ROOM_CALLS: u32 = 16;

/// A process that may be touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetCheck {
    pub(crate) process: Process,
    /// The nodes of this direction's tier that its pages may go to.
    pub(crate) nodes: Vec<u32>,
}

/// Checks that a process may be touched: it lives and is the one in the tracker's scan. Another
/// may have got its identifier since the scan, or since the call before.
pub(crate) fn check(
    kernel: &mut dyn PageKernel,
    tracker_state: &SharedTrackerState,
    nodes: &TierNodes,
    pid: u32,
    direction: Direction,
) -> Option<TargetCheck> {
    let process = kernel.alive(pid)?;
    let state = tracker_state.read().ok()?;
    if !state.members.contains(&process) {
        return None;
    }
    drop(state);
    let mut nodes = nodes.targets(direction).to_vec();
    if let Some(allowed) = kernel.allowed_nodes(pid) {
        nodes.retain(|n| allowed.contains(n));
    }
    Some(TargetCheck { process, nodes })
}

impl PageMover {
    /// See [`check`].
    pub(super) fn check_target(&mut self, pid: u32, direction: Direction) -> Option<TargetCheck> {
        check(self.kernel.as_mut(), &self.tracker_state, &self.nodes, pid, direction)
    }

    /// Whether fast memory has room for so many pages, by the rules of the kernel's allocation.
    pub(super) fn has_room(&mut self, pages: usize) -> bool {
        let wanted = pages as u64 * self.page_size.bytes();
        let mut room = 0u64;
        for node in self.nodes.fast.clone() {
            room = room.saturating_add(self.kernel.room_bytes(node));
        }
        room >= wanted
    }

    /// The first node with room for so many bytes, or the one with the most room. What pages have just
    /// left on a node is room.
    pub(super) fn choose_node(
        &mut self,
        nodes: &[u32],
        wanted: u64,
        context: &mut MigrationContext,
    ) -> Option<(u32, u64)> {
        if context.calls.is_multiple_of(ROOM_CALLS) {
            context.room.clear();
        }
        context.calls += 1;
        let mut best: Option<(u32, u64)> = None;
        for &node in nodes {
            let room = match context.room.get(&node) {
                Some(room) if *room >= wanted => *room,
                _ => {
                    let room = self.kernel.room_bytes(node);
                    context.room.insert(node, room);
                    room
                }
            };
            let freed =
                context.freed.filter(|(left, _)| *left == node).map_or(0, |(_, bytes)| bytes);
            let room = room.max(freed);
            if best.is_none_or(|(_, most)| room > most) {
                best = Some((node, room));
            }
            if room >= wanted {
                break;
            }
        }
        best
    }
}

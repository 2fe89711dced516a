//! Memory nodes: which there are, which have processors, how far apart they stand and how much
//! of each is free.

use crate::files::{self, FileError};
use crate::roots::Roots;

/// Nodes that have memory, ascending.
pub fn nodes_with_memory(roots: &Roots) -> Result<Vec<u32>, FileError> {
    let path = roots.sys.join("devices/system/node/has_memory");
    files::read_list(&path)?.ok_or(FileError::Missing {
        path,
        remedy: "expected a Linux kernel with CONFIG_NUMA; boot one",
    })
}

/// Nodes that have processors, ascending; `None` on a kernel that does not say.
pub fn nodes_with_cpus(roots: &Roots) -> Result<Option<Vec<u32>>, FileError> {
    files::read_list(&roots.sys.join("devices/system/node/has_cpu"))
}

/// Distances from one node to the nodes 0, 1, ...
pub fn distances(roots: &Roots, node: u32) -> Result<Option<Vec<u32>>, FileError> {
    let path = roots.node(node).join("distance");
    files::read(&path)?
        .map(|text| {
            text.split_whitespace()
                .map(|d| d.parse().ok())
                .collect::<Option<Vec<u32>>>()
                .ok_or_else(|| FileError::malformed(&path, &text, "distances such as '10 20'"))
        })
        .transpose()
}

/// Memory of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeMemory {
    /// All of it.
    pub total_bytes: u64,
    /// What nobody uses.
    pub free_bytes: u64,
}

/// Memory of a node; `None` when there is no such node.
pub fn memory(roots: &Roots, node: u32) -> Result<Option<NodeMemory>, FileError> {
    let path = roots.node(node).join("meminfo");
    let Some(text) = files::read(&path)? else { return Ok(None) };
    let field = |name: &str| -> Option<u64> {
        // "Node 0 MemTotal:       1006524 kB"
        let line = text.lines().find(|l| l.split_whitespace().nth(2) == Some(name))?;
        let kib: u64 = line.split_whitespace().nth(3)?.parse().ok()?;
        kib.checked_mul(1024)
    };
    let bad = |expected| FileError::malformed(&path, &text, expected);
    Ok(Some(NodeMemory {
        total_bytes: field("MemTotal:").ok_or_else(|| bad("a line 'Node N MemTotal: X kB'"))?,
        free_bytes: field("MemFree:").ok_or_else(|| bad("a line 'Node N MemFree: X kB'"))?,
    }))
}

/// Bytes of a node that the kernel wants to keep free: the sum of its zones' high watermarks.
/// Filling a node beyond this wakes reclaim, which pages out or demotes behind our back.
pub fn reserve_bytes(roots: &Roots, node: u32) -> Result<u64, FileError> {
    let path = roots.proc.join("zoneinfo");
    Ok(files::read(&path)?.map_or(0, |text| parse_reserve(&text, node)))
}

fn parse_reserve(text: &str, node: u32) -> u64 {
    let mut ours = false;
    let mut pages = 0u64;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            // "Node 0, zone   Normal"
            (Some("Node"), Some(id)) => ours = id.trim_end_matches(',').parse() == Ok(node),
            (Some("high"), Some(n)) if ours => {
                // Zones also have "high:" lines for their per-processor lists; those have a colon.
                pages = pages.saturating_add(n.parse().unwrap_or(0));
            }
            _ => {}
        }
    }
    pages.saturating_mul(4096)
}

/// Free bytes of a node above its reserve.
pub fn room_bytes(roots: &Roots, node: u32) -> Result<u64, FileError> {
    let free = memory(roots, node)?.unwrap_or_default().free_bytes;
    Ok(free.saturating_sub(reserve_bytes(roots, node)?))
}

/// Processors that are online; processor 0 where the kernel does not say.
pub fn online_cpus(roots: &Roots) -> Result<Vec<u32>, FileError> {
    Ok(files::read_list(&roots.sys.join("devices/system/cpu/online"))?.unwrap_or_else(|| vec![0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use proptest::prelude::*;

    #[test]
    fn free_memory_and_the_reserve_are_read_per_node() {
        let (_keep, roots) = folder(&[
            (
                "sys/devices/system/node/node1/meminfo",
                "Node 1 MemTotal:       1048576 kB\nNode 1 MemFree:          524288 kB\n",
            ),
            (
                "proc/zoneinfo",
                "Node 0, zone   Normal\n  pages free 5\n        high     999\n\
                 Node 1, zone   DMA32\n        high     100\n    cpu: 0\n      high:  62\n\
                 Node 1, zone   Movable\n        high     28\n",
            ),
        ]);
        let memory = memory(&roots, 1).unwrap().unwrap();
        assert_eq!(memory, NodeMemory { total_bytes: 1 << 30, free_bytes: 512 << 20 });
        assert_eq!(reserve_bytes(&roots, 1).unwrap(), 128 * 4096);
        assert_eq!(room_bytes(&roots, 1).unwrap(), (512 << 20) - 128 * 4096);
        assert_eq!(super::memory(&roots, 7).unwrap(), None);
    }

    #[test]
    fn node_memory_without_its_lines_is_malformed() {
        let (_keep, roots) = folder(&[("sys/devices/system/node/node0/meminfo", "Node 0 x\n")]);
        let message = memory(&roots, 0).unwrap_err().to_string();
        assert!(message.contains("node0/meminfo"), "{message}");
    }

    proptest! {
        #[test]
        fn any_zoneinfo_gives_some_reserve(text in "(Node|high|[0-9]{1,20}|,| |\n){0,40}") {
            parse_reserve(&text, 0);
        }
    }
}

//! Sizes of the structures in the switch (section III-F), computed from the configuration.

use crate::address::RemotePage;
use crate::config::{BLOCK_BYTES, BLOCKS, MechanismConfig, PAGE_BYTES};

/// Bits of a page address.
pub const PAGE_BITS: u64 = size_of::<RemotePage>() as u64 * 8;
/// Bits of a block's number in its page.
pub const BLOCK_BITS: u64 = BLOCKS.trailing_zeros() as u64;
/// Bits of the number of a node.
pub const NODE_BITS: u64 = 4;
/// Bits of the rest of a tracker entry: count, first access time, access bit.
const TRACKED_BITS: u64 = 16 + 32 + 1;
/// A tracker entry: the paper says 71 bits, its fields sum to 81.
const PAPER_TRACKER_BITS: u64 = 71;

/// One structure.
#[derive(Debug, Clone, PartialEq)]
pub struct Structure {
    /// The structure's name.
    pub name: &'static str,
    /// Entries for each node.
    pub entries: u64,
    /// Bits of an entry.
    pub bits: u64,
    /// Bytes for all nodes.
    pub bytes: u64,
    /// Bytes that the paper states, for its own sizes.
    pub paper_bytes: f64,
    /// How to read the two figures.
    pub note: &'static str,
}

/// Every structure, for as many nodes as the hardware is built for.
pub fn structures(config: &MechanismConfig) -> Vec<Structure> {
    let nodes = u64::from(config.supported_nodes);
    let structure = |name, entries: u32, bits: u64, paper_bytes, note| {
        let entries = u64::from(entries);
        let bytes = (nodes * entries * bits).div_ceil(8);
        Structure { name, entries, bits, bytes, paper_bytes, note }
    };
    let kib = 1024.0;
    let block = PAGE_BITS + BLOCK_BITS + NODE_BITS;
    vec![
        structure(
            "hot-page tracker",
            config.tracker_entries,
            PAPER_TRACKER_BITS,
            14.0 * kib,
            "71 bits an entry as section III-F says; the fields of section III-A sum to 81",
        ),
        structure(
            "page request queue",
            config.page_requests,
            PAGE_BITS,
            0.0,
            "counted with the access generators in the paper",
        ),
        structure(
            "access generators",
            BLOCKS,
            PAGE_BITS + BLOCK_BITS,
            5.0 * kib,
            "5 KB with the page request queue",
        ),
        structure("regular block queue", config.block_queue, block, 0.0, "counted below"),
        structure("pending reads", config.pending_reads, block, 0.0, "counted below"),
        structure(
            "pending writes",
            config.pending_writes,
            block + 8 * BLOCK_BYTES,
            26.5 * kib,
            "26.5 KB with the two queues above",
        ),
        structure(
            "page buffers",
            config.page_buffers,
            PAGE_BITS + 8 * PAGE_BYTES,
            6.25 * kib * kib,
            "6.25 MB without the addresses",
        ),
    ]
}

/// Bits of a tracker entry by its fields.
pub fn tracker_fields_bits() -> u64 {
    PAGE_BITS + TRACKED_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(names: &[&str]) -> f64 {
        let all = structures(&MechanismConfig::default());
        let found: Vec<_> = all.iter().filter(|s| names.contains(&s.name)).collect();
        assert_eq!(found.len(), names.len());
        found.iter().map(|s| s.bytes as f64).sum::<f64>() / 1024.0
    }

    /// Each figure of section III-F, to its last digit.
    #[test]
    fn the_defaults_take_what_the_paper_says() {
        assert_eq!(bytes(&["hot-page tracker"]).round(), 14.0);
        assert_eq!(bytes(&["page request queue", "access generators"]).round(), 5.0);
        let queues = bytes(&["regular block queue", "pending reads", "pending writes"]);
        assert_eq!((queues * 2.0).round() / 2.0, 26.5);
        assert_eq!((bytes(&["page buffers"]) / 1024.0 * 100.0).round(), 626.0);
        assert_eq!(tracker_fields_bits(), 81);
    }

    #[test]
    fn sizes_follow_the_configuration() {
        let config = MechanismConfig { page_buffers: 50, supported_nodes: 8, ..Default::default() };
        let buffers = structures(&config).pop().unwrap();
        assert_eq!(buffers.bytes, 8 * 50 * (4096 + 4));
    }
}

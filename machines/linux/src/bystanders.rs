//! Programs that belong to a run and to no group, such as clients that ask a server: on a host in use
//! they would be on another one. So their memory is in fast memory for what is measured, whatever moves
//! the pages of the groups. Else a mechanism that takes all programs alike would be ahead by them.

use crate::raw;
use crate::tiers::Topology;

/// Brings all memory of the process to the fast nodes, as far as there is room; what stays is logged.
pub fn bring_to_fast(topology: &Topology, pid: u32) {
    let [Some(fast), Some(slow)] = [topology.fast_nodes(), topology.slow_nodes()].map(mask) else {
        return;
    };
    match raw::migrate_pages(pid, slow, fast) {
        Ok(0) => {}
        Ok(pages) => tracing::warn!(pid, pages, "memory of a client stays in slow memory"),
        // It may have ended.
        Err(error) => tracing::warn!(pid, %error, "memory of a client stays where it is"),
    }
}

/// A bit for each node; `None` where there are none, or more than a word has bits for.
fn mask(nodes: Vec<u32>) -> Option<u64> {
    let bit = |node: u32| 1_u64.checked_shl(node);
    let mask = nodes.into_iter().try_fold(0, |mask, node| Some(mask | bit(node)?))?;
    (mask != 0).then_some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_bit() {
        assert_eq!(mask(vec![0, 3]), Some(0b1001));
        assert_eq!(mask(vec![63]), Some(1 << 63));
        assert_eq!(mask(vec![]), None);
        assert_eq!(mask(vec![1, 64]), None);
    }
}

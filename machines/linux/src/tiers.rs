//! Memory tiers: which nodes are fast, which are slow, and the firmware's values for them.
//!
//! Three sources; the first that distinguishes nodes wins:
//! 1. the kernel's own tiers (`/sys/devices/virtual/memory_tiering`), built from the firmware's
//!    HMAT or by a driver;
//! 2. the read latency of each node as seen from its nearest processors (`access0`);
//! 3. processors and node distance: distant memory without processors is slow.

use std::fmt;

use crate::files::{self, FileError};
use crate::numa;
use crate::roots::Roots;

/// The firmware's values for a node, as seen from the processors nearest to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodePerformance {
    /// Read latency.
    pub read_latency_ns: Option<u64>,
    /// Write latency.
    pub write_latency_ns: Option<u64>,
    /// Read bandwidth.
    pub read_bandwidth_mb_s: Option<u64>,
    /// Write bandwidth.
    pub write_bandwidth_mb_s: Option<u64>,
}

/// A memory node of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// The firmware's values.
    pub performance: NodePerformance,
}

/// Nodes of about the same speed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier {
    /// Its nodes, ascending.
    pub nodes: Vec<Node>,
}

/// Source of the order of tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierSource {
    /// By the kernel's memory tiers.
    MemoryTiers,
    /// By the read latency that the firmware states.
    Latency,
    /// By processors and node distance.
    Distance,
    /// By the caller.
    Given,
}

impl fmt::Display for TierSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TierSource::MemoryTiers => "memory tiers",
            TierSource::Latency => "HMAT latency",
            TierSource::Distance => "node distance",
            TierSource::Given => "given",
        })
    }
}

/// The tiers of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Fastest first; at least one.
    pub tiers: Vec<Tier>,
    /// Source of their order.
    pub source: TierSource,
}

impl Topology {
    /// Nodes of the fastest tier.
    pub fn fast_nodes(&self) -> Vec<u32> {
        self.tiers.first().map_or_else(Vec::new, Tier::node_ids)
    }

    /// Nodes of all other tiers, the faster of them first.
    pub fn slow_nodes(&self) -> Vec<u32> {
        self.tiers.iter().skip(1).flat_map(Tier::node_ids).collect()
    }

    /// Whether there are tiers to choose between.
    pub fn is_tiered(&self) -> bool {
        self.tiers.len() > 1
    }
}

impl Tier {
    /// The numbers of its nodes.
    pub fn node_ids(&self) -> Vec<u32> {
        self.nodes.iter().map(|n| n.id).collect()
    }
}

/// Finds the tiers of this machine.
pub fn discover(roots: &Roots) -> Result<Topology, FileError> {
    let nodes = numa::nodes_with_memory(roots)?
        .into_iter()
        .map(|id| Ok(Node { id, performance: performance(roots, id)? }))
        .collect::<Result<Vec<_>, FileError>>()?;
    let candidates = [
        (memory_tiers(roots, &nodes)?, TierSource::MemoryTiers),
        (by_latency(&nodes), TierSource::Latency),
        (by_distance(roots, &nodes)?, TierSource::Distance),
    ];
    for (tiers, source) in candidates {
        if tiers.len() > 1 {
            return Ok(Topology { tiers, source });
        }
    }
    Ok(Topology { tiers: vec![Tier { nodes }], source: TierSource::MemoryTiers })
}

/// Two tiers of these nodes, for a machine whose firmware reports none or wrong ones. Nodes without
/// memory are an error.
pub fn given(roots: &Roots, fast: &[u32], slow: &[u32]) -> Result<Topology, String> {
    let present = numa::nodes_with_memory(roots).map_err(|e| e.to_string())?;
    if let Some(absent) = fast.iter().chain(slow).find(|n| !present.contains(n)) {
        return Err(format!(
            "node {absent} has no memory; expected nodes among {present:?}: name others"
        ));
    }
    if let Some(both) = fast.iter().find(|n| slow.contains(n)) {
        return Err(format!("node {both} is named fast and slow; expected one of the two"));
    }
    if fast.is_empty() || slow.is_empty() {
        return Err("got no fast or no slow nodes; expected at least one of each".to_owned());
    }
    Ok(Topology { tiers: vec![tier(roots, fast)?, tier(roots, slow)?], source: TierSource::Given })
}

/// Those of the given nodes that have memory now. Where one side has none left there is one tier:
/// nodes that were not given are not used, whatever becomes of the others.
pub fn left_of_given(roots: &Roots, fast: &[u32], slow: &[u32]) -> Result<Topology, String> {
    let present = numa::nodes_with_memory(roots).map_err(|e| e.to_string())?;
    let mut tiers = Vec::new();
    for side in [fast, slow] {
        let left: Vec<u32> = side.iter().copied().filter(|n| present.contains(n)).collect();
        if !left.is_empty() {
            tiers.push(tier(roots, &left)?);
        }
    }
    Ok(Topology { tiers, source: TierSource::Given })
}

fn tier(roots: &Roots, ids: &[u32]) -> Result<Tier, String> {
    let node = |&id| Ok(Node { id, performance: performance(roots, id)? });
    let nodes: Result<Vec<Node>, FileError> = ids.iter().map(node).collect();
    Ok(Tier { nodes: nodes.map_err(|e| e.to_string())? })
}

/// The firmware's values for a node. Missing values are `None`.
pub fn performance(roots: &Roots, node: u32) -> Result<NodePerformance, FileError> {
    let folder = roots.node(node).join("access0/initiators");
    let field = |name: &str| files::read_number::<u64>(&folder.join(name));
    Ok(NodePerformance {
        read_latency_ns: field("read_latency")?,
        write_latency_ns: field("write_latency")?,
        read_bandwidth_mb_s: field("read_bandwidth")?,
        write_bandwidth_mb_s: field("write_bandwidth")?,
    })
}

/// The kernel's tiers, fastest (lowest abstract distance) first; only nodes that have memory.
fn memory_tiers(roots: &Roots, nodes: &[Node]) -> Result<Vec<Tier>, FileError> {
    let folder = roots.sys.join("devices/virtual/memory_tiering");
    let mut numbered = Vec::new();
    for name in files::list(&folder)? {
        let Some(number) = name.strip_prefix("memory_tier").and_then(|n| n.parse::<u64>().ok())
        else {
            continue;
        };
        let listed = files::read_list(&folder.join(&name).join("nodelist"))?.unwrap_or_default();
        let members: Vec<Node> = nodes.iter().copied().filter(|n| listed.contains(&n.id)).collect();
        if !members.is_empty() {
            numbered.push((number, Tier { nodes: members }));
        }
    }
    numbered.sort_by_key(|(number, _)| *number);
    Ok(numbered.into_iter().map(|(_, tier)| tier).collect())
}

/// Tiers by stated read latency: a node with more than one and a half times the latency of the
/// fastest of a tier begins the next. One tier if a node states none.
fn by_latency(nodes: &[Node]) -> Vec<Tier> {
    let mut timed: Vec<(u64, Node)> = Vec::new();
    for node in nodes {
        match node.performance.read_latency_ns {
            Some(ns) => timed.push((ns, *node)),
            None => return Vec::new(),
        }
    }
    timed.sort_by_key(|(ns, node)| (*ns, node.id));
    let mut tiers: Vec<(u64, Tier)> = Vec::new();
    for (ns, node) in timed {
        match tiers.last_mut() {
            Some((fastest, tier)) if ns <= fastest.saturating_add(*fastest / 2) => {
                tier.nodes.push(node);
            }
            _ => tiers.push((ns, Tier { nodes: vec![node] })),
        }
    }
    tiers.into_iter().map(|(_, tier)| tier).collect()
}

/// Nodes with processors are fast; memory without processors is slow, the nearer tier first.
fn by_distance(roots: &Roots, nodes: &[Node]) -> Result<Vec<Tier>, FileError> {
    let Some(with_cpus) = numa::nodes_with_cpus(roots)? else { return Ok(Vec::new()) };
    let (fast, apart): (Vec<Node>, Vec<Node>) =
        nodes.iter().partition(|n| with_cpus.contains(&n.id));
    if fast.is_empty() || apart.is_empty() {
        return Ok(Vec::new());
    }
    let mut slow: Vec<(u32, Node)> = Vec::new();
    for node in apart {
        let distances = numa::distances(roots, node.id)?.unwrap_or_default();
        // The kernel lists a distance per online node; node numbers and positions agree as long as
        // no number is left out, and only the nearest is needed.
        let nearest = fast.iter().filter_map(|f| distances.get(f.id as usize)).min();
        slow.push((nearest.copied().unwrap_or(u32::MAX), node));
    }
    slow.sort_by_key(|(distance, node)| (*distance, node.id));
    let mut tiers = vec![Tier { nodes: fast }];
    let mut last = None;
    for (distance, node) in slow {
        if last != Some(distance) {
            tiers.push(Tier { nodes: Vec::new() });
            last = Some(distance);
        }
        if let Some(tier) = tiers.last_mut() {
            tier.nodes.push(node);
        }
    }
    Ok(tiers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;

    const NODE: &str = "sys/devices/system/node";
    const TIERS: &str = "sys/devices/virtual/memory_tiering";

    fn machine(extra: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
        let has_memory = format!("{NODE}/has_memory");
        let has_cpu = format!("{NODE}/has_cpu");
        let mut files = vec![(has_memory.as_str(), "0-1\n"), (has_cpu.as_str(), "0\n")];
        files.extend_from_slice(extra);
        folder(&files)
    }

    #[test]
    fn the_kernels_tiers_are_taken_with_the_lower_number_as_the_faster() {
        let (_keep, roots) = machine(&[
            (&format!("{TIERS}/memory_tier84/nodelist"), "1\n"),
            (&format!("{TIERS}/memory_tier4/nodelist"), "0\n"),
            (&format!("{TIERS}/power/control"), "auto\n"),
            (&format!("{NODE}/node1/access0/initiators/read_latency"), "300\n"),
        ]);
        let found = discover(&roots).unwrap();
        assert_eq!(found.source, TierSource::MemoryTiers);
        assert_eq!((found.fast_nodes(), found.slow_nodes()), (vec![0], vec![1]));
        assert_eq!(found.tiers[1].nodes[0].performance.read_latency_ns, Some(300));
        assert_eq!(found.tiers[0].nodes[0].performance.read_latency_ns, None);
    }

    #[test]
    fn one_kernel_tier_falls_back_to_latency_and_then_to_distance() {
        let one_tier = format!("{TIERS}/memory_tier4/nodelist");
        let latency = |n| format!("{NODE}/node{n}/access0/initiators/read_latency");
        let (_keep, roots) =
            machine(&[(&one_tier, "0-1\n"), (&latency(0), "80\n"), (&latency(1), "300\n")]);
        let found = discover(&roots).unwrap();
        assert_eq!(found.source, TierSource::Latency);
        assert_eq!((found.fast_nodes(), found.slow_nodes()), (vec![0], vec![1]));

        let (_keep, roots) =
            machine(&[(&one_tier, "0-1\n"), (&format!("{NODE}/node1/distance"), "20 10\n")]);
        let found = discover(&roots).unwrap();
        assert_eq!(found.source, TierSource::Distance);
        assert_eq!((found.fast_nodes(), found.slow_nodes()), (vec![0], vec![1]));
    }

    #[test]
    fn an_even_machine_has_one_tier() {
        let (_keep, roots) = folder(&[
            (&format!("{NODE}/has_memory"), "0-1\n"),
            (&format!("{NODE}/has_cpu"), "0-1\n"),
        ]);
        let found = discover(&roots).unwrap();
        assert!(!found.is_tiered());
        assert_eq!(found.fast_nodes(), [0, 1]);
    }

    #[test]
    fn a_malformed_latency_is_an_error_with_its_path() {
        let (_keep, roots) =
            machine(&[(&format!("{NODE}/node0/access0/initiators/read_latency"), "soon\n")]);
        let message = discover(&roots).unwrap_err().to_string();
        assert!(message.contains("node0/access0/initiators/read_latency"), "{message}");
    }

    #[test]
    fn nodes_that_do_not_exist_cannot_be_given() {
        let (_keep, roots) = machine(&[]);
        assert_eq!(given(&roots, &[1], &[0]).unwrap().fast_nodes(), [1]);
        assert!(given(&roots, &[0], &[3]).unwrap_err().contains("node 3 has no memory"));
        assert!(given(&roots, &[0], &[0]).is_err());
        assert!(given(&roots, &[], &[1]).is_err());
    }
}

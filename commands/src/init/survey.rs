//! What `terrace init` looks at: the host's memory and what works on it. It reads files, changes
//! nothing and needs no rights; what cannot be read counts as not there.

use std::path::Path;

use terrace_lab::find_program;
use terrace_linux::cgroup::Cgroup;
use terrace_linux::cgroup_tree::{self, Bounds};
use terrace_linux::roots::Roots;
use terrace_linux::{damon, numa, tiers};

/// Control groups that are looked at.
const BOUNDS: Bounds = Bounds { depth: 4, groups: 1024 };
/// A smaller group is not worth a line of its own.
const LEAST_BYTES: u64 = 64 << 20;
/// Groups that are remembered.
const MOST_GROUPS: usize = 5;

/// A memory node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Its memory.
    pub bytes: u64,
    /// Whether processors are near it.
    pub has_cpus: bool,
    /// Read latency, where the firmware states it.
    pub latency_ns: Option<u64>,
}

/// A control group and its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its path below the control-group root.
    pub path: String,
    /// Its anonymous memory.
    pub bytes: u64,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// Memory nodes.
    pub nodes: Vec<Node>,
    /// Nodes of the fast tier, and of the slow ones, where the host distinguishes them.
    pub tiers: Option<(Vec<u32>, Vec<u32>)>,
    /// How tiers were distinguished.
    pub by: String,
    /// Whether the kernel has DAMON.
    pub damon: bool,
    /// Why programs cannot be observed by it now.
    pub damon_hindered: Option<String>,
    /// Whether control groups are of version 2.
    pub cgroups: bool,
    /// Whether it is the Terrace kernel.
    pub tiermem: bool,
    /// Whether QEMU for whole machines is installed.
    pub qemu: bool,
    /// The control groups with the most memory, the largest first.
    pub groups: Vec<Group>,
}

impl Survey {
    /// Looks at a host.
    pub fn of(roots: &Roots) -> Self {
        let topology = tiers::discover(roots).ok();
        let with_cpus = numa::nodes_with_cpus(roots).ok().flatten().unwrap_or_default();
        let node = |id: u32| Node {
            id,
            bytes: numa::memory(roots, id).ok().flatten().map_or(0, |m| m.total_bytes),
            has_cpus: with_cpus.contains(&id),
            latency_ns: tiers::performance(roots, id).ok().and_then(|p| p.read_latency_ns),
        };
        let cgroups = roots.cgroup().join("cgroup.controllers").exists();
        Survey {
            nodes: numa::nodes_with_memory(roots)
                .unwrap_or_default()
                .into_iter()
                .map(node)
                .collect(),
            tiers: topology
                .as_ref()
                .filter(|t| t.is_tiered())
                .map(|t| (t.fast_nodes(), t.slow_nodes())),
            by: topology.as_ref().map_or_else(String::new, |t| t.source.to_string()),
            damon: roots.kdamonds().exists(),
            damon_hindered: damon_hindered(roots),
            cgroups,
            tiermem: roots.tiermem().exists(),
            qemu: find_program(Path::new("qemu-system-x86_64")).is_some(),
            groups: if cgroups { groups(roots) } else { Vec::new() },
        }
    }

    /// Read latencies of the fast and of the slow tier, where the firmware states both.
    pub fn latencies_ns(&self) -> Option<(u64, u64)> {
        let (fast, slow) = self.tiers.as_ref()?;
        let of = |ids: &[u32]| {
            let known = |id: &u32| self.nodes.iter().find(|n| n.id == *id)?.latency_ns;
            ids.iter().filter_map(known).max()
        };
        let (fast, slow) = (of(fast)?, of(slow)?);
        (fast < slow).then_some((fast, slow))
    }

    /// What can stand for two tiers where the host distinguishes none: the first node, and the others.
    pub fn substitutes(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let ids: Vec<u32> = self.nodes.iter().filter(|n| n.bytes > 0).map(|n| n.id).collect();
        match (&self.tiers, ids.split_first()) {
            (None, Some((first, rest))) if !rest.is_empty() => Some((vec![*first], rest.to_vec())),
            _ => None,
        }
    }

    /// What was found, a line each.
    pub fn lines(&self) -> Vec<String> {
        let yes = |flag: bool, yes: &str, no: &str| if flag { yes } else { no }.to_owned();
        let node = |n: &Node| {
            let latency = n.latency_ns.map_or_else(String::new, |ns| format!(", {ns} ns"));
            let cpus = if n.has_cpus { "" } else { ", no processors" };
            format!("node {} ({:.1} GB{latency}{cpus})", n.id, n.bytes as f64 / f64::from(1 << 30))
        };
        let nodes: Vec<String> = self.nodes.iter().map(node).collect();
        vec![
            format!("memory: {}", nodes.join("; ")),
            match &self.tiers {
                Some((fast, slow)) => {
                    format!("tiers: fast {fast:?}, slow {slow:?}, by {}", self.by)
                }
                None => "tiers: one; nothing distinguishes fast memory from slow memory".to_owned(),
            },
            match &self.damon_hindered {
                Some(why) => format!("DAMON: there, but {why}"),
                None => yes(self.damon, "DAMON: there", "DAMON: not in this kernel"),
            },
            yes(self.cgroups, "control groups: version 2", "control groups: not of version 2"),
            yes(self.tiermem, "Terrace kernel: yes", "Terrace kernel: no, and not needed"),
            yes(
                self.qemu,
                "QEMU: installed",
                "QEMU: not installed; 'terrace lab' and '--machine vm' need qemu-system-x86",
            ),
        ]
    }
}

fn damon_hindered(roots: &Roots) -> Option<String> {
    if damon::lacks_operations(roots).ok().flatten().is_some() {
        Some("not for programs: this kernel lacks CONFIG_DAMON_VADDR".to_owned())
    } else {
        let threads = damon::threads(roots).ok().flatten().filter(|threads| *threads > 0);
        threads.map(|_| "used by another program".to_owned())
    }
}

/// Control groups of services, pods and machines by their anonymous memory.
fn groups(roots: &Roots) -> Vec<Group> {
    // Slices hold what others made; what a session or a user runs comes and goes.
    let wanted = |path: &str| !path.starts_with("/user.slice") && !path.starts_with("/init.scope");
    let Ok(walked) = cgroup_tree::walk(&roots.cgroup(), BOUNDS, &wanted) else { return Vec::new() };
    let mut groups = Vec::new();
    for path in walked.populated {
        let is_leaf = path.ends_with(".service") || path.ends_with(".scope");
        // This one is the daemon's own.
        if !is_leaf || path.ends_with("/terraced.service") {
            continue;
        }
        let memory = Cgroup::new(roots, Path::new(&path)).memory().ok().flatten();
        let bytes: u64 = memory.and_then(|m| m.anon_bytes).map_or(0, |nodes| nodes.iter().sum());
        if bytes >= LEAST_BYTES {
            groups.push(Group { path, bytes });
        }
    }
    groups.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    groups.truncate(MOST_GROUPS);
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files that stands for a kernel.
    pub fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
        let keep = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = keep.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let roots = Roots::below(keep.path());
        (keep, roots)
    }

    #[test]
    fn a_host_with_tiers_and_services_is_seen_as_it_is() {
        const NODE: &str = "sys/devices/system/node";
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let mut files = vec![
            file(&format!("{NODE}/has_memory"), "0-1\n"),
            file(&format!("{NODE}/has_cpu"), "0\n"),
            file("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n"),
            file("sys/fs/cgroup/cgroup.controllers", "memory\n"),
        ];
        for (node, ns, gib) in [(0, 85, 16), (1, 240, 64)] {
            let kib = gib << 20;
            let text = format!("Node {node} MemTotal: {kib} kB\nNode {node} MemFree: {kib} kB\n");
            files.push(file(&format!("{NODE}/node{node}/meminfo"), &text));
            let latency = format!("{NODE}/node{node}/access0/initiators/read_latency");
            files.push(file(&latency, &format!("{ns}\n")));
        }
        for (path, mib) in [
            ("system.slice", 900),
            ("system.slice/redis.service", 700),
            ("system.slice/db.service", 100),
            ("system.slice/small.service", 1),
            ("system.slice/terraced.service", 100),
            ("user.slice/user-0.slice/session.scope", 999),
        ] {
            let folder = format!("sys/fs/cgroup/{path}");
            files.push(file(&format!("{folder}/cgroup.events"), "populated 1\n"));
            let numa = format!("anon N0={} N1=0\n", mib << 20);
            files.push(file(&format!("{folder}/memory.numa_stat"), &numa));
        }
        let files: Vec<_> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        let (_keep, roots) = host(&files);
        let survey = Survey::of(&roots);
        assert_eq!(survey.tiers, Some((vec![0], vec![1])));
        assert_eq!(survey.latencies_ns(), Some((85, 240)));
        assert_eq!(survey.nodes[1].bytes, 64 << 30);
        assert!(survey.damon && survey.cgroups && !survey.tiermem, "{survey:?}");
        let group = |path: &str, mib: u64| Group { path: path.to_owned(), bytes: mib << 20 };
        assert_eq!(
            survey.groups,
            [group("/system.slice/redis.service", 700), group("/system.slice/db.service", 100)]
        );
        assert_eq!(survey.substitutes(), None);
        assert!(survey.lines()[0].contains("node 1 (64.0 GB, 240 ns, no processors)"));
        assert!(survey.lines().contains(&"DAMON: there".to_owned()), "{survey:?}");
        let kdamonds = roots.kdamonds();
        std::fs::write(kdamonds.join("nr_kdamonds"), "1\n").unwrap();
        let lines = Survey::of(&roots).lines();
        assert!(
            lines.contains(&"DAMON: there, but used by another program".to_owned()),
            "{lines:?}"
        );
        let context = kdamonds.join("0/contexts/0");
        std::fs::create_dir_all(&context).unwrap();
        std::fs::write(context.join("avail_operations"), "paddr\n").unwrap();
        let lines = Survey::of(&roots).lines();
        assert!(lines.iter().any(|l| l.ends_with("lacks CONFIG_DAMON_VADDR")), "{lines:?}");
    }

    #[test]
    fn a_host_of_which_nothing_can_be_read_is_one_without() {
        let (_keep, roots) = host(&[]);
        let survey = Survey::of(&roots);
        assert_eq!(survey.tiers, None);
        assert!(!survey.damon && !survey.cgroups && survey.groups.is_empty(), "{survey:?}");
        assert_eq!((survey.latencies_ns(), survey.substitutes()), (None, None));
    }
}

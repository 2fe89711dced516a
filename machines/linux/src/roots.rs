//! Mount points of the kernel's file systems. Every reader of this crate takes its paths from here,
//! so that a test can pass a folder of files.

use std::path::{Path, PathBuf};

/// Parts of the kernel that use DAMON by themselves, and exclude others.
pub const DAMON_MODULES: [&str; 3] = ["damon_reclaim", "damon_lru_sort", "damon_stat"];

/// Root directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
    /// Folder of the journal and the lock while settings are changed: `/run/terrace`.
    pub run: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Roots {
            proc: "/proc".into(),
            sys: "/sys".into(),
            dev: "/dev".into(),
            run: "/run/terrace".into(),
        }
    }
}

impl Roots {
    /// `proc`, `sys`, `dev` and `run` below one folder.
    pub fn below(folder: &Path) -> Self {
        let [proc, sys, dev, run] = ["proc", "sys", "dev", "run"].map(|name| folder.join(name));
        Roots { proc, sys, dev, run }
    }

    /// The roots of a run whose journal is in this folder: those of the system if it is the
    /// system's, else those beside it.
    pub fn of_run(run: &Path) -> Self {
        let system = Roots::default();
        if run == system.run { system } else { Roots::below(run.parent().unwrap_or(run)) }
    }

    /// The folder of a process.
    pub fn process(&self, pid: u32) -> PathBuf {
        self.proc.join(pid.to_string())
    }

    /// The folder of all processes.
    pub fn processes(&self) -> &Path {
        &self.proc
    }

    /// The folder of a memory node.
    pub fn node(&self, node: u32) -> PathBuf {
        self.sys.join(format!("devices/system/node/node{node}"))
    }

    /// Where control groups of version 2 are mounted.
    pub fn cgroup(&self) -> PathBuf {
        self.sys.join("fs/cgroup")
    }

    /// DAMON's kernel threads.
    pub fn kdamonds(&self) -> PathBuf {
        self.sys.join("kernel/mm/damon/admin/kdamonds")
    }

    /// Where the trace file system is mounted.
    pub fn tracing(&self) -> PathBuf {
        self.sys.join("kernel/tracing")
    }

    /// A unit of the processor or the kernel that counts events.
    pub fn event_source(&self, name: &str) -> PathBuf {
        self.sys.join("bus/event_source/devices").join(name)
    }

    /// Ports of a virtual machine.
    pub fn virtio_ports(&self) -> PathBuf {
        self.sys.join("class/virtio-ports")
    }

    /// The Terrace kernel's device.
    pub fn tiermem(&self) -> PathBuf {
        self.dev.join("tiermem")
    }

    /// Where the kernel registers that device, whether or not its node can be seen.
    pub fn tiermem_class(&self) -> PathBuf {
        self.sys.join("class/misc/tiermem")
    }

    /// How many threads copy a batch of migrated pages; the Terrace kernel's.
    pub fn copy_threads(&self) -> PathBuf {
        self.sys.join("kernel/mm/tiermem/copy_threads")
    }

    /// Switch of the multi-generational LRU lists.
    pub fn lru_gen(&self) -> PathBuf {
        self.sys.join("kernel/mm/lru_gen/enabled")
    }

    /// Switch of automatic NUMA balancing.
    pub fn numa_balancing(&self) -> PathBuf {
        self.proc.join("sys/kernel/numa_balancing")
    }

    /// Bound of the processors' lists of free pages, as one over a part of the zone; 0: the kernel's own.
    pub fn free_list_bound(&self) -> PathBuf {
        self.proc.join("sys/vm/percpu_pagelist_high_fraction")
    }

    /// What brings every processor's memory counters up to date when it is written.
    pub fn update_counters(&self) -> PathBuf {
        self.proc.join("sys/vm/stat_refresh")
    }

    /// Bound on what automatic NUMA balancing promotes, in MB/s.
    pub fn promotion_limit(&self) -> PathBuf {
        self.proc.join("sys/kernel/numa_balancing_promote_rate_limit_MBps")
    }

    /// The shortest time between two scans of automatic NUMA balancing, in ms of a thread's own processor
    /// time; only where debugfs is mounted.
    pub fn shortest_scan_period(&self) -> PathBuf {
        self.sys.join("kernel/debug/sched/numa_balancing/scan_period_min_ms")
    }

    /// The longest time between them, to which the kernel goes where scans bring it nothing.
    pub fn longest_scan_period(&self) -> PathBuf {
        self.sys.join("kernel/debug/sched/numa_balancing/scan_period_max_ms")
    }

    /// Switch of demotion by the kernel's own reclaim.
    pub fn demotion(&self) -> PathBuf {
        self.sys.join("kernel/mm/numa/demotion_enabled")
    }

    /// Switch of transparent huge pages.
    pub fn huge_pages(&self) -> PathBuf {
        self.sys.join("kernel/mm/transparent_hugepage/enabled")
    }

    /// Switch of a part of the kernel that uses DAMON by itself.
    pub fn damon_module(&self, name: &str) -> PathBuf {
        self.sys.join(format!("module/{name}/parameters/enabled"))
    }

    /// How many huge pages of a node are in the kernel's own pool.
    pub fn huge_page_pool(&self, node: u32) -> PathBuf {
        self.node(node).join("hugepages/hugepages-2048kB/nr_hugepages")
    }

    /// Whether this is the pool of huge pages of some node.
    pub fn is_huge_page_pool(&self, path: &Path) -> bool {
        let node = path.ancestors().nth(3).and_then(Path::file_name).and_then(|n| n.to_str());
        let number = node.and_then(|n| n.strip_prefix("node")).and_then(|n| n.parse().ok());
        number.is_some_and(|node| self.huge_page_pool(node) == path)
    }

    /// All settings that Terrace can change, except those of control groups and of nodes.
    pub fn settings(&self) -> Vec<PathBuf> {
        let mut settings = vec![
            self.copy_threads(),
            self.lru_gen(),
            self.numa_balancing(),
            self.promotion_limit(),
            self.longest_scan_period(),
            self.demotion(),
            self.huge_pages(),
            self.free_list_bound(),
        ];
        settings.extend(DAMON_MODULES.iter().map(|name| self.damon_module(name)));
        settings
    }
}

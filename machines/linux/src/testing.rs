//! What stands for a kernel in tests: folders of files, and base pages on nodes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use terrace_core::page::PageSize;

use crate::kernel::PageKernel;
use crate::process::Process;
use crate::ranges::{FolioReader, Folios};
use crate::roots::Roots;

/// A temporary folder with these files, and its roots. The folder is removed when the first value
/// is dropped.
pub fn folder(files: &[(&str, &str)]) -> (TempDir, Roots) {
    let keep = tempfile::tempdir().expect("a temporary folder");
    for (path, text) in files {
        put(keep.path(), path, text);
    }
    let roots = Roots::below(keep.path());
    (keep, roots)
}

/// Writes a file below a folder, with the directories that it needs.
pub fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    fs::write(path, text).expect("a file");
}

/// A host with two tiers without conflicts for tracking control groups.
pub fn clean_host() -> (TempDir, Roots) {
    folder(&[
        ("proc/self/status", "CapEff:\t000001ffffffffff\n"),
        ("proc/self/cgroup", "0::/\n"),
        ("proc/sys/kernel/numa_balancing", "0\n"),
        ("sys/devices/system/node/has_memory", "0-1\n"),
        ("sys/devices/system/node/has_cpu", "0\n"),
        ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0\n"),
        ("sys/devices/virtual/memory_tiering/memory_tier84/nodelist", "1\n"),
        ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n"),
        ("sys/module/damon_reclaim/parameters/enabled", "N\n"),
        ("sys/kernel/tracing/instances/.keep", ""),
        ("sys/kernel/tracing/events/damon/damon_aggregated/format", ""),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
        ("sys/fs/cgroup/cgroup.subtree_control", "cpu memory\n"),
        ("sys/kernel/mm/lru_gen/enabled", "0x0000\n"),
        ("sys/kernel/mm/numa/demotion_enabled", "false\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
    ])
}

/// The sysfs files of one of DAMON's threads with one target of so many regions, below a folder.
pub fn put_kdamond(root: &Path, regions: usize) {
    let base = "sys/kernel/mm/damon/admin/kdamonds";
    put(root, &format!("{base}/nr_kdamonds"), "1\n");
    let context = format!("{base}/0/contexts/0");
    for file in [
        "monitoring_attrs/intervals/update_us",
        "monitoring_attrs/intervals/sample_us",
        "monitoring_attrs/intervals/aggr_us",
        "monitoring_attrs/nr_regions/min",
        "monitoring_attrs/nr_regions/max",
        "operations",
        "targets/nr_targets",
        "targets/0/pid_target",
        "targets/0/regions/nr_regions",
    ] {
        put(root, &format!("{context}/{file}"), "");
    }
    put(root, &format!("{base}/0/contexts/nr_contexts"), "");
    put(root, &format!("{base}/0/state"), "off\n");
    put(root, &format!("{base}/0/pid"), "-1\n");
    for region in 0..regions {
        put(root, &format!("{context}/targets/0/regions/{region}/start"), "");
        put(root, &format!("{context}/targets/0/regions/{region}/end"), "");
    }
}

/// Base pages by address, each on a node; a call handles so many pages at most.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) nodes: BTreeMap<u64, i32>,
    pub(crate) pinned: Vec<u64>,
    /// Pages after which a call ends early, as the real one does.
    pub(crate) most: usize,
    pub(crate) moved: usize,
    pub(crate) now: Duration,
    /// What locating takes.
    pub(crate) locating: Duration,
    /// Whether pages can exchange places, and how many pairs have.
    pub(crate) exchanges: bool,
    pub(crate) exchanged: usize,
    /// Bytes that each node can take; without it, as many as there are.
    pub(crate) room_bytes: Option<u64>,
}

#[derive(Clone, Default)]
pub(crate) struct BasePages(pub(crate) Arc<Mutex<State>>);

impl PageKernel for BasePages {
    fn locate(&mut self, _: u32, addresses: &[u64], status: &mut [i32]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let locating = state.locating;
        state.now += locating;
        for (address, status) in addresses.iter().zip(status) {
            *status = state.nodes.get(address).copied().unwrap_or(-libc::ENOENT);
        }
        Ok(())
    }
    fn migrate(
        &mut self,
        _: u32,
        addresses: &[u64],
        node: u32,
        status: &mut [i32],
    ) -> io::Result<u64> {
        let mut state = self.0.lock().unwrap();
        for (address, status) in addresses.iter().zip(status).take(state.most) {
            *status = if state.pinned.contains(address) {
                -libc::EBUSY
            } else {
                state.moved += 1;
                state.nodes.insert(*address, node as i32);
                node as i32
            };
        }
        Ok(addresses.len().saturating_sub(state.most) as u64)
    }
    fn exchanges(&self) -> bool {
        self.0.lock().unwrap().exchanges
    }
    fn exchange(&mut self, _: u32, a: &[u64], b: &[u64], status: &mut [i32]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        for ((a, b), status) in a.iter().zip(b).zip(status) {
            *status = -libc::EBUSY;
            if state.pinned.contains(a) || state.pinned.contains(b) {
                continue;
            }
            let (of_a, of_b) = (state.nodes[a], state.nodes[b]);
            state.nodes.extend([(*a, of_b), (*b, of_a)]);
            state.exchanged += 1;
            *status = 0;
        }
        Ok(())
    }
    fn room_bytes(&mut self, _: u32) -> u64 {
        self.0.lock().unwrap().room_bytes.unwrap_or(u64::MAX)
    }
    fn allowed_nodes(&mut self, _: u32) -> Option<Vec<u32>> {
        None
    }
    fn alive(&mut self, pid: u32) -> Option<Process> {
        Some(Process { pid, start_ticks: 1 })
    }
    fn now(&mut self) -> Duration {
        self.0.lock().unwrap().now
    }
    fn sleep(&mut self, _: Duration) {}
}

impl FolioReader for BasePages {
    fn folios(&mut self, _: Process, start: u64) -> io::Result<Folios> {
        let state = self.0.lock().unwrap();
        let pages: Vec<u64> =
            state.nodes.range(start..start + PageSize::Huge.bytes()).map(|(a, _)| *a).collect();
        // A huge page is known by its first address alone here.
        Ok(if pages == [start] { Folios::Huge } else { Folios::Base(pages) })
    }
}

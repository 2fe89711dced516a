//! Folders of files that stand for a kernel in tests.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

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

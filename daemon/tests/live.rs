//! This host's machine on a folder of files that stands for a kernel.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use terrace_daemon::Config;
use terrace_daemon::discover::{Pattern, Wanted};
use terrace_daemon::live::Live;
use terrace_daemon::machine::Machine;
use terrace_linux::roots::Roots;

const FILES: &[(&str, &str)] = &[
    ("proc/self/status", "CapEff:\t000001ffffffffff\n"),
    ("proc/self/cgroup", "0::/\n"),
    ("proc/sys/kernel/numa_balancing", "1\n"),
    ("proc/sys/kernel/random/boot_id", "0a1b\n"),
    ("proc/41/stat", "41 (a) b) S 1 1 1 0 -1 0 0 0 0 0 7 8 0 0 20 0 1 0 4242 0 0\n"),
    ("sys/devices/system/node/has_memory", "0-1\n"),
    ("sys/devices/system/node/has_cpu", "0\n"),
    ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1024 kB\nNode 0 MemFree: 512 kB\n"),
    ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 2048 kB\nNode 1 MemFree: 1 kB\n"),
    ("sys/devices/system/node/node0/access0/initiators/read_latency", "80\n"),
    ("sys/devices/system/node/node1/access0/initiators/read_latency", "300\n"),
    ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0\n"),
    ("sys/devices/virtual/memory_tiering/memory_tier84/nodelist", "1\n"),
    ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n"),
    ("sys/module/damon_reclaim/parameters/enabled", "N\n"),
    ("sys/kernel/tracing/instances/.keep", ""),
    ("sys/kernel/tracing/events/damon/damon_aggregated/format", ""),
    ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
    ("sys/fs/cgroup/cgroup.subtree_control", "cpu memory\n"),
    ("sys/fs/cgroup/cgroup.procs", "1\n"),
    ("sys/fs/cgroup/a/cgroup.events", "populated 1\nfrozen 0\n"),
    ("sys/fs/cgroup/a/cgroup.procs", "41\n"),
    ("sys/fs/cgroup/empty/cgroup.events", "populated 0\nfrozen 0\n"),
    ("sys/fs/cgroup/empty/cgroup.procs", ""),
    ("sys/fs/cgroup/upper/cgroup.events", "populated 1\nfrozen 0\n"),
    ("sys/fs/cgroup/upper/cgroup.procs", ""),
    ("sys/fs/cgroup/upper/lower/cgroup.events", "populated 1\nfrozen 0\n"),
    ("sys/fs/cgroup/upper/lower/cgroup.procs", "41\n"),
    ("sys/fs/cgroup/upper/idle/cgroup.events", "populated 0\nfrozen 0\n"),
    ("sys/fs/cgroup/upper/idle/cgroup.procs", ""),
    ("sys/kernel/mm/lru_gen/enabled", "0x0007\n"),
    ("sys/kernel/mm/numa/demotion_enabled", "false\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
];

const CONFIG: &str = "[[groups]]\nname = \"a\"\ncgroup = \"/a\"\nfast_ratio = 0.5\n";

fn host() -> (tempfile::TempDir, Roots) {
    let keep = tempfile::tempdir().unwrap();
    for (path, text) in FILES {
        let path = keep.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let roots = Roots::below(keep.path());
    (keep, roots)
}

fn wanted(cgroup: &str) -> Wanted {
    Wanted { cgroup: Pattern::new(cgroup).unwrap(), exclude: Vec::new() }
}

fn get(folder: &Path, path: &str) -> String {
    fs::read_to_string(folder.join(path)).unwrap()
}

#[test]
fn the_host_is_opened_groups_are_found_and_everything_is_put_back() {
    let (keep, roots) = host();
    let config = Config::parse(CONFIG, "c").unwrap();
    let mut live = Live::open(&config, roots, None).unwrap();
    assert_eq!(get(keep.path(), "sys/kernel/mm/lru_gen/enabled"), "0x0000");
    let status = live.status();
    assert_eq!((status.fast_nodes, status.slow_nodes), (vec![0], vec![1]));
    assert_eq!((status.fast_bytes, status.slow_bytes), (1 << 20, 2 << 20));
    assert_eq!(status.latency_ratio, Some(3.75));
    assert!(status.notes.iter().any(|n| n.contains("changed until the end")), "{:?}", status.notes);

    // Groups with processes, in themselves or below; the root is not a group.
    let all = [wanted("/**")];
    assert_eq!(live.groups(&all).unwrap().populated, ["/a", "/upper", "/upper/lower"]);
    assert_eq!(live.groups(&[wanted("/upper/l*")]).unwrap().populated, ["/upper", "/upper/lower"]);
    let who = live.identity("/a", 100);
    assert_eq!((who.boot.as_str(), who.processes.as_slice()), ("0a1b", &[(41, 4242)][..]));

    let settings = config.settings(config.groups[0].get_ref());
    let stop = || Arc::new(AtomicBool::new(false));
    let first = live.attach("/a", &settings, stop()).unwrap();
    let second = live.attach("/upper", &settings, stop()).unwrap();
    assert_eq!((first.slot, second.slot), (0, 1));
    drop(first);
    live.release(0);
    assert_eq!(live.attach("/upper/lower", &settings, stop()).unwrap().slot, 0);
    let Err(error) = live.attach("/gone", &settings, stop()) else { panic!("attached") };
    assert!(error.contains("/gone does not exist"), "{error}");
    drop(second);
    live.close().unwrap();
    assert_eq!(get(keep.path(), "sys/kernel/mm/lru_gen/enabled"), "0x0007");
    assert_eq!(get(keep.path(), "proc/sys/kernel/numa_balancing"), "1");
    assert_eq!(get(keep.path(), "sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds"), "0");
}

#[test]
fn groups_with_too_many_processes_and_hosts_in_the_way_are_refused() {
    let (keep, roots) = host();
    let many: String = (100..200).map(|pid| format!("{pid}\n")).collect();
    fs::write(keep.path().join("sys/fs/cgroup/a/cgroup.procs"), many).unwrap();
    let text = format!("[daemon]\nmax_processes = 64\n{CONFIG}");
    let config = Config::parse(&text, "c").unwrap();
    let mut live = Live::open(&config, roots.clone(), None).unwrap();
    let settings = config.settings(config.groups[0].get_ref());
    let Err(error) = live.attach("/a", &settings, Arc::default()) else { panic!("attached") };
    assert!(error.contains("100 processes, expected at most 64"), "{error}");
    // A second daemon on the same host.
    let Err(error) = Live::open(&config, roots.clone(), None) else { panic!("opened") };
    let error = error.to_string();
    assert!(error.contains("another run of Terrace"), "{error}");
    live.close().unwrap();

    let text = format!("[daemon]\nfix_conflicts = false\n{CONFIG}");
    let config = Config::parse(&text, "c").unwrap();
    let Err(error) = Live::open(&config, roots, None) else { panic!("opened") };
    let error = error.to_string();
    assert!(error.contains("multi-generational LRU"), "{error}");
    assert_eq!(get(keep.path(), "sys/kernel/mm/lru_gen/enabled"), "0x0007");
}

#[test]
fn a_tree_of_control_groups_that_is_too_deep_is_not_followed_for_ever() {
    let (keep, roots) = host();
    let mut folder = keep.path().join("sys/fs/cgroup/deep");
    for _ in 0..100 {
        folder = folder.join("d");
        fs::create_dir_all(&folder).unwrap();
    }
    let mut at = keep.path().join("sys/fs/cgroup/deep");
    for _ in 0..101 {
        fs::write(at.join("cgroup.events"), "populated 1\n").unwrap();
        at = at.join("d");
    }
    let config = Config::parse(CONFIG, "c").unwrap();
    let mut live = Live::open(&config, roots, None).unwrap();
    let survey = live.groups(&[wanted("/deep/**")]).unwrap();
    assert_eq!(survey.populated.len(), terrace_daemon::discover::BOUNDS.depth);
    assert_eq!(survey.unvisited, 1);
}

#[test]
fn the_first_group_of_huge_pages_that_a_reload_brings_gets_them() {
    let (keep, roots) = host();
    let thp = "sys/kernel/mm/transparent_hugepage/enabled";
    fs::write(keep.path().join(thp), "always madvise [never]\n").unwrap();
    let of =
        |pages: &str| Config::parse(&format!("{CONFIG}page_size = \"{pages}\"\n"), "c").unwrap();
    let mut live = Live::open(&of("4K"), roots, None).unwrap();
    assert!(get(keep.path(), thp).contains("[never]"));
    live.prepare(&of("2M")).unwrap();
    assert_eq!(get(keep.path(), thp), "always");
    let notes = live.status().notes;
    assert!(notes.iter().any(|n| n.contains("huge pages are off")), "{notes:?}");
    live.close().unwrap();
    assert_eq!(get(keep.path(), thp), "never");
}

#[test]
fn a_dry_run_changes_no_setting_until_a_reload_ends_it() {
    let (keep, roots) = host();
    let setting = |path: &str| get(keep.path(), path);
    let lru = "sys/kernel/mm/lru_gen/enabled";
    // For the daemon, and for each of its groups.
    for text in [format!("[daemon]\ndry_run = true\n{CONFIG}"), format!("{CONFIG}dry_run = true\n")]
    {
        let config = Config::parse(&text, "c").unwrap();
        assert!(config.is_dry());
        let mut live = Live::open(&config, roots.clone(), None).unwrap();
        let settings = config.settings(config.groups[0].get_ref());
        let attached = live.attach("/a", &settings, Arc::default()).unwrap();
        assert_eq!(setting(lru).trim(), "0x0007");
        assert_eq!(setting("proc/sys/kernel/numa_balancing").trim(), "1");
        let notes = live.status().notes;
        assert!(notes.iter().any(|n| n.contains("not changed in a dry run")), "{notes:?}");
        live.end_dry_run().unwrap();
        assert_eq!(setting(lru), "0x0000");
        drop(attached);
        live.release(0);
        live.close().unwrap();
        assert_eq!(setting(lru), "0x0007");
        assert_eq!(setting("proc/sys/kernel/numa_balancing").trim(), "1");
    }
}

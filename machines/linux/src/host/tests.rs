//! Tests of opening a host, on folders that look like one.

use super::*;
use crate::conflicts::Intent;
use crate::roots::Roots;
use crate::samples::SampleReads;
use crate::testing::{clean_host, put};
use std::fs;
use terrace_core::page::PageSize;

fn options(roots: &Roots) -> HostOptions {
    let intent = Intent { huge: true, base: false, cgroups: true };
    HostOptions { roots: roots.clone(), ..HostOptions::new(intent) }
}

fn refusal(result: Result<Host, HostError>) -> String {
    let Err(error) = result else { panic!("the host was opened") };
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

fn get(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_group_may_go_to_a_thread_of_its_own() {
    fn needs_send<T: Send>() {}
    needs_send::<AttachedGroup>();
}

#[test]
fn settings_are_changed_only_with_leave_and_then_put_back() {
    let (keep, roots) = clean_host();
    put(keep.path(), "sys/kernel/mm/lru_gen/enabled", "0x0007\n");
    put(keep.path(), "proc/sys/kernel/numa_balancing", "1\n");
    let message = refusal(Host::open(options(&roots)));
    assert!(message.contains("accessed bits") && message.contains("echo 0 >"), "{message}");
    assert_eq!(get(&roots.lru_gen()), "0x0007\n");

    let accepted = HostOptions { accept_conflicts: true, ..options(&roots) };
    assert_eq!(Host::open(accepted).unwrap().conflicts().len(), 2);
    assert_eq!(get(&roots.lru_gen()), "0x0007\n");

    let fixed = HostOptions { fix_conflicts: true, ..options(&roots) };
    let host = Host::open(fixed).unwrap();
    assert_eq!(
        (get(&roots.lru_gen()), get(&roots.numa_balancing())),
        ("0x0000".into(), "0".into())
    );
    host.close().unwrap();
    assert_eq!(get(&roots.lru_gen()), "0x0007");
    assert_eq!(get(&roots.numa_balancing()), "1");
}

#[test]
fn a_host_of_one_tier_is_observed_and_keeps_its_settings() {
    let (keep, roots) = clean_host();
    put(keep.path(), "sys/kernel/mm/lru_gen/enabled", "0x0007\n");
    put(keep.path(), "sys/module/damon_stat/parameters/enabled", "Y\n");
    put(keep.path(), "sys/fs/cgroup/app/cgroup.procs", "");
    put(keep.path(), "sys/devices/system/node/has_memory", "0\n");
    assert!(!tiers::discover(&roots).unwrap().is_tiered());
    assert!(refusal(Host::open(options(&roots))).contains("of one tier"));
    let observing = HostOptions { observe_only: true, ..options(&roots) };
    let mut host = Host::open(observing).unwrap();
    // Parts of the kernel that prevent the use of DAMON are off for as long as this lasts, and no
    // others.
    let stat = roots.damon_module("damon_stat");
    assert_eq!((get(&stat), get(&roots.lru_gen())), ("N".into(), "0x0007\n".into()));
    let app = Source::Cgroup("app".into());
    let group = GroupSpec { by_range: true, ..GroupSpec::new("g", app, PageSize::Huge, 1000) };
    assert_eq!(host.attach(vec![group]).unwrap().len(), 1);
    host.close().unwrap();
    assert_eq!(get(&stat), "Y");
}

#[test]
fn a_dry_run_changes_no_setting_and_its_end_does() {
    let (keep, roots) = clean_host();
    put(keep.path(), "sys/kernel/mm/lru_gen/enabled", "0x0007\n");
    put(keep.path(), "proc/sys/kernel/numa_balancing", "1\n");
    put(keep.path(), "sys/fs/cgroup/app/cgroup.procs", "");
    let dry = || HostOptions { fix_conflicts: true, dry_run: true, ..options(&roots) };
    let mut host = Host::open(dry()).unwrap();
    let app = Source::Cgroup("app".into());
    let group = GroupSpec::new("g", app, PageSize::Huge, 1000);
    let attached = host.attach(vec![group]).unwrap();
    assert_eq!(get(&roots.lru_gen()), "0x0007\n");
    assert_eq!(get(&roots.numa_balancing()), "1\n");
    assert_eq!(host.conflicts().len(), 2);
    host.end_dry_run().unwrap();
    assert_eq!(get(&roots.lru_gen()), "0x0000");
    assert_eq!(get(&roots.numa_balancing()), "0");
    drop(attached);
    host.close().unwrap();
    assert_eq!(get(&roots.lru_gen()), "0x0007");

    // Parts of the kernel that prevent the use of DAMON must be off: reported, not changed.
    put(keep.path(), "sys/module/damon_stat/parameters/enabled", "Y\n");
    let message = refusal(Host::open(dry()));
    assert!(message.contains("damon_stat runs") && message.contains("echo N"), "{message}");
    assert_eq!(get(&roots.damon_module("damon_stat")), "Y\n");
}

#[test]
fn a_host_without_a_signal_that_is_asked_for_keeps_its_settings() {
    let (keep, roots) = clean_host();
    put(keep.path(), "sys/kernel/mm/lru_gen/enabled", "0x0007\n");
    let sampling = HostOptions {
        sample_reads: SampleReads::OneIn(1000),
        fix_conflicts: true,
        ..options(&roots)
    };
    let message = refusal(Host::open(sampling));
    assert!(message.starts_with("sample_reads: "), "{message}");
    // The file has its line end: nothing was written, not even the same.
    assert_eq!(get(&roots.lru_gen()), "0x0007\n");
    assert!(!crate::journal::Journal::path(&roots.run).exists());
}

#[test]
fn a_check_refuses_what_a_start_refuses() {
    let cases: [(&str, &str, bool, bool, u32); 6] = [
        ("sys/module/damon_stat/parameters/enabled", "Y\n", true, true, 0),
        ("sys/module/damon_stat/parameters/enabled", "Y\n", true, false, 0),
        ("sys/kernel/mm/lru_gen/enabled", "0x0007\n", false, false, 0),
        ("sys/kernel/mm/lru_gen/enabled", "0x0007\n", false, true, 0),
        ("sys/kernel/mm/lru_gen/enabled", "0x0000\n", true, false, 1000),
        ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "2\n", true, true, 0),
    ];
    let refused = cases.map(|(path, text, fix_conflicts, dry_run, sample_reads)| {
        let (keep, roots) = clean_host();
        put(keep.path(), path, text);
        let sample_reads = SampleReads::OneIn(sample_reads);
        let options = HostOptions { fix_conflicts, dry_run, sample_reads, ..options(&roots) };
        let (_, conflicts) = Host::inspect(&options).unwrap();
        let checked = Host::check_start(&options, &conflicts).map_err(|e| e.to_string());
        assert_eq!(get(&keep.path().join(path)), text, "a check changes nothing");
        let opened = Host::open(options).map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(checked, opened);
        checked.is_err()
    });
    assert_eq!(refused, [true, false, true, false, true, true]);
}

#[test]
fn groups_of_other_pages_than_before_have_what_they_need() {
    let (keep, roots) = clean_host();
    put(keep.path(), "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    let intent = |huge| Intent { huge, base: true, cgroups: true };
    let of = |fix_conflicts, dry_run| HostOptions {
        fix_conflicts,
        dry_run,
        intent: intent(false),
        ..options(&roots)
    };
    let value = || get(&roots.huge_pages());
    let mut host = Host::open(of(true, false)).unwrap();
    // Changed by someone else, and in nobody's way: it is not the new pages' matter.
    put(keep.path(), "proc/sys/kernel/numa_balancing", "1\n");
    host.intend(intent(true)).unwrap();
    assert_eq!((value().trim(), get(&roots.numa_balancing()).trim()), ("always", "1"));
    assert_eq!(host.conflicts().iter().map(|c| c.name).collect::<Vec<_>>(), ["thp_off"]);
    // There is nothing more to change, and the setting stays until the end.
    put(keep.path(), "sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
    host.intend(intent(false)).unwrap();
    assert!(value().contains("[always]"));
    host.close().unwrap();
    put(keep.path(), "proc/sys/kernel/numa_balancing", "0\n");
    for (fixing, dry_run) in [(true, true), (false, false)] {
        put(keep.path(), "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
        let mut host = Host::open(of(fixing, dry_run)).unwrap();
        let intended = host.intend(intent(true));
        assert_eq!(intended.is_err(), !dry_run);
        if let Err(error) = intended {
            assert!(error.to_string().contains("huge pages are off"), "{error}");
            // It can be asked for again.
            assert!(host.intend(intent(true)).is_err());
        }
        assert!(value().contains("[never]"));
        host.close().unwrap();
    }
}

#[test]
fn nodes_that_come_and_go_are_followed() {
    let (keep, roots) = clean_host();
    put(keep.path(), "sys/fs/cgroup/app/cgroup.procs", "");
    let third = "sys/devices/virtual/memory_tiering/memory_tier90/nodelist";
    let app = || GroupSpec::new("g", Source::Cgroup("app".into()), PageSize::Huge, 1000);
    let mut host = Host::open(options(&roots)).unwrap();
    assert_eq!(host.follow_nodes().unwrap(), None);
    put(keep.path(), "sys/devices/system/node/has_memory", "0-2\n");
    put(keep.path(), third, "2\n");
    let change = host.follow_nodes().unwrap().unwrap();
    assert!(change.contains("slow [1, 2], before [0] and [1]"), "{change}");
    assert_eq!(host.follow_nodes().unwrap(), None);
    // All slow memory is removed: groups are refused, not the run; and accepted again once it is
    // back.
    put(keep.path(), "sys/devices/system/node/has_memory", "0\n");
    assert!(host.follow_nodes().unwrap().is_some());
    let Err(error) = host.attach(vec![app()]) else { panic!("attached") };
    assert!(error.to_string().contains("of one tier now"), "{error}");
    put(keep.path(), "sys/devices/system/node/has_memory", "0-1\n");
    assert!(host.follow_nodes().unwrap().is_some());
    assert_eq!(host.attach(vec![app()]).unwrap().len(), 1);

    // Of the given nodes, those that exist.
    let nodes = Some((vec![0], vec![1, 2]));
    put(keep.path(), "sys/devices/system/node/has_memory", "0-2\n");
    drop(host);
    let mut host = Host::open(HostOptions { nodes, ..options(&roots) }).unwrap();
    put(keep.path(), "sys/devices/system/node/has_memory", "0-1\n");
    let change = host.follow_nodes().unwrap().unwrap();
    assert!(change.contains("slow [1], before"), "{change}");
    // None of the given slow nodes is left: another one takes no part for that.
    let nodes = Some((vec![0], vec![1]));
    drop(host);
    let mut host = Host::open(HostOptions { nodes, ..options(&roots) }).unwrap();
    put(keep.path(), "sys/devices/system/node/has_memory", "0,2\n");
    let change = host.follow_nodes().unwrap().unwrap();
    assert!(change.contains("slow [], before"), "{change}");
    let Err(error) = host.attach(vec![app()]) else { panic!("attached") };
    assert!(error.to_string().contains("of one tier now"), "{error}");
}

#[test]
fn what_cannot_be_fixed_is_refused_and_nothing_is_changed() {
    let (keep, roots) = clean_host();
    put(keep.path(), "sys/kernel/mm/lru_gen/enabled", "0x0007\n");
    put(keep.path(), "sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "2\n");
    let message = refusal(Host::open(HostOptions { fix_conflicts: true, ..options(&roots) }));
    assert!(message.contains("another program (2 kdamonds), expected 0"), "{message}");
    assert_eq!(get(&roots.lru_gen()), "0x0007\n");

    put(keep.path(), "proc/self/status", "CapEff:\t0\n");
    let message = refusal(Host::open(options(&roots)));
    assert!(message.contains("run it as root"), "{message}");

    let (_keep, roots) = clean_host();
    let nodes = Some((vec![0], vec![5]));
    let message = refusal(Host::open(HostOptions { nodes, ..options(&roots) }));
    assert!(message.contains("node 5 has no memory"), "{message}");
}

#[test]
fn groups_that_cannot_be_are_refused_before_anything_is_taken() {
    let (keep, roots) = clean_host();
    put(keep.path(), "sys/fs/cgroup/app/cgroup.procs", "");
    let mut host = Host::open(HostOptions { max_groups: 1, ..options(&roots) }).unwrap();
    let group = |source, period_ms| GroupSpec::new("g", source, PageSize::Huge, period_ms);
    let app = || Source::Cgroup("app".into());
    let cases = [
        (vec![group(Source::Cgroup("/none".into()), 1000)], "fs/cgroup/none does not exist"),
        (vec![group(Source::Pids(vec![7]), 1000)], "none of the processes [7] lives"),
        (vec![group(app(), 1)], "a period of 1 ms"),
        (vec![GroupSpec { cap_pages: 0, ..group(app(), 1000) }], "0 pages tracked"),
        (vec![GroupSpec { move_share: f64::NAN, ..group(app(), 1000) }], "share of NaN"),
        (vec![group(app(), 1000), group(app(), 1000)], "at most 1"),
    ];
    for (groups, expected) in cases {
        let Err(error) = host.attach(groups) else { panic!("{expected}: attached") };
        let message = error.to_string();
        assert!(message.starts_with("group 'g': ") && message.contains(expected), "{message}");
    }
    assert_eq!(get(&roots.kdamonds().join("nr_kdamonds")), "0\n");
    assert_eq!(host.attach(vec![group(app(), 1000)]).unwrap().len(), 1);
    assert_eq!(get(&roots.kdamonds().join("nr_kdamonds")), "1");
    host.close().unwrap();
    assert_eq!(get(&roots.kdamonds().join("nr_kdamonds")), "0");
}

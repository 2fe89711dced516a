//! Kernels and QEMUs of suites that the host does not use. Each fetches some 25 MB the first time.
//! A host whose mirror has no such suite leaves them out, and says so past the test runner, which
//! hides what a test that passes says; with `TERRACE_TEST_SUITES=1` they fail there.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use terrace_lab::cache::Cache;
use terrace_lab::packages::Packages;
use terrace_lab::{
    Accel, Event, GuestJob, GuestMachine, Kernel, Lab, LabConfig, LabError, Qemu, Suite,
};

/// What was fetched, or nothing where it cannot be had.
fn had<T>(what: &str, result: Result<T, LabError>) -> Option<T> {
    let must = std::env::var_os("TERRACE_TEST_SUITES").is_some_and(|value| value == "1");
    match result {
        Err(error @ (LabError::Package { .. } | LabError::KernelMissing { .. })) if !must => {
            let _ = writeln!(std::io::stderr(), "LEFT OUT: {what}: {error}");
            None
        }
        result => Some(result.unwrap_or_else(|error| panic!("{what}: {error}"))),
    }
}

/// What the host's apt has of its own: names, sizes and times of change.
fn host_state() -> Vec<String> {
    let mut found = Vec::new();
    for directory in ["/var/lib/apt/lists", "/var/cache/apt", "/etc/apt"] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        for entry in entries {
            let changed = entry.metadata().and_then(|m| m.modified()).ok();
            found.push(format!("{} {changed:?}", entry.path().display()));
        }
    }
    found.sort();
    found
}

#[test]
fn the_newest_kernel_boots_on_two_tiers_from_another_suite() {
    let before = host_state();
    let cache = Cache::of_user().expect("a cache");
    let kernel = Kernel::named("debian-7.3");
    if had("Debian's kernel 7.3", kernel.image(&cache, &mut |_| {})).is_none() {
        return;
    }
    assert_eq!(host_state(), before, "the host's apt was changed");
    let timeout = Duration::from_secs(300);
    let machine = GuestMachine { kernel, accel: Accel::Tcg, timeout, ..GuestMachine::default() };
    let lab = Lab::new(LabConfig { machine, cache_dir: None }).expect("the lab");
    let script = "cat /sys/devices/virtual/memory_tiering/memory_tier*/nodelist
        cat /sys/module/damon_stat/parameters/enabled";
    let result = lab.run(&GuestJob::shell(script), |_| {}).expect("a guest");
    assert!(result.kernel_release.starts_with("7.3."), "{}", result.kernel_release);
    // The last line is what a tracker that uses DAMON has to know of.
    assert_eq!(result.stdout_text(), "0\n1\nY\n");
}

#[test]
fn a_packaged_qemu_newer_than_the_hosts_runs_from_the_cache() {
    let before = host_state();
    let cache = Cache::of_user().expect("a cache");
    let qemu = Qemu::named("10");
    let Some(program) = had("QEMU 10 of Debian", qemu.program(&cache, &mut |_| {})) else { return };
    assert_eq!(host_state(), before, "the host's apt was changed");
    assert_eq!(program.version.major, 10);
    assert!(program.path.starts_with(cache.root()), "{}", program.path.display());
    let machine = GuestMachine {
        qemu,
        accel: Accel::Tcg,
        timeout: Duration::from_secs(300),
        ..GuestMachine::default()
    };
    let lab = Lab::new(LabConfig { machine, cache_dir: None }).expect("the lab");
    let mut running = None;
    let job = GuestJob::new("true");
    let result = lab.run(&job, |event| {
        if matches!(event, Event::Booted { .. }) {
            running = qemu_of_this_process();
        }
    });
    assert_eq!(result.expect("a guest").exit_code, 0);
    assert_eq!(running.as_deref(), Some(program.path.as_path()));
}

/// The program that this thread's child runs.
fn qemu_of_this_process() -> Option<std::path::PathBuf> {
    let children = std::fs::read_to_string("/proc/thread-self/children").ok()?;
    let child = children.split_whitespace().next()?;
    std::fs::read_link(Path::new("/proc").join(child).join("exe")).ok()
}

#[test]
fn a_suite_without_the_package_is_named_in_one_line() {
    let cache = Cache::of_user().expect("a cache");
    let packages = Packages::of_suite(&cache, Suite::TrixieBackports);
    // That there are lists at all.
    let kernel = Kernel::named("debian-7.3").image(&cache, &mut |_| {});
    if had("the lists of trixie-backports", kernel).is_none() {
        return;
    }
    let error = packages.get("terrace-no-such-package", &mut |_| {}).expect_err("no such package");
    let error = error.to_string();
    assert!(error.contains("trixie-backports") && !error.contains('\n'), "{error}");
    let error = Kernel::named("debian-7.99").image(&cache, &mut |_| {}).expect_err("no such");
    assert!(error.to_string().contains("7.99.*-cloud-amd64"), "{error}");
    let error = Qemu::named("99").program(&cache, &mut |_| {}).expect_err("no such");
    let error = error.to_string();
    assert!(error.contains("no version 99") && error.contains("has 1:"), "{error}");
}

//! Conflicts on this host: settings and programs that spoil tracking or migration, found at the
//! start, each reported in one line with its remedy.

use std::fmt;
use std::path::PathBuf;

use terrace_core::page::{GroupPages, PageSize};

use crate::damon;
use crate::files::{self, FileError};
use crate::journal::setting_value;
use crate::pagemap;
use crate::process;
use crate::roots::{DAMON_MODULES, Roots};
use crate::session::{Session, SessionError};
use crate::tiers::Topology;

/// Severity of a conflict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Severity {
    /// Tracking or migration is impossible.
    Fatal,
    /// Results would be wrong, or the kernel would move pages too. This change removes the
    /// conflict; the run may make it and restore it.
    Fixable(Fix),
    /// For information.
    Warning,
}

/// A change that removes a conflict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// Write this value to this file.
    Set {
        /// The file.
        path: PathBuf,
        /// The value.
        value: &'static str,
    },
    /// Mount the trace file system.
    MountTracefs,
}

impl Fix {
    /// Makes the change, journaled.
    pub fn apply(&self, session: &Session) -> Result<(), SessionError> {
        match self {
            Fix::Set { path, value } => session.set(path, value),
            Fix::MountTracefs => session.mount_tracefs(),
        }
    }
}

/// A conflict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Its name, for tests and programs.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was got and what was expected.
    pub found: String,
    /// The remedy.
    pub remedy: String,
}

impl Conflict {
    /// Whether nothing can be tracked as long as it exists: a dry run is refused for it, and starts
    /// with conflicts that only spoil results.
    pub fn prevents_tracking(&self) -> bool {
        ["damon_module", "tracefs_unmounted"].contains(&self.name)
    }

    /// Whether it concerns a run that tracks and moves nothing. Other programs that clear accessed
    /// bits concern it too, but not enough to change a host.
    pub fn concerns_tracking(&self) -> bool {
        const OTHERS: [&str; 8] = [
            "one_tier",
            "cap_sys_nice",
            "mglru",
            "numa_balancing",
            "demotion",
            "thp_missing",
            "thp_off",
            "thp_madvise",
        ];
        !OTHERS.contains(&self.name) && self.name != "thp_on"
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.found, self.remedy)
    }
}

/// The intended use of the host, as far as conflicts depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intent {
    /// Some group is tracked in huge pages.
    pub huge: bool,
    /// Some group is tracked in base pages.
    pub base: bool,
    /// Some group is a control group.
    pub cgroups: bool,
}

impl Intent {
    /// An intent to track control groups in these pages. Ranges are tracked whatever maps them: no
    /// setting of huge pages conflicts.
    pub fn of(groups: impl IntoIterator<Item = GroupPages>) -> Self {
        let mut intent = Intent { huge: false, base: false, cgroups: true };
        for pages in groups {
            intent.huge |= pages == GroupPages::Huge;
            intent.base |= pages == GroupPages::Base;
        }
        intent
    }
}

const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_NICE: u32 = 23;

/// Whether this process may move pages that other processes share.
pub fn may_move_shared(roots: &Roots) -> bool {
    process::capabilities(roots, "self").ok().flatten().is_some_and(|c| c >> CAP_SYS_NICE & 1 != 0)
}

/// Missing rights of this process: checked first, so that a run without them gets this error and
/// not that some file could not be opened.
pub fn privileges(roots: &Roots) -> Result<Vec<Conflict>, FileError> {
    let Some(mask) = process::capabilities(roots, "self")? else { return Ok(Vec::new()) };
    let lacks = |bit: u32| mask >> bit & 1 == 0;
    let mut found = Vec::new();
    for (bit, name) in [(CAP_SYS_ADMIN, "CAP_SYS_ADMIN"), (CAP_SYS_PTRACE, "CAP_SYS_PTRACE")] {
        if lacks(bit) {
            found.push(Conflict {
                name: "privileges",
                severity: Severity::Fatal,
                found: format!("this process lacks {name}, expected a privileged process"),
                remedy: "run it as root".to_owned(),
            });
        }
    }
    if found.is_empty() && lacks(CAP_SYS_NICE) {
        found.push(Conflict {
            name: "cap_sys_nice",
            severity: Severity::Warning,
            found: "this process lacks CAP_SYS_NICE".to_owned(),
            remedy: "pages that several processes share stay where they are; run it as root to move them too".to_owned(),
        });
    }
    Ok(found)
}

/// All conflicts with this intent.
pub fn find(
    roots: &Roots,
    topology: &Topology,
    intent: Intent,
    pagemap_scan: PagemapScan,
) -> Result<Vec<Conflict>, FileError> {
    let mut found = privileges(roots)?;
    let mut add = |name, severity, message: String, remedy: String| {
        found.push(Conflict { name, severity, found: message, remedy });
    };

    if !topology.is_tiered() {
        add(
            "one_tier",
            Severity::Fatal,
            format!(
                "all memory nodes ({:?}) are of one tier, expected two or more",
                topology.fast_nodes()
            ),
            "name fast and slow nodes yourself, or run in the virtual machine".to_owned(),
        );
    }
    if pagemap_scan == PagemapScan::Missing {
        add(
            "pagemap_scan",
            Severity::Fatal,
            "this kernel has no PAGEMAP_SCAN, expected Linux 6.7 or later".to_owned(),
            "boot a newer kernel, such as Debian's 6.12".to_owned(),
        );
    }
    damon_users(roots, &mut found)?;
    trace_files(roots, &mut found);
    control_groups(roots, intent, &mut found)?;
    settings(roots, intent, &mut found)?;
    Ok(found)
}

/// Kernels without DAMON, and other users of it.
fn damon_users(roots: &Roots, found: &mut Vec<Conflict>) -> Result<(), FileError> {
    let mut add = |name, severity, message: String, remedy: String| {
        found.push(Conflict { name, severity, found: message, remedy });
    };
    let nr_kdamonds = roots.kdamonds().join("nr_kdamonds");
    match damon::threads(roots)? {
        None => add(
            "damon_missing",
            Severity::Fatal,
            format!("{} does not exist, expected a kernel with DAMON", nr_kdamonds.display()),
            "boot a kernel with CONFIG_DAMON_SYSFS and CONFIG_DAMON_VADDR, such as Debian's 6.12"
                .to_owned(),
        ),
        Some(0) => {}
        Some(threads) => add(
            "damon_user",
            Severity::Fatal,
            format!("DAMON is used by another program ({threads} kdamonds), expected 0"),
            format!("stop that user, then: echo 0 > {}", nr_kdamonds.display()),
        ),
    }
    if let Some(operations) = damon::lacks_operations(roots)? {
        add(
            "damon_operations",
            Severity::Fatal,
            format!(
                "this kernel's DAMON observes no programs (it has {operations}), expected fvaddr"
            ),
            "boot a kernel with CONFIG_DAMON_VADDR, such as Debian's 6.12".to_owned(),
        );
    }
    for module in DAMON_MODULES {
        let path = roots.damon_module(module);
        if files::read(&path)?.is_none_or(|v| v.trim() != "Y") {
            continue;
        }
        let remedy = format!("echo N > {}", path.display());
        // Kernels have this module on by default, without a user; the others were turned on by
        // someone.
        let severity = match module {
            "damon_stat" => Severity::Fixable(Fix::Set { path, value: "N" }),
            _ => Severity::Fatal,
        };
        let message = format!("{module} runs and keeps other users from DAMON, expected it off");
        add("damon_module", severity, message, remedy);
    }
    Ok(())
}

/// Kernels without the trace files of DAMON's records.
fn trace_files(roots: &Roots, found: &mut Vec<Conflict>) {
    let mut add = |name, severity, message: String, remedy: String| {
        found.push(Conflict { name, severity, found: message, remedy });
    };
    let tracing = roots.tracing();
    if !tracing.exists() {
        add(
            "tracefs_missing",
            Severity::Fatal,
            format!("{} does not exist, expected a kernel with tracing", tracing.display()),
            "boot a kernel with CONFIG_FTRACE, such as Debian's 6.12".to_owned(),
        );
    } else if !tracing.join("instances").exists() {
        add(
            "tracefs_unmounted",
            Severity::Fixable(Fix::MountTracefs),
            format!("the trace file system is not mounted at {}", tracing.display()),
            format!("mount -t tracefs tracefs {}", tracing.display()),
        );
    } else if !tracing.join("events/damon/damon_aggregated").exists() {
        add(
            "tracepoint_missing",
            Severity::Fatal,
            "this kernel has no tracepoint damon:damon_aggregated, expected one".to_owned(),
            "boot a kernel with DAMON and tracepoints, such as Debian's 6.12".to_owned(),
        );
    }
}

/// Hosts without control groups of version 2, or without their memory controller.
fn control_groups(
    roots: &Roots,
    intent: Intent,
    found: &mut Vec<Conflict>,
) -> Result<(), FileError> {
    let mut add = |name, severity, message: String, remedy: String| {
        found.push(Conflict { name, severity, found: message, remedy });
    };
    let controllers = roots.cgroup().join("cgroup.controllers");
    match files::read(&controllers)? {
        None if intent.cgroups => add(
            "cgroup_v1",
            Severity::Fatal,
            format!(
                "{} does not exist, expected control groups of version 2",
                controllers.display()
            ),
            "boot with systemd.unified_cgroup_hierarchy=1, or name processes instead of groups"
                .to_owned(),
        ),
        Some(text) if intent.cgroups && !text.split_whitespace().any(|c| c == "memory") => add(
            "memory_controller",
            Severity::Warning,
            "control groups have no memory controller".to_owned(),
            "memory outside the tracked pages is not counted; enable the controller to have it"
                .to_owned(),
        ),
        _ => {}
    }
    Ok(())
}

/// Of these, the conflicts that remain when the Terrace kernel's scan reads accessed bits: it needs
/// neither DAMON nor tracing, and has the bits that reclaim clears.
pub(crate) fn of_scans(mut found: Vec<Conflict>) -> Vec<Conflict> {
    const OTHERS: [&str; 8] = [
        "damon_missing",
        "damon_operations",
        "damon_user",
        "damon_module",
        "tracefs_missing",
        "tracefs_unmounted",
        "tracepoint_missing",
        "mglru",
    ];
    found.retain(|c| !OTHERS.contains(&c.name));
    found
}

/// Kernel settings that spoil results or move pages too.
fn settings(roots: &Roots, intent: Intent, found: &mut Vec<Conflict>) -> Result<(), FileError> {
    let mut fixable = |name, path: PathBuf, value: &'static str, message: &str| {
        found.push(Conflict {
            name,
            remedy: format!("echo {value} > {}", path.display()),
            severity: Severity::Fixable(Fix::Set { path, value }),
            found: message.to_owned(),
        });
    };
    let path = roots.lru_gen();
    if let Some(text) = files::read(&path)? {
        let digits = text.trim().trim_start_matches("0x");
        let on = u32::from_str_radix(digits, 16)
            .map_err(|_| FileError::malformed(&path, &text, "a number such as 0x0007"))?;
        if on & 1 != 0 {
            let message = "multi-generational LRU is on, and its aging clears accessed bits \
                           before they are read";
            fixable("mglru", path, "0x0000", message);
        }
    }
    let path = roots.numa_balancing();
    if files::read_number::<u32>(&path)?.is_some_and(|mode| mode != 0) {
        let message = "automatic NUMA balancing is on, and moves pages independently of the policy";
        fixable("numa_balancing", path, "0", message);
    }
    let path = roots.demotion();
    if files::read(&path)?.is_some_and(|v| v.trim() == "true") {
        let message = "demotion by reclaim is on, and moves pages independently of the policy";
        fixable("demotion", path, "false", message);
    }
    let path = roots.huge_pages();
    match files::read(&path)? {
        None if intent.huge => found.push(Conflict {
            name: "thp_missing",
            severity: Severity::Fatal,
            found: format!("{} does not exist, expected transparent huge pages", path.display()),
            remedy: "ask for 4K pages, or boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE"
                .to_owned(),
        }),
        Some(text) => match setting_value(&text) {
            "never" if intent.huge => {
                let message = "transparent huge pages are off and 2M pages are asked for";
                fixable("thp_off", path, "always", message);
            }
            "madvise" if intent.huge => found.push(Conflict {
                name: "thp_madvise",
                severity: Severity::Warning,
                found: "only programs that ask for huge pages get them".to_owned(),
                remedy: format!("for all programs: echo always > {}", path.display()),
            }),
            "always" if intent.base => found.push(Conflict {
                name: "thp_on",
                severity: Severity::Warning,
                found: "programs get huge pages, which a group of 4K pages does not track"
                    .to_owned(),
                remedy: format!("before they start: echo never > {}", path.display()),
            }),
            _ => {}
        },
        None => {}
    }
    Ok(())
}

/// Whether the kernel has the `PAGEMAP_SCAN` ioctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagemapScan {
    /// The kernel has it.
    Present,
    /// The kernel is older.
    Missing,
}

impl PagemapScan {
    /// Tries it on this process.
    pub fn probe(roots: &Roots) -> Self {
        let own = process::alive(roots, std::process::id()).ok().flatten();
        let pagemap = own.and_then(|p| pagemap::Pagemap::open(roots, p).ok().flatten());
        let (mut answers, mut left_out) = Default::default();
        match pagemap.map(|p| p.runs(roots, PageSize::Huge, &mut answers, &mut left_out)) {
            Some(Err(e)) if e.errno() == Some(libc::ENOTTY) => PagemapScan::Missing,
            _ => PagemapScan::Present,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{clean_host, put};
    use crate::tiers;
    use std::fs;

    fn names(roots: &Roots, intent: Intent) -> Vec<(&'static str, &'static str)> {
        let topology = tiers::discover(roots).unwrap();
        let found = find(roots, &topology, intent, PagemapScan::Present).unwrap();
        found
            .iter()
            .map(|c| {
                assert!(!c.to_string().contains('\n') && !c.remedy.is_empty());
                let severity = match c.severity {
                    Severity::Fatal => "fatal",
                    Severity::Fixable(_) => "fixable",
                    Severity::Warning => "warning",
                };
                (c.name, severity)
            })
            .collect()
    }

    const HUGE: Intent = Intent { huge: true, base: false, cgroups: true };

    #[test]
    fn a_clean_host_has_none() {
        let (_keep, roots) = clean_host();
        assert_eq!(names(&roots, HUGE), []);
    }

    #[test]
    fn each_conflict_is_found_alone() {
        let tier = "sys/devices/virtual/memory_tiering/memory_tier4/nodelist";
        let thp = "sys/kernel/mm/transparent_hugepage/enabled";
        let cases: &[(&str, Option<&str>, &str, &str)] = &[
            ("sys/kernel/mm/lru_gen/enabled", Some("0x0007\n"), "mglru", "fixable"),
            ("proc/sys/kernel/numa_balancing", Some("1\n"), "numa_balancing", "fixable"),
            ("sys/kernel/mm/numa/demotion_enabled", Some("true\n"), "demotion", "fixable"),
            (thp, Some("always madvise [never]\n"), "thp_off", "fixable"),
            (thp, Some("always [madvise] never\n"), "thp_madvise", "warning"),
            (thp, None, "thp_missing", "fatal"),
            ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", Some("1\n"), "damon_user", "fatal"),
            ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", None, "damon_missing", "fatal"),
            ("sys/module/damon_reclaim/parameters/enabled", Some("Y\n"), "damon_module", "fatal"),
            ("sys/module/damon_stat/parameters/enabled", Some("Y\n"), "damon_module", "fixable"),
            ("sys/kernel/tracing", None, "tracefs_missing", "fatal"),
            ("sys/kernel/tracing/instances", None, "tracefs_unmounted", "fixable"),
            ("sys/kernel/tracing/events", None, "tracepoint_missing", "fatal"),
            ("sys/fs/cgroup/cgroup.controllers", None, "cgroup_v1", "fatal"),
            ("sys/fs/cgroup/cgroup.controllers", Some("cpu\n"), "memory_controller", "warning"),
            ("proc/self/status", Some("CapEff:\t0000000000000000\n"), "privileges", "fatal"),
            ("proc/self/status", Some("CapEff:\t0000000000280000\n"), "cap_sys_nice", "warning"),
            (tier, Some("0-1\n"), "one_tier", "fatal"),
        ];
        for (path, text, name, severity) in cases {
            let (keep, roots) = clean_host();
            match text {
                Some(text) => put(keep.path(), path, text),
                None if keep.path().join(path).is_dir() => {
                    fs::remove_dir_all(keep.path().join(path)).unwrap();
                }
                None => fs::remove_file(keep.path().join(path)).unwrap(),
            }
            if *name == "one_tier" {
                let other = "sys/devices/virtual/memory_tiering/memory_tier84/nodelist";
                put(keep.path(), other, "\n");
                put(keep.path(), "sys/devices/system/node/has_cpu", "0-1\n");
            }
            let found = names(&roots, HUGE);
            assert!(!found.is_empty(), "{name} not found");
            assert!(found.iter().all(|f| f == &(*name, *severity)), "{name}: {found:?}");
        }
    }

    #[test]
    fn a_kernel_whose_damon_observes_no_programs_is_known_by_another_users_context() {
        let (keep, roots) = clean_host();
        let admin = "sys/kernel/mm/damon/admin/kdamonds";
        put(keep.path(), &format!("{admin}/nr_kdamonds"), "1\n");
        let available = format!("{admin}/0/contexts/0/avail_operations");
        put(keep.path(), &available, "vaddr\nfvaddr\npaddr\n");
        assert_eq!(names(&roots, HUGE), [("damon_user", "fatal")]);
        put(keep.path(), &available, "paddr\n");
        assert_eq!(names(&roots, HUGE), [("damon_user", "fatal"), ("damon_operations", "fatal")]);
        // It is the last word on accessed bits, too.
        let bits = crate::backend::accessed_bits(&roots);
        assert!(bits.as_ref().is_err_and(|why| why.contains("CONFIG_DAMON_VADDR")), "{bits:?}");
    }

    #[test]
    fn the_terrace_kernels_scan_needs_neither_damon_nor_a_quiet_reclaim() {
        let (keep, roots) = clean_host();
        put(keep.path(), "sys/kernel/mm/lru_gen/enabled", "0x0007\n");
        put(keep.path(), "proc/sys/kernel/numa_balancing", "1\n");
        fs::remove_dir_all(keep.path().join("sys/kernel/mm/damon")).unwrap();
        fs::remove_dir_all(keep.path().join("sys/kernel/tracing")).unwrap();
        let topology = tiers::discover(&roots).unwrap();
        let found = find(&roots, &topology, HUGE, PagemapScan::Present).unwrap();
        assert_eq!(found.len(), 4, "{found:?}");
        let left: Vec<_> = of_scans(found).into_iter().map(|c| c.name).collect();
        assert_eq!(left, ["numa_balancing"]);
    }

    #[test]
    fn what_does_not_matter_for_the_intent_is_not_reported() {
        let (keep, roots) = clean_host();
        fs::remove_file(keep.path().join("sys/fs/cgroup/cgroup.controllers")).unwrap();
        let base = Intent { huge: false, base: true, cgroups: false };
        assert_eq!(names(&roots, base), [("thp_on", "warning")]);
    }

    #[test]
    fn an_old_kernel_is_reported() {
        let (_keep, roots) = clean_host();
        let topology = tiers::discover(&roots).unwrap();
        let found = find(&roots, &topology, HUGE, PagemapScan::Missing).unwrap();
        assert_eq!(found[0].name, "pagemap_scan");
    }

    #[test]
    fn a_fix_is_made_and_taken_back() {
        let (keep, roots) = clean_host();
        put(keep.path(), "sys/kernel/mm/lru_gen/enabled", "0x0007\n");
        let topology = tiers::discover(&roots).unwrap();
        let found = find(&roots, &topology, HUGE, PagemapScan::Present).unwrap();
        let session = Session::open(&roots, None).unwrap();
        let Severity::Fixable(fix) = &found[0].severity else { panic!("{found:?}") };
        fix.apply(&session).unwrap();
        assert_eq!(fs::read_to_string(roots.lru_gen()).unwrap(), "0x0000");
        assert!(session.restore().is_empty());
        assert_eq!(fs::read_to_string(roots.lru_gen()).unwrap(), "0x0007");
    }
}

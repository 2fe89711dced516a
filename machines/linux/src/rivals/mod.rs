//! Linux's own mechanisms for two tiers, by name, so that they can be compared with the policies of
//! Terrace: with the same programs, the same fast memory and the same columns of results.
//!
//! A rival is a set of kernel settings, and perhaps a part of the kernel that is started; while it
//! runs, Terrace tracks and moves nothing. Settings are conflicts like any other: reported with
//! their remedy, changed if permitted, journaled, restored.

mod balancing;
mod damon;
mod nothing;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_core::page::PageSize;

use crate::cgroup::Cgroup;
use crate::conflicts::{self, Conflict, Fix, PagemapScan, Severity};
use crate::files::{self, FileError};
use crate::filler::{self, Filled};
use crate::group_layout::{LayoutReader, Source};
use crate::host::{HostError, HostOptions, fix};
use crate::journal::setting_value;
use crate::process;
use crate::roots::Roots;
use crate::session::Session;
use crate::tiers::{self, Topology};

/// A setting that a rival needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its file.
    pub path: PathBuf,
    /// What it has to be.
    pub value: &'static str,
    /// Description.
    pub what: &'static str,
    /// The kernel option that provides it.
    pub option: &'static str,
}

/// A mechanism of Linux that places pages by itself.
pub trait Rival: fmt::Debug + Sync {
    /// Its name, in the column of policies.
    fn name(&self) -> &'static str;
    /// Description in a line.
    fn summary(&self) -> &'static str;
    /// Kernel settings while it runs.
    fn settings(&self, roots: &Roots) -> Vec<Setting>;
    /// Requirements beside settings that this host lacks.
    fn missing(&self, _roots: &Roots) -> Result<Option<Conflict>, FileError> {
        Ok(None)
    }
    /// Starts, once the settings are made. Resources are taken through the session.
    fn begin(
        &self,
        _roots: &Roots,
        _topology: &Topology,
        _session: &Session,
    ) -> Result<(), HostError> {
        Ok(())
    }
}

/// All of them.
pub static ALL: [&dyn Rival; 3] = [&nothing::Nothing, &balancing::Balancing, &damon::Damon];

/// The rival of this name.
pub fn find(name: &str) -> Option<&'static dyn Rival> {
    ALL.into_iter().find(|rival| rival.name() == name)
}

/// Conflicts with a tracker and a policy that are also conflicts with a rival.
const SHARED: [&str; 5] = ["privileges", "one_tier", "cgroup_v1", "thp_off", "thp_missing"];

/// Pages that the kernel itself moved between tiers since it booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelMoves {
    /// Base pages promoted by hint faults.
    pub promoted: u64,
    /// Base pages demoted by reclaim.
    pub demoted: u64,
    /// Base pages migrated for any reason.
    pub migrated: u64,
}

impl KernelMoves {
    /// The present counts.
    pub fn now(roots: &Roots) -> Result<Self, FileError> {
        let text = files::read(&roots.proc.join("vmstat"))?.unwrap_or_default();
        Ok(Self::parse(&text))
    }

    /// From the text of `/proc/vmstat`. Demotions are counted by cause, with more names in every
    /// release.
    fn parse(text: &str) -> Self {
        let mut moves = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            let value: u64 = value.trim().parse().unwrap_or(0);
            match name {
                "pgpromote_success" => moves.promoted = value,
                "pgmigrate_success" => moves.migrated = value,
                name if name.starts_with("pgdemote_") => moves.demoted += value,
                _ => {}
            }
        }
        moves
    }

    /// The difference to earlier counts.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            promoted: self.promoted.saturating_sub(before.promoted),
            demoted: self.demoted.saturating_sub(before.demoted),
            migrated: self.migrated.saturating_sub(before.migrated),
        }
    }
}

/// A host on which a rival runs.
#[derive(Debug)]
pub struct RivalHost {
    roots: Roots,
    rival: &'static dyn Rival,
    topology: Topology,
    conflicts: Vec<Conflict>,
    session: Arc<Session>,
}

impl RivalHost {
    /// Finds conflicts, its own settings included, without changing anything.
    pub fn inspect(
        options: &HostOptions,
        rival: &dyn Rival,
    ) -> Result<(Topology, Vec<Conflict>), HostError> {
        let roots = &options.roots;
        let topology = match &options.nodes {
            Some((fast, slow)) => tiers::given(roots, fast, slow).map_err(HostError::Nodes)?,
            None => tiers::discover(roots)?,
        };
        let mut found = conflicts::find(roots, &topology, options.intent, PagemapScan::Present)?;
        found.retain(|conflict| SHARED.contains(&conflict.name));
        for setting in rival.settings(roots) {
            found.extend(in_the_way(rival, setting)?);
        }
        found.extend(rival.missing(roots)?);
        Ok((topology, found))
    }

    /// Opens the host and makes the rival's settings. Changes that an earlier run left are undone.
    /// All settings must be made, whatever is accepted elsewhere.
    pub fn open(options: &HostOptions, rival: &'static dyn Rival) -> Result<Self, HostError> {
        let lacking = conflicts::privileges(&options.roots)?;
        if lacking.iter().any(|c| c.severity == Severity::Fatal) {
            return Err(HostError::Conflicts(lacking));
        }
        let session = Arc::new(Session::open(&options.roots, options.guard.clone())?);
        let (topology, conflicts) = Self::inspect(options, rival)?;
        let in_the_way = |c: &&Conflict| match c.severity {
            Severity::Fatal => true,
            Severity::Fixable(_) => !options.fix_conflicts,
            Severity::Warning => false,
        };
        let standing: Vec<Conflict> = conflicts.iter().filter(in_the_way).cloned().collect();
        if !standing.is_empty() {
            return Err(HostError::Conflicts(standing));
        }
        fix(&session, &conflicts)?;
        Ok(Self { roots: options.roots.clone(), rival, topology, conflicts, session })
    }

    /// Starts the rival.
    pub fn begin(&self) -> Result<(), HostError> {
        self.rival.begin(&self.roots, &self.topology, &self.session)
    }

    /// The tiers.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Conflicts found at the start, and fixed.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }

    /// Makes a control group that lasts as long as the run.
    pub fn make_cgroup(&self, name: &Path) -> Result<Cgroup, HostError> {
        Ok(self.session.make_cgroup(name)?)
    }

    /// Fills fast memory except for this much: the kernel's headroom, too, which rivals would not keep
    /// free ([`RivalHost::give_headroom`]).
    pub fn leave_free(&self, bytes: u64) -> Result<Filled, HostError> {
        let nodes = self.topology.fast_nodes();
        filler::leave_free(&self.roots, &self.session, &nodes, bytes, false)
    }

    /// Fills fast memory except for what is in use, the kernel's headroom and this much, as far as that is
    /// possible.
    pub fn take_rest(&self, bytes: u64) -> Result<(), HostError> {
        filler::take_rest(&self.roots, &self.session, &self.topology.fast_nodes(), bytes)
    }

    /// Gives the kernel its headroom in fast memory from what was filled: as much as it has where policies
    /// keep it free, so that groups and kernel together have the same fast memory under all.
    pub fn give_headroom(&self, filled: &Filled) -> Result<(), HostError> {
        filler::give_headroom(&self.roots, &self.session, filled)
    }

    /// Bytes of a group in fast memory, and in all memory.
    pub fn placement(&self, source: &Source) -> Result<(u64, u64), HostError> {
        placement(&self.roots, &self.topology, source)
    }

    /// Pages that the kernel has moved since it booted.
    pub fn moves(&self) -> Result<KernelMoves, HostError> {
        Ok(KernelMoves::now(&self.roots)?)
    }

    /// Ends the run and restores everything.
    pub fn close(self) -> Result<(), HostError> {
        match self.session.restore().into_iter().next() {
            Some(error) => Err(HostError::Restore(error)),
            None => Ok(()),
        }
    }
}

/// Bytes of a group's processes in fast memory, and in any. Pages that several processes share count
/// once for each.
fn placement(roots: &Roots, topology: &Topology, source: &Source) -> Result<(u64, u64), HostError> {
    let (mut fast, mut all) = (0, 0);
    let fast_nodes = topology.fast_nodes();
    let mut group = LayoutReader::new(roots.clone(), source.clone(), PageSize::Base, 1);
    for process in group.processes()? {
        // A process that has just ended has none.
        let nodes = process::bytes_per_node(roots, process.pid).unwrap_or_default();
        for (node, bytes) in (0..).zip(nodes) {
            all += bytes;
            fast += if fast_nodes.contains(&node) { bytes } else { 0 };
        }
    }
    Ok((fast, all))
}

/// The conflict of a setting that differs from the rival's.
fn in_the_way(rival: &dyn Rival, setting: Setting) -> Result<Option<Conflict>, FileError> {
    let Setting { path, value, what, option } = setting;
    let name = rival.name();
    Ok(match files::read(&path)? {
        None => Some(Conflict {
            name: "rival_missing",
            severity: Severity::Fatal,
            found: format!("{} does not exist, and '{name}' needs {what}", path.display()),
            remedy: format!("boot a kernel with {option}, such as Debian's"),
        }),
        Some(text) if setting_value(&text) == value => None,
        Some(text) => Some(Conflict {
            name: "rival_setting",
            found: format!("{what} is {}, and '{name}' needs {value}", setting_value(&text)),
            remedy: format!("echo {value} > {}", path.display()),
            severity: Severity::Fixable(Fix::Set { path, value }),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conflicts::Intent;
    use crate::testing::{clean_host, put};
    use std::fs;

    const INTENT: Intent = Intent { huge: true, base: false, cgroups: true };

    fn options(roots: &Roots) -> HostOptions {
        HostOptions { roots: roots.clone(), fix_conflicts: true, ..HostOptions::new(INTENT) }
    }

    fn get(path: &Path) -> String {
        fs::read_to_string(path).unwrap().trim().to_owned()
    }

    #[test]
    fn rivals_are_found_by_name_and_are_no_policies() {
        for rival in ALL {
            assert_eq!(find(rival.name()).unwrap().name(), rival.name());
            assert!(!rival.summary().contains('\n') && !rival.summary().is_empty());
            let policies = terrace_core::policies::REGISTRY;
            assert!(policies.iter().all(|kind| kind.name != rival.name()), "{}", rival.name());
        }
        assert!(find("lru").is_none());
    }

    /// A host with the defaults of Debian's kernel, and with conflicts that concern a tracker but
    /// no rival.
    #[test]
    fn a_rivals_settings_are_made_with_leave_and_taken_back() {
        let (keep, roots) = clean_host();
        put(keep.path(), "proc/sys/kernel/numa_balancing", "1\n");
        put(keep.path(), "sys/kernel/mm/numa/demotion_enabled", "false\n");
        put(keep.path(), "sys/kernel/mm/lru_gen/enabled", "0x0007\n");
        let read = || [roots.numa_balancing(), roots.demotion(), roots.lru_gen()].map(|p| get(&p));
        let before = read();

        let without = HostOptions { fix_conflicts: false, ..options(&roots) };
        let error = RivalHost::open(&without, find("linux").unwrap()).unwrap_err().to_string();
        assert!(error.contains("echo 2 >") && error.contains("echo true >"), "{error}");
        assert_eq!(read(), before);

        for (name, expected) in
            [("linux", ["2", "true", "0x0007"]), ("nothing", ["0", "false", "0x0007"])]
        {
            let host = RivalHost::open(&options(&roots), find(name).unwrap()).unwrap();
            assert_eq!(read(), expected, "{name}");
            host.close().unwrap();
            assert_eq!(read(), before, "{name}");
        }
    }

    /// DAMON's threads watch physical memory, which those of a tracker never do, and DAMON_STAT was
    /// on.
    #[test]
    fn damons_threads_and_settings_are_taken_back() {
        let (keep, roots) = clean_host();
        damon::put_kernel(keep.path(), true);
        put(keep.path(), "sys/module/damon_stat/parameters/enabled", "Y\n");
        let threads = || get(&roots.kdamonds().join("nr_kdamonds"));
        let host = RivalHost::open(&options(&roots), find("damon").unwrap()).unwrap();
        host.begin().unwrap();
        assert_eq!(
            (threads().as_str(), get(&roots.damon_module("damon_stat")).as_str()),
            ("2", "N")
        );
        host.close().unwrap();
        assert_eq!(
            (threads().as_str(), get(&roots.damon_module("damon_stat")).as_str()),
            ("0", "Y")
        );
        assert_eq!(get(&roots.kdamonds().join("1/state")), "off");
    }

    #[test]
    fn a_kernel_without_the_mechanism_is_named() {
        let (keep, roots) = clean_host();
        fs::remove_file(keep.path().join("proc/sys/kernel/numa_balancing")).unwrap();
        let error = RivalHost::open(&options(&roots), find("linux").unwrap()).unwrap_err();
        assert!(error.to_string().contains("CONFIG_NUMA_BALANCING"), "{error}");
        let (keep, roots) = clean_host();
        fs::remove_file(keep.path().join("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds"))
            .unwrap();
        let error = RivalHost::open(&options(&roots), find("damon").unwrap()).unwrap_err();
        assert!(error.to_string().contains("CONFIG_DAMON_PADDR"), "{error}");
    }

    #[test]
    fn the_kernels_own_moves_are_counted_whoever_asked_for_them() {
        let text = "pgpromote_success 30\npgpromote_candidate 90\npgdemote_kswapd 4\n\
                    pgdemote_direct 5\npgdemote_khugepaged 6\npgdemote_proactive 7\n\
                    pgmigrate_success 60\nx\n";
        let moves = KernelMoves::parse(text);
        assert_eq!(moves, KernelMoves { promoted: 30, demoted: 22, migrated: 60 });
        let before = KernelMoves { promoted: 10, demoted: 40, migrated: 0 };
        assert_eq!(moves.since(before), KernelMoves { promoted: 20, demoted: 0, migrated: 60 });
    }
}

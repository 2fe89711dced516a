//! This host as the service's machine: control groups of version 2, DAMON, `move_pages`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use terrace_core::page::SpaceId;
use terrace_linux::cgroup::Cgroup;
use terrace_linux::cgroup_tree::{self, Survey};
use terrace_linux::conflicts::{Conflict, Intent, Severity};
use terrace_linux::files;
use terrace_linux::numa;
use terrace_linux::pressure;
use terrace_linux::process;
use terrace_linux::roots::Roots;
use terrace_linux::sampling::Samples;
use terrace_linux::session::GuardHealth;
use terrace_linux::tiers::Topology;
use terrace_linux::{GroupSpec, GuardCommand, Host, HostError, HostOptions, Source};

use crate::config::{Config, Settings};
use crate::discover::{BOUNDS, Wanted};
use crate::history::Identity;
use crate::machine::{Attached, Machine, Probe};
use crate::status::MachineStatus;

/// Interval of checks for nodes with memory.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// Page sizes that a configuration needs of a host.
#[must_use]
pub fn intent(config: &Config) -> Intent {
    Intent::of(config.groups.iter().map(|g| g.get_ref().page_size))
}

/// How a configuration opens a host, without a guard.
#[must_use]
pub fn options(config: &Config, roots: Roots) -> HostOptions {
    let d = &config.daemon;
    HostOptions {
        roots,
        fix_conflicts: d.fix_conflicts,
        dry_run: config.is_dry(),
        nodes: (!d.fast_nodes.is_empty()).then(|| (d.fast_nodes.clone(), d.slow_nodes.clone())),
        max_groups: d.max_groups,
        sample_reads: d.sample_reads,
        hint_faults: d.hint_faults,
        ..HostOptions::new(intent(config))
    }
}

/// This host, opened.
pub struct Live {
    roots: Roots,
    host: Host,
    notes: Vec<String>,
    latency_ratio: f64,
    max_processes: usize,
    guard: GuardHealth,
    /// Time of the next check of nodes.
    next_check: Instant,
}

impl Live {
    /// Opens the host as the configuration says: restores what an earlier run changed, and changes
    /// conflicting settings if permitted.
    pub fn open(
        config: &Config,
        roots: Roots,
        guard: Option<GuardCommand>,
    ) -> Result<Self, HostError> {
        let host = Host::open(HostOptions { guard, ..options(config, roots.clone()) })?;
        let d = &config.daemon;
        let latency_ratio = d.latency_ratio;
        let mut live = Live {
            roots,
            host,
            notes: Vec::new(),
            latency_ratio,
            max_processes: d.max_processes,
            guard: GuardHealth { deaths: 0, is_guarded: true },
            next_check: Instant::now(),
        };
        live.note_conflicts();
        Ok(live)
    }

    fn note_conflicts(&mut self) {
        let done = match self.host.is_dry_run() {
            true => "not changed in a dry run",
            false => "changed until the end",
        };
        let note = |c: &Conflict| match c.severity {
            Severity::Fixable(_) => format!("{}; {done}", c.found),
            _ => c.to_string(),
        };
        self.notes = self.host.conflicts().iter().map(note).collect();
    }

    /// Restores all settings. Groups must have been released.
    pub fn close(self) -> Result<(), String> {
        self.host.close().map_err(|e| e.to_string())
    }
}

/// Latency of the nearest slow node over that of the fastest fast node, if both are reported.
fn stated_ratio(topology: &Topology) -> Option<f64> {
    let least = |tier: &terrace_linux::tiers::Tier| {
        tier.nodes.iter().filter_map(|n| n.performance.read_latency_ns).min()
    };
    let fast = least(topology.tiers.first()?)?;
    let slow = least(topology.tiers.get(1)?)?;
    (fast > 0 && slow >= fast).then(|| slow as f64 / fast as f64)
}

impl Machine for Live {
    fn groups(&mut self, wanted: &[Wanted]) -> Result<Survey, String> {
        let reached = |path: &str| wanted.iter().any(|w| w.reaches(path));
        cgroup_tree::walk(&self.roots.cgroup(), BOUNDS, &reached).map_err(|e| e.to_string())
    }

    fn attach(
        &mut self,
        cgroup: &str,
        settings: &Settings,
        stop: Arc<AtomicBool>,
    ) -> Result<Attached, String> {
        let group = Cgroup::new(&self.roots, Path::new(cgroup));
        let processes = group.processes().map_err(|e| e.to_string())?.len();
        if let Some(reason) = too_many(processes, self.max_processes) {
            return Err(reason);
        }
        let mut spec = GroupSpec::new(
            &settings.entry,
            Source::Cgroup(group.path().to_owned()),
            settings.page_size,
            settings.period_ms,
        );
        spec.by_range = settings.by_range;
        spec.cap_pages = settings.cap_pages;
        spec.samples = Samples::Several;
        // What changes nothing moves no page for a flush and places no page table.
        spec.flush = !settings.dry_run;
        spec.tables = settings.tables.filter(|_| !settings.dry_run).map(Into::into);
        spec.stall_ms = settings.throttle.stall_ms;
        spec.move_share = settings.throttle.move_share;
        spec.stop = Some(stop);
        let attached = self.host.attach(vec![spec]).map_err(|e| e.to_string())?;
        let attached = attached.into_iter().next().ok_or("no kernel thread is free")?;
        Ok(Attached {
            slot: attached.slot,
            tracker: Box::new(attached.tracker),
            mover: Box::new(attached.mover),
            costs: attached.costs,
            probe: Box::new(LiveProbe {
                roots: self.roots.clone(),
                group,
                max_processes: self.max_processes,
            }),
        })
    }

    fn release(&mut self, slot: u32) {
        self.host.release(slot);
    }

    fn status(&mut self) -> MachineStatus {
        let topology = self.host.topology();
        let total = |nodes: &[u32]| -> u64 {
            let memory = |n: &u32| numa::memory(&self.roots, *n).ok().flatten();
            nodes.iter().filter_map(memory).map(|m| m.total_bytes).sum()
        };
        let fast_nodes = topology.fast_nodes();
        let slow_nodes = topology.slow_nodes();
        let free = |n: &u32| numa::room(&self.roots, *n).unwrap_or_default().bytes();
        let signals = self.host.signals().into_iter().map(|signal| signal.line);
        let given = Some(self.latency_ratio).filter(|r| *r > 0.0);
        MachineStatus {
            fast_bytes: total(&fast_nodes),
            fast_free_bytes: fast_nodes.iter().map(free).sum(),
            // Filled in by the service, which knows the groups.
            unmanaged_fast_bytes: 0,
            slow_bytes: total(&slow_nodes),
            source: topology.source.to_string(),
            latency_ratio: given.or_else(|| stated_ratio(topology)),
            notes: self.notes.iter().cloned().chain(signals).collect(),
            mechanism: self.host.mechanism().to_owned(),
            guard_deaths: self.guard.deaths,
            is_guarded: self.guard.is_guarded,
            fast_nodes,
            slow_nodes,
        }
    }

    fn watch(&mut self) -> Option<String> {
        self.guard = self.host.watch_guard();
        let now = Instant::now();
        if now < self.next_check {
            return None;
        }
        self.next_check = now + CHECK_EVERY;
        self.host.follow_nodes().unwrap_or_else(|error| {
            tracing::warn!(%error, "the nodes with memory are not known; the old ones hold");
            None
        })
    }

    fn end_dry_run(&mut self) -> Result<(), String> {
        let ended = self.host.end_dry_run().map_err(|e| e.to_string());
        self.note_conflicts();
        ended
    }

    fn prepare(&mut self, config: &Config) -> Result<(), String> {
        let prepared = self.host.intend(intent(config)).map_err(|e| e.to_string());
        self.note_conflicts();
        prepared
    }

    fn boot(&mut self) -> String {
        let boot = files::read(&self.roots.proc.join("sys/kernel/random/boot_id"));
        boot.ok().flatten().unwrap_or_default().trim().to_owned()
    }

    fn identity(&mut self, cgroup: &str, period_ms: u64) -> Identity {
        let boot = self.boot();
        let group = Cgroup::new(&self.roots, Path::new(cgroup));
        let pids = group.processes().unwrap_or_default();
        let alive = |pid| process::alive(&self.roots, pid).ok().flatten();
        let processes = pids.into_iter().filter_map(alive).map(|p| (p.pid, p.start_ticks));
        Identity { cgroup: cgroup.to_owned(), boot, processes: processes.collect(), period_ms }
    }
}

/// The reason why a group of so many processes is not managed, if it is too large.
fn too_many(processes: usize, most: usize) -> Option<String> {
    (processes > most)
        .then(|| format!("it has {processes} processes, expected at most {most}: max_processes"))
}

struct LiveProbe {
    roots: Roots,
    group: Cgroup,
    max_processes: usize,
}

impl Probe for LiveProbe {
    fn pagetable_bytes(&mut self) -> Vec<u64> {
        self.group.memory().ok().flatten().and_then(|m| m.pagetables_bytes).unwrap_or_default()
    }

    fn collapses(&mut self) -> Option<u64> {
        self.group.collapses().ok().flatten()
    }

    fn stalls_us(&mut self) -> Option<(u64, u64)> {
        let group = pressure::of_group(&self.group).ok().flatten()?;
        let host = pressure::of_host(&self.roots).ok().flatten()?;
        Some((group.some_us, host.full_us))
    }

    fn refusal(&mut self) -> Option<String> {
        // The tracker reports a group that is gone.
        too_many(self.group.processes().map_or(0, |pids| pids.len()), self.max_processes)
    }

    fn identity(&mut self, spaces: &[SpaceId]) -> Vec<(u32, u64)> {
        let alive = |space: &SpaceId| process::alive(&self.roots, space.0).ok().flatten();
        spaces.iter().filter_map(alive).map(|p| (p.pid, p.start_ticks)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_asked_for_the_page_sizes_of_the_groups() {
        let of = |sizes: &[&str]| {
            let group = |size: &&str| {
                format!(
                    "[[groups]]\nname = \"g{size}\"\ncgroup = \"/g{size}\"\npage_size = \"{size}\"\nfast_ratio = 0.5\n"
                )
            };
            let text = sizes.iter().map(group).collect::<String>();
            let intent = intent(&Config::parse(&text, "t.toml").unwrap());
            (intent.huge, intent.base)
        };
        assert_eq!(of(&["2M"]), (true, false));
        assert_eq!(of(&["4K"]), (false, true));
        assert_eq!(of(&["4K", "2M"]), (true, true));
    }
}

//! Runs on this host's own tiers: starts the workloads, each in a control group of its own, tracks
//! and moves their pages, and restores the host's settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};
use terrace_core::interfaces::{Mover as _, Tracker as _};
use terrace_core::live_policy::LivePolicy;
use terrace_core::page::{GroupPages, PageSize};
use terrace_core::policy::Allocation;
use terrace_engine::{Engine, Group, Options};
use terrace_linux::cgroup::Cgroup;
use terrace_linux::conflicts::{self, Intent, Severity};
use terrace_linux::costs::{CostSnapshot, Costs};
use terrace_linux::process;
use terrace_linux::rivals::{KernelMoves, RivalHost};
use terrace_linux::roots::Roots;
use terrace_linux::sampling::Samples;
use terrace_linux::signals::SignalReport;
use terrace_linux::tiers::Topology;
use terrace_linux::{
    AttachedGroup, GroupSpec as Attach, GuardCommand, Host, HostError, HostOptions, Source,
    termination,
};
use terrace_results::RunRow;
use terrace_workloads::kinds::{self, LiveContext, LiveWorkload, WorkloadResult};
use terrace_workloads::session::{MemoryPolicy, Session, SessionOptions};

use crate::backend::{self, Backend};
use crate::collect::Collector;
use crate::external;
use crate::file::{Experiment, GroupSpec};
use crate::full_node::{fill_up, with_note};
use crate::kept_off::KeptOff;
use crate::measured::{Measured, WarmUpWork};
use crate::page_tables::{self, TableCounts};
use crate::private_folder::private_folder;
use crate::rival;
use crate::rows::Rows;
use crate::run::{Event, Events, Request, Run, write_whole};
use terrace_core::{InputError, refuse};

/// Prefix of the names of control groups that a run makes.
const CGROUP_PREFIX: &str = "terrace-";

/// Periods that programs run beyond those of the experiment: setting up the tracker takes time
/// after they have started.
const SLACK_PERIODS: u64 = 3;
/// Factor on the run time of programs that a mark ends: periods of a busy guest whose clock counts
/// instructions last longer than their nominal length.
const MARKED_TIMES: u64 = 20;
/// Time to set up a tracker under such a clock.
const MARKED_SLACK_MS: u64 = 60_000;

/// A host in which programs are started.
pub(crate) trait Place {
    /// Makes a control group that lasts as long as the run.
    fn make_cgroup(&self, name: &Path) -> Result<Cgroup, HostError>;
    /// The tiers of the host.
    fn topology(&self) -> &Topology;
}

impl Place for Host {
    fn make_cgroup(&self, name: &Path) -> Result<Cgroup, HostError> {
        Host::make_cgroup(self, name)
    }

    fn topology(&self) -> &Topology {
        Host::topology(self)
    }
}

impl Place for RivalHost {
    fn make_cgroup(&self, name: &Path) -> Result<Cgroup, HostError> {
        RivalHost::make_cgroup(self, name)
    }

    fn topology(&self) -> &Topology {
        RivalHost::topology(self)
    }
}

/// Pages that the kernel has migrated since it booted; `None` if it does not count them.
fn migrated_pages() -> Option<u64> {
    KernelMoves::now(&Roots::default()).ok().map(|moves| moves.migrated)
}

/// The programs of a group.
pub(crate) enum Work {
    /// Programs that the run starts and ends.
    Started(Box<LiveWorkload>),
    /// Programs that run already and are not changed.
    Running(Source),
}

/// Parameters of the workload kind "attach".
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Running {
    cgroup: Option<PathBuf>,
    #[serde(default)]
    pids: Vec<u32>,
}

/// The programs of a group, which have their sockets and the like in this directory.
pub(crate) fn work(
    experiment: &Experiment,
    group: &GroupSpec,
    runtime_directory: &Path,
) -> Result<Work, InputError> {
    let parameters = group.workload.parameters();
    if group.workload.kind == kinds::ATTACH {
        let Running { cgroup, pids } = serde_json::from_value(parameters)
            .map_err(|e| refuse!("workload '{}': {e}", kinds::ATTACH))?;
        return match (cgroup, pids.is_empty()) {
            (Some(path), true) => Ok(Work::Running(Source::Cgroup(path))),
            (None, false) => Ok(Work::Running(Source::Pids(pids))),
            _ => Err(refuse!(
                "workload 'attach': expected one of cgroup = \"PATH\" and pids = [PID, ...]"
            )),
        };
    }
    let marked = experiment.warm_up_periods > 0;
    let context = LiveContext {
        runtime_directory: runtime_directory.to_owned(),
        period_ms: experiment.period_ms,
        duration_ms: experiment
            .period_ms
            .saturating_mul(experiment.periods + SLACK_PERIODS)
            .saturating_mul(if marked { MARKED_TIMES } else { 1 })
            .saturating_add(if marked { MARKED_SLACK_MS } else { 0 }),
        marked,
        // With ranges, programs get their pages as they are packaged.
        page_size: match group.page_size {
            GroupPages::Huge => PageSize::Huge,
            GroupPages::Base | GroupPages::Ranges => PageSize::Base,
        },
        seed: experiment.seed,
    };
    let kind = kinds::find(&group.workload.kind).map_err(InputError::new)?;
    let workload = kind.live(&parameters, &context).map_err(InputError::new)?;
    Ok(Work::Started(Box::new(workload)))
}

/// The same, to be checked and not started.
fn described(experiment: &Experiment, group: &GroupSpec) -> Result<Work, InputError> {
    work(experiment, group, &std::env::temp_dir())
}

/// Refuses workloads that cannot run live.
pub(crate) fn check_workloads(run: &Run<'_>) -> Result<(), InputError> {
    run.experiment.future_is_unknown()?;
    for group in &run.experiment.groups {
        page_tables::policy(group).map_err(|e| refuse!("group '{}': {e}", group.name))?;
        described(&run.experiment, group).map_err(|e| refuse!("group '{}': {e}", group.name))?;
        let policy = run.experiment.policy_of(group).map_err(InputError::new)?;
        if run.experiment.warm_up_periods > 0
            && let Work::Started(workload) = described(&run.experiment, group)?
            && !workload.drive_is_marked
            && group.cpus.is_empty()
        {
            return Err(refuse!(
                "group '{}': warm_up_periods = {}, and workload '{}' measures no requests from some \
                 time on; expected 'redis-zipf', or cpus = [0] to count its instructions; leave \
                 warm_up_periods out",
                group.name,
                run.experiment.warm_up_periods,
                group.workload.kind
            ));
        }
        if policy.needs_frames() {
            return Err(refuse!(
                "group '{}': policy '{}' scans page frames, which only the simulated machine has; \
                 use --machine sim, or granularity-4k",
                group.name,
                group.policy
            ));
        }
    }
    Ok(())
}

/// The workloads that a machine starts for a run.
pub(crate) fn started(run: &Run<'_>) -> Result<Vec<LiveWorkload>, InputError> {
    let mut started = Vec::new();
    for group in &run.experiment.groups {
        if let Work::Started(workload) = described(&run.experiment, group)? {
            started.push(*workload);
        }
    }
    Ok(started)
}

/// Refuses programs that should be running already and are not.
fn check_running(run: &Run<'_>) -> Result<(), InputError> {
    let roots = Roots::default();
    for group in &run.experiment.groups {
        let name = &group.name;
        match described(&run.experiment, group)? {
            Work::Running(Source::Cgroup(path)) => {
                let cgroup = Cgroup::new(&roots, &path);
                if !cgroup.exists() {
                    return Err(refuse!(
                        "group '{name}': {} does not exist; expected a control group (v2), \
                         create it or correct its name",
                        cgroup.path().display()
                    ));
                }
            }
            Work::Running(Source::Pids(pids)) => {
                let gone =
                    pids.iter().find(|&&p| !matches!(process::alive(&roots, p), Ok(Some(_))));
                if let Some(pid) = gone {
                    return Err(refuse!(
                        "group '{name}': no process {pid}; expected processes that run, correct pids"
                    ));
                }
            }
            Work::Started(_) => {}
        }
    }
    Ok(())
}

/// The machine that this runs on.
pub(crate) struct ThisHost;

impl Backend for ThisHost {
    fn check(&self, runs: &[Run<'_>]) -> anyhow::Result<()> {
        let lacking = conflicts::privileges(&Roots::default()).map_err(InputError::new)?;
        if let Some(conflict) = lacking.iter().find(|c| c.severity == Severity::Fatal) {
            return Err(InputError::new(conflict).into());
        }
        for run in runs {
            check_workloads(run)?;
            for program in started(run)?.iter().flat_map(LiveWorkload::programs) {
                program.locate().map_err(InputError::new)?;
            }
            let inspected = match run.rival {
                Some(rival) => RivalHost::inspect(&options(run), rival),
                None => Host::inspect(&options(run)),
            };
            let (_, found) = inspected.map_err(InputError::new)?;
            let in_the_way: Vec<_> = found
                .iter()
                .filter(|c| match c.severity {
                    Severity::Fatal => true,
                    Severity::Fixable(_) => !run.request.fix_conflicts,
                    _ => false,
                })
                .map(|c| match c.severity {
                    Severity::Fixable(_) => {
                        format!("{c} (or let --fix-conflicts do it for the run)")
                    }
                    _ => c.to_string(),
                })
                .collect();
            if !in_the_way.is_empty() {
                return Err(InputError::new(in_the_way.join("; ")).into());
            }
            check_running(run)?;
        }
        Ok(())
    }

    fn folders(&self, _request: &Request) -> Vec<&'static str> {
        vec!["details"]
    }

    fn run(
        &self,
        runs: &[Run<'_>],
        tables: &mut dyn Rows,
        events: &mut dyn Events,
    ) -> anyhow::Result<bool> {
        let stop = termination::stop_flag().context("catching signals")?;
        backend::one_by_one(runs, &stop, events, |run, events| match run.rival {
            Some(rival) => rival::run(run, rival, &stop, tables, events),
            None => under_policies(run, &stop, tables, events),
        })
    }
}

pub(crate) fn options(run: &Run<'_>) -> HostOptions {
    let (groups, machine) = (&run.experiment.groups, &run.experiment.machine);
    HostOptions {
        fix_conflicts: run.request.fix_conflicts,
        max_groups: groups.len() as u32,
        mechanisms: machine.mechanisms,
        sample_reads: machine.sample_reads,
        hint_faults: machine.hint_faults,
        nodes: (!machine.fast_nodes.is_empty())
            .then(|| (machine.fast_nodes.clone(), machine.slow_nodes.clone())),
        ..HostOptions::new(Intent::of(groups.iter().map(|g| g.page_size)))
    }
}

/// Release of the running kernel; `None` if it is unknown.
pub(crate) fn kernel_release() -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(release.trim().to_owned()).filter(|release| !release.is_empty())
}

/// Opens the host, and fills fast memory if the experiment says so.
fn open(run: &Run<'_>, stop: &Arc<AtomicBool>, events: &mut dyn Events) -> anyhow::Result<Host> {
    let host = Host::open(HostOptions {
        guard: Some(GuardCommand::this_program(["guard"]).context("finding the guard")?),
        stop: Some(Arc::clone(stop)),
        ..options(run)
    })
    .map_err(InputError::new)?;
    for conflict in host.conflicts() {
        events.event(Event::Note(&match conflict.severity {
            Severity::Fixable(_) => format!("{}; changed until the end of the run", conflict.found),
            _ => conflict.to_string(),
        }));
    }
    if run.experiment.fills_before() {
        host.leave_free(run.experiment.fast_bytes()).map_err(InputError::new)?;
    }
    Ok(host)
}

/// Rows of a run by these trackers and movers.
fn rows_by(run: &Run<'_>, kernel: Option<&str>, mechanisms: Vec<Mechanisms>) -> Vec<RunRow> {
    let by = |(row, (tracker, mover)): (RunRow, (&str, &str))| RunRow {
        tracker: Some(tracker.to_owned()),
        mover: Some(mover.to_owned()),
        ..row
    };
    run.rows(kernel, false).into_iter().zip(mechanisms).map(by).collect()
}

/// The groups of a run, with their programs started and not yet begun.
struct Started {
    sessions: Vec<Option<Session>>,
    attach: Vec<Attach>,
    /// Names and processes, for counts of page tables.
    counted: Vec<(String, Source)>,
}

/// Starts the programs of all groups.
fn start_groups(run: &Run<'_>, host: &Host, events: &mut dyn Events) -> anyhow::Result<Started> {
    let experiment = &run.experiment;
    let mut sessions = Vec::new();
    let mut attach = Vec::new();
    let mut counted = Vec::new();
    for spec in &experiment.groups {
        let tables = page_tables::policy(spec)?;
        let inherited =
            tables.map(|policy| host.tables_of_children(&spec.name, policy)).transpose();
        let inherited = inherited.map_err(InputError::new)?;
        let (session, source) = start(run, spec, host, events)?;
        drop(inherited);
        sessions.push(session);
        counted.push((spec.name.clone(), source.clone()));
        let pages = spec.page_size;
        let group = Attach::new(&spec.name, source, pages.size(), experiment.period_ms);
        let by_range = pages == GroupPages::Ranges;
        let samples = if by_range { Samples::Several } else { Samples::One };
        attach.push(Attach { tables, by_range, samples, ..group });
    }
    Ok(Started { sessions, attach, counted })
}

/// The names of a group's tracker and mover.
type Mechanisms = (&'static str, &'static str);

/// Details of the programs, by group.
pub(crate) type Details = BTreeMap<String, Value>;

/// Pairs attached groups with their policies; returns also the names of trackers and movers.
fn with_policies(
    experiment: &Experiment,
    attached: Vec<AttachedGroup>,
) -> anyhow::Result<(Vec<Group>, Vec<Mechanisms>)> {
    let mut groups = Vec::new();
    let mut mechanisms = Vec::new();
    for (spec, attached) in experiment.groups.iter().zip(attached) {
        mechanisms.push((attached.tracker.name(), attached.mover.name()));
        groups.push(Group {
            name: spec.name.clone(),
            tracker: Box::new(attached.tracker),
            policy: Box::new(LivePolicy::new(experiment.live_policy_of(spec)?)),
            mover: Box::new(attached.mover),
            share: spec.share(),
            moved_pages: spec.moved_pages_per_period.unwrap_or(u64::MAX),
        });
    }
    Ok((groups, mechanisms))
}

/// Base pages that were moved alone.
fn refined(costs: &CostSnapshot) -> Value {
    json!({
        "known_pages": costs.refined_known_pages,
        "up_pages": costs.refined_up_pages,
        "down_pages": costs.refined_down_pages,
        "failed_pages": costs.refined_failed_pages,
    })
}

/// Bytes that the kernel has migrated since its counter was at so many base pages.
fn migrated_bytes_since(before: u64) -> Option<u64> {
    migrated_pages().map(|now| now.saturating_sub(before) * PageSize::Base.bytes())
}

/// Adds what signals and movers have counted to the details of the groups.
fn add_counts<'a>(
    details: &mut Details,
    signals: &[SignalReport],
    groups: impl Iterator<Item = (&'a str, &'a Costs)>,
) {
    for (name, costs) in groups {
        // A group of programs that ran already has no results of its own.
        let detail = details.entry(name.to_owned()).or_insert(json!({}));
        for (key, counts) in signals.iter().flat_map(|signal| &signal.details) {
            detail[key] = counts.clone();
        }
        detail["refined"] = refined(&costs.snapshot());
    }
}

/// Ends the programs; returns their results, and their events and details by group.
pub(crate) fn finish_sessions(
    names: &[&str],
    sessions: Vec<Option<Session>>,
) -> anyhow::Result<(Vec<Option<WorkloadResult>>, Details)> {
    let mut results: Vec<Option<WorkloadResult>> = Vec::new();
    let mut details = BTreeMap::new();
    for (name, session) in names.iter().zip(sessions) {
        let events = session.as_ref().map(Session::events);
        let result = session.map(Session::finish).transpose()?;
        if let (Some(events), Some(result)) = (events, &result) {
            let detail = json!({ "events": events, "results": result.details });
            details.insert((*name).to_owned(), detail);
        }
        results.push(result);
    }
    Ok((results, details))
}

/// Runs it and adds its rows to the tables.
fn under_policies(
    run: &Run<'_>,
    stop: &Arc<AtomicBool>,
    tables: &mut dyn Rows,
    events: &mut dyn Events,
) -> anyhow::Result<Vec<RunRow>> {
    let experiment = &run.experiment;
    let _elsewhere = KeptOff::cpus_of(experiment)?;
    let mut host = open(run, stop, events)?;
    let migrated = migrated_pages();
    // For emulated machines whose accesses are counted; no effect elsewhere.
    let work = WarmUpWork::begin(experiment);
    let Started { mut sessions, attach, counted } = start_groups(run, &host, events)?;
    let mut counts = TableCounts::new(&run.name, counted);
    let attached = host.attach(attach).map_err(InputError::new)?;
    let costs: Vec<Costs> = attached.iter().map(|group| group.costs.clone()).collect();
    let (groups, mechanisms) = with_policies(experiment, attached)?;
    for session in sessions.iter_mut().flatten() {
        session.begin()?;
    }

    let kernel = kernel_release();
    let rows = rows_by(run, kernel.as_deref(), mechanisms);
    let names: Vec<_> = experiment.groups.iter().map(|g| g.name.as_str()).collect();
    let mut collector = Collector::new(run, kernel.as_deref().unwrap_or(""), rows, tables, events)?;
    let options =
        Options { cpu_clock: || Some(terrace_linux::costs::thread_cpu_ns()), ..Options::default() };
    let mut engine = Engine::new(groups, options);
    let mut measured = Measured::of(experiment, work);
    let warm_up_rounds = collector.warm_up_by_time();
    let (mut periods, mut died, mut unfilled) = (0, None, None);
    engine.run(&mut collector, || {
        periods += 1;
        counts.between_periods(periods - 1, |source| host.table_pages(source));
        if measured.begins() {
            warm_up_rounds.set(periods - 1);
            unfilled = fill_up(experiment, || Ok(()), || host.take_rest(0));
        }
        let programs = sessions.iter().flatten();
        let marked = measured.between_periods(periods - 1, host.topology(), programs);
        // Of all, so that each notes when its program ended.
        let sessions = sessions.iter_mut().flatten();
        let ended: Vec<_> = sessions.map(|s| s.ended(Duration::ZERO)).collect();
        let all = !ended.is_empty() && ended.iter().all(|e| matches!(e, Ok(true)));
        died = marked.err().or_else(|| ended.into_iter().find_map(Result::err));
        !measured.goes_on() || all || died.is_some() || stop.load(Ordering::Relaxed)
    })?;
    let begun = measured.end();
    let notes = external::notes(&mut engine);
    let signals = host.signals();
    // The trackers must be dropped before the host's settings can be restored.
    drop(engine);
    if let Some(error) = died {
        return Err(error.into());
    }
    if !stop.load(Ordering::Relaxed) {
        begun?;
    }
    let (results, mut details) = finish_sessions(&names, sessions)?;
    add_counts(&mut details, &signals, names.iter().copied().zip(&costs));
    // Of the whole host: of a group where there is one.
    let migrated_bytes = migrated.filter(|_| names.len() == 1).and_then(migrated_bytes_since);
    host.close()?;
    let moves = counts.moves();
    write_whole(&run.details(), &serde_json::to_vec_pretty(&details)?)?;
    let rows = collector.finish(|index, row| {
        if let Some(result) = &results[index] {
            fill(row, result);
        }
        row.migrated_bytes = migrated_bytes;
        row.notes = with_note(notes.get(index).cloned().flatten(), unfilled.as_ref());
        if let Some(moves) = &moves {
            moves.fill(row);
        }
    })?;
    signals.iter().for_each(|signal| events.event(Event::Note(&signal.line)));
    counts.rows.into_iter().try_for_each(|row| tables.table_pages(row))?;
    measured.rows(&run.name).into_iter().try_for_each(|row| tables.kernel_thread(row))?;
    Ok(rows)
}

/// Adds the results of a group's programs.
pub(crate) fn fill(row: &mut RunRow, result: &WorkloadResult) {
    row.operations = result.operations;
    row.operations_per_s = result.operations_per_s;
    row.latency_p50_us = result.latency_p50_us;
    row.latency_p99_us = result.latency_p99_us;
    row.duration_ms = Some(result.duration_ms);
    row.checksum_ok = result.checksum_ok;
}

/// Starts a group's programs; returns where its processes are found.
pub(crate) fn start(
    run: &Run<'_>,
    spec: &GroupSpec,
    host: &dyn Place,
    events: &mut dyn Events,
) -> anyhow::Result<(Option<Session>, Source)> {
    let experiment = &run.experiment;
    let folder = private_folder().context("making a folder for the programs' sockets")?;
    let workload = match work(experiment, spec, folder.path())? {
        Work::Running(source) => return Ok((None, source)),
        Work::Started(workload) => workload,
    };
    let name = format!("{CGROUP_PREFIX}{}", spec.name);
    let cgroup = host.make_cgroup(Path::new(&name))?;
    let allocation = match run.rival {
        Some(_) => Allocation::FastFirst,
        None => experiment.policy_of(spec)?.allocation(),
    };
    let memory_policy = match allocation {
        Allocation::FastFirst => MemoryPolicy::System,
        Allocation::Interleave => {
            let topology = host.topology();
            MemoryPolicy::Interleave([topology.fast_nodes(), topology.slow_nodes()].concat())
        }
    };
    events.event(Event::Stage(&format!("starting '{}'", spec.workload.kind)));
    let cgroup_folder = Some(cgroup.path().to_owned());
    let options = SessionOptions {
        cgroup: cgroup_folder,
        memory_policy,
        apart: run.request.apart,
        // Memory allocated in huge pages would not be tracked.
        base_pages: spec.page_size == GroupPages::Base,
        cpus: spec.cpus.clone(),
    };
    let mut session = Session::start(&workload, &options)?;
    session.keep(folder);
    Ok((Some(session), Source::Cgroup(cgroup.path().to_owned())))
}

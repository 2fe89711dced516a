//! Runs on the simulated machine at interval fidelity.

use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;

use anyhow::Context;
use terrace_core::oracle::OracleTrace;
use terrace_core::parameters;
use terrace_engine::{Engine, Group, Options};
use terrace_recordings::period::{Header, RecordingSource};
use terrace_recordings::profile::ProfileReader;
use terrace_recordings::source::PeriodSource;
use terrace_results::RunRow;
use terrace_simulated::{GroupConfig, Machine, MachineConfig, Placement, Sampling, future};

use terrace_workloads::generators::{GeneratorKind, Timing};
use terrace_workloads::kinds;

use crate::backend::Backend;
use crate::collect::Collector;
use crate::external;
use crate::file::{Experiment, GroupSpec};
use crate::parallel;
use crate::rows::Rows;
use crate::run::{Events, Run};
use terrace_core::{InputError, refuse};

/// Fast memory of a machine whose size the experiment does not give: without limit, so that only
/// the groups' limits count.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// The simulated machine at interval fidelity.
pub(crate) struct Simulated;

impl Backend for Simulated {
    fn check(&self, runs: &[Run<'_>]) -> anyhow::Result<()> {
        for run in runs {
            for group in &run.experiment.groups {
                if group.tables.is_some() {
                    return Err(refuse!(
                        "group '{}': tables: the simulated machine has page tables only with fidelity = \
                         \"reference\" in [machine]; set it so, or use --machine vm with the Terrace \
                         kernel",
                        group.name
                    )
                    .into());
                }
                if group.workload.kind == kinds::PROFILE {
                    profiled(&run.experiment, group)
                        .map_err(|e| refuse!("group '{}': {e}", group.name))?;
                    continue;
                }
                source(&run.experiment, group)
                    .map_err(|e| refuse!("group '{}': {e}", group.name))?;
            }
            memory_suffices(&run.experiment)?;
        }
        Ok(())
    }

    fn run(
        &self,
        runs: &[Run<'_>],
        tables: &mut dyn Rows,
        events: &mut dyn Events,
    ) -> anyhow::Result<bool> {
        parallel::run(runs, tables, events, one)?;
        Ok(true)
    }
}

/// Refuses a machine that is too small for its generators; the size of recordings is known only at
/// their end.
fn memory_suffices(experiment: &Experiment) -> Result<(), InputError> {
    let machine = &experiment.machine;
    let (Some(fast), Some(slow)) = (machine.fast, machine.slow) else { return Ok(()) };
    let mut needed_bytes = 0u64;
    for workload in experiment.groups.iter().map(|g| &g.workload) {
        let kind = terrace_workloads::kinds::find(&workload.kind).map_err(InputError::new)?;
        let footprint = |g: &GeneratorKind| (g.footprint_bytes)(&workload.parameters());
        let bytes = kind.generator.map_or(Ok(0), footprint).map_err(InputError::new)?;
        needed_bytes = needed_bytes.saturating_add(bytes);
    }
    let got_bytes = fast.0.saturating_add(slow.0);
    if needed_bytes <= got_bytes {
        return Ok(());
    }
    Err(refuse!(
        "machine: fast and slow together have {got_bytes} bytes, expected {needed_bytes} or more \
         for the workloads; give it more slow memory"
    ))
}

/// The accesses of a group's workload, and its initial placement if that is known.
fn source(
    experiment: &Experiment,
    group: &GroupSpec,
) -> Result<(Box<dyn PeriodSource>, Option<Placement>), InputError> {
    let workload = &group.workload;
    if workload.kind == "recording" {
        return recorded(experiment, group);
    }
    let kind = terrace_workloads::kinds::find(&workload.kind).map_err(InputError::new)?;
    let timing = Timing {
        page_size: group.page_size.size(),
        period_ms: experiment.period_ms,
        seed: experiment.seed,
    };
    let source = kind.source(&workload.parameters(), timing).map_err(InputError::new)?;
    Ok((source, None))
}

/// Parameters of the workload kind "profile".
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Profiled {
    /// The file, relative to the experiment file.
    path: std::path::PathBuf,
}

/// The profile that a group's workload names.
fn profiled(
    experiment: &Experiment,
    group: &GroupSpec,
) -> Result<ProfileReader<BufReader<File>>, InputError> {
    let Profiled { path } = parameters::read(&group.workload.parameters())
        .map_err(|e| refuse!("workload 'profile': {e}"))?;
    let path = experiment.folder.join(path);
    let profile = ProfileReader::open(&path).map_err(InputError::new)?;
    let (got, expected) = (group.page_size.size().bytes(), profile.header().page_size.bytes());
    if got != expected {
        return Err(refuse!(
            "pages of {got} bytes, expected {expected} as in {}; set page_size so",
            path.display()
        ));
    }
    Ok(profile)
}

/// Parameters of the workload kind "recording".
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    /// The file, relative to the experiment file.
    path: std::path::PathBuf,
    /// The group in it; by default the one with the group's own name.
    group: Option<String>,
}

fn recorded(
    experiment: &Experiment,
    group: &GroupSpec,
) -> Result<(Box<dyn PeriodSource>, Option<Placement>), InputError> {
    let Recorded { path, group: name } = parameters::read(&group.workload.parameters())
        .map_err(|e| refuse!("workload 'recording': {e}"))?;
    let path = experiment.folder.join(path);
    let name = name.as_deref().unwrap_or(&group.name);
    let source = RecordingSource::open(&path, name).map_err(InputError::new)?;
    if source.is_whole() == Some(false) {
        return Err(refuse!(
            "{}: the recording was cut off; expected a finished one, run the experiment again",
            path.display()
        ));
    }
    let Header { groups, period_ms, .. } = source.header();
    let page_size = groups.iter().find(|g| g.name == name).map(|g| g.page_size);
    if let Some(recorded) = page_size.filter(|&p| p != group.page_size.size()) {
        let (got, expected) = (group.page_size.size().bytes(), recorded.bytes());
        return Err(refuse!(
            "pages of {got} bytes, expected {expected} as in {}; set page_size so",
            path.display()
        ));
    }
    if *period_ms != experiment.period_ms {
        return Err(refuse!(
            "period_ms = {}, expected {period_ms} as in {}; set it so",
            experiment.period_ms,
            path.display()
        ));
    }
    // The recorded placement would include what the recorded policy moved.
    Ok((Box::new(source), None))
}

/// The oracle trace of a group.
fn future_of(experiment: &Experiment, group: &GroupSpec) -> anyhow::Result<OracleTrace> {
    if group.workload.kind != kinds::PROFILE {
        let (mut source, _) = source(experiment, group)?;
        return Ok(future::of_periods(&mut source, experiment.periods)?);
    }
    let mut profile = profiled(experiment, group)?;
    let os = experiment.machine.os.clone().unwrap_or_default();
    // Half of the moves of a period are promotions.
    let batch = group.moved_pages_per_period.unwrap_or(u64::MAX) / 2;
    let (page_size, period_ms) = (group.page_size.size(), experiment.period_ms);
    Ok(future::of_intervals(&mut profile, &os, page_size, batch, period_ms)?)
}

/// Adds a group to the machine.
fn group(experiment: &Experiment, spec: &GroupSpec, machine: &Machine) -> anyhow::Result<Group> {
    let mut policy = experiment.policy_of(spec)?;
    if policy.needs_oracle() {
        policy.set_oracle(Arc::new(future_of(experiment, spec)?));
    }
    let mut share = spec.share();
    let page_size = spec.page_size.size();
    let profile = match spec.workload.kind == kinds::PROFILE {
        true => Some(profiled(experiment, spec)?),
        false => None,
    };
    if let Some(bytes) = profile.as_ref().and_then(|p| p.header().footprint_bytes) {
        share = share.of_whole(page_size, bytes);
    }
    let config = |initial| GroupConfig {
        name: spec.name.clone(),
        page_size,
        allocation: policy.allocation(),
        fast_budget: Box::new(move |layout| share.pages(layout)),
        initial,
    };
    let (mut tracker, mover) = match profile {
        Some(profile) => {
            let os = experiment.machine.os.clone().unwrap_or_default();
            machine.add_timed_group(config(None), Box::new(profile), &os)?
        }
        None => {
            let (source, initial) = source(experiment, spec)?;
            machine.add_group(config(initial), source)?
        }
    };
    if policy.needs_frames() {
        tracker.tell_frames();
    }
    Ok(Group {
        name: spec.name.clone(),
        tracker: Box::new(tracker),
        policy,
        mover: Box::new(mover),
        share,
        moved_pages: spec.moved_pages_per_period.unwrap_or(u64::MAX),
    })
}

/// Runs it and adds its rows to the tables.
fn one(
    run: &Run<'_>,
    tables: &mut dyn Rows,
    events: &mut dyn Events,
) -> anyhow::Result<Vec<RunRow>> {
    let experiment = &run.experiment;
    let machine = Machine::new(MachineConfig {
        seed: experiment.seed,
        sampling: Sampling {
            reads_per_sample: experiment.machine.sample_reads.or(0),
            latency_ns: [experiment.machine.fast_latency_ns, experiment.machine.slow_latency_ns]
                .map(f64::from),
            seed: experiment.seed,
        },
        ..MachineConfig::new(
            experiment.machine.fast.map_or(NO_LIMIT_BYTES, |s| s.0),
            experiment.machine.slow.map_or(NO_LIMIT_BYTES, |s| s.0),
            experiment.period_ms,
        )
    })?;
    let mut groups = Vec::new();
    for spec in &experiment.groups {
        groups.push(group(experiment, spec, &machine)?);
    }
    let rows = run.rows(None, false);
    let mut collector = Collector::new(run, "", rows, tables, events)?;
    let mut engine = Engine::new(groups, Options::default());
    let mut periods = 0;
    engine
        .run(&mut collector, || {
            periods += 1;
            periods > experiment.periods
        })
        .context("the simulation stopped")?;
    external::all_decided(&mut engine)?;
    collector.finish(|index, row| {
        if let Some((took, fast)) = machine.duration_ps(index) {
            row.duration_ms = Some(took as f64 / 1e9);
            row.slowdown = (fast > 0).then_some(took as f64 / fast as f64);
        }
    })
}

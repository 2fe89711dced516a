//! Runs on the simulated machine at trace fidelity.

use anyhow::Context;
use terrace_core::interfaces::MachineError;
use terrace_core::parameters;
use terrace_core::policy;
use terrace_core::projection::{HitRatio, ThreadTime};
use terrace_engine::{Engine, FastLimit, Group, Observer, Options, PeriodReport};
use terrace_recordings::reference::ReferenceReader;
use terrace_results::{HardwareRow, RunRow};
use terrace_simulated::hardware::address::Kind;
use terrace_simulated::hardware::node::MemoryPort;
use terrace_simulated::hardware::presets::MachineConfig;
use terrace_simulated::hardware::request::{Request, RequestId, When};
use terrace_simulated::hardware::tier::memory::TieredMemory;
use terrace_simulated::hardware::units::{Bytes, Picoseconds};
use terrace_simulated::reference::{
    PeriodCost, RecordingChoice, ReferenceConfig, ReferenceGroup, ReferenceMachine,
    ReferenceSource, TIERS, program, recording,
};
use terrace_workloads::kinds;

use crate::backend::Backend;
use crate::collect::Collector;
use crate::external;
use crate::file::{Experiment, GroupSpec, WorkloadSpec};
use crate::parallel;
use crate::rows::Rows;
use crate::run::{Event, Events, Run};
use crate::sparse::SparseSource;
use terrace_core::{InputError, refuse};

/// The machine where an experiment names none.
const HARDWARE: &str = "server-ddr5-cxl";

/// Times of each group with all memory fast and nothing moved; `None` if it did not end.
type Baseline = Vec<Option<AllFast>>;

/// Times of a group with all memory fast and nothing moved.
#[derive(Debug, Clone, Copy, PartialEq)]
struct AllFast {
    duration: Picoseconds,
    /// Memory time, for the leading-load model: waiting for the leading load of a group of misses,
    /// the mean over its cores.
    memory: Picoseconds,
}

/// The simulated machine at trace fidelity.
pub(crate) struct TraceDriven;

impl Backend for TraceDriven {
    fn check(&self, runs: &[Run<'_>]) -> anyhow::Result<()> {
        for run in runs {
            run.experiment.future_is_unknown()?;
            let machine =
                ReferenceMachine::new(config(&run.experiment)?).map_err(InputError::new)?;
            drop(machine);
            let mut needed_bytes = 0u64;
            for group in &run.experiment.groups {
                // A source is a thread: started to see that it can be, and dropped.
                let source = source(&run.experiment, group);
                let source = source.map_err(|e| refuse!("group '{}': {e}", group.name))?;
                needed_bytes = needed_bytes.saturating_add(source.footprint_bytes().unwrap_or(0));
            }
            let tiers = config(&run.experiment)?.hardware.tiers;
            let got_bytes: u64 = tiers.iter().map(|t| t.capacity.0).sum();
            if needed_bytes > got_bytes {
                return Err(refuse!(
                    "machine: all tiers together have {got_bytes} bytes, expected more than \
                     {needed_bytes} for the workloads; give it more slow memory"
                )
                .into());
            }
        }
        Ok(())
    }

    fn run(
        &self,
        runs: &[Run<'_>],
        tables: &mut dyn Rows,
        events: &mut dyn Events,
    ) -> anyhow::Result<bool> {
        let baseline = match runs.first() {
            Some(run) if run.experiment.slowdown => {
                events.event(Event::Stage("running with all memory fast, for comparison"));
                baseline(&run.experiment).context("run with all memory fast")?
            }
            Some(run) => vec![None; run.experiment.groups.len()],
            None => Baseline::new(),
        };
        parallel::run(runs, tables, events, |run, rows, events| one(run, &baseline, rows, events))?;
        Ok(true)
    }
}

/// The machine of an experiment at trace fidelity; an error if its hardware cannot be read.
pub fn config(experiment: &Experiment) -> Result<ReferenceConfig, InputError> {
    let spec = &experiment.machine;
    let mut table = spec.hardware.clone().unwrap_or_default();
    if !table.contains_key("description") {
        table.entry("preset").or_insert_with(|| HARDWARE.into());
    }
    let mut hardware =
        MachineConfig::try_from(table).map_err(|e| refuse!("machine.hardware: {e}"))?;
    for (tier, size) in [(0, spec.fast), (1, spec.slow)] {
        if let (Some(size), Some(tier)) = (size, hardware.tiers.get_mut(tier)) {
            tier.capacity = Bytes(size.0);
        }
    }
    Ok(ReferenceConfig {
        hardware,
        os: spec.os.clone().unwrap_or_default(),
        period_ns: experiment.period_length_us() * 1000,
        reads_per_sample: spec.sample_reads.or(0),
        sample_seed: experiment.seed,
        options: spec.simulation.clone().unwrap_or_default(),
    })
}

/// Parameters of the workload kind "recording" at this fidelity.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    path: std::path::PathBuf,
    process: Option<u32>,
    #[serde(default)]
    dependent_loads: bool,
}

/// The source of a group's references.
pub(crate) fn source(
    experiment: &Experiment,
    group: &GroupSpec,
) -> Result<Box<dyn ReferenceSource>, InputError> {
    let source = dense_source(experiment, group)?;
    Ok(match group.sparse {
        Some(sparse) => Box::new(SparseSource::new(source, sparse)),
        None => source,
    })
}

/// The source at the program's own addresses.
fn dense_source(
    experiment: &Experiment,
    group: &GroupSpec,
) -> Result<Box<dyn ReferenceSource>, InputError> {
    let workload = &group.workload;
    match workload.kind.as_str() {
        kinds::program::NAME => {
            let traced = kinds::program::traced(&workload.parameters(), experiment.seed)
                .map_err(InputError::new)?;
            let source = program(&traced.name, &traced.params, traced.dependent_loads);
            Ok(Box::new(source.map_err(InputError::new)?))
        }
        "recording" => {
            let recorded = recorded(workload)?;
            let choice = RecordingChoice {
                path: experiment.folder.join(recorded.path),
                process: recorded.process,
                dependent: recorded.dependent_loads,
            };
            Ok(Box::new(recording(&choice).map_err(InputError::new)?))
        }
        other => Err(refuse!(
            "workload '{other}' has no references; expected kind = \"program\" or \"recording\" \
             at trace fidelity"
        )),
    }
}

fn recorded(workload: &WorkloadSpec) -> Result<Recorded, InputError> {
    parameters::read(&workload.parameters()).map_err(|e| refuse!("workload 'recording': {e}"))
}

/// Loads and stores of a group's workload, where they are known without playing it: those of a
/// recording are counted in its list of blocks.
pub(crate) fn known_references(
    experiment: &Experiment,
    group: &GroupSpec,
) -> Result<Option<u64>, InputError> {
    if group.workload.kind != "recording" {
        return Ok(None);
    }
    let Recorded { path, process, .. } = recorded(&group.workload)?;
    let mut reader =
        ReferenceReader::open(&experiment.folder.join(path)).map_err(InputError::new)?;
    let found = match process {
        Some(n) => reader.by_process().map(|all| all.into_iter().find(|p| p.process == n)),
        None => reader.largest_process(),
    };
    Ok(found.map_err(InputError::new)?.map(|p| p.references))
}

/// A machine whose first two tiers can each hold everything that all tiers can.
pub(crate) fn roomy(mut config: ReferenceConfig) -> ReferenceConfig {
    let all: u64 = config.hardware.tiers.iter().map(|t| t.capacity.0).sum();
    for tier in config.hardware.tiers.iter_mut().take(2) {
        tier.capacity = Bytes(all);
    }
    config.os.watermarks.clear();
    config.os.page_cache.clear();
    config
}

/// Runs the groups with all their memory fast and nothing moved, for as long as the experiment
/// lasts: the base of slowdowns. `None` for a group that had not ended by itself by then.
fn baseline(experiment: &Experiment) -> anyhow::Result<Baseline> {
    let config = roomy(config(experiment)?);
    let finishes_moves = config.options.finish_moves;
    // A tier modelled by its DRAM has no more capacity than its chips: no baseline then.
    let Ok(machine) = ReferenceMachine::new(config) else {
        return Ok(vec![None; experiment.groups.len()]);
    };
    // Periods that last until their moves are done may together take longer than here.
    let last_ns = experiment.periods.saturating_mul(experiment.period_length_us() * 1000);
    let last_ns = Some(last_ns).filter(|_| !finishes_moves);
    for spec in &experiment.groups {
        let mut group = unmanaged(spec, Share::AllFast);
        group.stop_ns = group.stop_ns.into_iter().chain(last_ns).min();
        let _interfaces = machine.add_group(group, source(experiment, spec)?)?;
    }
    machine.run_to_end()?;
    let all_fast = |group| {
        if machine.was_stopped(group) {
            return None;
        }
        let memory = machine.counts(group).leading_load_ps / machine.cores(group) as u64;
        let duration = machine.duration(group)?;
        Some(AllFast { duration, memory: Picoseconds(memory) })
    };
    Ok((0..experiment.groups.len()).map(all_fast).collect())
}

/// Latency of a line from an idle tier.
fn latency(hardware: &MachineConfig, tier: usize) -> anyhow::Result<Picoseconds> {
    let mut memory = TieredMemory::new(&hardware.tiers)?;
    let request = Request { id: RequestId(1), address: memory.start(tier), kind: Kind::Read };
    let done = match memory.submit(Picoseconds::ZERO, request).0 {
        When::At(done) => done,
        When::Pending(_) => memory.next_completion().context("a read that is never done")?.done,
    };
    let node = &hardware.node;
    let lookup = f64::from(node.caches.llc.latency_cycles) * 1e6 / f64::from(node.core.clock_mhz);
    Ok(done + Picoseconds(lookup as u64))
}

/// The fast share of a group's memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Share {
    /// This much.
    Given(FastLimit),
    /// Everything.
    AllFast,
    /// Nothing.
    AllSlow,
    /// All but one in so many pages, the last ones touched.
    LastSlow(u64),
}

/// A group whose pages stay where they were first touched.
pub(crate) fn unmanaged(spec: &GroupSpec, share: Share) -> ReferenceGroup {
    group(spec, policy::Allocation::FastFirst, false, share)
}

fn group(
    spec: &GroupSpec,
    allocation: policy::Allocation,
    needs_frames: bool,
    how: Share,
) -> ReferenceGroup {
    ReferenceGroup {
        name: spec.name.clone(),
        page_size: spec.page_size.size(),
        allocation,
        needs_frames,
        tables: spec.tables.unwrap_or_default(),
        fast_budget: Box::new(move |layout| match how {
            Share::Given(share) => share.pages(layout),
            Share::AllFast => layout.pages() as u64,
            Share::AllSlow => 0,
            Share::LastSlow(part) => layout.pages() as u64 - layout.pages() as u64 / part,
        }),
        start_ns: spec.start_ms.unwrap_or(0) * 1_000_000,
        stop_ns: spec.stop_ms.map(|ms| ms * 1_000_000),
        stop_after_start_up_of: spec.stop_after_start_up_of.clone(),
    }
}

/// Name of a workload for people: a program's own name.
pub(crate) fn workload_name(workload: &WorkloadSpec) -> String {
    let name = workload.parameters.get("name").and_then(|n| n.as_str());
    name.unwrap_or(&workload.kind).to_owned()
}

/// Name of an experiment's machine for people.
pub(crate) fn machine_name(experiment: &Experiment) -> String {
    let hardware = experiment.machine.hardware.as_ref();
    let preset = hardware.and_then(|h| h.get("preset")).and_then(|p| p.as_str());
    preset.unwrap_or(HARDWARE).to_owned()
}

/// Runs it and adds its rows to the tables.
fn one(
    run: &Run<'_>,
    baseline: &Baseline,
    tables: &mut dyn Rows,
    events: &mut dyn Events,
) -> anyhow::Result<Vec<RunRow>> {
    let experiment = &run.experiment;
    let machine = ReferenceMachine::new(config(experiment)?)?;
    let mut groups = Vec::new();
    for spec in &experiment.groups {
        let policy = experiment.policy_of(spec)?;
        let source = source(experiment, spec)?;
        let mut share = spec.share();
        if let Some(bytes) = source.footprint_bytes() {
            share = share.of_whole(spec.page_size.size(), bytes);
        }
        let how = Share::Given(share);
        let group = group(spec, policy.allocation(), policy.needs_frames(), how);
        let (tracker, mover) = machine.add_group(group, source)?;
        groups.push(Group {
            name: spec.name.clone(),
            tracker: Box::new(tracker),
            policy,
            mover: Box::new(mover),
            share,
            moved_pages: spec.moved_pages_per_period.unwrap_or(u64::MAX),
        });
    }
    let names: Vec<_> = experiment.groups.iter().map(|g| g.name.clone()).collect();
    let rows = run.rows(None, false);
    let collector = Collector::new(run, "", rows, tables, events)?;
    let mut observer = WithHardware { collector, machine: &machine, run: &run.name, names: &names };
    let mut engine = Engine::new(groups, Options::default());
    let mut periods = 0;
    engine
        .run(&mut observer, || {
            periods += 1;
            periods > experiment.periods
        })
        .context("the simulation stopped")?;
    external::all_decided(&mut engine)?;
    let hardware = config(experiment)?.hardware;
    let latency_ratio = latency(&hardware, 1)?.0 as f64 / latency(&hardware, 0)?.0.max(1) as f64;
    observer.collector.finish(|index, row| {
        complete(row, &machine, index);
        if let Some(all_fast) = baseline[index] {
            compare(row, &machine, index, all_fast, latency_ratio);
        }
    })
}

/// Adds the hardware costs to each period.
struct WithHardware<'a> {
    collector: Collector<'a>,
    machine: &'a ReferenceMachine,
    run: &'a str,
    names: &'a [String],
}

impl Observer for WithHardware<'_> {
    fn period(&mut self, report: &PeriodReport<'_>) -> Result<(), MachineError> {
        self.collector.period(report)?;
        let cost = self.machine.period_cost(report.group);
        let row = hardware_row(self.run, &self.names[report.group], report.scan.period, &cost);
        self.collector.hardware(row)
    }

    fn lost(&mut self, group: usize, periods: u32, reason: &str) -> Result<(), MachineError> {
        self.collector.lost(group, periods, reason)
    }

    fn ended(&mut self, group: usize) -> Result<(), MachineError> {
        self.collector.ended(group)
    }
}

fn ms(ps: u64) -> f64 {
    ps as f64 / 1e9
}

/// All tiers but the fast one.
fn slow(by_tier: &[u64; TIERS]) -> u64 {
    by_tier[1..].iter().sum()
}

fn hardware_row(run: &str, group: &str, period: u64, cost: &PeriodCost) -> HardwareRow {
    let c = &cost.counts;
    HardwareRow {
        run: run.to_owned(),
        group: group.to_owned(),
        period,
        references: c.references,
        instructions: c.instructions,
        compute_ms: ms(c.compute_ps),
        walk_stall_ms: ms(c.walk_stall_ps),
        cache_stall_ms: ms(c.cache_stall_ps),
        fast_stall_ms: ms(c.memory_stall_ps[0]),
        slow_stall_ms: ms(slow(&c.memory_stall_ps)),
        store_stall_ms: ms(c.store_stall_ps),
        kernel_ms: None,
        fault_ms: Some(ms(c.fault_ps)),
        table_allocation_ms: Some(ms(c.table_allocation_ps)),
        migration_ms: Some(ms(c.migration_ps)),
        faults: Some(c.faults),
        table_faults: Some(c.table_faults),
        walks: c.walks,
        walk_ms: ms(c.walk_ps),
        fast_reads: c.reads[0],
        slow_reads: slow(&c.reads),
        fast_loaded_ns: None,
        slow_loaded_ns: None,
        fast_writes: c.writes[0],
        slow_writes: slow(&c.writes),
        reference_hit_ratio: c.reference_hit_ratio(),
        migrated_bytes: Some(cost.migrated_bytes),
        shootdowns: Some(cost.shootdowns),
        fast_table_pages: Some(cost.fast_table_pages),
        slow_table_pages: Some(cost.slow_table_pages),
        table_moves: Some(cost.table_moves.successful),
        table_already_there: Some(cost.table_moves.already_there),
        table_within_tier: Some(cost.table_moves.within_tier),
        table_maps_fast: Some(cost.table_moves.maps_fast),
        table_lock_contended: Some(cost.table_moves.lock_contended),
        table_no_room: Some(cost.table_moves.no_room),
        main_references: Some(c.main_references),
    }
}

/// Fills in values that are known at the end of a run.
fn complete(row: &mut RunRow, machine: &ReferenceMachine, group: usize) {
    let counts = machine.counts(group);
    let total = machine.total_cost(group);
    row.reference_hit_ratio = Some(counts.reference_hit_ratio());
    row.references = Some(counts.references);
    row.walk_ms = Some(ms(counts.walk_ps));
    row.walk_stall_ms = Some(ms(counts.walk_stall_ps));
    row.fast_stall_ms = Some(ms(counts.memory_stall_ps[0]));
    row.slow_stall_ms = Some(ms(slow(&counts.memory_stall_ps)));
    row.migration_ms = Some(ms(counts.migration_ps));
    row.migrated_bytes = Some(total.migrated_bytes);
    row.shootdowns = Some(total.shootdowns);
    row.table_moves = Some(total.table_moves.successful);
    row.table_already_there = Some(total.table_moves.already_there);
    row.table_within_tier = Some(total.table_moves.within_tier);
    row.table_maps_fast = Some(total.table_moves.maps_fast);
    row.table_lock_contended = Some(total.table_moves.lock_contended);
    row.table_no_room = Some(total.table_moves.no_room);
    row.duration_ms = machine.duration(group).map(|duration| ms(duration.0));
    let killed = machine.killed(group);
    row.killed = Some(killed.is_some());
    if let Some(killed) = killed {
        row.notes = Some(format!(
            "Killed: group '{}' after {} ms, because fast memory had run out for page tables that \
             may be nowhere else, while {} MB of slow memory were free. Before that its {} slow \
             allocations took up to {} us, and reclaim was tried {} times.",
            row.group,
            ms(killed.at.0).round(),
            killed.free_slow_bytes >> 20,
            killed.slow_allocations,
            killed.longest_allocation.0.div_ceil(1_000_000),
            killed.reclaim_passes,
        ));
    }
}

/// Run time over that with all memory fast: as simulated, and by the extended leading-load model.
fn compare(
    row: &mut RunRow,
    machine: &ReferenceMachine,
    group: usize,
    all_fast: AllFast,
    latency_ratio: f64,
) {
    // A program that was killed or stopped did not do the same work.
    if machine.killed(group).is_some() || machine.was_stopped(group) {
        return;
    }
    let Some(duration) = machine.duration(group) else { return };
    let fast_ns = all_fast.duration.as_ns();
    if fast_ns <= 0.0 {
        return;
    }
    let slowdown = duration.as_ns() / fast_ns;
    let counts = machine.counts(group);
    let memory_ns = all_fast.memory.as_ns().min(fast_ns);
    let projection = ThreadTime {
        compute_ns: fast_ns - memory_ns,
        memory_ns,
        hit_ratio: HitRatio::counted(counts.reads[0], counts.reads.iter().sum()),
        // The simulated tiers are the target tiers, and copying is included: nothing is left to
        // scale.
        shootdown_ns: Picoseconds(counts.migration_ps).as_ns() / machine.cores(group) as f64,
        copy_ns: 0.0,
    }
    .project(latency_ratio);
    row.slowdown = Some(slowdown);
    row.projected_duration_ms = Some(projection.time_ns / 1e6);
    row.projected_slowdown = Some(projection.time_ns / fast_ns);
    row.projection_error = Some(projection.time_ns / duration.as_ns() - 1.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Quiet, Request};

    const EXPERIMENT: &str = "name = \"small\"\nperiod_ms = 1\nperiods = 1000\n\
        [machine]\nfidelity = \"trace\"\nfast = \"16M\"\nslow = \"16M\"\n\
        [machine.hardware]\nnode.cores = 2\n\
        [[groups]]\nname = \"g\"\nfast_ratio = 0.5\npage_size = \"4K\"\npolicy = \"first-touch\"\n\
        workload = { kind = \"program\", name = \"gups\", footprint_mib = 2 }\n";

    fn row(text: &str) -> RunRow {
        let out = tempfile::tempdir().unwrap();
        let experiment = Experiment::parse(text, ".".into()).unwrap();
        let request = Request::simulated(experiment, out.path().to_owned());
        crate::runner::run(request, &mut Quiet).unwrap();
        terrace_results::read(out.path()).unwrap().remove(0)
    }

    #[test]
    fn a_program_that_was_stopped_has_no_slowdown() {
        let whole = row(EXPERIMENT);
        assert!(whole.slowdown.is_some() && whole.duration_ms.unwrap() > 2.0, "{whole:?}");
        let stopped = row(&format!("{EXPERIMENT}stop_ms = 1\n"));
        assert!(stopped.duration_ms.unwrap() < 2.0, "{stopped:?}");
        assert_eq!((stopped.slowdown, stopped.projected_slowdown), (None, None));
        assert_eq!((stopped.projected_duration_ms, stopped.projection_error), (None, None));
        // It ended by itself before that.
        assert!(row(&format!("{EXPERIMENT}stop_ms = 900\n")).slowdown.is_some());
    }

    #[test]
    fn a_program_that_outlasts_the_experiment_runs_no_longer_with_all_memory_fast() {
        let base = |text: &str| {
            let experiment = Experiment::parse(text, ".".into()).unwrap();
            baseline(&experiment).unwrap()[0].map(|all_fast| all_fast.duration)
        };
        let whole = base(EXPERIMENT).unwrap();
        assert!(whole > Picoseconds::from_ns(2_000_000), "{whole:?}");
        assert_eq!(base(&EXPERIMENT.replace("periods = 1000", "periods = 1")), None);
        assert_eq!(base(&EXPERIMENT.replace("periods = 1000", "periods = 900")), Some(whole));
    }
}

//! Runs on a virtual two-tier machine: boots one for each run and runs the same experiment there as
//! on a host, so that there is one live implementation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use terrace_lab::{
    AccessCounts, CountedCaches, Event as LabEvent, FastShares, GuestJob, GuestMachine,
    GuestResult, Kernel, Lab, LabConfig, Program, Qemu, Window,
};
use terrace_linux::rivals;
use terrace_results::{
    ALL_FAST, HeatRow, KernelThreadRow, PeriodRow, RunRow, TablePagesRow, path, read,
};
use terrace_timed::machine::observed::ObservationPlan;
use terrace_timed::samples::SamplePlan;
use terrace_workloads::kinds::LiveProgram;

use crate::backend::Backend;
use crate::carried::Carried;
use crate::file::{Clock, Experiment, MachineSpec};
use crate::rows::Rows;
use crate::run::{Event, Events, MachineKind, Quiet, Request, Run, starts, write_whole};
use crate::slowdown::{self, AllFast};
use crate::timed;
use terrace_core::{InputError, refuse};

/// Paths in the guest.
const EXPERIMENT: &str = "/srv/experiment.toml";
const RESULTS: &str = "/srv/results";

/// Added to the time of a run's periods: boot, filling the program's memory under emulation, its
/// verification.
const OVERHEAD: Duration = Duration::from_secs(420);
/// Factor on the seconds of a guest whose clocks count instructions and that is never idle: it
/// executes some ten million a second while accesses are counted.
const BUSIEST: u32 = 100;
/// The factor with the memory clock: its processors may complete several instructions a nanosecond.
const BUSIEST_TIMED: u32 = 2000;

/// A virtual machine for each run.
pub(crate) struct VirtualMachine;

impl Backend for VirtualMachine {
    fn check(&self, runs: &[Run<'_>]) -> anyhow::Result<()> {
        for run in runs {
            let machine = machine(&run.experiment, run.request.count_accesses)?;
            machine.check().map_err(InputError::new)?;
            if let Some(missing) = terrace_lab::missing_requirements(&machine).into_iter().next() {
                return Err(InputError::new(terrace_lab::LabError::from(missing)).into());
            }
            crate::host::check_workloads(run)?;
            Carried::of(run)?.check()?;
        }
        Ok(())
    }

    fn folders(&self, request: &Request) -> Vec<&'static str> {
        let timed = request.experiment.machine.clock == Clock::Memory;
        let accesses = request.count_accesses.then_some("accesses");
        ["details"].into_iter().chain(accesses).chain(timed.then_some("clock")).collect()
    }

    fn run(
        &self,
        runs: &[Run<'_>],
        tables: &mut dyn Rows,
        events: &mut dyn Events,
    ) -> anyhow::Result<bool> {
        let references = references(runs)?;
        let all: Vec<&Run<'_>> = references.iter().chain(runs).collect();
        let mut finished =
            Finished { all: &all, references: references.len(), ..Finished::default() };
        let jobs = machines_at_once(runs);
        if jobs > 1 {
            let stage = format!("running {jobs} machines at a time");
            events.event(Event::Stage(&stage));
            let work = |run: &&Run<'_>| boot(run, &mut Quiet).context(in_run(run));
            terrace_jobs::in_turn(&all, jobs, work, |index, guest| {
                events.event(starts(all[index], index, all.len()));
                finished.take(index, guest, tables, events)
            })?;
        } else {
            for (index, run) in all.iter().enumerate() {
                events.event(starts(run, index, all.len()));
                let guest = boot(run, events).context(in_run(run))?;
                finished.take(index, guest, tables, events)?;
            }
        }
        Ok(!finished.damaged)
    }
}

fn in_run(run: &Run<'_>) -> String {
    format!("run '{}'", run.name)
}

/// Runs with all memory fast and nothing moved, one for each kernel, where slowdowns are measured
/// against them.
fn references<'a>(runs: &[Run<'a>]) -> Result<Vec<Run<'a>>, InputError> {
    let mut references: Vec<Run<'a>> = Vec::new();
    for run in runs.iter().filter(|run| timed::has_reference(&run.experiment)) {
        let kernel = &run.experiment.machine.kernel;
        if references.iter().any(|reference| &reference.experiment.machine.kernel == kernel) {
            continue;
        }
        let name = match references.len() {
            0 => ALL_FAST.to_owned(),
            n => format!("{ALL_FAST}-{}", n + 1),
        };
        let experiment = timed::with_all_memory_fast(&run.experiment)?;
        let rival = rivals::find(timed::NOTHING_AT_WORK);
        references.push(Run { name, experiment, rival, request: run.request });
    }
    Ok(references)
}

/// Machines that run at the same time. If the guests' clocks count, the load of the host changes
/// nothing in them; otherwise they would slow each other down.
fn machines_at_once(runs: &[Run<'_>]) -> usize {
    let Some(run) = runs.first().filter(|_| runs.iter().all(|run| counts(run))) else { return 1 };
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = kib.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let bytes = timed::memory_bytes(&run.experiment.machine);
    run.request.jobs.min(at_once(kib.unwrap_or(0) << 10, bytes))
}

fn counts(run: &Run<'_>) -> bool {
    run.experiment.machine.clock != Clock::Host
}

/// Machines of so much memory that fit into the available memory, at least one. The emulator needs
/// some for itself.
fn at_once(available_bytes: u64, machine_bytes: u64) -> usize {
    let each = machine_bytes + (512 << 20);
    usize::try_from((available_bytes / each).max(1)).unwrap_or(usize::MAX)
}

/// Takes finished guests, in the order of their runs.
#[derive(Default)]
struct Finished<'a> {
    /// The references, then the runs.
    all: &'a [&'a Run<'a>],
    references: usize,
    by_kernel: BTreeMap<Option<PathBuf>, AllFast>,
    damaged: bool,
}

impl Finished<'_> {
    fn take(
        &mut self,
        index: usize,
        guest: Guest,
        tables: &mut dyn Rows,
        events: &mut dyn Events,
    ) -> anyhow::Result<()> {
        let run = self.all[index];
        let kernel = run.experiment.machine.kernel.clone();
        let rows = if index < self.references {
            if let Some(clock) = &guest.result.clock {
                timed::write_causes(run, clock, tables)?;
            }
            let (rows, periods) = (reference_rows(run, &guest)?, run.experiment.periods);
            let all_fast = AllFast { rows, periods, clock: guest.result.clock };
            all_fast.rows.iter().cloned().try_for_each(|row| tables.run(row))?;
            self.by_kernel.entry(kernel).or_insert(all_fast).rows.clone()
        } else {
            one(run, &guest, self.by_kernel.get(&kernel), tables, events).context(in_run(run))?
        };
        self.damaged |= rows.iter().any(|row| row.checksum_ok == Some(false));
        events.event(Event::RunEnds);
        Ok(())
    }
}

fn machine(experiment: &Experiment, count_accesses: bool) -> anyhow::Result<GuestMachine> {
    let wanted = &experiment.machine;
    let memory_clock = match wanted.clock {
        Clock::Memory => Some(Box::new(timed::hardware(experiment)?)),
        Clock::Host | Clock::Instructions => None,
    };
    let work = memory_clock.as_ref().and_then(|clock| slowdown::work(experiment, clock));
    let sampled_reads = wanted.sampled_reads();
    let mut machine = GuestMachine {
        cpus: wanted.cpus,
        fast_latency_ns: wanted.fast_latency_ns,
        slow_latency_ns: wanted.slow_latency_ns,
        timeout: Duration::from_millis(experiment.period_ms.saturating_mul(experiment.periods))
            .saturating_mul(match wanted.clock {
                Clock::Host => 2,
                Clock::Instructions => BUSIEST,
                Clock::Memory => BUSIEST_TIMED,
            })
            .saturating_add(OVERHEAD),
        instructions_as_time: wanted.clock == Clock::Instructions,
        memory_clock,
        samples: (sampled_reads > 0).then(|| SamplePlan {
            accesses_per_sample: sampled_reads,
            seed: experiment.seed,
            // Policies find their placement in the warm-up.
            before_clock: (experiment.warm_up_periods > 0).then(ObservationPlan::default),
            ..SamplePlan::default()
        }),
        work,
        count_accesses: count_accesses.then(CountedCaches::default),
        // The set-up of programs belongs to no period.
        count_after: timed::before_periods(experiment) as u32,
        begins_marked: experiment.warm_up_periods > 0,
        ..GuestMachine::default()
    };
    if wanted.full {
        // What others have in fast memory stays there, and the guest's files are among it. In the usual
        // file system of memory the kernel would move them away, and the groups have more than the rest.
        machine.kernel_args.push("rootfstype=ramfs".to_owned());
    }
    machine.fast_bytes = wanted.fast.map_or(machine.fast_bytes, |size| size.0);
    machine.slow_bytes = wanted.slow.map_or(machine.slow_bytes, |size| size.0);
    if let Some(wanted) = &wanted.kernel {
        machine.kernel = kernel(experiment, wanted)?;
    }
    if let Some(wanted) = &wanted.qemu {
        machine.qemu = qemu(experiment, wanted)?;
    }
    Ok(machine)
}

/// The kernel of this name, or at this path relative to the experiment's folder.
fn kernel(experiment: &Experiment, wanted: &Path) -> Result<Kernel, InputError> {
    match wanted.to_str().map(Kernel::named) {
        None | Some(Kernel::Path(_)) => {
            let kernel = experiment.folder.join(wanted);
            if !kernel.is_file() {
                let kernel = kernel.display();
                return Err(refuse!(
                    "machine.kernel = {kernel}: expected a kernel image, 'debian', \
                     'debian-7.3', 'terrace' or 'terrace-7.3'"
                ));
            }
            Ok(Kernel::Path(kernel))
        }
        Some(packaged) => Ok(packaged),
    }
}

/// The QEMU of this version, by this name on PATH, or at this path relative to the experiment's folder.
fn qemu(experiment: &Experiment, wanted: &str) -> Result<Qemu, InputError> {
    match Qemu::named(wanted) {
        Qemu::Host(path) if path.components().count() > 1 => {
            let path = experiment.folder.join(path);
            if !path.is_file() {
                let path = path.display();
                return Err(refuse!(
                    "machine.qemu = {path}: expected a QEMU, or a major version as in \"10\""
                ));
            }
            Ok(Qemu::Host(path))
        }
        named => Ok(named),
    }
}

/// Files of a guest.
struct Guest {
    result: GuestResult,
    /// The folder of its tables.
    results: PathBuf,
    emulated: bool,
    kernel: Option<String>,
}

/// Adds a guest's tables to these.
fn one(
    run: &Run<'_>,
    guest: &Guest,
    all_fast: Option<&AllFast>,
    tables: &mut dyn Rows,
    events: &mut dyn Events,
) -> anyhow::Result<Vec<RunRow>> {
    let rows = adopt(run, guest, all_fast, tables)?;
    if let Some(counts) = &guest.result.accesses {
        compare(run, counts, &rows, events)?;
    }
    if let Some(clock) = &guest.result.clock {
        timed::write(run, clock, all_fast, tables, events)?;
    }
    Ok(rows)
}

/// The rows of a run that is a base of slowdowns.
fn reference_rows(run: &Run<'_>, guest: &Guest) -> anyhow::Result<Vec<RunRow>> {
    let rows = read::<RunRow>(&guest.results)?;
    let of_reference = |row: RunRow| RunRow {
        policy: ALL_FAST.to_owned(),
        applied_main: ALL_FAST.to_owned(),
        // Without what the rival under which nothing moves says of itself.
        notes: row.notes.as_ref().and_then(|notes| Some(notes.split_once("; ")?.1.to_owned())),
        slowdown: Some(1.0),
        ..of_machine(run, guest, row)
    };
    Ok(rows.into_iter().map(of_reference).collect())
}

/// The guest's row as a row of this machine: the guest does not know about its clock.
fn of_machine(run: &Run<'_>, guest: &Guest, row: RunRow) -> RunRow {
    let clock = run.experiment.machine.clock;
    // Parameters as they were written: the guest's have its own paths of a policy in Python.
    let here = run.rows(None, false).into_iter().find(|here| here.group == row.group);
    let parameters = here.map_or_else(|| row.parameters.clone(), |here| here.parameters);
    let mut row = RunRow {
        run: run.name.clone(),
        parameters,
        machine: MachineKind::Virtual.name().to_owned(),
        kernel: guest.kernel.clone(),
        clock: clock.column().map(str::to_owned),
        // With the memory clock, times are simulated.
        emulated: guest.emulated && clock != Clock::Memory,
        ..row
    };
    if let Some(clock) = &guest.result.clock {
        timed::fill(&mut row, clock, &run.experiment);
        timed::fill_error(&mut row, clock, &run.experiment);
    }
    let counts = guest.result.accesses.as_ref();
    row.access_hit_ratio = counts.and_then(|counts| settled_share(counts, &run.experiment));
    row
}

/// Boots a machine and runs the experiment there.
fn boot(run: &Run<'_>, events: &mut dyn Events) -> anyhow::Result<Guest> {
    let experiment = &run.experiment;
    let lab = Lab::new(LabConfig {
        machine: machine(experiment, run.request.count_accesses)?,
        ..LabConfig::default()
    })?;
    let carried = Carried::of(run)?;
    let guests = carried.in_guest(&in_guest(experiment))?;
    let text = toml::to_string(&guests).context("writing the experiment")?;
    let exe = std::env::current_exe().context("finding this program for the guest")?;
    let mut job = GuestJob::new("terrace")
        .args(["run", EXPERIMENT, "--machine", "host", "--fix-conflicts", "--format", "json"])
        .args(["--out", RESULTS])
        .args(run.rival.iter().flat_map(|rival| ["--rival", rival.name()]))
        .args(run.request.count_accesses.then_some("--apart"))
        .program(Program::host(exe))
        .bytes(text, EXPERIMENT)
        .result(RESULTS);
    if let Ok(level) = std::env::var("TERRACE_LOG") {
        job = job.env("TERRACE_LOG", level);
    }
    for workload in crate::host::started(run)? {
        for program in workload.programs() {
            job = job.program(match program {
                LiveProgram::Host(path) => Program::host(path),
                LiveProgram::Package { package, program } => Program::package(package, program),
            });
        }
        for package in workload.packages {
            job = job.program(Program::whole(package));
        }
    }
    let (job, _folders) = carried.put(job)?;

    let mut emulated = true;
    let mut kernel = None;
    let result = lab.run(&job, |event| match event {
        LabEvent::Preparing(what) => events.event(Event::Stage(&what)),
        LabEvent::Starting { accel, .. } => {
            emulated = !accel.kvm;
            events.event(Event::Note(&format!("starting the machine: {accel}")));
        }
        LabEvent::Booted { kernel_release, boot_ms } => {
            events.event(Event::Note(&format!("booted {kernel_release} in {boot_ms} ms")));
            kernel = Some(kernel_release);
        }
        LabEvent::Console(line) => events.event(Event::Console(&line)),
        LabEvent::Stderr(line) => events.event(Event::Stage(line.trim())),
        LabEvent::Stdout(_) => {}
    });
    let result = result.inspect_err(|error| {
        error.console_tail().iter().for_each(|line| events.event(Event::Note(line)));
    })?;
    // A run that found a program's data damaged ends with 1, too, but with all its results.
    let results = result.result(RESULTS).filter(|r| path::<RunRow>(r).is_file());
    let Some(results) = results else {
        let printed = String::from_utf8_lossy(&result.stderr);
        let printed = printed.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("nothing");
        anyhow::bail!("the guest ended with exit code {} and printed: {printed}", result.exit_code);
    };
    Ok(Guest { results, result, emulated, kernel })
}

/// The windows of counted periods.
fn periods_of<'a>(counts: &'a AccessCounts, experiment: &Experiment) -> &'a [Window] {
    match counts.periods.as_slice() {
        [] if experiment.warm_up_periods > 0 => std::slice::from_ref(&counts.total),
        windows => timed::periods_in(windows, experiment),
    }
}

/// Fast memory's share of the accesses by the groups' programs in the second half of the periods,
/// or after the warm-up.
fn settled_share(counts: &AccessCounts, experiment: &Experiment) -> Option<f64> {
    let periods = periods_of(counts, experiment);
    let from = if experiment.warm_up_periods > 0 { 0 } else { periods.len() / 2 };
    FastShares::of(&periods[from..]).apart
}

/// Writes the counts, and compares them with the trackers' hit ratios.
fn compare(
    run: &Run<'_>,
    counts: &AccessCounts,
    rows: &[RunRow],
    events: &mut dyn Events,
) -> anyhow::Result<()> {
    let exact = FastShares::of(periods_of(counts, &run.experiment));
    let tracker = |row: &RunRow| {
        json!({
            "group": row.group,
            "page_size_bytes": row.page_size_bytes,
            "hit_ratio": row.hit_ratio,
        })
    };
    let trackers: Vec<_> = rows.iter().map(tracker).collect();
    let document = json!({ "trackers": trackers, "exact_in_periods": exact, "counts": counts });
    write_whole(&run.accesses(), &serde_json::to_vec_pretty(&document)?)?;
    let percent = |share: Option<f64>| {
        share.map_or_else(|| "none".to_owned(), |share| format!("{:.1} %", 100.0 * share))
    };
    let known = |row: &RunRow| Some(row.hit_ratio).filter(|ratio| ratio.is_finite());
    let printed = rows.iter().map(|row| format!("{} {}", row.group, percent(known(row))));
    events.event(Event::Note(&format!(
        "fast-memory hit ratio by the tracker: {}; exact, of all programs: {} of the 2 MiB and \
         {} of the 4 KiB pages touched in a period, {} of loads and stores, {} of those that \
         reached memory; of the groups' programs alone: {} of loads and stores, {} in the second half \
         ({})",
        printed.collect::<Vec<_>>().join(", "),
        percent(exact.touched_2m),
        percent(exact.touched_4k),
        percent(exact.accesses),
        percent(exact.memory_accesses),
        percent(exact.apart),
        percent(settled_share(counts, &run.experiment)),
        run.accesses().display(),
    )));
    Ok(())
}

/// The experiment as the guest runs it: its machine exists already.
fn in_guest(experiment: &Experiment) -> Experiment {
    // Without `..`, so that a new key does not compile until it is decided whose it is. The others are
    // those of the machine itself, which the host has built.
    let MachineSpec {
        fast_nodes,
        slow_nodes,
        mechanisms,
        full,
        sample_reads,
        hint_faults,
        cpus: _,
        fast: _,
        slow: _,
        fast_latency_ns: _,
        slow_latency_ns: _,
        kernel: _,
        qemu: _,
        clock: _,
        fidelity: _,
        window_instructions: _,
        window_warm_up_instructions: _,
        window_interval_instructions: _,
        hardware: _,
        os: _,
        simulation: _,
    } = experiment.machine.clone();
    let machine = MachineSpec {
        fast_nodes,
        slow_nodes,
        mechanisms,
        full,
        sample_reads,
        hint_faults,
        ..MachineSpec::default()
    };
    Experiment { machine, ..experiment.clone() }
}

/// Takes over the guest's tables and recording: the same rows, of a run on a virtual machine.
fn adopt(
    run: &Run<'_>,
    guest: &Guest,
    all_fast: Option<&AllFast>,
    tables: &mut dyn Rows,
) -> anyhow::Result<Vec<RunRow>> {
    let results = guest.results.as_path();
    let machine = MachineKind::Virtual.name();
    for row in read::<PeriodRow>(results)? {
        let (run, machine) = (run.name.clone(), machine.to_owned());
        tables.period(PeriodRow { run, machine, ..row })?;
    }
    for row in read::<HeatRow>(results)? {
        tables.heat(HeatRow { run: run.name.clone(), ..row })?;
    }
    if path::<TablePagesRow>(results).is_file() {
        for row in read::<TablePagesRow>(results)? {
            tables.table_pages(TablePagesRow { run: run.name.clone(), ..row })?;
        }
    }
    if path::<KernelThreadRow>(results).is_file() {
        for row in read::<KernelThreadRow>(results)? {
            tables.kernel_thread(KernelThreadRow { run: run.name.clone(), ..row })?;
        }
    }
    let mut rows = Vec::new();
    // The guest's name of its run and files, which has no kernel in it.
    let mut name = String::new();
    for row in read::<RunRow>(results)? {
        name.clone_from(&row.run);
        let mut row = of_machine(run, guest, row);
        if let Some(all_fast) = all_fast {
            let slowdown = all_fast.slowdown(&row, guest.result.clock.as_ref(), &run.experiment);
            slowdown.into_iter().for_each(|slowdown| slowdown.fill(&mut row));
        }
        tables.run(row.clone())?;
        rows.push(row);
    }
    for (folder, target) in [("recordings", run.recording()), ("details", run.details())] {
        let extension = target.extension().and_then(|e| e.to_str()).context("a file name")?;
        let from = results.join(folder).join(format!("{name}.{extension}"));
        // Mechanisms of Linux have no scans to record.
        if run.rival.is_some() && folder == "recordings" {
            continue;
        }
        let bytes = std::fs::read(&from).with_context(|| from.display().to_string())?;
        write_whole(&target, &bytes)?;
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn no_more_machines_run_than_the_host_has_memory_for() {
        const GIB: u64 = 1 << 30;
        assert_eq!(at_once(8 * GIB, GIB + GIB / 2), 4);
        // One runs in any case: the host may have swap.
        assert_eq!(at_once(GIB, 2 * GIB), 1);
    }

    /// The machine of an experiment with these keys in its `[machine]`.
    fn machine_of(keys: &str) -> Result<GuestMachine, String> {
        let text = format!(
            "name = \"e\"\nperiod_ms = 1000\nperiods = 60\n[machine]\n{keys}\n[[groups]]\n\
             name = \"a\"\nfast_ratio = 0.5\nworkload = {{ kind = \"zipf\" }}\n"
        );
        let experiment =
            Experiment::parse(&text, PathBuf::from(".")).map_err(|refusal| refusal.to_string())?;
        machine(&experiment, false).map_err(|error| error.to_string())
    }

    #[test]
    fn the_guests_clock_is_the_one_that_was_asked_for() {
        let [host, instructions] =
            ["", "clock = \"instructions\""].map(|clock| machine_of(clock).unwrap());
        assert!(!host.instructions_as_time && instructions.instructions_as_time);
        assert!(instructions.timeout > host.timeout);
        let refused = machine_of("clock = \"sundial\"").unwrap_err();
        assert!(refused.contains("sundial") && refused.contains("instructions"), "{refused}");
    }

    #[test]
    fn on_a_full_node_the_kernel_cannot_move_the_guests_files_away() {
        let text = "name = \"e\"\nperiod_ms = 1000\nperiods = 60\n[[groups]]\n\
                    name = \"a\"\nfast = \"16M\"\nworkload = { kind = \"zipf\" }\n";
        let mut experiment = Experiment::parse(text, PathBuf::from(".")).unwrap();
        let mut stays = |full| {
            experiment.machine.full = full;
            let machine = machine(&experiment, false).unwrap();
            machine.kernel_args.iter().any(|argument| argument == "rootfstype=ramfs")
        };
        assert!(stays(true) && !stays(false));
    }

    #[test]
    fn the_guest_is_emulated_by_what_was_asked_for() {
        let qemu = |keys: &str| machine_of(keys).map(|machine| machine.qemu);
        assert_eq!(qemu(""), Ok(GuestMachine::default().qemu));
        assert_eq!(qemu("qemu = \"10\""), Ok(Qemu::Packaged { major: 10 }));
        assert_eq!(qemu("qemu = \"qemu-new\""), Ok(Qemu::Host("qemu-new".into())));
        let refused = qemu("qemu = \"no/such/qemu\"").unwrap_err();
        assert!(refused.contains("no/such/qemu: expected a QEMU"), "{refused}");
    }
}

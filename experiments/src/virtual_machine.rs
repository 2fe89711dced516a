//! Runs on a virtual two-tier machine: boots one for each run and has it run the same
//! experiment on *its* host, so that there is one live implementation.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use terrace_lab::{
    AccessCounts, CountedCaches, Event as LabEvent, FastShares, GuestJob, GuestResult, Kernel, Lab,
    LabConfig, Machine, Program, Window,
};
use terrace_results::{HeatRow, PeriodRow, RunRow, TablePagesRow, path, read};
use terrace_workloads::kinds::LiveProgram;

use crate::backend::{self, Backend};
use crate::file::{Clock, Experiment, MachineSpec};
use crate::rows::Rows;
use crate::run::{Event, Events, MachineKind, Request, Run, write_whole};
use crate::timed::{self, AllFast};
use terrace_core::{InputError, refuse};

/// Where things lie in the guest.
const EXPERIMENT: &str = "/srv/experiment.toml";
const RESULTS: &str = "/srv/results";

/// Added to the time that a run's periods take: boot, filling the program's memory under
/// emulation, its verification.
const OVERHEAD: Duration = Duration::from_secs(420);
/// How much longer than its own seconds a guest takes whose clocks count instructions and that is
/// never idle: some ten million a second while accesses are counted.
const BUSIEST: u32 = 100;
/// The same of one whose clock knows the memory: its processors may be through with several
/// instructions a nanosecond.
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
        // By kernel: what all memory fast comes to.
        let mut by_kernel = BTreeMap::new();
        for run in runs {
            if let Entry::Vacant(place) = by_kernel.entry(run.experiment.machine.kernel.clone()) {
                place.insert(all_fast(run, events)?);
            }
        }
        backend::one_by_one(runs, events, |run, events| {
            let all_fast = by_kernel.get(&run.experiment.machine.kernel).and_then(Option::as_ref);
            one(run, all_fast, tables, events)
        })
    }
}

fn machine(experiment: &Experiment, count_accesses: bool) -> anyhow::Result<Machine> {
    let wanted = &experiment.machine;
    let instructions_as_time = wanted.clock == Clock::Instructions;
    let memory_clock = match wanted.clock {
        Clock::Memory => Some(Box::new(timed::hardware(wanted)?)),
        Clock::Host | Clock::Instructions => None,
    };
    let mut machine = Machine {
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
        instructions_as_time,
        memory_clock,
        count_accesses: count_accesses.then(CountedCaches::default),
        // What programs do to set themselves up is of no period.
        count_after: timed::BEFORE_PERIODS as u32,
        ..Machine::default()
    };
    if let Some(size) = wanted.fast {
        machine.fast_bytes = size.0;
    }
    if let Some(size) = wanted.slow {
        machine.slow_bytes = size.0;
    }
    if let Some(wanted) = &wanted.kernel {
        machine.kernel = match wanted.to_str().map(Kernel::named) {
            None | Some(Kernel::Path(_)) => {
                // A path is one from the experiment's folder.
                let kernel = experiment.folder.join(wanted);
                if !kernel.is_file() {
                    let kernel = kernel.display();
                    return Err(refuse!(
                        "machine.kernel = {kernel}: expected a kernel image, 'debian', \
                         'debian-7.3' or 'terrace'"
                    )
                    .into());
                }
                Kernel::Path(kernel)
            }
            Some(packaged) => packaged,
        };
    }
    Ok(machine)
}

/// What a guest left.
struct Guest {
    result: GuestResult,
    /// The folder of its tables.
    results: PathBuf,
    emulated: bool,
    kernel: Option<String>,
}

/// Runs it and adds the guest's tables to these.
fn one(
    run: &Run<'_>,
    all_fast: Option<&AllFast>,
    tables: &mut dyn Rows,
    events: &mut dyn Events,
) -> anyhow::Result<Vec<RunRow>> {
    let guest = boot(run, events)?;
    let rows = adopt(run, &guest, all_fast, tables)?;
    if let Some(counts) = &guest.result.accesses {
        compare(run, counts, &rows, events)?;
    }
    if let Some(clock) = &guest.result.clock {
        timed::write(run, clock, all_fast, tables, events)?;
    }
    Ok(rows)
}

/// Runs it with all memory fast and nothing moved, where slowdowns are measured against that.
fn all_fast(run: &Run<'_>, events: &mut dyn Events) -> anyhow::Result<Option<AllFast>> {
    let experiment = &run.experiment;
    if experiment.machine.clock != Clock::Memory || !experiment.slowdown {
        return Ok(None);
    }
    events.event(Event::Stage("running with all memory fast, for comparison"));
    let experiment = timed::with_all_memory_fast(experiment)?;
    let run = Run { name: "all-fast".to_owned(), experiment, rival: None, request: run.request };
    let guest = boot(&run, events).context("run with all memory fast")?;
    let rows = read::<RunRow>(&guest.results)?;
    Ok(Some(AllFast { rows, clock: guest.result.clock }))
}

/// Boots a machine and has it run the experiment.
fn boot(run: &Run<'_>, events: &mut dyn Events) -> anyhow::Result<Guest> {
    let experiment = &run.experiment;
    let lab = Lab::new(LabConfig {
        machine: machine(experiment, run.request.count_accesses)?,
        ..LabConfig::default()
    })?;
    let text = toml::to_string(&in_guest(experiment)).context("writing the experiment")?;
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
    for program in crate::host::programs(run)? {
        job = job.program(match program {
            LiveProgram::Host(path) => Program::host(path),
            LiveProgram::Package { package, program } => Program::package(package, program),
        });
    }

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

/// Windows that periods are counted in: the last window begins when the last period is over.
fn periods_of(counts: &AccessCounts) -> &[Window] {
    let last = counts.periods.len().saturating_sub(1);
    counts.periods.get(timed::BEFORE_PERIODS..last).unwrap_or_default()
}

/// Share of fast memory in what the programs of the groups did in the second half of the periods.
fn settled_share(counts: &AccessCounts) -> Option<f64> {
    let periods = periods_of(counts);
    FastShares::of(&periods[periods.len() / 2..]).apart
}

/// Writes what was counted, and puts it beside what the trackers said.
fn compare(
    run: &Run<'_>,
    counts: &AccessCounts,
    rows: &[RunRow],
    events: &mut dyn Events,
) -> anyhow::Result<()> {
    let exact = FastShares::of(periods_of(counts));
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
        percent(settled_share(counts)),
        run.accesses().display(),
    )));
    Ok(())
}

/// The experiment as the guest runs it: its machine is there already.
fn in_guest(experiment: &Experiment) -> Experiment {
    let MachineSpec { fast_nodes, slow_nodes, mechanisms, full, .. } = experiment.machine.clone();
    let machine =
        MachineSpec { fast_nodes, slow_nodes, mechanisms, full, ..MachineSpec::default() };
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
    let clock = run.experiment.machine.clock;
    // Where the clock knows the memory, times are simulated.
    let emulated = guest.emulated && clock != Clock::Memory;
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
    let mut rows = Vec::new();
    // What the guest calls its run, and its files: it knows of no other kernel.
    let mut name = String::new();
    for row in read::<RunRow>(results)? {
        name.clone_from(&row.run);
        let mut row = RunRow {
            run: run.name.clone(),
            machine: machine.to_owned(),
            kernel: guest.kernel.clone(),
            clock: clock.column().map(str::to_owned),
            emulated,
            ..row
        };
        if let Some(clock) = &guest.result.clock {
            timed::fill(&mut row, clock, &run.experiment);
        }
        row.access_hit_ratio = guest.result.accesses.as_ref().and_then(settled_share);
        if let Some(all_fast) = all_fast {
            row.slowdown = all_fast.slowdown(&row, &run.experiment);
        }
        tables.run(row.clone())?;
        rows.push(row);
    }
    for (folder, target) in [("recordings", run.recording()), ("details", run.details())] {
        let extension = target.extension().and_then(|e| e.to_str()).context("a file name")?;
        let from = results.join(folder).join(format!("{name}.{extension}"));
        // What moves pages by itself has no scans to record.
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
    fn the_guests_clock_is_the_one_that_was_asked_for() {
        let machine_of = |clock: &str| {
            let text = format!(
                "name = \"e\"\nperiod_ms = 1000\nperiods = 60\n[machine]\n{clock}\n[[groups]]\n\
                 name = \"a\"\nfast_ratio = 0.5\nworkload = {{ kind = \"zipf\" }}\n"
            );
            Experiment::parse(&text, PathBuf::from("."))
                .map_err(|refusal| refusal.to_string())
                .map(|experiment| machine(&experiment, false).unwrap())
        };
        let [host, instructions] =
            ["", "clock = \"instructions\""].map(|clock| machine_of(clock).unwrap());
        assert!(!host.instructions_as_time && instructions.instructions_as_time);
        assert!(instructions.timeout > host.timeout);
        let refused = machine_of("clock = \"sundial\"").unwrap_err();
        assert!(refused.contains("sundial") && refused.contains("instructions"), "{refused}");
    }
}

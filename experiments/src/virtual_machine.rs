//! Runs on a virtual two-tier machine: boots one for each run and has it run the same
//! experiment on *its* host, so that there is one live implementation.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use terrace_lab::{
    AccessCounts, CountedCaches, Event as LabEvent, FastShares, GuestJob, Kernel, Lab, LabConfig,
    Machine, Program,
};
use terrace_results::{HeatRow, PeriodRow, RunRow, TablePagesRow, path, read};
use terrace_workloads::kinds::LiveProgram;

use crate::file::{Clock, Experiment, MachineSpec};
use crate::refusal::{Refusal, refuse};
use crate::rows::Rows;
use crate::run::{Event, Events, MachineKind, Run, write_whole};

/// Where things lie in the guest.
const EXPERIMENT: &str = "/srv/experiment.toml";
const RESULTS: &str = "/srv/results";

/// Added to the time that a run's periods take: boot, filling the program's memory under
/// emulation, its verification.
const OVERHEAD: Duration = Duration::from_secs(420);
/// How much longer than its own seconds a guest takes whose clocks count instructions and that is
/// never idle: some ten million a second while accesses are counted.
const BUSIEST: u32 = 100;

/// Refuses what cannot be run.
pub(crate) fn check(runs: &[Run<'_>]) -> anyhow::Result<()> {
    for run in runs {
        let machine = machine(&run.experiment, run.request.count_accesses)?;
        machine.check().map_err(Refusal::new)?;
        if let Some(missing) = terrace_lab::missing_requirements(&machine).into_iter().next() {
            return Err(Refusal::new(terrace_lab::LabError::from(missing)).into());
        }
        crate::host::check_workloads(run)?;
    }
    Ok(())
}

fn machine(experiment: &Experiment, count_accesses: bool) -> anyhow::Result<Machine> {
    let wanted = &experiment.machine;
    let instructions_as_time = wanted.clock == Clock::Instructions;
    let mut machine = Machine {
        cpus: wanted.cpus,
        fast_latency_ns: wanted.fast_latency_ns,
        slow_latency_ns: wanted.slow_latency_ns,
        timeout: Duration::from_millis(experiment.period_ms.saturating_mul(experiment.periods))
            .saturating_mul(if instructions_as_time { BUSIEST } else { 2 })
            .saturating_add(OVERHEAD),
        instructions_as_time,
        count_accesses: count_accesses.then(CountedCaches::default),
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

/// Runs it and adds the guest's tables to these.
pub(crate) fn run(
    run: &Run<'_>,
    tables: &mut dyn Rows,
    events: &mut dyn Events,
) -> anyhow::Result<Vec<RunRow>> {
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
        let said = String::from_utf8_lossy(&result.stderr);
        let said = said.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("nothing");
        anyhow::bail!("the guest ended with exit code {} and said: {said}", result.exit_code);
    };
    let rows = adopt(run, &results, emulated, kernel, tables)?;
    if let Some(counts) = &result.accesses {
        compare(run, counts, &rows, events)?;
    }
    Ok(rows)
}

/// Writes what was counted, and puts it beside what the trackers said.
fn compare(
    run: &Run<'_>,
    counts: &AccessCounts,
    rows: &[RunRow],
    events: &mut dyn Events,
) -> anyhow::Result<()> {
    // The first window lasts until the first period begins, the last one begins when the last
    // period is over.
    let periods = counts.periods.get(1..counts.periods.len().saturating_sub(1));
    let exact = FastShares::of(periods.unwrap_or_default());
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
    let said = rows.iter().map(|row| format!("{} {}", row.group, percent(Some(row.hit_ratio))));
    events.event(Event::Note(&format!(
        "fast-memory hit ratio by the tracker: {}; exact, of all programs: {} of the 2 MiB and \
         {} of the 4 KiB pages touched in a period, {} of loads and stores, {} of those that \
         reached memory ({})",
        said.collect::<Vec<_>>().join(", "),
        percent(exact.touched_2m),
        percent(exact.touched_4k),
        percent(exact.accesses),
        percent(exact.memory_accesses),
        run.accesses().display(),
    )));
    Ok(())
}

/// The experiment as the guest runs it: its machine is there already.
fn in_guest(experiment: &Experiment) -> Experiment {
    let MachineSpec { fast_nodes, slow_nodes, mechanisms, .. } = experiment.machine.clone();
    let machine = MachineSpec { fast_nodes, slow_nodes, mechanisms, ..MachineSpec::default() };
    Experiment { machine, ..experiment.clone() }
}

/// Takes over the guest's tables and recording: the same rows, of a run on a virtual machine.
fn adopt(
    run: &Run<'_>,
    results: &Path,
    emulated: bool,
    kernel: Option<String>,
    tables: &mut dyn Rows,
) -> anyhow::Result<Vec<RunRow>> {
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
        let (run, machine, kernel) = (run.name.clone(), machine.to_owned(), kernel.clone());
        let row = RunRow { run, machine, emulated, kernel, ..row };
        tables.run(row.clone())?;
        rows.push(row);
    }
    for (folder, target) in [("recordings", run.recording()), ("details", run.details())] {
        let extension = target.extension().and_then(|e| e.to_str()).context("a file name")?;
        let from = results.join(folder).join(format!("{name}.{extension}"));
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

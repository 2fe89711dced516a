//! What a profile costs, in runs at trace fidelity: its seven runs in one pass, and each with a
//! source of its own in turn, as before, in one run of the benchmark.
//!
//! Both wall time and processor time count: the first is what a user waits for and depends on the
//! cores there are, the second is the work.

use std::path::Path;
use std::time::{Duration, Instant};

use terrace_core::page::PageSize;
use terrace_experiments::Experiment;
use terrace_experiments::profile::{Passes, profile_in};
use terrace_experiments::run::Quiet;
use terrace_simulated::hardware::presets;
use terrace_simulated::hardware::units::Bytes;
use terrace_simulated::os::{OsConfig, TablePolicy};
use terrace_simulated::reference::{
    Options, RecordingChoice, ReferenceConfig, ReferenceGroup, ReferenceMachine, recording,
};

use super::Part;
use super::sim::{Kind, MACHINE, each_recording, process_time};
use crate::measure::{Report, median};

pub const PART: Part = Part {
    name: "profile",
    measures: "a profile's time over that of one run at trace fidelity, in one pass and run by run",
    run,
};

/// References of each recording, by the name of its kind: a second or two for a run.
const REFERENCES: [(&str, u64); 3] =
    [("friendly", 20_000_000), ("random", 2_000_000), ("random_huge", 3_000_000)];
const INTERVAL: u64 = 100_000;
const TURNS: usize = 3;

/// Wall time and processor time of something.
pub(super) fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<[Duration; 2]> {
    let (wall, processor) = (Instant::now(), process_time());
    work()?;
    Ok([wall.elapsed(), process_time() - processor])
}

fn run(report: &mut Report) -> anyhow::Result<()> {
    each_recording(&REFERENCES, |kind, path, folder| measure(report, kind, path, folder))
}

fn measure(report: &mut Report, kind: &Kind, path: &Path, folder: &Path) -> anyhow::Result<()> {
    let experiment = experiment(kind, path)?;
    // By figure: one pass and apart, each in wall time and processor time over a single run's.
    let mut ratios = [const { Vec::new() }; 4];
    for _ in 0..TURNS {
        // In turn, so that a busy moment of the machine falls on all of them.
        let single = timed(|| single(kind, path))?;
        let mut profiles = Vec::new();
        for (number, passes) in [Passes::One, Passes::Apart].into_iter().enumerate() {
            let out = folder.join(format!("{number}.tprof"));
            let took =
                timed(|| profile_in(passes, &experiment, &out, INTERVAL, &mut Quiet).map(|_| ()))?;
            for clock in 0..2 {
                let ratio = took[clock].as_secs_f64() / single[clock].as_secs_f64();
                ratios[2 * number + clock].push(ratio);
            }
            profiles.push(std::fs::read(&out)?);
        }
        anyhow::ensure!(profiles[0] == profiles[1], "one pass gives another profile than seven");
    }
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let figures = [
        ("one_pass_x", "wall time, the seven runs in one pass"),
        ("one_pass_processor_x", "processor time, the seven runs in one pass"),
        ("apart_x", "wall time, each run with a source of its own, in turn"),
        ("apart_processor_x", "processor time, each run with a source of its own, in turn"),
    ];
    for ((figure, what), ratios) in figures.into_iter().zip(ratios) {
        let conditions = format!(
            "{what}, over that of one run with all memory fast; {} references to {}; {MACHINE}; \
             {cores} cores for all of it; median of {TURNS}, taken in turn",
            kind.references, kind.what,
        );
        report.add(&format!("profile.{}.{figure}", kind.name), median(ratios), "x", &conditions)?;
    }
    Ok(())
}

pub(super) fn experiment(kind: &Kind, path: &Path) -> anyhow::Result<Experiment> {
    let mib = kind.footprint_bytes >> 20;
    let text = format!(
        "name = \"profile\"\nperiod_ms = 5\nperiods = 100000\n[machine]\nfidelity = \"trace\"\nfast = \
         \"{mib}M\"\nslow = \"{}M\"\nhardware = {{ preset = \"{MACHINE}\" }}\n[[groups]]\nname = \
         \"g\"\nfast_ratio = 0.5\npage_size = \"{}\"\n[groups.workload]\nkind = \
         \"recording\"\npath = \"{}\"\n",
        2 * mib,
        if kind.page_size == PageSize::Huge { "2M" } else { "4K" },
        path.display(),
    );
    Experiment::parse(&text, ".".into()).map_err(|e| anyhow::anyhow!("{e}"))
}

/// One run with all memory fast.
fn single(kind: &Kind, path: &Path) -> anyhow::Result<()> {
    let machine = all_fast(kind, path)?;
    machine.run_to_end()?;
    let made = machine.counts(0).references;
    anyhow::ensure!(made == kind.references, "{made} of {} references", kind.references);
    Ok(())
}

/// A machine on which a recording is about to run with all memory fast.
pub(super) fn all_fast(kind: &Kind, path: &Path) -> anyhow::Result<ReferenceMachine> {
    let mut hardware = presets::by_name(MACHINE)?;
    for tier in hardware.tiers.iter_mut().take(2) {
        tier.capacity = Bytes(3 * kind.footprint_bytes);
    }
    let machine = ReferenceMachine::new(ReferenceConfig {
        hardware,
        os: OsConfig::default(),
        period_ns: 5_000_000,
        reads_per_sample: 0,
        sample_seed: 0,
        options: Options::default(),
    })?;
    let choice = RecordingChoice { path: path.to_owned(), process: None, dependent: false };
    let source = recording(&choice).map_err(|e| anyhow::anyhow!(e.0))?;
    let group = ReferenceGroup {
        name: kind.name.to_owned(),
        page_size: kind.page_size,
        allocation: terrace_core::policy::Allocation::FastFirst,
        needs_frames: false,
        tables: TablePolicy::default(),
        fast_budget: Box::new(|layout| layout.pages() as u64),
        start_ns: 0,
        stop_ns: None,
        stop_after_start_up_of: None,
    };
    let _interfaces = machine.add_group(group, Box::new(source))?;
    Ok(machine)
}

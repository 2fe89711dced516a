//! Slowdowns estimated from windows against whole runs: how often the interval has the truth, and
//! what an estimate costs.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use terrace_experiments::Experiment;
use terrace_experiments::estimate::{Request, Windows};
use terrace_experiments::run::Quiet;
use terrace_experiments::windows::windows;
use terrace_simulated::reference::windows::Choice;
use terrace_workloads::programs::REGISTRY;

use super::Part;
use super::profile::{experiment, timed};
use super::sim::{Kind, MACHINE, each_recording};
use crate::measure::Report;

pub const PART: Part = Part {
    name: "estimate",
    measures: "slowdowns estimated from windows against whole runs, and their cost",
    run,
};

const SHARES: [f64; 3] = [0.25, 0.5, 0.75];
/// Windows of a program, or as many as its references have room for.
const WINDOWS: [u64; 4] = [200, 100, 50, 25];
/// The error that is asked for where the cost is measured.
const ERROR: f64 = 0.02;
/// References of the recordings of which the cost is measured.
const REFERENCES: [(&str, u64); 2] = [("friendly", 1_000_000_000), ("random", 100_000_000)];

fn choice(windows: u64) -> Choice {
    Choice { windows, window_references: 20_000, lead_references: 2_000, lines: 1 << 20, seed: 1 }
}

fn run(report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("a folder for windows")?;
    let (mut covered, mut programs, mut table) = (0, 0, String::new());
    for program in REGISTRY.iter().map(|program| program.name) {
        let got = cover(program, folder.path(), &mut table).with_context(|| program.to_owned())?;
        covered += got;
        programs += usize::from(got == SHARES.len());
    }
    eprint!("{table}");
    let conditions = format!(
        "whole runs within the 95 % interval; all {} workload programs with 16 MB, up to 200 windows of 20,000 \
         references; {MACHINE} with a last level of 1 MB; first touch",
        REGISTRY.len()
    );
    let cells = REGISTRY.len() * SHARES.len();
    report.add("estimate.covered", covered as f64, &format!("of {cells}"), &conditions)?;
    let all = format!("of {}", REGISTRY.len());
    report.add("estimate.programs_covered_at_each_share", programs as f64, &all, &conditions)?;
    each_recording(&REFERENCES, |kind, path, folder| cost(report, kind, path, folder))
}

/// How many of the shares have the whole run's slowdown within the interval.
fn cover(program: &str, folder: &Path, table: &mut String) -> anyhow::Result<usize> {
    let text = format!(
        "name = \"{program}\"\nperiod_ms = 5\nperiods = 1000000\n[machine]\nfidelity = \"trace\"\nfast = \
         \"64M\"\nslow = \"64M\"\n[machine.hardware]\npreset = \"{MACHINE}\"\nnode.cores = \
         4\nnode.caches.l2 = {{ size = \"256K\", ways = 16, line_bytes = 64, latency_cycles = 15 \
         }}\nnode.caches.llc = {{ size = \"1M\", ways = 16, line_bytes = 64, latency_cycles = 70 \
         }}\n[[groups]]\nname = \"g\"\nfast_ratio = 0.5\npage_size = \"4K\"\n[groups.workload]\nkind = \
         \"program\"\nname = \"{program}\"\nfootprint_mib = 16\n",
    );
    let experiment = Experiment::parse(&text, ".".into())?;
    let file = folder.join(format!("{program}.twin"));
    let mut taken = Err(anyhow::anyhow!("no windows"));
    for count in WINDOWS {
        taken = windows(&experiment, &file, &choice(count), &mut Quiet);
        if taken.is_ok() {
            break;
        }
    }
    taken?;
    let windows = Windows::open(&file, None)?;
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let request = Request { fast_shares: SHARES.to_vec(), error: None, jobs };
    let answer = windows.estimate(&request, &mut Quiet)?;
    let whole = windows.whole(&request)?;
    let mut covered = 0;
    write!(table, "| {program} | {} | {} ", windows.header().references, answer.windows)?;
    for (estimate, whole) in answer.estimates.iter().zip(whole) {
        let ratio = estimate.slowdown;
        let is_within = (whole - ratio.value).abs() <= ratio.half_width;
        covered += usize::from(is_within);
        let sign = if is_within { "" } else { " *" };
        write!(table, "| {:.3} ± {:.3}, {whole:.3}{sign} ", ratio.value, ratio.half_width)?;
    }
    writeln!(table, "|")?;
    Ok(covered)
}

/// Processor time of an estimate with half of the memory fast, over that of the two whole runs.
fn cost(report: &mut Report, kind: &Kind, path: &Path, folder: &Path) -> anyhow::Result<()> {
    let experiment = experiment(kind, path)?;
    let file = folder.join("cost.twin");
    let take = || windows(&experiment, &file, &choice(200), &mut Quiet).map(|_| ());
    let [_, taking] = timed(take)?;
    let windows = Windows::open(&file, None)?;
    let request = Request { fast_shares: vec![0.5], error: Some(ERROR), jobs: 1 };
    let mut error = f64::NAN;
    let [_, estimating] = timed(|| {
        let slowdown = windows.estimate(&request, &mut Quiet)?.estimates[0].slowdown;
        error = slowdown.half_width / slowdown.value;
        Ok(())
    })?;
    let [_, whole] = timed(|| windows.whole(&request).map(|_| ()))?;
    let share = |took: Duration| took.as_secs_f64() / whole.as_secs_f64();
    let conditions = |what: &str| {
        format!(
            "processor time of {what}, over that of the two whole runs which it replaces; {} \
             references to {}; {MACHINE}, half of the memory fast; asked 2 %, got {:.2} %",
            kind.references,
            kind.what,
            100.0 * error
        )
    };
    let figures = [("share", estimating, "an estimate"), ("take_share", taking, "taking windows")];
    for (figure, took, what) in figures {
        let name = format!("estimate.{}.{figure}", kind.name);
        report.add(&name, share(took), "of the runs", &conditions(what))?;
    }
    std::fs::remove_file(&file).context("removing windows")
}

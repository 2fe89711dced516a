//! Interval simulation against trace-driven simulation: the slowdown that a profile predicts, and
//! the slowdown when every reference is run.

use std::path::Path;

use anyhow::Context;
use terrace_experiments::Experiment;
use terrace_experiments::file::Fidelity;
use terrace_experiments::profile::profile;
use terrace_experiments::run::{Quiet, Request};
use terrace_experiments::runner::run as run_experiment;
use terrace_results::{RunRow, read};

use super::Part;
use crate::measure::Report;

pub const PART: Part = Part {
    name: "depth",
    measures: "slowdown predicted at interval fidelity against trace-driven simulation, by program",
    run,
};

/// Programs and the options that keep them short.
const PROGRAMS: [(&str, &str); 10] = [
    ("gups", "{ updates_per_word = 1 }"),
    ("xsbench", "{}"),
    ("btree", "{}"),
    ("hashjoin", "{}"),
    ("bfs", "{}"),
    ("pagerank", "{}"),
    ("cg", "{}"),
    ("mcf", "{}"),
    ("canneal", "{}"),
    ("kv", "{}"),
];
const POLICIES: [&str; 3] = ["first-touch", "lfu", "amp"];
const RATIOS: [f64; 2] = [0.5, 0.25];

fn run(report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("a folder for profiles")?;
    eprintln!("| program | fast | policy | reference | period | error |");
    eprintln!("|---|---|---|---|---|---|");
    let mut programs = Vec::new();
    for (program, options) in PROGRAMS {
        let errors = compare(program, options, folder.path())
            .with_context(|| format!("program {program}"))?;
        let worst = errors.iter().copied().fold(0.0, f64::max);
        programs.push(worst);
        report.add(
            &format!("depth.{program}_error_percent"),
            worst * 100.0,
            "%",
            "largest error of the predicted slowdown over three policies and two shares of fast \
             memory",
        )?;
    }
    let within = programs.iter().filter(|error| **error <= 0.05).count();
    report.add(
        "depth.programs_within_5_percent",
        within as f64,
        "programs",
        &format!("of {}, the largest error of each counted", programs.len()),
    )
}

/// The errors of one program's predictions.
fn compare(program: &str, options: &str, folder: &Path) -> anyhow::Result<Vec<f64>> {
    let profiled = folder.join("p.tprof");
    let reference = experiment(
        &format!(
            "kind = \"program\"\nname = \"{program}\"\nfootprint_mib = 16\noptions = {options}"
        ),
        0.5,
    )?;
    profile(&reference, &profiled, 20_000, &mut Quiet)?;
    let mut errors = Vec::new();
    for ratio in RATIOS {
        let simulate = |workload: &str, depth| -> anyhow::Result<Vec<RunRow>> {
            let experiment = experiment(workload, ratio)?.at_fidelity(depth)?;
            let out = folder.join(format!("{depth:?}"));
            run_experiment(
                Request {
                    policies: Some(POLICIES.map(str::to_owned).to_vec()),
                    jobs: 2,
                    ..Request::simulated(experiment, out.clone())
                },
                &mut Quiet,
            )?;
            Ok(read(&out)?)
        };
        let text = format!(
            "kind = \"program\"\nname = \"{program}\"\nfootprint_mib = 16\noptions = {options}"
        );
        let full = simulate(&text, Fidelity::Trace)?;
        let text = format!("kind = \"profile\"\npath = \"{}\"", profiled.display());
        let short = simulate(&text, Fidelity::Interval)?;
        for (full, short) in full.iter().zip(&short) {
            let (Some(truth), Some(reported)) = (full.slowdown, short.slowdown) else {
                anyhow::bail!("no slowdown under {}", full.policy);
            };
            let error = (reported / truth - 1.0).abs();
            eprintln!(
                "| {program} | {:.0} % | {} | {truth:.3} | {reported:.3} | {:.1} % |",
                ratio * 100.0,
                full.policy,
                error * 100.0,
            );
            errors.push(error);
        }
    }
    Ok(errors)
}

/// A server with CXL whose last level has the ratio to the footprint of 30 MB to half a gigabyte.
fn experiment(workload: &str, ratio: f64) -> anyhow::Result<Experiment> {
    let fidelity = if workload.contains("profile") { "interval" } else { "trace" };
    let hardware = if fidelity == "trace" {
        "hardware = { preset = \"server-ddr5-cxl\", node.cores = 4, node.caches.l2 = { size = \
         \"128K\", ways = 16, line_bytes = 64, latency_cycles = 15 }, node.caches.llc = { size = \
         \"1M\", ways = 16, line_bytes = 64, latency_cycles = 70 } }"
    } else {
        ""
    };
    let text = format!(
        "name = \"depth\"\nperiod_ms = 5\nperiods = 100000\n[machine]\nfidelity = \"{fidelity}\"\nfast = \
         \"64M\"\nslow = \"64M\"\n{hardware}\n[[groups]]\nname = \"g\"\nfast_ratio = \
         {ratio}\npage_size = \"4K\"\nmoved_pages_per_period = 128\n[groups.workload]\n{workload}\n"
    );
    Experiment::parse(&text, ".".into()).map_err(|e| anyhow::anyhow!("{e}"))
}

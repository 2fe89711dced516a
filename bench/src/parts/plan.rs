//! The planner's predictions against runs of every reference: slowdowns over shares of fast memory,
//! and the answer for a slowdown of 5 %. `TERRACE_PLAN_PROGRAMS=gups,mcf` runs some programs only.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;
use terrace_experiments::Experiment;
use terrace_experiments::profile::profile;
use terrace_experiments::run::{Quiet, Request as RunRequest};
use terrace_experiments::runner::run as run_experiment;
use terrace_planner::check::check;
use terrace_planner::plan::{Request, plan};
use terrace_planner::play::{Setup, play};
use terrace_planner::recording::{Open, Recording, Waiting};
use terrace_results::{RunRow, read};

use super::Part;
use crate::measure::Report;

pub const PART: Part = Part {
    name: "plan",
    measures: "slowdown predicted by the planner against trace-driven simulation, and its answer for 5 %",
    run,
};

/// Programs and the options that keep them short.
const PROGRAMS: [(&str, &str); 10] = [
    ("kv", "{}"),
    ("cg", "{}"),
    ("bfs", "{}"),
    ("gups", "{ updates_per_word = 1 }"),
    ("xsbench", "{}"),
    ("btree", "{}"),
    ("hashjoin", "{}"),
    ("pagerank", "{}"),
    ("mcf", "{}"),
    ("canneal", "{}"),
];
const POLICIES: [&str; 2] = ["first-touch", "amp"];
const SHARES: [f64; 4] = [0.2, 0.4, 0.6, 0.8];
/// The answer's target, and its maximum number of corrections.
const TARGET: f64 = 1.05;
const ROUNDS: u64 = 3;

fn run(report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("a folder for profiles")?;
    eprintln!("| program | fast | policy | reference | predicted | error |");
    eprintln!("|---|---|---|---|---|---|");
    let (mut errors, mut answers) = (Vec::new(), Vec::new());
    let some = std::env::var("TERRACE_PLAN_PROGRAMS").ok();
    let wanted = |program: &str| match &some {
        Some(some) => some.split(',').any(|name| name == program),
        None => true,
    };
    for (program, options) in PROGRAMS.into_iter().filter(|(program, _)| wanted(program)) {
        let reference = experiment(program, options)?;
        let path = folder.path().join(format!("{program}.tprof"));
        profile(&reference, &path, 20_000, &mut Quiet)?;
        let waiting = Waiting { share: 0.4, error: 0.2 };
        let how =
            Open { group: None, page_size: None, sample_one_in: None, waiting, machine: None };
        let recording = Recording::open(&path, &how)?;
        let off = predict(program, &reference, &recording, folder.path())?;
        report.add(
            &format!("plan.{program}.error_percent"),
            100.0 * off.iter().sum::<f64>() / off.len() as f64,
            "%",
            "16 MB, mean over two policies and four shares of fast memory",
        )?;
        errors.extend(off);
        answers.push(answer(program, recording, &reference)?);
    }
    anyhow::ensure!(!errors.is_empty(), "TERRACE_PLAN_PROGRAMS names none of {PROGRAMS:?}");
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let worst = errors.iter().copied().fold(0.0, f64::max);
    let conditions = format!("{} predictions, programs of 16 MB", errors.len());
    report.add("plan.error_mean_percent", 100.0 * mean, "%", &conditions)?;
    report.add("plan.error_worst_percent", 100.0 * worst, "%", &conditions)?;
    eprintln!("\n| program | policy | share | measured | share, corrected | measured | rounds |");
    eprintln!("|---|---|---|---|---|---|---|");
    let mut worst = [0.0f64; 2];
    for (line, first, last) in &answers {
        eprintln!("{line}");
        worst = [worst[0].max(*first), worst[1].max(*last)];
    }
    let conditions = "programs of 16 MB, target 5 %, distance from it";
    report.add("plan.answer_worst_points", 100.0 * worst[0], "points", conditions)?;
    report.add("plan.corrected_answer_worst_points", 100.0 * worst[1], "points", conditions)
}

/// Errors of predictions, as parts of the slowdown.
fn predict(
    program: &str,
    reference: &Experiment,
    recording: &Recording,
    folder: &Path,
) -> anyhow::Result<Vec<f64>> {
    let mut errors = Vec::new();
    for share in SHARES {
        let mut experiment = reference.clone();
        experiment.groups[0].fast_ratio = Some(share);
        let out = folder.join("runs");
        let request = RunRequest {
            policies: Some(POLICIES.map(str::to_owned).to_vec()),
            jobs: 2,
            ..RunRequest::simulated(experiment, out.clone())
        };
        run_experiment(request, &mut Quiet)?;
        for row in read::<RunRow>(&out)? {
            let truth = row.slowdown.context("a run that did not end")?;
            let setup = Setup {
                policy: &row.policy,
                parameters: &Value::Null,
                share,
                seed: reference.seed,
                period_ms: reference.period_ms,
                moved_pages: reference.groups[0].moved_pages_per_period.unwrap_or(u64::MAX),
                settle_periods: 0,
                os: &reference.machine.os.clone().unwrap_or_default(),
                machine: &recording.machine,
                in_proportion: false,
                heat: false,
            };
            let reported = play(recording, &setup)?.slowdown;
            let error = (reported / truth - 1.0).abs();
            eprintln!(
                "| {program} | {:.0} % | {} | {truth:.3} | {reported:.3} | {:.1} % |",
                100.0 * share,
                row.policy,
                100.0 * error,
            );
            errors.push(error);
        }
    }
    Ok(errors)
}

/// The answer for the target, run: a line of the table, and the distances of the first and the last
/// run from the target.
fn answer(
    program: &str,
    recording: Recording,
    reference: &Experiment,
) -> anyhow::Result<(String, f64, f64)> {
    let machine = recording.machine.clone();
    let request = Request {
        recordings: vec![recording],
        target: TARGET,
        policies: POLICIES.map(str::to_owned).to_vec(),
        machines: vec![machine],
        fast_at_most: 1.0,
        seeds: 1,
        period_ms: None,
        moved_pages: None,
        settle_periods: 0,
        resolution: 0.005,
        jobs: 2,
    };
    let mut plan = plan(&request, &|_, _| {})?;
    let rows = check(&mut plan, &request, 0, reference, ROUNDS, &|_| {})?;
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return Ok((format!("| {program} | | 100 % | | | | |"), 0.0, 0.0));
    };
    let line = format!(
        "| {program} | {} | {:.1} % | {:.1} % | {:.1} % | {:.1} % | {} |",
        first.policy,
        100.0 * first.share,
        100.0 * (first.measured - 1.0),
        100.0 * last.share,
        100.0 * (last.measured - 1.0),
        last.round,
    );
    Ok((line, (first.measured - TARGET).abs(), (last.measured - TARGET).abs()))
}

/// A server with CXL whose last level has the ratio to the footprint of 30 MB to half a gigabyte.
fn experiment(program: &str, options: &str) -> anyhow::Result<Experiment> {
    let text = format!(
        "name = \"plan\"\nperiod_ms = 5\nperiods = 100000\n[machine]\nfidelity = \"trace\"\nfast = \
         \"64M\"\nslow = \"64M\"\nhardware = {{ preset = \"server-ddr5-cxl\", node.cores = 4, \
         node.caches.l2 = {{ size = \"128K\", ways = 16, line_bytes = 64, latency_cycles = 15 }}, \
         node.caches.llc = {{ size = \"1M\", ways = 16, line_bytes = 64, latency_cycles = 70 }} }}\n\
         [[groups]]\nname = \"g\"\nfast_ratio = 0.5\npage_size = \"4K\"\nmoved_pages_per_period = \
         128\n[groups.workload]\nkind = \"program\"\nname = \"{program}\"\nfootprint_mib = \
         16\noptions = {options}\n"
    );
    Experiment::parse(&text, ".".into()).map_err(|e| anyhow::anyhow!("{e}"))
}

//! Results of plans and sweeps in the words of their reports.

use std::path::{Path, PathBuf};

use terrace_experiments::sweep::{Grid, Merged};
use terrace_planner::check::{Checked, WhatIf};
use terrace_planner::plan::Plan;
use terrace_planner::tables::Tables;
use terrace_planner::words;
use terrace_report::{PlanPage, ReportMeta, SweepPage, SweepRow};

use crate::sweep::number;

/// What a report says about its making.
pub fn meta(title: String) -> ReportMeta {
    ReportMeta {
        title,
        command: std::env::args().collect::<Vec<_>>().join(" "),
        generated_by_version: terrace_identity::created_by("terrace"),
    }
}

/// Columns of which less is better.
const LESS_IS_BETTER: [&str; 6] =
    ["slowdown", "duration_ms", "walk_ms", "migration_ms", "migrated_bytes", "shootdowns"];

/// A sweep as its report shows it.
pub fn sheet(grid: &Grid, merged: &Merged, columns: &[&'static str]) -> SweepPage {
    let row = |(cell, values, row): (usize, &Vec<String>, &terrace_results::RunRow)| SweepRow {
        cell,
        group: row.group.clone(),
        values: values.clone(),
        numbers: columns.iter().map(|c| number(row, c)).collect(),
    };
    let rows = merged.cells.iter().flat_map(|c| c.rows.iter().map(move |r| (c.cell, &c.values, r)));
    SweepPage {
        description: grid.description.clone(),
        axes: grid
            .axes
            .iter()
            .map(|a| (a.name.clone(), a.labels().map(str::to_owned).collect()))
            .collect(),
        columns: columns.iter().map(|c| ((*c).to_owned(), LESS_IS_BETTER.contains(c))).collect(),
        rows: rows.map(row).collect(),
        cells: grid.len(),
        failed: merged
            .failed
            .iter()
            .map(|f| {
                let values: Vec<_> = f.values.iter().map(|(a, v)| format!("{a}={v}")).collect();
                (f.cell, values.join(", "), f.attempts, f.error.clone())
            })
            .collect(),
        missing: merged.missing,
    }
}

/// Writes the report of a sweep.
pub fn write_sweep(out: &Path, name: &str, page: &SweepPage) -> anyhow::Result<PathBuf> {
    let path = out.join("report.html");
    terrace_report::write_sweep_html(&path, page, &meta(format!("Sweep {name}")))?;
    Ok(path)
}

/// Writes the report of a plan. The first `answers` of the lines are the answer.
pub fn write_plan(
    out: &Path,
    plan: &Plan,
    tables: &Tables,
    lines: (&[String], &[String]),
    checked: &[Checked],
    what_if: &[WhatIf],
    configuration: &str,
) -> anyhow::Result<PathBuf> {
    let target = words::percent_over(plan.target);
    let names: Vec<&str> = plan.programs.iter().map(|p| p.name.as_str()).collect();
    let page = PlanPage {
        answer: lines.0.to_vec(),
        remarks: lines.1.to_vec(),
        subtitle: format!("The least fast memory with which it is slowed by at most {target}."),
        target: plan.target,
        points: tables.points.clone(),
        answers: tables.answers.clone(),
        front: tables.front.clone(),
        sensitivity: tables.sensitivity.clone(),
        heat: tables.heat.clone(),
        checked: checked
            .iter()
            .map(|c| {
                (c.program.clone(), c.policy.clone(), c.round, c.share, c.predicted, c.measured)
            })
            .collect(),
        what_if: what_if
            .iter()
            .map(|w| (w.program.clone(), w.variant.clone(), w.duration_ms, w.gain))
            .collect(),
        configuration: configuration.to_owned(),
        facts: facts(plan),
    };
    let path = out.join("report.html");
    let title = format!("Fast memory for {}", names.join(", "));
    terrace_report::write_plan_html(&path, &page, &meta(title))?;
    Ok(path)
}

fn facts(plan: &Plan) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut fact = |name: String, value: String| facts.push((name, value));
    for p in &plan.programs {
        fact(format!("recording of {}", p.name), format!("{} ({})", p.recording, p.format));
        fact(format!("what {}'s slowdowns rest on", p.name), p.evidence.in_words().to_owned());
        fact(
            format!("memory of {}", p.name),
            format!(
                "{}, in pages of {}",
                words::size(p.footprint_bytes),
                words::size(p.page_size_bytes)
            ),
        );
        let moved = p.moved_pages_per_period.map_or("without bound".to_owned(), |n| n.to_string());
        fact(
            format!("periods of {}", p.name),
            format!("{} ms, pages moved in one at most: {moved}", p.period_ms),
        );
        fact(format!("{} was recorded on", p.name), p.recorded_on.clone());
    }
    for m in &plan.machines {
        let prices = match (m.price_fast, m.price_slow) {
            (Some(fast), Some(slow)) => format!("; {fast} and {slow} per GB"),
            _ => String::new(),
        };
        fact(
            format!("machine {}", m.name),
            format!(
                "fast: {:.0} ns, {:.0} GB/s; slow: {:.0} ns, {:.0} GB/s{prices}",
                m.fast.latency_ns, m.fast.gb_per_s, m.slow.latency_ns, m.slow.gb_per_s
            ),
        );
    }
    facts
}

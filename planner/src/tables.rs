//! The answer as result tables.

use std::path::Path;

use terrace_results::{
    HeatRow, PlanAnswerRow, PlanFrontRow, PlanPointRow, PlanSensitivityRow, ResultsError, Table,
    TableWriter,
};

use crate::check::Checked;
use crate::plan::{Plan, Sensitivity};

/// The tables of a plan.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tables {
    /// Every point of every curve.
    pub points: Vec<PlanPointRow>,
    /// The result for every program, machine and policy.
    pub answers: Vec<PlanAnswerRow>,
    /// The Pareto front.
    pub front: Vec<PlanFrontRow>,
    /// The dependence of the answer on latency.
    pub sensitivity: Vec<PlanSensitivityRow>,
    /// Heat maps of the recommended runs.
    pub heat: Vec<HeatRow>,
}

impl Tables {
    /// Fills them.
    pub fn of(plan: &Plan, checked: &[Checked]) -> Self {
        let mut tables = Tables { heat: plan.heat.clone(), ..Tables::default() };
        for (number, curve) in plan.curves.iter().enumerate() {
            let program = &plan.programs[curve.program];
            let machine = &plan.machines[curve.machine];
            for p in &curve.points {
                tables.points.push(PlanPointRow {
                    program: program.name.clone(),
                    machine: machine.name.clone(),
                    slow_latency_ns: machine.slow.latency_ns,
                    slow_gb_per_s: machine.slow.gb_per_s,
                    policy: curve.policy.clone(),
                    fast_share: p.share,
                    fast_bytes: (program.footprint_bytes as f64 * p.share) as u64,
                    slowdown: p.slowdown,
                    low: p.low,
                    high: p.high,
                    model_error: p.uncertainty.model,
                    seed_error: p.uncertainty.seeds,
                    reads_error: p.uncertainty.reads,
                    waiting_error: p.uncertainty.waiting,
                    hit_ratio: p.hit_ratio,
                    moved_pages: p.moved_pages,
                    periods: p.periods,
                    cost: p.cost,
                });
            }
            let recommended = plan.recommended.iter().find(|r| r.curve == number);
            let run = |c: &&Checked| {
                recommended.is_some_and(|r| r.program == c.program && r.point.share == c.share)
            };
            let measured = checked.iter().rfind(run).map(|c| c.measured);
            // The recommendation may have been corrected by a check.
            let point = recommended.map(|r| &r.point).or(curve.least_point());
            tables.answers.push(PlanAnswerRow {
                program: program.name.clone(),
                machine: machine.name.clone(),
                slow_latency_ns: machine.slow.latency_ns,
                slow_gb_per_s: machine.slow.gb_per_s,
                policy: curve.policy.clone(),
                target: plan.target,
                fast_share: point.map(|p| p.share),
                fast_bytes: point.map(|p| (program.footprint_bytes as f64 * p.share) as u64),
                slowdown: point.map(|p| p.slowdown),
                low: point.map(|p| p.low),
                high: point.map(|p| p.high),
                safe_fast_share: match recommended {
                    Some(recommended) => recommended.safe_share,
                    None => curve.safe.and_then(|at| curve.points.get(at)).map(|p| p.share),
                },
                cost: point.and_then(|p| p.cost),
                recommended: recommended.is_some(),
                measured_slowdown: measured,
            });
        }
        tables.front = plan
            .front
            .iter()
            .map(|f| PlanFrontRow {
                program: plan.programs[f.program].name.clone(),
                machine: plan.machines[f.machine].name.clone(),
                policy: f.policy.clone(),
                fast_share: f.share,
                cost: f.cost,
                slowdown: f.slowdown,
            })
            .collect();
        let sensitivity = |s: &Sensitivity| PlanSensitivityRow {
            program: s.program.clone(),
            policy: s.policy.clone(),
            slow_latency_ns: s.slow_latency_ns,
            fast_share: s.share,
            slowdown_as_recommended: s.slowdown,
        };
        tables.sensitivity = plan.sensitivity.iter().map(sensitivity).collect();
        tables
    }

    /// Writes them into a directory that exists.
    pub fn write(&self, directory: &Path) -> Result<(), ResultsError> {
        put(directory, &self.points)?;
        put(directory, &self.answers)?;
        put(directory, &self.front)?;
        put(directory, &self.sensitivity)?;
        put(directory, &self.heat)
    }
}

/// Writes the rows of a table into a directory that exists.
///
/// # Errors
/// What prevents the file from being written.
pub fn put<T: Table + Clone>(directory: &Path, rows: &[T]) -> Result<(), ResultsError> {
    let mut writer = TableWriter::create(directory)?;
    rows.iter().try_for_each(|row| writer.push(row.clone()))?;
    writer.finish()
}

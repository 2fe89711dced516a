//! Plans: how much fast memory programs need.

use std::path::PathBuf;

use pyo3::prelude::*;
use tempfile::TempDir;
use terrace_core::InputError;
use terrace_planner::memory::Machine;
use terrace_planner::plan::{DEFAULT_POLICIES, Request};
use terrace_planner::recording::{Open, Recording, Waiting};
use terrace_planner::tables::Tables;
use terrace_planner::{config, words};

use crate::bridge::Raised;
use crate::cells::paragraphs;
use crate::errors::refused;
use crate::experiment::guarded;
use crate::table::Table;

/// How much fast memory programs need, as curves, an answer and a configuration.
#[pyclass(frozen, module = "terrace")]
pub struct Plan {
    plan: terrace_planner::Plan,
    folder: TempDir,
}

#[pymethods]
impl Plan {
    /// The answer in words, a sentence a line.
    #[getter]
    fn words(&self) -> Vec<String> {
        words::recommendation(&self.plan)
    }

    /// The recommendation for each program.
    #[getter]
    fn recommended<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let kind = py.import("terrace._plans")?.getattr("Recommended")?;
        let one = |r: &terrace_planner::plan::Recommended| {
            let p = &r.point;
            kind.call1((&r.program, &r.policy, p.share, r.fast_bytes, p.slowdown, p.low, p.high))
        };
        self.plan.recommended.iter().map(one).collect()
    }

    /// Notes for people, a sentence each.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.plan.warnings.clone()
    }

    /// The answer as a configuration of terraced.
    #[getter]
    fn terraced_toml(&self) -> String {
        config::terraced_toml(&self.plan)
    }

    /// Everything, as JSON.
    fn json(&self) -> PyResult<String> {
        serde_json::to_string(&self.plan).map_err(refused)
    }

    /// Every point of every curve.
    #[getter]
    fn points(&self) -> PyResult<Table> {
        self.table("plan_points")
    }

    /// The least share for every program, machine and policy.
    #[getter]
    fn answers(&self) -> PyResult<Table> {
        self.table("plan_answers")
    }

    /// The Pareto front of cost and slowdown; empty without prices.
    #[getter]
    fn front(&self) -> PyResult<Table> {
        self.table("plan_front")
    }

    /// The dependence of the answer on the latency of slow memory.
    #[getter]
    fn sensitivity(&self) -> PyResult<Table> {
        self.table("plan_sensitivity")
    }

    fn __repr__(&self) -> String {
        let mut text = format!("<terrace.Plan for a slowdown of at most {}>", self.plan.target);
        for line in self.words() {
            text += &format!("\n{line}");
        }
        text
    }

    fn _repr_html_(&self) -> PyResult<String> {
        Ok(paragraphs(&self.words()) + &self.answers()?.shown().html())
    }
}

impl Plan {
    fn table(&self, name: &str) -> PyResult<Table> {
        Table::of_file(&self.folder.path().join(format!("{name}.parquet")))
    }
}

/// Finds how much fast memory programs need to stay within a slowdown (1.05 for 5 %).
#[pyfunction]
#[pyo3(signature = (
    recordings, slowdown, *, policies=None, machines=Vec::new(), slow_latencies_ns=Vec::new(),
    price_fast=None, price_slow=None, fast_at_most=1.0, period_ms=None, moved_pages=None,
    settle_periods=0, memory_share=0.4, memory_share_error=0.2, seeds=3, jobs=1
))]
#[expect(clippy::too_many_arguments, reason = "keywords of a function of Python")]
pub fn plan(
    py: Python<'_>,
    recordings: Vec<PathBuf>,
    slowdown: f64,
    policies: Option<Vec<String>>,
    machines: Vec<String>,
    slow_latencies_ns: Vec<f64>,
    price_fast: Option<f64>,
    price_slow: Option<f64>,
    fast_at_most: f64,
    period_ms: Option<u64>,
    moved_pages: Option<u64>,
    settle_periods: u64,
    memory_share: f64,
    memory_share_error: f64,
    seeds: u64,
    jobs: usize,
) -> PyResult<Plan> {
    if !(slowdown >= 1.0 && slowdown.is_finite()) {
        return Err(refused(format_args!(
            "slowdown = {slowdown}: expected a factor of at least 1, 1.05 for 5 %"
        )));
    }
    if !(0.0..=1.0).contains(&fast_at_most) {
        return Err(refused(format_args!("fast_at_most = {fast_at_most}: expected 0 to 1")));
    }
    let work = || -> anyhow::Result<Plan> {
        let how = Open {
            group: None,
            page_size: None,
            sample_one_in: None,
            waiting: Waiting { share: memory_share, error: memory_share_error },
            machine: None,
        };
        let recordings = Recording::open_all(&recordings, &how)?;
        let mut all = Vec::new();
        for name in &machines {
            all.push(Machine::preset(name)?);
        }
        let own = recordings.first().map(|r| r.machine.clone());
        let own = own.ok_or_else(|| InputError::new("no recordings: expected at least one"))?;
        let base = all.first().cloned().unwrap_or_else(|| own.clone());
        all.extend(slow_latencies_ns.iter().map(|ns| base.with_slow(Some(*ns), None)));
        if all.is_empty() {
            all.push(own);
        }
        for machine in &mut all {
            (machine.price_fast, machine.price_slow) = (price_fast, price_slow);
        }
        let defaults = || DEFAULT_POLICIES.map(str::to_owned).to_vec();
        let request = Request {
            recordings,
            target: slowdown,
            policies: policies.unwrap_or_else(defaults),
            machines: all,
            fast_at_most,
            seeds: seeds.max(1),
            period_ms,
            moved_pages,
            settle_periods,
            resolution: 0.005,
            jobs: jobs.max(1),
        };
        let plan = terrace_planner::plan(&request, &|_, _| {})?;
        let folder = tempfile::tempdir()?;
        Tables::of(&plan, &[]).write(folder.path())?;
        Ok(Plan { plan, folder })
    };
    guarded(py, Raised::default(), |_| work(), None)
}

//! Windows of a program, and the slowdown of the whole that is estimated from them.

use std::path::PathBuf;

use pyo3::prelude::*;
use terrace_experiments::Experiment as File;
use terrace_experiments::estimate::{self, Request};
use terrace_experiments::file::Fidelity;
use terrace_experiments::run::Events;
use terrace_experiments::windows::Choice;

use crate::bridge::Raised;
use crate::errors::{raised, refused};
use crate::experiment::{Experiment, guarded};

/// Short parts of a program at random places, each with what is needed to simulate it alone.
#[pyclass(frozen, module = "terrace._terrace")]
pub struct Windows {
    windows: estimate::Windows,
}

/// A share of fast memory (`None`: as the experiment has it), the slowdown with the ends of its
/// interval, the run time in ms, and the share of reads from the fast tier.
type Estimate = (Option<f64>, f64, f64, f64, f64, f64);

#[pymethods]
impl Windows {
    /// Opens a file of windows, to be simulated as they were taken or in another experiment.
    #[staticmethod]
    #[pyo3(signature = (path, experiment=None))]
    fn read(path: PathBuf, experiment: Option<&Experiment>) -> PyResult<Self> {
        let experiment = experiment.map(|experiment| experiment.experiment.clone());
        let windows = estimate::Windows::open(&path, experiment).map_err(raised)?;
        Ok(Windows { windows })
    }

    /// The workload that they are of.
    #[getter]
    fn workload(&self) -> &str {
        &self.windows.header().workload
    }

    /// Loads and stores of the whole program.
    #[getter]
    fn references(&self) -> u64 {
        self.windows.header().references
    }

    /// Loads and stores of a window.
    #[getter]
    fn window_references(&self) -> u64 {
        self.windows.header().window_references
    }

    fn __len__(&self) -> usize {
        self.windows.header().windows as usize
    }

    /// Simulates the windows: one estimate for each share, and the run time with all memory fast,
    /// in ms, and how many windows were simulated.
    #[pyo3(signature = (fast, error=None, jobs=1))]
    fn estimate(
        &self,
        py: Python<'_>,
        fast: Vec<f64>,
        error: Option<f64>,
        jobs: usize,
    ) -> PyResult<(Vec<Estimate>, f64, u64)> {
        if let Some(share) = fast.iter().find(|share| !(0.0..=1.0).contains(*share)) {
            return Err(refused(format_args!("fast has {share}: expected shares, 0 to 1")));
        }
        if let Some(error) = error
            && !(error > 0.0 && error < 1.0)
        {
            return Err(refused(format_args!("error = {error}: expected 0 to 1, 0.02 for 2 %")));
        }
        let request = Request { fast_shares: fast, error, jobs: jobs.max(1) };
        let answer =
            guarded(py, Raised::default(), |events| self.windows.estimate(&request, events), None)?;
        let one = |e: &estimate::Estimate| {
            let (slowdown, half) = (e.slowdown.value, e.slowdown.half_width);
            (e.fast_share, slowdown, slowdown - half, slowdown + half, e.time_ms, e.fast_reads)
        };
        let estimates = answer.estimates.iter().map(one).collect();
        Ok((estimates, answer.all_fast_ms, answer.windows))
    }
}

/// Takes windows of the workload of an experiment's only group.
pub fn take(py: Python<'_>, experiment: &File, out: PathBuf, choice: &Choice) -> PyResult<Windows> {
    for (name, value, least, most) in [
        ("windows", choice.windows, 8, 100_000),
        ("length", choice.window_references, 100, 10_000_000),
        ("lead", choice.lead_references, 1, 10_000_000),
        ("lines", choice.lines, 1, 1 << 26),
    ] {
        if !(least..=most).contains(&value) {
            return Err(refused(format_args!("{name} = {value}: expected {least} to {most}")));
        }
    }
    let experiment = experiment.at_fidelity(Fidelity::Trace).map_err(refused)?;
    let work = |events: &mut dyn Events| {
        terrace_experiments::windows::windows(&experiment, &out, choice, events)?;
        estimate::Windows::open(&out, None)
    };
    Ok(Windows { windows: guarded(py, Raised::default(), work, None)? })
}

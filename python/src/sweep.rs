//! Grids and their cells: run here, or anywhere and added.

use std::convert::Infallible;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};

use anyhow::ensure;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use terrace_core::InputError;
use terrace_experiments::Experiment;
use terrace_experiments::sweep::{
    self, Cell, Failed, Outcome, Work, is_done, merge, note, prepare, run_into, take_in,
};

use crate::bridge::Raised;
use crate::errors::{in_python, raised, refused};
use crate::experiment::{BETWEEN_LOOKS, guarded};

/// A grid: an experiment and the keys of it that take several values.
#[pyclass(frozen, module = "terrace._terrace")]
pub struct Grid {
    grid: sweep::Grid,
}

impl Grid {
    fn cell(&self, index: usize) -> PyResult<Cell> {
        if index >= self.grid.len() {
            return Err(refused(format_args!(
                "cell {index}: expected 0 to {}",
                self.grid.len() - 1
            )));
        }
        self.grid.cell(index).map_err(raised)
    }
}

#[pymethods]
impl Grid {
    /// Reads a grid file and checks every cell of it.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let grid = py.detach(|| sweep::Grid::read(&path)).map_err(refused)?;
        Ok(Grid { grid })
    }

    /// A grid of a file's text; its paths are relative to `folder`.
    #[staticmethod]
    #[pyo3(signature = (text, folder=PathBuf::from(".")))]
    fn parse(py: Python<'_>, text: &str, folder: PathBuf) -> PyResult<Self> {
        let grid = py.detach(|| sweep::Grid::parse(text, folder)).map_err(refused)?;
        Ok(Grid { grid })
    }

    /// A grid of the keys of a file, as JSON.
    #[staticmethod]
    #[pyo3(signature = (text, folder=PathBuf::from(".")))]
    fn of_json(py: Python<'_>, text: &str, folder: PathBuf) -> PyResult<Self> {
        let keys: toml::Table = serde_json::from_str(text).map_err(refused)?;
        let text = toml::to_string(&keys).map_err(refused)?;
        let grid = py.detach(|| sweep::Grid::parse(&text, folder));
        Ok(Grid { grid: grid.map_err(|e| refused(in_python(&e)))? })
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.grid.name
    }

    /// Its axes: name and values; the last one changes fastest.
    #[getter]
    fn axes(&self) -> Vec<(String, Vec<String>)> {
        let axis =
            |a: &sweep::grid::Axis| (a.name.clone(), a.labels().map(str::to_owned).collect());
        self.grid.axes.iter().map(axis).collect()
    }

    fn __len__(&self) -> usize {
        self.grid.len()
    }

    /// A cell: its hash, its values by axis, and the text of its experiment with the folder that
    /// its paths are relative to.
    fn describe<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyDict>> {
        let cell = self.cell(index)?;
        let values = PyDict::new(py);
        for (axis, value) in &cell.values {
            values.set_item(axis, value)?;
        }
        let all = PyDict::new(py);
        all.set_item("cell", index)?;
        all.set_item("hash", &cell.hash)?;
        all.set_item("values", values)?;
        all.set_item("experiment", toml::to_string(&cell.experiment).map_err(refused)?)?;
        all.set_item("folder", &cell.experiment.folder)?;
        Ok(all)
    }

    /// Makes the sweep's folder.
    #[staticmethod]
    fn prepare(out: PathBuf) -> PyResult<()> {
        prepare(&out).map_err(raised)
    }

    /// Whether the results of the cell with this hash are there.
    #[staticmethod]
    fn is_done(out: PathBuf, hash: &str) -> bool {
        is_done(&out, hash)
    }

    /// Adds a cell that was run elsewhere: its files by name.
    #[staticmethod]
    fn take_in(
        py: Python<'_>,
        out: PathBuf,
        hash: &str,
        files: Vec<(String, Vec<u8>)>,
    ) -> PyResult<()> {
        py.detach(|| take_in(&out, hash, &files)).map_err(raised)
    }

    /// Records a cell that could not be run.
    fn note(&self, out: PathBuf, index: usize, attempts: u32, error: &str) -> PyResult<()> {
        let cell = self.cell(index)?;
        let failed = Failed {
            cell: index,
            hash: cell.hash,
            values: cell.values.into_iter().collect(),
            attempts,
            error: InputError::new(error).0,
        };
        note(&out, &failed).map_err(raised)
    }

    /// Runs cells here, `jobs` at a time; `reported` is called for each: number, and "skipped", "done"
    /// or "failed". Returns how many failed. After an exception of it, or of a handler of a signal
    /// (Ctrl-C), no further cell is begun.
    #[pyo3(signature = (out, jobs, retries, reported=None))]
    fn work(
        &self,
        py: Python<'_>,
        out: PathBuf,
        jobs: usize,
        retries: u32,
        reported: Option<Py<PyAny>>,
    ) -> PyResult<usize> {
        let first: Mutex<Option<PyErr>> = Mutex::new(None);
        let held = || first.lock().unwrap_or_else(PoisonError::into_inner);
        let keep = |error: PyErr| {
            held().get_or_insert(error);
        };
        let ended = guarded(
            py,
            Raised::default(),
            |_| {
                let cells: Vec<usize> = (0..self.grid.len()).collect();
                let work =
                    Work { grid: &self.grid, cells: &cells, out: &out, jobs: jobs.max(1), retries };
                let tell = |cell: &Cell, outcome: &Outcome| {
                    let (what, error) = match outcome {
                        Outcome::Skipped => ("skipped", None),
                        Outcome::Done => ("done", None),
                        Outcome::Failed(failed) => ("failed", Some(failed.error.as_str())),
                    };
                    if let Some(reported) = &reported {
                        let result = Python::attach(|py| {
                            reported.call1(py, (cell.index, what, error)).map(drop)
                        });
                        if let Err(error) = result {
                            keep(error);
                        }
                    }
                    ensure!(held().is_none(), "an exception ended the sweep");
                    Ok(())
                };
                watched(|| sweep::work(&work, &tell).map(|failed| failed.len()), keep)
            },
            None,
        );
        match held().take() {
            Some(error) => Err(error),
            None => ended,
        }
    }

    /// Merges finished cells. Returns how many are there, how many failed, how many have not been
    /// run, and the first failure.
    fn merge(
        &self,
        py: Python<'_>,
        out: PathBuf,
    ) -> PyResult<(usize, usize, usize, Option<String>)> {
        let merged = py.detach(|| merge(&self.grid, &out)).map_err(raised)?;
        let first = merged.failed.first().map(|f| f.error.clone());
        Ok((merged.done, merged.failed.len(), merged.missing, first))
    }
}

/// Does work on another thread while this one waits for signals, which Python handles on its first
/// thread only; `raised` gets the exceptions of their handlers.
fn watched<T: Send>(work: impl FnOnce() -> T + Send, raised: impl Fn(PyErr)) -> T {
    std::thread::scope(|scope| {
        let (works, over) = channel::<Infallible>();
        let worker = scope.spawn(move || {
            let _works = works;
            work()
        });
        while let Err(RecvTimeoutError::Timeout) = over.recv_timeout(BETWEEN_LOOKS) {
            Python::attach(|py| py.check_signals()).unwrap_or_else(&raised);
        }
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Runs a cell wherever this is called: returns the files of its results, name and bytes. `hash` is
/// the caller's; that of another version of Terrace, or of other files, is refused.
#[pyfunction]
pub fn run_cell<'py>(
    py: Python<'py>,
    experiment: &str,
    folder: PathBuf,
    hash: &str,
) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
    let experiment = Experiment::parse(experiment, folder).map_err(refused)?;
    let own = sweep::hash(&experiment).map_err(raised)?;
    if own != hash {
        return Err(refused(format_args!(
            "the cell's hash is {own} here, expected {hash}: this machine has another version of \
             Terrace or other files; install the same on all"
        )));
    }
    let into = tempfile::tempdir().map_err(refused)?;
    guarded(py, Raised::default(), |_| run_into(&experiment, into.path()), None)?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(into.path())? {
        let entry = entry?;
        let bytes = std::fs::read(entry.path())?;
        files.push((entry.file_name().to_string_lossy().into_owned(), PyBytes::new(py, &bytes)));
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(files)
}

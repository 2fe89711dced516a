//! Experiments, and running them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use terrace_experiments::Experiment as CoreExperiment;
use terrace_experiments::file::Fidelity;
use terrace_experiments::profile::profile;
use terrace_experiments::run::{Event, Events, Request};
use terrace_experiments::runner::run;
use terrace_experiments::sweep::hash;
use terrace_experiments::windows::Choice;

use crate::bridge::{PolicyRaised, Raised, custom_policy, leave};
use crate::errors::{in_python, raised, refused};
use crate::results::Results;
use crate::windows::{Windows, take};

/// Interval between two checks for a request to end.
pub const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// An experiment: workloads on a machine under policies. Checked when it is made.
#[pyclass(frozen, module = "terrace._terrace")]
pub struct Experiment {
    pub experiment: CoreExperiment,
}

#[pymethods]
impl Experiment {
    /// Reads an experiment file.
    #[staticmethod]
    fn read(path: PathBuf) -> PyResult<Self> {
        let experiment = CoreExperiment::read(&path).map_err(refused)?;
        Ok(Experiment { experiment })
    }

    /// An experiment of a file's text; its paths are relative to `folder`.
    #[staticmethod]
    #[pyo3(signature = (text, folder=PathBuf::from(".")))]
    fn parse(text: &str, folder: PathBuf) -> PyResult<Self> {
        let experiment = CoreExperiment::parse(text, folder).map_err(refused)?;
        Ok(Experiment { experiment })
    }

    /// An experiment of the keys of a file, as JSON.
    #[staticmethod]
    #[pyo3(signature = (text, folder=PathBuf::from(".")))]
    fn of_json(text: &str, folder: PathBuf) -> PyResult<Self> {
        let keys: toml::Table = serde_json::from_str(text).map_err(refused)?;
        let text = toml::to_string(&keys).map_err(refused)?;
        // Line numbers of a text that the caller did not write are of no use.
        let experiment = CoreExperiment::parse(&text, folder).map_err(|e| {
            let text = in_python(&e);
            match text.split_once(": ") {
                Some((line, rest)) if line.starts_with("line ") => refused(rest),
                _ => refused(text),
            }
        })?;
        Ok(Experiment { experiment })
    }

    /// The keys of its file, as JSON.
    fn json(&self) -> PyResult<String> {
        serde_json::to_string(&self.experiment).map_err(refused)
    }

    /// The text of its file.
    fn to_toml(&self) -> PyResult<String> {
        toml::to_string(&self.experiment).map_err(refused)
    }

    /// The folder that its paths are relative to.
    #[getter]
    fn folder(&self) -> PathBuf {
        self.experiment.folder.clone()
    }

    /// Runs it on the simulated machine. `policies`, where given, are run one after the other;
    /// those of `own` (name and its maker, given the seed) can be among them.
    #[pyo3(signature = (out=None, policies=None, own=Vec::new(), jobs=1, progress=None))]
    fn run(
        &self,
        py: Python<'_>,
        out: Option<PathBuf>,
        policies: Option<Vec<String>>,
        own: Vec<(String, Py<PyAny>)>,
        jobs: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Results> {
        let mut experiment = self.experiment.clone();
        let exception = Raised::default();
        // A policy in Python holds the interpreter: several at once would wait for each other.
        let jobs = if own.is_empty() { jobs.max(1) } else { 1 };
        for (name, make) in own {
            let policy = custom_policy(&name, make, exception.clone());
            experiment = experiment.with_custom_policy(policy).map_err(refused)?;
        }
        let (path, folder) = match out {
            Some(path) => (path, None),
            None => {
                let folder = tempfile::tempdir().map_err(refused)?;
                (folder.path().to_owned(), Some(folder))
            }
        };
        let request = Request { policies, jobs, ..Request::simulated(experiment, path.clone()) };
        guarded(py, exception, |events| run(request, events), progress)?;
        Ok(Results::new(path, folder.map(Arc::new)))
    }

    /// Makes a profile: the cost of its program with fast and with slow memory. Returns the numbers
    /// of intervals and references, and the times with all memory fast and slow, in ms.
    #[pyo3(signature = (out, interval_references=100_000))]
    fn profile(
        &self,
        py: Python<'_>,
        out: PathBuf,
        interval_references: u64,
    ) -> PyResult<(u64, u64, f64, f64)> {
        let experiment = self.experiment.at_fidelity(Fidelity::Trace).map_err(refused)?;
        let work =
            |events: &mut dyn Events| profile(&experiment, &out, interval_references, events);
        let done = guarded(py, Raised::default(), work, None)?;
        let ms = |time: f64| 1e3 * time;
        let (fast, slow) = (ms(done.fast.as_seconds()), ms(done.slow.as_seconds()));
        Ok((done.intervals, done.references, fast, slow))
    }

    /// Takes windows of its only group's program, in the file `out`.
    #[pyo3(signature = (out, windows, length, lead, lines, seed))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a method of Python")]
    fn windows(
        &self,
        py: Python<'_>,
        out: PathBuf,
        windows: u64,
        length: u64,
        lead: u64,
        lines: u64,
        seed: u64,
    ) -> PyResult<Windows> {
        let choice =
            Choice { windows, window_references: length, lead_references: lead, lines, seed };
        take(py, &self.experiment, out, &choice)
    }

    /// Hash of everything that its results depend on, by which sweeps identify cells.
    fn hash(&self) -> PyResult<String> {
        hash(&self.experiment).map_err(raised)
    }
}

/// Does work without holding the interpreter, so that Python's other threads run; ends it at
/// Python's request (Ctrl-C), or when a policy raised an exception.
pub fn guarded<T: Send>(
    py: Python<'_>,
    exception: Raised,
    work: impl FnOnce(&mut dyn Events) -> anyhow::Result<T> + Send,
    progress: Option<Py<PyAny>>,
) -> PyResult<T> {
    let mut watch = Watch { looked: Instant::now(), exception: exception.clone(), progress };
    let done = py.detach(|| catch_unwind(AssertUnwindSafe(|| work(&mut watch))));
    match done {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(raised(error)),
        Err(panic) if panic.is::<PolicyRaised>() => {
            let waiting = exception.lock().unwrap_or_else(PoisonError::into_inner).take();
            Err(waiting.unwrap_or_else(|| refused("a policy raised no exception")))
        }
        Err(panic) => resume_unwind(panic),
    }
}

struct Watch {
    looked: Instant,
    exception: Arc<Mutex<Option<PyErr>>>,
    progress: Option<Py<PyAny>>,
}

impl Events for Watch {
    fn event(&mut self, event: Event<'_>) {
        if let (Event::RunStarts { run, number, of, .. }, Some(progress)) = (event, &self.progress)
        {
            let reported = Python::attach(|py| progress.call1(py, (run, number, of)).map(drop));
            reported.unwrap_or_else(|error| leave(&self.exception, error));
        }
        if self.looked.elapsed() >= BETWEEN_LOOKS {
            self.looked = Instant::now();
            let wanted = Python::attach(|py| py.check_signals());
            wanted.unwrap_or_else(|error| leave(&self.exception, error));
        }
    }
}

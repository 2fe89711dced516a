//! The results of an experiment: tables by name, and runs by their policies.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::PyIterator;
use tempfile::TempDir;
use terrace_core::InputError;
use terrace_core::names;

use crate::cells::{Cell, Shown};
use crate::errors::{raised, refused, unknown};
use crate::table::Table;

/// Columns of a run by which results show themselves, where there is something in them.
const SUMMARY: [&str; 9] = [
    "policy",
    "group",
    "fast_ratio",
    "hit_ratio",
    "slowdown",
    "duration_ms",
    "operations_per_s",
    "promoted_pages",
    "demoted_pages",
];

/// The results of an experiment: tables, and recordings of scans and decisions. `results["amp"]`
/// has those of one policy.
#[pyclass(frozen, module = "terrace")]
#[derive(Clone)]
pub struct Results {
    path: PathBuf,
    /// Where no folder was named; it is deleted with its last user.
    folder: Option<Arc<TempDir>>,
}

impl Results {
    /// The results in a folder.
    pub fn new(path: PathBuf, folder: Option<Arc<TempDir>>) -> Self {
        Results { path, folder }
    }

    fn table(&self, py: Python<'_>, name: &str) -> PyResult<Table> {
        let path = self.path.join(format!("{name}.parquet"));
        py.detach(|| Table::of_file(&path))
    }
}

/// The summary of runs: of its columns those with a value.
fn summary(py: Python<'_>, runs: &Table) -> PyResult<Shown> {
    let filled = |name: &&str| {
        runs.cells(name).is_some_and(|mut cells| cells.any(|cell| cell != Cell::Missing))
    };
    let names: Vec<_> = SUMMARY.into_iter().filter(filled).map(str::to_owned).collect();
    Ok(runs.selected(py, &names)?.shown())
}

/// The texts of a column, each once, in the order of the rows.
fn texts(table: &Table, column: &str) -> Vec<String> {
    let mut all = Vec::new();
    for cell in table.cells(column).into_iter().flatten() {
        if let Cell::Text(text) = cell
            && !all.contains(&text)
        {
            all.push(text);
        }
    }
    all
}

#[pymethods]
impl Results {
    /// The results in a folder that `terrace run`, `terrace compare` or `run(out=...)` wrote; of one in
    /// an object store (`s3://BUCKET/PATH`) the tables.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let found = match terrace_stores::is_elsewhere(&path) {
            true => {
                let copies = py.detach(|| terrace_stores::fetch_folder(&path, "parquet"));
                let copies =
                    copies.map_err(|e| refused(format_args!("{}: {e}", path.display())))?;
                Results::new(copies.path().to_owned(), Some(Arc::new(copies)))
            }
            false => Results::new(path.clone(), None),
        };
        if !found.path.join("runs.parquet").is_file() {
            let text = format!(
                "{}: no runs.parquet; expected a results directory as 'terrace run --out DIR' makes it",
                path.display()
            );
            return Err(refused(InputError::new(text)));
        }
        Ok(found)
    }

    /// The folder.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// The policies that were run, in the order of their runs.
    #[getter]
    fn policies(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(texts(&self.runs(py)?, "policy"))
    }

    /// A row for each run and group.
    #[getter]
    fn runs(&self, py: Python<'_>) -> PyResult<Table> {
        self.table(py, "runs")
    }

    /// A row for each period of each group in each run.
    #[getter]
    fn periods(&self, py: Python<'_>) -> PyResult<Table> {
        self.table(py, "periods")
    }

    /// Accesses by address and period, binned.
    #[getter]
    fn heat(&self, py: Python<'_>) -> PyResult<Table> {
        self.table(py, "heat")
    }

    /// Hardware costs of periods; None at interval fidelity, which has no references.
    #[getter]
    fn hardware(&self, py: Python<'_>) -> PyResult<Option<Table>> {
        match self.path.join("hardware.parquet").is_file() {
            true => self.table(py, "hardware").map(Some),
            false => Ok(None),
        }
    }

    /// Recordings of scans and decisions, by run.
    #[getter]
    fn recordings(&self) -> PyResult<Vec<PathBuf>> {
        let entries = match std::fs::read_dir(self.path.join("recordings")) {
            Ok(entries) => entries,
            Err(_) => return Ok(Vec::new()),
        };
        let mut all: Vec<_> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        all.retain(|path| path.extension().is_some_and(|e| e == "trec"));
        all.sort();
        Ok(all)
    }

    /// Writes what `terrace report` writes, one HTML file without scripts, and returns its path: into
    /// the results' folder, or where `path` says.
    #[pyo3(signature = (path=None))]
    fn report(&self, py: Python<'_>, path: Option<PathBuf>) -> PyResult<PathBuf> {
        let path = path.unwrap_or_else(|| self.path.join("report.html"));
        let write = || -> anyhow::Result<()> {
            let results = terrace_report::Results::read(&self.path)?;
            let meta = terrace_report::ReportMeta {
                title: results.title(),
                command: format!(
                    "terrace.Results.read({:?}).report()",
                    self.path.display().to_string()
                ),
                generated_by_version: terrace_identity::created_by("terrace"),
            };
            Ok(terrace_report::write_html(&path, &results, &meta)?)
        };
        py.detach(write).map_err(raised)?;
        Ok(path)
    }

    /// What was run under a policy.
    fn __getitem__(&self, py: Python<'_>, policy: &str) -> PyResult<Run> {
        let policies = self.policies(py)?;
        if !policies.iter().any(|known| known == policy) {
            return Err(unknown(
                py,
                "policy of these results",
                policy,
                policies.iter().map(String::as_str),
            ));
        }
        let runs = self.runs(py)?.with("policy", &[policy.to_owned()])?;
        Ok(Run { results: self.clone(), name: policy.to_owned(), runs })
    }

    /// How many policies were run.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.policies(py)?.len())
    }

    /// Whether a policy was run.
    fn __contains__(&self, py: Python<'_>, policy: &str) -> PyResult<bool> {
        Ok(self.policies(py)?.iter().any(|known| known == policy))
    }

    /// The names of the policies, as of a dict's keys.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.policies(py)?.into_pyobject(py)?.try_iter()
    }

    /// Names that an interactive Python completes after `results[`.
    fn _ipython_key_completions_(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.policies(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let runs = self.runs(py)?;
        // A folder that goes with the results is nobody's business.
        let place = match self.folder {
            Some(_) => String::new(),
            None => format!(" in {}", self.path.display()),
        };
        let experiments = texts(&runs, "experiment").join(", ");
        let summary = summary(py, &runs)?.text();
        Ok(format!("<terrace.Results of '{experiments}'{place}>\n{summary}"))
    }

    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        Ok(summary(py, &self.runs(py)?)?.html())
    }
}

/// What was run under one policy. Every column of `runs` is an attribute where there is one group;
/// of several, `run["group"]` has one.
#[pyclass(frozen, module = "terrace")]
pub struct Run {
    results: Results,
    name: String,
    runs: Table,
}

impl Run {
    /// Rows of a table that are of this run.
    fn of(&self, table: Table) -> PyResult<Table> {
        let table = table.with("run", &texts(&self.runs, "run"))?;
        table.with("group", &texts(&self.runs, "group"))
    }
}

#[pymethods]
impl Run {
    /// The policy.
    #[getter]
    fn policy(&self) -> &str {
        &self.name
    }

    /// The groups.
    #[getter]
    fn groups(&self) -> Vec<String> {
        texts(&self.runs, "group")
    }

    /// Its rows of the table of runs: one for each group.
    #[getter]
    fn runs(&self) -> Table {
        self.runs.clone()
    }

    /// Its rows of the table of periods.
    #[getter]
    fn periods(&self, py: Python<'_>) -> PyResult<Table> {
        self.of(self.results.periods(py)?)
    }

    /// Its rows of the heat map.
    #[getter]
    fn heat(&self, py: Python<'_>) -> PyResult<Table> {
        self.of(self.results.heat(py)?)
    }

    /// Its rows of the hardware costs, where there are such.
    #[getter]
    fn hardware(&self, py: Python<'_>) -> PyResult<Option<Table>> {
        self.results.hardware(py)?.map(|table| self.of(table)).transpose()
    }

    /// One of the groups.
    fn __getitem__(&self, py: Python<'_>, group: &str) -> PyResult<Run> {
        let groups = self.groups();
        if !groups.iter().any(|known| known == group) {
            return Err(unknown(py, "group", group, groups.iter().map(String::as_str)));
        }
        let runs = self.runs.with("group", &[group.to_owned()])?;
        Ok(Run { results: self.results.clone(), name: self.name.clone(), runs })
    }

    /// The value of a column of `runs`.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let Some(cells) = self.runs.cells(name) else {
            let own = ["policy", "groups", "runs", "periods", "heat", "hardware"];
            let hint = names::hint(name, self.runs.names().chain(own));
            return Err(PyAttributeError::new_err(format!("a run has no '{name}'{hint}")));
        };
        match &cells.collect::<Vec<_>>()[..] {
            [cell] => cell.object(py),
            _ => Err(PyAttributeError::new_err(format!(
                "'{name}' of {} groups; expected one, as in run[\"{}\"].{name}",
                self.groups().len(),
                self.groups().first().map_or("group", String::as_str)
            ))),
        }
    }

    fn __dir__(&self) -> Vec<String> {
        let own = ["policy", "groups", "runs", "periods", "heat", "hardware"];
        let mut all: Vec<_> = own.into_iter().chain(self.runs.names()).map(str::to_owned).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Names that an interactive Python completes after `run[`.
    fn _ipython_key_completions_(&self) -> Vec<String> {
        self.groups()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<terrace.Run of policy '{}'>\n{}", self.name, summary(py, &self.runs)?.text()))
    }

    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        Ok(summary(py, &self.runs)?.html())
    }
}

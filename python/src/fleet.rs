//! Fleets: hosts read here, or anywhere and joined; the answer.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tempfile::TempDir;
use terrace_fleet::parts::{self, Address};
use terrace_fleet::{Answer, answer, files, folders, rollout, words};
use terrace_report::ReportMeta;

use crate::bridge::{Raised, leave};
use crate::cells::paragraphs;
use crate::errors::{raised, refused};
use crate::experiment::guarded;
use crate::table::Table;

/// Class, name and folder of a host.
type Where = (usize, String, String);

/// A fleet file: which hosts there are, and how they are read.
#[pyclass(frozen, module = "terrace._terrace")]
pub struct Fleet {
    fleet: terrace_fleet::Fleet,
    text: String,
}

#[pymethods]
impl Fleet {
    /// Reads and checks a fleet file.
    #[staticmethod]
    fn read(path: PathBuf) -> PyResult<Self> {
        // Absolute: hosts are read elsewhere too.
        let path = std::path::absolute(&path)?;
        terrace_fleet::Fleet::read(&path).map_err(refused)?;
        let text = std::fs::read_to_string(&path)?;
        Self::parse(text, path.parent().unwrap_or(Path::new("/")).to_owned())
    }

    /// The fleet of a file's text; patterns of hosts are relative to `folder`.
    #[staticmethod]
    fn parse(text: String, folder: PathBuf) -> PyResult<Self> {
        let fleet = terrace_fleet::Fleet::parse(&text, folder).map_err(refused)?;
        Ok(Fleet { fleet, text })
    }

    /// The file's text.
    #[getter]
    fn text(&self) -> &str {
        &self.text
    }

    /// The folder that patterns of hosts are relative to.
    #[getter]
    fn folder(&self) -> PathBuf {
        self.fleet.folder.clone()
    }

    /// Class, name and folder of each host.
    fn hosts(&self, py: Python<'_>) -> PyResult<Vec<Where>> {
        let found = py.detach(|| folders::hosts(&self.fleet)).map_err(refused)?;
        let of = |address: Address| (address.class, address.name, address.place);
        Ok(found.iter().map(Address::of).map(of).collect())
    }

    /// Reads hosts, one after the other: what is left of each, as bytes.
    fn read_hosts<'py>(
        &self,
        py: Python<'py>,
        hosts: Vec<Where>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let work = || -> anyhow::Result<Vec<Vec<u8>>> {
            let addresses: Vec<Address> = hosts.into_iter().map(address).collect();
            let read = parts::read(&self.fleet, &addresses)?;
            Ok(read.iter().map(parts::to_bytes).collect::<Result<_, _>>()?)
        };
        let read = guarded(py, Raised::default(), |_| work(), None)?;
        Ok(read.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// What is left of a host that could not be read: its folder and the reason.
    fn given_up<'py>(
        &self,
        py: Python<'py>,
        host: Where,
        reason: &str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = parts::to_bytes(&address(host).given_up(reason)).map_err(refused)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Reads all hosts here, `jobs` at a time, and answers. `reported` receives how many of how many
    /// hosts have been read.
    #[pyo3(signature = (jobs, reported=None))]
    fn answer(
        &self,
        py: Python<'_>,
        jobs: usize,
        reported: Option<Py<PyAny>>,
    ) -> PyResult<FleetAnswer> {
        let exception = Raised::default();
        let work = || {
            let answer = answer(&self.fleet, jobs.max(1), &mut |done, of| {
                // Ctrl-C, or an exception of the caller's, ends it after the hosts under way.
                let step = Python::attach(|py| {
                    py.check_signals()?;
                    reported.as_ref().map_or(Ok(()), |r| r.call1(py, (done, of)).map(drop))
                });
                step.unwrap_or_else(|error| leave(&exception, error));
            })?;
            FleetAnswer::of(answer)
        };
        guarded(py, exception.clone(), |_| work(), None)
    }

    /// The answer of hosts that were read elsewhere, in the order of `hosts`.
    fn join(&self, py: Python<'_>, read: Vec<Vec<u8>>, jobs: usize) -> PyResult<FleetAnswer> {
        let work = || -> anyhow::Result<FleetAnswer> {
            let hosts: Vec<_> =
                read.iter().map(|bytes| parts::from_bytes(bytes)).collect::<Result<_, _>>()?;
            FleetAnswer::of(terrace_fleet::answer::join(&self.fleet, &hosts, jobs.max(1))?)
        };
        guarded(py, Raised::default(), |_| work(), None)
    }
}

fn address((class, name, place): Where) -> Address {
    Address { class, name, place }
}

/// How much fast memory the hosts of a fleet need.
#[pyclass(frozen, module = "terrace")]
pub struct FleetAnswer {
    answer: Answer,
    folder: TempDir,
}

impl FleetAnswer {
    fn of(answer: Answer) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        files::write_tables(&answer, folder.path())?;
        Ok(FleetAnswer { answer, folder })
    }

    fn table(&self, name: &str) -> PyResult<Table> {
        Table::of_file(&self.folder.path().join(format!("{name}.parquet")))
    }
}

#[pymethods]
impl FleetAnswer {
    /// The answer in words, a sentence a line.
    #[getter]
    fn words(&self) -> Vec<String> {
        words::recommendation(&self.answer)
    }

    /// What the answer rests on, a sentence a line.
    #[getter]
    fn remarks(&self) -> Vec<String> {
        words::remarks(&self.answer)
    }

    /// With which hosts to begin, what to watch, when to stop.
    #[getter]
    fn rollout(&self) -> Vec<String> {
        rollout::in_words(&self.answer)
    }

    /// Host classes, by latency of slow memory.
    #[getter]
    fn classes(&self) -> PyResult<Table> {
        self.table("fleet_classes")
    }

    /// Services, by class and latency.
    #[getter]
    fn services(&self) -> PyResult<Table> {
        self.table("fleet_services")
    }

    /// Hosts, by latency, with their stage of the rollout.
    #[getter]
    fn hosts(&self) -> PyResult<Table> {
        self.table("fleet_hosts")
    }

    /// Pairs of services that collide on some host.
    #[getter]
    fn pairs(&self) -> PyResult<Table> {
        self.table("fleet_pairs")
    }

    /// Files and folders that could not be used, with the reason.
    #[getter]
    fn left_out(&self) -> PyResult<Table> {
        self.table("fleet_left_out")
    }

    /// Everything, as the JSON that `terrace fleet --format json` prints.
    fn json(&self) -> PyResult<String> {
        serde_json::to_string_pretty(&files::document(&self.answer)).map_err(refused)
    }

    /// Writes what `terrace fleet --out` writes: tables, report.html and fleet.json.
    #[pyo3(signature = (out, command=String::new()))]
    fn write(&self, py: Python<'_>, out: PathBuf, command: String) -> PyResult<()> {
        let meta = ReportMeta {
            title: files::title(&self.answer),
            command,
            generated_by_version: terrace_identity::created_by("terrace"),
        };
        py.detach(|| files::write(&self.answer, &out, &meta)).map_err(raised)
    }

    fn __repr__(&self) -> String {
        let mut text = format!("<terrace.FleetAnswer for {} hosts>", self.answer.hosts_found);
        for line in self.words() {
            text += &format!("\n{line}");
        }
        text
    }

    fn _repr_html_(&self) -> PyResult<String> {
        Ok(paragraphs(&self.words()) + &self.classes()?.shown().html())
    }
}

//! Recordings: their totals, and the scans of period recordings.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use terrace_core::page::Layout;
use terrace_core::remap::Remap;
use terrace_recordings::error::RecordingError;
use terrace_recordings::period::{PeriodReader, Record, Records};
use terrace_recordings::profile::ProfileReader;
use terrace_recordings::survey::survey;

use crate::errors::refused;
use crate::scan::Scan;

/// A recording: accessed pages by period (.trec), references (.tref), or a profile (.tprof).
#[pyclass(frozen, module = "terrace")]
pub struct Recording {
    path: PathBuf,
    kind: &'static str,
    survey: String,
}

#[pymethods]
impl Recording {
    /// Opens a recording, of whatever kind it is by its content, and counts its totals.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| match ProfileReader::open(&path) {
            Ok(mut profile) => {
                let mut counts = [0u64; 4];
                while let Some(interval) = profile.next_interval().map_err(refused)? {
                    let all = [1, interval.references, interval.fast_ps, interval.slow_ps];
                    counts.iter_mut().zip(all).for_each(|(sum, part)| *sum += part);
                }
                let [intervals, references, fast_ps, slow_ps] = counts;
                let survey = serde_json::json!({
                    "kind": "profile",
                    "header": profile.header(),
                    "intervals": intervals,
                    "references": references,
                    "all_fast_ms": fast_ps as f64 / 1e9,
                    "all_slow_ms": slow_ps as f64 / 1e9,
                    "complete": profile.truncation().is_none(),
                });
                Ok(Recording { kind: "profile", survey: survey.to_string(), path })
            }
            Err(RecordingError::Content { .. }) => {
                let found = survey(&path).map_err(refused)?;
                let kind = match found {
                    terrace_recordings::survey::Survey::References(_) => "references",
                    terrace_recordings::survey::Survey::Periods(_) => "periods",
                };
                let survey = serde_json::to_string(&found).map_err(refused)?;
                Ok(Recording { kind, survey, path })
            }
            Err(other) => Err(refused(other)),
        })
    }

    /// Path of the file.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// "periods", "references" or "profile".
    #[getter]
    fn kind(&self) -> &'static str {
        self.kind
    }

    /// Its totals, as `terrace info` shows them.
    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("json")?.call_method1("loads", (&self.survey,))
    }

    /// The scans of a period recording, one after the other; of the group of this name, which is
    /// optional where there is one.
    #[pyo3(signature = (group=None))]
    fn scans(&self, group: Option<&str>) -> PyResult<Scans> {
        if self.kind != "periods" {
            return Err(refused(format_args!(
                "{}: got a recording of {}, expected one of periods (.trec)",
                self.path.display(),
                self.kind
            )));
        }
        let reader = PeriodReader::open(&self.path).map_err(refused)?;
        let group = match (group, &reader.header().groups[..]) {
            (Some(name), _) => reader.group(name).map_err(refused)?,
            (None, [_]) => 0,
            (None, all) => {
                let names: Vec<_> = all.iter().map(|g| g.name.as_str()).collect();
                return Err(refused(format_args!(
                    "{}: {} groups; expected one of {} to be named",
                    self.path.display(),
                    all.len(),
                    names.join(", ")
                )));
            }
        };
        Ok(Scans { group, state: Mutex::new((reader.records(), None)) })
    }

    fn __repr__(&self) -> String {
        format!("<terrace.Recording of {}: {}>", self.kind, self.path.display())
    }
}

type State = (Records<BufReader<File>>, Option<Arc<Layout>>);

/// The scans of a group in a recording.
#[pyclass(frozen, module = "terrace")]
pub struct Scans {
    group: usize,
    state: Mutex<State>,
}

#[pymethods]
impl Scans {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Scan>> {
        py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let (records, before) = &mut *state;
            for record in records {
                match record.map_err(refused)? {
                    Record::Period(period) if period.group == self.group => {
                        let layout = period.scan.layout.clone();
                        let remap = match before.replace(layout.clone()) {
                            Some(old) if Arc::ptr_eq(&old, &layout) => None,
                            Some(old) => Some(Remap::between(&old, &layout)),
                            None => Some(Remap::from_nothing(&layout)),
                        };
                        let remap = remap.filter(|c| !c.is_identity() || c.old_pages() == 0);
                        return Ok(Some(Scan::new(period.scan, remap)));
                    }
                    _ => {}
                }
            }
            Ok(None)
        })
    }
}

//! Requests, runs and the events of a run.

use std::path::{Path, PathBuf};

use anyhow::Context;
use terrace_core::{InputError, refuse};
use terrace_linux::rivals::Rival;
use terrace_results::RunRow;

use crate::file::Experiment;

/// Where an experiment runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineKind {
    /// The simulated machine at interval fidelity.
    Simulated,
    /// A virtual two-tier machine.
    Virtual,
    /// This host.
    Host,
}

impl MachineKind {
    /// Its name in result tables.
    pub fn name(self) -> &'static str {
        match self {
            MachineKind::Simulated => "sim",
            MachineKind::Virtual => "vm",
            MachineKind::Host => "host",
        }
    }
}

/// A request: what to run, on what, and where results go.
#[derive(Debug, Clone)]
pub struct Request {
    /// The experiment.
    pub experiment: Experiment,
    /// Run it under each of these policies instead of those in the file.
    pub policies: Option<Vec<String>>,
    /// On a live machine: run it under each of these mechanisms of Linux as well, or instead where
    /// there are no policies; all runs then have a full fast node.
    pub rivals: Vec<String>,
    /// Within a virtual machine that counts accesses: programs get the compatible layout, by which
    /// they are counted separately.
    pub apart: bool,
    /// On a virtual machine: run it on each of these kernels, as `[machine] kernel` names them,
    /// instead of the one in the file. Empty: on that one.
    pub kernels: Vec<String>,
    /// The machine.
    pub machine: MachineKind,
    /// The results directory.
    pub out: PathBuf,
    /// On the host: change settings that would spoil the run, and restore them.
    pub fix_conflicts: bool,
    /// On a virtual machine: count accesses by tier, exactly.
    pub count_accesses: bool,
    /// Runs at the same time, 1 at least: simulated ones, whose results are the same bytes, and
    /// those on virtual machines whose clocks count.
    pub jobs: usize,
}

impl Request {
    /// A request for the simulated machine: the experiment as in its file, one run at a time.
    pub fn simulated(experiment: Experiment, out: PathBuf) -> Self {
        Request {
            experiment,
            policies: None,
            rivals: Vec::new(),
            apart: false,
            kernels: Vec::new(),
            machine: MachineKind::Simulated,
            out,
            fix_conflicts: false,
            count_accesses: false,
            jobs: 1,
        }
    }
}

/// Events of a run.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A run begins.
    RunStarts {
        /// Its name.
        run: &'a str,
        /// Its number, from 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// Periods it will have at most.
        periods: u64,
    },
    /// The present step.
    Stage(&'a str),
    /// A period of a group is over.
    Period {
        /// Its number, from 0.
        period: u64,
        /// The group.
        group: &'a str,
        /// Its fast-memory hit ratio.
        hit_ratio: f64,
        /// The policy applied.
        applied: &'a str,
    },
    /// A note for the user.
    Note(&'a str),
    /// A line of a virtual machine's console.
    Console(&'a str),
    /// The run is over.
    RunEnds,
}

/// Receives events.
pub trait Events {
    /// Takes an event.
    fn event(&mut self, event: Event<'_>);
}

/// Ignores events.
pub struct Quiet;

impl Events for Quiet {
    fn event(&mut self, _: Event<'_>) {}
}

/// One run of a request.
pub(crate) struct Run<'a> {
    /// Its name: used for files and in tables.
    pub name: String,
    /// The experiment with the run's policies.
    pub experiment: Experiment,
    /// The mechanism of Linux that moves pages instead of the policies.
    pub rival: Option<&'static dyn Rival>,
    /// What was asked for.
    pub request: &'a Request,
}

/// A folder of results with a file for each run, and how the files' names end.
type RunFiles = (&'static str, &'static str);
const RECORDINGS: RunFiles = ("recordings", "trec");
const DETAILS: RunFiles = ("details", "json");
const ACCESSES: RunFiles = ("accesses", "json");
const CLOCK: RunFiles = ("clock", "json");

fn file_of_run(out: &Path, name: &str, (folder, extension): RunFiles) -> PathBuf {
    out.join(folder).join(format!("{name}.{extension}"))
}

/// Every file that a run of this name may have left in a results directory, beside the tables, with
/// its folder.
pub(crate) fn files_of_run(out: &Path, name: &str) -> [(&'static str, PathBuf); 4] {
    [RECORDINGS, DETAILS, ACCESSES, CLOCK].map(|files| (files.0, file_of_run(out, name, files)))
}

impl Run<'_> {
    /// Path of its recording.
    pub fn recording(&self) -> PathBuf {
        file_of_run(&self.request.out, &self.name, RECORDINGS)
    }

    /// Path of its programs' output.
    pub fn details(&self) -> PathBuf {
        file_of_run(&self.request.out, &self.name, DETAILS)
    }

    /// Path of the exact counts of its accesses.
    pub fn accesses(&self) -> PathBuf {
        file_of_run(&self.request.out, &self.name, ACCESSES)
    }

    /// Path of the figures of the memory clock.
    pub fn clock(&self) -> PathBuf {
        file_of_run(&self.request.out, &self.name, CLOCK)
    }

    /// The columns that are known before it runs.
    pub fn rows(&self, kernel: Option<&str>, emulated: bool) -> Vec<RunRow> {
        let experiment = &self.experiment;
        let row = |group: &crate::file::GroupSpec| RunRow {
            run: self.name.clone(),
            experiment: experiment.name.clone(),
            machine: self.request.machine.name().to_owned(),
            kernel: kernel.map(str::to_owned),
            policy: self.rival.map_or_else(|| group.policy.clone(), |r| r.name().to_owned()),
            parameters: match experiment.parameters_of(&group.policy) {
                _ if self.rival.is_some() => "{}".to_owned(),
                serde_json::Value::Null => "{}".to_owned(),
                parameters => parameters.to_string(),
            },
            group: group.name.clone(),
            workload: group.workload.kind.clone(),
            page_size_bytes: group.page_size.size().bytes(),
            period_ms: experiment.period_ms,
            period_us: experiment.period_us,
            seed: experiment.seed,
            fast_ratio: group.fast_ratio.unwrap_or(0.0),
            emulated,
            ..RunRow::default()
        };
        experiment.groups.iter().map(row).collect()
    }
}

/// The event with which a run begins.
pub(crate) fn starts<'a>(run: &'a Run<'_>, index: usize, of: usize) -> Event<'a> {
    Event::RunStarts { run: &run.name, number: index + 1, of, periods: run.experiment.periods }
}

/// Writes a file by renaming, so that it is there whole or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let part = PathBuf::from(format!("{}.part", path.display()));
    std::fs::write(&part, bytes)
        .and_then(|()| std::fs::rename(&part, path))
        .inspect_err(|_| {
            let _ = std::fs::remove_file(&part);
        })
        .with_context(|| format!("writing {}", path.display()))
}

/// Refuses a folder for results that could not be written to, before the work for them. It is not
/// made, nor is anything left in it.
///
/// # Errors
/// What prevents files there, in a line.
pub fn check_folder(folder: &Path) -> Result<(), InputError> {
    let place = folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let error = |e: std::io::Error| {
        refuse!("{}: {e}; expected a folder for results that can be written to", folder.display())
    };
    // Of a relative path the last one is empty.
    let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
    tempfile::tempfile_in(place).map(|_| ()).map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_replaced_leaves_nothing_beside_it() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("folder");
        std::fs::create_dir(&file).unwrap();
        write_whole(&file, b"text").unwrap_err();
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn folders_that_cannot_be_written_to_are_refused_and_others_not_made() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "text").unwrap();
        for bad in [&file, &file.join("out"), Path::new("/proc/out")] {
            let error = check_folder(bad).unwrap_err().to_string();
            assert!(error.contains("can be written to") && !error.contains('\n'), "{error}");
        }
        check_folder(&place.path().join("new/out")).unwrap();
        check_folder(Path::new("new-folder-of-results")).unwrap();
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }
}

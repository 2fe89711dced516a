//! Runs cells: each once, several at a time, those that failed again.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::grid::{Cell, Grid};
use crate::file::Experiment;
use crate::run::{Quiet, Request, write_whole};
use crate::runner::run;
use terrace_core::{InputError, refuse};

/// Cells to run.
pub struct Work<'a> {
    /// The grid.
    pub grid: &'a Grid,
    /// Which of its cells.
    pub cells: &'a [usize],
    /// The sweep's folder.
    pub out: &'a Path,
    /// Cells at the same time.
    pub jobs: usize,
    /// How often a failed cell is tried again. Input errors are not: they would come again.
    pub retries: u32,
}

/// Outcome of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It had been run before.
    Skipped,
    /// It ran.
    Done,
    /// It could not be run.
    Failed(Failed),
}

/// A cell that could not be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Its number.
    pub cell: usize,
    /// Its hash.
    pub hash: String,
    /// Axis and value.
    pub values: BTreeMap<String, String>,
    /// Number of attempts.
    pub attempts: u32,
    /// The last error, in one line.
    pub error: String,
}

/// Where a finished cell's tables are.
pub fn folder(out: &Path, hash: &str) -> PathBuf {
    out.join("cells").join(hash)
}

/// Whether a cell's results exist.
pub fn is_done(out: &Path, hash: &str) -> bool {
    folder(out, hash).is_dir()
}

fn failure(out: &Path, hash: &str) -> PathBuf {
    out.join("failed").join(format!("{hash}.json"))
}

/// The error of a cell that failed and has not run since.
pub fn failed(out: &Path, hash: &str) -> Option<Failed> {
    serde_json::from_slice(&fs::read(failure(out, hash)).ok()?).ok()
}

/// Runs cells. `reported` is called as each ends, in any order; after an error of it no further cell is
/// begun. Memory does not grow with the number of cells.
pub fn work(
    work: &Work<'_>,
    reported: &(dyn Fn(&Cell, &Outcome) -> anyhow::Result<()> + Sync),
) -> anyhow::Result<Vec<Failed>> {
    prepare(work.out)?;
    let failures = terrace_jobs::try_all(work.cells, work.jobs, |&index| {
        let cell = work.grid.cell(index)?;
        let outcome = one(work, &cell)?;
        reported(&cell, &outcome)?;
        anyhow::Ok(match outcome {
            Outcome::Failed(failed) => Some(failed),
            _ => None,
        })
    })?;
    Ok(failures.into_iter().flatten().collect())
}

fn one(work: &Work<'_>, cell: &Cell) -> anyhow::Result<Outcome> {
    if is_done(work.out, &cell.hash) {
        return Ok(Outcome::Skipped);
    }
    let mut attempts = 0;
    loop {
        attempts += 1;
        let error = match catch_unwind(AssertUnwindSafe(|| attempt(work.out, cell))) {
            Ok(Ok(())) => {
                let _ = fs::remove_file(failure(work.out, &cell.hash));
                return Ok(Outcome::Done);
            }
            Ok(Err(error)) => error,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
                anyhow::anyhow!("the program panicked: {text}")
            }
        };
        let refused = error.chain().any(|e| e.is::<InputError>());
        if refused || attempts > work.retries {
            let failed = Failed {
                cell: cell.index,
                hash: cell.hash.clone(),
                values: cell.values.iter().cloned().collect(),
                attempts,
                error: InputError::new(format!("{error:#}")).0,
            };
            note(work.out, &failed)?;
            return Ok(Outcome::Failed(failed));
        }
    }
}

static NEXT_PART: AtomicU64 = AtomicU64::new(0);

/// Runs a cell into a folder of its own, which is then renamed.
fn attempt(out: &Path, cell: &Cell) -> anyhow::Result<()> {
    let part = Part::new(out, &cell.hash)?;
    run_into(&cell.experiment, &part.0)?;
    part.publish(out, &cell.hash)
}

/// Runs the experiment of a cell into an existing empty folder: the files of the cell's own folder.
/// For programs that run cells elsewhere and pass the files to [`take_in`].
pub fn run_into(experiment: &Experiment, folder: &Path) -> anyhow::Result<()> {
    let request = Request::simulated(experiment.clone(), folder.to_owned());
    run(request, &mut Quiet)?;
    // Recordings are as large as all other files together, and one run makes them again.
    fs::remove_dir_all(folder.join("recordings")).context("removing recordings")?;
    let experiment = toml::to_string(experiment).context("writing the experiment")?;
    fs::write(folder.join("experiment.toml"), experiment).context("writing the experiment")
}

/// Adds a cell that was run elsewhere: the files of its folder by name. An existing cell is not
/// changed.
pub fn take_in(out: &Path, hash: &str, files: &[(String, Vec<u8>)]) -> anyhow::Result<()> {
    if is_done(out, hash) {
        return Ok(());
    }
    let part = Part::new(out, hash)?;
    for (name, bytes) in files {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(refuse!("a cell's file named '{name}': expected a plain name").into());
        }
        fs::write(part.0.join(name), bytes).with_context(|| format!("writing {name}"))?;
    }
    part.publish(out, hash)?;
    let _ = fs::remove_file(failure(out, hash));
    Ok(())
}

/// Notes a cell that could not be run; merging lists it.
pub fn note(out: &Path, failed: &Failed) -> anyhow::Result<()> {
    write_whole(&failure(out, &failed.hash), &serde_json::to_vec_pretty(failed)?)
}

/// Files by which a folder is known as another command's results.
const RESULTS: [&str; 3] = ["runs.parquet", "plan.json", "fleet.json"];

/// Makes a sweep's folder, and removes leftovers of processes of this host that have ended. A sweep
/// goes on in its own folder; results of another command are refused, for it would replace them.
pub fn prepare(out: &Path) -> anyhow::Result<()> {
    let other = RESULTS.iter().find(|name| out.join(name).exists());
    if let Some(name) = other.filter(|_| !out.join("cells").is_dir()) {
        return Err(refuse!(
            "{} has results of another command ({name}); expected a folder of its own: give another \
             --out",
            out.display()
        )
        .into());
    }
    for folder in ["cells", "failed"] {
        fs::create_dir_all(out.join(folder)).map_err(|e| {
            refuse!("{}: {e}; expected a folder for results that can be written to", out.display())
        })?;
    }
    tidy(&out.join("cells"));
    Ok(())
}

/// A folder that is removed unless it was renamed.
struct Part(PathBuf);

impl Part {
    fn new(out: &Path, hash: &str) -> anyhow::Result<Self> {
        let number = NEXT_PART.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{hash}.{}.{}.{number}.part", host(), std::process::id());
        let part = Part(out.join("cells").join(name));
        fs::create_dir(&part.0).with_context(|| part.0.display().to_string())?;
        Ok(part)
    }

    /// Renames it to its cell.
    fn publish(self, out: &Path, hash: &str) -> anyhow::Result<()> {
        match fs::rename(&self.0, folder(out, hash)) {
            // Another process was faster: the same bytes.
            Err(_) if is_done(out, hash) => Ok(()),
            other => other.with_context(|| format!("naming {}", self.0.display())),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The host, and the namespace that its process numbers are of: containers may have one name, and each
/// has numbers of its own.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let numbers = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let plain = |text: &str| -> String {
        text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
    };
    format!("{}-{}", plain(name.trim()), plain(&numbers.to_string_lossy()))
}

/// Removes leftovers of processes of this host that have ended.
fn tidy(cells: &Path) {
    let Ok(entries) = fs::read_dir(cells) else { return };
    let host = host();
    for entry in entries.filter_map(io::Result::ok) {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|n| n.ends_with(".part")) else { continue };
        let fields: Vec<&str> = name.split('.').collect();
        let [_, _, of, process, ..] = fields[..] else { continue };
        if of == host && !Path::new("/proc").join(process).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_ended_processes_are_removed_and_those_of_other_containers_stay() {
        let out = tempfile::tempdir().unwrap();
        let cells = out.path().join("cells");
        let part = |host: &str, process: u32| cells.join(format!(".hash.{host}.{process}.0.part"));
        // The first process of a container with this host's name, which is not that of this host; and
        // one that has ended, for there are no such numbers.
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let others = part(&format!("{}-pid1", name.trim()), 4_300_000);
        let (ended, own) = (part(&host(), 4_300_000), part(&host(), std::process::id()));
        [&others, &ended, &own].iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        prepare(out.path()).unwrap();
        assert!(others.is_dir() && own.is_dir() && !ended.exists());
    }

    #[test]
    fn no_cell_is_begun_after_an_error_of_the_reader_of_outcomes() {
        let text = "name = \"g\"\n[experiment]\nname = \"e\"\nperiod_ms = 100\nperiods = 2\n\
                    [[experiment.groups]]\nname = \"a\"\nfast_ratio = 0.5\npolicy = \"lru\"\n\
                    workload = { kind = \"zipf\", footprint_mib = 16 }\n\
                    [[axes]]\nkey = \"seed\"\nvalues = [1, 2, 3, 4, 5, 6, 7, 8]\n";
        let grid = Grid::parse(text, ".".into()).unwrap();
        let cells: Vec<usize> = (0..grid.len()).collect();
        for jobs in [1, 2] {
            let out = tempfile::tempdir().unwrap();
            let of_grid = Work { grid: &grid, cells: &cells, out: out.path(), jobs, retries: 0 };
            let ended = work(&of_grid, &|_, outcome| {
                assert_eq!(*outcome, Outcome::Done);
                anyhow::bail!("enough")
            });
            assert_eq!(ended.unwrap_err().to_string(), "enough");
            let done = fs::read_dir(out.path().join("cells")).unwrap().count();
            assert!((1..=jobs).contains(&done), "{done} of {jobs} at a time");
        }
    }
}

//! Shared by the figures of one command: the folder that they work in, which no other command may
//! work in at the same time, and the runs that were made there.
//!
//! Many figures use the same runs (AMP's figures 2, 6, 8 and 10 to 13, half of 15 and 16). A run is
//! identified by its experiment, and made once. A command that was interrupted leaves the runs that had
//! ended, and the same build goes on after them.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use terrace_core::InputError;
use terrace_experiments::Experiment;
use terrace_identity::StableHash;

/// Held by the command that works in a folder.
const LOCK: &str = ".lock";
/// Beside a run's results once they are complete: which run it was, by which build.
const MARK: &str = ".run";

/// A folder for results, and the runs that this command made there.
pub struct RunCache {
    folder: PathBuf,
    runs: Mutex<BTreeMap<u64, PathBuf>>,
    /// Released when the command ends, however it ends.
    _lock: File,
}

impl RunCache {
    /// Makes the folder if needed, and locks it. Profiles and results are written under names that
    /// two commands would share: a second command is rejected while the first one works.
    pub fn open(folder: &Path) -> anyhow::Result<RunCache> {
        std::fs::create_dir_all(folder).with_context(|| {
            format!("{}: expected a folder for results that can be written to", folder.display())
        })?;
        let path = folder.join(LOCK);
        let lock = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(InputError::new(format!(
                    "{}: another command is making figures in it; wait for it, or give another \
                     folder with --out",
                    folder.display()
                ))
                .into());
            }
            Err(TryLockError::Error(e)) => {
                return Err(e).with_context(|| format!("locking {}", path.display()));
            }
        }
        Ok(RunCache { folder: folder.to_owned(), runs: Mutex::default(), _lock: lock })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the results of this experiment are, if it was run already.
    pub(crate) fn run_before(&self, experiment: &Experiment) -> Option<PathBuf> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(&key(experiment)).cloned()
    }

    /// Whether an earlier command of this build has left the experiment's results in this folder.
    pub(crate) fn was_left(&self, experiment: &Experiment, out: &Path) -> bool {
        let Ok(mark) = std::fs::read_to_string(out.join(MARK)) else { return false };
        mark.strip_prefix(&mark_of(experiment))
            .is_some_and(|files| files.lines().all(|file| out.join(file).is_file()))
    }

    /// To be called before this folder's results change.
    pub(crate) fn changes(&self, out: &Path) -> anyhow::Result<()> {
        let path = out.join(MARK);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(e).with_context(|| format!("removing {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Records that the experiment's results are in this folder now.
    pub(crate) fn was_run(&self, experiment: &Experiment, out: &Path) -> anyhow::Result<()> {
        let path = out.join(MARK);
        // With its files: of results that were removed since, nothing is left.
        let reading = || format!("reading {}", out.display());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(out).with_context(reading)? {
            let entry = entry.with_context(reading)?;
            let is_file = entry.file_type().with_context(reading)?.is_file();
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_file && name != MARK && name != LOCK {
                files.push(name + "\n");
            }
        }
        files.sort();
        std::fs::write(&path, mark_of(experiment) + &files.concat())
            .with_context(|| format!("writing {}", path.display()))?;
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.insert(key(experiment), out.to_owned());
        Ok(())
    }
}

/// What is beside the results of this experiment's run.
fn mark_of(experiment: &Experiment) -> String {
    format!("{:016x} {}\n", key(experiment), terrace_identity::build().sources)
}

/// Identifies a run: equal for experiments whose runs are the same.
fn key(experiment: &Experiment) -> u64 {
    // The names of a run do not affect it.
    let (name, description) = (String::new(), String::new());
    let nameless = Experiment { name, description, ..experiment.clone() };
    let mut hash = StableHash::new();
    hash.add(format!("{nameless:?}").as_bytes());
    hash.value()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(name: &str, policy: &str) -> Experiment {
        let text = format!(
            "name = '{name}'\nperiod_ms = 5000\nperiods = 3\n[[groups]]\nname = 'g'\npolicy = \
             '{policy}'\nfast_ratio = 0.5\nworkload = {{ kind = 'lru-favor' }}"
        );
        Experiment::parse(&text, PathBuf::from(".")).unwrap()
    }

    #[test]
    fn a_second_command_is_refused_until_the_first_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let first = RunCache::open(folder.path()).unwrap();
        let refused = RunCache::open(folder.path()).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("another command") && refused.contains("--out"), "{refused}");
        drop(first);
        assert!(RunCache::open(folder.path()).is_ok());
    }

    #[test]
    fn a_run_is_known_by_what_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let run_cache = RunCache::open(folder.path()).unwrap();
        let out = folder.path();
        run_cache.was_run(&experiment("fig2", "lru"), out).unwrap();
        let known = |e| run_cache.run_before(&e);
        assert_eq!(known(experiment("fig10", "lru")).as_deref(), Some(out));
        assert_eq!(known(experiment("fig10", "lfu")), None);
        // By the next command, too, until the results change.
        drop(run_cache);
        let next = RunCache::open(folder.path()).unwrap();
        assert_eq!(next.run_before(&experiment("fig2", "lru")), None);
        assert!(next.was_left(&experiment("fig10", "lru"), out));
        assert!(!next.was_left(&experiment("fig10", "lfu"), out));
        std::fs::write(out.join("runs.parquet"), "").unwrap();
        next.was_run(&experiment("fig2", "lru"), out).unwrap();
        assert!(next.was_left(&experiment("fig10", "lru"), out));
        std::fs::remove_file(out.join("runs.parquet")).unwrap();
        assert!(!next.was_left(&experiment("fig10", "lru"), out), "its results are gone");
        next.changes(out).unwrap();
        assert!(!next.was_left(&experiment("fig10", "lru"), out));
    }
}

//! What a run changed on the host and how to take it back, written down *before* each change, so
//! that whoever finds the journal can restore the host: the run itself, its guard, or the next
//! start.
//!
//! A journal is one small JSON file, replaced as a whole (written beside, synced, renamed). Taking
//! back goes through it from the last entry to the first; each step is harmless when done twice
//! or when the change itself was never made.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::damon;
use crate::files::{self, FileError};
use crate::trace;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// A setting was written over.
    Setting {
        /// Its file.
        path: PathBuf,
        /// What it held and will hold again.
        old: String,
    },
    /// DAMON's threads were taken.
    Kdamonds {
        /// The folder `kdamonds`.
        path: PathBuf,
        /// Their number before.
        old: u32,
    },
    /// A trace instance was made.
    TraceInstance {
        /// Its folder.
        path: PathBuf,
    },
    /// A control group was made.
    Cgroup {
        /// Its folder.
        path: PathBuf,
        /// Where processes go that are still in it.
        home: PathBuf,
    },
    /// A file system was mounted.
    Mount {
        /// Where.
        path: PathBuf,
    },
}

/// The journal of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// Tells one run from another: a guard takes back only what its own run changed.
    pub run: String,
    /// What was changed, in order.
    pub changes: Vec<Change>,
}

/// How long taking back waits for what is still in use, such as a trace file of a process that is
/// just ending.
const PATIENCE: Duration = Duration::from_secs(3);

impl Journal {
    /// Where the journal stands in a run folder.
    pub fn path(run_folder: &Path) -> PathBuf {
        run_folder.join("journal.json")
    }

    /// Reads a journal; `None` when there is none.
    pub fn load(path: &Path) -> Result<Option<Self>, FileError> {
        files::read(path)?
            .map(|text| {
                serde_json::from_str(&text).map_err(|e| {
                    let got = format!("{e} in {text}");
                    FileError::malformed(path, &got, "a journal of this version of Terrace")
                })
            })
            .transpose()
    }

    /// Writes it so that either the old or the new one is found, whatever happens.
    pub fn save(&self, path: &Path) -> Result<(), FileError> {
        let beside = path.with_extension("new");
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&beside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, path)?;
            match path.parent() {
                Some(folder) => File::open(folder)?.sync_all(),
                None => Ok(()),
            }
        };
        write().map_err(|source| FileError::Write {
            path: path.to_owned(),
            value: "the journal".to_owned(),
            source,
        })
    }

    /// Takes back all changes, the last first. What cannot be taken back stays in the journal,
    /// which is kept; otherwise it is removed. Gives what failed.
    pub fn restore(mut self, path: &Path) -> Vec<FileError> {
        let mut failed = Vec::new();
        let mut kept = Vec::new();
        while let Some(change) = self.changes.pop() {
            if let Err(e) = take_back(&change) {
                failed.push(e);
                kept.push(change);
            }
        }
        kept.reverse();
        self.changes = kept;
        let ended = if self.changes.is_empty() {
            match fs::remove_file(path) {
                Err(e) if !files::is_gone(&e) => Err(FileError::Write {
                    path: path.to_owned(),
                    value: "removal".to_owned(),
                    source: e,
                }),
                _ => Ok(()),
            }
        } else {
            self.save(path)
        };
        failed.extend(ended.err());
        failed
    }
}

fn take_back(change: &Change) -> Result<(), FileError> {
    match change {
        Change::Setting { path, old } => match files::read(path)? {
            // Gone with its feature or never there: nothing to put right.
            None => Ok(()),
            Some(now) if setting_value(&now) == old => Ok(()),
            Some(_) => files::write(path, old),
        },
        Change::Kdamonds { path, old } => {
            damon::turn_all_off(path)?;
            let number: Option<u32> = files::read_number(&path.join("nr_kdamonds"))?;
            if number.is_some_and(|n| n != *old) { damon::set_threads(path, *old) } else { Ok(()) }
        }
        Change::TraceInstance { path } => while_busy(|| trace::remove(path)),
        Change::Cgroup { path, home } => {
            let group = Cgroup::at(path);
            while_busy(|| group.remove(home))
        }
        Change::Mount { path } => while_busy(|| unmount(path)),
    }
}

fn unmount(path: &Path) -> Result<(), FileError> {
    match rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()) {
        Ok(()) => Ok(()),
        // Not mounted: the change was written down and never made, or is taken back already.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(FileError::Write {
            path: path.to_owned(),
            value: "unmounting".to_owned(),
            source: e.into(),
        }),
    }
}

/// Again and again for a while, as long as the kernel says that it is busy.
fn while_busy(mut act: impl FnMut() -> Result<(), FileError>) -> Result<(), FileError> {
    let begin = Instant::now();
    loop {
        match act() {
            Err(e) if e.errno() == Some(libc::EBUSY) && begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

/// The value of a setting as it is written back. A choice such as `always [madvise] never` reads
/// as all choices and is written as the one in brackets.
pub fn setting_value(text: &str) -> &str {
    let text = text.trim();
    match (text.find('['), text.find(']')) {
        (Some(from), Some(to)) if from < to => &text[from + 1..to],
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use proptest::prelude::*;

    fn setting(path: &Path, old: &str) -> Change {
        Change::Setting { path: path.to_owned(), old: old.to_owned() }
    }

    #[test]
    fn changes_are_taken_back_from_the_last_to_the_first() {
        let (keep, roots) = folder(&[
            ("sys/a", "2"),
            ("sys/thp", "[always] madvise never\n"),
            ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "2\n"),
            ("sys/kernel/mm/damon/admin/kdamonds/0/state", "on\n"),
            ("sys/fs/cgroup/cgroup.procs", ""),
        ]);
        let a = roots.sys.join("a");
        let instance = roots.tracing().join("instances/terrace");
        let group = roots.cgroup().join("terrace");
        for made in [&instance, &group] {
            fs::create_dir_all(made).unwrap();
        }
        let journal = Journal {
            run: "1".into(),
            changes: vec![
                setting(&a, "0"),
                setting(&a, "1"),
                setting(&roots.sys.join("thp"), "madvise"),
                setting(&roots.sys.join("gone"), "1"),
                Change::Kdamonds { path: roots.kdamonds(), old: 0 },
                Change::TraceInstance { path: instance.clone() },
                Change::Cgroup { path: group.clone(), home: roots.cgroup() },
            ],
        };
        let path = keep.path().join("journal.json");
        journal.save(&path).unwrap();
        let found = Journal::load(&path).unwrap().unwrap();
        assert_eq!(found, journal);
        let failed = found.restore(&path);
        assert!(failed.is_empty(), "{failed:?}");
        let get = |file: &str| fs::read_to_string(roots.sys.join(file)).unwrap();
        assert_eq!(get("a"), "0");
        assert_eq!(get("thp"), "madvise");
        assert_eq!(get("kernel/mm/damon/admin/kdamonds/0/state"), "off");
        assert_eq!(get("kernel/mm/damon/admin/kdamonds/nr_kdamonds"), "0");
        assert!(!instance.exists() && !group.exists() && !path.exists());
        // Once more, as when a guard was killed after its work: nothing to do, nothing wrong.
        assert!(journal.restore(&path).is_empty());
    }

    #[test]
    fn what_cannot_be_taken_back_stays_in_the_journal() {
        let (keep, roots) = folder(&[("sys/dir/file", ""), ("sys/a", "2")]);
        let path = keep.path().join("journal.json");
        // A directory with something in it is not removed.
        let stuck = Change::TraceInstance { path: roots.sys.join("dir") };
        let journal = Journal {
            run: "1".into(),
            changes: vec![stuck.clone(), setting(&roots.sys.join("a"), "1")],
        };
        journal.save(&path).unwrap();
        let failed = journal.restore(&path);
        assert_eq!(failed.len(), 1);
        assert!(failed[0].to_string().contains("sys/dir"));
        assert_eq!(Journal::load(&path).unwrap().unwrap().changes, [stuck]);
        assert_eq!(fs::read_to_string(roots.sys.join("a")).unwrap(), "1");
    }

    #[test]
    fn a_value_in_brackets_is_the_one_chosen() {
        assert_eq!(setting_value("always [madvise] never\n"), "madvise");
        assert_eq!(setting_value("0x0007\n"), "0x0007");
        assert_eq!(setting_value("]["), "][");
    }

    proptest! {
        #[test]
        fn any_text_is_a_journal_or_an_error(text in "[{}\\[\\]\":a-z,0-9 ]{0,60}") {
            let (keep, _) = folder(&[]);
            let path = keep.path().join("journal.json");
            fs::write(&path, &text).unwrap();
            let _ = Journal::load(&path);
            setting_value(&text);
        }
    }
}

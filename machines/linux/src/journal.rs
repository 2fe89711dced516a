//! Changes of a run to the host and how to undo them, written *before* each change, so that whoever
//! finds the journal can restore the host: the run itself, its guard, or the next start.
//!
//! Only values that are still as the run has set them are restored: a setting that an administrator
//! has changed meanwhile stays, and so do DAMON's threads once another program has taken them. And
//! only settings that Terrace can change ([`Roots::settings`]): a journal that names any other is
//! refused.
//!
//! A journal is one small JSON file, replaced as a whole (written beside, synced, renamed).
//! Restoring goes through it from the last entry to the first; each step is harmless when done
//! twice or when the change itself was never made.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::damon;
use crate::files::{self, FileError};
use crate::roots::Roots;
use crate::trace;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// A setting was overwritten.
    Setting {
        /// Its file.
        path: PathBuf,
        /// Its value before.
        old: String,
        /// The value set: if the file has another value later, someone has changed it, and it
        /// stays. Missing in older journals.
        #[serde(default)]
        new: Option<String>,
    },
    /// DAMON's threads were taken.
    Kdamonds {
        /// The folder `kdamonds`.
        path: PathBuf,
        /// Their number before.
        old: u32,
        /// The number that was taken.
        #[serde(default)]
        new: Option<u32>,
        /// The operations they were set to; `None` for those of trackers.
        #[serde(default)]
        operations: Option<String>,
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
        /// Group to which remaining processes are moved.
        #[serde(alias = "home")]
        origin: PathBuf,
    },
    /// A file system was mounted.
    Mount {
        /// Its mount point.
        path: PathBuf,
    },
}

/// The journal of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// Identifies the run: a guard restores only the changes of its own run.
    pub run: String,
    /// The changes, in order.
    pub changes: Vec<Change>,
}

/// How long restoring waits for objects in use, such as a trace file of a process that is just
/// ending.
const PATIENCE: Duration = Duration::from_secs(3);

impl Journal {
    /// Path of the journal in a run folder.
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

    /// Undoes all changes that are still in force, the last first. Changes that cannot be undone
    /// stay in the journal, which is kept; otherwise it is removed. Returns the errors.
    pub fn restore(mut self, path: &Path) -> Vec<FileError> {
        let roots = Roots::of_run(path.parent().unwrap_or(Path::new("/")));
        let mut failed = Vec::new();
        let mut kept = Vec::new();
        while let Some(change) = self.changes.pop() {
            let taken_back = if is_ours(&roots, &change) {
                match self.is_passed_on(&change) {
                    true => Ok(()),
                    false => take_back(&change),
                }
            } else {
                let got = serde_json::to_string(&change).unwrap_or_default();
                Err(FileError::malformed(path, &got, "only what Terrace changes on a host"))
            };
            if let Err(e) = taken_back {
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

impl Journal {
    /// Whether a setting that was changed before, too, is left for that change to take back: its value
    /// in between need not be one that the kernel gives again. A pool of pages grows as far as there is
    /// memory; with another value the setting would seem to be changed by somebody else.
    fn is_passed_on(&mut self, change: &Change) -> bool {
        let Change::Setting { path, old, new: Some(new) } = change else { return false };
        if path.ends_with(SUBTREE_CONTROL) {
            return false;
        }
        let before = self.changes.iter_mut().rev().find_map(|before| match before {
            Change::Setting { path: of, new, .. } if of == path => Some(new),
            _ => None,
        });
        let (Some(before), Ok(Some(now))) = (before, files::read(path)) else { return false };
        let now = setting_value(&now);
        let is_ours = now == old || now == new;
        if is_ours {
            *before = Some(now.to_owned());
        }
        is_ours
    }
}

/// Whether a change is one that Terrace makes.
fn is_ours(roots: &Roots, change: &Change) -> bool {
    let below = |path: &Path, root: &Path| {
        let plain =
            path.components().all(|c| matches!(c, Component::Normal(_) | Component::RootDir));
        plain && path.starts_with(root)
    };
    match change {
        Change::Setting { path, .. } => {
            let of_groups = path.ends_with(SUBTREE_CONTROL) && below(path, &roots.cgroup());
            of_groups || roots.settings().contains(path) || roots.is_huge_page_pool(path)
        }
        Change::Kdamonds { path, .. } => *path == roots.kdamonds(),
        Change::TraceInstance { path } => {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            path.parent() == Some(&roots.tracing().join("instances")) && name.starts_with("terrace")
        }
        Change::Cgroup { path, origin } => {
            let root = roots.cgroup();
            path != &root && below(path, &root) && below(origin, &root)
        }
        Change::Mount { path } => *path == roots.tracing(),
    }
}

/// The file by which a control group enables controllers for those below it. It takes commands.
pub(crate) const SUBTREE_CONTROL: &str = "cgroup.subtree_control";

/// Whether a setting with this text still has the value that was set.
fn holds(path: &Path, now: &str, new: &str) -> bool {
    if path.ends_with(SUBTREE_CONTROL) {
        let controller = new.trim_start_matches('+');
        return now.split_whitespace().any(|c| c == controller);
    }
    setting_value(now) == new
}

fn take_back(change: &Change) -> Result<(), FileError> {
    match change {
        Change::Setting { path, old, new } => match files::read(path)? {
            // Gone with its feature, or never existed: nothing to restore.
            None => Ok(()),
            Some(now) if setting_value(&now) == old => Ok(()),
            // No setting is empty: a write was interrupted.
            Some(now) if now.trim().is_empty() => files::write(path, old),
            Some(now) if new.as_ref().is_some_and(|new| !holds(path, &now, new)) => {
                let (path, now) = (path.display(), setting_value(&now).to_owned());
                tracing::warn!(%path, now, "this setting was changed meanwhile: it stays");
                Ok(())
            }
            Some(_) => files::write(path, old),
        },
        Change::Kdamonds { path, old, new, operations } => {
            let number: Option<u32> = files::read_number(&path.join("nr_kdamonds"))?;
            let Some(number) = number.filter(|n| n != old) else { return Ok(()) };
            let changed = new.is_some_and(|new| new != number);
            if changed || damon::has_threads_of_others(path, operations.as_deref())? {
                tracing::warn!(number, "another program has DAMON's threads now: they stay");
                return Ok(());
            }
            damon::turn_all_off(path)?;
            damon::set_threads(path, *old)
        }
        Change::TraceInstance { path } => while_busy(|| trace::remove(path)),
        Change::Cgroup { path, origin } => {
            let group = Cgroup::at(path);
            while_busy(|| group.remove(origin))
        }
        Change::Mount { path } => while_busy(|| unmount(path)),
    }
}

fn unmount(path: &Path) -> Result<(), FileError> {
    match rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()) {
        Ok(()) => Ok(()),
        // Not mounted: the change was journaled and never made, or is undone already.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(FileError::Write {
            path: path.to_owned(),
            value: "unmounting".to_owned(),
            source: e.into(),
        }),
    }
}

/// Retries for a while, as long as the kernel reports that it is busy.
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

/// The value of a setting in the form for writing. A choice such as `always [madvise] never` reads
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

    fn setting(path: &Path, old: &str, new: &str) -> Change {
        Change::Setting { path: path.to_owned(), old: old.to_owned(), new: Some(new.to_owned()) }
    }

    fn get(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn changes_are_taken_back_from_the_last_to_the_first() {
        let (_keep, roots) = folder(&[
            ("proc/sys/kernel/numa_balancing", "2"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
            ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "2\n"),
            ("sys/kernel/mm/damon/admin/kdamonds/0/state", "on\n"),
            ("sys/fs/cgroup/cgroup.procs", ""),
        ]);
        let a = roots.numa_balancing();
        let instance = roots.tracing().join("instances/terrace");
        let group = roots.cgroup().join("terrace");
        for made in [&instance, &group] {
            fs::create_dir_all(made).unwrap();
        }
        let journal = Journal {
            run: "1".into(),
            changes: vec![
                setting(&a, "0", "1"),
                setting(&a, "1", "2"),
                setting(&roots.huge_pages(), "madvise", "always"),
                setting(&roots.demotion(), "true", "false"),
                Change::Kdamonds { path: roots.kdamonds(), old: 0, new: Some(2), operations: None },
                Change::TraceInstance { path: instance.clone() },
                Change::Cgroup { path: group.clone(), origin: roots.cgroup() },
            ],
        };
        fs::create_dir_all(&roots.run).unwrap();
        let path = Journal::path(&roots.run);
        journal.save(&path).unwrap();
        let found = Journal::load(&path).unwrap().unwrap();
        assert_eq!(found, journal);
        let failed = found.restore(&path);
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(get(&a), "0");
        assert_eq!(get(&roots.huge_pages()), "madvise");
        assert_eq!(get(&roots.kdamonds().join("0/state")), "off");
        assert_eq!(get(&roots.kdamonds().join("nr_kdamonds")), "0");
        assert!(!instance.exists() && !group.exists() && !path.exists());
        // Once more, as when a guard was killed after its work: no effect, no error.
        assert!(journal.restore(&path).is_empty());
    }

    #[test]
    fn a_setting_that_was_changed_twice_does_not_go_through_the_value_in_between() {
        let (_keep, roots) = folder(&[("proc/sys/kernel/numa_balancing", "1")]);
        let path = roots.numa_balancing();
        // Killed before or after the second change was made: the value in between is never written.
        for value in ["1", "2"] {
            fs::write(&path, value).unwrap();
            let [first, second] = [setting(&path, "0", "2"), setting(&path, "2", "1")];
            let mut journal = Journal { run: "1".into(), changes: vec![first] };
            assert!(journal.is_passed_on(&second));
            assert_eq!(
                (get(&path).as_str(), &journal.changes[..]),
                (value, &[setting(&path, "0", value)][..])
            );
            assert!(!journal.is_passed_on(&setting(&roots.demotion(), "true", "false")));
        }
        // Somebody else has changed it.
        fs::write(&path, "3").unwrap();
        let mut journal = Journal { run: "1".into(), changes: vec![setting(&path, "0", "2")] };
        assert!(!journal.is_passed_on(&setting(&path, "2", "1")));
    }

    #[test]
    fn what_cannot_be_taken_back_stays_in_the_journal() {
        let (_keep, roots) = folder(&[
            ("sys/kernel/tracing/instances/terrace-1/file", ""),
            ("proc/sys/kernel/numa_balancing", "2"),
            ("run/.keep", ""),
        ]);
        let path = Journal::path(&roots.run);
        // A directory with something in it is not removed.
        let stuck = Change::TraceInstance { path: roots.tracing().join("instances/terrace-1") };
        let journal = Journal {
            run: "1".into(),
            changes: vec![stuck.clone(), setting(&roots.numa_balancing(), "1", "2")],
        };
        journal.save(&path).unwrap();
        let failed = journal.restore(&path);
        assert_eq!(failed.len(), 1);
        assert!(failed[0].to_string().contains("terrace-1"));
        assert_eq!(Journal::load(&path).unwrap().unwrap().changes, [stuck]);
        assert_eq!(get(&roots.numa_balancing()), "1");
    }

    #[test]
    fn what_somebody_has_changed_meanwhile_stays() {
        let base = "sys/kernel/mm/damon/admin/kdamonds";
        let (_keep, roots) = folder(&[
            ("proc/sys/kernel/numa_balancing", "2\n"),
            ("sys/kernel/mm/numa/demotion_enabled", "false\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("sys/fs/cgroup/cgroup.subtree_control", "cpu\n"),
            // The administrator's own thread: a single one, and not ours.
            (&format!("{base}/nr_kdamonds"), "1\n"),
            (&format!("{base}/0/state"), "on\n"),
            ("run/.keep", ""),
        ]);
        let path = Journal::path(&roots.run);
        let control = roots.cgroup().join(SUBTREE_CONTROL);
        let changes = vec![
            setting(&roots.numa_balancing(), "1", "0"),
            setting(&roots.demotion(), "true", "false"),
            setting(&roots.huge_pages(), "never", "always"),
            setting(&control, "-memory", "+memory"),
            Change::Kdamonds { path: roots.kdamonds(), old: 0, new: Some(16), operations: None },
        ];
        let journal = Journal { run: "1".into(), changes };
        journal.save(&path).unwrap();
        assert!(journal.clone().restore(&path).is_empty());
        assert_eq!(get(&roots.numa_balancing()), "2\n");
        assert_eq!(get(&roots.demotion()), "true");
        assert_eq!(get(&roots.huge_pages()), "always [madvise] never\n");
        assert_eq!(get(&control), "cpu\n");
        assert_eq!(get(&roots.kdamonds().join("0/state")), "on\n");
        assert_eq!(get(&roots.kdamonds().join("nr_kdamonds")), "1\n");
        assert!(!path.exists());

        // As many as ours, with other operations.
        fs::write(roots.kdamonds().join("nr_kdamonds"), "16\n").unwrap();
        fs::create_dir_all(roots.kdamonds().join("0/contexts/0")).unwrap();
        fs::write(roots.kdamonds().join("0/contexts/0/operations"), "paddr\n").unwrap();
        assert!(journal.restore(&path).is_empty());
        assert_eq!(get(&roots.kdamonds().join("0/state")), "on\n");
    }

    #[test]
    fn a_journal_that_names_what_terrace_never_changes_is_refused() {
        let (_keep, roots) = folder(&[
            ("sys/kernel/precious", "1"),
            ("sys/kernel/tracing/instances/perf/file", ""),
            ("run/.keep", ""),
        ]);
        let path = Journal::path(&roots.run);
        let precious = roots.sys.join("kernel/precious");
        let changes = vec![
            setting(&precious, "0", "1"),
            setting(&roots.cgroup().join("../../kernel").join(SUBTREE_CONTROL), "0", "1"),
            Change::TraceInstance { path: roots.tracing().join("instances/perf") },
            Change::Cgroup { path: roots.cgroup(), origin: roots.cgroup() },
            Change::Mount { path: roots.proc.clone() },
            Change::Kdamonds { path: roots.sys.clone(), old: 0, new: None, operations: None },
        ];
        let journal = Journal { run: "1".into(), changes: changes.clone() };
        journal.save(&path).unwrap();
        let failed = journal.restore(&path);
        assert_eq!(failed.len(), changes.len());
        assert!(failed[0].to_string().contains("only what Terrace changes"), "{}", failed[0]);
        assert_eq!(get(&precious), "1");
        assert!(roots.tracing().join("instances/perf").exists());
        assert_eq!(Journal::load(&path).unwrap().unwrap().changes, changes);
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

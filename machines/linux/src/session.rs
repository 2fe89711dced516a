//! The exclusive right to change this host, for the length of a run: holds the lock, journals every
//! change before it is made, keeps a guard, and restores everything at the end.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::cgroup::{self, Cgroup};
use crate::damon;
use crate::files::{self, FileError};
use crate::guard::{Guard, GuardCommand, GuardError};
use crate::journal::{Change, Journal, SUBTREE_CONTROL, setting_value};
use crate::lock::{Lock, LockError};
use crate::roots::Roots;
use crate::trace;

/// Why a session could not be opened, or a change failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Another run has the lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A file could not be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no guard, so nothing was changed.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// A run that died left a change that cannot be undone.
    #[error(
        "an earlier run left a change that cannot be undone ({source}): undo it by hand and remove {}",
        journal.display()
    )]
    Leftover {
        /// The first error.
        source: FileError,
        /// The journal with the changes.
        journal: PathBuf,
    },
    /// The run has restored everything already.
    #[error("the run has ended; expected no change after its end: open the host anew")]
    Ended,
}

/// Time until another guard is started after one that did not become ready.
const RESTART: Duration = Duration::from_secs(5);
/// How long a start waits for the guard of a run that has just ended.
const GUARD_PATIENCE: Duration = Duration::from_secs(30);

/// A run's hold on the host.
#[derive(Debug)]
pub struct Session {
    roots: Roots,
    guard: Option<GuardCommand>,
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    journal: Journal,
    path: PathBuf,
    guard: Option<Guard>,
    /// A replacement guard that is being started.
    successor: Option<Receiver<Result<Guard, GuardError>>>,
    /// Guards that died during the run.
    guard_deaths: u64,
    /// Earliest start of the next replacement.
    next_start: Option<Instant>,
    _lock: Lock,
}

/// State of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GuardHealth {
    /// Guards that died during the run.
    pub deaths: u64,
    /// Whether changes are guarded; also true if nothing was changed or no guard was requested.
    pub is_guarded: bool,
}

impl Session {
    /// Opens a session. Changes that an earlier run left are undone first. The guard is started
    /// before the first change; without a command there is none, and the changes of a run that is
    /// killed are undone at the next start.
    pub fn open(roots: &Roots, guard: Option<GuardCommand>) -> Result<Self, SessionError> {
        let lock = Lock::take_patiently(&roots.run, GUARD_PATIENCE)?;
        let path = Journal::path(&roots.run);
        if let Some(leftover) = Journal::load(&path)? {
            tracing::warn!(run = leftover.run, "undoing changes that an earlier run left");
            if let Some(source) = leftover.restore(&path).into_iter().next() {
                return Err(SessionError::Leftover { source, journal: path });
            }
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let run = format!("{}-{}", std::process::id(), since.as_nanos());
        let journal = Journal { run, changes: Vec::new() };
        let state = State {
            journal,
            path,
            guard: None,
            successor: None,
            guard_deaths: 0,
            next_start: None,
            _lock: lock,
        };
        Ok(Session { roots: roots.clone(), guard, state: Mutex::new(Some(state)) })
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Journals a change, with the guard running, so that it may be made.
    fn announce(&self, change: Change) -> Result<(), SessionError> {
        let mut state = self.state();
        let state = state.as_mut().ok_or(SessionError::Ended)?;
        if let Some(successor) = state.successor.take() {
            state.guard = successor.recv().ok().and_then(Result::ok);
        }
        if let (None, Some(command)) = (&state.guard, &self.guard) {
            state.guard = Some(Guard::start(command, &state.path, &state.journal.run)?);
        }
        state.journal.changes.push(change);
        if let Err(e) = state.journal.save(&state.path) {
            state.journal.changes.pop();
            return Err(e.into());
        }
        Ok(())
    }

    /// Journals a change that is the same however often it is made.
    fn announce_once(&self, change: &Change) -> Result<(), SessionError> {
        let known = |state: &State| state.journal.changes.contains(change);
        if self.state().as_ref().is_some_and(known) {
            return Ok(());
        }
        self.announce(change.clone())
    }

    /// Removes a change that is undone already.
    fn forget(&self, change: &Change) -> Result<(), SessionError> {
        if let Some(state) = self.state().as_mut()
            && let Some(at) = state.journal.changes.iter().rposition(|c| c == change)
        {
            state.journal.changes.remove(at);
            state.journal.save(&state.path)?;
        }
        Ok(())
    }

    /// Whether the guard runs. One that has died is replaced, without waiting for the new one: a
    /// run calls this repeatedly.
    pub fn watch_guard(&self) -> GuardHealth {
        let mut state = self.state();
        let (Some(state), Some(command)) = (state.as_mut(), &self.guard) else {
            return GuardHealth { deaths: 0, is_guarded: true };
        };
        if let Some(successor) = &state.successor {
            match successor.try_recv() {
                Ok(Ok(guard)) => {
                    tracing::info!(pid = guard.pid(), "another guard has started");
                    (state.guard, state.successor) = (Some(guard), None);
                }
                Ok(Err(error)) => {
                    tracing::error!(%error, "no guard: the changes of a run that is killed now are undone at the next start");
                    (state.successor, state.next_start) = (None, Some(Instant::now() + RESTART));
                }
                Err(TryRecvError::Disconnected) => state.successor = None,
                Err(TryRecvError::Empty) => {}
            }
        }
        if let Some(dead) = state.guard.take_if(|guard| !guard.is_alive()) {
            state.guard_deaths += 1;
            let deaths = state.guard_deaths;
            tracing::error!(pid = dead.pid(), deaths, "the guard has died; another is started");
        }
        let is_needed = state.guard.is_none() && !state.journal.changes.is_empty();
        let is_due = state.next_start.is_none_or(|due| Instant::now() >= due);
        if is_needed && is_due && state.successor.is_none() {
            let (give, successor) = mpsc::channel();
            let (command, path, run) =
                (command.clone(), state.path.clone(), state.journal.run.clone());
            // On a thread, because a guard takes time to start; if the run ends first, the guard is
            // dropped there and ends.
            let started = std::thread::Builder::new().name("guard".to_owned()).spawn(move || {
                let _ = give.send(Guard::start(&command, &path, &run));
            });
            match started {
                Ok(_) => state.successor = Some(successor),
                Err(_) => state.next_start = Some(Instant::now() + RESTART),
            }
        }
        GuardHealth { deaths: state.guard_deaths, is_guarded: !is_needed }
    }

    /// Sets a kernel setting. One that has the value already is not changed.
    pub fn set(&self, path: &Path, value: &str) -> Result<(), SessionError> {
        let text = files::read(path)?.ok_or_else(|| FileError::Missing {
            path: path.to_owned(),
            remedy: "expected a kernel that has this setting",
        })?;
        let old = setting_value(&text);
        if old == value {
            return Ok(());
        }
        self.announce(Change::Setting {
            path: path.to_owned(),
            old: old.to_owned(),
            new: Some(value.to_owned()),
        })?;
        Ok(files::write(path, value)?)
    }

    /// Sets a kernel setting that [`Session::give_back`] puts back before the end; nothing where it has
    /// the value already.
    pub(crate) fn borrow(&self, path: &Path, value: &str) -> Result<Option<Change>, SessionError> {
        let text = files::read(path)?.ok_or_else(|| FileError::Missing {
            path: path.to_owned(),
            remedy: "expected a kernel that has this setting",
        })?;
        let old = setting_value(&text).to_owned();
        if old == value {
            return Ok(None);
        }
        let (path, new) = (path.to_owned(), Some(value.to_owned()));
        let change = Change::Setting { path: path.clone(), old, new };
        self.announce(change.clone())?;
        if let Err(error) = files::write(&path, value) {
            self.forget(&change)?;
            return Err(error.into());
        }
        Ok(Some(change))
    }

    /// Puts a setting back, unless somebody else has changed it meanwhile. Nothing once the run has
    /// ended: its end has put everything back.
    pub(crate) fn give_back(&self, change: &Change) -> Result<(), SessionError> {
        let is_ours = self.state().as_ref().is_some_and(|s| s.journal.changes.contains(change));
        let Change::Setting { path, old, new: Some(new) } = change else { return Ok(()) };
        if !is_ours {
            return Ok(());
        }
        if files::read(path)?.is_some_and(|text| setting_value(&text) == new) {
            files::write(path, old)?;
        }
        self.forget(change)
    }

    /// Number and operations of DAMON's threads that this run has taken, if it has.
    fn taken_kdamonds(&self) -> Option<(u32, Option<String>)> {
        let state = self.state();
        let of = |change: &Change| match change {
            Change::Kdamonds { new, operations, .. } => Some((*new.as_ref()?, operations.clone())),
            _ => None,
        };
        state.as_ref()?.journal.changes.iter().find_map(of)
    }

    /// Whether DAMON's threads are still those that this run has taken: any program with the rights
    /// can turn them off and take others. True if none were taken.
    pub fn has_kdamonds(&self) -> Result<bool, FileError> {
        let Some((taken, operations)) = self.taken_kdamonds() else { return Ok(true) };
        let is_number = damon::threads(&self.roots)? == Some(taken);
        Ok(is_number
            && !damon::has_threads_of_others(&self.roots.kdamonds(), operations.as_deref())?)
    }

    /// Takes DAMON's interface with this many threads for trackers; again if another program has
    /// used it meanwhile and released it.
    pub fn take_kdamonds(&self, threads: u32) -> Result<(), SessionError> {
        self.take_kdamonds_for(threads, None)
    }

    /// [`Self::take_kdamonds`] for threads with other operations of DAMON, by name.
    pub fn take_kdamonds_for(
        &self,
        threads: u32,
        operations: Option<&str>,
    ) -> Result<(), SessionError> {
        let path = self.roots.kdamonds();
        if self.taken_kdamonds().is_some() && self.has_kdamonds()? {
            return Ok(());
        }
        let old = damon::threads(&self.roots)?.ok_or_else(|| FileError::Missing {
            path: path.join("nr_kdamonds"),
            remedy: "expected a kernel with CONFIG_DAMON_SYSFS; boot one",
        })?;
        if old != 0 {
            // They appeared between the search for conflicts and now, or have replaced ours.
            return Err(FileError::Malformed {
                path: path.join("nr_kdamonds"),
                got: old.to_string(),
                expected: "0: DAMON is used by another program, stop that user",
            }
            .into());
        }
        let operations = operations.map(str::to_owned);
        let change = Change::Kdamonds { path: path.clone(), old, new: Some(threads), operations };
        self.announce_once(&change)?;
        Ok(damon::set_threads(&path, threads)?)
    }

    /// Makes a trace instance. One with this name was left by a failed attempt of this run, and is
    /// removed first.
    pub fn make_trace_instance(&self, name: &str) -> Result<PathBuf, SessionError> {
        let path = self.roots.tracing().join("instances").join(name);
        let change = Change::TraceInstance { path: path.clone() };
        self.announce_once(&change)?;
        trace::remove(&path)?;
        if let Err(e) = files::make_folder(&path) {
            self.forget(&change)?;
            return Err(e.into());
        }
        Ok(path)
    }

    /// Removes a trace instance before the end; its files must be closed.
    pub fn remove_trace_instance(&self, path: &Path) -> Result<(), SessionError> {
        trace::remove(path)?;
        self.forget(&Change::TraceInstance { path: path.to_owned() })
    }

    /// Makes a control group below the control-group root, with the memory controller if possible.
    pub fn make_cgroup(&self, name: &Path) -> Result<Cgroup, SessionError> {
        let group = Cgroup::new(&self.roots, name);
        let origin = cgroup::own(&self.roots)?;
        if group.path().exists() {
            return Err(FileError::Malformed {
                path: group.path().to_owned(),
                got: "a group that exists".to_owned(),
                expected: "a name that is free",
            }
            .into());
        }
        self.enable_memory_below(group.path().parent().unwrap_or(Path::new("/")))?;
        self.announce(Change::Cgroup { path: group.path().to_owned(), origin })?;
        group.create()?;
        Ok(group)
    }

    /// Enables the memory controller for the groups below `parent`, if the kernel can.
    fn enable_memory_below(&self, parent: &Path) -> Result<(), SessionError> {
        let has = |file: &str| -> Result<bool, FileError> {
            let text = files::read(&parent.join(file))?.unwrap_or_default();
            Ok(text.split_whitespace().any(|c| c == "memory"))
        };
        if !has("cgroup.controllers")? || has(SUBTREE_CONTROL)? {
            return Ok(());
        }
        // The file takes commands: the opposite command undoes this one.
        let path = parent.join(SUBTREE_CONTROL);
        self.announce(Change::Setting {
            path: path.clone(),
            old: "-memory".to_owned(),
            new: Some("+memory".to_owned()),
        })?;
        Ok(files::write(&path, "+memory")?)
    }

    /// Mounts the trace file system.
    pub fn mount_tracefs(&self) -> Result<(), SessionError> {
        let path = self.roots.tracing();
        let change = Change::Mount { path: path.clone() };
        self.announce(change.clone())?;
        let flags = rustix::mount::MountFlags::NOSUID
            | rustix::mount::MountFlags::NODEV
            | rustix::mount::MountFlags::NOEXEC;
        if let Err(e) = rustix::mount::mount("tracefs", &path, "tracefs", flags, None) {
            self.forget(&change)?;
            let value = "a mounted tracefs".to_owned();
            return Err(FileError::Write { path, value, source: e.into() }.into());
        }
        Ok(())
    }

    /// Restores everything and ends the run. Returns the errors, which stay in the journal for the
    /// next start. A second call has no effect.
    pub fn restore(&self) -> Vec<FileError> {
        let Some(state) = self.state().take() else { return Vec::new() };
        let State { journal, path, guard, _lock, .. } = state;
        let failed = if journal.changes.is_empty() { Vec::new() } else { journal.restore(&path) };
        // The guard ends while the lock is held: it finds nothing to do.
        drop(guard);
        failed
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for error in self.restore() {
            tracing::error!(%error, "not restored");
        }
    }
}

/// Undoes the changes of a run that died together with its guard. Returns the number of changes
/// undone.
pub fn restore_leftover(roots: &Roots) -> Result<usize, SessionError> {
    if !roots.run.exists() {
        return Ok(0);
    }
    let _lock = Lock::take_patiently(&roots.run, GUARD_PATIENCE)?;
    let path = Journal::path(&roots.run);
    let Some(journal) = Journal::load(&path)? else { return Ok(0) };
    let changes = journal.changes.len();
    match journal.restore(&path).into_iter().next() {
        Some(source) => Err(SessionError::Leftover { source, journal: path }),
        None => Ok(changes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{folder, put, put_kdamond};
    use std::fs;

    fn get(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_change_is_in_the_journal_while_it_lasts_and_taken_back_at_the_end() {
        let (_keep, roots) = folder(&[("sys/kernel/mm/lru_gen/enabled", "0x0007\n")]);
        let session = Session::open(&roots, None).unwrap();
        let setting = roots.lru_gen();
        session.set(&setting, "0x0000").unwrap();
        assert_eq!(get(&setting), "0x0000");
        let journal = Journal::load(&Journal::path(&roots.run)).unwrap().unwrap();
        let change = Change::Setting {
            path: setting.clone(),
            old: "0x0007".into(),
            new: Some("0x0000".into()),
        };
        assert_eq!(journal.changes, [change]);
        drop(session);
        assert_eq!(get(&setting), "0x0007");
        assert!(!Journal::path(&roots.run).exists());
    }

    #[test]
    fn a_setting_is_borrowed_many_times_and_the_journal_does_not_grow() {
        let (_keep, roots) = folder(&[("proc/sys/kernel/numa_balancing", "1\n")]);
        let session = Session::open(&roots, None).unwrap();
        let path = roots.numa_balancing();
        session.set(&path, "0").unwrap();
        let journal = || Journal::load(&Journal::path(&roots.run)).unwrap().unwrap().changes.len();
        for _ in 0..3 {
            let change = session.borrow(&path, "3").unwrap().unwrap();
            assert_eq!((get(&path).as_str(), journal()), ("3", 2));
            session.give_back(&change).unwrap();
            assert_eq!((get(&path).as_str(), journal()), ("0", 1));
        }
        // What somebody else has set meanwhile stays.
        let change = session.borrow(&path, "3").unwrap().unwrap();
        fs::write(&path, "2").unwrap();
        session.give_back(&change).unwrap();
        assert_eq!((get(&path).as_str(), journal()), ("2", 1));
        // One that is not given back is put back at the end, and what was set before it too.
        fs::write(&path, "0").unwrap();
        session.borrow(&path, "3").unwrap();
        drop(session);
        assert_eq!(get(&path), "1");
    }

    #[test]
    fn a_mount_that_fails_is_not_in_the_journal() {
        let (_keep, roots) = folder(&[("run/.keep", "")]);
        let session = Session::open(&roots, None).unwrap();
        // There is no folder to mount it at.
        let error = session.mount_tracefs().unwrap_err().to_string();
        assert!(error.contains("a mounted tracefs"), "{error}");
        let journal = Journal::load(&Journal::path(&roots.run)).unwrap();
        assert!(journal.is_none_or(|journal| journal.changes.is_empty()));
    }

    #[test]
    fn a_setting_that_is_right_already_is_not_touched() {
        let (_keep, roots) =
            folder(&[("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n")]);
        let session = Session::open(&roots, None).unwrap();
        session.set(&roots.huge_pages(), "always").unwrap();
        assert_eq!(get(&roots.huge_pages()), "[always] madvise never\n");
        assert!(!Journal::path(&roots.run).exists());
    }

    #[test]
    fn a_second_run_is_refused_and_changes_nothing() {
        let (_keep, roots) = folder(&[("proc/sys/kernel/numa_balancing", "1")]);
        let first = Session::open(&roots, None).unwrap();
        first.set(&roots.numa_balancing(), "2").unwrap();
        let message = Session::open(&roots, None).unwrap_err().to_string();
        assert!(message.contains("another run of Terrace"), "{message}");
        assert!(restore_leftover(&roots).is_err());
        assert_eq!(get(&roots.numa_balancing()), "2");
    }

    #[test]
    fn what_a_dead_run_left_is_taken_back_at_the_next_start_or_by_hand() {
        let (_keep, roots) = folder(&[("proc/sys/kernel/numa_balancing", "2")]);
        fs::create_dir_all(&roots.run).unwrap();
        let change = Change::Setting { path: roots.numa_balancing(), old: "1".into(), new: None };
        let journal = Journal { run: "dead".into(), changes: vec![change] };
        journal.save(&Journal::path(&roots.run)).unwrap();
        assert_eq!(restore_leftover(&roots).unwrap(), 1);
        assert_eq!(get(&roots.numa_balancing()), "1");
        assert_eq!(restore_leftover(&roots).unwrap(), 0);

        fs::write(roots.numa_balancing(), "2").unwrap();
        journal.save(&Journal::path(&roots.run)).unwrap();
        drop(Session::open(&roots, None).unwrap());
        assert_eq!(get(&roots.numa_balancing()), "1");
    }

    #[test]
    fn damons_threads_are_taken_again_once_somebody_else_has_left_them() {
        let (keep, roots) = folder(&[]);
        put_kdamond(keep.path(), 3);
        let put_number = |number: &str| {
            put(keep.path(), "sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", number);
        };
        put_number("0\n");
        let session = Session::open(&roots, None).unwrap();
        assert!(session.has_kdamonds().unwrap());
        session.take_kdamonds(4).unwrap();
        session.take_kdamonds(4).unwrap();
        assert!(session.has_kdamonds().unwrap());
        put_number("1\n");
        assert!(!session.has_kdamonds().unwrap());
        let message = session.take_kdamonds(4).unwrap_err().to_string();
        assert!(message.contains("used by another program"), "{message}");
        put_number("0\n");
        session.take_kdamonds(4).unwrap();
        assert!(session.has_kdamonds().unwrap());
        let journal = Journal::load(&Journal::path(&roots.run)).unwrap().unwrap();
        assert_eq!(journal.changes.len(), 1, "{journal:?}");
        // As many, with other operations.
        put(keep.path(), "sys/kernel/mm/damon/admin/kdamonds/0/state", "on\n");
        put(keep.path(), "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/operations", "paddr\n");
        assert!(!session.has_kdamonds().unwrap());
    }

    #[test]
    fn without_a_guard_that_works_nothing_is_changed() {
        let (_keep, roots) = folder(&[("proc/sys/kernel/numa_balancing", "1")]);
        let guard = GuardCommand { program: "/bin/false".into(), arguments: Vec::new() };
        let session = Session::open(&roots, Some(guard)).unwrap();
        let message = session.set(&roots.numa_balancing(), "2").unwrap_err().to_string();
        assert!(message.contains("guard"), "{message}");
        assert_eq!(get(&roots.numa_balancing()), "1");
        assert!(!Journal::path(&roots.run).exists());
    }

    #[test]
    fn a_journal_that_cannot_be_read_stops_the_start() {
        let (_keep, roots) = folder(&[("run/journal.json", "{ not")]);
        let message = Session::open(&roots, None).unwrap_err().to_string();
        assert!(message.contains("journal.json: got"), "{message}");
    }
}

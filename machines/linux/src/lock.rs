//! One run at a time: a lock file that the kernel frees when its holder ends, so that it is never
//! stale; the identifier in it is for the message only.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// The lock, held.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone is not enough: a child that is just being started has the open file until
        // it executes its program, and would hold the lock for that long.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another run has it.
    #[error(
        "another run of Terrace (process {holder}) changes this host; expected to be the only one: wait for it or stop it"
    )]
    Held {
        /// Its process identifier, if known.
        holder: String,
        /// It only restores the changes of a run that has ended.
        restoring: bool,
    },
    /// The file could not be used.
    #[error("cannot use the lock file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Added by a guard to its identifier.
const RESTORING: &str = "restoring";

impl Lock {
    /// Takes the lock of a run folder, which is created if needed.
    pub fn take(folder: &Path) -> Result<Self, LockError> {
        Self::take_saying(folder, "")
    }

    /// Takes it to restore the changes of a run that has ended: a start meanwhile waits.
    pub fn take_to_restore(folder: &Path) -> Result<Self, LockError> {
        Self::take_saying(folder, RESTORING)
    }

    /// Takes it, waiting for up to `patience` while another process only restores.
    pub fn take_patiently(folder: &Path, patience: Duration) -> Result<Self, LockError> {
        let begin = Instant::now();
        loop {
            match Self::take(folder) {
                Err(LockError::Held { restoring: true, .. }) if begin.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                other => return other,
            }
        }
    }

    fn take_saying(folder: &Path, what: &str) -> Result<Self, LockError> {
        let path = folder.join("lock");
        let error = |source| LockError::File { path: path.clone(), source };
        std::fs::create_dir_all(folder).map_err(error)?;
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(error)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                let holder: String =
                    text.chars().take_while(char::is_ascii_digit).take(10).collect();
                // The holder has not written its identifier yet, or the named process is dead: the
                // lock was taken just now.
                let pid = holder.parse().ok().and_then(Pid::from_raw);
                let alive = pid.is_some_and(|p| test_kill_process(p) != Err(Errno::SRCH));
                let restoring = !alive || text.contains(RESTORING);
                return Err(LockError::Held { holder, restoring });
            }
            Err(e) => return Err(error(e.into())),
        }
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{} {what}", std::process::id())
        };
        write(&mut file).map_err(error)?;
        Ok(Lock { file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_and_shown_who_is_first() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::take(folder.path()).unwrap();
        let message = Lock::take(folder.path()).unwrap_err().to_string();
        assert!(message.contains(&std::process::id().to_string()), "{message}");
        drop(first);
        Lock::take(folder.path()).unwrap();
    }

    #[test]
    fn a_child_that_has_the_open_file_does_not_keep_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::take(folder.path()).unwrap();
        let _inherited = first.file.try_clone().unwrap();
        drop(first);
        Lock::take(folder.path()).unwrap();
    }

    #[test]
    fn a_start_waits_for_a_guard_and_not_for_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let guard = Lock::take_to_restore(folder.path()).unwrap();
        let short = Duration::from_millis(30);
        assert!(Lock::take_patiently(folder.path(), short).is_err());
        let path = folder.path().to_owned();
        let start = std::thread::spawn(move || {
            Lock::take_patiently(&path, Duration::from_secs(30)).is_ok()
        });
        drop(guard);
        assert!(start.join().unwrap());
        let _run = Lock::take(folder.path()).unwrap();
        let begin = Instant::now();
        assert!(Lock::take_patiently(folder.path(), Duration::from_secs(30)).is_err());
        assert!(begin.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_file_left_by_a_run_that_died_is_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("lock"), "1\n").unwrap();
        Lock::take(folder.path()).unwrap();
    }
}

//! The guard: a second process that restores the host when the first dies, however it dies.
//!
//! The run keeps the write end of a pipe and never writes to it; the guard waits for the end of
//! that pipe, which comes when the run ends, by SIGKILL too. Then it restores from the journal. It
//! runs in a session of its own and ignores the signals that end a terminal's processes. It is the
//! same program, started with arguments that call [`guard_main`].

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::files::FileError;
use crate::journal::Journal;
use crate::lock::Lock;
use crate::raw;

/// How to start a guard: the program and its arguments, to which the path of the journal and the
/// name of the run are added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardCommand {
    /// The program.
    pub program: PathBuf,
    /// Arguments that make it call [`guard_main`] with the two that follow them.
    pub arguments: Vec<OsString>,
}

impl GuardCommand {
    /// This program with these arguments, such as a hidden subcommand.
    pub fn this_program<A: Into<OsString>>(
        arguments: impl IntoIterator<Item = A>,
    ) -> std::io::Result<Self> {
        Ok(GuardCommand {
            program: std::env::current_exe()?,
            arguments: arguments.into_iter().map(Into::into).collect(),
        })
    }
}

/// The line that a guard prints when it is ready.
const READY: &str = "terrace guard ready";
/// Time for a guard to start: a slow machine loads a large program.
const START: Duration = Duration::from_secs(60);
/// How long it waits for the run's lock, which the kernel frees as the run ends.
const LOCK: Duration = Duration::from_secs(30);

/// A running guard.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    /// The guard waits for the end of this pipe.
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts a guard and waits until it is ready.
    pub fn start(command: &GuardCommand, journal: &Path, run: &str) -> Result<Self, GuardError> {
        let mut process = Command::new(&command.program);
        process.args(&command.arguments).arg(journal).arg(run);
        // The guard must not notify the service manager in the name of the run.
        for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
            process.env_remove(variable);
        }
        // The standard library marks its pipes close-on-exec: no other child keeps ours open.
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let program = command.program.display().to_string();
        let mut child = raw::in_own_session(&mut process)
            .spawn()
            .map_err(|source| GuardError::Start { program: program.clone(), source })?;
        let pipe = child.stdin.take();
        let mut guard = Guard { child, pipe };
        if guard.wait_until_ready() { Ok(guard) } else { Err(GuardError::NotReady { program }) }
    }

    fn wait_until_ready(&mut self) -> bool {
        let Some(stdout) = self.child.stdout.take() else { return false };
        let (tell, reported) = mpsc::channel();
        // A thread, because a pipe has no timeout; it ends with the guard at the latest.
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines();
            let ready = lines.any(|line| line.is_ok_and(|l| l.trim() == READY));
            let _ = tell.send(ready);
        });
        reported.recv_timeout(START).unwrap_or(false)
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The guard's process identifier.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The guard finds no journal, or restores the rest, and ends.
        drop(self.pipe.take());
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(10) {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                _ => return,
            }
        }
    }
}

/// Why there is no guard.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// It could not be started.
    #[error("cannot start the guard process {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It did not report that it is ready.
    #[error("the guard process {program} was not ready within {} s; nothing was changed", START.as_secs())]
    NotReady {
        /// The program.
        program: String,
    },
}

/// The main function of the guard: reports that it is ready, waits for the end of standard input,
/// restores by the run's journal. Returns the errors; the caller prints them and chooses the exit
/// code.
pub fn guard_main(journal: &Path, run: &str) -> Vec<FileError> {
    crate::termination::ignore_terminal();
    let mut out = std::io::stdout().lock();
    // If the run is gone already, the end of input shows that.
    let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
    drop(out);
    let mut input = std::io::stdin().lock();
    let mut byte = [0];
    loop {
        match input.read(&mut byte) {
            Ok(0) => break,
            Err(e) if e.kind() != std::io::ErrorKind::Interrupted => break,
            _ => {}
        }
    }
    restore_after(journal, run)
}

fn restore_after(path: &Path, run: &str) -> Vec<FileError> {
    // Without the lock an immediate new start would restore at the same time.
    let folder = path.parent().unwrap_or(Path::new("/"));
    let begin = Instant::now();
    let lock = loop {
        match Lock::take_to_restore(folder) {
            Ok(lock) => break Some(lock),
            // Another run has the lock, and has restored first.
            Err(_) if begin.elapsed() < LOCK => {
                match Journal::load(path) {
                    Ok(Some(journal)) if journal.run == run => {}
                    _ => return Vec::new(),
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(_) => break None,
        }
    };
    let failed = match Journal::load(path) {
        Ok(Some(journal)) if journal.run == run => journal.restore(path),
        Ok(_) => Vec::new(),
        Err(e) => vec![e],
    };
    drop(lock);
    failed
}

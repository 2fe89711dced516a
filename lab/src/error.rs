//! Errors of the lab, each in one line: what was got, what was expected, what to do.

use std::fmt;
use std::path::PathBuf;

/// The stage that a guest had reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The kernel had not yet started the first process.
    Booting,
    /// The command was running.
    Running,
    /// The command had ended and its results were being sent.
    Collecting,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Booting => "booting",
            Self::Running => "running the command",
            Self::Collecting => "sending results",
        })
    }
}

/// Why the lab could not run a job.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A program of the host is absent.
    #[error("{what} not found on this host; {remedy}")]
    HostProgramMissing {
        /// The program.
        what: String,
        /// The command that installs it.
        remedy: String,
    },
    /// There is no kernel to boot.
    #[error("no guest kernel: {reason}; {remedy}")]
    KernelMissing {
        /// What was found instead.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// A Debian package could not be fetched or read.
    #[error("package {package}: {reason}; {remedy}")]
    Package {
        /// Its name.
        package: String,
        /// What happened.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// A requested program was not found.
    #[error("program {program}: {reason}; give a path, a name on PATH, or the package it is in")]
    ProgramMissing {
        /// The name or path that was requested.
        program: String,
        /// Where it was looked for.
        reason: String,
    },
    /// A program needs a shared library that was not found.
    #[error(
        "program {program} needs the shared library {library}, which is neither on this host nor \
         in the packages fetched; install or name the package that has it"
    )]
    LibraryMissing {
        /// The program.
        program: PathBuf,
        /// The library's soname.
        library: String,
    },
    /// The requested machine or job is impossible.
    #[error("{what}: got {got}, expected {expected}")]
    Invalid {
        /// The setting.
        what: &'static str,
        /// Its value.
        got: String,
        /// The accepted values.
        expected: String,
    },
    /// QEMU ended before or while the guest ran.
    #[error("QEMU stopped ({status}): {message}; check the machine's settings and extra arguments")]
    Qemu {
        /// How it ended.
        status: String,
        /// The last line it wrote.
        message: String,
        /// The guest's console until then.
        console_tail: Vec<String>,
    },
    /// The guest's kernel panicked.
    #[error("the guest's kernel panicked while {phase}: {message}; its console shows why")]
    Panicked {
        /// The stage reached.
        phase: Phase,
        /// The line of the console with the panic.
        message: String,
        /// The end of the guest's console.
        console_tail: Vec<String>,
    },
    /// The guest exceeded its time bound.
    #[error(
        "the guest was still {phase} after {bound_ms} ms, its bound; see its last output and \
         console, or give it more time"
    )]
    TimedOut {
        /// The stage reached.
        phase: Phase,
        /// The bound, from the start of QEMU.
        bound_ms: u64,
        /// The end of the guest's console.
        console_tail: Vec<String>,
        /// The end of what the command wrote.
        output_tail: Vec<String>,
    },
    /// The guest switched itself off without reporting how its command ended.
    #[error("the guest ended while {phase} without an exit code; its console may show why")]
    EndedEarly {
        /// The stage reached.
        phase: Phase,
        /// The end of the guest's console.
        console_tail: Vec<String>,
    },
    /// Ctrl-] was pressed in the guest's terminal.
    #[error("the guest was switched off by Ctrl-]")]
    SwitchedOff,
    /// The kernel killed the command for want of memory.
    #[error(
        "the guest ran out of memory and its kernel killed the command; give the machine or the \
         control group more memory"
    )]
    OutOfMemory {
        /// The end of the guest's console.
        console_tail: Vec<String>,
    },
    /// The results that came back cannot be used.
    #[error("results of the guest: {reason}; nothing was written")]
    Results {
        /// What is wrong with them.
        reason: String,
    },
    /// A system call of the host failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The operation.
        doing: String,
        /// The error of the host.
        source: std::io::Error,
    },
}

impl LabError {
    /// The end of the guest's console, where there was a guest.
    #[must_use]
    pub fn console_tail(&self) -> &[String] {
        match self {
            Self::Qemu { console_tail, .. }
            | Self::Panicked { console_tail, .. }
            | Self::TimedOut { console_tail, .. }
            | Self::EndedEarly { console_tail, .. }
            | Self::OutOfMemory { console_tail } => console_tail,
            _ => &[],
        }
    }
}

/// Adds the operation to an error of the host.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, LabError>;
}

impl<T, E: Into<std::io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T, LabError> {
        self.map_err(|e| LabError::Io { doing: what.into(), source: e.into() })
    }
}

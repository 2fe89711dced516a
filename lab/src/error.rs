//! What can go wrong in the lab, each in one line: what was got, what was expected, what to do.

use std::fmt;
use std::path::PathBuf;

/// How far a guest had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The kernel had not yet started the first process.
    Booting,
    /// The command was running.
    Running,
    /// The command had ended and its results were on their way out.
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

/// Why the lab could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A program of the host is absent.
    #[error("{what} not found on this host; {remedy}")]
    HostProgramMissing {
        /// The program.
        what: String,
        /// What brings it.
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
    /// A program asked for is nowhere to be found.
    #[error("program {program}: {reason}; give a path, a name on PATH, or the package it is in")]
    ProgramMissing {
        /// As asked for.
        program: String,
        /// Where it was looked for.
        reason: String,
    },
    /// A program needs a shared library that is nowhere to be found.
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
    /// The machine or job asked for cannot be.
    #[error("{what}: got {got}, expected {expected}")]
    Invalid {
        /// The setting.
        what: &'static str,
        /// Its value.
        got: String,
        /// What would do.
        expected: String,
    },
    /// QEMU gave up before or while the guest ran.
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
        /// How far it had come.
        phase: Phase,
        /// The line that says so.
        message: String,
        /// The end of the guest's console.
        console_tail: Vec<String>,
    },
    /// The guest did not end in time.
    #[error(
        "the guest was still {phase} after {bound_ms} ms, its bound; see its last output and \
         console, or give it more time"
    )]
    TimedOut {
        /// How far it had come.
        phase: Phase,
        /// The bound, from the start of QEMU.
        bound_ms: u64,
        /// The end of the guest's console.
        console_tail: Vec<String>,
        /// The end of what the command wrote.
        output_tail: Vec<String>,
    },
    /// The guest switched itself off without saying how its command ended.
    #[error("the guest ended while {phase} without an exit code; its console may show why")]
    EndedEarly {
        /// How far it had come.
        phase: Phase,
        /// The end of the guest's console.
        console_tail: Vec<String>,
    },
    /// The kernel killed the command for want of memory.
    #[error(
        "the guest ran out of memory and its kernel killed the command; give the machine or the \
         control group more memory"
    )]
    OutOfMemory {
        /// The end of the guest's console.
        console_tail: Vec<String>,
    },
    /// What came back of the results cannot be used.
    #[error("results of the guest: {reason}; nothing was written")]
    Results {
        /// What is wrong with them.
        reason: String,
    },
    /// The host refused something.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the host said.
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

/// Names what was being done when the host refused.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, LabError>;
}

impl<T, E: Into<std::io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T, LabError> {
        self.map_err(|e| LabError::Io { doing: what.into(), source: e.into() })
    }
}

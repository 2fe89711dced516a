//! What shall run in a guest, what is told while it runs, and what comes back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::accel::AccelChoice;
use crate::accesses::AccessCounts;
use crate::timed::ClockFigures;

/// A program to carry into the guest, with the shared libraries it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A program of the host: a path, or a name to look up on `PATH`. It keeps its path, or goes
    /// to `/usr/bin` if that path is outside the usual directories of programs.
    Host(PathBuf),
    /// A program from a Debian package, fetched into the cache and never installed.
    Package {
        /// The package, such as `redis-server`.
        package: String,
        /// The program's file name, such as `redis-cli`.
        program: String,
    },
}

impl Program {
    /// A program of the host.
    pub fn host(path: impl Into<PathBuf>) -> Self {
        Self::Host(path.into())
    }

    /// A program from a Debian package.
    pub fn package(package: impl Into<String>, program: impl Into<String>) -> Self {
        Self::Package { package: package.into(), program: program.into() }
    }
}

/// A file or directory to carry into the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestFile {
    /// A file or directory of the host, with everything in it.
    Host {
        /// Where it is on the host.
        from: PathBuf,
        /// Where it goes in the guest (absolute).
        to: PathBuf,
    },
    /// Bytes.
    Bytes {
        /// What is in it.
        bytes: Vec<u8>,
        /// Permission bits, such as `0o644`.
        mode: u32,
        /// Where it goes in the guest (absolute).
        to: PathBuf,
    },
}

/// What shall run in a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestJob {
    /// The command: the name of one of `programs`, of a busybox applet, or a path in the guest.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment, beside `PATH` and `HOME`.
    pub env: Vec<(String, String)>,
    /// Its working directory in the guest.
    pub directory: PathBuf,
    /// Programs to carry in.
    pub programs: Vec<Program>,
    /// Files to carry in.
    pub files: Vec<GuestFile>,
    /// Files and directories of the guest to bring back (absolute).
    pub results: Vec<PathBuf>,
    /// Where they go on the host; a temporary directory that lives as long as the
    /// [`GuestResult`] if not given. A directory that has something in it is refused.
    pub results_dir: Option<PathBuf>,
    /// What the command reads.
    pub stdin: Vec<u8>,
    /// The bound on the whole run, from the start of QEMU. The machine's if not given.
    pub timeout: Option<Duration>,
}

impl GuestJob {
    /// A job that runs a command and brings back nothing but its output.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            env: Vec::new(),
            directory: PathBuf::from("/tmp"),
            programs: Vec::new(),
            files: Vec::new(),
            results: Vec::new(),
            results_dir: None,
            stdin: Vec::new(),
            timeout: None,
        }
    }

    /// A job that runs a busybox shell script.
    pub fn shell(script: impl Into<String>) -> Self {
        Self::new("sh").args(["-c".to_owned(), script.into()])
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds a variable to the environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Carries a program in.
    #[must_use]
    pub fn program(mut self, program: Program) -> Self {
        self.programs.push(program);
        self
    }

    /// Carries a file or directory of the host in.
    #[must_use]
    pub fn file(mut self, from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> Self {
        self.files.push(GuestFile::Host { from: from.into(), to: to.into() });
        self
    }

    /// Carries bytes in, as a file that all may read.
    #[must_use]
    pub fn bytes(mut self, bytes: impl Into<Vec<u8>>, to: impl Into<PathBuf>) -> Self {
        self.files.push(GuestFile::Bytes { bytes: bytes.into(), mode: 0o644, to: to.into() });
        self
    }

    /// Brings a file or directory of the guest back.
    #[must_use]
    pub fn result(mut self, path: impl Into<PathBuf>) -> Self {
        self.results.push(path.into());
        self
    }

    /// Says where results go on the host.
    #[must_use]
    pub fn results_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.results_dir = Some(path.into());
        self
    }

    /// Gives the command something to read.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Bounds the run.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// What is told while a guest is made ready and runs. Lines come without their newline, as soon
/// as the guest has written them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Something that takes a while is being done on the host.
    Preparing(String),
    /// QEMU starts.
    Starting {
        /// How the processor is emulated, and why so.
        accel: AccelChoice,
        /// The size of the guest's root file system.
        initramfs_bytes: u64,
    },
    /// The guest's first process runs; the command is about to.
    Booted {
        /// `uname -r` in the guest.
        kernel_release: String,
        /// From the start of QEMU.
        boot_ms: u64,
    },
    /// A line of the guest's console: kernel messages.
    Console(String),
    /// A line of the command's standard output.
    Stdout(String),
    /// A line of the command's standard error.
    Stderr(String),
}

/// What came back from a guest.
#[derive(Debug)]
pub struct GuestResult {
    /// The command's exit code; 128 plus the signal's number if a signal ended it; 127 if the
    /// guest has no such command.
    pub exit_code: i32,
    /// All that it wrote to standard output (the first [`crate::guest::OUTPUT_MAX_BYTES`]).
    pub stdout: Vec<u8>,
    /// All that it wrote to standard error (likewise).
    pub stderr: Vec<u8>,
    /// Results asked for that were not there.
    pub missing_results: Vec<PathBuf>,
    /// How the processor was emulated, and why so.
    pub accel: AccelChoice,
    /// `uname -r` in the guest.
    pub kernel_release: String,
    /// From the start of QEMU to the guest's first process.
    pub boot_ms: u64,
    /// From the start of QEMU to its end.
    pub run_ms: u64,
    /// The end of the guest's console.
    pub console_tail: Vec<String>,
    /// What went to which node while the command ran, if that was to be counted.
    pub accesses: Option<AccessCounts>,
    /// What the command took, if the machine's clock knows the memory.
    pub clock: Option<ClockFigures>,
    pub(crate) results: ResultsDir,
}

/// Where results lie.
#[derive(Debug)]
pub(crate) enum ResultsDir {
    None,
    Temporary(tempfile::TempDir),
    Given(PathBuf),
}

impl GuestResult {
    /// The directory with the results; in it, each has the path that it had in the guest. None
    /// if none were asked for.
    #[must_use]
    pub fn results_dir(&self) -> Option<&Path> {
        match &self.results {
            ResultsDir::None => None,
            ResultsDir::Temporary(dir) => Some(dir.path()),
            ResultsDir::Given(path) => Some(path),
        }
    }

    /// Where the result is on the host that was at this path in the guest.
    #[must_use]
    pub fn result(&self, guest_path: impl AsRef<Path>) -> Option<PathBuf> {
        let path = guest_path.as_ref();
        self.results_dir().map(|dir| dir.join(path.strip_prefix("/").unwrap_or(path)))
    }

    /// Standard output as text.
    #[must_use]
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

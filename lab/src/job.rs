//! What runs in a guest, the events while it runs, and its results.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::accel::AccelChoice;
use crate::accesses::AccessCounts;
use crate::temporary::TemporaryFolder;
use crate::timed::ClockFigures;

/// A program to copy into the guest, with the shared libraries it needs.
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
    /// All files of a Debian package and of those that it depends on, for what its programs open by
    /// themselves: modules, plug-ins, data.
    Whole {
        /// The package, such as `python3-numpy`.
        package: String,
    },
    /// A folder of the host with programs and libraries in it. Shared libraries that these need
    /// from elsewhere come along.
    Folder {
        /// Where it is on the host.
        from: PathBuf,
        /// Where it goes in the guest (absolute).
        to: PathBuf,
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

    /// All files of a Debian package and of those that it depends on.
    pub fn whole(package: impl Into<String>) -> Self {
        Self::Whole { package: package.into() }
    }

    /// A folder of the host, at this place in the guest.
    pub fn folder(from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> Self {
        Self::Folder { from: from.into(), to: to.into() }
    }
}

/// A file or directory to copy into the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestFile {
    /// A file or directory of the host, with everything in it.
    Host {
        /// Where it is on the host.
        from: PathBuf,
        /// Where it goes in the guest (absolute).
        to: PathBuf,
    },
    /// A file with these bytes.
    Bytes {
        /// The contents.
        bytes: Vec<u8>,
        /// Permission bits, such as `0o644`.
        mode: u32,
        /// Where it goes in the guest (absolute).
        to: PathBuf,
    },
}

/// A job for a guest.
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
    /// Programs to copy in.
    pub programs: Vec<Program>,
    /// Files to copy in.
    pub files: Vec<GuestFile>,
    /// Files and directories of the guest to copy back (absolute).
    pub results: Vec<PathBuf>,
    /// Directory for the results on the host; must be empty. By default a temporary directory that
    /// lives as long as the [`GuestResult`].
    pub results_dir: Option<PathBuf>,
    /// The command's standard input.
    pub stdin: Vec<u8>,
    /// Instead of standard input and both outputs the command has a terminal of the guest, which is
    /// joined to that of this process while the command runs. Not beside a root disk.
    pub terminal: bool,
    /// Bound on the whole run, from the start of QEMU; by default the machine's.
    pub timeout: Option<Duration>,
}

impl GuestJob {
    /// A job that runs a command and returns its output only.
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
            terminal: false,
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

    /// Copies a program in.
    #[must_use]
    pub fn program(mut self, program: Program) -> Self {
        self.programs.push(program);
        self
    }

    /// Copies a file or directory of the host in.
    #[must_use]
    pub fn file(mut self, from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> Self {
        self.files.push(GuestFile::Host { from: from.into(), to: to.into() });
        self
    }

    /// Copies bytes in, as a file that all users may read.
    #[must_use]
    pub fn bytes(mut self, bytes: impl Into<Vec<u8>>, to: impl Into<PathBuf>) -> Self {
        self.files.push(GuestFile::Bytes { bytes: bytes.into(), mode: 0o644, to: to.into() });
        self
    }

    /// Copies a file or directory of the guest back.
    #[must_use]
    pub fn result(mut self, path: impl Into<PathBuf>) -> Self {
        self.results.push(path.into());
        self
    }

    /// Sets the directory for results on the host.
    #[must_use]
    pub fn results_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.results_dir = Some(path.into());
        self
    }

    /// Sets the command's standard input.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Gives the command a terminal, this process's own.
    #[must_use]
    pub fn terminal(mut self) -> Self {
        self.terminal = true;
        self
    }

    /// Sets the bound on the run.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// Events while a guest is prepared and runs. Lines come without their newline, as soon as the
/// guest has written them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A step on the host that takes time.
    Preparing(String),
    /// QEMU starts.
    Starting {
        /// How the processor is emulated, and why so.
        accel: AccelChoice,
        /// The size of the guest's root file system.
        initramfs_bytes: u64,
    },
    /// The guest's first process runs; the command follows.
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

/// The outcome of a job.
#[derive(Debug)]
pub struct GuestResult {
    /// The command's exit code; 128 plus the signal's number if a signal ended it; 127 if the
    /// guest has no such command.
    pub exit_code: i32,
    /// Standard output (the first [`crate::guest::OUTPUT_MAX_BYTES`]).
    pub stdout: Vec<u8>,
    /// Standard error (likewise).
    pub stderr: Vec<u8>,
    /// Requested results that did not exist.
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
    /// Accesses by node while the command ran, if they were counted.
    pub accesses: Option<AccessCounts>,
    /// Figures of the memory clock, if the machine has one (`GuestMachine::memory_clock`).
    pub clock: Option<ClockFigures>,
    pub(crate) results: ResultsDir,
}

/// The directory of the results.
#[derive(Debug)]
pub(crate) enum ResultsDir {
    None,
    Temporary(TemporaryFolder),
    Given(PathBuf),
}

impl GuestResult {
    /// The directory with the results, each at the path that it had in the guest. `None` if none
    /// were requested.
    #[must_use]
    pub fn results_dir(&self) -> Option<&Path> {
        match &self.results {
            ResultsDir::None => None,
            ResultsDir::Temporary(dir) => Some(dir.path()),
            ResultsDir::Given(path) => Some(path),
        }
    }

    /// The host's path of the result that was at this path in the guest.
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

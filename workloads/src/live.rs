//! The programs that a machine starts to run a workload: plain data, made by a kind, carried out by
//! [`crate::session`].

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use terrace_core::page::PageSize;

/// The run that a kind describes its programs for.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveContext {
    /// A directory for sockets and the like on the machine where the workload will run.
    pub runtime_directory: PathBuf,
    /// Length of a period.
    pub period_ms: u64,
    /// Length of the run: all periods together.
    pub duration_ms: u64,
    /// Whether what is measured begins and ends between periods: `drive` is then sent SIGUSR1.
    pub marked: bool,
    /// Size of the pages that the group is tracked in; programs map their memory accordingly.
    pub page_size: PageSize,
    /// Seed of everything random.
    pub seed: u64,
}

/// A workload on a live machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveWorkload {
    /// Runs inside the group whose memory is tiered.
    pub main: LiveCommand,
    /// The sign that `main` can be used.
    pub ready: Ready,
    /// Runs to completion outside the group, after `main` is ready and before the periods.
    pub load: Option<LiveCommand>,
    /// Runs outside the group during the periods; the run ends when it ends. Without one, the run
    /// ends when `main` ends.
    pub drive: Option<LiveCommand>,
    /// Runs to completion outside the group, after the periods.
    pub verify: Option<LiveCommand>,
    /// Written to the standard input of `main` when the periods begin.
    pub begin_line: Option<String>,
    /// How `main` is ended, if it still runs after the periods.
    pub end: End,
    /// Whether SIGUSR1 means something to `drive`: what was before it is not measured, and at the
    /// second `drive` ends.
    #[serde(default)]
    pub drive_is_marked: bool,
    /// Further programs that `main` executes, which its machine must have too.
    #[serde(default)]
    pub executes: Vec<LiveProgram>,
    /// Debian packages that its machine must have whole, with those that they depend on.
    #[serde(default)]
    pub packages: Vec<String>,
}

impl LiveWorkload {
    /// The programs that the machine must have, each once.
    pub fn programs(&self) -> Vec<LiveProgram> {
        let optional = [&self.load, &self.drive, &self.verify].into_iter().flatten();
        let started = std::iter::once(&self.main).chain(optional).map(|command| &command.program);
        let mut programs: Vec<LiveProgram> = Vec::new();
        for program in started.chain(&self.executes) {
            if !programs.contains(program) {
                programs.push(program.clone());
            }
        }
        programs
    }
}

/// A command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveCommand {
    /// The program to run.
    pub program: LiveProgram,
    /// The program's arguments.
    pub arguments: Vec<String>,
    /// Variables added to the program's environment.
    pub environment: Vec<(String, String)>,
    /// Time limit: from its start, or for `main` from the request to end.
    pub within_ms: u64,
}

/// A program that a machine must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LiveProgram {
    /// A program of this host: a path, or a name to look up.
    Host(PathBuf),
    /// A program of a Debian package.
    Package {
        /// The package's name, such as `redis-server`.
        package: String,
        /// The program's file name.
        program: String,
    },
}

/// Why a program cannot be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramMissing {
    /// A program of the host.
    #[error("no program '{0}': expected a path, or a name on PATH")]
    Host(String),
    /// A program of a package.
    #[error("no program '{program}': install the Debian package {package}")]
    Package {
        /// The package's name.
        package: String,
        /// The program's file name.
        program: String,
    },
    /// Terrace's own workload program.
    #[error("no program '{0}' beside this one or on PATH: build terrace-workloads")]
    Own(&'static str),
}

/// File name of the program that this crate builds.
const OWN: &str = "terrace-workload";

impl LiveProgram {
    /// `terrace-workload`: beside this program, as installed and as built, else on `PATH`.
    pub fn own() -> Result<LiveProgram, ProgramMissing> {
        let exe = std::env::current_exe().ok();
        // Test programs are one directory below the others.
        let directories = exe.iter().flat_map(|exe| exe.ancestors().skip(1).take(2));
        let beside = directories.map(|d| d.join(OWN)).find(|p| p.is_file());
        beside.or_else(|| on_path(OWN)).map(LiveProgram::Host).ok_or(ProgramMissing::Own(OWN))
    }

    /// The program's path on this host.
    pub fn locate(&self) -> Result<PathBuf, ProgramMissing> {
        match self {
            LiveProgram::Host(path) if path.components().count() > 1 => {
                path.is_file().then(|| path.clone())
            }
            LiveProgram::Host(name) => on_path(name),
            LiveProgram::Package { program, .. } => on_path(program),
        }
        .ok_or_else(|| match self {
            LiveProgram::Host(path) => ProgramMissing::Host(path.display().to_string()),
            LiveProgram::Package { package, program } => {
                ProgramMissing::Package { package: package.clone(), program: program.clone() }
            }
        })
    }
}

/// A program in the directories of `PATH` and where system programs are.
fn on_path(name: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/games"].map(PathBuf::from);
    let directories = std::env::split_paths(&path).chain(system);
    directories.map(|d| d.join(&name)).find(|p| p.is_file())
}

/// The sign that a program can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ready {
    /// The program has been started: for programs that print nothing.
    Started,
    /// The program wrote a JSON line with this `event`.
    Event {
        /// The event's name.
        event: String,
        /// The longest wait.
        within_ms: u64,
    },
    /// A Unix socket accepts connections.
    UnixSocket {
        /// Path of the socket.
        path: PathBuf,
        /// The longest wait.
        within_ms: u64,
    },
    /// A TCP port accepts connections.
    Tcp {
        /// Host and port, `host:port`.
        address: String,
        /// The longest wait.
        within_ms: u64,
    },
}

/// How `main` is ended after the periods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// By SIGTERM, which is no fault of the program.
    Terminate,
    /// By this line on its standard input; it then finishes its work.
    Line(String),
}

/// The result of a workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct WorkloadResult {
    /// Operations, by the workload's own count.
    pub operations: Option<u64>,
    /// Operations per second.
    pub operations_per_s: Option<f64>,
    /// Of the times from a request to its answer the median; at a set rate from when it was due.
    pub latency_p50_us: Option<f64>,
    /// The 99th percentile of the same.
    pub latency_p99_us: Option<f64>,
    /// From the begin of the periods, or of a program that begins by itself its own, to the end of
    /// the program that ends the run.
    pub duration_ms: f64,
    /// Whether everything that was read equals what had been written; `None` when the workload does
    /// not check.
    pub checksum_ok: Option<bool>,
    /// The result lines of `main`, `load`, `drive` and `verify`, under these names.
    pub details: Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_up_and_missing_ones_are_reported_with_a_remedy() {
        let sh = LiveProgram::Host("sh".into()).locate().unwrap();
        assert_eq!(LiveProgram::Host(sh.clone()).locate(), Ok(sh));
        let missing = LiveProgram::Host("/no/such".into()).locate().unwrap_err();
        assert!(missing.to_string().contains("/no/such"));
        let package = LiveProgram::Package { package: "p".into(), program: "no-such-x".into() };
        assert!(package.locate().unwrap_err().to_string().contains("Debian package p"));
    }

    #[test]
    fn each_program_is_named_once() {
        let command = |name: &str| LiveCommand {
            program: LiveProgram::Host(name.into()),
            arguments: Vec::new(),
            environment: Vec::new(),
            within_ms: 1,
        };
        let workload = LiveWorkload {
            main: command("a"),
            ready: Ready::Started,
            load: Some(command("b")),
            drive: Some(command("b")),
            verify: Some(command("a")),
            begin_line: None,
            end: End::Terminate,
            drive_is_marked: false,
            executes: Vec::new(),
            packages: Vec::new(),
        };
        let names = workload.programs();
        assert_eq!(names, [LiveProgram::Host("a".into()), LiveProgram::Host("b".into())]);
        let text = serde_json::to_string(&workload).unwrap();
        assert_eq!(serde_json::from_str::<LiveWorkload>(&text).unwrap(), workload);
    }
}

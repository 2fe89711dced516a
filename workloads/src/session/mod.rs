//! Runs a live workload on this host: starts its programs, waits until they are ready, drives them,
//! checks them, and ends all of them.
//!
//! The caller takes the steps, because trackers start between them: [`Session::start`] (main is
//! ready, the load is done), [`Session::begin`] (the periods begin), [`Session::ended`] (called
//! once a period), [`Session::finish`] (verification, results, end).
//! A session that is dropped kills its programs.

mod enter;
mod process;

use std::fs::OpenOptions;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use rustix::thread::CpuSet;
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::live::{End, LiveWorkload, ProgramMissing, Ready, WorkloadResult};
use process::{Place, Process, any_ends, is_intact};

/// Interval between attempts to connect to a socket that does not accept yet.
const RETRY: Duration = Duration::from_millis(20);
/// Time for a program to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
/// The event with which `drive` says that it catches marks.
pub const DRIVE_READY: &str = "ready";
/// The event with which `drive` says that what is measured is over.
pub const DRIVE_MEASURED: &str = "measured";
/// How long that is waited for.
const MEASURED_WITHIN: Duration = Duration::from_secs(20);

/// The nodes from which `main`'s new pages are allocated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum MemoryPolicy {
    /// The system's default policy.
    #[default]
    System,
    /// These nodes in turn.
    Interleave(Vec<u32>),
}

impl MemoryPolicy {
    fn mask(&self) -> Result<Option<u64>, SessionError> {
        let MemoryPolicy::Interleave(nodes) = self else { return Ok(None) };
        if nodes.is_empty() || nodes.iter().any(|&n| n >= u64::BITS) {
            let got = nodes.clone();
            return Err(SessionError::BadNodes { got });
        }
        Ok(Some(nodes.iter().fold(0, |mask, &node| mask | 1 << node)))
    }
}

/// Processors by their numbers.
pub fn cpu_set(cpus: &[u32]) -> CpuSet {
    let mut set = CpuSet::new();
    let known = cpus.iter().map(|&cpu| cpu as usize).filter(|&cpu| cpu < CpuSet::MAX_CPU);
    known.for_each(|cpu| set.set(cpu));
    set
}

/// Options for starting `main`.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Directory of the control group that it enters.
    pub cgroup: Option<PathBuf>,
    /// Memory policy of its pages.
    pub memory_policy: MemoryPolicy,
    /// Its mappings are apart from those of all other programs, as with `setarch -L`, so that a
    /// machine that counts accesses by address can tell them.
    pub apart: bool,
    /// The kernel gives it no huge pages by itself (`PR_SET_THP_DISABLE`), whatever it asks for.
    pub base_pages: bool,
    /// Processors that it runs on; all where empty. Those that do not exist are passed over, and one
    /// has to.
    pub cpus: Vec<u32>,
}

/// Why a workload could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A program is missing.
    #[error(transparent)]
    Missing(#[from] ProgramMissing),
    /// The control group cannot be entered.
    #[error("control group {path}: {what}; expected a directory of a control group (v2) and root")]
    Cgroup {
        /// Directory of the group.
        path: PathBuf,
        /// The kernel's error.
        what: String,
    },
    /// Nodes that do not fit a mask.
    #[error("interleave over nodes {got:?}: expected one or more nodes from 0 to 63")]
    BadNodes {
        /// The nodes requested.
        got: Vec<u32>,
    },
    /// A program could not be started.
    #[error("cannot start {role} program {program}: {what}")]
    Start {
        /// Its role in the workload.
        role: &'static str,
        /// The program's name.
        program: String,
        /// The kernel's error.
        what: String,
    },
    /// A program did not become ready.
    #[error(
        "{role} program {program} is not ready after {within_ms} ms: expected {expected}; it printed {printed}"
    )]
    NotReady {
        /// Its role in the workload.
        role: &'static str,
        /// The program's name.
        program: String,
        /// The sign of being ready.
        expected: String,
        /// The time limit in ms.
        within_ms: u64,
        /// The last lines of its output.
        printed: String,
    },
    /// A program ended when it should not have, or not well.
    #[error("{role} program {program} ended with {how}; it printed {printed}")]
    Ended {
        /// Its role in the workload.
        role: &'static str,
        /// The program's name.
        program: String,
        /// Exit code or signal.
        how: String,
        /// The last lines of its output.
        printed: String,
    },
    /// A program did not end within its bound and was killed.
    #[error(
        "{role} program {program} was not done after {within_ms} ms and was killed; it printed {printed}"
    )]
    TooLong {
        /// Its role in the workload.
        role: &'static str,
        /// The program's name.
        program: String,
        /// The time limit in ms.
        within_ms: u64,
        /// The last lines of its output.
        printed: String,
    },
}

/// A workload that runs.
pub struct Session {
    workload: LiveWorkload,
    /// First in order, so that clients are killed before the server that they are connected to.
    drive: Option<Process>,
    main: Process,
    begun: Option<Instant>,
    /// When the program that ends the run was first found to have ended.
    ended: Option<Instant>,
    details: Map<String, Value>,
    // So late that main has ended before the search.
    leftovers: Leftovers,
    // Last, so that no program is left that uses it.
    folder: Option<TempDir>,
}

impl Session {
    /// Starts `main`, waits until it is ready, and runs `load`.
    pub fn start(
        workload: &LiveWorkload,
        options: &SessionOptions,
    ) -> Result<Session, SessionError> {
        // Everything that can be refused is, before anything runs.
        let interleave_mask = options.memory_policy.mask()?;
        for program in workload.programs() {
            program.locate()?;
        }
        let (cgroup_procs, leftovers) = match &options.cgroup {
            None => (None, Leftovers::default()),
            Some(path) => {
                let failed = |what: String| SessionError::Cgroup { path: path.clone(), what };
                let file = OpenOptions::new()
                    .write(true)
                    .open(path.join("cgroup.procs"))
                    .map_err(|e| failed(e.to_string()))?;
                (Some(file), Leftovers::of(path))
            }
        };
        let stdin = workload.begin_line.is_some() || matches!(workload.end, End::Line(_));
        let (apart, base_pages) = (options.apart, options.base_pages);
        let cpus = (!options.cpus.is_empty()).then(|| cpu_set(&options.cpus));
        let place = Place { cgroup_procs, interleave_mask, apart, base_pages, cpus, stdin };
        let main = Process::start("main", &workload.main, place)?;
        let mut session = Session {
            workload: workload.clone(),
            drive: None,
            main,
            begun: None,
            ended: None,
            details: Map::new(),
            leftovers,
            folder: None,
        };
        session.wait_ready()?;
        if let Some(load) = workload.load.clone() {
            let load = Process::start("load", &load, Place::default())?;
            session.complete("load", load)?;
        }
        Ok(session)
    }

    /// Keeps the folder of its sockets and the like until its programs have ended.
    pub fn keep(&mut self, folder: TempDir) {
        self.folder = Some(folder);
    }

    /// The process whose memory is tiered.
    pub fn main_pid(&self) -> u32 {
        self.main.pid()
    }

    /// The process that drives `main`, once it has begun: it belongs to no group.
    pub fn drive_pid(&self) -> Option<u32> {
        self.drive.as_ref().map(Process::pid)
    }

    /// The JSON lines that `main` has written so far.
    pub fn events(&self) -> Vec<Value> {
        self.main.events()
    }

    /// Begins the periods: signals `main`, starts `drive`.
    pub fn begin(&mut self) -> Result<(), SessionError> {
        // A program without a begin line has begun when it was started.
        let by_itself = matches!(self.workload.ready, Ready::Started)
            && self.workload.begin_line.is_none()
            && self.workload.drive.is_none();
        self.begun = Some(if by_itself { self.main.started() } else { Instant::now() });
        if let Some(line) = self.workload.begin_line.clone() {
            self.main.write_line(&line);
        }
        if let Some(drive) = &self.workload.drive {
            self.drive = Some(Process::start("drive", drive, Place::default())?);
        }
        Ok(())
    }

    /// Whether `drive` catches marks by now, and goes on meanwhile with what is not measured.
    pub fn catches_marks(&self) -> bool {
        self.drive.as_ref().is_some_and(|drive| drive.has_event(DRIVE_READY))
    }

    /// What is measured begins or ends here: for a workload whose `drive` knows such marks.
    /// An error when `drive` does not yet catch them: the signal would end it.
    pub fn mark(&self) -> Result<(), SessionError> {
        let Some(drive) = self.drive.as_ref().filter(|_| self.workload.drive_is_marked) else {
            return Ok(());
        };
        if !self.catches_marks() {
            let since = self.begun.map_or(0, |begun| begun.elapsed().as_millis() as u64);
            let expected =
                format!("a line with event '{DRIVE_READY}' before what is measured begins");
            return Err(drive.not_ready(expected, since));
        }
        drive.signal(Signal::USR1);
        Ok(())
    }

    /// Waits until `drive` has taken the second mark, or has ended, of which its result has more.
    /// Whoever ends counters beside it does that afterwards, so that all are of the same time.
    pub fn measured(&self) -> Result<(), SessionError> {
        let Some(drive) = self.drive.as_ref().filter(|_| self.workload.drive_is_marked) else {
            return Ok(());
        };
        if drive.says_or_ends_within(DRIVE_MEASURED, MEASURED_WITHIN) {
            return Ok(());
        }
        let expected = format!("a line with event '{DRIVE_MEASURED}' after what is measured");
        Err(drive.not_ready(expected, MEASURED_WITHIN.as_millis() as u64))
    }

    /// Writes a line to the standard input of `main`, if it is open.
    pub fn tell(&mut self, line: &str) {
        self.main.write_line(line);
    }

    /// Whether the program that ends the run (`drive`, or `main` without one) ends before this time
    /// is over. An error when `main` ends under a running `drive`.
    pub fn ended(&mut self, wait: Duration) -> Result<bool, SessionError> {
        if self.ended.is_some() {
            return Ok(true);
        }
        let ended = match &mut self.drive {
            None => self.main.ends_within(wait),
            Some(drive) => {
                any_ends(&mut [drive, &mut self.main], wait);
                if self.main.ends_within(Duration::ZERO) {
                    return Err(self.main.ended_badly());
                }
                drive.ends_within(Duration::ZERO)
            }
        };
        if ended {
            let process = self.drive.as_ref().unwrap_or(&self.main);
            self.ended = Some(process.ended().unwrap_or_else(Instant::now));
        }
        Ok(ended)
    }

    /// Waits for the end of the run, within the bounds of its programs; verifies; ends all
    /// programs; returns the workload's result.
    pub fn finish(mut self) -> Result<WorkloadResult, SessionError> {
        let begun = self.begun.unwrap_or_else(Instant::now);
        let Session { drive, .. } = &mut self;
        let result;
        if let Some(drive) = drive.take() {
            self.complete("drive", drive)?;
            self.ended.get_or_insert_with(Instant::now);
            if let Some(verify) = self.workload.verify.clone() {
                let verify = Process::start("verify", &verify, Place::default())?;
                self.complete("verify", verify)?;
            }
            self.main.terminate(GRACE);
            result = self.details.get("drive").cloned();
        } else {
            if let Some(verify) = self.workload.verify.clone() {
                // The verification reads main's memory while main still runs.
                if !self.main.ends_within(Duration::ZERO) {
                    let verify = Process::start("verify", &verify, Place::default())?;
                    self.complete("verify", verify)?;
                }
            }
            let asked = Instant::now();
            let ended_by_itself = self.ended(Duration::ZERO)?;
            match &self.workload.end {
                End::Terminate if !ended_by_itself => {
                    self.ended.get_or_insert(asked);
                    self.main.terminate(GRACE);
                    result = self.main.result();
                }
                end => {
                    if let End::Line(line) = end {
                        let line = line.clone();
                        self.main.write_line(&line);
                    }
                    result = self.main.finish(asked)?;
                    self.ended.get_or_insert_with(Instant::now);
                }
            }
            if let Some(result) = &result {
                self.details.insert("main".into(), result.clone());
            }
        }
        self.leftovers.kill();
        let looks = ["main", "drive", "verify"];
        let looks: Vec<bool> =
            looks.iter().filter_map(|role| is_intact(self.details.get(*role)?)).collect();
        let number = |key: &str| result.as_ref().and_then(|r| r.get(key));
        // A load at a set rate is late by what the requests before it waited.
        let latencies = number("latency_from_due_us").or_else(|| number("latency_us"));
        let latency_us = |quantile: &str| latencies.and_then(|l| l.get(quantile)?.as_f64());
        let duration = self.ended.map_or_else(|| begun.elapsed(), |ended| ended - begun);
        let duration_ms = duration.as_nanos() as f64 / 1e6;
        Ok(WorkloadResult {
            operations: number("operations").and_then(Value::as_u64),
            operations_per_s: number("operations_per_s").and_then(Value::as_f64),
            latency_p50_us: latency_us("p50"),
            latency_p99_us: latency_us("p99"),
            duration_ms: number("duration_ms").and_then(Value::as_f64).unwrap_or(duration_ms),
            checksum_ok: (!looks.is_empty()).then(|| looks.iter().all(|&ok| ok)),
            details: Value::Object(self.details),
        })
    }

    /// Waits for a program beside `main` to end well, as long as `main` lives, and keeps its
    /// result.
    fn complete(&mut self, role: &'static str, mut process: Process) -> Result<(), SessionError> {
        let rest = process.rest();
        any_ends(&mut [&mut process, &mut self.main], rest);
        if self.main.ends_within(Duration::ZERO) {
            return Err(self.main.ended_badly());
        }
        if let Some(result) = process.finish_from_start()? {
            self.details.insert(role.into(), result);
        }
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<(), SessionError> {
        let start = Instant::now();
        let (within_ms, expected) = match &self.workload.ready {
            Ready::Started => return Ok(()),
            Ready::Event { event, within_ms } => {
                (*within_ms, format!("a line with event '{event}'"))
            }
            Ready::UnixSocket { path, within_ms } => {
                (*within_ms, format!("connections accepted at {}", path.display()))
            }
            Ready::Tcp { address, within_ms } => {
                (*within_ms, format!("connections accepted at {address}"))
            }
        };
        loop {
            let ready = match &self.workload.ready {
                Ready::Started => true,
                Ready::Event { event, .. } => self.main.has_event(event),
                Ready::UnixSocket { path, .. } => UnixStream::connect(path).is_ok(),
                Ready::Tcp { address, .. } => tcp_accepts(address),
            };
            if ready {
                return Ok(());
            }
            if self.main.ends_within(RETRY) {
                return Err(self.main.ended_badly());
            }
            if start.elapsed() >= Duration::from_millis(within_ms) {
                return Err(self.main.not_ready(expected, within_ms));
            }
        }
    }
}

fn tcp_accepts(address: &str) -> bool {
    let Ok(addresses) = address.to_socket_addrs() else { return false };
    addresses.into_iter().any(|a| TcpStream::connect_timeout(&a, Duration::from_secs(1)).is_ok())
}

/// Kills the processes that a program left in its control group, also those that have left its
/// process group. Those that were in the control group before are not touched.
#[derive(Default)]
struct Leftovers {
    procs: Option<PathBuf>,
    before: Vec<i32>,
}

impl Leftovers {
    fn of(cgroup: &Path) -> Self {
        let procs = cgroup.join("cgroup.procs");
        let before = pids(&procs);
        Leftovers { procs: Some(procs), before }
    }

    fn kill(&mut self) {
        let Some(procs) = self.procs.take() else { return };
        // A process that forks during the search is found in the next round.
        for _ in 0..100 {
            let left: Vec<_> =
                pids(&procs).into_iter().filter(|pid| !self.before.contains(pid)).collect();
            if left.is_empty() {
                return;
            }
            for pid in left.into_iter().filter_map(Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(RETRY);
        }
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        self.kill();
    }
}

fn pids(procs: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(procs).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

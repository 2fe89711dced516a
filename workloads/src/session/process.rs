//! One child process of a session: started in its own process group, its output read as it comes,
//! its end waited for with a bound, never left running.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::CpuSet;
use serde_json::Value;

use super::SessionError;
use super::enter::before_exec;
use crate::live::LiveCommand;

/// Lines of output that are kept for an error message.
const TAIL_LINES: usize = 4;
/// Bytes of a line that are kept for it.
const TAIL_LINE_BYTES: usize = 300;
/// Events that are kept, so that a program with endless output does not use endless memory.
const MAX_EVENTS: usize = 100_000;
/// How long the output of a process that has ended is waited for: another one may hold it open.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// Output of a process.
#[derive(Default)]
struct Printed {
    /// JSON objects from standard output.
    events: Vec<Value>,
    /// The last other lines from both outputs.
    tail: VecDeque<String>,
    /// Outputs still open.
    open: usize,
    /// When the process ended.
    ended: Option<Instant>,
}

impl Printed {
    fn has_event(&self, name: &str) -> bool {
        self.events.iter().any(|e| e["event"] == name)
    }
}

#[derive(Default)]
struct Output {
    printed: Mutex<Printed>,
    changed: Condvar,
}

impl Output {
    fn change(&self, change: impl FnOnce(&mut Printed)) {
        change(&mut self.printed.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn read<T>(&self, read: impl FnOnce(&Printed) -> T) -> T {
        read(&self.printed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads an output to its end on a thread of its own.
    fn follow(self: &Arc<Self>, from: impl Read + Send + 'static, events: bool) {
        self.change(|printed| printed.open += 1);
        let output = Arc::clone(self);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(from);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                let event = events
                    .then(|| serde_json::from_str::<Value>(&text).ok())
                    .flatten()
                    .filter(Value::is_object);
                output.change(|printed| match event {
                    Some(event) if printed.events.len() < MAX_EVENTS => printed.events.push(event),
                    Some(_) => {}
                    None if text.trim().is_empty() => {}
                    None => {
                        if printed.tail.len() == TAIL_LINES {
                            printed.tail.pop_front();
                        }
                        printed.tail.push_back(text.chars().take(TAIL_LINE_BYTES).collect());
                    }
                });
            }
            output.change(|printed| printed.open -= 1);
        });
    }

    /// Records when a process ends, on a thread of its own: a caller may ask late.
    fn note_end(self: &Arc<Self>, pidfd: OwnedFd) {
        let output = Arc::clone(self);
        std::thread::spawn(move || {
            if is_over(&pidfd) {
                let now = Instant::now();
                output.change(|printed| printed.ended = Some(now));
            }
        });
    }
}

/// Waits for the end of a process. False where that cannot be.
fn is_over(pidfd: &OwnedFd) -> bool {
    loop {
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None) {
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Settings for starting a process.
#[derive(Default)]
pub(super) struct Place {
    /// Open `cgroup.procs` of the group that it enters.
    pub cgroup_procs: Option<File>,
    /// Nodes that its memory is interleaved over, one bit each.
    pub interleave_mask: Option<u64>,
    /// Whether its mappings are to be apart from those of others.
    pub apart: bool,
    /// Whether its memory is in base pages alone.
    pub base_pages: bool,
    /// Processors that it runs on; `None` for those of this program.
    pub cpus: Option<CpuSet>,
    /// Whether lines can be written to it.
    pub stdin: bool,
}

/// A child process.
pub(super) struct Process {
    /// Its role in the session: `main`, `load`, `drive` or `verify`.
    role: &'static str,
    name: String,
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
    started: Instant,
    within: Duration,
    output: Arc<Output>,
    status: Option<ExitStatus>,
}

impl Process {
    pub fn start(
        role: &'static str,
        command: &LiveCommand,
        place: Place,
    ) -> Result<Process, SessionError> {
        let path = command.program.locate()?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let failed = |what: String| SessionError::Start { role, program: name.clone(), what };
        let entering = match (&place.cgroup_procs, place.interleave_mask) {
            (None, None) => "",
            (Some(_), None) => " in its control group",
            (None, Some(_)) => " with interleaved memory",
            (Some(_), Some(_)) => " in its control group with interleaved memory",
        };
        let mut prepared = Command::new(&path);
        prepared
            .args(&command.arguments)
            .envs(command.environment.iter().map(|(k, v)| (k, v)))
            .stdin(if place.stdin { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Its own group, so that its child processes can be ended with it.
            .process_group(0);
        before_exec(&mut prepared, place);
        let started = Instant::now();
        let mut child = prepared.spawn().map_err(|e| failed(format!("{e}{entering}")))?;
        let pid = Pid::from_child(&child);
        let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(format!("pidfd_open: {e}")));
            }
        };
        let output = Arc::new(Output::default());
        if let Some(stdout) = child.stdout.take() {
            output.follow(stdout, true);
        }
        if let Some(stderr) = child.stderr.take() {
            output.follow(stderr, false);
        }
        if let Ok(pidfd) = pidfd.try_clone() {
            output.note_end(pidfd);
        }
        Ok(Process {
            role,
            name,
            child,
            pid,
            pidfd,
            started,
            within: Duration::from_millis(command.within_ms),
            output,
            status: None,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Start time of the process.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// End time of the process, if known.
    pub fn ended(&self) -> Option<Instant> {
        self.output.read(|printed| printed.ended)
    }

    pub fn events(&self) -> Vec<Value> {
        self.output.read(|printed| printed.events.clone())
    }

    pub fn has_event(&self, name: &str) -> bool {
        self.output.read(|printed| printed.has_event(name))
    }

    /// Whether it prints this event, or ends, before the time is over.
    pub fn says_or_ends_within(&self, name: &str, timeout: Duration) -> bool {
        let printed = self.output.printed.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |printed: &mut Printed| !printed.has_event(name) && printed.open > 0;
        let waited = self.output.changed.wait_timeout_while(printed, timeout, waits);
        !waits(&mut waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// The last `result` event.
    pub fn result(&self) -> Option<Value> {
        self.output.read(|printed| printed.events.iter().rfind(|e| e["event"] == "result").cloned())
    }

    /// Writes a line to its standard input. A failure to write is reported when the end of the
    /// process is checked.
    pub fn write_line(&mut self, line: &str) {
        if let Some(stdin) = &mut self.child.stdin {
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }

    pub fn signal(&self, signal: Signal) {
        // A process that has ended already is not a failure to end it.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
    }

    /// Whether it ends before the time is over.
    pub fn ends_within(&mut self, timeout: Duration) -> bool {
        any_ends(&mut [self], timeout)
    }

    /// Waits for its end, within its bound from `since`, and checks how it ended: by itself with
    /// exit code 0, or with a result that reports the problem.
    pub fn finish(mut self, since: Instant) -> Result<Option<Value>, SessionError> {
        if !self.ends_within(self.within.saturating_sub(since.elapsed())) {
            return Err(SessionError::TooLong {
                role: self.role,
                program: self.name.clone(),
                within_ms: self.within.as_millis() as u64,
                printed: self.printed(),
            });
        }
        let status = self.reap();
        let result = self.result();
        let found_wrong = result.as_ref().and_then(is_intact) == Some(false);
        if status.success() || found_wrong { Ok(result) } else { Err(self.ended_badly()) }
    }

    /// The rest of its time limit, counted from its start.
    pub fn rest(&self) -> Duration {
        self.within.saturating_sub(self.started.elapsed())
    }

    /// As [`Process::finish`], with the bound running from its start.
    pub fn finish_from_start(self) -> Result<Option<Value>, SessionError> {
        let started = self.started;
        self.finish(started)
    }

    /// Ends it: SIGTERM, a short wait, SIGKILL.
    pub fn terminate(&mut self, grace: Duration) {
        self.signal(Signal::TERM);
        if !self.ends_within(grace) {
            self.signal(Signal::KILL);
        }
        self.reap();
    }

    /// The error for an unexpected end.
    pub fn ended_badly(&mut self) -> SessionError {
        let status = self.reap();
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => status.to_string(),
        };
        SessionError::Ended {
            role: self.role,
            program: self.name.clone(),
            how,
            printed: self.printed(),
        }
    }

    /// The error for not having become ready in time.
    pub fn not_ready(&self, expected: String, within_ms: u64) -> SessionError {
        SessionError::NotReady {
            role: self.role,
            program: self.name.clone(),
            expected,
            within_ms,
            printed: self.printed(),
        }
    }

    fn printed(&self) -> String {
        let tail = self.output.read(|printed| Vec::from(printed.tail.clone()).join(" | "));
        if tail.is_empty() { "nothing".to_owned() } else { format!("'{tail}'") }
    }

    /// Collects it once it has ended or been killed, and kills the processes left in its process
    /// group. The group is killed before the process is collected: until then its number cannot be
    /// another's.
    fn reap(&mut self) -> ExitStatus {
        if let Some(status) = self.status {
            return status;
        }
        // Wait without collecting.
        any_ends(&mut [self], Duration::MAX);
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap_or_else(|_| ExitStatus::from_raw(1 << 8));
        self.status = Some(status);
        let printed = self.output.printed.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self
            .output
            .changed
            .wait_timeout_while(printed, LAST_OUTPUT, |printed| printed.open > 0);
        status
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.signal(Signal::KILL);
            self.reap();
        }
    }
}

/// Whether a program found its own data intact; `None` if its result does not say. Programs of the
/// kind `program` check what they computed, the others what they stored.
pub(super) fn is_intact(result: &Value) -> Option<bool> {
    let found = ["checksum_ok", "verified"].map(|key| result.get(key).and_then(Value::as_bool));
    found.into_iter().flatten().reduce(|one, other| one && other)
}

/// Whether one of these processes ends before the time is over. Collects none.
pub(super) fn any_ends(processes: &mut [&mut Process], timeout: Duration) -> bool {
    if processes.iter().any(|p| p.status.is_some()) {
        return true;
    }
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let mut fds: Vec<_> =
            processes.iter().map(|p| PollFd::new(&p.pidfd, PollFlags::IN)).collect();
        let rest = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let rest = rest
            .map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
        match poll(&mut fds, rest.as_ref()) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

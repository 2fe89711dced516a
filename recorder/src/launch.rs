//! The launcher: starts the program under QEMU, receives its records, writes the file.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;
use terrace_recordings::container::PartialFile;
use terrace_recordings::error::RecordingError;
use terrace_recordings::reference::{
    BlockHead, CacheShape, Ending, Filter, Header, Level, Process, ReferenceWriter,
};

use crate::cache::{self, BadShape};
use crate::filter::Counts;
use crate::libraries;
use crate::places::{self, PLUGIN};
use crate::program::{self, ProgramError};
use crate::shared::{Content, Handed, Shared};
use crate::signals::Signals;
use crate::system_process::SystemProcess;

/// Time between two checks for processes that were killed.
const BETWEEN_SWEEPS: Duration = Duration::from_millis(500);
/// Longest wait before the launcher checks whether the program has ended.
const POLL: Duration = Duration::from_millis(20);
/// Signals this soon after the first count as the same request: `timeout` sends two.
const SAME_WISH: Duration = Duration::from_millis(200);

/// Advice for the system's error.
const MAKE_MEMORY: &str =
    "make 260 MB of shared memory (free memory, and 'ulimit -f', must allow that)";

/// How to record.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file to write.
    pub out: PathBuf,
    /// The caches and the sampling.
    pub filter: Filter,
    /// QEMU's user emulator; found on the PATH when not given.
    pub qemu: Option<PathBuf>,
    /// Folders of libraries for QEMU that the host lacks, as in `LD_LIBRARY_PATH`. The program gets
    /// the environment that the caller has.
    pub qemu_libraries: Option<String>,
    /// The plug-in; found beside the running program when not given.
    pub plugin: Option<PathBuf>,
    /// Program and version, written to the header.
    pub created_by: String,
}

/// Caches of a current server core: 32 KB and 1 MB of its own, 32 MB shared.
pub fn default_filter() -> Filter {
    Filter {
        level: Level::Llc,
        line_bytes: 64,
        l1: CacheShape { size_bytes: 32 << 10, ways: 8 },
        l2: CacheShape { size_bytes: 1 << 20, ways: 16 },
        llc: CacheShape { size_bytes: 32 << 20, ways: 16 },
        sample_one_in: 1,
    }
}

/// Why there is no recording, in one line: got, expected, what to do.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// QEMU is not installed.
    #[error("cannot find '{0}', which executes recorded programs; apt-get install qemu-user")]
    NoQemu(String),
    /// The plug-in is not where it should be.
    #[error(
        "cannot find the recorder's plug-in {PLUGIN} in {0} or ../lib/terrace from there; build both with 'make build' or give --plugin"
    )]
    NoPlugin(String),
    /// The given plug-in does not exist.
    #[error("cannot find the recorder's plug-in '{path}': {source}; give the path of {PLUGIN}")]
    BadPlugin {
        /// The path given.
        path: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// QEMU's command line cannot name this path.
    #[error("the plug-in's path '{0}' has a comma, which QEMU cannot take; move it")]
    Comma(String),
    /// The program cannot be recorded.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The caches are impossible.
    #[error(transparent)]
    Shape(#[from] BadShape),
    /// The file exists already.
    #[error("'{0}' exists, expected a new file; give another name or remove it")]
    Exists(String),
    /// The recording could not be written; nothing of it is left.
    #[error(transparent)]
    Write(#[from] RecordingError),
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// The action.
        action: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// QEMU ended before the program began.
    #[error(
        "QEMU ended ({0}) before the program began; see its message above, expected QEMU 6.0 to 8.2 with plug-ins, as Debian 12's qemu-user is; --qemu names one"
    )]
    NotStarted(ExitStatus),
}

/// Progress of a recording.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Since its start.
    pub elapsed: Duration,
    /// References written.
    pub references: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What was recorded.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The file.
    pub file: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// References in it.
    pub references: u64,
    /// References and misses of the filter. For threads that were killed, without about the last
    /// thousand references.
    pub counts: Counts,
    /// Instructions executed, summed over all streams.
    pub instructions: u64,
    /// Threads.
    pub streams: u32,
    /// Processes; a process that executes another program counts twice.
    pub processes: u32,
    /// How the program ended.
    pub status: ExitStatus,
    /// How the recording ended.
    pub ending: Ending,
    /// The signal that asked for the end, if one did.
    pub signal: Option<i32>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Runs a program and records it.
#[derive(Debug)]
pub struct Recorder {
    options: Options,
}

fn system(action: &'static str) -> impl FnOnce(std::io::Error) -> RecordError {
    move |source| RecordError::System { action, source }
}

impl Recorder {
    /// A recorder with these options.
    pub fn new(options: Options) -> Self {
        Recorder { options }
    }

    /// Runs the command to its end, and to the end of every process it left behind; writes the
    /// file. Calls `progress` about twice a second. On an error the file is removed and the program
    /// is ended.
    ///
    /// The first of `signals` goes to the program, which may end by it; recording goes on to its
    /// end. The second kills the program and all processes it started. Either way the file is
    /// completed, and marked if it is cut off.
    pub fn run(
        &self,
        command: &[OsString],
        signals: &Signals,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Summary, RecordError> {
        let name = command.first().map_or(OsStr::new(""), |name| name);
        cache::check(&self.options.filter)?;
        let path = program::find(name, std::env::var_os("PATH").as_deref())?;
        let program = program::resolve(&path)?;
        let qemu = places::qemu(self.options.qemu.as_deref())?;
        let plugin = places::plugin(self.options.plugin.as_deref())?;
        let out = &self.options.out;
        if out.exists() {
            return Err(RecordError::Exists(out.display().to_string()));
        }

        let memory = memfd_create("terrace-recorder", MemfdFlags::CLOEXEC)
            .map_err(|e| system(MAKE_MEMORY)(e.into()))?;
        let memory = File::from(memory);
        memory.set_len(Shared::SIZE_BYTES as u64).map_err(system(MAKE_MEMORY))?;
        let shared = Shared::map(&memory).map_err(system("map shared memory"))?;
        shared.begin(&self.options.filter);

        let header = Header {
            command: command.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
            filter: self.options.filter.clone(),
            base_page_bytes: 4096,
            huge_page_bytes: 2 << 20,
            write_backs: self.options.filter.level > Level::None,
            created_by: self.options.created_by.clone(),
            executed_by: version(&qemu, self.options.qemu_libraries.as_deref()),
        };
        let shown = out.display().to_string();
        let file = PartialFile::create(out).map_err(|source| RecordingError::Io {
            file: shown.clone(),
            action: "create",
            source,
        })?;
        let unfinished = Unfinished(Some(partial(out)));
        let writer = ReferenceWriter::new(file, &shown, &header)?;

        let memory_path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        let mut load = plugin.into_os_string();
        load.push(format!(",memory={memory_path}"));
        let mut qemu = Command::new(qemu);
        qemu.args(["-cpu", "max", "-seed", "1", "-plugin"]).arg(load);
        if let Some(folders) = &self.options.qemu_libraries {
            qemu.args(libraries::argument(std::env::var_os(libraries::VARIABLE)));
            qemu.env(libraries::VARIABLE, folders);
        }
        qemu.arg("-0");
        if program.before.is_empty() {
            qemu.arg(name).arg(&program.path);
        } else {
            qemu.arg(&program.before[0]).arg(&program.path).args(&program.before[1..]);
        }
        qemu.args(command.get(1..).unwrap_or_default());
        let child = qemu.spawn().map_err(system("start QEMU"))?;
        let receiver = Receiver {
            shared,
            writer,
            child,
            status: None,
            started: Instant::now(),
            partial: partial(out),
            ended: BTreeMap::new(),
            references: 0,
            bytes: Vec::new(),
            signals: signals.clone(),
            asked: None,
            heeded: 0,
            stopped: false,
        };
        receiver.run(out, unfinished, progress)
    }
}

fn partial(out: &Path) -> PathBuf {
    let mut partial = OsString::from(out);
    partial.push(".partial");
    PathBuf::from(partial)
}

fn version(qemu: &Path, libraries: Option<&str>) -> String {
    let mut command = Command::new(qemu);
    command.envs(libraries.map(|folders| (libraries::VARIABLE, folders)));
    let output = command.arg("--version").output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("qemu-x86_64").to_owned()
}

/// Removes the unfinished file when the recording fails.
struct Unfinished(Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = fs::remove_file(path);
        }
    }
}

struct Receiver {
    shared: Shared,
    writer: ReferenceWriter<PartialFile>,
    child: Child,
    status: Option<ExitStatus>,
    started: Instant,
    partial: PathBuf,
    /// By stream: instructions and counts, as last reported.
    ended: BTreeMap<u32, (u64, Counts)>,
    references: u64,
    bytes: Vec<u8>,
    signals: Signals,
    /// Time of the first signal.
    asked: Option<Instant>,
    /// Signals acted on.
    heeded: u32,
    stopped: bool,
}

impl Receiver {
    fn run(
        mut self,
        out: &Path,
        mut unfinished: Unfinished,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Summary, RecordError> {
        let received = self.receive_all(progress);
        self.shared.close();
        if let Err(error) = received {
            self.end_program();
            return Err(error);
        }
        let Some(status) = self.status else {
            return Err(system("wait for the program")(std::io::ErrorKind::Other.into()));
        };
        if self.shared.streams() == 0 {
            return Err(RecordError::NotStarted(status));
        }
        let ending = Ending {
            exit_code: status.code(),
            signal: status.signal(),
            killed: self.shared.unended(),
            stopped: self.stopped,
        };
        self.writer.ending(&ending)?;
        let file = self.writer.finish()?;
        let file = file.publish().map_err(|source| RecordingError::Io {
            file: out.display().to_string(),
            action: "finish",
            source,
        })?;
        unfinished.0 = None;
        let totals = self.ended.values();
        Ok(Summary {
            bytes: fs::metadata(&file).map_or(0, |m| m.len()),
            file,
            references: self.references,
            counts: totals.clone().fold(Counts::default(), |sum, (_, c)| sum.plus(*c)),
            instructions: totals.map(|(instructions, _)| instructions).sum(),
            streams: self.shared.streams(),
            processes: self.shared.system_processes().count() as u32,
            status,
            ending,
            signal: self.signals.last().filter(|_| self.asked.is_some()),
            elapsed: self.started.elapsed(),
        })
    }

    fn receive_all(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<(), RecordError> {
        let (mut seen, mut swept) = (0, Instant::now());
        loop {
            seen = self.shared.wait_handed(seen, POLL);
            self.heed_signals();
            for handed in self.shared.handed() {
                self.receive(&handed)?;
            }
            if self.status.is_none() {
                self.status = self.child.try_wait().map_err(system("wait for the program"))?;
            }
            let over = self.status.is_some();
            if over || self.stopped || swept.elapsed() >= BETWEEN_SWEEPS {
                swept = Instant::now();
                progress(self.progress());
                let known: Vec<SystemProcess> = self.shared.system_processes().collect();
                let mut alive: HashSet<SystemProcess> = known.iter().copied().collect();
                alive.retain(|process| process.is_alive());
                // Slots handed over before their owner was seen dead come first.
                for handed in self.shared.handed() {
                    self.receive(&handed)?;
                }
                let dead = |p: u32| known.get(p as usize).is_some_and(|p| !alive.contains(p));
                for handed in self.shared.left_behind(dead) {
                    self.receive(&handed)?;
                }
                if self.stopped {
                    alive.iter().for_each(|process| process.signal(Signal::KILL));
                }
                let none_is_new = self.shared.system_processes().count() == known.len();
                if over && alive.is_empty() && none_is_new {
                    return Ok(());
                }
            }
        }
    }

    /// Passes the first signal on, and kills everything at the second.
    fn heed_signals(&mut self) {
        if self.signals.received() == 0 || self.stopped {
            return;
        }
        let pass_on = self.signals.take_to_pass_on();
        let Some(asked) = self.asked else {
            self.asked = Some(Instant::now());
            self.heeded = self.signals.received();
            if let Some(signal) = pass_on.and_then(Signal::from_named_raw)
                && self.status.is_none()
            {
                SystemProcess { id: self.child.id(), start_ticks: 0 }.signal(signal);
            }
            return;
        };
        if self.signals.received() > self.heeded {
            self.heeded = self.signals.received();
            self.stopped = asked.elapsed() > SAME_WISH;
        }
    }

    fn progress(&self) -> Progress {
        Progress {
            elapsed: self.started.elapsed(),
            references: self.references,
            bytes: fs::metadata(&self.partial).map_or(0, |m| m.len()),
        }
    }

    fn receive(&mut self, handed: &Handed) -> Result<(), RecordError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        self.shared.receive(handed, &mut bytes);
        let start = handed.start;
        match handed.content {
            Content::Maps => self.writer.maps(start.process, start.time, &bytes)?,
            Content::Command => {
                // The recording does not refer to the system id of the first process, which differs
                // from run to run.
                let number = start.process as usize;
                let process = self.shared.system_processes().nth(number).filter(|_| number > 0);
                let system_id = process.map_or(0, |process| process.id);
                let text = String::from_utf8_lossy(&bytes);
                let command = text.split_terminator('\0').map(str::to_owned).collect();
                self.writer.process(&Process { process: start.process, system_id, command })?;
            }
            Content::Records => {
                self.references += handed.references;
                let (instructions, counts) = self.ended.entry(start.stream).or_default();
                *instructions = (*instructions).max(handed.end_instructions);
                if handed.counts != Counts::default() {
                    *counts = handed.counts;
                }
                let head = BlockHead {
                    stream: start.stream,
                    process: start.process,
                    time: start.time,
                    instructions: start.instructions,
                    references: handed.references,
                };
                self.writer.block(head, &bytes)?;
            }
        }
        self.bytes = bytes;
        Ok(())
    }

    fn end_program(&mut self) {
        let own = self.child.id();
        for process in self.shared.system_processes().filter(|process| process.id != own) {
            process.signal(Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Summary {
    /// How the program ended, in words.
    pub fn ending(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("ended with exit code {code}"),
            (None, Some(signal)) => format!("was killed by signal {signal}"),
            (None, None) => format!("ended with {}", self.status),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_process_that_has_the_id_of_a_recorded_one_neither_keeps_the_recording_nor_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("r.tref");
        let memory = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(Shared::SIZE_BYTES as u64).unwrap();
        let shared = Shared::map(&memory).unwrap();
        shared.begin(&default_filter());
        let mut foreign = Command::new("sleep").arg("600").spawn().unwrap();
        // A recorded process that was killed, long before this one got its id.
        shared.new_process(SystemProcess { id: foreign.id(), start_ticks: 1 }).unwrap();
        let header = Header {
            command: Vec::new(),
            filter: default_filter(),
            base_page_bytes: 4096,
            huge_page_bytes: 2 << 20,
            write_backs: true,
            created_by: String::new(),
            executed_by: String::new(),
        };
        let file = PartialFile::create(&out).unwrap();
        let mut receiver = Receiver {
            shared,
            writer: ReferenceWriter::new(file, "r.tref", &header).unwrap(),
            child: Command::new("true").spawn().unwrap(),
            status: None,
            started: Instant::now(),
            partial: partial(&out),
            ended: BTreeMap::new(),
            references: 0,
            bytes: Vec::new(),
            signals: Signals::none(),
            asked: None,
            heeded: 0,
            stopped: true,
        };
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || {
            let received = receiver.receive_all(&mut |_| {});
            receiver.end_program();
            ended.send(received.is_ok())
        });
        assert_eq!(end.recv_timeout(Duration::from_secs(60)), Ok(true), "it goes on for ever");
        assert!(foreign.try_wait().unwrap().is_none(), "another's process was killed");
        foreign.kill().unwrap();
        foreign.wait().unwrap();
    }
}

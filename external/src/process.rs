//! The process of a policy: started without privileges, spoken to by threads that wait in Terrace's
//! place, and gone with its last user.

use std::io::{self, BufReader, BufWriter, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, os::unix::process::CommandExt};

use crate::config::ExternalPolicy;
use crate::protocol::{FromPolicy, Hello, ToPolicy, line};

/// The module of the Python package that runs a policy.
const MODULE: &str = "terrace.serve";
/// How long a process that was killed is waited for.
const END: Duration = Duration::from_secs(1);
/// Bytes of what a policy printed that are kept.
const PRINTED: usize = 4096;
/// Of all processes the kernel ends a policy's first where memory runs out: it can be done without.
const OOM_SCORE: &str = "500";

/// What came of waiting for a process.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A message.
    Message(FromPolicy),
    /// Nothing, in time.
    Nothing,
    /// It is gone, or speaks nonsense: why.
    Gone(String),
}

/// A process.
pub struct PolicyProcess {
    child: Child,
    to: Option<SyncSender<ToPolicy>>,
    from: Receiver<io::Result<FromPolicy>>,
    /// The end of what it printed.
    printed: Arc<Mutex<Vec<u8>>>,
    /// Reads that, as long as there may be more.
    reader: Option<JoinHandle<()>>,
}

impl PolicyProcess {
    /// Starts one and introduces the policy to it.
    pub fn start(policy: &ExternalPolicy, seed: u64) -> io::Result<Self> {
        let mut command = Command::new(&policy.interpreter);
        // Isolated: no variables, no folders of its user, no folder that it happens to be in.
        command.args(["-I", "-B", "-m", MODULE]).arg(&policy.file).arg(&policy.class);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LANG", "C.UTF-8");
        // Threads of numerical libraries: it has one processor at most.
        command.env("OPENBLAS_NUM_THREADS", "1").env("OMP_NUM_THREADS", "1");
        command.current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some((uid, gid)) = policy.user {
            command.uid(uid).gid(gid);
        }
        let mut child = command.spawn().map_err(|e| refused_start(policy, &e))?;
        let _ = fs::write(format!("/proc/{}/oom_score_adj", child.id()), OOM_SCORE);
        let (to, messages) = mpsc::sync_channel::<ToPolicy>(2);
        let (heard, from) = mpsc::channel();
        let printed = Arc::new(Mutex::new(Vec::new()));
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut process = PolicyProcess { child, to: Some(to), from, printed, reader: None };
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(io::Error::other("a process without pipes"));
        };
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        named("policy-out").spawn(move || {
            let mut stdin = BufWriter::new(stdin);
            while let Ok(message) = messages.recv() {
                if message.send(&mut stdin).is_err() {
                    return;
                }
            }
        })?;
        named("policy-in").spawn(move || {
            let mut stdout = BufReader::new(stdout);
            while let Some(message) = FromPolicy::receive(&mut stdout).transpose() {
                let is_last = message.is_err();
                if heard.send(message).is_err() || is_last {
                    return;
                }
            }
        })?;
        let kept = Arc::clone(&process.printed);
        process.reader = Some(named("policy-err").spawn(move || keep(stderr, &kept))?);
        let hello = Hello {
            policy: policy.name.to_owned(),
            file: policy.file.display().to_string(),
            class: policy.class.clone(),
            source: policy.source.clone(),
            seed,
            memory_bytes: policy.memory_bytes,
        };
        match process.send(ToPolicy::Hello(Box::new(hello))) {
            true => Ok(process),
            false => Err(io::Error::other(process.why_gone())),
        }
    }

    /// Its identifier.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a message, without waiting for it to be read. False where it is gone, or has not read
    /// what it was sent before.
    pub fn send(&self, message: ToPolicy) -> bool {
        self.to.as_ref().is_some_and(|to| to.try_send(message).is_ok())
    }

    /// Waits for a message.
    pub fn hear(&mut self, until: Instant) -> Heard {
        match self.from.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Ok(message)) => Heard::Message(message),
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Heard::Gone(self.why_gone())
            }
            Ok(Err(error)) => Heard::Gone(error.to_string()),
            Err(RecvTimeoutError::Timeout) => Heard::Nothing,
            Err(RecvTimeoutError::Disconnected) => Heard::Gone(self.why_gone()),
        }
    }

    /// Why it is gone, as far as that can be known.
    fn why_gone(&mut self) -> String {
        let status = match waited(|| self.child.try_wait().ok().flatten()) {
            Some(status) => status.to_string(),
            None => "it closed its pipe".to_owned(),
        };
        waited(|| self.reader.as_ref().is_none_or(JoinHandle::is_finished).then_some(()));
        let printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        let last = printed.split(|byte| *byte == b'\n').rfind(|line| !line.trim_ascii().is_empty());
        match last {
            Some(last) => format!("{status}: {}", line(last)),
            None => status,
        }
    }
}

/// What is there after a while, if it is.
fn waited<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + END;
    loop {
        match look() {
            None if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
            other => return other,
        }
    }
}

impl Drop for PolicyProcess {
    fn drop(&mut self) {
        // One that waits ends by itself when its pipe is closed; any other is killed.
        self.to = None;
        let _ = self.child.kill();
        if waited(|| self.child.try_wait().ok().flatten()).is_none() {
            tracing::warn!(pid = self.child.id(), "the process of a policy could not be ended");
        }
    }
}

/// Why a process could not be started, and what to do.
fn refused_start(policy: &ExternalPolicy, error: &io::Error) -> io::Error {
    let program = policy.interpreter.display();
    match (policy.user, error.kind()) {
        (Some((uid, _)), io::ErrorKind::PermissionDenied) => io::Error::other(format!(
            "{program} as user {uid}: {error}; expected the capabilities SETUID, SETGID and KILL \
             (docs/python.md has the drop-in of the unit), and a program that this user may run"
        )),
        _ => io::Error::other(format!("{program}: {error}")),
    }
}

/// Keeps the end of what a process prints.
fn keep(mut from: ChildStderr, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&buffer[..length]);
        let surplus = kept.len().saturating_sub(PRINTED);
        kept.drain(..surplus);
    }
}

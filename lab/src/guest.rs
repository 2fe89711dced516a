//! One running guest: QEMU from its start to its end, whichever way it ends.
//!
//! All data passes through file descriptors that QEMU inherits: the initramfs is an anonymous
//! memory file, the ports are socket pairs. So no file is left on the host, whichever process is
//! killed, and QEMU dies with the process that started it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::error::{Doing, LabError, Phase};
use crate::job::Event;
use crate::lines::{LineSplitter, Tail, TrailerFilter};
use crate::qemu::QemuProgram;
use crate::spawn::bind_to_parent;
use crate::terminal::{Ends, Joined};

/// Bytes of each of the command's two outputs that are kept; all of it is passed on as [`Event`]s.
pub const OUTPUT_MAX_BYTES: usize = 64 << 20;

/// Lines of the console that are kept for error reports: enough for an oops with the two traces of
/// a panic.
const CONSOLE_TAIL_LINES: usize = 120;
const OUTPUT_TAIL_LINES: usize = 20;

/// What a guest is started with.
pub(crate) struct GuestStart<'a> {
    pub qemu: &'a QemuProgram,
    pub qemu_args: Vec<String>,
    pub extra_qemu_args: &'a [String],
    pub kernel: &'a Path,
    pub kernel_args: &'a [String],
    /// An anonymous file.
    pub initramfs: &'a File,
    /// The trailer that ends the streams; the same is in the initramfs.
    pub trailer: &'a str,
    /// Whether the command has a terminal, joined to that of this process.
    pub terminal: bool,
    /// Start of the first attempt to boot: the bounds count from here.
    pub begun: Instant,
    /// At which this attempt is given up.
    pub boot_bound: Duration,
    /// Bound on the whole run, the boot included.
    pub bound: Duration,
    /// Whether the guest's clocks count instructions: then nothing may depend on when the host runs
    /// it.
    pub counts_instructions: bool,
}

/// The end of a guest whose command ended.
#[derive(Debug)]
pub(crate) struct GuestEnd {
    pub exit_code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub missing_results: Vec<PathBuf>,
    /// Tar archives, concatenated.
    pub results: File,
    pub kernel_release: String,
    pub boot_ms: u64,
    pub run_ms: u64,
    pub console_tail: Vec<String>,
}

/// Kills and reaps QEMU when it goes out of scope.
struct Qemu(Child);

impl Qemu {
    fn stop(&mut self) -> Option<ExitStatus> {
        let _ = self.0.kill();
        self.0.wait().ok()
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The ports, in the order in which they are given to QEMU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Port {
    Console,
    Control,
    Stdout,
    Stderr,
    Results,
    QemuErrors,
    /// The host's own: whether the machine is to be switched off.
    Off,
}

const GUEST_PORTS: [Port; 4] = [Port::Control, Port::Stdout, Port::Stderr, Port::Results];

/// Kernel arguments of a guest whose processor is emulated. An emulator translates code for the address
/// that it is at: where every start of a program has addresses of its own, each start is translated
/// anew, which took three quarters of the time of scripts that start many. And Debian's kernel tests its
/// ciphers (RSA, elliptic curves) in threads that run for some 300 million instructions after the first
/// process has started, and would count for the first programs.
pub(crate) const EMULATED: [&str; 2] = ["norandmaps", "cryptomgr.notests"];

/// The kernel's command line, with the user's words last.
fn kernel_command_line(extra: &[String]) -> String {
    // A panic, and every oops, ends the machine at once (QEMU runs with -no-reboot). No warning
    // about an emulated timer that fires late on a busy host.
    let mut line =
        String::from("console=ttyS0 quiet panic=-1 oops=panic no_timer_check rdinit=/init");
    for word in extra {
        line.push(' ');
        line.push_str(word);
    }
    line
}

/// A port and our end of its stream; `None` once the stream has ended.
type OpenPort = (Port, Option<Box<dyn PortStream>>);

/// A QEMU that has been started.
struct Spawned {
    qemu: Qemu,
    /// Our ends of its ports.
    ours: Vec<OpenPort>,
    /// Those of the command's terminal, if it has one.
    terminal: Option<Ends>,
    /// The time of its start.
    started: Instant,
}

/// Starts QEMU with its ports.
fn spawn(start: &GuestStart<'_>) -> Result<Spawned, LabError> {
    let mut ours: Vec<OpenPort> = Vec::new();
    let mut theirs: Vec<OwnedFd> = Vec::new();
    let mut command = start.qemu.command();
    command.args(&start.qemu_args);
    command.arg("-kernel").arg(start.kernel);
    command.arg("-append").arg(kernel_command_line(start.kernel_args));
    let initramfs = start.initramfs.try_clone().doing("hand the initramfs over")?;
    command.arg("-initrd").arg(format!("/proc/self/fd/{}", initramfs.as_raw_fd()));
    theirs.push(initramfs.into());
    let mut pair = |id: &str| -> Result<(UnixStream, String), LabError> {
        let (host, guest) = socket_pair()?;
        let argument = format!("socket,id={id},fd={}", guest.as_raw_fd());
        theirs.push(guest.into());
        Ok((host, argument))
    };
    let terminal = match start.terminal {
        true => Some((pair("screen")?, pair("sizes")?)),
        false => None,
    };
    let mut chardev = |port: Port, id: &str| -> Result<String, LabError> {
        let (host, argument) = pair(id)?;
        host.set_nonblocking(true).doing("make a socket non-blocking")?;
        ours.push((port, Some(Box::new(host))));
        Ok(argument)
    };
    command.arg("-chardev").arg(chardev(Port::Console, "console")?);
    command.args(["-serial", "chardev:console"]);
    // The kernel's driver of these ports waits in a loop until the machine has taken its data. By
    // default another thread of QEMU takes the data, when the host runs that thread: the length of
    // the loop then depends on the load of the host, for a clock that counts instructions too.
    let taken = if start.counts_instructions { ",ioeventfd=off" } else { "" };
    command.arg("-device").arg(format!("virtio-serial-pci,max_ports=8{taken}"));
    for (index, port) in GUEST_PORTS.into_iter().enumerate() {
        let (id, number) = (format!("port{}", index + 1), index + 1);
        command.arg("-chardev").arg(chardev(port, &id)?);
        command.arg("-device").arg(format!("virtserialport,chardev={id},nr={number}"));
    }
    let mut ends = None;
    if let Some(((screen, screen_argument), (sizes, sizes_argument))) = terminal {
        command.args(["-chardev", &screen_argument, "-chardev", &sizes_argument]);
        command.args(["-device", "virtconsole,chardev=screen,nr=5"]);
        command.args(["-device", "virtserialport,chardev=sizes,nr=6"]);
        let (seen, off) = socket_pair()?;
        ours.push((Port::Off, Some(Box::new(seen))));
        ends = Some(Ends { screen, sizes, off });
    }
    command.args(start.extra_qemu_args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    bind_to_parent(&mut command, theirs);

    let started = Instant::now();
    let mut qemu = Qemu(command.spawn().doing(format!("start {}", start.qemu.path.display()))?);
    // Dropping the command closes our copies of QEMU's ends, so that QEMU's end is the end of the
    // streams.
    drop(command);
    let errors = qemu.0.stderr.take().map(|stderr| Box::new(stderr) as Box<dyn PortStream>);
    ours.push((Port::QemuErrors, errors));
    Ok(Spawned { qemu, ours, terminal: ends, started })
}

fn socket_pair() -> Result<(UnixStream, UnixStream), LabError> {
    UnixStream::pair().doing("make a socket pair for the guest")
}

/// Waits for data on the open ports, no longer than `left`; returns the indices of ports with data.
fn wait_ready(ports: &[OpenPort], open: &[usize], left: Duration) -> Result<Vec<usize>, LabError> {
    let mut fds: Vec<PollFd<'_>> = open
        .iter()
        .filter_map(|&i| ports[i].1.as_ref())
        .map(|stream| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN))
        .collect();
    let timeout = rustix::event::Timespec::try_from(left)
        .map_err(|_| std::io::ErrorKind::InvalidInput)
        .doing("count the guest's time")?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e).doing("wait for the guest"),
    }
    Ok(open.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(&i, _)| i).collect())
}

/// Runs a guest to its end and passes lines to `event` as they arrive.
pub(crate) fn run(
    start: &GuestStart<'_>,
    event: &mut dyn FnMut(Event),
) -> Result<GuestEnd, LabError> {
    // Dropped last, when QEMU and with it the guest's terminal have ended.
    let mut _joined = None;
    let Spawned { mut qemu, mut ours, mut terminal, started } = spawn(start)?;
    let mut state = State::new(start.trailer, started)?;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        if state.complete() {
            qemu.stop();
            return state.end();
        }
        let bound = match state.phase {
            Phase::Booting => start.boot_bound.min(start.bound),
            Phase::Running | Phase::Collecting => start.bound,
        };
        let left = bound.saturating_sub(start.begun.elapsed());
        if left.is_zero() {
            qemu.stop();
            return Err(state.timed_out(bound, event));
        }
        let open: Vec<usize> = (0..ours.len()).filter(|&i| ours[i].1.is_some()).collect();
        if open.is_empty() {
            // Its streams ended, so QEMU did.
            let status = qemu.0.wait().doing("wait for QEMU")?;
            return Err(state.ended_early(status, event));
        }
        let ready = wait_ready(&ours, &open, left)?;
        for index in ready {
            let (port, slot) = &mut ours[index];
            let Some(stream) = slot else { continue };
            match stream.read(&mut buffer) {
                Ok(0) => *slot = None,
                Ok(n) => state.take(*port, &buffer[..n], event)?,
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
                    ) => {}
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => *slot = None,
                Err(e) => return Err(e).doing("read from the guest"),
            }
        }
        if state.phase == Phase::Running {
            _joined = terminal.take().map(Joined::begin).transpose()?.or(_joined);
        }
    }
}

/// Something to poll and read.
trait PortStream: Read + AsFd {}
impl<T: Read + AsFd> PortStream for T {}

/// What is known of the guest.
struct State {
    started: Instant,
    phase: Phase,
    console: LineSplitter,
    console_tail: Tail,
    panic_message: Option<String>,
    control: LineSplitter,
    control_lines: Vec<String>,
    stdout: Output,
    stderr: Output,
    output_tail: Tail,
    results: File,
    results_filter: TrailerFilter,
    qemu_errors: Vec<u8>,
    kernel_release: String,
    boot_ms: u64,
    missing_results: Vec<PathBuf>,
    exit: Option<(i32, u64)>,
}

/// One of the command's two outputs.
struct Output {
    filter: TrailerFilter,
    lines: LineSplitter,
    kept: Vec<u8>,
}

impl Output {
    fn new(trailer: &str) -> Self {
        let filter = TrailerFilter::new(trailer);
        Self { filter, lines: LineSplitter::default(), kept: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8], mut line: impl FnMut(String)) {
        let bytes = self.filter.push(bytes);
        let room = OUTPUT_MAX_BYTES - self.kept.len();
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.lines.push(&bytes, &mut line);
        if self.filter.done() {
            self.lines.finish(line);
        }
    }

    /// Passes on an unfinished last line at the end of the stream.
    fn flush(&mut self, mut line: impl FnMut(String)) {
        let held = self.filter.finish();
        self.lines.push(&held, &mut line);
        self.lines.finish(line);
    }
}

impl State {
    fn new(trailer: &str, started: Instant) -> Result<Self, LabError> {
        Ok(Self {
            started,
            phase: Phase::Booting,
            console: LineSplitter::default(),
            console_tail: Tail::new(CONSOLE_TAIL_LINES),
            panic_message: None,
            control: LineSplitter::default(),
            control_lines: Vec::new(),
            stdout: Output::new(trailer),
            stderr: Output::new(trailer),
            output_tail: Tail::new(OUTPUT_TAIL_LINES),
            results: tempfile::tempfile().doing("make a temporary file for results")?,
            results_filter: TrailerFilter::new(trailer),
            qemu_errors: Vec::new(),
            kernel_release: String::new(),
            boot_ms: 0,
            missing_results: Vec::new(),
            exit: None,
        })
    }

    fn complete(&self) -> bool {
        self.exit.is_some()
            && self.stdout.filter.done()
            && self.stderr.filter.done()
            && self.results_filter.done()
    }

    fn take(
        &mut self,
        port: Port,
        bytes: &[u8],
        event: &mut dyn FnMut(Event),
    ) -> Result<(), LabError> {
        match port {
            Port::Console => {
                let (tail, panic) = (&mut self.console_tail, &mut self.panic_message);
                self.console.push(bytes, |line| console_line(line, tail, panic, event));
            }
            Port::Control => {
                self.control.push(bytes, |line| self.control_lines.push(line));
                for line in std::mem::take(&mut self.control_lines) {
                    self.control_line(&line, event);
                }
            }
            Port::Stdout => {
                let tail = &mut self.output_tail;
                self.stdout.take(bytes, |line| {
                    tail.push(line.clone());
                    event(Event::Stdout(line));
                });
                if self.stdout.filter.done() {
                    self.phase = Phase::Collecting;
                }
            }
            Port::Stderr => {
                let tail = &mut self.output_tail;
                self.stderr.take(bytes, |line| {
                    tail.push(line.clone());
                    event(Event::Stderr(line));
                });
            }
            Port::Results => {
                let bytes = self.results_filter.push(bytes);
                self.results.write_all(&bytes).doing("store the guest's results")?;
            }
            Port::Off => return Err(LabError::SwitchedOff),
            Port::QemuErrors => {
                let room = (64 * 1024usize).saturating_sub(self.qemu_errors.len());
                self.qemu_errors.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        }
        Ok(())
    }

    fn control_line(&mut self, line: &str, event: &mut dyn FnMut(Event)) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "ready" => {
                self.phase = Phase::Running;
                self.boot_ms = millis(self.started.elapsed());
                self.kernel_release = rest.to_owned();
                event(Event::Booted {
                    kernel_release: self.kernel_release.clone(),
                    boot_ms: self.boot_ms,
                });
            }
            "missing" => self.missing_results.push(PathBuf::from(format!("/{rest}"))),
            "exit" => {
                let mut numbers = rest.split(' ');
                let code = numbers.next().and_then(|word| word.parse().ok());
                let oom_kills = numbers.next().and_then(|word| word.parse().ok());
                self.exit = code.zip(oom_kills);
            }
            _ => tracing::warn!("the guest's first process printed {line:?}"),
        }
    }

    fn end(mut self) -> Result<GuestEnd, LabError> {
        let (exit_code, oom_kills) = self.exit.unwrap_or((-1, 0));
        // 137 is 128 + SIGKILL, which is what the kernel sends.
        if exit_code == 137 && oom_kills > 0 {
            return Err(LabError::OutOfMemory { console_tail: self.console_tail.to_vec() });
        }
        self.results.seek(SeekFrom::Start(0)).doing("read the guest's results again")?;
        Ok(GuestEnd {
            exit_code,
            stdout: self.stdout.kept,
            stderr: self.stderr.kept,
            missing_results: self.missing_results,
            results: self.results,
            kernel_release: self.kernel_release,
            boot_ms: self.boot_ms,
            run_ms: millis(self.started.elapsed()),
            console_tail: self.console_tail.to_vec(),
        })
    }

    fn timed_out(mut self, bound: Duration, event: &mut dyn FnMut(Event)) -> LabError {
        self.flush(event);
        LabError::TimedOut {
            phase: self.phase,
            bound_ms: millis(bound),
            console_tail: self.console_tail.to_vec(),
            output_tail: self.output_tail.to_vec(),
        }
    }

    /// Passes on unfinished last lines at the end of the streams.
    fn flush(&mut self, event: &mut dyn FnMut(Event)) {
        let (tail, panic) = (&mut self.console_tail, &mut self.panic_message);
        self.console.finish(|line| console_line(line, tail, panic, event));
        let tail = &mut self.output_tail;
        let mut keep = |line: &String| tail.push(line.clone());
        self.stdout.flush(|line| {
            keep(&line);
            event(Event::Stdout(line));
        });
        self.stderr.flush(|line| {
            keep(&line);
            event(Event::Stderr(line));
        });
    }

    /// QEMU ended before the guest had sent everything.
    fn ended_early(mut self, status: ExitStatus, event: &mut dyn FnMut(Event)) -> LabError {
        self.flush(event);
        let (phase, console_tail) = (self.phase, self.console_tail.to_vec());
        if let Some(message) = self.panic_message {
            return LabError::Panicked { phase, message, console_tail };
        }
        if status.success() {
            return LabError::EndedEarly { phase, console_tail };
        }
        let errors = String::from_utf8_lossy(&self.qemu_errors);
        let message = errors.lines().rfind(|line| !line.trim().is_empty());
        LabError::Qemu {
            status: status.to_string(),
            message: message.unwrap_or("it wrote no reason").trim().to_owned(),
            console_tail,
        }
    }
}

fn console_line(
    line: String,
    tail: &mut Tail,
    panic: &mut Option<String>,
    event: &mut dyn FnMut(Event),
) {
    if let Some(at) = line.find("Kernel panic")
        && panic.is_none()
    {
        *panic = Some(line[at..].to_owned());
    }
    tail.push(line.clone());
    event(Event::Console(line));
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

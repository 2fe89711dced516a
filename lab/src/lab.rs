//! Runs a job: prepares, starts, waits, unpacks results.

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::accel::{self, Accel, AccelChoice, PROBE_BOUND, ProbeKey, Verdict};
use crate::accesses::Counting;
use crate::cache::Cache;
use crate::closure::{Closure, Sources, closure, folder, is_static};
use crate::error::{Doing, LabError, Phase};
use crate::guest::{self, GuestEnd, GuestStart};
use crate::initramfs::Initramfs;
use crate::job::{Event, GuestFile, GuestJob, GuestResult, Program, ResultsDir};
use crate::kernel::Kernel;
use crate::machine::GuestMachine;
use crate::packages::Packages;
use crate::qemu::{Qemu, QemuProgram};
use crate::requirements::{find_program, missing_requirements};
use crate::root;
use crate::temporary::TemporaryFolder;
use crate::timed::{self, Timing};
use crate::whole::whole;
use terrace_recorder::nodes::Mark;

const INIT: &str = include_str!("init.sh");
const SERVE: &str = include_str!("serve.sh");
/// The program with which a command begins another window of counts.
pub(crate) const COUNT_PERIOD: &str = "/usr/bin/count-period";

/// A guest under software emulation on a busy host sometimes dies or hangs while it boots (one in a
/// hundred with QEMU 7.2). The bound on the boot holds for all attempts together.
const BOOT_ATTEMPTS: u32 = 3;

/// Runs a guest, and boots it again where a boot dies or, if it may, hangs.
fn run_attempts(
    mut start: GuestStart<'_>,
    may_hang: bool,
    event: &mut dyn FnMut(Event),
) -> Result<GuestEnd, LabError> {
    let boot_bound = start.boot_bound;
    for attempt in 1..BOOT_ATTEMPTS {
        if may_hang {
            start.boot_bound = boot_bound * attempt / BOOT_ATTEMPTS;
        }
        match guest::run(&start, event) {
            // Nothing of the job has run yet, so it can be started again.
            Err(
                error @ (LabError::Panicked { phase: Phase::Booting, .. }
                | LabError::EndedEarly { phase: Phase::Booting, .. }
                | LabError::TimedOut { phase: Phase::Booting, .. }),
            ) if start.begun.elapsed() < boot_bound.min(start.bound) => {
                event(Event::Preparing(format!("booting again, for {error}")));
            }
            end => return end,
        }
    }
    guest::run(&GuestStart { boot_bound, ..start }, event)
}

/// The machine and where fetched things are kept.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LabConfig {
    /// The machine.
    pub machine: GuestMachine,
    /// The cache; the user's if not given (see [`Cache::of_user`]).
    pub cache_dir: Option<PathBuf>,
}

/// Runs jobs in virtual two-tier machines, each in a fresh one.
#[derive(Debug, Clone)]
pub struct Lab {
    machine: GuestMachine,
    cache: Cache,
    /// The host's QEMU; `None` where a packaged one has to be fetched first.
    host_qemu: Option<QemuProgram>,
}

impl Lab {
    /// A lab for this machine. Fails if the machine is impossible or the host lacks a requirement;
    /// fetches and starts nothing yet.
    pub fn new(config: LabConfig) -> Result<Self, LabError> {
        let machine = config.machine;
        machine.check()?;
        if let Some(missing) = missing_requirements(&machine).into_iter().next() {
            return Err(missing.into());
        }
        let cache = config.cache_dir.map_or_else(Cache::of_user, Cache::at)?;
        let host_qemu = match &machine.qemu {
            qemu @ Qemu::Host(_) => Some(qemu.program(&cache, &mut |_| {})?),
            Qemu::Packaged { .. } => None,
        };
        Ok(Self { machine, cache, host_qemu })
    }

    /// The machine.
    #[must_use]
    pub fn machine(&self) -> &GuestMachine {
        &self.machine
    }

    /// Runs a job and waits for its end; `event` gets events as they happen. A command that ends
    /// with another exit code than 0 is no error of the lab.
    pub fn run(
        &self,
        job: &GuestJob,
        mut event: impl FnMut(Event),
    ) -> Result<GuestResult, LabError> {
        let results = results_target(job)?;
        if self.machine.root.is_some() && !job.programs.is_empty() {
            return Err(LabError::Invalid {
                what: "the programs to carry in",
                got: format!("{} beside a root disk", job.programs.len()),
                expected: "none: install them on the disk, or carry them in as files".to_owned(),
            });
        }
        if self.machine.root.is_some() && job.terminal {
            return Err(LabError::Invalid {
                what: "the command's terminal",
                got: "one beside a root disk".to_owned(),
                expected: "one of them".to_owned(),
            });
        }
        // Checked before a kernel is fetched for nothing.
        for program in &job.programs {
            if let Program::Host(path) = program {
                host_program(path)?;
            }
        }
        let kernel =
            self.machine.kernel.image(&self.cache, &mut |text| event(Event::Preparing(text)))?;
        let qemu = match &self.host_qemu {
            Some(qemu) => qemu.clone(),
            None => {
                self.machine.qemu.program(&self.cache, &mut |text| event(Event::Preparing(text)))?
            }
        };
        let accel = self.choose_accel(&qemu, &kernel, &mut event)?;
        let counted = self.machine.count_accesses.as_ref();
        let counting = counted.map(|caches| Counting::new(&self.machine, caches, qemu.version));
        let counting = counting.transpose()?;
        let timing = self.machine.memory_clock.as_ref();
        let timing = timing.map(|config| Timing::new(&self.machine, config, qemu.version, &kernel));
        let timing = timing.transpose()?;
        // During the boot every load and store calls the plug-in, or every instruction is counted.
        let slow = counting.is_some() || self.machine.counts_instructions();
        let times = if slow { 3 } else { 1 };
        let bound = self.machine.boot_timeout.saturating_mul(times);
        let plugin = counting.as_ref().map(Counting::plugin_argument);
        let plugin = plugin.or_else(|| timing.as_ref().map(Timing::plugin_argument));
        let mut plugin_args: Vec<String> = timing.iter().flat_map(Timing::port_arguments).collect();
        plugin_args.extend(plugin.into_iter().flat_map(|plugin| ["-plugin".to_owned(), plugin]));
        let end = self.run_guest(job, (&qemu, &kernel), &accel, bound, plugin_args, &mut event)?;
        let accesses = counting.zip(counted).map(|(counting, caches)| counting.finish(caches));
        let accesses = accesses.transpose()?;
        let clock = match timing.map(Timing::finish).transpose() {
            // A command that failed before it marked the beginning has reported why.
            Err(_) if self.machine.begins_marked && end.exit_code != 0 => None,
            clock => clock?,
        };
        let results = results.fill(end.results)?;
        Ok(GuestResult {
            exit_code: end.exit_code,
            stdout: end.stdout,
            stderr: end.stderr,
            missing_results: end.missing_results,
            accel,
            kernel_release: end.kernel_release,
            boot_ms: end.boot_ms,
            run_ms: end.run_ms,
            console_tail: end.console_tail,
            accesses,
            clock,
            results,
        })
    }

    fn run_guest(
        &self,
        job: &GuestJob,
        (qemu, kernel): (&QemuProgram, &Path),
        accel: &AccelChoice,
        boot_bound: Duration,
        plugin_args: Vec<String>,
        event: &mut dyn FnMut(Event),
    ) -> Result<GuestEnd, LabError> {
        let trailer = random_trailer()?;
        let mut root = self.root_file_system(job, &trailer, event)?;
        if self.machine.root.is_some() {
            let modules =
                Kernel::modules(kernel, &self.cache, &mut |text| event(Event::Preparing(text)))?;
            root::put(&mut root, job, modules.as_deref())?;
        }
        // For commands that divide their counts into windows; no effect where nothing is counted.
        root.bytes(COUNT_PERIOD, Mark::Period.program(), 0o755)?;
        let mut extra_qemu_args = self.machine.extra_qemu_args.clone();
        let mut kernel_args: Vec<String> = Vec::new();
        if !accel.kvm {
            kernel_args.extend(guest::EMULATED.map(str::to_owned));
        }
        // After the ports, whose names in the guest contain the number of their virtio device.
        extra_qemu_args.extend(self.machine.root.iter().flat_map(|disk| root::qemu_args(disk)));
        if !plugin_args.is_empty() {
            let first = match self.machine.begins_marked {
                false => Some(Mark::Begin),
                // The command marks the beginning itself.
                true => self.machine.memory_clock.is_some().then_some(Mark::Sample),
            };
            if let Some(mark) = first {
                root.bytes("/.lab/begin-counting", mark.program(), 0o700)?;
            }
            root.bytes("/.lab/end-counting", Mark::End.program(), 0o700)?;
            extra_qemu_args.extend(plugin_args);
        }
        if self.machine.memory_clock.is_some() {
            kernel_args.extend(timed::kernel_args(qemu.version));
        }
        // The user's words last: they count.
        kernel_args.extend_from_slice(&self.machine.kernel_args);
        let (initramfs, initramfs_bytes) = root.write_to_memory()?;
        // The archive and its unpacked contents are in fast memory at the same time.
        if initramfs_bytes.saturating_mul(2) > self.machine.fast_bytes {
            return Err(LabError::Invalid {
                what: "the machine's fast memory",
                got: format!("{} bytes", self.machine.fast_bytes),
                expected: format!(
                    "at least twice the {initramfs_bytes} bytes of programs and files carried in"
                ),
            });
        }
        event(Event::Starting { accel: accel.clone(), initramfs_bytes });
        let start = GuestStart {
            qemu,
            qemu_args: self.machine.qemu_args(accel.kvm, qemu.version),
            extra_qemu_args: &extra_qemu_args,
            kernel,
            kernel_args: &kernel_args,
            initramfs: &initramfs,
            trailer: &trailer,
            terminal: job.terminal,
            begun: Instant::now(),
            boot_bound,
            bound: job.timeout.unwrap_or(self.machine.timeout),
            counts_instructions: self.machine.counts_instructions(),
        };
        // Where KVM works no boot hangs, and how long a whole system takes to boot is not known.
        let may_hang = !accel.kvm && self.machine.root.is_none();
        run_attempts(start, may_hang, event)
    }

    /// The emulation that the machine's `accel` selects on this host.
    fn choose_accel(
        &self,
        qemu: &QemuProgram,
        kernel: &Path,
        event: &mut dyn FnMut(Event),
    ) -> Result<AccelChoice, LabError> {
        let choice = |kvm, reason: &str| AccelChoice { kvm, reason: reason.to_owned() };
        match self.machine.accel {
            Accel::Kvm => return Ok(choice(true, "asked for")),
            Accel::Tcg => return Ok(choice(false, "asked for")),
            Accel::Auto if self.machine.count_accesses.is_some() => {
                return Ok(choice(false, "accesses are counted"));
            }
            Accel::Auto if self.machine.instructions_as_time => {
                return Ok(choice(false, "instructions are the clock"));
            }
            Accel::Auto if self.machine.memory_clock.is_some() => {
                return Ok(choice(false, "the memory clock needs software emulation"));
            }
            Accel::Auto => {}
        }
        if let Some(reason) = accel::kvm_absent() {
            return Ok(choice(false, &reason));
        }
        let key = ProbeKey::new(kernel, &qemu.path);
        if let Some(verdict) = accel::remembered(&self.cache, &key) {
            return Ok(choice(verdict.works, &verdict.reason));
        }
        event(Event::Preparing("testing whether a guest runs under KVM".to_owned()));
        let kvm = choice(true, "being tried");
        let probe = GuestJob::new("true").timeout(2 * PROBE_BOUND);
        // A full system takes longer to start than the bound.
        let bare =
            Self { machine: GuestMachine { root: None, ..self.machine.clone() }, ..self.clone() };
        let (works, reason) = match bare.run_guest(
            &probe,
            (qemu, kernel),
            &kvm,
            PROBE_BOUND,
            Vec::new(),
            &mut |_| {},
        ) {
            Ok(end) => (true, format!("a guest booted under KVM in {} ms", end.boot_ms)),
            Err(error) => match probe_failure(&error) {
                Some(reason) => (false, reason),
                None => return Err(error),
            },
        };
        accel::remember(&self.cache, &Verdict { key, works, reason: reason.clone() })?;
        Ok(AccelChoice { kvm: works, reason })
    }

    fn root_file_system(
        &self,
        job: &GuestJob,
        trailer: &str,
        event: &mut dyn FnMut(Event),
    ) -> Result<Initramfs, LabError> {
        let mut root = Initramfs::new()?;
        let sources = Sources::host();
        let mut say = |text| event(Event::Preparing(text));
        let mut command = job.command.clone();
        for program in &job.programs {
            let (to, closure) = self.program(program, &sources, &mut say)?;
            root.closure(&closure)?;
            // By path, because busybox's shell prefers its own applet for a bare name.
            if to.file_name().is_some_and(|name| name == command.as_str()) {
                command = to.display().to_string();
            }
        }
        self.busybox(&mut root, &mut say)?;
        for file in &job.files {
            let (GuestFile::Host { to, .. } | GuestFile::Bytes { to, .. }) = file;
            if to.starts_with("/.lab") || to == Path::new("/init") {
                return Err(LabError::Invalid {
                    what: "a file's place in the guest",
                    got: to.display().to_string(),
                    expected: "anything but /init and /.lab, which are the lab's own".to_owned(),
                });
            }
            match file {
                GuestFile::Host { from, to } => root.host_tree(from, to)?,
                GuestFile::Bytes { bytes, mode, to } => root.bytes(to, bytes.clone(), *mode)?,
            }
        }
        root.bytes("/init", INIT, 0o755)?;
        root.bytes("/.lab/serve", SERVE, 0o600)?;
        root.bytes("/.lab/trailer", format!("{trailer}\n"), 0o600)?;
        if job.terminal {
            root.bytes("/.lab/terminal", "", 0o600)?;
        }
        root.bytes("/.lab/stdin", job.stdin.clone(), 0o600)?;
        root.bytes("/.lab/command", command_script(job, &command)?, 0o600)?;
        root.bytes("/.lab/results", results_list(job)?, 0o600)?;
        Ok(root)
    }

    /// Adds a program and everything that it needs.
    fn program(
        &self,
        program: &Program,
        sources: &Sources,
        say: &mut dyn FnMut(String),
    ) -> Result<(PathBuf, Closure), LabError> {
        match program {
            Program::Host(path) => {
                let from = host_program(path)?;
                let from = std::path::absolute(&from).doing(format!("find {}", from.display()))?;
                let to = program_place(&from);
                let closure = closure(&from, &to, sources)?;
                Ok((to, closure))
            }
            Program::Package { package, program } => {
                let found = Packages::new(&self.cache).program(package, program, sources, say)?;
                Ok((found.guest_path, found.closure))
            }
            Program::Whole { package } => {
                let files = whole(&Packages::new(&self.cache), package, sources, say)?;
                Ok((PathBuf::from("/"), files))
            }
            Program::Folder { from, to } => Ok((to.clone(), folder(from, to, sources)?)),
        }
    }

    /// Adds busybox and a link for each of its applets for which no program was copied in. The
    /// host's busybox is used if it needs no libraries, else Debian's package is fetched.
    fn busybox(&self, root: &mut Initramfs, say: &mut dyn FnMut(String)) -> Result<(), LabError> {
        let host =
            find_program(Path::new("busybox")).filter(|path| is_static(path).is_ok_and(|yes| yes));
        let busybox = match host {
            Some(path) => path,
            // In /bin before Debian 13, in /usr/bin since.
            None => {
                let packages = Packages::new(&self.cache);
                let nothing = Sources::packages(Vec::new());
                let found = packages.program("busybox-static", "busybox", &nothing, say)?;
                found.closure.files[&found.guest_path].clone()
            }
        };
        let listing = Command::new(&busybox)
            .arg("--list")
            .output()
            .doing(format!("run {} --list", busybox.display()))?;
        root.host_file(&busybox, "/usr/bin/busybox")?;
        for applet in String::from_utf8_lossy(&listing.stdout).lines() {
            let taken = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"]
                .iter()
                .any(|place| root.contains(Path::new(place).join(applet)));
            if !taken {
                root.link(Path::new("/usr/bin").join(applet), "busybox")?;
            }
        }
        Ok(())
    }
}

/// The path of a program of this host.
fn host_program(path: &Path) -> Result<PathBuf, LabError> {
    find_program(path).ok_or_else(|| LabError::ProgramMissing {
        program: path.display().to_string(),
        reason: "no such file on this host".to_owned(),
    })
}

/// Why KVM does not work, if this error is about KVM.
fn probe_failure(error: &LabError) -> Option<String> {
    match error {
        LabError::TimedOut { phase: Phase::Booting, bound_ms, .. } => {
            Some(format!("a guest under KVM hung for {bound_ms} ms"))
        }
        LabError::Qemu { message, .. } => {
            Some(format!("a guest under KVM failed: {}", without_assertion(message)))
        }
        LabError::Panicked { message, .. } => Some(format!("a guest under KVM: {message}")),
        LabError::EndedEarly { .. } | LabError::TimedOut { .. } => {
            Some("a guest under KVM did not run its command".to_owned())
        }
        _ => None,
    }
}

/// The message of QEMU; of a failed assertion, which names a line of its source, the function.
fn without_assertion(message: &str) -> String {
    let Some((before, _)) = message.split_once(": Assertion `") else {
        return message.to_owned();
    };
    let function = before.rsplit(": ").next().unwrap_or(before);
    format!("QEMU gave up in {function}")
}

/// Programs keep their usual path; one from a build directory goes to a directory on the guest's
/// PATH.
fn program_place(from: &Path) -> PathBuf {
    let usual = ["/usr", "/bin", "/sbin", "/opt"].iter().any(|place| from.starts_with(place));
    match from.file_name() {
        Some(name) if !usual => Path::new("/usr/local/bin").join(name),
        _ => from.to_owned(),
    }
}

/// 128 random bits: no output of a command ends a stream by chance.
fn random_trailer() -> Result<String, LabError> {
    let mut random = [0u8; 16];
    let mut file = fs::File::open("/dev/urandom").doing("open /dev/urandom")?;
    std::io::Read::read_exact(&mut file, &mut random).doing("read /dev/urandom")?;
    let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("terrace-end-{hex}"))
}

/// A word quoted for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The shell script that runs the command.
fn command_script(job: &GuestJob, command: &str) -> Result<String, LabError> {
    let mut script = String::new();
    for (name, value) in &job.env {
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(LabError::Invalid {
                what: "a variable's name",
                got: format!("{name:?}"),
                expected: "letters, digits and _".to_owned(),
            });
        }
        script += &format!("export {name}={}\n", quoted(value));
    }
    let words = [command].into_iter().chain(job.args.iter().map(String::as_str));
    if let Some(word) = words.clone().find(|word| word.contains('\0')) {
        return Err(LabError::Invalid {
            what: "a word of the command",
            got: format!("{word:?}"),
            expected: "no NUL".to_owned(),
        });
    }
    let directory = job.directory.display().to_string();
    script += &format!("mkdir -p {0} && cd {0} || exit 126\n", quoted(&directory));
    script += "exec";
    for word in words {
        script += " ";
        script += &quoted(word);
    }
    script += "\n";
    Ok(script)
}

/// The requested results, one a line, without their leading slash.
fn results_list(job: &GuestJob) -> Result<String, LabError> {
    let mut list = String::new();
    for path in &job.results {
        let text = path.to_str().filter(|text| !text.contains('\n'));
        let relative = text.and_then(|text| text.strip_prefix('/'));
        let parent = path.components().any(|part| part == std::path::Component::ParentDir);
        match relative {
            Some(relative) if !parent && !relative.is_empty() => {
                list += relative.trim_end_matches('/');
                list.push('\n');
            }
            _ => {
                return Err(LabError::Invalid {
                    what: "a result's path",
                    got: format!("{path:?}"),
                    expected: "an absolute path in UTF-8 without `..` or line breaks".to_owned(),
                });
            }
        }
    }
    Ok(list)
}

/// Directory of the results, determined before the guest runs.
enum ResultsTarget {
    None,
    Temporary,
    Given(PathBuf),
}

fn results_target(job: &GuestJob) -> Result<ResultsTarget, LabError> {
    match &job.results_dir {
        _ if job.results.is_empty() => Ok(ResultsTarget::None),
        None => Ok(ResultsTarget::Temporary),
        Some(path) => {
            let filled = match fs::read_dir(path) {
                Ok(mut entries) => entries.next().is_some(),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
                Err(e) => return Err(e).doing(format!("read {}", path.display())),
            };
            if filled {
                return Err(LabError::Invalid {
                    what: "the directory for results",
                    got: format!("{}, which has something in it", path.display()),
                    expected: "an empty or new directory".to_owned(),
                });
            }
            Ok(ResultsTarget::Given(path.clone()))
        }
    }
}

impl ResultsTarget {
    fn fill(self, archive: fs::File) -> Result<ResultsDir, LabError> {
        match self {
            Self::None => Ok(ResultsDir::None),
            Self::Temporary => {
                let dir = TemporaryFolder::new("terrace-results-")
                    .doing("make a directory for results")?;
                unpack(archive, dir.path())?;
                Ok(ResultsDir::Temporary(dir))
            }
            Self::Given(path) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let parent = parent.unwrap_or(Path::new("."));
                fs::create_dir_all(parent).doing(format!("make {}", parent.display()))?;
                let dir = TemporaryFolder::new_in(".terrace-results-", parent)
                    .doing(format!("make a directory in {}", parent.display()))?;
                unpack(archive, dir.path())?;
                // Renaming onto an empty directory replaces it (rename(2)).
                fs::rename(dir.path(), &path).doing(format!("make {}", path.display()))?;
                Ok(ResultsDir::Given(path))
            }
        }
    }
}

/// Unpacks the guest's archives. Nothing is written outside the directory: the tar library refuses
/// paths and links that lead out of it.
fn unpack(archive: fs::File, to: &Path) -> Result<(), LabError> {
    let mut archive = tar::Archive::new(BufReader::new(archive));
    // Two archives are concatenated, each with its end marks.
    archive.set_ignore_zeros(true);
    archive.set_preserve_permissions(false);
    archive.set_preserve_mtime(false);
    archive.unpack(to).map_err(|e| LabError::Results { reason: e.to_string() })
}

#[cfg(test)]
mod tests;

//! `terrace lab`: a command in a virtual machine with two memory tiers.

mod shell;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use terrace_core::InputError;
use terrace_experiments::run::write_whole;
use terrace_experiments::size::Size;
use terrace_hardware::presets;
use terrace_lab::{
    CountedCaches, Event, GuestJob, GuestMachine, Kernel, Lab, LabConfig, LabError, Program, Qemu,
    TcgThreads,
};
use terrace_recordings::reference::CacheShape;
use terrace_timed::config::{TierSpeed, TimedConfig};
use terrace_timed::samples::SamplePlan;

use crate::record::cache_geometry;
use crate::show::{say, tell};

/// What the guest shows when no command is given: its tiers, from the kernel's own files.
const SHOW_TIERS: &str = "\
cd /sys/devices/virtual/memory_tiering
for t in memory_tier*; do echo \"$t: nodes $(cat $t/nodelist)\"; done
cd /sys/devices/system/node
for n in node*; do
  echo \"$n: processors '$(cat $n/cpulist)', $(sed -n 's/.*MemTotal: *//p' $n/meminfo),\" \\
    \"$(cat $n/access0/initiators/read_latency) ns,\" \\
    \"$(cat $n/access0/initiators/read_bandwidth) MB/s\"
done";

/// Boot a virtual machine with two memory tiers and run a command in it.
///
/// Without a command it shows the tiers of the guest's kernel. The exit code is the command's. With
/// '--shell' it opens a terminal in the machine, beside a workload that terraced manages.
#[derive(Args)]
pub struct Arguments {
    /// Open a terminal in the machine, where terraced manages a workload: the command, or one whose
    /// hot pages change every minute.
    ///
    /// 'terrace top', 'terrace status' and 'terrace explain workload' show what it does. Ends with
    /// 'exit' or Ctrl-].
    #[arg(long, conflicts_with_all = ["root", "console", "clock", "instructions_as_time", "count_accesses"])]
    shell: bool,
    /// Processors.
    #[arg(long, default_value_t = 2, value_name = "N")]
    cpus: u32,
    /// Size of the fast tier, which also holds the guest's kernel and files.
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = Size::parse)]
    fast: Size,
    /// Size of the slow tier.
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = Size::parse)]
    slow: Size,
    /// Latency of the fast tier in ns, as the firmware reports it.
    #[arg(long, default_value_t = 80, value_name = "NS")]
    fast_latency_ns: u32,
    /// Latency of the slow tier in ns, as the firmware reports it.
    #[arg(long, default_value_t = 300, value_name = "NS")]
    slow_latency_ns: u32,
    /// Kernel to boot: 'debian' (its package, fetched), 'debian-7.3' (that series, of Debian 13's
    /// backports), 'terrace' (built by 'make kernel'), 'terrace-7.3' (by 'make kernel KERNEL=7.3'),
    /// or the path of an image.
    #[arg(long, value_name = "KERNEL", default_value = "debian")]
    kernel: String,
    /// QEMU to emulate with: a path, a name on PATH, or a major version of Debian's packages for
    /// this host's release, such as '10', which is fetched and not installed.
    #[arg(long, value_name = "QEMU", default_value = "qemu-system-x86_64")]
    qemu: String,
    /// Disk with a root file system (ext4) whose own init, such as systemd, the guest starts; the
    /// command runs there as a service, after everything else. The file is not changed.
    #[arg(long, value_name = "FILE", conflicts_with = "programs")]
    root: Option<PathBuf>,
    /// How many threads emulate the processors in software: 'each' has one of its own, which is
    /// faster and needs a QEMU that does it rightly (8.1), or a kernel that does not change its
    /// own code while it runs: the Terrace kernel, as long as no tracepoint is switched.
    #[arg(long, value_enum, value_name = "THREADS", default_value = "auto")]
    threads: Threads,
    /// Give the processor page tables of five levels.
    ///
    /// A kernel uses them where it was built to, as Debian's and that of 'kernel/build wide' are,
    /// and is given as a bzImage.
    #[arg(long)]
    five_levels: bool,
    /// Let the guest's clocks count instructions, one a nanosecond, of all processors together.
    ///
    /// What a program measures by any clock of the guest is then its cost in instructions,
    /// the same on every host; time in which nothing runs is skipped. Software emulation in one
    /// thread.
    #[arg(long)]
    instructions_as_time: bool,
    /// What the guest's clocks count: the host's time, instructions ('--instructions-as-time'), or
    /// what instructions and accesses take on hardware with these tiers.
    ///
    /// With 'memory' a program measures times in the guest as on a machine whose slow memory is
    /// slow: the processor, caches and TLBs are those of trace-driven simulation. Software emulation in one
    /// thread; a boot runs at full speed, the command at some ten million instructions a second.
    #[arg(long, value_enum, value_name = "CLOCK", default_value = "host")]
    clock: ClockKind,
    /// For '--clock memory': a machine of 'terrace machines', for its processor and its
    /// tiers; latencies and bandwidths are then those of the machine.
    #[arg(long, value_name = "MACHINE")]
    hardware: Option<String>,
    /// Bandwidth of the fast tier in GB/s [default: 107.4].
    #[arg(long, value_name = "GB/S")]
    fast_gb_per_s: Option<f64>,
    /// Bandwidth of the slow tier in GB/s [default: 21.5].
    #[arg(long, value_name = "GB/S")]
    slow_gb_per_s: Option<f64>,
    /// For '--clock memory': write its counts to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    clock_figures: Option<PathBuf>,
    /// For '--clock memory': sample one in so many loads of programs that miss the last level, as a
    /// processor's PEBS or IBS does it [default: none].
    ///
    /// The guest has the samples at a virtio port named 'terrace.samples', as the records of a perf
    /// event; 'terrace signals --read-ms 1000' in the guest shows them.
    #[arg(long, value_name = "LOADS", value_parser = clap::value_parser!(u32).range(1..))]
    sample_reads: Option<u32>,
    /// Of these samples, take at most so many a second: more throttle the event [default: 100000].
    #[arg(long, value_name = "N", requires = "sample_reads")]
    most_samples_per_s: Option<u64>,
    /// Of these samples, lose one in so many on purpose [default: none].
    #[arg(long, value_name = "N", requires = "sample_reads")]
    lose_samples: Option<u32>,
    /// Words added to the kernel's command line.
    #[arg(long, value_name = "WORDS")]
    append: Option<String>,
    /// Program to copy into the guest beside the command; may be repeated.
    ///
    /// A path, a name on PATH, or PACKAGE:PROGRAM of a Debian package, which is fetched and not
    /// installed.
    #[arg(long = "program", value_name = "PROGRAM")]
    programs: Vec<String>,
    /// File or folder to copy in; may be repeated.
    #[arg(long = "file", value_name = "FROM:TO")]
    files: Vec<String>,
    /// File or folder of the guest to bring back; may be repeated.
    #[arg(long = "result", value_name = "PATH", requires = "out")]
    results: Vec<PathBuf>,
    /// Folder that they are brought back to.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Bound on the whole run in s, after which the machine is switched off [default: 300, with
    /// '--shell' a day].
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Bound on the boot in s; three times that where accesses or instructions are counted. Without
    /// KVM a boot that hangs is tried again after a third of it.
    #[arg(long, default_value_t = 180, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    boot_timeout: u64,
    /// Count the loads and stores that go to each node while the command runs, and write the
    /// counts to this file, as JSON.
    ///
    /// Exact: the recorder's plug-in in the emulation counts every one, and which of them pass
    /// caches. Programs and kernel apart. The machine runs under software emulation then, and
    /// slower. A command that runs 'count-period' begins another window, apart in the file.
    #[arg(long, value_name = "FILE")]
    count_accesses: Option<PathBuf>,
    /// Of the counted accesses, write those of programs by huge page to this file: a line a
    /// window, the first when counting begins, a list of the nodes' lists.
    #[arg(long, value_name = "FILE", requires = "count_accesses")]
    count_pages: Option<PathBuf>,
    /// Of the counted accesses, write those of a program that was started with 'setarch -L', which
    /// has its mappings apart from those of all others, by base page to this file: a line a window, a
    /// list of pages, each its number and the accesses that went to each node.
    #[arg(long, value_name = "FILE", requires = "count_accesses")]
    count_apart: Option<PathBuf>,
    /// Of the counted accesses, leave out the first so many windows, which then take less time: those
    /// before 'count-period' was run so often.
    #[arg(long, value_name = "WINDOWS", requires = "count_accesses", default_value_t = 0)]
    count_after: u32,
    /// Of the counted accesses, first-level cache of each processor: SIZE,WAYS.
    #[arg(long, value_name = "SIZE,WAYS", value_parser = cache_geometry, default_value = "32K,8")]
    l1: CacheShape,
    /// Second-level cache of each processor.
    #[arg(long, value_name = "SIZE,WAYS", value_parser = cache_geometry, default_value = "1M,16")]
    l2: CacheShape,
    /// Last-level cache of all.
    #[arg(long, value_name = "SIZE,WAYS", value_parser = cache_geometry, default_value = "32M,16")]
    llc: CacheShape,
    /// Show the guest's console on standard error.
    #[arg(long)]
    console: bool,
    /// The command and its arguments, after '--'.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What the guest's clocks count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ClockKind {
    /// The host's time.
    Host,
    /// Instructions.
    Instructions,
    /// What instructions and accesses of memory take.
    Memory,
}

/// Threads of the emulation.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Threads {
    /// One for each processor where this QEMU does that correctly.
    Auto,
    /// One for all.
    One,
    /// One for each.
    Each,
}

impl Arguments {
    /// Boots and runs.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let machine = self.machine()?;
        let lab =
            Lab::new(LabConfig { machine, ..LabConfig::default() }).map_err(InputError::new)?;
        let job = self.job()?;
        let console = self.console;
        let result = lab.run(&job, |event| match event {
            Event::Preparing(what) => tell!("{what}"),
            Event::Starting { accel, .. } => tell!("starting the machine: {accel}"),
            Event::Booted { kernel_release, boot_ms } => {
                tell!("booted {kernel_release} in {boot_ms} ms");
            }
            Event::Console(line) if console => tell!("| {line}"),
            Event::Console(_) => {}
            Event::Stdout(line) => {
                // A full disk under the output does not end the machine before its results.
                let _ = say!("{line}");
            }
            Event::Stderr(line) => tell!("{line}"),
        });
        let result = result.map_err(|error| {
            if !console {
                error.console_tail().iter().for_each(|line| tell!("| {line}"));
            }
            refused(error)
        })?;
        if let (Some(counts), Some(path)) = (&result.accesses, &self.count_accesses) {
            let bytes = serde_json::to_vec_pretty(counts)?;
            write_whole(path, &bytes)?;
            tell!("{}; all counts in {}", counts.line(), path.display());
        }
        if let Some(figures) = &result.clock {
            tell!("{}", figures.line());
            if let Some(path) = &self.clock_figures {
                write_whole(path, &serde_json::to_vec_pretty(figures)?)?;
            }
        }
        for path in &result.missing_results {
            tell!("terrace: {}: the guest has no such file", path.display());
        }
        Ok(ExitCode::from(u8::try_from(result.exit_code).unwrap_or(1)))
    }

    /// The requested machine.
    fn machine(&self) -> anyhow::Result<GuestMachine> {
        let [fast_mib_per_s, slow_mib_per_s] = self.mib_per_s();
        let memory_clock = self.memory_clock().map_err(InputError::new)?;
        let usual_s = if self.shell { 86_400 } else { 300 };
        Ok(GuestMachine {
            cpus: self.cpus,
            fast_bytes: self.fast.0,
            slow_bytes: self.slow.0,
            fast_latency_ns: self.fast_latency_ns,
            slow_latency_ns: self.slow_latency_ns,
            kernel: Kernel::named(&self.kernel),
            qemu: Qemu::named(&self.qemu),
            root: self.root.clone(),
            tcg_threads: match self.threads {
                Threads::Auto => TcgThreads::Auto,
                Threads::One => TcgThreads::Single,
                Threads::Each => TcgThreads::Multi,
            },
            five_levels: self.five_levels,
            instructions_as_time: self.instructions_as_time
                || self.clock == ClockKind::Instructions,
            memory_clock: memory_clock.map(Box::new),
            samples: self.sample_reads.map(|accesses_per_sample| SamplePlan {
                accesses_per_sample,
                most_per_s: self.most_samples_per_s.unwrap_or(0),
                lose_one_in: self.lose_samples.unwrap_or(0),
                ..SamplePlan::default()
            }),
            fast_bandwidth_mib_per_s: fast_mib_per_s,
            slow_bandwidth_mib_per_s: slow_mib_per_s,
            kernel_args: self
                .append
                .iter()
                .flat_map(|a| a.split_whitespace())
                .map(str::to_owned)
                .collect(),
            timeout: Duration::from_secs(self.timeout.unwrap_or(usual_s)),
            boot_timeout: Duration::from_secs(self.boot_timeout),
            count_accesses: self.count_accesses.is_some().then_some(CountedCaches {
                l1: self.l1,
                l2: self.l2,
                llc: self.llc,
            }),
            count_pages: self.count_pages.clone(),
            count_apart: self.count_apart.clone(),
            count_after: self.count_after,
            ..GuestMachine::default()
        })
    }

    /// The hardware of a clock that models the memory, if that is requested.
    fn memory_clock(&self) -> anyhow::Result<Option<TimedConfig>> {
        if self.clock != ClockKind::Memory {
            let only = |given, option| match given {
                true => Err(anyhow::anyhow!(
                    "{option} without '--clock memory'; expected both or neither"
                )),
                false => Ok(()),
            };
            only(self.hardware.is_some(), "--hardware")?;
            only(self.clock_figures.is_some(), "--clock-figures")?;
            only(self.sample_reads.is_some(), "--sample-reads")?;
            return Ok(None);
        }
        if let Some(name) = &self.hardware {
            return Ok(Some(TimedConfig::of(presets::by_name(name)?)));
        }
        let usual = self.mib_per_s().map(|mib| f64::from(mib) * f64::from(1 << 20) / 1e9);
        let tier =
            |latency_ns: u32, gb_per_s| TierSpeed { latency_ns: latency_ns.into(), gb_per_s };
        Ok(Some(TimedConfig::with_tiers(&[
            tier(self.fast_latency_ns, self.fast_gb_per_s.unwrap_or(usual[0])),
            tier(self.slow_latency_ns, self.slow_gb_per_s.unwrap_or(usual[1])),
        ])?))
    }

    /// The tiers' bandwidths as the firmware reports them; what cannot be becomes 0, which is
    /// refused.
    fn mib_per_s(&self) -> [u32; 2] {
        let usual = GuestMachine::default();
        let of = |gb_per_s: Option<f64>, usual| {
            gb_per_s.map_or(usual, |gb| (gb * 1e9 / f64::from(1 << 20)).round() as u32)
        };
        [
            of(self.fast_gb_per_s, usual.fast_bandwidth_mib_per_s),
            of(self.slow_gb_per_s, usual.slow_bandwidth_mib_per_s),
        ]
    }

    fn job(&self) -> anyhow::Result<GuestJob> {
        let mut job = match self.command.split_first() {
            _ if self.shell => shell::job(&self.command)?,
            None => GuestJob::shell(SHOW_TIERS),
            Some((command, arguments)) => {
                let job = GuestJob::new(command).args(arguments);
                // A program of this host is copied in; anything else, and all that is on a disk
                // of its own, is the guest's.
                match terrace_lab::find_program(command.as_ref()) {
                    Some(path) if self.root.is_none() => job.program(Program::host(path)),
                    _ => job,
                }
            }
        };
        for program in &self.programs {
            job = job.program(match program.split_once(':') {
                Some((package, name)) => Program::package(package, name),
                None => Program::host(program),
            });
        }
        for file in &self.files {
            let (from, to) = file.split_once(':').ok_or_else(|| {
                InputError::new(format_args!(
                    "--file {file}: expected FROM:TO, as in data.bin:/tmp/data.bin"
                ))
            })?;
            std::fs::metadata(from).map_err(|e| {
                InputError::new(format_args!("--file {file}: {e}; expected a file of this host"))
            })?;
            job = job.file(from, to);
        }
        for result in &self.results {
            job = job.result(result);
        }
        if let Some(out) = &self.out {
            job = job.results_dir(out);
        }
        Ok(job)
    }
}

/// A request that cannot be done is an input error; the rest are failures.
fn refused(error: LabError) -> anyhow::Error {
    match error {
        LabError::Invalid { .. }
        | LabError::HostProgramMissing { .. }
        | LabError::KernelMissing { .. }
        | LabError::ProgramMissing { .. }
        | LabError::LibraryMissing { .. } => InputError::new(error).into(),
        _ => error.into(),
    }
}

//! The requested machine: processors, two tiers, a kernel; and the arguments of QEMU for it.

use std::path::PathBuf;
use std::time::Duration;

use terrace_timed::config::TimedConfig;
use terrace_timed::samples::SamplePlan;
use terrace_timed::work::WorkPlan;

use crate::accel::Accel;
use crate::accesses::CountedCaches;
use crate::error::LabError;
use crate::kernel::Kernel;
use crate::qemu::Qemu;

const MIB: u64 = 1 << 20;

/// Minimum of fast memory with which Debian's kernel and an initramfs boot.
pub const FAST_MIN_BYTES: u64 = 256 * MIB;

/// The first QEMU in which a processor cannot run kernel code while another patches it (commit
/// deba78709a, "accel/tcg: Always lock pages before translation"). Before it, a guest whose kernel
/// switches static keys or tracepoints dies of a stray `int3`: seldom on an idle host, within a
/// minute on a busy one.
pub const TCG_THREADS_SAFE_SINCE: QemuVersion = QemuVersion { major: 8, minor: 1 };

/// The first QEMU known to keep the flags of an exchange of 16 bytes (`cmpxchg16b`) under software
/// emulation. In 7.2 an interrupt just before one leaves invalid flags: of 20,000,000 after an
/// addition 5 were wrong, with 10.0 none. Linux allocates memory by such exchanges and crashes on a
/// trap flag or an alignment check that it did not set. Versions between were not tried.
const KEEPS_FLAGS_OF_EXCHANGES_SINCE: QemuVersion = QemuVersion { major: 10, minor: 0 };

/// A QEMU's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QemuVersion {
    /// 7 of 7.2.
    pub major: u32,
    /// 2 of 7.2.
    pub minor: u32,
}

impl QemuVersion {
    /// From the first line of `--version`: `QEMU emulator version 7.2.22 (Debian ...)`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.split_once("version ")?.1;
        let mut numbers = rest.split(|c: char| !c.is_ascii_digit());
        let mut number = || numbers.next()?.parse().ok();
        Some(Self { major: number()?, minor: number()? })
    }
}

/// How many threads of the host emulate the guest's processors in software.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TcgThreads {
    /// One for each processor if that is safe with this QEMU ([`TCG_THREADS_SAFE_SINCE`]), else one
    /// for all.
    #[default]
    Auto,
    /// One for all.
    Single,
    /// One for each, whatever the QEMU.
    Multi,
}

/// A virtual machine with two memory tiers. Node 0 has the processors and the fast memory, node
/// 1 the slow memory only; the firmware's HMAT table gives the kernel the latencies and
/// bandwidths, from which it makes its memory tiers.
///
/// The emulation has no such latencies unless it has a `memory_clock`: they are what the firmware
/// reports, not what accesses take.
#[derive(Debug, Clone, PartialEq)]
pub struct GuestMachine {
    /// Processors.
    pub cpus: u32,
    /// Memory of the fast tier. It also holds the kernel and the guest's root file system.
    pub fast_bytes: u64,
    /// Memory of the slow tier.
    pub slow_bytes: u64,
    /// Load latency of the fast tier.
    pub fast_latency_ns: u32,
    /// Load latency of the slow tier.
    pub slow_latency_ns: u32,
    /// Bandwidth of the fast tier.
    pub fast_bandwidth_mib_per_s: u32,
    /// Bandwidth of the slow tier.
    pub slow_bandwidth_mib_per_s: u32,
    /// The kernel.
    pub kernel: Kernel,
    /// Image of a disk (ext4) with a root file system and an init, such as systemd: the command
    /// then runs there as a service, when everything else has started. The image is not changed.
    /// Without one the guest has busybox and what is copied in.
    pub root: Option<PathBuf>,
    /// Added to the kernel's command line.
    pub kernel_args: Vec<String>,
    /// How the processor is emulated.
    pub accel: Accel,
    /// How many threads of the host emulate the processors in software.
    pub tcg_threads: TcgThreads,
    /// Whether the processor has page tables of five levels. A kernel uses them if it was built
    /// with them and is started as a bzImage; the machines of the papers have four levels.
    pub five_levels: bool,
    /// The guest's clocks count its instructions, one a nanosecond, of all processors together, and
    /// time in which none runs is skipped: the time of a program is the same by any clock and on
    /// every host. Implies software emulation in one thread.
    pub instructions_as_time: bool,
    /// The *memory clock*: the guest's clocks advance by the modelled time of its instructions and
    /// accesses on hardware of this speed, so that a program measures the times of a machine with
    /// two tiers. Implies software emulation in one thread. Number of processors and sizes of the
    /// tiers are taken from the fields above.
    pub memory_clock: Option<Box<TimedConfig>>,
    /// With `memory_clock`: samples of accesses that miss the last level, as a processor's PEBS or
    /// IBS gives them, at a port of the guest named `terrace.samples`.
    pub samples: Option<SamplePlan>,
    /// With `memory_clock` and `begins_marked`: the work from which on a program is measured.
    pub work: Option<WorkPlan>,
    /// Count accesses by node, behind these caches. Implies software emulation.
    pub count_accesses: Option<CountedCaches>,
    /// File for the programs' counted accesses by huge page, window by window: a line at each mark,
    /// the first at the beginning of counting; a line is a list of the nodes' lists.
    pub count_pages: Option<PathBuf>,
    /// File for the counted accesses of programs with the compatible layout
    /// (`terrace_recorder::nodes::APART`), window by window: a line at each mark, a list of pages
    /// of 4 KiB, each with its number and the accesses that went to each node.
    pub count_apart: Option<PathBuf>,
    /// Windows at the start that are not counted: the guest runs faster until so many periods are
    /// marked.
    pub count_after: u32,
    /// Counting and modelled time begin not with the command but at its first mark
    /// (`terrace_recorder::nodes::mark`): until then each instruction of a guest with
    /// `memory_clock` takes a cycle, and the emulation is some ten times as fast.
    pub begins_marked: bool,
    /// Bound on the boot, from the start of QEMU to the guest's first process, further attempts
    /// included.
    pub boot_timeout: Duration,
    /// Bound on a run whose job has none, from the start of QEMU.
    pub timeout: Duration,
    /// Appended to QEMU's arguments, such as `-plugin`.
    pub extra_qemu_args: Vec<String>,
    /// The QEMU to use.
    pub qemu: Qemu,
}

impl Default for GuestMachine {
    fn default() -> Self {
        Self {
            cpus: 2,
            fast_bytes: 1024 * MIB,
            slow_bytes: 1024 * MIB,
            // DRAM beside CXL-attached DRAM, rounded.
            fast_latency_ns: 80,
            slow_latency_ns: 300,
            fast_bandwidth_mib_per_s: 100 * 1024,
            slow_bandwidth_mib_per_s: 20 * 1024,
            kernel: Kernel::Debian,
            root: None,
            kernel_args: Vec::new(),
            accel: Accel::Auto,
            tcg_threads: TcgThreads::Auto,
            five_levels: false,
            instructions_as_time: false,
            memory_clock: None,
            samples: None,
            work: None,
            count_accesses: None,
            count_pages: None,
            count_apart: None,
            count_after: 0,
            begins_marked: false,
            // For three attempts: each has twenty times the boot time under software emulation on
            // an idle host.
            boot_timeout: Duration::from_secs(180),
            timeout: Duration::from_secs(300),
            extra_qemu_args: Vec::new(),
            qemu: Qemu::default(),
        }
    }
}

fn invalid(what: &'static str, got: String, expected: &str) -> Result<(), LabError> {
    Err(LabError::Invalid { what, got, expected: expected.to_owned() })
}

impl GuestMachine {
    /// Refuses an impossible machine with a clearer message than QEMU's.
    pub fn check(&self) -> Result<(), LabError> {
        // The packaged cloud kernel supports far more; the bound is QEMU's for q35 without an
        // interrupt remapper.
        if !(1..=255).contains(&self.cpus) {
            return invalid("the machine's cpus", self.cpus.to_string(), "1 to 255");
        }
        if self.fast_bytes < FAST_MIN_BYTES {
            return invalid(
                "the machine's fast memory",
                format!("{} bytes", self.fast_bytes),
                &format!("at least {FAST_MIN_BYTES} bytes, because the kernel is there too"),
            );
        }
        if self.slow_bytes == 0 {
            return invalid("the machine's slow memory", "0 bytes".into(), "a second tier");
        }
        for (what, bytes) in [
            ("the machine's fast memory", self.fast_bytes),
            ("the machine's slow memory", self.slow_bytes),
        ] {
            if bytes % (2 * MIB) != 0 {
                return invalid(what, format!("{bytes} bytes"), "a multiple of 2 MiB");
            }
        }
        if let Some(root) = self.root.as_ref().filter(|root| !root.is_file()) {
            return invalid("the machine's root disk", root.display().to_string(), "a file");
        }
        self.check_clock()?;
        for (what, value) in [
            ("the fast tier's latency", self.fast_latency_ns),
            ("the slow tier's latency", self.slow_latency_ns),
        ] {
            // HMAT stores sixteen bits times a common base.
            if !(1..=65_534).contains(&value) {
                return invalid(what, format!("{value} ns"), "1 to 65534 ns");
            }
        }
        for (what, value) in [
            ("the fast tier's bandwidth", self.fast_bandwidth_mib_per_s),
            ("the slow tier's bandwidth", self.slow_bandwidth_mib_per_s),
        ] {
            if value == 0 {
                return invalid(what, "0 MiB/s".into(), "more than nothing");
            }
        }
        Ok(())
    }

    /// Refuses impossible clocks, counters and samples.
    fn check_clock(&self) -> Result<(), LabError> {
        if self.count_accesses.is_some() && self.accel == Accel::Kvm {
            return invalid("counting accesses", "KVM".into(), "software emulation (TCG)");
        }
        if self.instructions_as_time && self.accel == Accel::Kvm {
            return invalid("a clock of instructions", "KVM".into(), "software emulation (TCG)");
        }
        if self.memory_clock.is_some() && self.accel == Accel::Kvm {
            return invalid("a memory clock", "KVM".into(), "software emulation (TCG)");
        }
        if self.counts_instructions() && self.tcg_threads == TcgThreads::Multi {
            return invalid(
                "a clock of instructions",
                "a thread for each processor".into(),
                "one thread, which counts the instructions of all in their order",
            );
        }
        if self.memory_clock.is_some() && self.instructions_as_time {
            return invalid("the machine's clock", "instructions and memory".into(), "one of them");
        }
        if self.memory_clock.is_some() && self.count_accesses.is_some() {
            return invalid(
                "counting accesses",
                "a memory clock, which counts them behind its own caches".into(),
                "one of them",
            );
        }
        if let Some(samples) = &self.samples {
            if self.memory_clock.is_none() {
                return invalid(
                    "sampling accesses",
                    "no memory clock".into(),
                    "a memory clock, which has the caches that accesses miss",
                );
            }
            samples.check().map_err(|e| LabError::Invalid {
                what: "the samples of accesses",
                got: e.to_string(),
                expected: "a possible plan of samples".to_owned(),
            })?;
        }
        if let Some(config) = &self.memory_clock {
            crate::timed::sized(self, config).check().map_err(|e| LabError::Invalid {
                what: "the hardware of the clock",
                got: e.to_string(),
                expected: "possible hardware".to_owned(),
            })?;
        }
        Ok(())
    }

    /// Whether the emulator's clock counts instructions, by number or by their modelled time.
    pub(crate) fn counts_instructions(&self) -> bool {
        self.instructions_as_time || self.memory_clock.is_some()
    }

    /// Whether each processor is emulated by a thread of its own.
    fn multithreaded(&self, qemu_version: QemuVersion) -> bool {
        if self.counts_instructions() {
            return false;
        }
        match self.tcg_threads {
            TcgThreads::Auto => qemu_version >= TCG_THREADS_SAFE_SINCE,
            TcgThreads::Single => false,
            TcgThreads::Multi => true,
        }
    }

    /// QEMU's arguments for this machine, without kernel, initramfs and ports.
    #[must_use]
    pub fn qemu_args(&self, kvm: bool, qemu_version: QemuVersion) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| args.extend(words.iter().map(|&w| w.to_owned()));
        // Nothing that was not requested: no host configuration, display, disk or network.
        add(&["-no-user-config", "-nodefaults", "-display", "none", "-monitor", "none"]);
        add(&["-no-reboot"]);
        add(&["-machine", "q35,hmat=on,sata=off,smbus=off,usb=off"]);
        // Four levels of page tables unless five are requested: `max` would have five.
        let la57 = if self.five_levels { "on" } else { "off" };
        if kvm {
            add(&["-accel", "kvm", "-cpu", &format!("host,la57={la57}")]);
        } else {
            let thread = if self.multithreaded(qemu_version) { "multi" } else { "single" };
            // An idle processor must halt, so that its time is skipped, and not wait in a loop; and
            // a change of address spaces drops translations, as in the model of the TLBs.
            let lost = qemu_version < KEEPS_FLAGS_OF_EXCHANGES_SINCE;
            let exchanges = if lost { ",cx16=off" } else { "" };
            let waits = if self.memory_clock.is_some() { ",monitor=off,pcid=off" } else { "" };
            // A buffer of the same size on any host: the default is an eighth of the host's memory,
            // and some plug-ins need one that never fills.
            let buffer = if self.memory_clock.is_some() { ",tb-size=1024" } else { "" };
            add(&[
                "-accel",
                &format!("tcg,thread={thread}{buffer}"),
                "-cpu",
                &format!("max,la57={la57},erms=off,fsrm=off{exchanges}{waits}"),
            ]);
        }
        if self.counts_instructions() {
            add(&["-icount", "shift=0,align=off,sleep=off"]);
            // The same random numbers of the processor and the same time of day in every run.
            add(&["-seed", "1", "-rtc", "base=2026-01-01,clock=vm"]);
        }
        let (cpus, last_cpu) = (self.cpus.to_string(), self.cpus - 1);
        add(&["-smp", &cpus, "-m", &format!("{}M", (self.fast_bytes + self.slow_bytes) / MIB)]);
        for (id, bytes) in [("fast", self.fast_bytes), ("slow", self.slow_bytes)] {
            add(&["-object", &format!("memory-backend-ram,id={id},size={bytes}")]);
        }
        if self.count_accesses.is_some() || self.memory_clock.is_some() {
            // Never used, and takes no memory: see `accesses`.
            let bytes = self.fast_bytes;
            add(&["-object", &format!("memory-backend-ram,id=apart,size={bytes},reserve=off")]);
        }
        add(&["-numa", &format!("node,nodeid=0,memdev=fast,cpus=0-{last_cpu}")]);
        add(&["-numa", "node,nodeid=1,memdev=slow,initiator=0"]);
        add(&["-numa", "dist,src=0,dst=1,val=20"]);
        for (target, latency_ns, mib_per_s) in [
            (0, self.fast_latency_ns, self.fast_bandwidth_mib_per_s),
            (1, self.slow_latency_ns, self.slow_bandwidth_mib_per_s),
        ] {
            let from = format!("hmat-lb,initiator=0,target={target},hierarchy=memory,data-type");
            add(&["-numa", &format!("{from}=access-latency,latency={latency_ns}")]);
            add(&["-numa", &format!("{from}=access-bandwidth,bandwidth={mib_per_s}M")]);
        }
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let of = |text| QemuVersion::parse(text).map(|v| (v.major, v.minor));
        assert_eq!(of("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nC"), Some((7, 2)));
        assert_eq!(of("QEMU emulator version 10.0.2\n"), Some((10, 0)));
        assert_eq!(of("QEMU emulator"), None);
        assert_eq!(of("version x.y"), None);
        let version = |major, minor| QemuVersion { major, minor };
        assert!(version(8, 0) < TCG_THREADS_SAFE_SINCE && version(7, 9) < TCG_THREADS_SAFE_SINCE);
        assert!(version(8, 1) >= TCG_THREADS_SAFE_SINCE && version(10, 0) > TCG_THREADS_SAFE_SINCE);
    }

    #[test]
    fn old_qemus_emulate_in_one_thread() {
        let thread = |threads, minor| {
            let machine = GuestMachine { tcg_threads: threads, ..GuestMachine::default() };
            let args = machine.qemu_args(false, QemuVersion { major: 8, minor });
            args.into_iter().find(|arg| arg.starts_with("tcg")).expect("TCG")
        };
        assert_eq!(thread(TcgThreads::Auto, 0), "tcg,thread=single");
        assert_eq!(thread(TcgThreads::Auto, 1), "tcg,thread=multi");
        assert_eq!(thread(TcgThreads::Multi, 0), "tcg,thread=multi");
        assert_eq!(thread(TcgThreads::Single, 1), "tcg,thread=single");
    }

    #[test]
    fn emulators_that_lose_the_flags_of_an_exchange_have_none() {
        let has_none = |kvm, major, minor| {
            let args = GuestMachine::default().qemu_args(kvm, QemuVersion { major, minor });
            let at = args.iter().position(|arg| arg == "-cpu").expect("a processor");
            args[at + 1].split(',').any(|word| word == "cx16=off")
        };
        assert!(has_none(false, 7, 2) && has_none(false, 9, 2));
        assert!(!has_none(false, 10, 0) && !has_none(true, 7, 2));
    }

    #[test]
    fn a_fifth_level_of_page_tables_is_asked_for() {
        for (five_levels, word) in [(false, "la57=off"), (true, "la57=on")] {
            let machine = GuestMachine { five_levels, ..GuestMachine::default() };
            for kvm in [false, true] {
                let args = machine.qemu_args(kvm, QemuVersion { major: 10, minor: 0 });
                let at = args.iter().position(|arg| arg == "-cpu").expect("a processor");
                assert!(args[at + 1].split(',').any(|w| w == word), "{}", args[at + 1]);
            }
        }
    }

    #[test]
    fn a_clock_of_instructions_is_emulated_in_one_thread() {
        let machine = GuestMachine { instructions_as_time: true, ..GuestMachine::default() };
        let args = machine.qemu_args(false, QemuVersion { major: 10, minor: 0 });
        assert!(args.iter().any(|arg| arg == "tcg,thread=single"), "{args:?}");
        let at = args.iter().position(|arg| arg == "-icount").expect("-icount");
        assert_eq!(args[at + 1], "shift=0,align=off,sleep=off");
        // Neither random numbers nor time of day of the host.
        assert!(args.iter().any(|arg| arg == "-seed") && args.iter().any(|arg| arg == "-rtc"));
        assert!(machine.check().is_ok());
        for bad in [
            GuestMachine { accel: Accel::Kvm, ..machine.clone() },
            GuestMachine { tcg_threads: TcgThreads::Multi, ..machine.clone() },
        ] {
            let error = bad.check().expect_err("refused").to_string();
            assert!(error.contains("a clock of instructions"), "{error}");
        }
    }

    #[test]
    fn machines_that_cannot_be_are_refused_by_name() {
        let machine = GuestMachine::default;
        for (bad, named) in [
            (GuestMachine { cpus: 0, ..machine() }, "cpus"),
            (GuestMachine { fast_bytes: 64 * MIB, ..machine() }, "fast memory"),
            (GuestMachine { slow_bytes: 0, ..machine() }, "slow memory"),
            (GuestMachine { slow_bytes: 3 * MIB, ..machine() }, "multiple of 2 MiB"),
            (GuestMachine { slow_latency_ns: 0, ..machine() }, "slow tier's latency"),
            (GuestMachine { fast_bandwidth_mib_per_s: 0, ..machine() }, "fast tier's bandwidth"),
        ] {
            let error = bad.check().expect_err(named).to_string();
            assert!(error.contains(named), "{error}");
        }
        assert!(machine().check().is_ok());
    }
}

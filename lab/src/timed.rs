//! The memory clock: files for QEMU's plug-in, and the figures that it wrote.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use terrace_recorder::nodes::NodeRange;
use terrace_timed::config::{ClockPlan, TierRange, TimedConfig};
use terrace_timed::figures::Figures;
use terrace_timed::samples::SamplePlan;
use terrace_timed::work::WorkFigures;

use crate::accesses::ranges;
use crate::error::{Doing, LabError};
use crate::machine::{GuestMachine, QemuVersion};
use crate::symbols;
use crate::temporary::TemporaryFolder;

/// Versions of QEMU whose plug-in interface suffices: see [`crate::accesses`]; and, with a newer
/// version of the interface, those whose plug-ins can also read registers and memory.
const OLD: Range<QemuVersion> = version(6, 1)..version(8, 2);
const NEW: Range<QemuVersion> = version(9, 2)..version(10, 1);
/// The version of the plug-in interface of the new ones.
const NEW_INTERFACE: u32 = 4;
/// Since this version a full buffer of translated code can be discarded while a plug-in has several
/// processors (the plug-in's `code_buffer`).
const THROWS_CODE_AWAY_SINCE: QemuVersion = version(8, 0);

/// Number and name of the guest's port with samples; the lab's own ports come first.
const PORT: u32 = 5;
const PORT_NAME: &str = "terrace.samples";

/// A path as a value of a QEMU argument, with its commas escaped.
fn quoted(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

const fn version(major: u32, minor: u32) -> QemuVersion {
    QemuVersion { major, minor }
}

/// Start of the direct map of a kernel with page tables of four levels and without KASLR.
const DIRECT_MAP: u64 = 0xFFFF_8880_0000_0000;

/// Kernel arguments of a guest whose page tables are read: no KASLR, and the direct map stays
/// mapped while programs run.
const READABLE: [&str; 2] = ["nokaslr", "nopti"];

/// Kernel arguments that the guest's clock needs.
pub(crate) fn kernel_args(qemu: QemuVersion) -> Vec<String> {
    let readable = NEW.contains(&qemu).then_some(READABLE);
    // The kernel measures the processor's clock again while the guest runs: it has to take the
    // known value instead.
    let known = ["tsc_early_khz=1000000"];
    known.into_iter().chain(readable.into_iter().flatten()).map(str::to_owned).collect()
}

/// Addresses of the tiers with a new QEMU: guest-physical ones, of which some below 4 GiB are kept
/// free (`pc_q35_init` in its hw/i386/pc_q35.c).
fn guest_ranges(machine: &GuestMachine) -> Vec<TierRange> {
    let all = machine.fast_bytes + machine.slow_bytes;
    let low = all.min(if all >= 0xB000_0000 { 0x8000_0000 } else { 0xB000_0000 });
    // Ranges of addresses, and their offsets in all memory.
    let pieces = [(0, 0, low), (1 << 32, low, all - low)];
    let tiers = [(0, machine.fast_bytes), (machine.fast_bytes, machine.slow_bytes)];
    let mut ranges = Vec::new();
    for (tier, (tier_start, tier_bytes)) in tiers.into_iter().enumerate() {
        for (address, start, bytes) in pieces {
            let from = start.max(tier_start);
            let to = (start + bytes).min(tier_start + tier_bytes);
            if from < to {
                ranges.push(TierRange {
                    tier,
                    start: address + (from - start),
                    bytes: to - from,
                    offset: from - tier_start,
                });
            }
        }
    }
    ranges
}

/// Addresses of the tiers with an old QEMU.
fn block_ranges(machine: &GuestMachine) -> Vec<TierRange> {
    let of = |(tier, range): (usize, NodeRange)| TierRange {
        tier,
        start: range.start,
        bytes: range.bytes,
        offset: 0,
    };
    ranges(machine).into_iter().enumerate().map(of).collect()
}

/// The configuration with the sizes of this machine.
pub(crate) fn sized(machine: &GuestMachine, config: &TimedConfig) -> TimedConfig {
    config.clone().sized(machine.cpus, &[machine.fast_bytes, machine.slow_bytes])
}

/// Files that a starting machine exchanges with its plug-in.
pub(crate) struct Timing {
    folder: TemporaryFolder,
    plugin: PathBuf,
    /// This QEMU must not discard translated code.
    once: bool,
    /// The guest has a port with samples.
    samples: bool,
}

impl Timing {
    pub fn new(
        machine: &GuestMachine,
        config: &TimedConfig,
        qemu: QemuVersion,
        kernel: &Path,
    ) -> Result<Self, LabError> {
        let new = NEW.contains(&qemu);
        if !new && !OLD.contains(&qemu) {
            return Err(LabError::Invalid {
                what: "the QEMU of a memory clock",
                got: format!("version {}.{}", qemu.major, qemu.minor),
                expected: "6.1 to 8.1, as Debian 12's 7.2, or 9.2 to 10.0, as Debian 13's"
                    .to_owned(),
            });
        }
        let mut plugin =
            terrace_recorder::places::plugin(None).map_err(|e| LabError::HostProgramMissing {
                what: "the plug-in that keeps the clock".to_owned(),
                remedy: e.to_string(),
            })?;
        let physical = guest_ranges(machine);
        let samples = machine.samples.clone().map(|samples| SamplePlan { physical, ..samples });
        let plan = ClockPlan {
            samples: samples.clone(),
            work: machine.work.clone(),
            ranges: if new { guest_ranges(machine) } else { block_ranges(machine) },
            symbols: symbols::of_image(kernel),
            direct_map: (new && !machine.five_levels).then_some(DIRECT_MAP),
            config: sized(machine, config),
        };
        let text = plan.to_toml().map_err(|e| LabError::Invalid {
            what: "the hardware of the clock",
            got: e.to_string(),
            expected: "hardware that TOML can express".to_owned(),
        })?;
        let folder =
            TemporaryFolder::new("terrace-clock-").doing("make a directory for the clock")?;
        std::fs::write(folder.path().join("plan.toml"), text).doing("hand the clock its plan")?;
        if new {
            let copy = folder.path().join("plugin.so");
            terrace_recorder::places::for_interface(&plugin, NEW_INTERFACE, &copy)
                .doing("make a copy of the plug-in for this QEMU")?;
            plugin = copy;
        }
        let once = machine.cpus > 1 && qemu < THROWS_CODE_AWAY_SINCE;
        Ok(Self { folder, plugin, once, samples: samples.is_some() })
    }

    /// The socket to which the plug-in writes samples; QEMU connects it to a port of the guest.
    fn socket(&self) -> Option<PathBuf> {
        self.samples.then(|| self.folder.path().join("samples"))
    }

    /// QEMU's arguments for that port, after those of the lab's own ports.
    pub fn port_arguments(&self) -> Vec<String> {
        let Some(socket) = self.socket() else { return Vec::new() };
        let path = quoted(&socket);
        vec![
            "-chardev".to_owned(),
            format!("socket,id=samples,path={path},server=on,wait=off"),
            "-device".to_owned(),
            format!("virtserialport,chardev=samples,nr={PORT},name={PORT_NAME}"),
        ]
    }

    fn results(&self) -> PathBuf {
        self.folder.path().join("figures.jsonl")
    }

    /// QEMU's argument after `-plugin`.
    pub fn plugin_argument(&self) -> String {
        let samples = self.socket().map(|socket| format!(",samples={}", quoted(&socket)));
        format!(
            "{},clock={},results={}{}{}",
            quoted(&self.plugin),
            quoted(&self.folder.path().join("plan.toml")),
            quoted(&self.results()),
            samples.unwrap_or_default(),
            if self.once { ",once=on" } else { "" }
        )
    }

    /// The figures, once the machine is off.
    pub fn finish(self) -> Result<ClockFigures, LabError> {
        let text = std::fs::read_to_string(self.results()).doing("read the clock's figures")?;
        ClockFigures::read(&text)
    }
}

/// A line that the plug-in wrote.
#[derive(Debug, Deserialize)]
struct Line {
    mark: String,
    figures: Figures,
    #[serde(default)]
    work: Option<WorkFigures>,
    #[serde(default)]
    host_cpu_ns: u64,
}

/// Figures of the memory clock for a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClockFigures {
    /// While the command ran. With sampling windows, counters are those of the windows.
    pub total: Figures,
    /// From mark to mark (`count-period`), where there are more than two.
    pub periods: Vec<Figures>,
    /// What a program with processors of its own did meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkFigures>,
    /// Processor time of the host that the emulator took from mark to mark, the first window first.
    /// It differs from run to run and is not written with the rest.
    #[serde(skip)]
    pub host_cpu_ns: Vec<u64>,
    /// Whether the command's end was marked; otherwise the machine ended first, and `total` ends
    /// with the last mark.
    pub complete: bool,
}

impl ClockFigures {
    fn read(text: &str) -> Result<Self, LabError> {
        let lines = text.lines().map(serde_json::from_str::<Line>).collect::<Result<Vec<_>, _>>();
        let mut lines = lines.map_err(std::io::Error::from).doing("read the clock's figures")?;
        // A guest that did not boot was started again.
        let begin = lines.iter().rposition(|line| line.mark == "begin");
        lines.drain(..begin.unwrap_or(0));
        let end = lines.iter().position(|line| line.mark == "end");
        lines.truncate(end.map_or(lines.len(), |end| end + 1));
        let (Some(first), Some(last)) = (lines.first(), lines.last()) else {
            return Err(LabError::Invalid {
                what: "the plug-in that keeps the clock",
                got: "a guest that never began".to_owned(),
                expected: "a QEMU with plug-ins, such as Debian's qemu-system-x86".to_owned(),
            });
        };
        let periods: Vec<Figures> =
            lines.windows(2).map(|pair| pair[1].figures.since(&pair[0].figures)).collect();
        let host_cpu_ns =
            lines.windows(2).map(|pair| pair[1].host_cpu_ns.saturating_sub(pair[0].host_cpu_ns));
        Ok(Self {
            host_cpu_ns: host_cpu_ns.collect(),
            total: last.figures.since(&first.figures),
            work: last.work.clone(),
            periods: if periods.len() > 1 { periods } else { Vec::new() },
            complete: end.is_some(),
        })
    }

    /// A summary in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let total = self.total.extrapolated();
        let Figures { time_ns, instructions, busy_ns, kernel, tiers, .. } = &total;
        let seconds = |ns: f64| ns / 1e9;
        let tiers: Vec<String> = tiers
            .iter()
            .map(|tier| {
                let latency = tier
                    .loaded_latency_ns()
                    .map_or_else(|| "none".to_owned(), |ns| format!("{ns:.0} ns each"));
                let stall = seconds(tier.stall_ns);
                format!("{} lines of {} ({latency}, {stall:.3} s stalled)", tier.reads, tier.tier)
            })
            .collect();
        let share = |(share, whose): (&Option<f64>, &str)| {
            share.map(|share| format!("{:.1} % {whose}", 100.0 * share))
        };
        let shares = total.first_tier_shares();
        let shares: Vec<_> =
            shares.iter().zip(["of programs'", "of the kernel's"]).filter_map(share).collect();
        let first = total.tiers.first().map_or("", |tier| tier.tier.as_str());
        let misses = match shares.as_slice() {
            [] => String::new(),
            shares => format!("; of last-level misses {} were of {first}", shares.join(" and ")),
        };
        let mut causes: Vec<_> = kernel.iter().filter(|cause| cause.busy_ns >= 5e5).collect();
        causes.sort_by(|a, b| b.busy_ns.total_cmp(&a.busy_ns));
        let causes = causes.iter().map(|c| format!("{} {:.3}", c.cause, seconds(c.busy_ns)));
        let causes = causes.collect::<Vec<_>>().join(", ");
        let causes = if causes.is_empty() { causes } else { format!(" ({causes})") };
        let sampled = total.windows.as_ref().map_or_else(String::new, |windows| {
            let estimated: f64 = windows.sums.iter().map(|sums| sums.estimated).sum();
            let all = instructions.iter().sum::<u64>() as f64;
            let error = windows.error_ns().map_or_else(
                || "unknown".to_owned(),
                |ns| format!("{:.2} %", 100.0 * ns / (busy_ns[0] + busy_ns[1]).max(1) as f64),
            );
            let share = 100.0 * (1.0 - estimated / all.max(1.0));
            format!(
                "; {share:.1} % of instructions timed in detail, 95 % error of busy time {error}"
            )
        });
        format!(
            "{:.3} s of the guest's time: {:.1} million instructions of programs and {:.1} of the \
             kernel, busy {:.3} and {:.3} s{causes}; read {}{misses}; {} page walks{sampled}{}",
            seconds(*time_ns as f64),
            instructions[0] as f64 / 1e6,
            instructions[1] as f64 / 1e6,
            seconds(busy_ns[0] as f64),
            seconds(busy_ns[1] as f64),
            tiers.join(" and "),
            total.walks,
            if self.complete { "" } else { "; the machine ended before the command did" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(mark: &str, time_ns: u64) -> String {
        let figures = Figures { time_ns, ..Figures::default() };
        serde_json::json!({ "mark": mark, "figures": figures }).to_string()
    }

    #[test]
    fn a_new_qemus_ranges_are_those_of_the_guests_memory() {
        const GIB: u64 = 1 << 30;
        let of = |fast_bytes, slow_bytes| {
            let ranges =
                guest_ranges(&GuestMachine { fast_bytes, slow_bytes, ..GuestMachine::default() });
            ranges.iter().map(|r| (r.tier, r.start, r.bytes, r.offset)).collect::<Vec<_>>()
        };
        assert_eq!(of(GIB, GIB), [(0, 0, GIB, 0), (1, GIB, GIB, 0)]);
        // With more than 2.75 GiB a half is below 2 GiB and the rest above 4.
        let expected = [(0, 0, GIB, 0), (1, GIB, GIB, 0), (1, 4 * GIB, 2 * GIB, GIB)];
        assert_eq!(of(GIB, 3 * GIB), expected);
        let expected = [(0, 0, 2 * GIB, 0), (0, 4 * GIB, GIB, 2 * GIB), (1, 5 * GIB, GIB, 0)];
        assert_eq!(of(3 * GIB, GIB), expected);
    }

    #[test]
    fn figures_are_differences_between_marks() {
        let text = [line("begin", 5), line("period", 7), line("end", 17), line("begin", 18)];
        // Only the last beginning counts.
        let again = ClockFigures::read(&text.join("\n")).unwrap();
        assert_eq!((again.total.time_ns, again.complete), (0, false));
        let once = ClockFigures::read(&text[..3].join("\n")).unwrap();
        assert_eq!((once.total.time_ns, once.complete), (12, true));
        assert_eq!(once.periods.iter().map(|p| p.time_ns).collect::<Vec<_>>(), [2, 10]);
        assert!(ClockFigures::read("").is_err());
    }
}

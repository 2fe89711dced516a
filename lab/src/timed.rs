//! A machine whose clock knows the memory: what its plug-in is handed, and what it has counted.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use terrace_timed::config::{ClockPlan, TimedConfig};
use terrace_timed::figures::Figures;

use crate::accesses::ranges;
use crate::error::{Doing, LabError};
use crate::machine::{Machine, QemuVersion};

/// Versions of QEMU whose plug-ins work as this one needs it: see [`crate::accesses`].
const SINCE: QemuVersion = QemuVersion { major: 6, minor: 1 };
const BEFORE: QemuVersion = QemuVersion { major: 8, minor: 2 };

/// How fast the parts of this machine are.
pub(crate) fn sized(machine: &Machine, config: &TimedConfig) -> TimedConfig {
    config.clone().sized(machine.cpus, &[machine.fast_bytes, machine.slow_bytes])
}

/// Files between a machine that is about to start and its plug-in.
pub(crate) struct Timing {
    folder: tempfile::TempDir,
    plugin: PathBuf,
}

impl Timing {
    pub fn new(
        machine: &Machine,
        config: &TimedConfig,
        qemu: QemuVersion,
    ) -> Result<Self, LabError> {
        if !(SINCE..BEFORE).contains(&qemu) {
            return Err(LabError::Invalid {
                what: "the QEMU of a clock that knows the memory",
                got: format!("version {}.{}", qemu.major, qemu.minor),
                expected: "6.1 to 8.1, as Debian 12's 7.2".to_owned(),
            });
        }
        let plugin =
            terrace_recorder::places::plugin(None).map_err(|e| LabError::HostProgramMissing {
                what: "the plug-in that keeps the clock".to_owned(),
                remedy: e.to_string(),
            })?;
        let plan = ClockPlan {
            ranges: ranges(machine).map(|range| (range.start, range.bytes)).to_vec(),
            config: sized(machine, config),
        };
        let text = plan.to_toml().map_err(|e| LabError::Invalid {
            what: "the hardware of the clock",
            got: e.to_string(),
            expected: "hardware that can be written down".to_owned(),
        })?;
        let folder = tempfile::Builder::new()
            .prefix("terrace-clock-")
            .tempdir()
            .doing("make a directory for the clock")?;
        std::fs::write(folder.path().join("plan.toml"), text).doing("hand the clock its plan")?;
        Ok(Self { folder, plugin })
    }

    fn results(&self) -> PathBuf {
        self.folder.path().join("figures.jsonl")
    }

    /// QEMU's argument after `-plugin`.
    pub fn plugin_argument(&self) -> String {
        // QEMU's own way to have a comma in a value.
        let of = |path: PathBuf| path.to_string_lossy().replace(',', ",,");
        format!(
            "{},clock={},results={}",
            self.plugin.display(),
            of(self.folder.path().join("plan.toml")),
            of(self.results())
        )
    }

    /// What was counted, once the machine is off.
    pub fn finish(self) -> Result<ClockFigures, LabError> {
        let text = std::fs::read_to_string(self.results()).doing("read the clock's figures")?;
        ClockFigures::read(&text)
    }
}

/// A line of the plug-in's.
#[derive(Debug, Deserialize)]
struct Line {
    mark: String,
    figures: Figures,
    #[serde(default)]
    host_cpu_ns: u64,
}

/// What the machine's clock knows of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClockFigures {
    /// While the command ran.
    pub total: Figures,
    /// From mark to mark (`count-period`), where there are more than two.
    pub periods: Vec<Figures>,
    /// Processor time of the host that the emulator took from mark to mark, the first window first.
    /// Not of the guest, and never the same twice: not written with the rest.
    #[serde(skip)]
    pub host_cpu_ns: Vec<u64>,
    /// Whether the command's end was marked; otherwise the machine ended first, and `total` lasts
    /// until the last mark.
    pub complete: bool,
}

impl ClockFigures {
    fn read(text: &str) -> Result<Self, LabError> {
        let lines = text.lines().map(serde_json::from_str::<Line>).collect::<Result<Vec<_>, _>>();
        let mut lines = lines.map_err(std::io::Error::from).doing("read the clock's figures")?;
        // A guest that did not come up was started again.
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
            periods: if periods.len() > 1 { periods } else { Vec::new() },
            complete: end.is_some(),
        })
    }

    /// One line for people.
    #[must_use]
    pub fn line(&self) -> String {
        let Figures { time_ns, instructions, busy_ns, tiers, .. } = &self.total;
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
        format!(
            "{:.3} s of the guest's time: {:.1} million instructions of programs and {:.1} of the \
             kernel, busy {:.3} and {:.3} s; read {}; {} page walks{}",
            seconds(*time_ns as f64),
            instructions[0] as f64 / 1e6,
            instructions[1] as f64 / 1e6,
            seconds(busy_ns[0] as f64),
            seconds(busy_ns[1] as f64),
            tiers.join(" and "),
            self.total.walks,
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

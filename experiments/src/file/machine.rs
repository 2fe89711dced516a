//! `[machine]` of an experiment file: tiers, kernel, clock and fidelity.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use terrace_linux::backend::Mechanisms;
use terrace_linux::samples::SampleReads;
use terrace_simulated::os::OsConfig;
use terrace_simulated::reference::Options;

use crate::size::Size;

fn is_no(flag: &bool) -> bool {
    !*flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The two tiers of a simulated or virtual machine.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct MachineSpec {
    /// Processors.
    pub cpus: u32,
    /// Size of the fast tier. Default: on the simulated machine the sum of the groups' shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast: Option<Size>,
    /// Size of the slow tier. Default: on the simulated machine without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow: Option<Size>,
    /// Latency of the fast tier in ns, as the virtual machine's firmware reports it.
    pub fast_latency_ns: u32,
    /// Latency of the slow tier in ns.
    pub slow_latency_ns: u32,
    /// Nodes of the fast tier of a host whose firmware does not report its tiers. Give both or
    /// none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fast_nodes: Vec<u32>,
    /// Nodes of its slow tier.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow_nodes: Vec<u32>,
    /// Kernel of the virtual machine: "debian" (its package, the default), "debian-7.3" (that
    /// series, of Debian 13's backports), "terrace" (what `make kernel` built), "terrace-7.3" (what
    /// `make kernel KERNEL=7.3` built), or the path of an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// What emulates the virtual machine: the major version of Debian's QEMU, as in "10", a name on
    /// PATH, or a path. Default: the QEMU of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// How a live machine tracks and moves pages: "auto" (the Terrace kernel's mechanisms where the
    /// kernel has them), "stock", or "terrace".
    #[serde(skip_serializing_if = "Mechanisms::is_auto")]
    pub mechanisms: Mechanisms,
    /// On a live machine: fast memory beyond the groups' limits is filled for the time of the run,
    /// so that mechanisms without limits have no more fast memory than the groups may use. Where they may
    /// use all of it (`fast_ratio = 1.0`), what is left is filled at the end of the warm-up.
    #[serde(skip_serializing_if = "is_no")]
    pub full: bool,
    /// What the clocks of a virtual machine count.
    #[serde(skip_serializing_if = "Clock::is_host")]
    pub clock: Clock,
    /// Fidelity of the simulated machine.
    #[serde(skip_serializing_if = "Fidelity::is_interval")]
    #[serde(alias = "depth")]
    pub fidelity: Fidelity,
    /// Which reads from memory are sampled and reported to policies: one in so many, 0 for none, for
    /// a workload of kind "profile", for any at trace fidelity or with the memory clock, and on a
    /// host whose processor samples. In a warm-up, in short stretches of it. "auto", the default: as
    /// many as a live host gives, one in 400 of a virtual machine with the
    /// memory clock that times everything, none of a simulated machine.
    #[serde(skip_serializing_if = "SampleReads::is_auto")]
    pub sample_reads: SampleReads,
    /// With the memory clock: only windows of so many instructions, of all processors together, are
    /// timed in detail; between them instructions are counted and take what they took in windows. 0:
    /// everything is timed in detail.
    #[serde(skip_serializing_if = "is_zero")]
    pub window_instructions: u32,
    /// Instructions timed before each window to fill what is under way, and not counted.
    /// Default: twice `window_instructions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_warm_up_instructions: Option<u32>,
    /// Instructions from window to window, in the mean. Default: 30 times `window_instructions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_interval_instructions: Option<u32>,
    /// On a live machine: hint faults show how often base pages are accessed, for groups with
    /// `page_size = "auto"`. Where a host has none, accessed bits are all there is. A stock kernel can
    /// fall over by them: for virtual machines.
    #[serde(skip_serializing_if = "is_no")]
    pub hint_faults: bool,
    /// At trace fidelity, and with the memory clock: the machine's hardware, a preset by name and
    /// changes to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware: Option<toml::Table>,
    /// At trace fidelity: the operating system; for a workload that is a profile, its costs of
    /// moving pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<OsConfig>,
    /// At trace fidelity: options of the simulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulation: Option<Options>,
}

/// Fidelity of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fidelity {
    /// Which pages are accessed in each period.
    #[default]
    #[serde(alias = "period")]
    Interval,
    /// Every reference, on hardware with an operating system.
    #[serde(alias = "reference")]
    Trace,
}

impl Fidelity {
    fn is_interval(&self) -> bool {
        *self == Fidelity::Interval
    }
}

/// What the clocks of a virtual machine count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// The host's time: the work of the guest in a period depends on the load of the host.
    #[default]
    Host,
    /// Its instructions, one a nanosecond, of all processors together; time in which none runs is
    /// skipped. The load of the host changes how long a run takes, not the work of the guest in a
    /// period.
    Instructions,
    /// Modelled time of its instructions and memory accesses on hardware with these tiers,
    /// processor by processor: the *memory clock*.
    Memory,
}

impl Clock {
    fn is_host(&self) -> bool {
        *self == Clock::Host
    }

    /// Its name in result tables; `None` for the host's clock.
    pub(crate) fn column(self) -> Option<&'static str> {
        match self {
            Clock::Host => None,
            Clock::Instructions => Some("instructions"),
            Clock::Memory => Some("memory"),
        }
    }
}

/// A processor of the memory clock samples one read in so many at first, where nothing else is asked for.
const SAMPLED_READS: u32 = terrace_linux::samples::port::READS_PER_SAMPLE;

impl MachineSpec {
    /// One read in so many is sampled on a virtual machine of these keys; 0: none.
    pub(crate) fn sampled_reads(&self) -> u32 {
        // Between windows reads are not observed.
        let all_timed = self.clock == Clock::Memory && self.window_instructions == 0;
        self.sample_reads.or(if all_timed { SAMPLED_READS } else { 0 })
    }
}

impl Default for MachineSpec {
    fn default() -> Self {
        // Local DRAM beside a CXL expander, rounded.
        MachineSpec {
            cpus: 2,
            fast: None,
            slow: None,
            fast_latency_ns: 80,
            slow_latency_ns: 300,
            fast_nodes: Vec::new(),
            slow_nodes: Vec::new(),
            kernel: None,
            qemu: None,
            mechanisms: Mechanisms::Auto,
            full: false,
            clock: Clock::Host,
            fidelity: Fidelity::Interval,
            sample_reads: SampleReads::Auto,
            window_instructions: 0,
            window_warm_up_instructions: None,
            window_interval_instructions: None,
            hint_faults: false,
            hardware: None,
            os: None,
            simulation: None,
        }
    }
}

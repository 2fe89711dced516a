//! The configuration of a machine at trace fidelity.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use terrace_core::page::{Layout, PageSize};
use terrace_core::policy::Allocation;
use terrace_hardware::error::{ConfigError, check_range};
use terrace_hardware::presets::MachineConfig;
use terrace_os::OsConfig;
use terrace_os::config::TablePolicy;

/// Configuration of a machine at trace fidelity.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceConfig {
    /// Processor and tiers. The first tier is the fast one, the second the slow one.
    pub hardware: MachineConfig,
    /// The operating system.
    pub os: OsConfig,
    /// Length of a period, in nanoseconds of simulated time.
    pub period_ns: u64,
    /// Lines read from memory per sample that policies get; 0: no samples.
    pub reads_per_sample: u32,
    /// Seed of the distances between samples.
    pub sample_seed: u64,
    /// Options of the simulation of time.
    pub options: Options,
}

/// No step of the simulation is longer than a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Options of the simulation of time. The defaults suit machines of some cores and a few programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// How far one program or copying thread may run ahead of the next while others run, in ns of
    /// simulated time. Shorter is more exact where they share bandwidth, and slower.
    #[schemars(range(min = 1, max = SECOND_NS))]
    pub quantum_ns: u64,
    /// The quantum of programs that share a core: their time slice.
    #[schemars(range(min = 1, max = SECOND_NS))]
    pub time_slice_ns: u64,
    /// The cost of a switch from one program to another on a core, in ns. Translations are flushed.
    #[schemars(range(min = 0, max = SECOND_NS))]
    pub switch_ns: u64,
    /// How far one thread of a program may lag behind another, in ns: a thread that has waited for
    /// its turn, as between two parallel sections, starts no farther back.
    #[schemars(range(min = 0, max = SECOND_NS))]
    pub skew_ns: u64,
    /// Whether the program's translations are flushed when accessed bits are read and cleared. If
    /// not, a page that stays in the TLB appears unused, as on x86 Linux.
    pub flush_on_scan: bool,
    /// The part of a period after which no further moves are begun, 0 to 1: the rest of a plan then
    /// fails for want of time.
    #[schemars(range(min = 0, max = 1))]
    pub move_share: f64,
    /// Whether every plan is carried out to its end, by a thread beside the programs: no move fails
    /// for want of time, `move_share` has no effect, and a period lasts until the moves that its
    /// beginning ordered have ended, if they take longer than it.
    pub finish_moves: bool,
    /// Regions of 2 MB of each program that are checked once a period, to be collapsed to huge
    /// pages as khugepaged does. 0: none.
    pub collapse_regions_per_period: u64,
    /// Background demotion; off by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub background_demotion: Option<BackgroundDemotion>,
}

/// When pages that are not used are demoted without a policy's plan, as TPP does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackgroundDemotion {
    /// Demotion begins when less than this share of the fast tier is free.
    #[schemars(range(min = 0, max = 1))]
    pub begin_free_share: f64,
    /// Demotion ends when this share is free.
    #[schemars(range(min = 0, max = 1))]
    pub end_free_share: f64,
}

impl Default for BackgroundDemotion {
    /// Begins at 2 %, TPP's `demote_scale_factor`; not checked against the paper.
    fn default() -> Self {
        BackgroundDemotion { begin_free_share: 0.02, end_free_share: 0.04 }
    }
}

impl Options {
    /// Refuses what cannot be simulated.
    pub fn check(&self) -> Result<(), ConfigError> {
        let part = "simulation";
        check_range(part, "quantum_ns", self.quantum_ns, 1..=SECOND_NS)?;
        check_range(part, "time_slice_ns", self.time_slice_ns, 1..=SECOND_NS)?;
        check_range(part, "switch_ns", self.switch_ns, 0..=SECOND_NS)?;
        check_range(part, "skew_ns", self.skew_ns, 0..=SECOND_NS)?;
        let share = |part: &str, name: &str, got: f64| match (0.0..=1.0).contains(&got) {
            true => Ok(()),
            false => Err(ConfigError::new(part, format!("{name} is {got}; expected 0 to 1"))),
        };
        share(part, "move_share", self.move_share)?;
        let Some(demotion) = self.background_demotion else { return Ok(()) };
        let part = "simulation.background_demotion";
        share(part, "begin_free_share", demotion.begin_free_share)?;
        share(part, "end_free_share", demotion.end_free_share)
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            quantum_ns: 1_000,
            time_slice_ns: 1_000_000,
            switch_ns: 1_500,
            skew_ns: 20_000,
            flush_on_scan: true,
            move_share: 0.9,
            finish_moves: false,
            collapse_regions_per_period: 0,
            background_demotion: None,
        }
    }
}

/// Fast memory that a group may use, in pages of this layout.
pub type FastBudget = Box<dyn Fn(&Layout) -> u64 + Send>;

/// A group of the machine: one program.
pub struct ReferenceGroup {
    /// The group's name, for messages.
    pub name: String,
    /// Size of the pages that are tracked and moved. Huge: eligible memory is mapped by huge pages
    /// where there is room. Base: all memory is mapped by base pages.
    pub page_size: PageSize,
    /// Placement of new pages.
    pub allocation: Allocation,
    /// Placement of page-table pages, and whether they follow their data.
    pub tables: TablePolicy,
    /// Fast-memory limit of the group: allocation fills it, promotions stop at it.
    pub fast_budget: FastBudget,
    /// Whether the policy needs the frames of the pages.
    pub needs_frames: bool,
    /// Start time, in ns of simulated time.
    pub start_ns: u64,
    /// Time at which the program is ended, if it has not ended by itself, in ns.
    pub stop_ns: Option<u64>,
    /// The group at the end of whose program's start-up the program is ended.
    pub stop_after_start_up_of: Option<String>,
}

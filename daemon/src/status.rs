//! The status of the daemon: plain data, the same for `terrace status --format json`, the screens,
//! the metrics and the tests. Sizes are bytes, times are ns unless a name says otherwise.

use serde::{Deserialize, Serialize};
use terrace_core::policy::ExternalReport;

use crate::throttle::ThrottleStatus;

/// The daemon and its groups.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Status {
    /// Version of terraced.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// The configuration in force.
    pub config: String,
    /// Successful reloads.
    pub reloads: u64,
    /// Refused reloads.
    pub failed_reloads: u64,
    /// Why the last reload was refused, until one is done.
    pub reload_error: Option<String>,
    /// Why the host cannot be managed, while `terraced run --wait` waits until it can.
    #[serde(default)]
    pub waiting: Option<String>,
    /// Processor time of the daemon's own process.
    pub cpu_ns: u64,
    /// Memory of the daemon's own process.
    pub rss_bytes: u64,
    /// The machine.
    pub machine: MachineStatus,
    /// Partitioning of fast memory, if some group has a share.
    pub sharing: Option<SharingStatus>,
    /// The groups, by control group.
    pub groups: Vec<GroupStatus>,
    /// Control groups that match and are not managed.
    #[serde(alias = "left")]
    pub unmanaged: Vec<UnmanagedStatus>,
    /// Lower bound of the control groups that the last search left out because there are too many.
    #[serde(default)]
    pub unvisited_groups: u64,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MachineStatus {
    /// Nodes of the fast tier.
    pub fast_nodes: Vec<u32>,
    /// Nodes of the slow tiers.
    pub slow_nodes: Vec<u32>,
    /// Source of the tiers' order.
    pub source: String,
    /// Memory of the fast tier.
    pub fast_bytes: u64,
    /// Of it, free above the kernel's reserve.
    pub fast_free_bytes: u64,
    /// Of it, neither free nor of a managed group: used by unmanaged programs and the kernel.
    #[serde(default)]
    pub unmanaged_fast_bytes: u64,
    /// Memory of the slow tiers.
    pub slow_bytes: u64,
    /// Latency of slow over that of fast memory, if known.
    pub latency_ratio: Option<f64>,
    /// Conflicts found at the start, changed where possible.
    pub notes: Vec<String>,
    /// The mechanism of tracking and migration, and why.
    #[serde(default)]
    pub mechanism: String,
    /// Guard processes that died and were replaced.
    #[serde(default)]
    pub guard_deaths: u64,
    /// Whether settings would be restored if the daemon were killed now.
    #[serde(default)]
    pub is_guarded: bool,
}

/// Partitioning of fast memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SharingStatus {
    /// Fast memory to partition.
    pub total_bytes: u64,
    /// Partitionings so far.
    #[serde(alias = "divisions")]
    pub partitionings: u64,
    /// Minimums did not fit and were cut.
    pub minimums_cut: bool,
    /// The largest loss of hit ratio of a group against partitioning by weight.
    pub largest_loss: f64,
    /// The bound on that loss.
    pub max_loss: f64,
}

/// A control group that matches and is not managed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UnmanagedStatus {
    /// Its path.
    pub cgroup: String,
    /// Name of the entry that matches.
    pub entry: String,
    /// The reason.
    pub reason: String,
}

/// Memory of a tier by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Heat {
    /// Accessed in at least half of the last scans (64 at most).
    pub hot_bytes: u64,
    /// Accessed in some of them.
    pub warm_bytes: u64,
    /// In none.
    pub cold_bytes: u64,
}

/// A process of a group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its identifier.
    pub pid: u32,
    /// Its tracked memory.
    pub bytes: u64,
    /// Of it, in fast memory.
    pub fast_bytes: u64,
    /// Of it, accessed in the last period.
    pub accessed_bytes: u64,
}

/// Failed moves by reason.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FailureCount {
    /// The reason's name.
    pub reason: String,
    /// Pages.
    pub pages: u64,
}

/// Memory that is not tracked, by reason.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UntrackedBytes {
    /// The reason's name.
    pub reason: String,
    /// Bytes.
    pub bytes: u64,
}

/// An estimate with its error, either way.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// Its error, either way.
    pub error: f64,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its name: that of the entry, and the path below the pattern where that matches several.
    pub name: String,
    /// Its control group.
    pub cgroup: String,
    /// "starting", "tracking", "lost" or "ended".
    pub state: String,
    /// The last error.
    pub error: Option<String>,
    /// Name of its policy.
    pub policy: String,
    /// The policy that it applies at present, such as one that AMP chose.
    pub applied: String,
    /// Decisions of an external policy.
    #[serde(default)]
    pub external: Option<ExternalReport>,
    /// Nothing is moved.
    pub dry_run: bool,
    /// Size of its pages.
    pub page_size_bytes: u64,
    /// Length of a period.
    pub period_ms: u64,
    /// Scans so far.
    pub scans: u64,
    /// Scans taken over from before a restart or a reload.
    pub restored_scans: u64,
    /// Periods that were lost.
    pub lost_periods: u64,
    /// Its processes with the most tracked memory.
    pub processes: Vec<ProcessStatus>,
    /// Number of its processes.
    pub process_count: u64,
    /// Tracked memory.
    pub bytes: u64,
    /// Of it, in fast memory.
    pub fast_bytes: u64,
    /// Fast memory that it may use.
    pub granted_bytes: u64,
    /// Kind of that limit: "ratio", "fixed" or "share".
    #[serde(alias = "quota")]
    pub limit: String,
    /// Fast memory by weight alone, for groups with a share.
    pub entitled_bytes: Option<u64>,
    /// Loss of hit ratio against that.
    pub loss: Option<f64>,
    /// Untracked memory in fast memory.
    pub untracked_fast_bytes: u64,
    /// Untracked memory in slow memory.
    pub untracked_slow_bytes: u64,
    /// Untracked memory by reason.
    #[serde(default)]
    pub untracked: Vec<UntrackedBytes>,
    /// Pages beyond the bound on tracked memory.
    pub truncated_pages: u64,
    /// Huge pages into which khugepaged has collapsed its base pages so far, in any tier; `None` if
    /// the kernel does not count them.
    #[serde(default)]
    pub collapses: Option<u64>,
    /// Bytes whose promotion found no room in fast memory in the last period, or that are in use and
    /// within the limit, and for which there was none.
    #[serde(default)]
    pub no_room_bytes: u64,
    /// Page tables by node, if the kernel counts them.
    pub pagetable_bytes: Vec<u64>,
    /// Its memory in fast memory, by use.
    pub fast: Heat,
    /// Its memory in slow memory, by use.
    pub slow: Heat,
    /// Accessed pages in fast memory over accessed pages, of the last period.
    pub hit_ratio: f64,
    /// The same over all periods since the start.
    pub hit_ratio_all: f64,
    /// Accessed pages since the start.
    pub accessed_pages: u64,
    /// Accessed pages in fast memory since the start.
    pub hit_pages: u64,
    /// Accessed pages over all pages, of the last period.
    pub accessed_ratio: f64,
    /// Pages that stayed where they were, over all.
    pub stability: f64,
    /// Pages promoted so far.
    pub promoted_pages: u64,
    /// Pages demoted so far.
    pub demoted_pages: u64,
    /// Operations (calls) that moved pages.
    pub operations: u64,
    /// Failed moves.
    pub failed: Vec<FailureCount>,
    /// The migration throttle.
    #[serde(alias = "manners")]
    pub throttle: ThrottleStatus,
    /// Time that moves took.
    pub move_ns: u64,
    /// Time of the longest batch.
    pub longest_move_ns: u64,
    /// Base pages of slow ranges that were promoted alone, so far; as many were demoted.
    #[serde(default)]
    pub refined_pages: u64,
    /// Base pages that were to be moved alone and stayed.
    #[serde(default)]
    pub refined_failed_pages: u64,
    /// Processor time of tracking.
    pub tracker_cpu_ns: u64,
    /// Processor time of the policy.
    pub policy_cpu_ns: u64,
    /// Processor time of migration.
    pub mover_cpu_ns: u64,
    /// Processor time of all three in the last period, in percent of one processor.
    pub cpu_percent: f64,
    /// Memory of policy and history.
    pub metadata_bytes: u64,
    /// Run time over run time with all memory fast, by the leading-load model.
    pub slowdown: Option<Estimate>,
    /// Memory that would be in fast memory without tiering, and is not.
    #[serde(default)]
    pub freed_fast_bytes: u64,
    /// What prevents a higher hit ratio, if one could be had.
    #[serde(default)]
    pub why_not_better: Option<String>,
}

impl GroupStatus {
    /// Its fast memory, tracked or not.
    #[must_use]
    pub fn all_fast(&self) -> u64 {
        self.fast_bytes.saturating_add(self.untracked_fast_bytes)
    }

    /// Why promotions found no room, if they did: other programs use fast memory that this group
    /// may use, and that of unmanaged programs cannot be taken.
    #[must_use]
    pub fn no_room(&self, machine: &MachineStatus) -> Option<String> {
        if self.no_room_bytes == 0 {
            return None;
        }
        let mib = |bytes: u64| bytes >> 20;
        let lacking = self.granted_bytes.saturating_sub(self.fast_bytes);
        let mut text = format!(
            "no room: {} MiB were to be promoted; it has {} of the {} MiB that it may have",
            mib(self.no_room_bytes),
            mib(self.fast_bytes),
            mib(self.granted_bytes),
        );
        if machine.unmanaged_fast_bytes >= lacking.max(1) {
            text += &format!(
                "; fast memory is held by unmanaged programs ({} of {} MiB): move them, or manage \
                 their control groups too",
                mib(machine.unmanaged_fast_bytes),
                mib(machine.fast_bytes),
            );
        }
        Some(text)
    }
}

/// Why a page or a range is where it is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// The group.
    pub group: String,
    /// Sentences about the group.
    pub facts: Vec<String>,
    /// Ranges of pages with the same use, the largest first.
    pub ranges: Vec<RangeExplanation>,
    /// Whether addresses are relative to the lowest range of their process: the client is not root.
    #[serde(default)]
    pub is_relative: bool,
}

/// A range of pages with the same use.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RangeExplanation {
    /// Process.
    pub pid: u32,
    /// First address.
    pub address: u64,
    /// Length.
    pub size_bytes: u64,
    /// Whether it is in fast memory.
    pub is_fast: bool,
    /// Least and most periods since the last access; `None` if no access was observed.
    pub age_periods: (Option<u32>, Option<u32>),
    /// Least and most scans of the last 64 in which it was accessed.
    pub frequency: (u8, u8),
    /// Why it is there.
    pub why: String,
    /// What would change it.
    pub would_change: String,
}

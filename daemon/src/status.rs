//! What the daemon tells of itself: plain data, the same for `terrace status --format json`, the
//! screens, the metrics and the tests. Sizes are bytes, times are ns unless a name says otherwise.

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
    /// Since it started.
    pub uptime_s: f64,
    /// The configuration in force.
    pub config: String,
    /// Reloads that were done, and that were refused.
    pub reloads: u64,
    /// See `reloads`.
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
    /// How fast memory is divided, where some group has a share.
    pub sharing: Option<SharingStatus>,
    /// The groups, by control group.
    pub groups: Vec<GroupStatus>,
    /// Control groups that match and are not managed.
    #[serde(alias = "left")]
    pub unmanaged: Vec<UnmanagedStatus>,
    /// Control groups that the last search left out, at least: there are too many.
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
    /// How tiers were told apart.
    pub source: String,
    /// Memory of the fast tier.
    pub fast_bytes: u64,
    /// Of it, free above the kernel's reserve.
    pub fast_free_bytes: u64,
    /// Of it, neither free nor of a managed group: of unmanaged programs and the kernel.
    #[serde(default)]
    pub unmanaged_fast_bytes: u64,
    /// Memory of the slow tiers.
    pub slow_bytes: u64,
    /// Latency of slow over that of fast memory, where it is known.
    pub latency_ratio: Option<f64>,
    /// What was found in the way at the start, and changed where it could be.
    pub notes: Vec<String>,
    /// By what pages are tracked and moved, and why.
    #[serde(default)]
    pub mechanism: String,
    /// Guard processes that died and were replaced.
    #[serde(default)]
    pub guard_deaths: u64,
    /// Settings would be put back if the daemon were killed now.
    #[serde(default)]
    pub is_guarded: bool,
}

/// How fast memory is divided.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SharingStatus {
    /// What there is to divide.
    pub total_bytes: u64,
    /// Divisions so far.
    pub divisions: u64,
    /// Minimums did not fit and were cut.
    pub minimums_cut: bool,
    /// The largest loss of hit ratio that a group suffers against a division by weight.
    pub largest_loss: f64,
    /// The bound on it.
    pub max_loss: f64,
}

/// A control group that matches and is not managed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UnmanagedStatus {
    /// Its path.
    pub cgroup: String,
    /// Name of the entry that matches.
    pub entry: String,
    /// Why.
    pub reason: String,
}

/// Memory by how it was used and where it lies.
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
    /// By how much it may be off.
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
    /// The last thing that went wrong.
    pub error: Option<String>,
    /// Its policy, and what that applies at the moment.
    pub policy: String,
    /// See `policy`.
    pub applied: String,
    /// How a policy of one's own fares.
    #[serde(default)]
    pub external: Option<ExternalReport>,
    /// Nothing is moved.
    pub dry_run: bool,
    /// Size of its pages.
    pub page_size_bytes: u64,
    /// Length of a period.
    pub period_ms: u64,
    /// Scans so far, and scans that were taken over from before a restart or a reload.
    pub scans: u64,
    /// See `scans`.
    pub restored_scans: u64,
    /// Periods that were lost.
    pub lost_periods: u64,
    /// Its processes with the most tracked memory.
    pub processes: Vec<ProcessStatus>,
    /// How many it has.
    pub process_count: u64,
    /// Tracked memory.
    pub bytes: u64,
    /// Of it, in fast memory.
    pub fast_bytes: u64,
    /// What it may have there.
    pub granted_bytes: u64,
    /// How the grant came about: "ratio", "fixed" or "share".
    #[serde(alias = "quota")]
    pub limit: String,
    /// What it would have got by weight alone, of groups with a share.
    pub entitled_bytes: Option<u64>,
    /// Loss of hit ratio against that.
    pub loss: Option<f64>,
    /// Memory that is not tracked, in fast and slow memory.
    pub untracked_fast_bytes: u64,
    /// See `untracked_fast_bytes`.
    pub untracked_slow_bytes: u64,
    /// Both together, by reason.
    #[serde(default)]
    pub untracked: Vec<UntrackedBytes>,
    /// Pages beyond the bound on tracked memory.
    pub truncated_pages: u64,
    /// Huge pages that khugepaged has made of its base pages so far, in whatever memory; `None` where
    /// the kernel does not count them.
    #[serde(default)]
    pub collapses: Option<u64>,
    /// Bytes that were to be promoted and found no room in fast memory, in the last period in which
    /// pages were promoted or were to be.
    #[serde(default)]
    pub no_room_bytes: u64,
    /// Page tables by node, where the kernel counts them.
    pub pagetable_bytes: Vec<u64>,
    /// In fast memory.
    pub fast: Heat,
    /// In slow memory.
    pub slow: Heat,
    /// Accessed pages in fast memory over accessed pages, of the last period.
    pub hit_ratio: f64,
    /// The same over all periods since the start.
    pub hit_ratio_all: f64,
    /// Accessed pages since the start, and those of them in fast memory.
    pub accessed_pages: u64,
    /// See `accessed_pages`.
    pub hit_pages: u64,
    /// Accessed pages over all pages, of the last period.
    pub accessed_ratio: f64,
    /// Pages that stayed where they were, over all.
    pub stability: f64,
    /// Pages promoted and demoted so far.
    pub promoted_pages: u64,
    /// See `promoted_pages`.
    pub demoted_pages: u64,
    /// Operations (calls) that moved pages.
    pub operations: u64,
    /// Failed moves.
    pub failed: Vec<FailureCount>,
    /// What throttled moves.
    #[serde(alias = "manners")]
    pub throttle: ThrottleStatus,
    /// Time that moves took, and the longest batch.
    pub move_ns: u64,
    /// See `move_ns`.
    pub longest_move_ns: u64,
    /// Processor time of tracking, deciding and moving.
    pub tracker_cpu_ns: u64,
    /// See `tracker_cpu_ns`.
    pub policy_cpu_ns: u64,
    /// See `tracker_cpu_ns`.
    pub mover_cpu_ns: u64,
    /// Of it, of the last period, in percent of one processor.
    pub cpu_percent: f64,
    /// Memory that policy and history take.
    pub metadata_bytes: u64,
    /// Run time over run time with all memory fast, as the leading-load model has it.
    pub slowdown: Option<Estimate>,
    /// What would be in fast memory if all of its memory were, and is not.
    #[serde(default)]
    pub freed_fast_bytes: u64,
    /// What keeps it from serving more accesses from fast memory, where there is something to gain.
    #[serde(default)]
    pub why_not_better: Option<String>,
}

impl GroupStatus {
    /// What it has of fast memory, tracked or not.
    #[must_use]
    pub fn all_fast(&self) -> u64 {
        self.fast_bytes.saturating_add(self.untracked_fast_bytes)
    }

    /// Why pages that were to be promoted found no room, if they did: fast memory that this group may
    /// use is somebody else's, and that of unmanaged programs cannot be taken from them.
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
    /// Ranges of pages that are alike, the largest first.
    pub ranges: Vec<RangeExplanation>,
    /// Addresses are relative to the lowest range of their process: who asks is not root.
    #[serde(default)]
    pub is_relative: bool,
}

/// A range of pages that are alike.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RangeExplanation {
    /// Process.
    pub pid: u32,
    /// First address.
    pub address: u64,
    /// Length.
    pub size_bytes: u64,
    /// It lies in fast memory.
    pub is_fast: bool,
    /// Least and most periods since the last access; `None`: never seen accessed.
    pub age_periods: (Option<u32>, Option<u32>),
    /// Least and most scans of the last 64 in which it was accessed.
    pub frequency: (u8, u8),
    /// Why it lies there.
    pub why: String,
    /// What would change it.
    pub would_change: String,
}

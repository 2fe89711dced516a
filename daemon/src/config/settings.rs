//! The settings of one control group: its entry of the configuration, with defaults filled in.

use std::sync::Arc;

use serde_json::Value;
use terrace_core::page::{GroupPages, PageSize};
use terrace_external::ExternalPolicy;
use terrace_linux::page_tables::GroupTables;

use crate::config::{Config, GroupConfig, ThrottleConfig};

/// How much fast memory a group may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GroupLimit {
    /// A part of its own pages.
    Ratio(f64),
    /// A size in bytes.
    Bytes(u64),
    /// By partitioning.
    Partitioned {
        /// Guaranteed bytes.
        min_bytes: u64,
        /// Most bytes.
        max_bytes: u64,
        /// Weight against other groups.
        weight: f64,
    },
}

/// All settings of one control group.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Name of the entry.
    pub entry: String,
    /// Name of the policy.
    pub policy: String,
    /// Its parameters.
    pub parameters: Value,
    /// The policy itself, if it is external.
    pub external: Option<Arc<ExternalPolicy>>,
    /// Its seed.
    pub seed: u64,
    /// Size of its pages.
    pub page_size: PageSize,
    /// Ranges of that size are pages, whatever maps them.
    pub by_range: bool,
    /// Length of a period.
    pub period_ms: u64,
    /// Its fast memory.
    pub limit: GroupLimit,
    /// Bytes it may move in a second.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Processor time, in percent of one processor.
    pub cpu_percent: Option<f64>,
    /// Nothing is moved.
    pub dry_run: bool,
    /// Where its page tables go.
    pub tables: Option<GroupTables>,
    /// Most pages that are tracked.
    pub cap_pages: u64,
    /// The migration throttle.
    pub throttle: ThrottleConfig,
}

impl Settings {
    /// Whether a tracker for `self` serves `other` too.
    pub fn tracks_like(&self, other: &Settings) -> bool {
        (self.page_size, self.by_range, self.period_ms, self.cap_pages, self.tables)
            == (other.page_size, other.by_range, other.period_ms, other.cap_pages, other.tables)
            // A dry run flushes no translations.
            && self.dry_run == other.dry_run
            && self.throttle.stall_ms == other.throttle.stall_ms
            && self.throttle.move_share == other.throttle.move_share
    }

    /// Whether both have the same policy.
    pub fn decides_like(&self, other: &Settings) -> bool {
        (&self.policy, &self.parameters, self.seed, &self.external)
            == (&other.policy, &other.parameters, other.seed, &other.external)
            // Whether a policy answers in time depends on the length of a period.
            && (self.external.is_none() || self.period_ms == other.period_ms)
    }
}

impl Config {
    /// Whether no group is moved: then no setting of the host is changed either.
    pub fn is_dry(&self) -> bool {
        self.daemon.dry_run || self.groups.iter().all(|g| g.get_ref().dry_run)
    }

    pub(super) fn parameters_of(&self, policy: &str) -> Value {
        self.policies.get(policy).cloned().unwrap_or(Value::Null)
    }

    /// The settings for the control groups of an entry.
    pub fn settings(&self, group: &GroupConfig) -> Settings {
        Settings {
            entry: group.name.clone(),
            policy: group.policy.clone(),
            parameters: self.parameters_of(&group.policy),
            external: self.externals.get(&group.policy).cloned(),
            seed: self.daemon.seed,
            page_size: group.page_size.size(),
            by_range: group.page_size == GroupPages::Ranges,
            period_ms: group.period_ms.unwrap_or(self.daemon.period_ms),
            limit: match (group.fast_ratio, group.fast, group.share.unwrap_or_default()) {
                (Some(ratio), ..) => GroupLimit::Ratio(ratio),
                (_, Some(bytes), _) => GroupLimit::Bytes(bytes.0),
                (.., share) => GroupLimit::Partitioned {
                    min_bytes: share.min.0,
                    max_bytes: share.max.map_or(u64::MAX, |s| s.0),
                    weight: share.weight,
                },
            },
            bandwidth_bytes_per_s: group.bandwidth.map(|s| s.0),
            cpu_percent: group.cpu_percent,
            dry_run: group.dry_run || self.daemon.dry_run,
            tables: group.tables,
            cap_pages: cap_pages(group),
            throttle: self.throttle,
        }
    }
}

/// The bounds of [`terrace_linux::GroupSpec::new`], if the configuration has none.
pub(super) fn cap_pages(group: &GroupConfig) -> u64 {
    let usual = match group.page_size.size() {
        PageSize::Huge => 65_536,
        PageSize::Base => 16_384,
    };
    group.tracked.map_or(usual, |size| size.0.div_ceil(group.page_size.size().bytes()))
}

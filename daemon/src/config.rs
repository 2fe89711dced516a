//! `terraced.toml`: read strictly; every error has its line.
//!
//! Unknown keys, impossible values and contradictions are errors. Missing keys have the defaults
//! that `docs/operator.md` and `examples/terraced.toml` state. Nothing in it is executed except
//! external policies, in processes without privileges (`terrace_external`).

mod check;
mod settings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use terrace_core::lines::{line_at, line_of_key};
use terrace_core::page::GroupPages;
use terrace_core::parameters::in_plain_words;
use terrace_core::size::Size;
use terrace_external::{ExternalPolicy, is_external};
use terrace_linux::page_tables::GroupTables;
use terrace_linux::samples::SampleReads;
use toml::Spanned;

pub use crate::config::settings::{GroupLimit, Settings};

/// Largest configuration that is read.
const MOST_BYTES: u64 = 1 << 20;
/// Most `[[groups]]` entries.
const MOST_ENTRIES: usize = 256;
/// Most groups managed at a time: each has a kernel thread and a thread of the daemon.
const MOST_GROUPS: u32 = 128;

/// Why a configuration cannot be used: one line with the file and, where it is known, the line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// A configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Settings for all groups.
    #[serde(default)]
    pub daemon: DaemonConfig,
    /// How fast memory is partitioned between groups with a `share`.
    #[serde(default)]
    pub sharing: SharingConfig,
    /// The migration throttle. `[manners]` is its old name, read for one release.
    #[serde(default, alias = "manners")]
    pub throttle: ThrottleConfig,
    /// The groups, in the order in which they claim control groups.
    pub groups: Vec<Spanned<GroupConfig>>,
    /// Parameters of policies, by policy.
    #[serde(default)]
    pub policies: BTreeMap<String, Value>,
    /// External policies among them, with the texts of their files.
    #[serde(skip)]
    pub externals: BTreeMap<String, Arc<ExternalPolicy>>,
}

/// `[daemon]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonConfig {
    /// Default length of a period.
    pub period_ms: u64,
    /// Interval of searches for control groups.
    pub discover_ms: u64,
    /// Most groups at a time.
    pub max_groups: u32,
    /// Most processes of one group; a group with more is not managed.
    pub max_processes: usize,
    /// Which reads that miss the last level are sampled.
    pub sample_reads: SampleReads,
    /// Hint faults show how often base pages are accessed, for groups by ranges: NUMA balancing is on for
    /// short phases, without promotions. Where a host has none, accessed bits are all there is. A stock
    /// kernel can fall over by them ([`terrace_linux::HostOptions::hint_faults`]).
    pub hint_faults: bool,
    /// Permission to change kernel settings that conflict, journaled, while the daemon runs.
    pub fix_conflicts: bool,
    /// Fast nodes, for firmware that reports none or wrong ones.
    pub fast_nodes: Vec<u32>,
    /// Slow nodes.
    pub slow_nodes: Vec<u32>,
    /// Nothing is moved; planned moves are counted.
    pub dry_run: bool,
    /// Bytes moved per second by all groups together, at most; 0 for no bound. The default of 200
    /// MB/s is that of the authors of DAMON's tiering recipe for the same work, and twice
    /// memtierd's. A tier's bandwidth is some hundred times that.
    pub bandwidth: Size,
    /// Processor time of the daemon and its kernel threads, in percent of one processor.
    pub cpu_percent: Option<f64>,
    /// The control socket.
    pub control: PathBuf,
    /// Name or number of the group whose members may read the status; root alone where empty.
    pub control_group: String,
    /// Address of the Prometheus endpoint, such as `127.0.0.1:9464`; none where empty.
    pub metrics: String,
    /// Folder that keeps histories over restarts; none where empty.
    pub state: PathBuf,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Latency of slow memory over that of fast memory; 0 for the firmware's values.
    pub latency_ratio: f64,
    /// Share of a program's time, with all memory fast, that it waits for memory: an assumption of
    /// the slowdown estimate.
    pub memory_share: f64,
    /// Error of that share, either way.
    pub memory_share_error: f64,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        DaemonConfig {
            period_ms: 1000,
            discover_ms: 2000,
            max_groups: 16,
            max_processes: 1024,
            sample_reads: SampleReads::Auto,
            hint_faults: false,
            fix_conflicts: true,
            fast_nodes: Vec::new(),
            slow_nodes: Vec::new(),
            dry_run: false,
            bandwidth: Size(200_000_000),
            cpu_percent: None,
            control: "/run/terrace/control.sock".into(),
            control_group: String::new(),
            metrics: String::new(),
            state: "/var/lib/terrace".into(),
            seed: 1,
            latency_ratio: 0.0,
            memory_share: 0.4,
            memory_share_error: 0.2,
        }
    }
}

/// `[sharing]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SharingConfig {
    /// Fast memory that all groups may use together, as a size or a part of the tier ("80%").
    pub fast: Amount,
    /// Interval between partitionings.
    pub every_ms: u64,
    /// Most hit ratio that a group may lose against partitioning by weight alone, 0 to 1.
    pub max_loss: f64,
}

impl Default for SharingConfig {
    fn default() -> Self {
        SharingConfig { fast: Amount::Part(0.9), every_ms: 30_000, max_loss: 0.3 }
    }
}

/// `[throttle]`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ThrottleConfig {
    /// Periods of hits that a promoted page must yield on average for migration to continue.
    pub payback_periods: f64,
    /// Periods in which promotions are counted; their hits are counted for twice as many.
    pub settle_periods: u32,
    /// Promotions in that time, over pages of fast memory, below which migration is not judged.
    pub least_moved: f64,
    /// Length of the first pause of migration, in periods; doubled each time.
    pub pause_periods: u32,
    /// Longest pause.
    pub longest_pause_periods: u32,
    /// Longest time that one batch of moves should take.
    pub stall_ms: u64,
    /// Share of a period that migration may take.
    pub move_share: f64,
    /// Share of a period in which the group or the host may wait for memory, whatever migration
    /// gains.
    pub stall_share: f64,
}

impl Default for ThrottleConfig {
    fn default() -> Self {
        ThrottleConfig {
            payback_periods: 1.0,
            settle_periods: 8,
            least_moved: 0.1,
            pause_periods: 16,
            longest_pause_periods: 512,
            stall_ms: 20,
            move_share: 0.5,
            stall_share: 0.05,
        }
    }
}

/// One of `[[groups]]`: a control group, or all that match a pattern, each managed by itself.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// Its name in status and metrics.
    pub name: String,
    /// Path below the control-group root, with `*`, `?`, `[...]`, `{a,b}` and `**`.
    pub cgroup: String,
    /// Patterns of paths that are left out.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Name of a policy.
    #[serde(default = "amp")]
    pub policy: String,
    /// Size of the pages that are tracked and moved.
    #[serde(default)]
    pub page_size: GroupPages,
    /// Fast memory over the group's own pages, 0 to 1.
    pub fast_ratio: Option<f64>,
    /// Fast memory as a size.
    pub fast: Option<Size>,
    /// Fast memory by partitioning, within guarantees.
    pub share: Option<ShareConfig>,
    /// Length of a period.
    pub period_ms: Option<u64>,
    /// Bytes moved per second, at most.
    pub bandwidth: Option<Size>,
    /// Processor time for managing it, in percent of one processor.
    pub cpu_percent: Option<f64>,
    /// Nothing is moved; planned moves are counted.
    #[serde(default)]
    pub dry_run: bool,
    /// Most memory that is tracked.
    pub tracked: Option<Size>,
    /// Where its page tables go, on the Terrace kernel.
    pub tables: Option<GroupTables>,
}

/// `share = { ... }`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShareConfig {
    /// Guaranteed fast memory, as far as the group has pages.
    pub min: Size,
    /// Most fast memory.
    pub max: Option<Size>,
    /// Weight of its hits against those of other groups.
    pub weight: f64,
}

impl Default for ShareConfig {
    fn default() -> Self {
        ShareConfig { min: Size(0), max: None, weight: 1.0 }
    }
}

/// A size, or a part of a whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// In bytes.
    Bytes(u64),
    /// 0 to 1.
    Part(f64),
}

impl Amount {
    /// In bytes, of a whole of this size.
    pub fn of(self, whole_bytes: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes.min(whole_bytes),
            Amount::Part(part) => (whole_bytes as f64 * part) as u64,
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bad =
            || serde::de::Error::custom("expected a size or a part, as in \"12G\" or \"80%\"");
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer).map_err(|_| bad())? {
            Written::Bytes(bytes) => Ok(Amount::Bytes(bytes)),
            Written::Text(text) => match text.trim().strip_suffix('%') {
                Some(percent) => {
                    let percent: f64 = percent.trim().parse().map_err(|_| bad())?;
                    let in_range = (0.0..=100.0).contains(&percent);
                    in_range.then_some(Amount::Part(percent / 100.0)).ok_or_else(bad)
                }
                None => Size::parse(&text).map(|s| Amount::Bytes(s.0)).map_err(|_| bad()),
            },
        }
    }
}

/// The line of a table with the throttle's old name.
fn old_throttle_line(text: &str) -> Option<usize> {
    let table = toml::Table::from_str(text).ok()?;
    let is_old = |line: &str| {
        line.trim_start().starts_with("[manners]") || line.trim_start().starts_with("manners")
    };
    table.contains_key("manners").then(|| text.lines().position(is_old).map_or(1, |nth| nth + 1))
}

fn amp() -> String {
    "amp".to_owned()
}

impl Config {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display();
        let error = |e: std::io::Error| {
            ConfigError(format!("{name}: {e}; expected a configuration of terraced"))
        };
        let size = std::fs::metadata(path).map_err(error)?.len();
        if size > MOST_BYTES {
            return Err(ConfigError(format!(
                "{name}: {size} bytes, expected at most {MOST_BYTES}"
            )));
        }
        Self::parse(&std::fs::read_to_string(path).map_err(error)?, &name.to_string())
    }

    /// Reads and checks a text; `name` is used in messages.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        let mut config: Config = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(String::new(), |s| format!(":{}", line_at(text, s.start)));
            let message = in_plain_words(e.message()).replace('\n', " ");
            ConfigError(format!("{name}{line}: {message}"))
        })?;
        if let Some(line) = old_throttle_line(text) {
            tracing::warn!(
                "{name}:{line}: [manners] is now [throttle]; rename it, the next release refuses it"
            );
        }
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        let checked = config.read_externals(folder).and_then(|()| config.check());
        checked.map_err(|(path, message)| {
            let path: Vec<&str> = path.split('/').collect();
            let line = line_of_key(text, &path).map_or(String::new(), |line| format!(":{line}"));
            ConfigError(format!("{name}{line}: {message}"))
        })?;
        Ok(config)
    }

    /// Reads the external policies; their files are relative to this folder.
    fn read_externals(&mut self, folder: &Path) -> Result<(), (String, String)> {
        for (name, table) in self.policies.iter().filter(|(_, table)| is_external(table)) {
            let read = ExternalPolicy::read(name, table, folder, |name| self.parameters_of(name));
            let read = read.map_err(|e| (self.parameter(name, &e.0), e.0))?;
            self.externals.insert(name.clone(), Arc::new(read));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! `terraced.toml`: read strictly, every fault said with its line.
//!
//! Unknown keys, impossible values and contradictions are errors; what is left out has the
//! default that `docs/operator.md` and `examples/terraced.toml` state. Nothing in it is ever
//! executed, but for policies of one's own, in processes without privileges (`terrace_external`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use terrace_core::lines::{line_at, line_of_key};
use terrace_core::page::{GroupPages, PageSize};
use terrace_core::parameters::{in_plain_words, key_in};
use terrace_core::policy;
use terrace_core::size::Size;
use terrace_external::{ExternalPolicy, is_external};
use terrace_linux::page_tables::GroupTables;
use toml::Spanned;

use crate::discover::Pattern;

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
    /// What holds for all groups.
    #[serde(default)]
    pub daemon: DaemonConfig,
    /// How fast memory is divided between groups with a `share`.
    #[serde(default)]
    pub sharing: SharingConfig,
    /// When moves are throttled. `[manners]` is its old name, read for one release.
    #[serde(default, alias = "manners")]
    pub throttle: ThrottleConfig,
    /// The groups, in the order in which they claim control groups.
    pub groups: Vec<Spanned<GroupConfig>>,
    /// Parameters of policies, by policy.
    #[serde(default)]
    pub policies: BTreeMap<String, Value>,
    /// Those of them that are policies of one's own, with the texts of their files.
    #[serde(skip)]
    pub externals: BTreeMap<String, Arc<ExternalPolicy>>,
}

/// `[daemon]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonConfig {
    /// Length of a period of groups that do not say.
    pub period_ms: u64,
    /// How often control groups are looked for.
    pub discover_ms: u64,
    /// Most groups at a time.
    pub max_groups: u32,
    /// Most processes of one group; a group with more is not managed.
    pub max_processes: usize,
    /// Of the reads that miss the last level one in so many is sampled, where the host can; 0: none.
    pub sample_reads: u32,
    /// Leave to change kernel settings that conflict, journaled, for as long as the daemon runs.
    pub fix_conflicts: bool,
    /// Fast nodes, where the firmware says nothing or the wrong thing.
    pub fast_nodes: Vec<u32>,
    /// Slow nodes.
    pub slow_nodes: Vec<u32>,
    /// Nothing is moved; what would be is counted.
    pub dry_run: bool,
    /// Bytes moved per second by all groups together, at most; 0 for no bound. 200 MB/s where it is
    /// left out: what the authors of DAMON's tiering recipe give the same work, and twice what
    /// memtierd does. A tier's bandwidth is some hundred times that.
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
    /// Of everything random.
    pub seed: u64,
    /// Latency of slow memory over that of fast memory; what the firmware says where it is 0.
    pub latency_ratio: f64,
    /// Share of a program's time, with all memory fast, that it waits for memory: an assumption of
    /// the slowdown estimate.
    pub memory_share: f64,
    /// By how much that may be off either way.
    pub memory_share_error: f64,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        DaemonConfig {
            period_ms: 1000,
            discover_ms: 2000,
            max_groups: 16,
            max_processes: 1024,
            sample_reads: 0,
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
    /// How often it is divided anew.
    pub every_ms: u64,
    /// Most hit ratio that a group may lose against a division by weight alone, 0 to 1.
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
    /// Periods of hits that a promoted page must have yielded on average for moving to go on.
    pub payback_periods: f64,
    /// Periods in which promotions are counted, and half of those in which their hits are.
    pub settle_periods: u32,
    /// Promotions in that time, over pages of fast memory, below which nothing is judged.
    pub least_moved: f64,
    /// Periods for which moving pauses the first time that it does not pay; doubled each time.
    pub pause_periods: u32,
    /// Longest pause.
    pub longest_pause_periods: u32,
    /// Longest time that one batch of moves should take.
    pub stall_ms: u64,
    /// Share of a period that moves may take.
    pub move_share: f64,
    /// Share of a period that the group or the host may wait for memory, whatever moves gain.
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

/// One of `[[groups]]`: a control group, or all that match a pattern, each by itself.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// Its name in status and metrics.
    pub name: String,
    /// Path below the control-group root, with `*`, `?`, `[...]`, `{a,b}` and `**`.
    pub cgroup: String,
    /// Paths that are left out, likewise.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Name of a policy.
    #[serde(default = "amp")]
    pub policy: String,
    /// What is tracked and moved as a page.
    #[serde(default)]
    pub page_size: GroupPages,
    /// Fast memory over the group's own pages, 0 to 1.
    pub fast_ratio: Option<f64>,
    /// Fast memory as a size.
    pub fast: Option<Size>,
    /// Fast memory by benefit, within guarantees.
    pub share: Option<ShareConfig>,
    /// Length of a period.
    pub period_ms: Option<u64>,
    /// Bytes moved per second, at most.
    pub bandwidth: Option<Size>,
    /// Processor time for looking after it, in percent of one processor.
    pub cpu_percent: Option<f64>,
    /// Nothing is moved; what would be is counted.
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
    /// It gets at least this, as far as it has pages.
    pub min: Size,
    /// And at most this.
    pub max: Option<Size>,
    /// What a hit of it counts beside another group's.
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
    /// In bytes, of this whole.
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

/// The line of a table of the throttle's old name.
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

/// How much fast memory a group may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GroupLimit {
    /// A part of its own pages.
    Ratio(f64),
    /// A size in bytes.
    Bytes(u64),
    /// What partitioning gives it.
    Partitioned {
        /// At least.
        min_bytes: u64,
        /// At most.
        max_bytes: u64,
        /// Beside others.
        weight: f64,
    },
}

/// Everything that is set for one control group.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Name of the entry.
    pub entry: String,
    /// Name of the policy.
    pub policy: String,
    /// Its parameters.
    pub parameters: Value,
    /// The policy itself, where it is one of one's own.
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
    /// When moves are throttled.
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

    /// Whether the policy is the same.
    pub fn decides_like(&self, other: &Settings) -> bool {
        (&self.policy, &self.parameters, self.seed, &self.external)
            == (&other.policy, &other.parameters, other.seed, &other.external)
            // What answers in time depends on how long a period is.
            && (self.external.is_none() || self.period_ms == other.period_ms)
    }
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

    /// Reads and checks a text; `name` stands in messages.
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

    /// Reads the policies that are not Terrace's own; their files are relative to this folder.
    fn read_externals(&mut self, folder: &Path) -> Result<(), (String, String)> {
        for (name, table) in self.policies.iter().filter(|(_, table)| is_external(table)) {
            let read = ExternalPolicy::read(name, table, folder, |name| self.parameters_of(name));
            let read = read.map_err(|e| (self.parameter(name, &e.0), e.0))?;
            self.externals.insert(name.clone(), Arc::new(read));
        }
        Ok(())
    }

    /// Checks it; an error has the path of its key, parts separated by `/`.
    fn check(&self) -> Result<(), (String, String)> {
        let d = &self.daemon;
        let fault = |key: &str, message: String| Err((key.replace('.', "/"), message));
        let in_range = |key: &str, value: f64, from: f64, to: f64| {
            if (from..=to).contains(&value) {
                Ok(())
            } else {
                fault(key, format!("{key} = {value}: expected {from} to {to}"))
            }
        };
        in_range("daemon.period_ms", d.period_ms as f64, 50.0, 3_600_000.0)?;
        in_range("daemon.discover_ms", d.discover_ms as f64, 50.0, 3_600_000.0)?;
        in_range("daemon.max_groups", d.max_groups.into(), 1.0, MOST_GROUPS.into())?;
        in_range("daemon.max_processes", d.max_processes as f64, 1.0, 65_536.0)?;
        in_range("daemon.cpu_percent", d.cpu_percent.unwrap_or(1.0), 0.001, 10_000.0)?;
        if d.latency_ratio != 0.0 {
            in_range("daemon.latency_ratio", d.latency_ratio, 1.0, 1000.0)?;
        }
        in_range("daemon.memory_share", d.memory_share, 0.0, 1.0)?;
        in_range("daemon.memory_share_error", d.memory_share_error, 0.0, 1.0)?;
        in_range("sharing.max_loss", self.sharing.max_loss, 0.0, 1.0)?;
        in_range("sharing.every_ms", self.sharing.every_ms as f64, 50.0, 86_400_000.0)?;
        let m = &self.throttle;
        in_range("throttle.payback_periods", m.payback_periods, 0.0, 1e6)?;
        in_range("throttle.settle_periods", m.settle_periods.into(), 1.0, 10_000.0)?;
        in_range("throttle.least_moved", m.least_moved, 0.0, 1e6)?;
        in_range("throttle.pause_periods", m.pause_periods.into(), 0.0, 1e6)?;
        in_range("throttle.longest_pause_periods", m.longest_pause_periods.into(), 0.0, 1e6)?;
        in_range("throttle.stall_ms", m.stall_ms as f64, 1.0, 10_000.0)?;
        in_range("throttle.move_share", m.move_share, 0.0, 0.9)?;
        in_range("throttle.stall_share", m.stall_share, 0.0, 1.0)?;
        if d.fast_nodes.is_empty() != d.slow_nodes.is_empty() {
            let key = if d.slow_nodes.is_empty() { "fast_nodes" } else { "slow_nodes" };
            let message = "fast_nodes and slow_nodes: expected both or none".to_owned();
            return fault(&format!("daemon.{key}"), message);
        }
        if !d.control.is_absolute() {
            let got = d.control.display();
            let message = format!("daemon.control = '{got}': expected an absolute path");
            return fault("daemon.control", message);
        }
        if !d.state.as_os_str().is_empty() && !d.state.is_absolute() {
            let got = d.state.display();
            let message = format!("daemon.state = '{got}': expected an absolute path, or \"\"");
            return fault("daemon.state", message);
        }
        if !d.metrics.is_empty() && d.metrics.parse::<std::net::SocketAddr>().is_err() {
            let message = format!(
                "daemon.metrics = '{}': expected an address and a port, such as 127.0.0.1:9464",
                d.metrics
            );
            return fault("daemon.metrics", message);
        }
        if self.groups.is_empty() || self.groups.len() > MOST_ENTRIES {
            let got = self.groups.len();
            let message = format!("{got} groups, expected 1 to {MOST_ENTRIES} of [[groups]]");
            return fault("groups", message);
        }
        for name in self.policies.keys().filter(|name| !self.externals.contains_key(*name)) {
            let parameters = self.parameters_of(name);
            policy::build(name, &parameters, d.seed)
                .map_err(|e| (self.parameter(name, &e.to_string()), e.to_string()))?;
        }
        let mut names = BTreeSet::new();
        for (nth, group) in self.groups.iter().map(Spanned::get_ref).enumerate() {
            self.check_group(group).map_err(|(key, message)| {
                (format!("groups/{nth}/{key}"), format!("group '{}': {message}", group.name))
            })?;
            if !names.insert(&group.name) {
                let message = format!("two groups are named '{}'; expected one", group.name);
                return Err((format!("groups/{nth}/name"), message));
            }
        }
        Ok(())
    }

    /// The path of the parameter of a policy that a message is about.
    fn parameter(&self, policy: &str, message: &str) -> String {
        format!("policies/{policy}/{}", key_in(self.policies.get(policy), message))
    }

    /// Checks a group; an error has its key, and the message.
    fn check_group(&self, group: &GroupConfig) -> Result<(), (&'static str, String)> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !(1..=64).contains(&group.name.len()) || !group.name.chars().all(plain) {
            let message = "expected a name of 1 to 64 letters, digits, '-', '_' or '.'";
            return Err(("name", message.to_owned()));
        }
        Pattern::new(&group.cgroup).map_err(|message| ("cgroup", message))?;
        for pattern in &group.exclude {
            Pattern::new(pattern).map_err(|message| ("exclude", message))?;
        }
        let limits = [
            ("fast_ratio", group.fast_ratio.is_some()),
            ("fast", group.fast.is_some()),
            ("share", group.share.is_some()),
        ];
        let mut given = limits.iter().filter(|(_, given)| *given);
        let (first, second) = (given.next(), given.next());
        if first.is_none() || second.is_some() {
            let key = second.map_or("name", |(key, _)| *key);
            let message = "expected one of fast_ratio = 0.5, fast = \"8G\" and share = {}";
            return Err((key, message.to_owned()));
        }
        if let Some(ratio) = group.fast_ratio
            && !(0.0..=1.0).contains(&ratio)
        {
            return Err(("fast_ratio", format!("fast_ratio = {ratio}: expected 0 to 1")));
        }
        if let Some(share) = group.share {
            if !(1e-3..=1e3).contains(&share.weight) {
                let message = format!("share.weight = {}: expected 0.001 to 1000", share.weight);
                return Err(("share", message));
            }
            if share.max.is_some_and(|max| max < share.min) {
                return Err(("share", "share: max is less than min".to_owned()));
            }
        }
        let period_ms = group.period_ms.unwrap_or(self.daemon.period_ms);
        if !(50..=3_600_000).contains(&period_ms) {
            return Err(("period_ms", format!("period_ms = {period_ms}: expected 50 to 3600000")));
        }
        if let Some(percent) = group.cpu_percent
            && !(0.001..=10_000.0).contains(&percent)
        {
            let message = format!("cpu_percent = {percent}: expected 0.001 to 10000");
            return Err(("cpu_percent", message));
        }
        let cap = cap_pages(group);
        if !(1..=262_144).contains(&cap) {
            let message = format!("tracked: {cap} pages, expected 1 to 262144 of the page size");
            return Err(("tracked", message));
        }
        // Its fallback was checked as it was read.
        if self.externals.contains_key(&group.policy) {
            return Ok(());
        }
        let built =
            policy::build(&group.policy, &self.parameters_of(&group.policy), self.daemon.seed);
        let policy = built.map_err(|e| ("policy", e.to_string()))?;
        if policy.needs_oracle() {
            let message = format!(
                "policy '{}' plans with the future, which nobody knows here; use terrace",
                group.policy
            );
            return Err(("policy", message));
        }
        if policy.needs_frames() {
            let message = format!(
                "policy '{}' scans page frames, which only the simulated machine tells; use granularity-4k",
                group.policy
            );
            return Err(("policy", message));
        }
        Ok(())
    }

    /// Whether nothing is moved, for no group: then no setting of the host is changed either.
    pub fn is_dry(&self) -> bool {
        self.daemon.dry_run || self.groups.iter().all(|g| g.get_ref().dry_run)
    }

    fn parameters_of(&self, policy: &str) -> Value {
        self.policies.get(policy).cloned().unwrap_or(Value::Null)
    }

    /// What holds for the control groups of an entry.
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

/// The bounds of [`terrace_linux::GroupSpec::new`], where the configuration says nothing.
fn cap_pages(group: &GroupConfig) -> u64 {
    let usual = match group.page_size.size() {
        PageSize::Huge => 65_536,
        PageSize::Base => 16_384,
    };
    group.tracked.map_or(usual, |size| size.0.div_ceil(group.page_size.size().bytes()))
}

#[cfg(test)]
mod tests;

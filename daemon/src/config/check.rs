//! Checks of a configuration that was read: ranges, contradictions, names, policies.

use std::collections::BTreeSet;

use terrace_core::parameters::key_in;
use terrace_core::policy;
use toml::Spanned;

use crate::config::settings::cap_pages;
use crate::config::{Config, GroupConfig, MOST_ENTRIES, MOST_GROUPS};
use crate::discover::Pattern;

impl Config {
    /// Checks it; an error has the path of its key, parts separated by `/`.
    pub(super) fn check(&self) -> Result<(), (String, String)> {
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
    pub(super) fn parameter(&self, policy: &str, message: &str) -> String {
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
                "policy '{}' needs an oracle trace, which a live host does not have; use terrace",
                group.policy
            );
            return Err(("policy", message));
        }
        if policy.needs_frames() {
            let message = format!(
                "policy '{}' scans page frames, which only the simulated machine has; use granularity-4k",
                group.policy
            );
            return Err(("policy", message));
        }
        Ok(())
    }
}

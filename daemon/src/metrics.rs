//! The Prometheus endpoint: the status in the text exposition format, version 0.0.4.
//!
//! `docs/operator.md` lists the names; a test holds it to them. `http.rs` serves it.

use crate::discover::shown;
use crate::status::{GroupStatus, Status};
use crate::throttle::ThrottleReason;
use std::fmt::Write as _;

/// Decisions of external policies.
fn external(out: &mut Exposition, groups: &[GroupStatus]) {
    let own = || groups.iter().filter_map(|g| Some((g, g.external.as_ref()?)));
    out.family(
        "terrace_group_policy_decided_periods_total",
        "counter",
        "Periods that an external policy decided.",
    );
    for (g, report) in own() {
        let periods = report.decided_periods as f64;
        out.sample("terrace_group_policy_decided_periods_total", &labels(g), periods);
    }
    out.family(
        "terrace_group_policy_fallback_periods_total",
        "counter",
        "Periods that the fallback of an external policy decided, by reason.",
    );
    for (g, report) in own() {
        for (reason, periods) in &report.fallback_periods {
            out.sample(
                "terrace_group_policy_fallback_periods_total",
                &with(g, "reason", reason),
                *periods as f64,
            );
        }
    }
    out.family(
        "terrace_group_policy_restarts_total",
        "counter",
        "Restarts of an external policy's process.",
    );
    for (g, report) in own() {
        out.sample("terrace_group_policy_restarts_total", &labels(g), report.restarts as f64);
    }
}

/// The text of a scrape.
pub fn render(status: &Status) -> String {
    let mut out = Exposition::default();
    let groups = &status.groups;
    daemon(&mut out, status);
    machine(&mut out, status);
    for (name, kind, help, get) in GROUP_VALUES {
        out.family(name, kind, help);
        for g in groups {
            out.sample(name, &labels(g), get(g));
        }
    }
    migration(&mut out, groups);
    memory(&mut out, groups);
    estimates(&mut out, groups);
    out.text
}

/// Metrics of terraced itself.
fn daemon(out: &mut Exposition, status: &Status) {
    out.one("terrace_info", "gauge", "Version of terraced.", &[("version", &status.version)], 1.0);
    out.plain("terrace_uptime_seconds", "gauge", "Time since the start.", status.uptime_s);
    out.plain(
        "terrace_cpu_seconds_total",
        "counter",
        "Processor time of terraced itself.",
        seconds(status.cpu_ns),
    );
    out.plain(
        "terrace_resident_bytes",
        "gauge",
        "Memory of terraced itself.",
        status.rss_bytes as f64,
    );
    out.plain(
        "terrace_reloads_total",
        "counter",
        "Configurations reloaded.",
        status.reloads as f64,
    );
    out.plain(
        "terrace_failed_reloads_total",
        "counter",
        "Configurations refused at a reload.",
        status.failed_reloads as f64,
    );
    out.plain(
        "terrace_waiting",
        "gauge",
        "1 while the host cannot be managed and terraced waits until it can.",
        f64::from(u8::from(status.waiting.is_some())),
    );
    out.plain("terrace_groups", "gauge", "Managed groups.", status.groups.len() as f64);
    // The second is the old name of the first, kept for one release.
    for name in ["terrace_unmanaged_groups", "terrace_left_groups"] {
        let help = "Control groups that match and are not managed.";
        out.plain(name, "gauge", help, status.unmanaged.len() as f64);
    }
    out.plain(
        "terrace_unvisited_groups",
        "gauge",
        "Control groups that the last search left out, at least: there are too many.",
        status.unvisited_groups as f64,
    );
}

/// Metrics of the machine's memory and its partitioning.
fn machine(out: &mut Exposition, status: &Status) {
    let m = &status.machine;
    out.family("terrace_memory_bytes", "gauge", "Memory of the machine by tier.");
    out.sample("terrace_memory_bytes", &[("tier", "fast")], m.fast_bytes as f64);
    out.sample("terrace_memory_bytes", &[("tier", "slow")], m.slow_bytes as f64);
    out.plain(
        "terrace_fast_free_bytes",
        "gauge",
        "Fast memory free above the kernel's reserve.",
        m.fast_free_bytes as f64,
    );
    out.plain(
        "terrace_unmanaged_fast_bytes",
        "gauge",
        "Fast memory that is neither free nor of a managed group.",
        m.unmanaged_fast_bytes as f64,
    );
    out.plain(
        "terrace_guard_deaths_total",
        "counter",
        "Guard processes that died and were replaced.",
        m.guard_deaths as f64,
    );
    if let Some(ratio) = m.latency_ratio {
        out.plain("terrace_latency_ratio", "gauge", "Latency of slow over fast memory.", ratio);
    }
    if let Some(s) = &status.sharing {
        out.plain(
            "terrace_shared_bytes",
            "gauge",
            "Fast memory that is partitioned between groups.",
            s.total_bytes as f64,
        );
        // The second is the old name of the first, kept for one release.
        for name in ["terrace_partitionings_total", "terrace_divisions_total"] {
            let help = "Partitionings of fast memory.";
            out.plain(name, "counter", help, s.partitionings as f64);
        }
        out.plain(
            "terrace_largest_loss",
            "gauge",
            "Largest loss of hit ratio of a group against partitioning by weight.",
            s.largest_loss,
        );
    }
}

/// Reads a value of a group.
type Get = fn(&GroupStatus) -> f64;

/// Metrics with one value for each group: name, type, help, value.
const GROUP_VALUES: &[(&str, &str, &str, Get)] = &[
    ("terrace_group_bytes", "gauge", "Tracked memory.", |g| g.bytes as f64),
    ("terrace_group_fast_bytes", "gauge", "Tracked memory in fast memory.", |g| {
        g.fast_bytes as f64
    }),
    ("terrace_group_granted_bytes", "gauge", "Fast memory that it may use.", |g| {
        g.granted_bytes as f64
    }),
    (
        "terrace_group_hit_ratio",
        "gauge",
        "Accessed pages in fast memory over accessed pages, last period.",
        |g| g.hit_ratio,
    ),
    ("terrace_group_accessed_ratio", "gauge", "Accessed pages over all pages, last period.", |g| {
        g.accessed_ratio
    }),
    (
        "terrace_group_stability",
        "gauge",
        "Pages that stayed where they were over all pages.",
        |g| g.stability,
    ),
    (
        "terrace_group_accessed_pages_total",
        "counter",
        "Accessed pages, summed over periods.",
        |g| g.accessed_pages as f64,
    ),
    ("terrace_group_hit_pages_total", "counter", "Of them, in fast memory.", |g| {
        g.hit_pages as f64
    }),
    ("terrace_group_scans_total", "counter", "Periods with a scan.", |g| g.scans as f64),
    ("terrace_group_lost_periods_total", "counter", "Periods that were lost.", |g| {
        g.lost_periods as f64
    }),
    ("terrace_group_processes", "gauge", "Processes with tracked memory.", |g| {
        g.process_count as f64
    }),
    ("terrace_group_thrashed_pages_total", "counter", "Pages moved back and forth.", |g| {
        g.throttle.thrashed_pages as f64
    }),
    ("terrace_group_pauses_total", "counter", "Pauses because moves did not pay.", |g| {
        g.throttle.pauses as f64
    }),
    ("terrace_group_paused", "gauge", "1 while moves are paused.", |g| {
        f64::from(u8::from(g.throttle.pause_left > 0))
    }),
    ("terrace_group_operations_total", "counter", "Calls that moved pages.", |g| {
        g.operations as f64
    }),
    ("terrace_group_move_seconds_total", "counter", "Time in calls that move pages.", |g| {
        seconds(g.move_ns)
    }),
    ("terrace_group_longest_move_seconds", "gauge", "The longest of them.", |g| {
        seconds(g.longest_move_ns)
    }),
    (
        "terrace_group_refined_pages_total",
        "counter",
        "Base pages of slow ranges that were promoted alone, each in the place of another.",
        |g| g.refined_pages as f64,
    ),
    (
        "terrace_group_refined_failed_pages_total",
        "counter",
        "Base pages that were to be moved alone and stayed.",
        |g| g.refined_failed_pages as f64,
    ),
    (
        "terrace_group_freed_fast_bytes",
        "gauge",
        "Its memory that is in slow memory, so that others may use as much fast memory.",
        |g| g.freed_fast_bytes as f64,
    ),
    (
        "terrace_group_no_room_bytes",
        "gauge",
        "Memory that was to be promoted and found no room.",
        |g| g.no_room_bytes as f64,
    ),
    ("terrace_group_metadata_bytes", "gauge", "Memory that its history takes.", |g| {
        g.metadata_bytes as f64
    }),
];

/// Metrics of moves, by direction and by reason.
fn migration(out: &mut Exposition, groups: &[GroupStatus]) {
    out.family("terrace_group_moved_pages_total", "counter", "Pages moved.");
    for g in groups {
        out.sample(
            "terrace_group_moved_pages_total",
            &with(g, "direction", "promotion"),
            g.promoted_pages as f64,
        );
        out.sample(
            "terrace_group_moved_pages_total",
            &with(g, "direction", "demotion"),
            g.demoted_pages as f64,
        );
    }
    out.family(
        "terrace_group_failed_pages_total",
        "counter",
        "Pages that were not moved, by reason.",
    );
    for g in groups {
        for f in &g.failed {
            out.sample(
                "terrace_group_failed_pages_total",
                &with(g, "reason", &f.reason),
                f.pages as f64,
            );
        }
    }
    // The second is the name that it had; it goes with the next release.
    for (name, help) in [
        ("terrace_group_throttled_pages_total", "Pages of plans that were throttled, by reason."),
        ("terrace_group_held_pages_total", "The old name of terrace_group_throttled_pages_total."),
    ] {
        out.family(name, "counter", help);
        for g in groups {
            for reason in ThrottleReason::ALL {
                let pages = g.throttle.throttled_pages[reason as usize];
                out.sample(name, &with(g, "reason", reason.name()), pages as f64);
            }
        }
    }
    external(out, groups);
    out.family(
        "terrace_group_bound_periods_total",
        "counter",
        "Periods in which a budget bound moves, by reason.",
    );
    for g in groups {
        for reason in ThrottleReason::ALL {
            out.sample(
                "terrace_group_bound_periods_total",
                &with(g, "reason", reason.name()),
                g.throttle.bound_periods[reason as usize] as f64,
            );
        }
    }
}

/// Metrics of the groups' memory, by tier, use, reason and node.
fn memory(out: &mut Exposition, groups: &[GroupStatus]) {
    out.family("terrace_group_heat_bytes", "gauge", "Tracked memory by tier and use.");
    for g in groups {
        for (tier, heat) in [("fast", g.fast), ("slow", g.slow)] {
            for (used, bytes) in
                [("hot", heat.hot_bytes), ("warm", heat.warm_bytes), ("cold", heat.cold_bytes)]
            {
                let mut labels = with(g, "tier", tier);
                labels.push(("use", used));
                out.sample("terrace_group_heat_bytes", &labels, bytes as f64);
            }
        }
    }
    out.family("terrace_group_untracked_bytes", "gauge", "Memory that is not tracked, by tier.");
    for g in groups {
        out.sample(
            "terrace_group_untracked_bytes",
            &with(g, "tier", "fast"),
            g.untracked_fast_bytes as f64,
        );
        out.sample(
            "terrace_group_untracked_bytes",
            &with(g, "tier", "slow"),
            g.untracked_slow_bytes as f64,
        );
    }
    out.family("terrace_untracked_bytes", "gauge", "Memory that is not tracked, by reason.");
    for g in groups {
        for u in &g.untracked {
            out.sample("terrace_untracked_bytes", &with(g, "reason", &u.reason), u.bytes as f64);
        }
    }
    out.family(
        "terrace_group_collapses_total",
        "counter",
        "Huge pages that khugepaged has made of its base pages.",
    );
    for g in groups {
        if let Some(collapses) = g.collapses {
            out.sample("terrace_group_collapses_total", &labels(g), collapses as f64);
        }
    }
    out.family("terrace_group_pagetable_bytes", "gauge", "Page tables by node.");
    for g in groups {
        for (node, bytes) in g.pagetable_bytes.iter().enumerate() {
            out.sample(
                "terrace_group_pagetable_bytes",
                &with(g, "node", &node.to_string()),
                *bytes as f64,
            );
        }
    }
}

/// Metrics of processor time and of estimates.
fn estimates(out: &mut Exposition, groups: &[GroupStatus]) {
    out.family(
        "terrace_group_cpu_seconds_total",
        "counter",
        "Processor time for managing it, by part.",
    );
    for g in groups {
        for (part, ns) in
            [("tracker", g.tracker_cpu_ns), ("policy", g.policy_cpu_ns), ("mover", g.mover_cpu_ns)]
        {
            out.sample("terrace_group_cpu_seconds_total", &with(g, "part", part), seconds(ns));
        }
    }
    out.family(
        "terrace_group_slowdown",
        "gauge",
        "Run time over run time with all memory fast, estimated.",
    );
    groups.iter().for_each(|g| {
        if let Some(e) = g.slowdown {
            out.sample("terrace_group_slowdown", &labels(g), e.value);
        }
    });
    out.family(
        "terrace_group_slowdown_error",
        "gauge",
        "Error of the estimated slowdown, either way.",
    );
    groups.iter().for_each(|g| {
        if let Some(e) = g.slowdown {
            out.sample("terrace_group_slowdown_error", &labels(g), e.error);
        }
    });
    out.family("terrace_group_loss", "gauge", "Loss of hit ratio against partitioning by weight.");
    groups.iter().for_each(|g| {
        if let Some(loss) = g.loss {
            out.sample("terrace_group_loss", &labels(g), loss);
        }
    });
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

fn labels(g: &GroupStatus) -> Labels<'_> {
    vec![("group", &g.name), ("policy", &g.policy)]
}

fn with<'a>(g: &'a GroupStatus, key: &'static str, value: &'a str) -> Labels<'a> {
    vec![("group", &g.name), (key, value)]
}

#[derive(Default)]
struct Exposition {
    text: String,
}

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn plain(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.one(name, kind, help, &[], value);
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.family(name, kind, help);
        self.sample(name, labels, value);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        for (nth, (key, value)) in labels.iter().enumerate() {
            let value = shown(value).replace('\\', "\\\\").replace('"', "\\\"");
            let _ = write!(self.text, "{}{key}=\"{value}\"", if nth == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Estimate, FailureCount, SharingStatus, UntrackedBytes};
    use std::collections::BTreeSet;

    /// A status in which every metric is present.
    fn full() -> Status {
        let mut group =
            GroupStatus { name: "a\"b\\c\n".into(), policy: "amp".into(), ..Default::default() };
        group.untracked = vec![UntrackedBytes { reason: "few_pages".into(), bytes: 4096 }];
        group.collapses = Some(2);
        group.failed = vec![FailureCount { reason: "busy".into(), pages: 3 }];
        group.slowdown = Some(Estimate { value: 1.25, error: 0.1 });
        group.loss = Some(0.1);
        group.pagetable_bytes = vec![4096, 0];
        let mut status = Status { groups: vec![group], ..Status::default() };
        status.sharing = Some(SharingStatus::default());
        status.machine.latency_ratio = Some(3.0);
        status
    }

    /// Checks the format of the specification: comment lines, then samples of that family.
    fn names(text: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut family = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(["gauge", "counter"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                family = name.to_owned();
                assert!(names.insert(family.clone()), "{line}: twice");
            } else if !line.starts_with("# HELP ") {
                let name = line.split(['{', ' ']).next().unwrap();
                assert_eq!(name, family, "{line}");
                let value = line.rsplit(' ').next().unwrap();
                assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            }
        }
        names
    }

    #[test]
    fn a_scrape_is_text_exposition_with_names_escaped() {
        let text = render(&full());
        names(&text);
        assert!(
            text.contains(
                "terrace_group_hit_ratio{group=\"a\\\"b\\\\c\u{fffd}\",policy=\"amp\"} 0\n"
            )
        );
        assert!(text.contains(
            "terrace_untracked_bytes{group=\"a\\\"b\\\\c\u{fffd}\",reason=\"few_pages\"} 4096\n"
        ));
        assert!(text.contains(
            "terrace_group_failed_pages_total{group=\"a\\\"b\\\\c\u{fffd}\",reason=\"busy\"} 3\n"
        ));
    }

    #[test]
    fn every_metric_is_documented_and_every_documented_one_is_there() {
        let operator = include_str!("../../docs/operator.md");
        let documented: BTreeSet<String> = operator
            .split('`')
            .filter(|w| {
                w.starts_with("terrace_") && w.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            })
            .map(str::to_owned)
            .collect();
        assert_eq!(names(&render(&full())), documented);
    }

    #[test]
    fn the_dashboard_asks_for_metrics_that_exist() {
        let text = include_str!("../../packaging/grafana/terrace.json");
        let board: serde_json::Value = serde_json::from_str(text).unwrap();
        let known = names(&render(&full()));
        let panels = board["panels"].as_array().unwrap();
        assert!(panels.len() >= 8);
        for panel in panels {
            for target in panel["targets"].as_array().unwrap() {
                let query = target["expr"].as_str().unwrap();
                let mut asked = query
                    .split(|c: char| !c.is_ascii_lowercase() && c != '_')
                    .filter(|w| w.starts_with("terrace_"))
                    .peekable();
                assert!(asked.peek().is_some(), "{query}");
                assert!(asked.all(|name| known.contains(name)), "{query}");
            }
        }
    }
}

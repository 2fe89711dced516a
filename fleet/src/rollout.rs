//! The rollout: with which hosts to begin, what to watch, and when to stop.
//!
//! A host goes the earlier the more fast memory it has to spare under the class's answer: where the
//! answer is wrong, that is seen last there, and the first hosts are those that it hurts least. Hosts
//! of which something was left out, that need more than the answer gives, or that run two services
//! which should not share a host have stage 0: they are to be looked at first.

use terrace_results::{FleetPairRow, FleetServiceRow};

use crate::answer::{ALL_CLASSES, Answer, TOO_FEW, is_above, of_host};
use crate::file::Fleet;
use crate::host::Host;

/// Parts of a class's hosts that have gone by the end of each stage.
const STAGES: [f64; 4] = [0.01, 0.1, 0.5, 1.0];

/// Services of a class that are named in words, at most.
const MOST_SERVICES: usize = 20;

/// A metric of terraced to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    /// Its name.
    pub metric: &'static str,
    /// What it shows.
    pub shows: &'static str,
    /// When to stop the rollout.
    pub stop: &'static str,
}

/// What to watch, the most important first.
pub const WATCH: [Watch; 7] = [
    Watch {
        metric: "terrace_group_slowdown",
        shows: "the estimated slowdown of a group",
        stop: "above the slowdown that its service can bear, less terrace_group_slowdown_error, for \
               an hour",
    },
    Watch {
        metric: "terrace_group_hit_ratio",
        shows: "accessed pages that were fast",
        stop: "10 points below what the same service has on hosts that have not gone",
    },
    Watch {
        metric: "terrace_fast_free_bytes",
        shows: "free fast memory of the host",
        stop: "below 1 % of the host's fast memory for an hour",
    },
    Watch {
        metric: "terrace_group_no_room_bytes",
        shows: "memory that should go up and finds no room",
        stop: "above 0 for an hour: the host needs more than it has",
    },
    Watch {
        metric: "terrace_group_thrashed_pages_total",
        shows: "pages moved to and fro",
        stop: "more than a tenth of terrace_group_moved_pages_total",
    },
    Watch {
        metric: "terrace_group_pauses_total",
        shows: "pauses because moves did not pay",
        stop: "more than one an hour",
    },
    Watch {
        metric: "terrace_group_lost_periods_total",
        shows: "periods that were not seen",
        stop: "more than 1 % of terrace_group_scans_total: the other metrics cannot be trusted",
    },
];

/// The stage of each host, in their order; 0 for one that is to be looked at first. `fast_shares` is the
/// answer of each class.
pub fn stages(
    fleet: &Fleet,
    hosts: &[Host],
    fast_shares: &[f64],
    pairs: &[FleetPairRow],
) -> Vec<u64> {
    let apart = |host: &Host| {
        let runs = |name: &str| host.services.iter().any(|s| s.service == name);
        pairs.iter().any(|p| p.apart && runs(&p.first) && runs(&p.second))
    };
    let mut stages = vec![0; hosts.len()];
    for (class, answer) in fast_shares.iter().enumerate() {
        let mut order: Vec<(usize, f64)> = hosts
            .iter()
            .enumerate()
            .filter(|(_, host)| host.class == class && host.is_whole() && !apart(host))
            .map(|(number, host)| (number, of_host(fleet, host, 0).fast))
            .filter(|(_, need)| !is_above(*need, *answer))
            .collect();
        // Hosts come by name, and equals keep that order.
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        let count = order.len() as f64;
        for (place, (number, _)) in order.iter().enumerate() {
            let stage = STAGES.iter().position(|part| (place as f64) < (part * count).ceil());
            stages[*number] = stage.map_or(STAGES.len(), |s| s + 1) as u64;
        }
    }
    stages
}

/// The rollout in words: stages, what to set, what to watch, when to stop.
pub fn in_words(answer: &Answer) -> Vec<String> {
    let mut lines = Vec::new();
    let own: Vec<_> = answer.hosts.iter().filter(|h| h.own_latency).collect();
    for stage in 1..=STAGES.len() as u64 {
        let of: Vec<_> = own.iter().filter(|h| h.stage == stage).collect();
        let mut names: Vec<&str> = of.iter().map(|h| h.host.as_str()).take(5).collect();
        if of.is_empty() {
            continue;
        }
        let more = of.len() - names.len();
        let more = format!("and {more} more");
        if of.len() > names.len() {
            names.push(&more);
        }
        lines.push(format!("Stage {stage}: {} hosts: {}.", of.len(), names.join(", ")));
    }
    let held = own.iter().filter(|h| h.stage == 0).count();
    if held > 0 {
        lines.push(format!(
            "Not before they were looked at: {held} hosts that need more than the answer, run \
             services that should not share a host, or were left out (stage 0 in fleet_hosts)."
        ));
    }
    lines.push(
        "Each stage has the most to spare of the hosts that are left. Let it run for a day with a \
         full peak in it before the next."
            .to_owned(),
    );
    lines.extend(settings(answer));
    for watch in WATCH {
        lines.push(format!("Watch {} ({}). Stop: {}.", watch.metric, watch.shows, watch.stop));
    }
    lines.push(
        "To stop: set fast_ratio of the group back to 1.0 in terraced.toml and reload; the host is \
         as it was, with all of its fast memory."
            .to_owned(),
    );
    lines
}

/// What to set in terraced.toml on hosts that go: a line for each class.
fn settings(answer: &Answer) -> Vec<String> {
    let mut lines = Vec::new();
    for class in answer.classes.iter().filter(|c| c.own_latency && c.class != ALL_CLASSES) {
        let of = |s: &&FleetServiceRow| s.own_latency && s.class == class.class;
        let services: Vec<_> = answer.services.iter().filter(of).collect();
        // Not less than what was found to be enough, and for nearly all hosts: half of them need more
        // than the share of all together.
        let ratio = |share: f64| format!("{:.4}", (share * 1e4).ceil() / 1e4);
        let set = |s: &&FleetServiceRow| {
            let upper = s.upper_fast_share.map_or_else(|| TOO_FEW.to_owned(), ratio);
            format!("{} {upper}", s.service)
        };
        let mut ratios: Vec<String> = services.iter().take(MOST_SERVICES).map(set).collect();
        if let more @ 1.. = services.len().saturating_sub(MOST_SERVICES) {
            ratios.push(format!("and {more} more in fleet_services"));
        }
        if !ratios.is_empty() {
            lines.push(format!(
                "Set in terraced.toml on hosts of class {}: policy = \"{}\" for every group, and \
                 fast_ratio by service, the upper share: {}.",
                class.class,
                answer.policy,
                ratios.join(", ")
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::ServiceOnHost;
    use crate::needs::Need;

    #[test]
    fn every_metric_to_watch_is_one_of_terraced() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/src/metrics.rs");
        let source = std::fs::read_to_string(path).unwrap();
        for watch in WATCH {
            let words = [watch.metric, watch.stop].join(" ");
            let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
            let named = words.split(|c| !is_part(c)).filter(|w| w.starts_with("terrace_"));
            for name in named {
                assert!(source.contains(&format!("\"{name}\"")), "{name}");
            }
        }
    }

    fn fleet(memory_bytes: u64) -> Fleet {
        let text =
            format!("[[classes]]\nname = \"c\"\nhosts = \"*\"\nmemory = \"{memory_bytes}\"\n");
        Fleet::parse(&text, std::path::PathBuf::new()).unwrap()
    }

    fn host(fast: f64) -> Host {
        Host {
            class: 0,
            name: String::new(),
            groups: Vec::new(),
            services: vec![ServiceOnHost {
                service: "s".to_owned(),
                target: 1.05,
                groups: 1,
                footprint_bytes: 900.0,
                needs: vec![Need { fast, ..Need::default() }],
            }],
            pairs: Vec::new(),
            left_out: Vec::new(),
        }
    }

    #[test]
    fn a_host_that_needs_what_the_tables_give_has_a_stage() {
        // One 49th of 49 bytes is not quite one, and no host needs more than all of its memory.
        for (memory, need) in [(49, 1.0), (49, 60.0), (1000, 900.0)] {
            let found = crate::answer::join(&fleet(memory), &[host(need)], 1).unwrap();
            let row = &found.hosts[0];
            assert_eq!(found.classes[0].overrun_share, 0.0);
            assert_eq!((row.spare_share, row.stage), (0.0, 1), "{row:?}");
        }
    }

    #[test]
    fn hosts_with_most_to_spare_go_first_and_those_without_do_not() {
        let fleet = fleet(1000);
        let hosts: Vec<Host> = (0..20).map(|n| host(f64::from(n) * 10.0)).collect();
        let stages = stages(&fleet, &hosts, &[0.15], &[]);
        // 16 go, the least needy first: 1, then to 2, to 8, to 16.
        assert_eq!(stages[..3], [1, 2, 3]);
        assert_eq!((stages[7], stages[8], stages[15]), (3, 4, 4));
        assert_eq!(stages[16..], [0; 4]);
    }
}

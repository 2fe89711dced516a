//! The answer in plain words.

use std::collections::BTreeSet;

use terrace_planner::words::{money, size};
use terrace_results::{FleetClassRow, FleetLeftOutRow, FleetPairRow};

use crate::answer::{ALL_CLASSES, Answer};
use crate::boots::EARLIER;

/// Files and folders left out that are named in words.
pub const LEFT_OUT_MAX: usize = 3;
/// Pairs that are named in words.
const PAIRS_MAX: usize = 5;

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// The answer, a sentence or two for each class, then latencies and pairs.
pub fn recommendation(answer: &Answer) -> Vec<String> {
    let mut lines = Vec::new();
    for row in answer.classes.iter().filter(|r| r.own_latency) {
        lines.push(class(answer, row));
        lines.extend(answer.classes.iter().filter(|r| r.class == row.class && !r.own_latency).map(
            |other| {
                format!(
                    "{}, with slow memory of {:.0} instead of {:.0} ns: {}{}; with what is bought \
                     for {:.0} ns, {} of hosts would need more.",
                    row.class,
                    other.slow_latency_ns,
                    row.slow_latency_ns,
                    size(other.fast_bytes),
                    ends(other),
                    row.slow_latency_ns,
                    percent(other.overrun_as_bought_share),
                )
            },
        ));
    }
    let apart: Vec<&FleetPairRow> = answer.pairs.iter().filter(|p| p.apart).collect();
    let named: Vec<String> = apart
        .iter()
        .take(PAIRS_MAX)
        .map(|p| {
            format!("{} and {} ({} of {} hosts)", p.first, p.second, p.colliding_hosts, p.hosts)
        })
        .collect();
    lines.push(match apart.len() {
        0 => format!(
            "No two services need to be kept apart, of {} pairs that ran together on enough hosts; \
             {} pairs did not.",
            answer.pairs_judged, answer.pairs_unseen
        ),
        n => format!(
            "{n} pairs of services should not share a host: {}{}. {} pairs could be judged, {} ran \
             together on too few hosts.",
            named.join(", "),
            if n > PAIRS_MAX { ", and others in fleet_pairs" } else { "" },
            answer.pairs_judged,
            answer.pairs_unseen
        ),
    });
    lines
}

/// The ends of an interval in brackets.
fn ends(row: &FleetClassRow) -> String {
    let bytes = |share: f64| size((share * row.memory_bytes as f64) as u64);
    match (row.low, row.high) {
        (Some(low), Some(high)) => format!(" ({} to {})", bytes(low), bytes(high)),
        _ => " (too few hosts for an interval)".to_owned(),
    }
}

fn class(answer: &Answer, row: &FleetClassRow) -> String {
    let mut text = format!(
        "{}: {} of fast memory a host of {} ({}) is enough for {} of hosts",
        row.class,
        size(row.fast_bytes),
        size(row.memory_bytes),
        percent(row.fast_share),
        percent(answer.quantile),
    );
    text += &match (row.low, row.high) {
        (Some(low), Some(high)) => format!(
            "; by {} hosts it is between {} and {} ({})",
            row.hosts,
            percent(low),
            percent(high),
            row.interval
        ),
        _ => format!("; {} are too few hosts for an interval", row.hosts),
    };
    text += &format!(
        ". Services that wait for memory less or more than assumed need {} to {}.",
        percent(row.waits_less_fast_share),
        percent(row.waits_more_fast_share)
    );
    if let (Some(saved), Some(all)) = (row.saved, row.saved_by_all) {
        let between = match (row.saved_low, row.saved_high) {
            (Some(low), Some(high)) => format!(" ({} to {})", money(low), money(high)),
            _ => String::new(),
        };
        text += &format!(
            " It saves {}{between} a host, {} for {} hosts.",
            money(saved),
            money(all),
            row.count
        );
    }
    text
}

/// What the answer rests on and what was left out.
pub fn remarks(answer: &Answer) -> Vec<String> {
    let (share, error) = answer.memory_share;
    let mut lines = vec![format!(
        "Histories show which pages were accessed, not at what cost. Slowdowns are hit ratios and a \
         latency model under the policy {}: services are taken to wait for memory for {} of their \
         time, give or take {}, where the file has no other share for them.",
        answer.policy,
        percent(share),
        percent(error)
    )];
    let named: BTreeSet<&str> = answer.hosts.iter().map(|h| h.class.as_str()).collect();
    for class in named {
        if answer.classes.iter().all(|c| c.class != class) {
            lines.push(format!(
                "{class}: no host could be used with all of its histories, so that there is no answer \
                 for this class."
            ));
        }
    }
    let few = answer.services.iter().filter(|s| s.own_latency && s.low.is_none());
    let few = few.filter(|s| s.class == ALL_CLASSES).count();
    if few > 0 {
        lines.push(format!("{few} services ran on too few hosts for an interval."));
    }
    lines.extend(left_out(answer));
    lines
}

/// What was left out: where a host's need is not known without it, and of groups that ended.
fn left_out(answer: &Answer) -> Vec<String> {
    let mut lines = Vec::new();
    let (ended, missing): (Vec<&FleetLeftOutRow>, Vec<_>) =
        answer.left_out.iter().partition(|l| l.reason == EARLIER);
    let more = |n: usize| match n.saturating_sub(LEFT_OUT_MAX) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    if !missing.is_empty() {
        let first: Vec<String> = missing
            .iter()
            .take(LEFT_OUT_MAX)
            .map(|l| format!("{}: {}", l.path, l.reason))
            .collect();
        lines.push(format!(
            "Left out: {}, of {} of {} hosts: {}{}. Such hosts have no part in the answer for their \
             class; their other histories have in that for services.",
            match missing.len() {
                1 => "1 file or folder".to_owned(),
                n => format!("{n} files or folders"),
            },
            answer.hosts_left_out,
            answer.hosts_found,
            first.join("; "),
            more(missing.len()),
        ));
    }
    if !ended.is_empty() {
        let hosts: BTreeSet<&str> = ended.iter().map(|l| l.host.as_str()).collect();
        let first: Vec<&str> = ended.iter().take(LEFT_OUT_MAX).map(|l| l.path.as_str()).collect();
        lines.push(format!(
            "Of an earlier boot: {}, of {} of {} hosts: {}{}. Groups that do not run any more have \
             no part in what their hosts need.",
            match ended.len() {
                1 => "1 history".to_owned(),
                n => format!("{n} histories"),
            },
            hosts.len(),
            answer.hosts_found,
            first.join("; "),
            more(ended.len()),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_results::{FleetHostRow, FleetLeftOutRow};

    #[test]
    fn a_class_without_an_answer_and_what_was_left_out_are_named() {
        let host = FleetHostRow { class: "db".to_owned(), ..FleetHostRow::default() };
        let left = FleetLeftOutRow {
            path: "db-1/a.trec".to_owned(),
            reason: "cut off".to_owned(),
            ..FleetLeftOutRow::default()
        };
        let answer = Answer {
            hosts_found: 1,
            hosts_left_out: 1,
            hosts: vec![host],
            left_out: vec![left],
            ..Answer::default()
        };
        let lines = remarks(&answer).join("\n");
        assert!(lines.contains("db: no host could be used"), "{lines}");
        assert!(lines.contains("Left out: 1 file or folder, of 1 of 1 hosts"), "{lines}");
        assert!(lines.contains("db-1/a.trec: cut off"), "{lines}");
    }
}

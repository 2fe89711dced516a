//! The report's explanations: the experiment, the meaning of the words and the reasons of failures.

use serde::Serialize;
use terrace_results::RunRow;

use super::ReportMeta;
use super::picture::chip;
use super::theme::Palette;
use crate::format::{MISSING, bytes, clean, count, duration, list, percent_round};
use crate::json::parameters;
use crate::results::{Results, is_adaptive};
use crate::rows::values;
use crate::text::MEMORY_CLOCK;

pub(super) fn subtitle(runs: &[RunRow]) -> String {
    let mut parts = vec![
        values(runs, |r| clean(&r.experiment)).join(", "),
        format!("on {}", list(&values(runs, |r| machine(&r.machine)))),
    ];
    let mut same = |value: &dyn Fn(&RunRow) -> String| {
        if let [value] = values(runs, value).as_slice()
            && !value.is_empty()
        {
            parts.push(value.clone());
        }
    };
    same(&|r| r.kernel.as_deref().map_or(String::new(), |k| format!("kernel {}", clean(k))));
    same(&|r| format!("workload {}", clean(&r.workload)));
    same(&|r| format!("{} periods of {}", count(r.periods), duration(r.period_length_ms())));
    same(&|r| format!("seed {}", r.seed));
    let mut ratios = values(runs, |r| percent_round(r.fast_ratio));
    ratios.retain(|ratio| ratio != MISSING);
    if !ratios.is_empty() && ratios.len() <= 6 {
        parts.push(format!("fast memory {} of the footprint", list(&ratios)));
    }
    parts.join(" · ")
}

fn machine(name: &str) -> String {
    match name {
        "sim" => "the simulated machine".to_owned(),
        "vm" => "a virtual two-tier machine".to_owned(),
        "host" => "this host".to_owned(),
        other => clean(other),
    }
}

/// The words for a reason: in a heading, in a sentence ("because ..."), and at length.
pub(super) fn meaning(reason: &str) -> (&'static str, &'static str, &'static str) {
    match reason {
        "busy" => (
            "busy",
            "the kernel was using the page",
            "The kernel was using the page: pinned, locked or under write-back.",
        ),
        "absent" => (
            "absent",
            "the page was no longer there",
            "No page was mapped there any more: the program freed it between scan and move.",
        ),
        "no_room" => (
            "no room",
            "the other tier was full",
            "The other tier had no free memory. Lower the fast memory of the group, or free some.",
        ),
        "not_allowed" => (
            "not allowed",
            "the process may not use the other tier",
            "The other tier is outside what the process may use (cpuset or memory policy).",
        ),
        "denied" => (
            "denied",
            "permission was denied",
            "No permission, or the page is shared with a process outside the group.",
        ),
        "process_gone" => {
            ("process gone", "the process had ended", "The process had ended before the move.")
        }
        "stayed_put" => (
            "stayed put",
            "the page was found in its old place after the move",
            "Reported as moved, but found in its old place when read back.",
        ),
        "out_of_time" => (
            "out of time",
            "the time allowed for moves was spent",
            "Not attempted: the time allowed for the moves of a period was spent.",
        ),
        _ => (
            "unsupported",
            "the machine cannot move such a page",
            "The machine cannot move such a page at all.",
        ),
    }
}

#[derive(Serialize)]
pub(super) struct Term {
    name: String,
    meaning: String,
}

pub(super) fn term(name: &str, meaning: &str) -> Term {
    Term { name: name.to_owned(), meaning: meaning.to_owned() }
}

#[derive(Serialize)]
pub(super) struct Item {
    name: String,
    value: String,
    code: bool,
    chip: String,
}

pub(super) fn setup(results: &Results, meta: &ReportMeta) -> Vec<Item> {
    let runs = &results.runs;
    let mut items = Vec::new();
    let mut item = |name: &str, value: String, code: bool| {
        if !value.is_empty() {
            items.push(Item { name: name.to_owned(), value, code, chip: String::new() });
        }
    };
    let all = |value: &dyn Fn(&RunRow) -> String| {
        let mut all = values(runs, value);
        all.retain(|v| !v.is_empty());
        // Many seeds or sizes show no more than some of them.
        let more = all.len().saturating_sub(12);
        all.truncate(12);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}", all.join(", "))
    };
    item("command", clean(&meta.command), true);
    item("experiment", all(&|r| clean(&r.experiment)), false);
    item("machine", all(&|r| machine(&r.machine)), false);
    item("kernel", all(&|r| clean(r.kernel.as_deref().unwrap_or(""))), false);
    item("workload", all(&|r| clean(&r.workload)), false);
    item("groups", all(&|r| clean(&r.group)), false);
    item("policies", all(&|r| clean(&r.policy)), false);
    item(
        "fast memory",
        all(&|r| {
            if !r.fast_ratio.is_finite() {
                return String::new();
            }
            let footprint = r.pages_max as f64 * r.page_size_bytes as f64;
            let fast = footprint * r.fast_ratio;
            let share = percent_round(r.fast_ratio);
            format!("{share} of the footprint ({} of {})", bytes(fast.round()), bytes(footprint))
        }),
        false,
    );
    item("page size", all(&|r| bytes(r.page_size_bytes as f64)), false);
    item(
        "periods",
        all(&|r| format!("{} of {}", count(r.periods), duration(r.period_length_ms()))),
        false,
    );
    item("seed", all(&|r| r.seed.to_string()), false);
    item(
        "rows",
        format!(
            "{} in the table of runs, {} in that of periods",
            count(runs.len() as u64),
            count(results.periods.len() as u64)
        ),
        false,
    );
    items
}

/// The policies' parameters, once for each that differs.
pub(super) fn parameter_list(results: &Results, palette: &Palette) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for run in &results.runs {
        let value = match parameters(run) {
            serde_json::Value::Null => continue,
            serde_json::Value::Object(map) if map.is_empty() => continue,
            serde_json::Value::Object(map) => map
                .iter()
                .map(|(key, value)| format!("{key} = {value}"))
                .collect::<Vec<_>>()
                .join(", "),
            other => other.to_string(),
        };
        let (name, value) = (clean(&run.policy), clean(&value));
        if !items.iter().any(|item| item.name == name && item.value == value) {
            items.push(Item { name, value, code: true, chip: chip(palette.of(&run.policy)) });
        }
    }
    items
}

pub(super) fn notes(results: &Results) -> Vec<Term> {
    let runs = &results.runs;
    let mut notes = vec![
        term(
            "hit ratio",
            "Of the pages that were accessed in a period, the share that was in fast memory. Over \
             a run: all hits over all accesses. It counts pages, not loads and stores: a page \
             that is used a million times in a period counts as much as one that is used once.",
        ),
        term(
            "stability",
            "Of all pages, the share that stayed in their tier from one period to the next. \
             100 % means that nothing moved.",
        ),
        term(
            "promoted, demoted",
            "Pages that went to fast and to slow memory. An exchange of two pages counts once \
             in each.",
        ),
    ];
    if runs.iter().any(is_adaptive) {
        notes.push(term(
            "chose",
            "An adaptive policy applies one of several others in each period. Bands and shares \
             show which, in that policy's colour.",
        ));
    }
    if runs.iter().any(|r| r.tracker_cpu_ms.is_some() || r.daemon_cpu_ms.is_some()) {
        notes.push(term(
            "CPU time",
            "Of the tracker alone, and of the daemon: tracker, policy and mover together, over \
             the run without its warm-up.",
        ));
    }
    if runs.iter().any(|r| r.clock.as_deref() == Some(MEMORY_CLOCK)) {
        notes.push(term(
            "simulated time",
            "The machine is emulated, and its clock knows what instructions and accesses of memory \
             take: caches, translations, each tier's latency and bandwidth. Run times, CPU times \
             and throughput are those of such a machine. Stalls, latencies and the kernel's time \
             are of all programs together.",
        ));
    }
    if runs.iter().any(|r| r.emulated) {
        let not_all = runs.iter().any(|r| !r.emulated);
        notes.push(term(
            "emulated time",
            &format!(
                "{} on a machine that is emulated in software, whose time is not that of \
                 hardware. Placement, moves and hit ratios are real; CPU times, throughput and \
                 run times (marked ~) compare policies with each other, and do not show what \
                 slow memory costs.",
                if not_all { "Some runs were" } else { "The runs were" }
            ),
        ));
    }
    let known: std::collections::BTreeSet<(&str, &str)> =
        runs.iter().map(|r| (r.run.as_str(), r.group.as_str())).collect();
    let stray = results
        .periods
        .iter()
        .filter(|p| !known.contains(&(p.run.as_str(), p.group.as_str())))
        .count();
    if stray > 0 {
        let text = format!(
            "{} rows of periods belong to runs that are not in the table of runs, such as a run \
             that was broken off. They are not shown.",
            count(stray as u64)
        );
        notes.push(term("left out", &text));
    }
    for note in values(runs, |r| clean(r.notes.as_deref().unwrap_or(""))) {
        if !note.is_empty() {
            notes.push(term("of these runs", &note));
        }
    }
    notes
}

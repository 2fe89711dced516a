//! Findings for a reader in a hurry: sentences made of the table of runs. They contain nothing that
//! the tables do not show.

use serde::Serialize;
use terrace_results::RunRow;

use super::explanations::meaning;
use crate::format::{bytes, clean, count, list, number, percent};
use crate::gain::{self, baseline};
use crate::results::{FAILURE_REASONS, Moves, Results, at_work_ms};
use crate::rows::{Panel, Rows};

#[derive(Serialize)]
pub(super) struct Finding {
    kind: &'static str,
    text: String,
}

/// Findings for a reader in a hurry. They contain nothing that the tables do not show.
pub(super) fn findings(results: &Results, rows: &Rows) -> Vec<Finding> {
    let mut all = Vec::new();
    for panel in &rows.panels {
        all.extend(best_hits(panel, rows));
        all.extend(best_throughput(panel, rows));
    }
    for panel in &rows.compared() {
        all.extend(gain::sentence(panel, rows).map(|sentence| Finding {
            kind: "plain",
            text: format!("{}{sentence}", prefix(panel)),
        }));
    }
    // More than a screenful is not short.
    if rows.panels.len() > 8 {
        all.truncate(8);
        let text = format!("{} more comparisons are in the table.", rows.panels.len() - 8);
        all.push(Finding { kind: "note", text });
    }
    let runs = &results.runs;
    all.push(failed_moves(runs));
    all.extend(data_checks(runs));
    all.extend(overhead(runs));
    let lost: u64 = runs.iter().map(|r| r.lost_periods).fold(0, u64::saturating_add);
    if lost > 0 {
        let seen: u64 = runs.iter().map(|r| r.periods).fold(0, u64::saturating_add);
        let text = format!("The tracker lost {} periods; {} were seen.", count(lost), count(seen));
        all.push(Finding { kind: "plain", text });
    }
    if runs.iter().any(|r| r.emulated) {
        let text = "Time was emulated: CPU times and throughput compare policies with each other \
                    and are not those of real memory."
            .to_owned();
        all.push(Finding { kind: "note", text });
    }
    all
}

fn prefix(panel: &Panel) -> String {
    if panel.title.is_empty() { String::new() } else { format!("{}: ", panel.title) }
}

/// How close to the best hit ratio counts as the same: half a percentage point.
const TIE: f64 = 0.005;

fn best_hits(panel: &Panel, rows: &Rows) -> Option<Finding> {
    let known: Vec<&RunRow> =
        panel.runs.iter().copied().filter(|r| r.hit_ratio.is_finite()).collect();
    let mut winners = known.clone();
    winners.sort_by(|a, b| b.hit_ratio.total_cmp(&a.hit_ratio));
    let best = winners.first()?.hit_ratio;
    winners.retain(|r| r.hit_ratio >= best - TIE);
    let text = if known.len() == 1 {
        format!(
            "{}under {}, {} of the accessed pages were in fast memory",
            prefix(panel),
            rows.series_name(winners[0]),
            percent(best)
        )
    } else if winners.len() == known.len() {
        format!(
            "{}all policies found about {} of the accessed pages in fast memory",
            prefix(panel),
            percent(best)
        )
    } else {
        let name = |r: &&RunRow| format!("{} ({})", rows.series_name(r), percent(r.hit_ratio));
        let names: Vec<String> = winners.iter().map(name).collect();
        let mut text = format!("{}the hit ratio was highest under {}", prefix(panel), list(&names));
        let among = |runs: &[&RunRow], run: &RunRow| runs.iter().any(|r| std::ptr::eq(*r, run));
        if let Some(base) = baseline(panel)
            && among(&known, base)
            && !among(&winners, base)
        {
            let name = rows.series_name(base);
            text.push_str(&format!(", against {} under {name}", percent(base.hit_ratio)));
        }
        text
    };
    let winner = winners[0];
    let moved = match winner.moved_pages() {
        0 => String::new(),
        n => format!(
            "; {} moved {} pages for it ({})",
            rows.series_name(winner),
            count(n),
            bytes(n as f64 * winner.page_size_bytes as f64)
        ),
    };
    Some(Finding { kind: "plain", text: capital(&format!("{text}{moved}.")) })
}

/// A sentence begins with a capital.
fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn best_throughput(panel: &Panel, rows: &Rows) -> Option<Finding> {
    let measured: Vec<&&RunRow> = panel
        .runs
        .iter()
        .filter(|r| r.operations_per_s.is_some_and(|v| v.is_finite() && v > 0.0))
        .collect();
    let of = |r: &RunRow| r.operations_per_s.unwrap_or(0.0);
    let base = baseline(panel).filter(|base| measured.iter().any(|r| std::ptr::eq(**r, *base)))?;
    let best = measured.iter().max_by(|a, b| of(a).total_cmp(&of(b)))?;
    // Less than a hundredth more is what two runs of the same policy differ by.
    if measured.len() < 2 || std::ptr::eq(**best, base) || of(best) < 1.01 * of(base) {
        return None;
    }
    let text = format!(
        "{}throughput was highest under {}: {} operations/s, {:.2} times that of {}{}.",
        prefix(panel),
        rows.series_name(best),
        number(of(best)),
        of(best) / of(base),
        rows.series_name(base),
        if best.emulated { " (in emulated time)" } else { "" }
    );
    Some(Finding { kind: "plain", text: capital(&text) })
}

fn failed_moves(runs: &[RunRow]) -> Finding {
    let failed: u64 = runs.iter().map(RunRow::failed_pages).fold(0, u64::saturating_add);
    let moved: u64 = runs.iter().map(RunRow::moved_pages).fold(0, u64::saturating_add);
    let attempted = moved.saturating_add(failed);
    if failed == 0 {
        let text = match moved {
            0 => "No page was to be moved.".to_owned(),
            _ => format!("All {} moves of pages succeeded.", count(moved)),
        };
        return Finding { kind: "good", text };
    }
    let mut sums = [0u64; FAILURE_REASONS.len()];
    for run in runs {
        for (sum, n) in sums.iter_mut().zip(run.failures()) {
            *sum = sum.saturating_add(n);
        }
    }
    let mut reasons: Vec<(u64, &str)> = sums.into_iter().zip(FAILURE_REASONS).collect();
    reasons.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
    let (most, reason) = reasons[0];
    let text = format!(
        "{} of {} moves failed ({}), most often because {} ({}).",
        count(failed),
        count(attempted),
        percent(failed as f64 / attempted as f64),
        meaning(reason).1,
        count(most)
    );
    Finding { kind: "plain", text }
}

fn data_checks(runs: &[RunRow]) -> Option<Finding> {
    let checked = runs.iter().filter(|r| r.checksum_ok.is_some()).count();
    let damaged: Vec<String> =
        runs.iter().filter(|r| r.checksum_ok == Some(false)).map(|r| clean(&r.run)).collect();
    if !damaged.is_empty() {
        let text = format!("The program's data was damaged in {}.", list(&damaged));
        return Some(Finding { kind: "wrong", text });
    }
    match checked {
        0 => None,
        n if n == runs.len() => Some(Finding {
            kind: "good",
            text: "The program's data was checked at the end of every run and was intact."
                .to_owned(),
        }),
        n => Some(Finding {
            kind: "good",
            text: format!("The program's data was intact in the {n} runs that checked it."),
        }),
    }
}

/// The cost of tracking and moving, as a share of one CPU over the time that they were at work.
fn overhead(runs: &[RunRow]) -> Option<Finding> {
    let shares: Vec<f64> = runs
        .iter()
        .filter_map(|r| Some(r.daemon_cpu_ms? / at_work_ms(r)?))
        .filter(|share| share.is_finite())
        .collect();
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let most = shares.iter().copied().fold(0.0, f64::max);
    if shares.is_empty() {
        return None;
    }
    let range = if percent(least) == percent(most) {
        percent(most)
    } else {
        format!("{} to {}", percent(least), percent(most))
    };
    let text = format!("Tracking, deciding and moving took {range} of one CPU.");
    Some(Finding { kind: "plain", text })
}

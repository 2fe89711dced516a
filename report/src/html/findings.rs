//! Findings for a reader in a hurry: sentences made of the table of runs. They contain nothing that
//! the tables do not show.

use serde::Serialize;
use terrace_results::RunRow;

use super::explanations::meaning;
use crate::format::{bytes, clean, count, list, number, percent};
use crate::gain::{self, baseline};
use crate::results::{FAILURE_REASONS, Moves, Results, at_work_ms};
use crate::rows::{Panel, Rows, is_reference};

#[derive(Serialize)]
pub(super) struct Finding {
    kind: &'static str,
    text: String,
}

/// Comparisons that are shown where there are more panels than so many.
const MOST_COMPARISONS: usize = 8;

/// Findings for a reader in a hurry. They contain nothing that the tables do not show.
pub(super) fn findings(results: &Results, rows: &Rows) -> Vec<Finding> {
    let mut all = Vec::new();
    for panel in rows.panels.iter().map(without_reference) {
        all.extend(best_hits(&panel, rows));
        all.extend(best_throughput(&panel, rows));
    }
    for panel in &rows.compared() {
        all.extend(gain::sentence(panel, rows).map(|sentence| Finding {
            kind: "plain",
            text: format!("{}{sentence}", prefix(panel)),
        }));
    }
    if rows.panels.len() > MOST_COMPARISONS {
        shorten(&mut all);
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

/// More than a screenful is not short.
fn shorten(comparisons: &mut Vec<Finding>) {
    let text = match comparisons.len().saturating_sub(MOST_COMPARISONS) {
        0 => return,
        1 => "1 more comparison is in the table.".to_owned(),
        more => format!("{more} more comparisons are in the table."),
    };
    comparisons.truncate(MOST_COMPARISONS);
    comparisons.push(Finding { kind: "note", text });
}

/// The runs that are compared: with all memory fast nothing is chosen, and nothing is won.
fn without_reference<'a>(panel: &Panel<'a>) -> Panel<'a> {
    let runs = panel.runs.iter().copied().filter(|run| !is_reference(run)).collect();
    Panel { title: panel.title.clone(), runs }
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

#[cfg(test)]
mod tests {
    use terrace_results::ALL_FAST;

    use super::*;

    #[test]
    fn the_run_with_all_memory_fast_wins_nothing() {
        let run = |policy: &str, hit_ratio: f64, operations_per_s: f64| RunRow {
            policy: policy.to_owned(),
            run: policy.to_owned(),
            fast_ratio: if policy == ALL_FAST { 1.0 } else { 0.5 },
            hit_ratio,
            operations_per_s: Some(operations_per_s),
            ..RunRow::default()
        };
        let runs = [
            run(ALL_FAST, 1.0, 40_000.0),
            run("first-touch", 0.5, 20_000.0),
            run("amp", 0.9, 30_000.0),
        ];
        let results = Results { runs: runs.to_vec(), ..Results::default() };
        let all = findings(&results, &Rows::new(&runs));
        let won: Vec<&str> =
            all.iter().map(|f| f.text.as_str()).filter(|t| t.contains("was highest")).collect();
        assert_eq!(won.len(), 2, "{won:?}");
        assert!(won[0].starts_with("The hit ratio was highest under amp (90.0 %)"), "{won:?}");
        let fastest = "Throughput was highest under amp: 30,000 operations/s, 1.50 times that of";
        assert!(won[1].starts_with(fastest), "{won:?}");
    }

    #[test]
    fn as_many_comparisons_are_left_out_as_are_counted() {
        // Ten groups, each with a sentence on hits and one on throughput.
        let run = |group: usize, policy: &str, rate: f64| RunRow {
            policy: policy.to_owned(),
            group: format!("g{group}"),
            hit_ratio: rate / 40_000.0,
            operations_per_s: Some(rate),
            ..RunRow::default()
        };
        let runs: Vec<RunRow> = (0..10)
            .flat_map(|g| [run(g, "first-touch", 20_000.0), run(g, "amp", 30_000.0)])
            .collect();
        let results = Results { runs: runs.clone(), ..Results::default() };
        let all = findings(&results, &Rows::new(&runs));
        assert_eq!(all[8].text, "12 more comparisons are in the table.");
        let mut nine: Vec<Finding> =
            (0..9).map(|n| Finding { kind: "plain", text: n.to_string() }).collect();
        shorten(&mut nine);
        assert_eq!(nine[8].text, "1 more comparison is in the table.");
        nine.truncate(8);
        shorten(&mut nine);
        assert_eq!(nine.len(), 8);
    }
}

//! The report's tables of the kernel's time: what each of its own threads took in each run, and
//! what its time was for.

use std::collections::BTreeMap;

use minijinja::{Value, context};
use serde::Serialize;

use crate::format::{clean, number};
use crate::results::Results;
use crate::rows::values;

/// Threads or causes that are shown by name; what all others took is one row.
const SHOWN: usize = 12;
/// What took less in all runs together is not worth a row, in ms.
const LEAST_MS: f64 = 0.01;

#[derive(Serialize)]
struct Row {
    name: String,
    /// ms by run.
    times: Vec<String>,
}

/// Runs, and threads by what they took in all runs together, the most first. Without rows where no
/// kernel reported it.
pub(super) fn threads(results: &Results) -> Value {
    let rows = results.kernel_threads.iter().map(|r| (&*r.thread, &*r.run, r.time_ms));
    table(results, rows)
}

/// The same of the causes of the kernel's time.
pub(super) fn causes(results: &Results) -> Value {
    let rows = results.kernel_causes.iter().map(|r| (&*r.cause, &*r.run, r.time_ms));
    table(results, rows)
}

/// Of names, runs and times in ms.
fn table<'a>(results: &'a Results, rows: impl Iterator<Item = (&'a str, &'a str, f64)>) -> Value {
    let mut by_name: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for (name, run, time_ms) in rows {
        *by_name.entry(name).or_default().entry(run).or_default() += time_ms;
    }
    let runs = values(&results.runs, |r| r.run.clone());
    let mut shown: Vec<_> = by_name.into_iter().collect();
    let sum = |times: &BTreeMap<&str, f64>| times.values().sum::<f64>();
    shown.retain(|(_, times)| sum(times) >= LEAST_MS);
    shown.sort_by(|(a, x), (b, y)| sum(y).total_cmp(&sum(x)).then(a.cmp(b)));
    let others = shown.split_off(shown.len().min(SHOWN));
    let cells = |of: &dyn Fn(&str) -> f64| runs.iter().map(|run| number(of(run))).collect();
    let mut rows: Vec<Row> = shown
        .iter()
        .map(|(name, times)| Row {
            name: clean(name),
            times: cells(&|run| times.get(run).copied().unwrap_or(0.0)),
        })
        .collect();
    if !others.is_empty() {
        let of = |run: &str| others.iter().filter_map(|(_, times)| times.get(run)).sum();
        rows.push(Row { name: format!("{} others", others.len()), times: cells(&of) });
    }
    context! { runs => runs.iter().map(|run| clean(run)).collect::<Vec<_>>(), rows }
}

//! The report's table of the kernel's own threads: what each took in each run.

use std::collections::BTreeMap;

use minijinja::{Value, context};
use serde::Serialize;

use crate::format::{clean, number};
use crate::results::Results;
use crate::rows::values;

/// Threads that are shown by name; what all others took is one row.
const SHOWN_THREADS: usize = 12;
/// What took less in all runs together is not worth a row, in ms.
const LEAST_MS: f64 = 0.01;

#[derive(Serialize)]
struct Row {
    thread: String,
    /// ms by run.
    times: Vec<String>,
}

/// Runs, and threads by what they took in all runs together, the most first. Without rows where no
/// kernel reported it.
pub(super) fn threads(results: &Results) -> Value {
    let mut by_thread: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for row in &results.kernel_threads {
        *by_thread.entry(&row.thread).or_default().entry(&row.run).or_default() += row.time_ms;
    }
    let runs = values(&results.runs, |r| r.run.clone());
    let mut threads: Vec<_> = by_thread.into_iter().collect();
    let sum = |times: &BTreeMap<&str, f64>| times.values().sum::<f64>();
    threads.retain(|(_, times)| sum(times) >= LEAST_MS);
    threads.sort_by(|(a, x), (b, y)| sum(y).total_cmp(&sum(x)).then(a.cmp(b)));
    let others = threads.split_off(threads.len().min(SHOWN_THREADS));
    let cells = |of: &dyn Fn(&str) -> f64| runs.iter().map(|run| number(of(run))).collect();
    let mut rows: Vec<Row> = threads
        .iter()
        .map(|(thread, times)| Row {
            thread: clean(thread),
            times: cells(&|run| times.get(run).copied().unwrap_or(0.0)),
        })
        .collect();
    if !others.is_empty() {
        let of = |run: &str| others.iter().filter_map(|(_, times)| times.get(run)).sum();
        rows.push(Row { thread: format!("{} others", others.len()), times: cells(&of) });
    }
    context! { runs => runs.iter().map(|run| clean(run)).collect::<Vec<_>>(), rows }
}

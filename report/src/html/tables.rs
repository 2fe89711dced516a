//! The report's tables: runs, and moves that failed.

use minijinja::{Value, context};
use serde::Serialize;
use terrace_results::RunRow;

use super::content::PeriodsByRun;
use super::explanations::{meaning, term};
use super::figures::series;
use super::picture::chip;
use super::theme::Palette;
use crate::format::{MISSING, bytes, clean, count, duration, percent, percent_round};
use crate::results::{FAILURE_REASONS, Moves, at_work_ms, is_adaptive};
use crate::rows::Rows;
use crate::text::{chosen, data, timed};

#[derive(Serialize, Default)]
pub(super) struct Column {
    name: String,
    unit: &'static str,
    hint: &'static str,
    right: bool,
}

#[derive(Serialize, Default)]
pub(super) struct Cell {
    text: String,
    small: String,
    class: &'static str,
    before: String,
}

#[derive(Serialize)]
pub(super) struct Row {
    cells: Vec<Cell>,
    /// First of its panel.
    first: bool,
}

#[derive(Serialize)]
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
    note: String,
}

/// Columns that only some runs fill.
struct Has {
    throughput: bool,
    latency: bool,
    duration: bool,
    tracker: bool,
    daemon: bool,
    slowdown: bool,
    stalls: bool,
    data: bool,
    adaptive: bool,
}

impl Has {
    fn of(rows: &Rows) -> Self {
        let any = |has: fn(&RunRow) -> bool| rows.runs().any(has);
        Has {
            throughput: any(|r| r.operations_per_s.is_some()),
            latency: any(|r| r.latency_p99_us.is_some()),
            duration: any(|r| r.duration_ms.is_some()),
            tracker: any(|r| r.tracker_cpu_ms.is_some()),
            daemon: any(|r| r.daemon_cpu_ms.is_some()),
            slowdown: any(|r| r.slowdown.is_some()),
            stalls: any(|r| r.kernel_ms.is_some()),
            data: any(|r| r.checksum_ok.is_some()),
            adaptive: any(is_adaptive),
        }
    }
}

pub(super) fn table(rows: &Rows, by_run: &PeriodsByRun, palette: &Palette) -> Table {
    let has = Has::of(rows);
    let mut out = Vec::new();
    for panel in &rows.panels {
        let best = panel.runs.iter().map(|r| r.hit_ratio).fold(f64::NAN, f64::max);
        for (i, run) in panel.runs.iter().enumerate() {
            let is_best = panel.runs.len() > 1 && percent(run.hit_ratio) == percent(best);
            let first: Vec<Cell> = rows.shown.iter().map(|p| words(p.value(run))).collect();
            let cells = cells(first, run, is_best, &has, by_run, palette);
            out.push(Row { cells, first: i == 0 && rows.panels.len() > 1 });
        }
    }
    let mut note = String::new();
    if rows.runs().any(|r| r.emulated) {
        note.push_str("~ in emulated time. ");
    }
    if rows.panels.iter().any(|p| p.runs.len() > 1) {
        note.push_str("Bold: the highest hit ratio of those compared.");
    }
    Table { columns: columns(rows, &has), rows: out, note }
}

fn columns(rows: &Rows, has: &Has) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    let mut column = |shown: bool, name: &str, unit: &'static str, hint: &'static str, right| {
        if shown {
            columns.push(Column { name: name.to_owned(), unit, hint, right });
        }
    };
    for particular in &rows.shown {
        column(true, particular.heading(), "", "", false);
    }
    column(true, "policy", "", "", false);
    column(has.adaptive, "chose", "share of periods", "What the adaptive policy applied", false);
    column(true, "hit ratio", "", "Accessed pages in fast memory over accessed pages", true);
    column(true, "promoted", "pages", "Moved to fast memory", true);
    column(true, "demoted", "pages", "Moved to slow memory", true);
    column(true, "failed", "pages", "Moves that failed; by reason below", true);
    column(true, "stability", "", "Pages that stayed in their tier between periods", true);
    column(has.tracker, "tracker CPU", "ms", "CPU time of the tracker over the run", true);
    column(has.daemon, "daemon CPU", "ms", "CPU time of tracker, policy and mover", true);
    column(has.throughput, "throughput", "operations/s", "What the program achieved", true);
    column(has.latency, "p50", "ms", "Half of the requests were answered in this time", true);
    column(has.latency, "p99", "ms", "99 % of the requests were answered in this time", true);
    column(has.duration, "run time", "", "How long the program ran", true);
    let loaded = "Mean latency of a line beyond the caches, as loaded";
    let kernel = "Processors busy in the kernel, all together";
    let misses = "Loads and stores that missed all caches and were of fast memory";
    let stalled = "Processors waiting for lines of memory, fast and slow";
    column(has.slowdown, "slowdown", "", "Time over that with all memory fast", true);
    column(has.stalls, "stalled", "ms fast, slow", stalled, true);
    column(has.stalls, "fast misses", "programs, kernel", misses, true);
    column(has.stalls, "latency", "ns fast, slow", loaded, true);
    column(has.stalls, "page walks", "ms", "Waiting for page walks", true);
    column(has.stalls, "kernel", "ms", kernel, true);
    column(has.data, "data", "", "Whether the program's data was intact at the end", false);
    columns
}

fn words(text: String) -> Cell {
    Cell { text, class: "long", ..Cell::default() }
}

fn number_cell(text: String) -> Cell {
    Cell { text, class: "n", ..Cell::default() }
}

/// So many pages of the run, and their size.
fn pages(run: &RunRow, pages: u64) -> Cell {
    Cell {
        text: count(pages),
        small: match pages {
            0 => String::new(),
            n => bytes(n as f64 * run.page_size_bytes as f64),
        },
        class: "n",
        before: String::new(),
    }
}

/// Processor time of the run, and its share of one processor while it was spent.
fn cpu(run: &RunRow, ms: Option<f64>) -> Cell {
    Cell {
        small: match (ms, at_work_ms(run)) {
            (Some(cpu), Some(all)) if cpu.is_finite() => {
                format!("{} of a CPU", percent(cpu / all))
            }
            _ => String::new(),
        },
        ..number_cell(timed(run, ms))
    }
}

/// The cells of a run, after those of what it differs by.
fn cells(
    first: Vec<Cell>,
    run: &RunRow,
    is_best: bool,
    has: &Has,
    by_run: &PeriodsByRun,
    palette: &Palette,
) -> Vec<Cell> {
    let mut cells = first;
    cells.push(Cell {
        text: clean(&run.policy),
        before: chip(palette.of(&run.policy)),
        ..Cell::default()
    });
    if has.adaptive {
        cells.push(words(choices(run, by_run)));
    }
    cells.push(Cell {
        class: if is_best { "n best" } else { "n" },
        ..number_cell(percent(run.hit_ratio))
    });
    cells.push(pages(run, run.promoted_pages));
    cells.push(pages(run, run.demoted_pages));
    cells.push(number_cell(count(run.failed_pages())));
    cells.push(number_cell(percent(run.stability)));
    if has.tracker {
        cells.push(cpu(run, run.tracker_cpu_ms));
    }
    if has.daemon {
        cells.push(cpu(run, run.daemon_cpu_ms));
    }
    if has.throughput {
        cells.push(number_cell(timed(run, run.operations_per_s)));
    }
    if has.latency {
        for us in [run.latency_p50_us, run.latency_p99_us] {
            cells.push(number_cell(timed(run, us.map(|us| us / 1e3))));
        }
    }
    if has.duration {
        let text = match run.duration_ms {
            Some(ms) if run.emulated => format!("~{}", duration(ms)),
            Some(ms) => duration(ms),
            None => MISSING.to_owned(),
        };
        let error = run.duration_error_ms.map(|ms| format!(" ± {}", duration(ms)));
        cells.push(number_cell(text + &error.unwrap_or_default()));
    }
    if has.slowdown {
        let text = run.slowdown.map_or(MISSING.to_owned(), |s| format!("{s:.3}"));
        cells.push(number_cell(text));
    }
    if has.stalls {
        let both = |fast, slow| format!("{}, {}", timed(run, fast), timed(run, slow));
        cells.push(number_cell(both(run.fast_stall_ms, run.slow_stall_ms)));
        let misses = [run.program_hit_ratio, run.kernel_hit_ratio]
            .map(|share| share.map_or(MISSING.to_owned(), percent));
        cells.push(number_cell(misses.join(", ")));
        cells.push(number_cell(both(run.fast_loaded_ns, run.slow_loaded_ns)));
        cells.push(number_cell(timed(run, run.walk_stall_ms)));
        cells.push(number_cell(timed(run, run.kernel_ms)));
    }
    if has.data {
        let class = if run.checksum_ok == Some(false) { "wrong" } else { "" };
        cells.push(Cell { text: data(run).to_owned(), class, ..Cell::default() });
    }
    cells
}

/// The policy that an adaptive policy applied, with shares, from its periods where there are any.
fn choices(run: &RunRow, by_run: &PeriodsByRun) -> String {
    let Some(periods) = by_run.get(&(run.run.as_str(), run.group.as_str())) else {
        return chosen(run);
    };
    let series = series(run, String::new(), 0, periods);
    let applied = series.applied();
    if applied.iter().all(|(name, _)| *name == run.policy) {
        return MISSING.to_owned();
    }
    let share = |n: usize| percent_round((100.0 * n as f64 / periods.len() as f64).round() / 100.0);
    let parts: Vec<String> =
        applied.iter().map(|(name, n)| format!("{} {}", clean(name), share(*n))).collect();
    parts.join(", ")
}

#[derive(Serialize)]
struct FailureRow {
    names: Vec<String>,
    chip: String,
    attempted: String,
    failed: String,
    share: String,
    reasons: Vec<String>,
}

pub(super) fn failures(rows: &Rows, palette: &Palette) -> Value {
    let seen: Vec<usize> =
        (0..FAILURE_REASONS.len()).filter(|i| rows.runs().any(|r| r.failures()[*i] > 0)).collect();
    if seen.is_empty() {
        return context! { rows => Vec::<FailureRow>::new() };
    }
    let mut names: Vec<&str> = rows.shown.iter().map(|p| p.heading()).collect();
    names.push("policy");
    let row = |run: &RunRow| {
        let failed = run.failed_pages();
        let attempted = run.moved_pages().saturating_add(failed);
        let mut names: Vec<String> = rows.shown.iter().map(|p| p.value(run)).collect();
        names.push(clean(&run.policy));
        FailureRow {
            names,
            chip: chip(palette.of(&run.policy)),
            attempted: count(attempted),
            failed: count(failed),
            share: if failed == 0 {
                String::new()
            } else {
                percent(failed as f64 / attempted as f64)
            },
            reasons: seen.iter().map(|i| count(run.failures()[*i])).collect(),
        }
    };
    let terms = seen.iter().map(|i| {
        let (name, _, at_length) = meaning(FAILURE_REASONS[*i]);
        term(name, at_length)
    });
    context! {
        names,
        rows => rows.runs().map(row).collect::<Vec<_>>(),
        reasons => seen.iter().map(|i| meaning(FAILURE_REASONS[*i]).0).collect::<Vec<_>>(),
        terms => terms.collect::<Vec<_>>(),
    }
}

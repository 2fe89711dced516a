//! The report's pictures with their captions and legends: which are drawn, of which runs, in which
//! words. Each is drawn by a file of its own.

use std::collections::BTreeMap;

use serde::Serialize;
use terrace_results::{HeatRow, PeriodRow, RunRow};

use super::bars::{Bar, BarPanel, Scale, bars};
use super::content::PeriodsByRun;
use super::heat::{HeatMap, raster_max};
use super::picture::chip;
use super::sweep::{Line, sweep};
use super::theme::Palette;
use super::timeline::{Series, Timeline, legend};
use crate::format::{MISSING, axis_number, bytes, clean, count, duration, percent, percent_round};
use crate::results::Results;
use crate::rows::{Panel, Rows, slowdown_of, values};
use crate::text::timed;

/// Panels that are drawn as timelines, and runs as heat maps: more would not be read, and the file
/// would grow without end. The tables show all.
const TIMELINES_MAX: usize = 24;
const HEAT_MAPS_MAX: usize = 48;
/// Points that all lines of a report have together at most: keeps the file small.
const POINTS: usize = 6_000;

pub(super) fn series<'a>(
    run: &'a RunRow,
    name: String,
    repetition: usize,
    periods: &[&'a PeriodRow],
) -> Series<'a> {
    Series { name, policy: &run.policy, repetition, periods: periods.to_vec() }
}

#[derive(Serialize)]
pub(super) struct Figure {
    title: String,
    note: String,
    svg: String,
    legend: Vec<Entry>,
    chip: String,
}

#[derive(Serialize)]
pub(super) struct Entry {
    chip: String,
    name: String,
}

fn figure(title: &str, note: String, svg: String) -> Figure {
    Figure { title: title.to_owned(), note, svg, legend: Vec::new(), chip: String::new() }
}

/// What bars are drawn of: the runs in their panels, in the colours of their policies.
struct Bars<'a> {
    rows: &'a Rows<'a>,
    palette: &'a Palette,
}

/// A figure's title and note, and what its bars are of.
type Words<'a> = (&'a str, &'a str, &'a str);

impl Bars<'_> {
    fn bar(&self, run: &RunRow, value: Option<f64>, label: String) -> Bar {
        Bar {
            name: self.rows.series_name(run),
            colour: self.palette.of(&run.policy),
            value,
            label,
            opposite: None,
        }
    }

    /// A figure with a bar for each run. Its axis ends with the whole, or with the longest bar.
    fn figure(&self, words: Words<'_>, of_a_whole: bool, bar: impl Fn(&RunRow) -> Bar) -> Figure {
        let panel = |panel: &Panel| BarPanel {
            title: panel.title.clone(),
            bars: panel.runs.iter().map(|run| bar(run)).collect(),
        };
        // A panel in which nothing was measured says nothing.
        let is_measured =
            |panel: &BarPanel| panel.bars.iter().any(|bar| bar.value.is_some_and(f64::is_finite));
        let panels: Vec<_> = self.rows.panels.iter().map(panel).filter(is_measured).collect();
        let (title, note, of) = words;
        let (end, number): (_, fn(f64) -> String) =
            if of_a_whole { (Some(1.0), percent_round) } else { (None, axis_number) };
        let scale = Scale { label: format!("Bars: {of} by policy"), end, number };
        figure(title, note.to_owned(), bars(&panels, &scale))
    }

    /// A figure of what not all runs were measured for.
    fn of(
        &self,
        words: Words<'_>,
        value: impl Fn(&RunRow) -> Option<f64>,
        label: impl Fn(&RunRow) -> String,
    ) -> Figure {
        self.figure(words, false, |run| self.bar(run, value(run), label(run)))
    }
}

pub(super) fn bar_figures(results: &Results, rows: &Rows, palette: &Palette) -> Vec<Figure> {
    let all = Bars { rows, palette };
    let emulated = results.runs.iter().any(|r| r.emulated);
    let in_time = |note| if emulated { "in emulated time: compare, do not quote" } else { note };
    let is_measured =
        |value: fn(&RunRow) -> Option<f64>| results.runs.iter().any(|r| value(r).is_some());

    let mut figures = sweeps(rows, palette);
    let note = "of the accessed pages, in fast memory; more is better";
    let words = ("Fast-memory hit ratio", note, "fast-memory hit ratio");
    let hits = |r: &RunRow| all.bar(r, Some(r.hit_ratio), percent(r.hit_ratio));
    figures.push(all.figure(words, true, hits));

    if is_measured(|r| r.slowdown) {
        let of = slowdown_of(&results.runs);
        let note = format!("{of} over that with all memory fast; less is better");
        let note = note.as_str();
        let label = |r: &RunRow| r.slowdown.map_or(MISSING.to_owned(), |s| format!("{s:.3}"));
        figures.push(all.of(("Slowdown", note, "slowdown"), |r| r.slowdown, label));
    }
    if is_measured(|r| r.operations_per_s) {
        let words = ("Throughput, operations/s", in_time("more is better"), "throughput");
        let rate = |r: &RunRow| r.operations_per_s;
        figures.push(all.of(words, rate, |r| timed(r, rate(r))));
    } else if is_measured(|r| r.duration_ms) {
        let words = ("Run time, s", in_time("less is better"), "run time");
        let seconds = |r: &RunRow| r.duration_ms.map(|ms| ms / 1e3);
        figures.push(all.of(words, seconds, |r| timed(r, seconds(r))));
    }

    let sizes = values(&results.runs, |r| bytes(r.page_size_bytes as f64)).join(" or ");
    let note = format!("pages of {sizes}: demoted to the left, promoted to the right");
    let words = ("Pages moved", note.as_str(), "pages demoted and promoted");
    figures.push(all.figure(words, false, |r| Bar {
        opposite: Some((r.demoted_pages as f64, count(r.demoted_pages))),
        ..all.bar(r, Some(r.promoted_pages as f64), count(r.promoted_pages))
    }));

    if is_measured(|r| r.daemon_cpu_ms) {
        let note = in_time("tracker, policy and mover; less is better");
        let words = ("Daemon CPU time, ms", note, "daemon CPU time");
        figures.push(all.of(words, |r| r.daemon_cpu_ms, |r| timed(r, r.daemon_cpu_ms)));
    }
    figures
}

/// Hit ratio against fast memory, for workloads run with several shares of it.
fn sweeps(rows: &Rows, palette: &Palette) -> Vec<Figure> {
    let mut figures = Vec::new();
    for Panel { title, runs } in rows.sweeps() {
        let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for run in runs {
            if run.fast_ratio.is_finite() && run.hit_ratio.is_finite() {
                lines.entry(&run.policy).or_default().push((run.fast_ratio, run.hit_ratio));
            }
        }
        let entry = |name: &&str| Entry { chip: chip(palette.of(name)), name: clean(name) };
        let legend = lines.keys().map(entry).collect();
        let line = |(name, mut points): (&str, Vec<(f64, f64)>)| {
            points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
            // Repetitions of a run are one point: their mean.
            let mean = |same: &[(f64, f64)]| {
                (same[0].0, same.iter().map(|p| p.1).sum::<f64>() / same.len() as f64)
            };
            let points = points.chunk_by(|a, b| a.0 == b.0).map(mean).collect();
            Line { colour: palette.of(name), points }
        };
        let lines: Vec<Line> = lines.into_iter().map(line).collect();
        let svg = sweep(&lines, "Hit ratio against the share of fast memory");
        let note = "how much is enough; dotted: a placement by chance".to_owned();
        let title = match title.is_empty() {
            true => "Hit ratio by fast memory".to_owned(),
            false => format!("Hit ratio by fast memory, {title}"),
        };
        figures.push(Figure { legend, ..figure(&title, note, svg) });
    }
    figures
}

/// A timeline for each panel that has periods, and a word on those left out.
pub(super) fn timelines(
    rows: &Rows,
    by_run: &PeriodsByRun,
    palette: &Palette,
) -> (Vec<Figure>, String) {
    let mut all: Vec<(String, Timeline)> = Vec::new();
    for panel in &rows.panels {
        let mut repetitions: BTreeMap<&str, usize> = BTreeMap::new();
        let mut lines = Vec::new();
        for &run in &panel.runs {
            let Some(periods) = by_run.get(&(run.run.as_str(), run.group.as_str())) else {
                continue;
            };
            let repetition = repetitions.entry(&run.policy).or_default();
            lines.push(series(run, rows.series_name(run), *repetition, periods));
            *repetition += 1;
        }
        if lines.is_empty() {
            continue;
        }
        let same = |value: fn(&RunRow) -> f64| {
            let first = value(panel.runs[0]);
            panel.runs.iter().all(|r| value(r) == first).then_some(first)
        };
        let title =
            if panel.title.is_empty() { String::new() } else { format!(", {}", panel.title) };
        all.push((
            panel.title.clone(),
            Timeline {
                label: format!("Timelines of hit ratio, choices, stability and moves{title}"),
                series: lines,
                fast_ratio: same(|r| r.fast_ratio),
                period: same(|r| r.period_length_ms()).map_or("as set".to_owned(), duration),
                points_max: 400,
            },
        ));
    }
    let left_out = match all.len().saturating_sub(TIMELINES_MAX) {
        0 => String::new(),
        n => {
            format!("{n} more timelines are not drawn here; their periods are in periods.parquet.")
        }
    };
    all.truncate(TIMELINES_MAX);
    let lines: usize = all.iter().map(|(_, t)| t.series.len()).sum();
    let figures = all.into_iter().map(|(title, mut timeline)| {
        timeline.points_max = (POINTS / lines.max(1)).clamp(24, 400);
        let mut note = Vec::new();
        if timeline.fast_ratio.is_some_and(f64::is_finite) {
            note.push(
                "dotted: the share of memory that is fast, the hit ratio of a placement by chance",
            );
        }
        let per_point = timeline.periods_per_point();
        let mean = format!("each point is the mean of {} periods", count(per_point));
        if per_point > 1 {
            note.push(&mean);
        }
        if timeline.series.iter().any(|s| s.periods.iter().any(|p| p.lost_periods > 0)) {
            note.push("red strips: periods that the tracker lost");
        }
        let entries = legend(&timeline, palette);
        let entry = |(name, colour)| Entry { chip: chip(colour), name };
        Figure {
            legend: entries.into_iter().map(entry).collect(),
            ..figure(&title, note.join("; "), timeline.draw(palette))
        }
    });
    (figures.collect(), left_out)
}

/// A heat map for each run that has heat, and a word on those left out.
pub(super) fn heat(results: &Results, rows: &Rows, palette: &Palette) -> (Vec<Figure>, String) {
    let mut bins: BTreeMap<(&str, &str), Vec<&HeatRow>> = BTreeMap::new();
    for bin in &results.heat {
        bins.entry((&bin.run, &bin.group)).or_default().push(bin);
    }
    let mut with_heat: Vec<(String, &RunRow, &Vec<&HeatRow>)> = Vec::new();
    for panel in &rows.panels {
        for &run in &panel.runs {
            if let Some(bins) = bins.get(&(run.run.as_str(), run.group.as_str())) {
                let mut title = rows.series_name(run);
                if !panel.title.is_empty() {
                    title = format!("{title} · {}", panel.title);
                }
                with_heat.push((title, run, bins));
            }
        }
    }
    let left_out = match with_heat.len().saturating_sub(HEAT_MAPS_MAX) {
        0 => String::new(),
        n => format!("{n} more heat maps are not drawn here; their bins are in heat.parquet."),
    };
    with_heat.truncate(HEAT_MAPS_MAX);
    let size = raster_max(with_heat.len());
    let figures = with_heat.into_iter().filter_map(|(title, run, bins)| {
        let map = HeatMap::new(bins, size)?;
        let label = format!("Heat map of accesses and placement: {title}");
        Some(Figure {
            chip: chip(palette.of(&run.policy)),
            ..figure(
                &title,
                format!("{}, hit ratio {}", map.extent(), percent(run.hit_ratio)),
                map.draw(&label),
            )
        })
    });
    (figures.collect(), left_out)
}

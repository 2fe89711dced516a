//! The report of a sweep: the best cells, the effect of each axis, every cell, and failures.

use std::path::Path;

use super::chart::{Axes, Curve, chart, range_around};
use super::page::{Cell, Entry, Finding, Page, Picture, Row, Section, Sheet, columns, render, row};
use super::picture::chip;
use super::theme::Palette;
use super::{ReportMeta, write_page};
use crate::error::ReportError;
use crate::format::{MISSING, clean, count, number};

/// Rows of the table of cells: the Parquet file holds the others.
const ROWS_MAX: usize = 500;

/// The result of a sweep, for its report.
#[derive(Debug, Clone, Default)]
pub struct SweepPage {
    /// Its title.
    pub description: String,
    /// Its axes with their values in order.
    pub axes: Vec<(String, Vec<String>)>,
    /// The columns that are shown, the first the most important, and whether less is better.
    pub columns: Vec<(String, bool)>,
    /// A row for each cell and group.
    pub rows: Vec<SweepRow>,
    /// Cells of the grid.
    pub cells: usize,
    /// Cells that failed: number, values, attempts, error.
    pub failed: Vec<(usize, String, u32, String)>,
    /// Cells that have not been run.
    pub missing: usize,
}

/// A cell and group.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SweepRow {
    /// Number of the cell.
    pub cell: usize,
    /// Name of the group.
    pub group: String,
    /// Its values in the order of the axes.
    pub values: Vec<String>,
    /// Its numbers in the order of the columns.
    pub numbers: Vec<Option<f64>>,
}

/// The report of a sweep as one HTML file that needs nothing else.
pub fn sweep_html(sweep: &SweepPage, meta: &ReportMeta) -> String {
    let mut page = Page {
        subtitle: match sweep.description.as_str() {
            "" => format!("{} cells over {} axes", count(sweep.cells as u64), sweep.axes.len()),
            text => clean(text),
        },
        ..Page::default()
    };
    page.findings = findings(sweep);
    page.sections.extend(lines(sweep));
    page.sections.extend(matrix(sweep));
    page.sections.push(effects(sweep));
    page.sections.push(cells(sweep));
    if !sweep.failed.is_empty() {
        page.sections.push(failures(sweep));
    }
    render(&page, meta)
}

/// Writes it, whole or not at all.
pub fn write_sweep_html(
    path: &Path,
    sweep: &SweepPage,
    meta: &ReportMeta,
) -> Result<(), ReportError> {
    write_page(path, &sweep_html(sweep, meta))
}

fn shown(value: Option<f64>) -> String {
    value.map_or(MISSING.to_owned(), number)
}

/// The first column's numbers.
fn first(row: &SweepRow) -> Option<f64> {
    row.numbers.first().copied().flatten().filter(|v| v.is_finite())
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0usize), |(sum, n), v| (sum + v, n + 1));
    (n > 0).then(|| sum / n as f64)
}

fn label(sweep: &SweepPage, row: &SweepRow) -> String {
    let all: Vec<_> = sweep
        .axes
        .iter()
        .zip(&row.values)
        .map(|((axis, _), value)| format!("{}={}", clean(axis), clean(value)))
        .collect();
    all.join(", ")
}

fn findings(sweep: &SweepPage) -> Vec<Finding> {
    let mut all = Vec::new();
    if let Some((column, less)) = sweep.columns.first() {
        let better = |a: &f64, b: &f64| if *less { b < a } else { b > a };
        let best = sweep
            .rows
            .iter()
            .filter_map(|r| Some((first(r)?, r)))
            .reduce(|a, b| if better(&a.0, &b.0) { b } else { a });
        if let Some((value, row)) = best {
            all.push(Finding {
                kind: "good",
                text: format!(
                    "The best {column} is {} in cell {} ({}).",
                    number(value),
                    row.cell,
                    label(sweep, row)
                ),
            });
        }
        let mut strongest: Option<(f64, &str)> = None;
        for (at, (axis, values)) in sweep.axes.iter().enumerate() {
            let means: Vec<f64> = values
                .iter()
                .filter_map(|v| mean(with_value(sweep, at, v).filter_map(first)))
                .collect();
            let most = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let least = means.iter().copied().fold(f64::INFINITY, f64::min);
            if means.len() > 1 && strongest.is_none_or(|(span, _)| most - least > span) {
                strongest = Some((most - least, axis));
            }
        }
        if let Some((span, axis)) = strongest.filter(|(span, _)| *span > 0.0) {
            all.push(Finding {
                kind: "plain",
                text: format!(
                    "{} matters most: its values move the mean {column} by {}.",
                    clean(axis),
                    number(span)
                ),
            });
        }
    }
    if !sweep.failed.is_empty() {
        let text = format!("{} of {} cells failed.", sweep.failed.len(), sweep.cells);
        all.push(Finding { kind: "wrong", text });
    }
    if sweep.missing > 0 {
        let text = format!("{} of {} cells have not been run.", sweep.missing, sweep.cells);
        all.push(Finding { kind: "note", text });
    }
    all
}

fn with_value<'a>(
    sweep: &'a SweepPage,
    axis: usize,
    value: &'a str,
) -> impl Iterator<Item = &'a SweepRow> {
    sweep.rows.iter().filter(move |r| r.values.get(axis).is_some_and(|v| v == value))
}

/// Axes whose values are all numbers, and several.
fn numeric(sweep: &SweepPage) -> Vec<usize> {
    let is =
        |values: &[String]| values.len() > 1 && values.iter().all(|v| v.parse::<f64>().is_ok());
    (0..sweep.axes.len()).filter(|&a| is(&sweep.axes[a].1)).collect()
}

/// The columns against each axis of numbers, a line for each value of the first other axis.
fn lines(sweep: &SweepPage) -> Option<Section> {
    let named = (0..sweep.axes.len())
        .find(|a| !numeric(sweep).contains(a) && (2..=14).contains(&sweep.axes[*a].1.len()));
    let mut figures = Vec::new();
    for axis in numeric(sweep).into_iter().filter(|&a| sweep.axes[a].0 != "seed") {
        for (column, (name, _)) in sweep.columns.iter().enumerate().take(2) {
            let all = vec![String::new()];
            let series = named.map_or(&all, |n| &sweep.axes[n].1);
            let palette = Palette::of_names(series.iter().map(String::as_str));
            let curves: Vec<Curve> = series
                .iter()
                .map(|of| {
                    let mut points: Vec<(f64, f64)> = sweep.axes[axis]
                        .1
                        .iter()
                        .filter_map(|value| {
                            let rows = with_value(sweep, axis, value)
                                .filter(|r| named.is_none_or(|n| &r.values[n] == of));
                            let numbers =
                                rows.filter_map(|r| r.numbers[column].filter(|v| v.is_finite()));
                            Some((value.parse().ok()?, mean(numbers)?))
                        })
                        .collect();
                    points.sort_by(|a, b| a.0.total_cmp(&b.0));
                    let colour = palette.of(of);
                    Curve { colour, points, band: Vec::new(), joined: true, dots: true }
                })
                .collect();
            let values = || curves.iter().flat_map(|c| &c.points);
            let axes = Axes {
                label: format!("{name} against {}", clean(&sweep.axes[axis].0)),
                x: range_around(values().map(|p| p.0)),
                y: range_around(values().map(|p| p.1)),
                x_title: clean(&sweep.axes[axis].0),
                x_number: number,
                y_number: number,
                target: None,
                marks: Vec::new(),
            };
            let entry = |of: &String| Entry { chip: chip(palette.of(of)), name: clean(of) };
            figures.push(Picture {
                title: format!("{name} by {}", clean(&sweep.axes[axis].0)),
                note: "means over all other axes and groups".to_owned(),
                legend: if named.is_some() {
                    series.iter().map(entry).collect()
                } else {
                    Vec::new()
                },
                svg: chart(&curves, &axes),
            });
        }
    }
    (!figures.is_empty()).then(|| Section {
        title: "Along the axes".to_owned(),
        figures,
        ..Section::default()
    })
}

/// The first column over the two longest axes, shaded.
fn matrix(sweep: &SweepPage) -> Option<Section> {
    let (column, _) = sweep.columns.first()?;
    let mut order: Vec<usize> = (0..sweep.axes.len()).collect();
    order.retain(|&a| (2..=40).contains(&sweep.axes[a].1.len()));
    order.sort_by_key(|&a| std::cmp::Reverse(sweep.axes[a].1.len()));
    let [down, across, ..] = order[..] else { return None };
    let value = |d: &str, a: &str| {
        mean(with_value(sweep, down, d).filter(|r| r.values[across] == a).filter_map(first))
    };
    let (downs, acrosses) = (&sweep.axes[down], &sweep.axes[across]);
    let cells = || downs.1.iter().flat_map(|d| acrosses.1.iter().filter_map(move |a| value(d, a)));
    let (low, high) =
        (cells().fold(f64::INFINITY, f64::min), cells().fold(f64::NEG_INFINITY, f64::max));
    let mut names = vec![clean(&downs.0)];
    names.extend(acrosses.1.iter().map(|a| format!(">{}={}", clean(&acrosses.0), clean(a))));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let rows = downs.1.iter().map(|d| {
        let plain = Cell { text: clean(d), shade: String::new() };
        let shaded = acrosses.1.iter().map(|a| {
            let value = value(d, a);
            let part =
                value.map_or(0.0, |v| if high > low { (v - low) / (high - low) } else { 0.0 });
            Cell { text: shown(value), shade: format!("{:.2}", 0.5 * part) }
        });
        Row { cells: std::iter::once(plain).chain(shaded).collect(), best: false }
    });
    Some(Section {
        title: format!("{column} by {} and {}", clean(&downs.0), clean(&acrosses.0)),
        note: "Means over all other axes and groups; the darker, the more.".to_owned(),
        tables: vec![Sheet { columns: columns(&names), rows: rows.collect(), ..Sheet::default() }],
        ..Section::default()
    })
}

fn effects(sweep: &SweepPage) -> Section {
    let mut names = vec!["axis".to_owned(), "value".to_owned(), ">rows".to_owned()];
    for (column, _) in &sweep.columns {
        names.extend([format!(">mean {column}"), ">least".to_owned(), ">most".to_owned()]);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut rows = Vec::new();
    for (at, (axis, values)) in sweep.axes.iter().enumerate() {
        for value in values {
            let of: Vec<_> = with_value(sweep, at, value).collect();
            let mut cells = vec![clean(axis), clean(value), of.len().to_string()];
            for column in 0..sweep.columns.len() {
                let numbers =
                    || of.iter().filter_map(|r| r.numbers[column]).filter(|v| v.is_finite());
                cells.extend([
                    shown(mean(numbers())),
                    shown(numbers().reduce(f64::min)),
                    shown(numbers().reduce(f64::max)),
                ]);
            }
            rows.push(row(cells, false));
        }
    }
    Section {
        title: "What each value of each axis does".to_owned(),
        note: "Over all cells with that value.".to_owned(),
        tables: vec![Sheet { columns: columns(&names), rows, ..Sheet::default() }],
        ..Section::default()
    }
}

fn cells(sweep: &SweepPage) -> Section {
    let mut names = vec![">cell".to_owned()];
    names.extend(sweep.axes.iter().map(|(axis, _)| clean(axis)));
    names.push("group".to_owned());
    names.extend(sweep.columns.iter().map(|(c, _)| format!(">{c}")));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let one = |r: &SweepRow| {
        let mut cells = vec![r.cell.to_string()];
        cells.extend(r.values.iter().map(|v| clean(v)));
        cells.push(clean(&r.group));
        cells.extend(r.numbers.iter().map(|n| shown(*n)));
        row(cells, false)
    };
    let note = match sweep.rows.len().saturating_sub(ROWS_MAX) {
        0 => "All columns are in sweep.parquet.".to_owned(),
        n => format!("{} more rows, and all columns, are in sweep.parquet.", count(n as u64)),
    };
    Section {
        title: "Cells".to_owned(),
        tables: vec![Sheet {
            columns: columns(&names),
            rows: sweep.rows.iter().take(ROWS_MAX).map(one).collect(),
            note,
            ..Sheet::default()
        }],
        ..Section::default()
    }
}

fn failures(sweep: &SweepPage) -> Section {
    let one = |(cell, values, attempts, error): &(usize, String, u32, String)| {
        row([cell.to_string(), clean(values), attempts.to_string(), clean(error)], false)
    };
    Section {
        title: "Cells that failed".to_owned(),
        note: "Run the sweep again to try them again.".to_owned(),
        tables: vec![Sheet {
            columns: columns(&[">cell", "values", ">attempts", "error"]),
            rows: sweep.failed.iter().take(ROWS_MAX).map(one).collect(),
            ..Sheet::default()
        }],
        ..Section::default()
    }
}

//! Merges finished cells: the tables of all of them as one, and a table with a row for each cell
//! and group that has the values of the axes beside the results.
//!
//! Cells are read one after the other in the order of the grid, so that memory does not grow with
//! their number and the bytes do not depend on the order of the runs.

use std::path::{Path, PathBuf};

use anyhow::Context;
use terrace_results::{
    HardwareRow, KernelCauseRow, KernelThreadRow, PeriodRow, RunRow, Table, TablePagesRow, Value,
    WideColumn, WideWriter, path, read,
};

use super::grid::{Cell, Grid};
use super::work::{Failed, failed, folder, is_done};
use crate::rows::{Rows, Tables};
use crate::run::write_whole;

/// Cells that are read before they are written.
const AHEAD: usize = 4;

/// The result of merging.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Merged {
    /// Finished cells.
    pub done: usize,
    /// Cells that failed.
    pub failed: Vec<Failed>,
    /// Cells that have not been run.
    pub missing: usize,
    /// Finished cells: number, values in the order of the axes, and rows.
    pub cells: Vec<MergedCell>,
}

/// The data of a cell for a report.
#[derive(Debug, Clone, PartialEq)]
pub struct MergedCell {
    /// Its number.
    pub cell: usize,
    /// Its values in the order of the axes.
    pub values: Vec<String>,
    /// Its results, a row for each group.
    pub rows: Vec<RunRow>,
}

/// A name that can be a column.
pub(super) fn column_name(axis: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("axis_{}", axis.chars().map(fit).collect::<String>())
}

/// Name of a cell's run in the merged tables.
fn name(index: usize) -> String {
    format!("cell-{index:06}")
}

/// State of a cell.
enum Found {
    Done(Box<Part>),
    Failed(Failed),
    Missing,
}

/// A finished cell's rows, under the run's name in the merged tables.
struct Part {
    index: usize,
    cell: Cell,
    folder: PathBuf,
    runs: Vec<RunRow>,
    periods: Vec<PeriodRow>,
    hardware: Vec<HardwareRow>,
    table_pages: Vec<TablePagesRow>,
    kernel_threads: Vec<KernelThreadRow>,
    kernel_causes: Vec<KernelCauseRow>,
}

impl Part {
    fn read(grid: &Grid, out: &Path, index: usize) -> anyhow::Result<Found> {
        let cell = grid.cell(index)?;
        if !is_done(out, &cell.hash) {
            return Ok(match failed(out, &cell.hash) {
                Some(why) => Found::Failed(Failed { cell: index, ..why }),
                None => Found::Missing,
            });
        }
        let folder = folder(out, &cell.hash);
        let name = name(index);
        let (mut runs, mut periods) = (read::<RunRow>(&folder)?, read::<PeriodRow>(&folder)?);
        let mut hardware = read_if_there::<HardwareRow>(&folder)?;
        let mut table_pages = read_if_there::<TablePagesRow>(&folder)?;
        let mut kernel_threads = read_if_there::<KernelThreadRow>(&folder)?;
        let mut kernel_causes = read_if_there::<KernelCauseRow>(&folder)?;
        runs.iter_mut().for_each(|row| row.run.clone_from(&name));
        periods.iter_mut().for_each(|row| row.run.clone_from(&name));
        hardware.iter_mut().for_each(|row| row.run.clone_from(&name));
        table_pages.iter_mut().for_each(|row| row.run.clone_from(&name));
        kernel_threads.iter_mut().for_each(|row| row.run.clone_from(&name));
        kernel_causes.iter_mut().for_each(|row| row.run.clone_from(&name));
        Ok(Found::Done(Box::new(Part {
            index,
            cell,
            folder,
            runs,
            periods,
            hardware,
            table_pages,
            kernel_threads,
            kernel_causes,
        })))
    }
}

/// Rows of a table that only some machines fill.
fn read_if_there<T: Table>(folder: &Path) -> anyhow::Result<Vec<T>> {
    if path::<T>(folder).is_file() { Ok(read(folder)?) } else { Ok(Vec::new()) }
}

/// Merges finished cells into the sweep's folder.
pub fn merge(grid: &Grid, out: &Path) -> anyhow::Result<Merged> {
    let mut merged = Merged::default();
    let mut tables = Tables::create(out)?;
    let column = |name: &str, kind, nullable| WideColumn { name: name.to_owned(), kind, nullable };
    let mut columns = vec![
        column("cell", terrace_results::Kind::Integer, false),
        column("hash", terrace_results::Kind::Text, false),
    ];
    let text = terrace_results::Kind::Text;
    columns.extend(grid.axes.iter().map(|a| column(&column_name(&a.name), text, false)));
    columns.extend(RunRow::columns().iter().map(|c| column(c.name, c.kind, c.nullable)));
    let mut wide = WideWriter::create(out, "sweep", columns)?;
    // One thread reads what the other writes.
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let (found, cells) = std::sync::mpsc::sync_channel(AHEAD);
        scope.spawn(move || {
            for index in 0..grid.len() {
                let part = Part::read(grid, out, index);
                let last = part.is_err();
                // The receiver is gone: an error has ended the merging.
                if found.send(part).is_err() || last {
                    break;
                }
            }
        });
        for part in cells {
            let part = match part? {
                Found::Done(part) => *part,
                Found::Failed(failed) => {
                    merged.failed.push(failed);
                    continue;
                }
                Found::Missing => {
                    merged.missing += 1;
                    continue;
                }
            };
            let Part { index, cell, folder: from, runs, periods, .. } = part;
            merged.done += 1;
            for row in &runs {
                tables.run(row.clone())?;
                let mut values =
                    vec![Some(Value::Integer(index as i64)), Some(Value::Text(cell.hash.clone()))];
                values.extend(cell.values.iter().map(|(_, v)| Some(Value::Text(v.clone()))));
                values.extend(row.values());
                wide.push(values)?;
            }
            periods.into_iter().try_for_each(|row| tables.period(row))?;
            // By far the most rows.
            tables.heat_of(&from, &name(index))?;
            part.hardware.into_iter().try_for_each(|row| tables.hardware(row))?;
            part.kernel_threads.into_iter().try_for_each(|row| tables.kernel_thread(row))?;
            part.kernel_causes.into_iter().try_for_each(|row| tables.kernel_cause(row))?;
            part.table_pages.into_iter().try_for_each(|row| tables.table_pages(row))?;
            merged.cells.push(MergedCell {
                cell: index,
                values: cell.values.iter().map(|(_, v)| v.clone()).collect(),
                rows: runs,
            });
        }
        Ok(())
    })?;
    tables.finish()?;
    wide.finish()?;
    let mut lines = String::new();
    for failure in &merged.failed {
        lines.push_str(&serde_json::to_string(failure).context("a failure as JSON")?);
        lines.push('\n');
    }
    write_whole(&out.join("failures.jsonl"), lines.as_bytes())?;
    Ok(merged)
}

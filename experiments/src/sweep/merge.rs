//! Puts finished cells together: the tables of all of them as one, and a table with a row for each
//! cell and group that has the values of the axes beside what came out.
//!
//! Cells are read one after the other in the order of the grid, so that memory does not grow with
//! them and the bytes do not depend on how they came about.

use std::path::Path;

use anyhow::Context;
use terrace_results::{
    HardwareRow, PeriodRow, RunRow, Table, TablePagesRow, Value, WideColumn, WideWriter, path, read,
};

use super::grid::Grid;
use super::work::{Failed, failed, folder, is_done};
use crate::rows::{Rows, Tables};
use crate::run::write_whole;

/// What was merged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Merged {
    /// Cells that are there.
    pub done: usize,
    /// Cells that failed.
    pub failed: Vec<Failed>,
    /// Cells that have not been run.
    pub missing: usize,
    /// Of those that are there: number, values in the order of the axes, and rows.
    pub cells: Vec<MergedCell>,
}

/// What a report needs of a cell.
#[derive(Debug, Clone, PartialEq)]
pub struct MergedCell {
    /// Its number.
    pub cell: usize,
    /// Its values in the order of the axes.
    pub values: Vec<String>,
    /// What came out, a row for each group.
    pub rows: Vec<RunRow>,
}

/// A name that can be a column.
fn column_name(axis: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("axis_{}", axis.chars().map(fit).collect::<String>())
}

/// Merges what is there into the sweep's folder.
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
    for index in 0..grid.len() {
        let cell = grid.cell(index)?;
        if !is_done(out, &cell.hash) {
            match failed(out, &cell.hash) {
                Some(why) => merged.failed.push(Failed { cell: index, ..why }),
                None => merged.missing += 1,
            }
            continue;
        }
        merged.done += 1;
        let from = folder(out, &cell.hash);
        let name = format!("cell-{index:06}");
        let mut runs: Vec<RunRow> = read(&from)?;
        for row in &mut runs {
            row.run.clone_from(&name);
            tables.run(row.clone())?;
            let mut values =
                vec![Some(Value::Integer(index as i64)), Some(Value::Text(cell.hash.clone()))];
            values.extend(cell.values.iter().map(|(_, v)| Some(Value::Text(v.clone()))));
            values.extend(row.values());
            wide.push(values)?;
        }
        for row in read::<PeriodRow>(&from)? {
            tables.period(PeriodRow { run: name.clone(), ..row })?;
        }
        // By far the most rows.
        tables.heat_of(&from, &name)?;
        if path::<HardwareRow>(&from).is_file() {
            for row in read::<HardwareRow>(&from)? {
                tables.hardware(HardwareRow { run: name.clone(), ..row })?;
            }
        }
        if path::<TablePagesRow>(&from).is_file() {
            for row in read::<TablePagesRow>(&from)? {
                tables.table_pages(TablePagesRow { run: name.clone(), ..row })?;
            }
        }
        merged.cells.push(MergedCell {
            cell: index,
            values: cell.values.iter().map(|(_, v)| v.clone()).collect(),
            rows: runs,
        });
    }
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

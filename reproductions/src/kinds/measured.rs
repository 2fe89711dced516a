//! Kind "measured": numbers that a command has measured elsewhere, from a table that comes with
//! Terrace. Nothing is run, and no number is fitted to a paper's.
//!
//! A table is what `kernel/time --lines FILE` writes: a line for each number, with its part, row,
//! column and GB/s, apart by tabulators. A cell's settings are [`Settings`]; its measure is the first
//! of the figure.

use serde::Deserialize;
use terrace_experiments::run::Events;
use toml::Value;

use super::{Job, Kind};
use crate::data::Data;

pub(super) const KIND: Kind = Kind {
    name: "measured",
    summary: "what a command has measured elsewhere, from a table that comes with Terrace",
    has_seed: false,
    make,
};

/// The tables: their name, and what the command wrote.
const TABLES: &[(&str, &str)] = &[("kernel-time", include_str!("../../measured/kernel-time.tsv"))];

/// Which number of a table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The table.
    table: String,
    /// The part of the command that measured it.
    part: String,
    /// The row; the highest of all rows without it.
    row: Option<u64>,
    /// The column.
    column: String,
}

impl Settings {
    /// The number.
    fn value(&self) -> anyhow::Result<f64> {
        let table = TABLES.iter().find(|(name, _)| *name == self.table).ok_or_else(|| {
            let names: Vec<_> = TABLES.iter().map(|(name, _)| *name).collect();
            anyhow::anyhow!("table = '{}': expected one of {}", self.table, names.join(", "))
        })?;
        let mut highest: Option<f64> = None;
        for line in table.1.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split('\t').collect();
            let parsed = match words.as_slice() {
                [part, row, column, value] => row
                    .parse::<u64>()
                    .ok()
                    .zip(value.parse::<f64>().ok())
                    .map(|(row, value)| (*part, row, *column, value)),
                _ => None,
            };
            let Some((part, row, column, value)) = parsed else {
                anyhow::bail!(
                    "table '{}': got '{line}', expected a part, row, column and number apart by tabulators",
                    self.table
                );
            };
            if part == self.part && column == self.column && self.row.is_none_or(|r| r == row) {
                highest = Some(highest.map_or(value, |before| before.max(value)));
            }
        }
        highest.ok_or_else(|| {
            anyhow::anyhow!(
                "table '{}': no number of part '{}', row {}, column '{}'",
                self.table,
                self.part,
                self.row.map_or("any".to_owned(), |row| row.to_string()),
                self.column
            )
        })
    }
}

fn make(job: &Job<'_>, _: &mut dyn Events) -> anyhow::Result<Data> {
    let mut data = job.empty();
    let measure = job.figure.measures[0].clone();
    for cell in job.cells() {
        let settings = Settings::deserialize(Value::Table(cell.settings))
            .map_err(|e| anyhow::anyhow!("row '{}', column '{}': {e}", cell.row, cell.column))?;
        data.put(&cell.row, &cell.column, &measure, settings.value()?);
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(row: Option<u64>, column: &str) -> Settings {
        let (table, part) = ("kernel-time".to_owned(), "threads".to_owned());
        Settings { table, part, row, column: column.to_owned() }
    }

    #[test]
    fn a_number_is_found_by_part_row_and_column_and_the_highest_without_a_row() {
        let of = |row| settings(row, "huge page").value().unwrap();
        let by_row: Vec<f64> = [1, 2, 4].map(|row| of(Some(row))).into();
        let highest = by_row.iter().copied().fold(0.0, f64::max);
        assert!(highest > 0.0 && of(None) >= highest);
    }

    #[test]
    fn what_is_not_in_the_table_is_named() {
        let error = |settings: Settings| settings.value().unwrap_err().to_string();
        assert!(error(settings(Some(3), "huge page")).contains("row 3"));
        assert!(error(settings(None, "tiny page")).contains("'tiny page'"));
        let other = Settings { table: "x".to_owned(), ..settings(None, "huge page") };
        assert!(error(other).contains("expected one of kernel-time"));
    }
}

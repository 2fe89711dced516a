//! Kind "timeline": every column is one run, and the rows are parts of it: each row's name is the
//! percentage of the run's periods at which it ends, from where the row before it ends.
//!
//! Measures are means over the row's periods of the columns of the tables `periods` and `hardware`,
//! and the measures that [`super::ratios`] derives from their sums.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde_json::Value as Json;
use terrace_experiments::run::{Event, Events};
use terrace_results::{HardwareRow, PeriodRow, read};

use super::ratios::made;
use super::runs::{prepare, run_cell};
use super::{Cell, Job, Kind};
use crate::data::Data;

pub(super) const KIND: Kind = Kind {
    name: "timeline",
    summary: "columns are runs on the simulated machine, rows are percentages of their periods",
    has_seed: true,
    make,
};

fn make(job: &Job<'_>, events: &mut dyn Events) -> anyhow::Result<Data> {
    let mut data = job.empty();
    let ends = data.rows.iter().map(|name| {
        name.parse::<f64>().with_context(|| format!("row '{name}': expected a percentage"))
    });
    let ends = ends.collect::<anyhow::Result<Vec<f64>>>()?;
    let first = data.rows.first().cloned().unwrap_or_default();
    // Rows change nothing: one run of a column serves all of them.
    let cells: Vec<Cell> = job.cells().into_iter().filter(|cell| cell.row == first).collect();
    let experiments = prepare(job, &cells, events)?;
    events.event(Event::Stage(&format!("{}: {} runs", job.figure.name, cells.len())));
    for (cell, experiment) in cells.iter().zip(experiments) {
        let describe = || format!("column '{}'", cell.column);
        let out = run_cell(job, cell, experiment).with_context(describe)?;
        let periods = periods(&out).with_context(describe)?;
        let mut begin = 0;
        for (row, end) in data.rows.clone().iter().zip(&ends) {
            let end = (periods.len() as f64 * end / 100.0).round() as usize;
            let end = end.clamp(begin, periods.len());
            for measure in &job.figure.measures {
                if let Some(value) = mean(&periods[begin..end], measure) {
                    data.put(row, &cell.column, measure, value);
                }
            }
            begin = end;
        }
    }
    Ok(data)
}

type Columns = BTreeMap<String, f64>;

/// The numbers of each period of the run's first group.
fn periods(out: &Path) -> anyhow::Result<Vec<Columns>> {
    let rows: Vec<PeriodRow> = read(out)?;
    let Some(group) = rows.first().map(|row| row.group.clone()) else { return Ok(Vec::new()) };
    let mut periods = Vec::new();
    for row in rows.iter().filter(|row| row.group == group) {
        periods.push(numbers(serde_json::to_value(row)?));
    }
    if terrace_results::path::<HardwareRow>(out).exists() {
        let rows: Vec<HardwareRow> = read(out)?;
        let of_group = rows.iter().filter(|row| row.group == group);
        for (columns, row) in periods.iter_mut().zip(of_group) {
            columns.extend(numbers(serde_json::to_value(row)?));
        }
    }
    Ok(periods)
}

fn numbers(row: Json) -> Columns {
    let Json::Object(fields) = row else { return Columns::new() };
    fields.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect()
}

fn mean(periods: &[Columns], measure: &str) -> Option<f64> {
    let sum = |name: &str| -> Option<(f64, f64)> {
        let values: Vec<f64> = periods.iter().filter_map(|p| p.get(name).copied()).collect();
        (!values.is_empty()).then(|| (values.iter().sum(), values.len() as f64))
    };
    let mean = sum(measure).map(|(sum, count)| sum / count);
    mean.or_else(|| made(measure, &|name| sum(name).map(|(sum, _)| sum)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rows_value_is_the_mean_of_its_periods_and_a_walks_time_is_of_all_walks() {
        let period = |walks: f64, walk_ms: f64| {
            Columns::from([("walks".to_owned(), walks), ("walk_ms".to_owned(), walk_ms)])
        };
        let periods = [period(1.0, 1.0), period(3.0, 1.0)];
        assert_eq!(mean(&periods, "walks"), Some(2.0));
        assert_eq!(mean(&periods, "walk_ns"), Some(5e5));
        assert_eq!(mean(&periods, "hit_ratio"), None);
        assert_eq!(mean(&periods[..0], "walks"), None);
    }
}

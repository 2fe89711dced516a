//! `terrace sweep`: an experiment over a grid of its keys.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use terrace_core::{InputError, names};
use terrace_experiments::sweep::{Cell, Grid, Merged, Outcome, Work, is_done, merge, work};
use terrace_results::{Kind, RunRow, Table, Value};

use crate::progress::BETWEEN_LINES;
use crate::show::{self, Format, say, tell};

/// Text below the options in `--help` and in the manual page.
const MORE: &str = r#"Grid files:
  name = "ratios"
  base = "../amp/lru-favor.toml"  # an experiment, or an [experiment] section

  [[axes]]                        # one or more; the last changes fastest
  key = "policy"                  # any key of the experiment, with dots:
  values = ["lru", "lfu", "amp"]  # machine.slow_latency_ns, seed,
                                  # policies.amp.window_periods, ...
  [[axes]]                        # keys of groups are set for every group;
  key = "fast_ratio"              # groups.NAME.fast_ratio sets one
  values = [0.3, 0.5, 0.7]

  [[axes]]                        # or several keys at once
  name = "size"
  variants = [
    { name = "small", set = { "workload.footprint_mib" = 64 } },
    { name = "large", set = { "workload.footprint_mib" = 512, periods = 99 } },
  ]

  [[exclude]]                     # combinations that are left out
  policy = "amp"
  fast_ratio = 0.3

A sweep that was interrupted goes on where it stopped: run it again. Cells
are known by what they compute, so a grid that grew runs its new cells only.
On a cluster, over a shared folder: 'terrace sweep GRID.toml --list' prints
the cells, '--cell K' or '--shard I/N' runs some of them on any machine, and
'terrace sweep GRID.toml --out DIR' puts them together at the end."#;

/// Run an experiment over a grid of its keys: policies, ratios, latencies, seeds, workloads.
///
/// Every combination is a cell. Finished cells are kept in DIR/cells and never run twice; the merged
/// tables in DIR are the same bytes however, and in whatever order, cells were run.
#[derive(Args)]
#[command(after_long_help = MORE, arg_required_else_help = true)]
pub struct Arguments {
    /// The grid file.
    #[arg(value_name = "GRID.toml")]
    grid: PathBuf,
    /// Folder for the results: merged Parquet tables, report.html, and the cells' own.
    #[arg(long, value_name = "DIR", required_unless_present = "list")]
    out: Option<PathBuf>,
    /// Cells at the same time; as many as there are processors by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// How often a cell that failed is tried again.
    #[arg(long, value_name = "N", default_value_t = 1)]
    retries: u32,
    /// Run these cells only, and do not merge: numbers, ranges 0..10, beginnings of hashes.
    #[arg(long, value_name = "K", value_delimiter = ',')]
    cell: Vec<String>,
    /// Run the I-th of N equal parts of the cells only (from 1), and do not merge.
    #[arg(long, value_name = "I/N", conflicts_with = "cell")]
    shard: Option<String>,
    /// Print the cells as JSON lines and run none.
    #[arg(long)]
    list: bool,
    /// Merge the finished cells and run none.
    #[arg(long, conflicts_with_all = ["cell", "shard", "list"])]
    merge_only: bool,
    /// Columns of the run table to show and report.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    columns: Vec<String>,
    /// Format of the result.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Runs it.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let columns = self.columns()?;
        let grid = Grid::read(&self.grid)?;
        let cells = self.cells(&grid)?;
        let Some(out) = self.out.as_deref().filter(|_| !self.list) else {
            for &index in &cells {
                let cell = grid.cell(index)?;
                let done = self.out.as_deref().is_some_and(|out| is_done(out, &cell.hash));
                say!("{}", serde_json::to_string(&cell.listed(done))?)?;
            }
            return Ok(ExitCode::SUCCESS);
        };
        if !self.merge_only {
            let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
            let screen = Screen::new(cells.len());
            let failed = work(
                &Work {
                    grid: &grid,
                    cells: &cells,
                    out,
                    jobs: self.jobs.map_or(processors, usize::from),
                    retries: self.retries,
                },
                &|cell, outcome| {
                    screen.reported(cell, outcome);
                    Ok(())
                },
            )?;
            screen.end();
            if !self.cell.is_empty() || self.shard.is_some() {
                return self.end_of_part(&grid, &cells, failed.len());
            }
        }
        if self.merge_only && !out.join("cells").is_dir() {
            return Err(InputError::new(format_args!(
                "{} has no finished cells; expected the folder of a sweep: run it without --merge-only \
                 first",
                out.display()
            ))
            .into());
        }
        let merged = merge(&grid, out)?;
        self.show(&grid, &merged, &columns)?;
        if let Some(first) = merged.failed.first() {
            tell!(
                "terrace: {} of {} cells failed, see {}; the first: {}",
                merged.failed.len(),
                grid.len(),
                out.join("failures.jsonl").display(),
                first.error
            );
        }
        Ok(if merged.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The result of a run of some of the cells.
    fn end_of_part(&self, grid: &Grid, cells: &[usize], failed: usize) -> anyhow::Result<ExitCode> {
        let done = cells.len() - failed;
        match self.format {
            Format::Json => say!(
                "{}",
                json!({ "cells": cells.len(), "done": done, "failed": failed, "of": grid.len() })
            )?,
            Format::Text => say!(
                "{done} of {} cells are there ({} in all); 'terrace sweep' without --cell and \
                 --shard puts them together",
                cells.len(),
                grid.len()
            )?,
        }
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The columns to show; refuses unknown ones.
    fn columns(&self) -> Result<Vec<&'static str>, InputError> {
        let numeric = |c: &terrace_results::Column| matches!(c.kind, Kind::Real | Kind::Integer);
        let known: Vec<_> = RunRow::columns().into_iter().filter(numeric).collect();
        let column = |name: &String| {
            let name = name.trim();
            known.iter().find(|c| c.name == name).map(|c| c.name).ok_or_else(|| {
                InputError::new(format_args!(
                    "no column '{name}' of numbers in the run table; expected {}",
                    names::expected(name, known.iter().map(|c| c.name))
                ))
            })
        };
        self.columns.iter().map(column).collect()
    }

    fn cells(&self, grid: &Grid) -> anyhow::Result<Vec<usize>> {
        if let Some(shard) = &self.shard {
            let numbers = shard.split_once('/').and_then(|(i, n)| {
                Some((i.trim().parse::<usize>().ok()?, n.trim().parse::<usize>().ok()?))
            });
            let Some((i, n)) = numbers.filter(|(i, n)| (1..=*n).contains(i)) else {
                let text = format!("--shard {shard}: expected a part of a whole, such as 2/8");
                return Err(InputError::new(text).into());
            };
            return Ok((0..grid.len()).filter(|cell| cell % n == i - 1).collect());
        }
        if self.cell.is_empty() {
            return Ok((0..grid.len()).collect());
        }
        let mut cells = Vec::new();
        for what in &self.cell {
            cells.extend(grid.select(what.trim())?);
        }
        cells.sort_unstable();
        cells.dedup();
        Ok(cells)
    }

    fn show(&self, grid: &Grid, merged: &Merged, columns: &[&'static str]) -> anyhow::Result<()> {
        let out = self.out.clone().unwrap_or_default();
        let columns = match columns {
            [] => default_columns(merged),
            some => some.to_vec(),
        };
        let sheet = crate::pages::sheet(grid, merged, &columns);
        let report = crate::pages::write_sweep(&out, &grid.name, &sheet)?;
        if self.format == Format::Json {
            let cell = |c: &terrace_experiments::sweep::merge::MergedCell| {
                let values: serde_json::Map<_, _> = grid
                    .axes
                    .iter()
                    .zip(&c.values)
                    .map(|(a, v)| (a.name.clone(), json!(v)))
                    .collect();
                let rows: Vec<_> = c
                    .rows
                    .iter()
                    .map(|row| {
                        let mut fields = serde_json::Map::new();
                        fields.insert("group".to_owned(), json!(row.group));
                        for column in &columns {
                            fields.insert((*column).to_owned(), json!(number(row, column)));
                        }
                        serde_json::Value::Object(fields)
                    })
                    .collect();
                json!({ "cell": c.cell, "values": values, "groups": rows })
            };
            let cells: Vec<_> = merged.cells.iter().map(cell).collect();
            return say!(
                "{}",
                serde_json::to_string_pretty(&json!({
                    "name": grid.name,
                    "cells": cells,
                    "failed": merged.failed,
                    "missing": merged.missing,
                    "report": report,
                }))?
            );
        }
        let mut header: Vec<&str> = vec!["cell"];
        header.extend(grid.axes.iter().map(|a| a.name.as_str()));
        header.push("group");
        header.extend(&columns);
        let mut table = show::table(&header);
        const SHOWN: usize = 60;
        for (cell, row) in
            merged.cells.iter().flat_map(|c| c.rows.iter().map(move |r| (c, r))).take(SHOWN)
        {
            let mut cells = vec![cell.cell.to_string()];
            cells.extend(cell.values.iter().cloned());
            cells.push(row.group.clone());
            cells.extend(columns.iter().map(|c| {
                number(row, c).map_or("-".to_owned(), |v| {
                    if v.fract() == 0.0 && v.abs() < 1e15 {
                        format!("{v}")
                    } else {
                        format!("{v:.4}")
                    }
                })
            }));
            table.add_row(cells);
        }
        say!("{table}")?;
        let rows: usize = merged.cells.iter().map(|c| c.rows.len()).sum();
        if rows > SHOWN {
            say!("... and {} more rows in {}", rows - SHOWN, out.join("sweep.parquet").display())?;
        }
        if merged.missing > 0 {
            say!("{} cells have not been run", merged.missing)?;
        }
        say!("report: {}", report.display())
    }
}

/// Slowdown where it is known, else the hit ratio; and the number of moves.
fn default_columns(merged: &Merged) -> Vec<&'static str> {
    let mut rows = merged.cells.iter().flat_map(|c| &c.rows);
    match rows.any(|r| r.slowdown.is_some()) {
        true => vec!["slowdown", "hit_ratio", "promoted_pages"],
        false => vec!["hit_ratio", "promoted_pages"],
    }
}

/// A number of a row by its column.
pub fn number(row: &RunRow, column: &str) -> Option<f64> {
    let at = RunRow::columns().iter().position(|c| c.name == column)?;
    match row.values().swap_remove(at)? {
        Value::Integer(v) => Some(v as f64),
        Value::Real(v) => Some(v),
        Value::Text(_) | Value::Truth(_) => None,
    }
}

/// Progress: a bar on a terminal, a line now and then elsewhere; failures at once.
struct Screen {
    bar: Option<ProgressBar>,
    state: Mutex<Progress>,
    of: usize,
}

struct Progress {
    done: usize,
    skipped: usize,
    last: Instant,
}

impl Screen {
    fn new(of: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(
                "[{bar:30}] {pos}/{len} cells, {elapsed}, {eta} left  {wide_msg}",
            );
            let bar = ProgressBar::new(of as u64);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        let state = Progress { done: 0, skipped: 0, last: Instant::now() };
        Screen { bar, state: Mutex::new(state), of }
    }

    fn reported(&self, cell: &Cell, outcome: &Outcome) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done += 1;
        state.skipped += usize::from(*outcome == Outcome::Skipped);
        if let Outcome::Failed(failed) = outcome {
            let line = format!(
                "cell {} ({}) failed, {} times tried: {}",
                cell.index,
                cell.label(),
                failed.attempts,
                failed.error
            );
            match &self.bar {
                Some(bar) => bar.println(line),
                None => tell!("{line}"),
            }
        }
        match &self.bar {
            Some(bar) => {
                bar.set_position(state.done as u64);
                bar.set_message(cell.label());
            }
            None if state.last.elapsed() >= BETWEEN_LINES => {
                tell!("  {} of {} cells", state.done, self.of);
                state.last = Instant::now();
            }
            None => {}
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.skipped > 0 {
            tell!("{} of {} cells were there before", state.skipped, self.of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_is_no_wider_than_a_terminal_and_its_grid_is_one() {
        assert!(MORE.lines().all(|l| l.len() < 80));
        let text: Vec<_> = MORE.lines().skip(1).take_while(|l| !l.starts_with("A sweep")).collect();
        let base = "[experiment]\nname = \"e\"\nperiod_ms = 100\nperiods = 5\n\
                    [[experiment.groups]]\nname = \"a\"\nfast_ratio = 0.5\n\
                    workload = { kind = \"lru-favor\", footprint_mib = 64 }\n";
        let text = text.join("\n");
        let (head, rest) = text.split_once("  [[axes]]").unwrap();
        let head: Vec<_> = head.lines().filter(|l| !l.contains("base =")).collect();
        let text = format!("{}\n{base}\n  [[axes]]{rest}", head.join("\n"));
        let grid = Grid::parse(&text, PathBuf::from(".")).unwrap();
        assert_eq!(grid.len(), 3 * 3 * 2 - 2);
    }
}

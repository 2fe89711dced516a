//! How a figure's data is made. A kind is a file and a line of [`KINDS`].

mod homogeneity;
mod main_phase;
mod measured;
mod ratios;
mod runs;
mod steps;
mod timeline;

use std::path::{Path, PathBuf};

use terrace_experiments::run::Events;
use toml::{Table, Value};

use crate::data::Data;
use crate::figure::Figure;
use crate::merge::merge;
use crate::reproduce::Size;
use crate::run_cache::RunCache;

/// A way to make data.
pub struct Kind {
    /// Its name in figures' files.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Whether its cells are experiments, which have a seed.
    pub has_seed: bool,
    /// Makes the data of a figure.
    make: fn(&Job<'_>, &mut dyn Events) -> anyhow::Result<Data>,
}

/// The kinds.
pub const KINDS: &[Kind] =
    &[runs::KIND, steps::KIND, timeline::KIND, homogeneity::KIND, measured::KIND];

/// Finds a kind by its name.
pub fn find(name: &str) -> Result<&'static Kind, String> {
    KINDS.iter().find(|k| k.name == name).ok_or_else(|| {
        let names: Vec<_> = KINDS.iter().map(|k| k.name).collect();
        format!("kind = '{name}': expected one of {}", names.join(", "))
    })
}

/// A figure to be made.
pub struct Job<'a> {
    /// The figure.
    pub figure: &'a Figure,
    /// The size of the run.
    pub size: Size,
    /// A folder for the results of its runs.
    pub folder: &'a Path,
    /// The cache shared by figures.
    pub run_cache: &'a RunCache,
    /// Runs at the same time.
    pub jobs: usize,
    /// Added to the experiment's seed.
    pub seed_offset: u32,
}

/// One row and column of a figure, with their experiment.
pub struct Cell {
    /// The row's name.
    pub row: String,
    /// The column's name.
    pub column: String,
    /// The experiment, or the kind's settings.
    pub settings: Table,
}

impl Job<'_> {
    /// Makes the figure's data.
    pub fn make(&self, events: &mut dyn Events) -> anyhow::Result<Data> {
        let kind = find(&self.figure.kind).map_err(anyhow::Error::msg)?;
        (kind.make)(self, events)
    }

    /// Data without values.
    pub fn empty(&self) -> Data {
        self.size.empty(self.figure)
    }

    /// A folder for profiles, which several figures share.
    pub fn profiles(&self) -> PathBuf {
        self.run_cache.folder().join("profiles")
    }

    /// The figure's cells, row by row: the experiment, overlaid by the size's changes, then the
    /// row's, then the column's.
    pub fn cells(&self) -> Vec<Cell> {
        let empty = self.empty();
        let change = self.size.change(self.figure);
        let mut cells = Vec::new();
        for row in self.figure.rows.iter().filter(|r| empty.rows.contains(&r.name)) {
            for column in self.figure.columns.iter().filter(|c| empty.columns.contains(&c.name)) {
                let mut settings = self.figure.experiment.clone();
                merge(&mut settings, &change.set);
                for part in [row, column] {
                    merge(&mut settings, &part.set);
                    match self.size {
                        Size::Quick => merge(&mut settings, &part.quick),
                        Size::Full => merge(&mut settings, &part.full),
                        Size::Standard => {}
                    }
                }
                if self.seed_offset > 0 {
                    // Without a key it is 1 (docs/experiments.md).
                    let own = settings.get("seed").and_then(Value::as_integer).unwrap_or(1);
                    settings.insert("seed".to_owned(), (own + i64::from(self.seed_offset)).into());
                }
                let (row, column) = (row.name.clone(), column.name.clone());
                cells.push(Cell { row, column, settings });
            }
        }
        cells
    }
}

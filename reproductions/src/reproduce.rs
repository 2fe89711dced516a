//! Runs a figure: makes its data, checks its claims, draws it, and writes all of it into a folder.

use std::path::Path;

use anyhow::Context;
use terrace_experiments::run::Events;
use terrace_report::plots::{Chart, Series, bars, lines, stacks};
use terrace_results::{FigureRow, TableWriter, read};

use crate::claims::{Verdict, check, geomean};
use crate::data::{Data, number};
use crate::figure::{Change, Figure, Part, PictureKind};
use crate::kinds::Job;
use crate::run_cache::RunCache;

/// The size at which a figure is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Size {
    /// Fewer rows and shorter runs: all figures within 40 minutes on two cores.
    Quick,
    /// The size in the figure's file.
    #[default]
    Standard,
    /// For a bigger machine.
    Full,
}

impl Size {
    /// The size's name.
    pub fn name(self) -> &'static str {
        match self {
            Size::Quick => "quick",
            Size::Standard => "standard",
            Size::Full => "full",
        }
    }

    /// The size's changes to a figure.
    pub fn change(self, figure: &Figure) -> Change {
        match self {
            Size::Quick => figure.quick.clone(),
            Size::Standard => Change::default(),
            Size::Full => figure.full.clone(),
        }
    }

    /// Data without values, with the rows and columns of a figure that are run at this size.
    pub fn empty(self, figure: &Figure) -> Data {
        let names = |parts: &[Part], chosen: &Option<Vec<String>>| {
            let wanted = |n: &String| chosen.as_ref().is_none_or(|c| c.contains(n));
            parts.iter().map(|p| p.name.clone()).filter(wanted).collect()
        };
        let change = self.change(figure);
        Data::new(
            names(&figure.rows, &change.rows),
            names(&figure.columns, &change.columns),
            figure.measures.clone(),
        )
    }
}

/// The outcome of a figure.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its data.
    pub data: Data,
    /// Results of its claims.
    pub verdicts: Vec<Verdict>,
    /// Its picture, as SVG.
    pub picture: String,
}

/// Runs a figure and writes `figure.parquet`, `figure.csv`, `figure.svg` and `claims.json` into
/// OUT/NAME, with the results of every run under `runs`, except for runs that earlier figures have
/// made. Profiles are kept in OUT/profiles, where other figures find them.
pub fn reproduce(
    figure: &Figure,
    size: Size,
    run_cache: &RunCache,
    jobs: usize,
    events: &mut dyn Events,
) -> anyhow::Result<Outcome> {
    let folder = run_cache.folder().join(&figure.name);
    std::fs::create_dir_all(&folder).with_context(|| {
        format!("{}: expected a folder for results that can be written to", folder.display())
    })?;
    let job = Job { figure, size, folder: &folder, run_cache, jobs };
    let data = job.make(events).with_context(|| format!("figure '{}'", figure.name))?;
    let verdicts = check(&figure.claims, &data)
        .map_err(|e| anyhow::anyhow!("figure '{}': {e}", figure.name))?;
    let picture = draw(figure, &data);
    write(&folder, figure, &data, &verdicts, &picture)?;
    Ok(Outcome { data, verdicts, picture })
}

/// The outcome of a figure that was run before: nothing is run, claims are checked and the picture
/// is drawn again from `figure.parquet` in OUT/NAME. `None` where it was not run.
pub fn from_results(figure: &Figure, size: Size, out: &Path) -> anyhow::Result<Option<Outcome>> {
    let folder = out.join(&figure.name);
    if !terrace_results::path::<FigureRow>(&folder).exists() {
        return Ok(None);
    }
    let mut data = size.empty(figure);
    let rows: Vec<FigureRow> = read(&folder)?;
    for row in rows {
        data.put(&row.row, &row.column, &row.measure, row.value);
    }
    let verdicts = check(&figure.claims, &data)
        .map_err(|e| anyhow::anyhow!("figure '{}': {e}", figure.name))?;
    let picture = draw(figure, &data);
    Ok(Some(Outcome { data, verdicts, picture }))
}

fn write(
    folder: &Path,
    figure: &Figure,
    data: &Data,
    verdicts: &[Verdict],
    picture: &str,
) -> anyhow::Result<()> {
    let mut table = TableWriter::create(folder)?;
    let rows = data.table(&figure.name);
    let mut csv = String::from("figure,row,column,measure,value\n");
    for row in rows {
        let cells = [&row.figure, &row.row, &row.column, &row.measure].map(|c| quoted(c));
        csv.push_str(&format!("{},{}\n", cells.join(","), row.value));
        table.push(row)?;
    }
    table.finish()?;
    let claims: Vec<_> = verdicts
        .iter()
        .map(|v| {
            serde_json::json!({
                "says": v.says, "paper": v.paper, "here": v.here,
                "headline": v.headline, "verdict": v.kind, "agrees": v.kind.agrees(),
            })
        })
        .collect();
    let claims = serde_json::to_string_pretty(&claims)? + "\n";
    for (name, text) in
        [("figure.csv", &csv), ("figure.svg", &alone(picture)), ("claims.json", &claims)]
    {
        let path = folder.join(name);
        let part = folder.join(format!(".{name}.part"));
        std::fs::write(&part, text)
            .and_then(|()| std::fs::rename(&part, &path))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Makes a picture a file of its own.
pub(crate) fn alone(picture: &str) -> String {
    let named = "<svg xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" \
                 style=\"background:#fff\" ";
    picture.replacen("<svg ", named, 1) + "\n"
}

/// A cell of a CSV file.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// Name of the row of geometric means in pictures.
const GEOMEAN: &str = "geomean";

fn draw(figure: &Figure, data: &Data) -> String {
    let mut rows = data.rows.clone();
    let measure = &data.measures[0];
    let means = figure.picture.geomean && data.rows.len() > 1;
    if means {
        rows.push(GEOMEAN.to_owned());
    }
    let value = |row: &str, column: &str| {
        if means && row == GEOMEAN {
            let values = data.column(column, measure);
            let whole = values.len() == data.rows.len();
            return whole.then(|| geomean(&values)).filter(|v| v.is_finite());
        }
        data.get(row, column, measure)
    };
    let chart = Chart {
        label: &figure.title,
        x: &figure.row,
        y: &figure.picture.y,
        log_x: figure.picture.log_x,
        line: figure.picture.line,
        number,
    };
    let series = |rows: &[String]| -> Vec<Series> {
        let one = |column: &String| Series {
            name: column.clone(),
            values: rows.iter().map(|r| value(r, column)).collect(),
        };
        data.columns.iter().map(one).collect()
    };
    match figure.picture.kind {
        PictureKind::Bars => bars(&chart, &rows, &series(&rows)),
        PictureKind::Lines => {
            let at: Vec<f64> = data.rows.iter().filter_map(|r| r.parse().ok()).collect();
            lines(&chart, &at, &series(&data.rows))
        }
        PictureKind::Stack => {
            let many = data.columns.len() > 1;
            let mut names = Vec::new();
            let given = &figure.picture.parts;
            let measures = if given.is_empty() { &data.measures } else { given };
            let mut parts: Vec<Series> =
                measures.iter().map(|m| Series { name: m.clone(), values: Vec::new() }).collect();
            for row in &data.rows {
                for column in &data.columns {
                    let name = if many { format!("{row} {column}") } else { row.clone() };
                    names.push(name);
                    for (part, measure) in parts.iter_mut().zip(measures) {
                        part.values.push(data.get(row, column, measure));
                    }
                }
            }
            stacks(&chart, &names, &parts)
        }
    }
}

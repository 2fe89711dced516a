//! Runs a figure: makes its data, checks its claims, draws it, and writes all of it into a folder.

use std::path::{Path, PathBuf};

use anyhow::Context;
use terrace_experiments::run::Events;
use terrace_report::plots::{Chart, Series, bars, file, lines, stacks};
use terrace_results::{FigureRow, TableWriter, read};

use crate::claims::{Verdict, geomean, pairs};
use crate::data::{Data, number};
use crate::figure::{Change, Figure, GEOMEAN, Part, PictureKind};
use crate::kinds::{self, Job};
use crate::run_cache::RunCache;
use crate::seeds;

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
    under_seeds(figure, size, run_cache, jobs, 1, events)
}

/// The same under so many seeds, of which the first is the figure's own: the others' results are in
/// OUT/NAME/seed-2 and so on. A figure whose numbers have no seed is run once.
pub fn under_seeds(
    figure: &Figure,
    size: Size,
    run_cache: &RunCache,
    jobs: usize,
    seeds: u32,
    events: &mut dyn Events,
) -> anyhow::Result<Outcome> {
    let folder = run_cache.folder().join(&figure.name);
    let has_seed = kinds::find(&figure.kind).map_err(anyhow::Error::msg)?.has_seed;
    let mut all = Vec::new();
    for seed_offset in 0..if has_seed { seeds.max(1) } else { 1 } {
        let folder = of_seed(&folder, seed_offset);
        std::fs::create_dir_all(&folder).with_context(|| {
            format!("{}: expected a folder for results that can be written to", folder.display())
        })?;
        let job = Job { figure, size, folder: &folder, run_cache, jobs, seed_offset };
        let data = job.make(events).with_context(|| format!("figure '{}'", figure.name))?;
        if seed_offset > 0 {
            write_data(&folder, figure, &data)?;
        }
        all.push(data);
    }
    let outcome = outcome(figure, &all)?;
    write(&folder, figure, &outcome)?;
    Ok(outcome)
}

/// The outcome of a figure that was run before: nothing is run, claims are checked and the picture
/// is drawn again from `figure.parquet` in OUT/NAME, and from those of so many seeds as far as they are
/// there. `None` where it was not run.
pub fn from_results(
    figure: &Figure,
    size: Size,
    out: &Path,
    seeds: u32,
) -> anyhow::Result<Option<Outcome>> {
    let mut all = Vec::new();
    for seed_offset in 0..seeds.max(1) {
        let folder = of_seed(&out.join(&figure.name), seed_offset);
        if !terrace_results::path::<FigureRow>(&folder).exists() {
            break;
        }
        let mut data = size.empty(figure);
        let rows: Vec<FigureRow> = read(&folder)?;
        for row in rows {
            data.put(&row.row, &row.column, &row.measure, row.value);
        }
        all.push(data);
    }
    if all.is_empty() {
        return Ok(None);
    }
    outcome(figure, &all).map(Some)
}

/// Where results of a seed are, of a figure's folder.
fn of_seed(folder: &Path, seed_offset: u32) -> PathBuf {
    match seed_offset {
        0 => folder.to_owned(),
        more => folder.join(format!("seed-{}", more + 1)),
    }
}

/// The outcome of data under each seed, the figure's own first.
fn outcome(figure: &Figure, all: &[Data]) -> anyhow::Result<Outcome> {
    let verdicts = seeds::joined(figure, all).map_err(anyhow::Error::msg)?;
    let data = all.first().cloned().unwrap_or_default();
    let picture = draw(figure, &data, &words(&verdicts))?;
    Ok(Outcome { data, verdicts, picture })
}

/// Writes the table alone.
fn write_data(folder: &Path, figure: &Figure, data: &Data) -> anyhow::Result<()> {
    let mut table = TableWriter::create(folder)?;
    data.table(&figure.name).into_iter().try_for_each(|row| table.push(row))?;
    Ok(table.finish()?)
}

fn write(folder: &Path, figure: &Figure, outcome: &Outcome) -> anyhow::Result<()> {
    write_data(folder, figure, &outcome.data)?;
    let mut csv = String::from("figure,row,column,measure,value\n");
    for row in outcome.data.table(&figure.name) {
        let cells = [&row.figure, &row.row, &row.column, &row.measure].map(|c| quoted(c));
        csv.push_str(&format!("{},{}\n", cells.join(","), row.value));
    }
    let claims: Vec<_> = outcome.verdicts.iter().map(Verdict::json).collect();
    let claims = serde_json::to_string_pretty(&claims)? + "\n";
    for (name, text) in
        [("figure.csv", &csv), ("figure.svg", &file(&outcome.picture)), ("claims.json", &claims)]
    {
        let path = folder.join(name);
        let part = folder.join(format!(".{name}.part"));
        std::fs::write(&part, text)
            .and_then(|()| std::fs::rename(&part, &path))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// A cell of a CSV file.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// The numbers here of claims, in words.
pub(crate) fn words(verdicts: &[Verdict]) -> Vec<String> {
    verdicts.iter().map(|v| v.here.clone()).collect()
}

/// Draws a figure's values, with what the paper prints beside them. `words` are the numbers here as each
/// claim's verdict has them.
pub fn draw(figure: &Figure, data: &Data, words: &[String]) -> anyhow::Result<String> {
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
    let pairs = pairs(&figure.claims, words, data)
        .map_err(|e| anyhow::anyhow!("figure '{}': {e}", figure.name))?;
    let printed = |row: &str, column: &str| {
        let of = figure.printed.iter().find(|p| p.row == row && p.column == column);
        of.map(|p| p.value)
    };
    let mut places: Vec<&str> = figure.printed.iter().map(|p| p.place.as_str()).collect();
    places.dedup();
    let chart = Chart {
        label: &figure.title,
        x: &figure.row,
        y: &figure.picture.y,
        log_x: figure.picture.log_x,
        line: figure.picture.line,
        line_name: figure.picture.line_name.as_deref(),
        printed_in: &places.join(", "),
        pairs: &pairs,
        number,
    };
    let series = |rows: &[String]| -> Vec<Series> {
        let one = |column: &String| Series {
            name: column.clone(),
            values: rows.iter().map(|r| value(r, column)).collect(),
            paper: rows.iter().map(|r| printed(r, column)).collect(),
        };
        let given = &figure.picture.columns;
        let columns = if given.is_empty() { &data.columns } else { given };
        columns.iter().map(one).collect()
    };
    Ok(match figure.picture.kind {
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
                measures.iter().map(|m| Series { name: m.clone(), ..Series::default() }).collect();
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::check;
    use crate::library;
    use terrace_experiments::verdict::PaperNumber;

    /// The colour of the outlines of what a paper prints.
    const PAPER: &str = "stroke=\"#10151F\"";

    /// A figure with a value in every cell.
    fn filled(figure: &Figure) -> Data {
        let mut data = Size::Standard.empty(figure);
        let mut value = 1.0;
        for (row, column) in
            figure.rows.iter().flat_map(|r| figure.columns.iter().map(move |c| (r, c)))
        {
            for measure in &figure.measures {
                value += 1.0;
                data.put(&row.name, &column.name, measure, value);
            }
        }
        data
    }

    #[test]
    fn numbers_that_a_paper_prints_are_drawn_beside_those_here() {
        let mut with_numbers = 0;
        for figure in library::all().unwrap() {
            let data = filled(&figure);
            let verdicts = check(&figure.claims, &data).unwrap();
            let svg = draw(&figure, &data, &words(&verdicts)).unwrap();
            let (mut outlines, mut numbers) = (0, 0);
            for claim in &figure.claims {
                let one = claim.beside.as_ref().map(|b| b.paper).or(claim.expected);
                let Some(paper) = one else { continue };
                numbers += 1;
                // A range has a line where it begins, too.
                outlines += if matches!(paper, PaperNumber::Range(_)) { 2 } else { 1 };
                let printed: String = claim.paper.chars().take(20).collect();
                assert!(svg.contains(&printed), "{}: no '{printed}' in {svg}", figure.name);
            }
            // Each of both kinds has a sign in its legend.
            outlines += usize::from(numbers > 0);
            outlines += figure.printed.len() + usize::from(!figure.printed.is_empty());
            assert_eq!(svg.matches(PAPER).count(), outlines, "{}: {svg}", figure.name);
            let legend = svg.contains("\npaper</text>") && svg.contains("\nhere</text>");
            assert_eq!(legend, numbers > 0, "{}: {svg}", figure.name);
            if let Some(name) = &figure.picture.line_name {
                assert!(figure.picture.line.is_some(), "{}: {name}", figure.name);
                let begin: String = name.chars().take_while(|c| *c != '\'').collect();
                assert!(svg.contains(&begin), "{}: no '{begin}' in {svg}", figure.name);
            }
            with_numbers += usize::from(outlines > 0);
        }
        assert!(with_numbers >= 35, "{with_numbers} figures have numbers of their paper");
    }

    #[test]
    fn a_printed_value_has_a_row_a_column_and_a_picture_that_can_show_it() {
        let text = library::text_of("nimble/table2").unwrap();
        let parse = |text: &str| Figure::parse("own/x", text, &library::text_of);
        assert!(parse(text).is_ok());
        let error = parse(&text.replace("row = \"huge\", column", "row = \"hug\", column"));
        assert!(error.unwrap_err().contains("'hug', 'Xeon'"));
        let error = parse(&text.replace("kind = \"bars\"", "kind = \"stack\""));
        assert!(error.unwrap_err().contains("bars or lines"));
    }
}

//! `terrace reproduce`: the papers' figures, run again, with their claims checked.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use terrace_core::InputError;
use terrace_experiments::verdict::VerdictKind;
use terrace_reproductions::claims::Verdict;
use terrace_reproductions::library;
use terrace_reproductions::reproduce::under_seeds;
use terrace_reproductions::results_report::{self, Entry, Tally};
use terrace_reproductions::run_time;
use terrace_reproductions::seeds;
use terrace_reproductions::{Figure, Outcome, RunCache, Size, from_results};

use crate::progress::Screen;
use crate::show::{Format, say};

/// Run figures and tables of the papers again, and check their claims.
///
/// 'terrace reproduce list' shows them all, with the processor time of a quick run. A figure is an
/// experiment file with claims: each is a statement that is checked against what comes out, with the
/// paper's number beside it. What comes out is written to OUT/PAPER/FIGURE: figure.parquet,
/// figure.csv, figure.svg, claims.json, and the results of every run. Programs are profiled once, in
/// OUT/profiles, for all figures, and a run that several figures use is made once. A command that was
/// interrupted goes on after the runs that had ended, if it is the same build and the figure is
/// Terrace's. One command at a time works in a folder.
///
/// The exit code is 0 when the figures were made, whether or not their claims agree.
#[derive(Args)]
pub struct Arguments {
    /// Figures as PAPER/FIGURE, papers for all of theirs, or 'list'.
    #[arg(value_name = "FIGURE", required_unless_present_any = ["all", "file"])]
    figures: Vec<String>,
    /// Every figure.
    #[arg(long, conflicts_with = "figures")]
    all: bool,
    /// A figure's file of your own.
    #[arg(long, value_name = "FIGURE.toml", conflicts_with_all = ["figures", "all"])]
    file: Option<PathBuf>,
    /// Fewer rows and shorter runs.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// The sizes for a bigger machine.
    #[arg(long)]
    full: bool,
    /// Folder for the results.
    #[arg(long, value_name = "DIR", default_value = "target/reproduce")]
    out: PathBuf,
    /// Write a page and a picture of each figure, and a table of contents, into this folder.
    #[arg(long, alias = "book", value_name = "DIR")]
    report: Option<PathBuf>,
    /// Run nothing: check and draw what earlier runs left in OUT. Figures that were not run are
    /// left out.
    #[arg(long)]
    from_results: bool,
    /// Run everything under N seeds, and show how far each number depends on them. Verdicts are those of
    /// the figure's own seed, which is the first.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    seeds: u32,
    /// Runs at the same time. The results are the same bytes.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Format of the claims.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Runs them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        if self.figures == ["list"] {
            return list(self.format);
        }
        let figures = self.chosen().map_err(InputError::new)?;
        let size = match (self.quick, self.full) {
            (true, _) => Size::Quick,
            (_, true) => Size::Full,
            _ => Size::Standard,
        };
        // Existing files are read as they are; to make new ones the command needs the folder for
        // itself.
        let run_cache = match self.from_results {
            true => None,
            false => Some(RunCache::open(&self.out)?),
        };
        let mut entries = Vec::new();
        let mut shown = Vec::new();
        for figure in figures {
            let begun = Instant::now();
            let jobs = usize::from(self.jobs);
            let outcome = match &run_cache {
                Some(run_cache) => {
                    let mut screen = Screen::new(false);
                    under_seeds(&figure, size, run_cache, jobs, self.seeds, &mut screen)?
                }
                None => match from_results(&figure, size, &self.out, self.seeds)? {
                    Some(outcome) => outcome,
                    None => continue,
                },
            };
            match self.format {
                Format::Text => show(&figure, &outcome, begun.elapsed().as_secs_f64())?,
                Format::Json => shown.push(document(&figure, &outcome)),
            }
            entries.push(Entry { figure, outcome });
        }
        if entries.is_empty() {
            return Err(InputError::new(format_args!(
                "{} has no results of these figures; expected a folder that 'terrace reproduce' \
                 has filled",
                self.out.display()
            ))
            .into());
        }
        let total =
            entries.iter().map(|e| Tally::of(&e.outcome)).fold(Tally::default(), Tally::with);
        match self.format {
            Format::Json => say!("{}", serde_json::to_string_pretty(&shown)?)?,
            Format::Text if entries.len() > 1 => say!("In all: {}.", total.words())?,
            Format::Text => {}
        }
        if let Some(folder) = &self.report {
            results_report::write(folder, &entries, size)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn chosen(&self) -> Result<Vec<Figure>, String> {
        if let Some(path) = &self.file {
            let text = std::fs::read_to_string(path)
                .map_err(|e| format!("{}: {e}; expected a figure's file", path.display()))?;
            let name = path.file_stem().and_then(|s| s.to_str()).unwrap_or("figure");
            return Figure::parse(&format!("own/{name}"), &text, &library::text_of)
                .map(|f| vec![f]);
        }
        if self.all { library::all() } else { library::find(&self.figures) }
    }
}

fn list(format: Format) -> anyhow::Result<ExitCode> {
    let figures = library::all().map_err(anyhow::Error::msg)?;
    if let Format::Json = format {
        let rows: Vec<_> = figures
            .iter()
            .map(|f| {
                json!({
                    "figure": f.name, "title": f.title, "claims": f.claims.len(),
                    "quick_processor_s": run_time::of(&f.name).seconds(),
                })
            })
            .collect();
        say!("{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (short, paper) in library::PAPERS {
        say!("{paper}")?;
        for figure in figures.iter().filter(|f| f.paper() == *short) {
            let time = run_time::of(&figure.name).words();
            say!("  {:<20}  {time:>7}  {}", figure.name, figure.title)?;
        }
    }
    say!(
        "Times are of a processor, for --quick and an empty OUT, as measured; '>': ended there, '-': \
         not measured. Figures of one command share profiles and runs."
    )?;
    Ok(ExitCode::SUCCESS)
}

fn show(figure: &Figure, outcome: &Outcome, took_s: f64) -> anyhow::Result<()> {
    say!("{}: {}", figure.name, figure.title)?;
    let data = &outcome.data;
    if let Some(measure) = data.measures.first() {
        say!("{measure}")?;
        say!("{}", data.text(&figure.row, measure))?;
    }
    for v in &outcome.verdicts {
        let kind = match v.kind {
            VerdictKind::No => "DIFFERS",
            kind => kind.word(),
        };
        let headline = v.headline.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let spread = seeds::spread(v).map(|s| format!(" ({s}; {} seeds)", v.seeds.len()));
        let spread = spread.unwrap_or_default();
        let control: String =
            v.controls.iter().map(|(says, here)| format!("; {says} {here}")).collect();
        let (says, paper, here) = (&v.says, &v.paper, &v.here);
        say!("  {kind:<10} {headline}{says}: paper {paper}, here {here}{control}{spread}")?;
    }
    say!("  {}; {took_s:.0} s", Tally::of(outcome).words())?;
    say!("")?;
    Ok(())
}

fn document(figure: &Figure, outcome: &Outcome) -> serde_json::Value {
    let claims: Vec<_> = outcome.verdicts.iter().map(Verdict::json).collect();
    let values: Vec<_> = outcome
        .data
        .table(&figure.name)
        .into_iter()
        .map(
            |r| json!({ "row": r.row, "column": r.column, "measure": r.measure, "value": r.value }),
        )
        .collect();
    json!({ "figure": figure.name, "title": figure.title, "claims": claims, "values": values })
}

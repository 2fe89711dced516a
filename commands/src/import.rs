//! `terrace import`: files of other tools become recordings.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, json};
use terrace_core::InputError;
use terrace_core::page::PageSize;
use terrace_recordings::import::{self, FORMATS, ImportError, ImportOptions, Imported, Input};

use crate::arguments::Pages;
use crate::show::{self, Format, say, tell};

/// Make a recording of another tool's file.
///
/// Without arguments lists the formats. The file may be compressed (.xz, .gz, .zst), whatever its
/// name. A file that was cut off is imported up to the cut, which is reported; what cannot be
/// read is refused with its line or byte, and nothing is written.
#[derive(Args)]
pub struct Arguments {
    /// The format.
    #[arg(value_name = "FORMAT", requires = "file", requires = "out")]
    name: Option<String>,
    /// The file; - for standard input.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The recording to write (.tref or .trec); must not exist; - for standard output.
    #[arg(long, value_name = "RECORDING")]
    out: Option<PathBuf>,
    /// damon: size of the pages of the recording; 4K if not given.
    #[arg(long, value_name = "SIZE", value_enum)]
    page_size: Option<Pages>,
    /// damon: join snapshots to periods of N milliseconds; else each is a period.
    #[arg(long, value_name = "MS")]
    period_ms: Option<u64>,
    /// perf: one in N references was sampled (perf record -c N).
    #[arg(long, value_name = "N")]
    sample: Option<u64>,
    /// Format of the answer.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Imports.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let (Some(name), Some(file), Some(out)) = (&self.name, &self.file, &self.out) else {
            self.list()?;
            return Ok(ExitCode::SUCCESS);
        };
        let format = import::find(name).map_err(InputError::new)?;
        let options = ImportOptions {
            page_size: self.page_size.map(PageSize::from),
            period_ms: self.period_ms,
            sample_one_in: self.sample,
            created_by: terrace_identity::created_by("terrace"),
        };
        format.check(&options).map_err(InputError::new)?;
        let mut input = Input::open(file).map_err(InputError::new)?;
        let to_stdout = out.as_os_str() == "-";
        let imported = if to_stdout {
            format.import(&mut input, &mut std::io::stdout().lock(), "standard output", &options)
        } else {
            format.import_file(&mut input, out, &options)
        };
        let imported = imported.map_err(|error| match error {
            ImportError::Recording(_) => anyhow::Error::from(error),
            error => InputError::new(error).into(),
        })?;
        if let Some(place) = imported.cut {
            tell!("{}: cut off at {place}; what precedes it is imported", input.name());
        }
        for (what, stated, got) in &imported.differs {
            tell!("{}: says {stated} {what} itself, {got} are imported", input.name());
        }
        match (self.format, to_stdout) {
            // Standard output is the recording.
            (_, true) => tell!("{}", text(Path::new("standard output"), &imported)),
            (Format::Json, false) => {
                say!("{}", serde_json::to_string_pretty(&document(out, &imported))?)?;
            }
            (Format::Text, false) => say!("{}", text(out, &imported))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn list(&self) -> anyhow::Result<()> {
        if self.format == Format::Json {
            let all: Vec<_> = FORMATS
                .iter()
                .map(|f| {
                    json!({
                        "name": f.name,
                        "summary": f.summary,
                        "made_by": f.made_by,
                        "makes": f.makes.suffix(),
                        "options": f.choices.iter().map(|c| c.option()).collect::<Vec<_>>(),
                    })
                })
                .collect();
            return say!("{}", serde_json::to_string_pretty(&all)?);
        }
        let mut table = show::table(&["format", "makes", "what the files are", "made by"]);
        for f in FORMATS {
            table.add_row([f.name, f.makes.suffix(), f.summary, f.made_by]);
        }
        say!("{table}\n")?;
        say!("'terrace import FORMAT FILE --out RECORDING' makes a recording of a file.")
    }
}

fn text(out: &Path, imported: &Imported) -> String {
    let counts: Vec<_> =
        imported.counts.iter().map(|(name, n)| format!("{n} {}", name.replace('_', " "))).collect();
    format!("{}: {}", out.display(), counts.join(", "))
}

fn document(out: &Path, imported: &Imported) -> serde_json::Value {
    let mut answer = Map::new();
    answer.insert("file".to_owned(), json!(out));
    for (name, count) in &imported.counts {
        answer.insert((*name).to_owned(), json!(count));
    }
    answer.insert("cut_at".to_owned(), json!(imported.cut.map(|p| p.to_string())));
    let differs: Map<_, _> =
        imported.differs.iter().map(|(n, stated, _)| ((*n).to_owned(), json!(stated))).collect();
    answer.insert("file_says".to_owned(), differs.into());
    answer.into()
}

//! `terrace export`: recordings become files of other tools.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, json};
use terrace_core::InputError;
use terrace_recordings::error::RecordingError;
use terrace_recordings::export::{self, ExportError, ExportOptions, FORMATS};

use crate::show::{self, Format, say, tell};

/// Make another tool's file of a recording.
///
/// Without arguments lists the formats.
#[derive(Args)]
pub struct Arguments {
    /// The format.
    #[arg(value_name = "FORMAT", requires = "recording", requires = "out")]
    name: Option<String>,
    /// The recording (.tref or .trec).
    #[arg(value_name = "RECORDING")]
    recording: Option<PathBuf>,
    /// The file to write; must not exist; - for standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Only this stream (thread) of a reference recording.
    #[arg(long, value_name = "N")]
    stream: Option<u32>,
    /// Format of the answer.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Exports.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let (Some(name), Some(recording), Some(out)) = (&self.name, &self.recording, &self.out)
        else {
            self.list()?;
            return Ok(ExitCode::SUCCESS);
        };
        let format = export::find(name).map_err(InputError::new)?;
        let options = ExportOptions { stream: self.stream };
        let to_stdout = out.as_os_str() == "-";
        let exported = if to_stdout {
            let mut stdout = std::io::stdout().lock();
            match format.export(recording, &mut stdout, "standard output", &options) {
                // The reader has closed the pipe.
                Err(ExportError::Write { source, .. })
                    if source.kind() == ErrorKind::BrokenPipe =>
                {
                    return Ok(ExitCode::SUCCESS);
                }
                exported => exported,
            }
        } else {
            format.export_file(recording, out, &options)
        };
        let exported = exported.map_err(|error| match error {
            ExportError::Write { .. } => anyhow::Error::from(error),
            ExportError::Recording(RecordingError::Io { action, ref source, .. })
                if action != "open"
                    && action != "create"
                    && source.kind() != ErrorKind::IsADirectory =>
            {
                anyhow::Error::from(error)
            }
            error => InputError::new(error).into(),
        })?;
        for note in &exported.notes {
            tell!("{note}");
        }
        if to_stdout {
            return Ok(ExitCode::SUCCESS);
        }
        if self.format == Format::Json {
            let mut answer = Map::new();
            answer.insert("file".to_owned(), json!(out));
            for (name, count) in &exported.counts {
                answer.insert((*name).to_owned(), json!(count));
            }
            answer.insert("notes".to_owned(), json!(exported.notes));
            say!("{}", serde_json::to_string_pretty(&answer)?)?;
        } else {
            let counts: Vec<_> =
                exported.counts.iter().map(|(name, n)| format!("{n} {name}")).collect();
            say!("{}: {}", out.display(), counts.join(", "))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn list(&self) -> anyhow::Result<()> {
        if self.format == Format::Json {
            let all: Vec<_> =
                FORMATS.iter().map(|f| json!({ "name": f.name, "summary": f.summary })).collect();
            return say!("{}", serde_json::to_string_pretty(&all)?);
        }
        let mut table = show::table(&["format", "what the files are"]);
        for f in FORMATS {
            table.add_row([f.name, f.summary]);
        }
        say!("{table}\n")?;
        say!("'terrace export FORMAT RECORDING --out FILE' makes a file of a recording.")
    }
}

//! Exporters: recordings become files of other tools.
//!
//! A format is one file here and one row of [`FORMATS`]. Memory does not grow with the length of
//! the recording.

mod champsim;
mod csv;

use std::io::{self, Write};
use std::path::Path;

use crate::error::RecordingError;
use crate::import::write_new;
use crate::period::PeriodReader;
use crate::reference::ReferenceReader;

/// Why a recording could not be exported. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// No format has this name.
    #[error("no format is named '{got}'; expected {expected}")]
    UnknownFormat {
        /// The requested name.
        got: String,
        /// The names of the formats.
        expected: String,
    },
    /// The file to write is there already.
    #[error("'{0}' exists; give --out a name that is free, or remove it")]
    Exists(String),
    /// The format cannot hold what the recording has.
    #[error("{0}")]
    Unfit(String),
    /// The file cannot be written.
    #[error("cannot write '{file}': {source}")]
    Write {
        /// Path of the file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The recording cannot be read, or the file be made.
    #[error(transparent)]
    Recording(#[from] RecordingError),
}

/// Options of an export.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExportOptions {
    /// Only this stream of a reference recording.
    pub stream: Option<u32>,
}

/// The result of an export.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exported {
    /// Totals, each with its name.
    pub counts: Vec<(&'static str, u64)>,
    /// Notes for a reader of the file, a sentence each.
    pub notes: Vec<String>,
}

/// A format that can be exported.
pub struct ExportFormat {
    /// Its name on the command line.
    pub name: &'static str,
    /// Description of the files.
    pub summary: &'static str,
    run: fn(Recording, &mut Target<'_>, &ExportOptions) -> Result<Exported, ExportError>,
}

/// Every format.
pub static FORMATS: &[&ExportFormat] = &[&champsim::FORMAT, &csv::FORMAT];

/// The format of a name.
pub fn find(name: &str) -> Result<&'static ExportFormat, ExportError> {
    FORMATS.iter().find(|f| f.name == name).copied().ok_or_else(|| ExportError::UnknownFormat {
        got: name.to_owned(),
        expected: terrace_core::names::expected(name, FORMATS.iter().map(|f| f.name)),
    })
}

impl ExportFormat {
    /// Exports a recording to any stream; `name` is for messages. After an error the stream
    /// holds a part of the file.
    pub fn export(
        &self,
        recording: &Path,
        out: &mut dyn Write,
        name: &str,
        options: &ExportOptions,
    ) -> Result<Exported, ExportError> {
        let mut out = Target { out: io::BufWriter::with_capacity(1 << 16, out), name };
        let exported = (self.run)(Recording::open(recording)?, &mut out, options)?;
        out.flush()?;
        Ok(exported)
    }

    /// Exports to a new file, which gets its name when it is whole; after an error nothing is
    /// left.
    pub fn export_file(
        &self,
        recording: &Path,
        path: &Path,
        options: &ExportOptions,
    ) -> Result<Exported, ExportError> {
        write_new(path, ExportError::Exists, |file, name| {
            self.export(recording, file, name, options)
        })
    }
}

/// A recording of any kind.
pub enum Recording {
    /// References.
    References(Box<ReferenceReader<io::BufReader<std::fs::File>>>),
    /// A period recording.
    Periods(Box<PeriodReader<io::BufReader<std::fs::File>>>),
}

impl Recording {
    /// Opens it by its content.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        match ReferenceReader::open(path) {
            Err(RecordingError::Content { got, .. }) if got == crate::period::CONTENT => {
                Ok(Recording::Periods(Box::new(PeriodReader::open(path)?)))
            }
            references => Ok(Recording::References(Box::new(references?))),
        }
    }
}

/// The streams of a recording, ascending.
fn streams(reader: &ReferenceReader<io::BufReader<std::fs::File>>) -> Vec<u32> {
    let mut streams: Vec<u32> = reader.blocks().iter().map(|b| b.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    streams
}

/// Refuses a stream that the recording does not have.
fn check_stream(
    reader: &ReferenceReader<io::BufReader<std::fs::File>>,
    stream: u32,
) -> Result<(), ExportError> {
    let all = streams(reader);
    if all.contains(&stream) {
        return Ok(());
    }
    Err(ExportError::Unfit(format!("the recording has no stream {stream}, but {}", list(&all))))
}

fn list(streams: &[u32]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = streams.iter().take(SHOWN).map(u32::to_string).collect();
    let more = if streams.len() > SHOWN { " and more" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// The file that is written.
struct Target<'a> {
    out: io::BufWriter<&'a mut dyn Write>,
    name: &'a str,
}

impl Target<'_> {
    fn failed(&self, source: io::Error) -> ExportError {
        ExportError::Write { file: self.name.to_owned(), source }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        self.out.write_all(bytes).map_err(|e| self.failed(e))
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) -> Result<(), ExportError> {
        writeln!(self.out, "{text}").map_err(|e| self.failed(e))
    }

    fn flush(&mut self) -> Result<(), ExportError> {
        self.out.flush().map_err(|e| self.failed(e))
    }
}

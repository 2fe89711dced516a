//! Importers: files of other tools become recordings.
//!
//! A format is one file here and one row of [`FORMATS`]. Every importer is streaming: its memory
//! does not grow with the length of the file. A line or byte that cannot be read ends the import
//! with its place; a file that was cut off is imported up to the cut, and the cut is reported.

mod champsim;
mod damon;
mod error;
mod input;
mod lackey;
mod perf;

pub use damon::is_damon;
pub use error::{ImportError, Place};
pub use input::{Input, MAX_LINE_BYTES};

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use terrace_core::page::PageSize;

use crate::container::PartialFile;
use crate::error::RecordingError;
use crate::reference::{CacheShape, Filter, Header, Level};

/// The kind of recording that an import makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Makes {
    /// A reference recording (`.tref`).
    References,
    /// A period recording (`.trec`).
    Periods,
}

impl Makes {
    /// The suffix of such a recording's file.
    pub fn suffix(self) -> &'static str {
        match self {
            Makes::References => "tref",
            Makes::Periods => "trec",
        }
    }
}

/// A choice that an importer leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// [`ImportOptions::page_size`].
    PageSize,
    /// [`ImportOptions::period_ms`].
    Period,
    /// [`ImportOptions::sample_one_in`].
    Sample,
}

impl Choice {
    /// The command line's option.
    pub fn option(self) -> &'static str {
        match self {
            Choice::PageSize => "--page-size",
            Choice::Period => "--period-ms",
            Choice::Sample => "--sample",
        }
    }
}

/// Options of an import. `None`: the importer chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportOptions {
    /// Pages of a period recording; base pages if `None`.
    pub page_size: Option<PageSize>,
    /// Length of a period; the file's own interval if `None`.
    pub period_ms: Option<u64>,
    /// One in this many references was sampled; 1 if `None`.
    pub sample_one_in: Option<u64>,
    /// Program that imports, for the recording's header.
    pub created_by: String,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imported {
    /// Totals by name, to compare with the source tool's own.
    pub counts: Vec<(&'static str, u64)>,
    /// Place of the cut, in a file that was cut off.
    pub cut: Option<Place>,
    /// Totals in the file itself that differ: name, stated, imported.
    pub differs: Vec<(&'static str, u64, u64)>,
}

impl Imported {
    /// The total of this name.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.counts.iter().find(|c| c.0 == name).map(|c| c.1)
    }
}

/// A format that can be imported.
pub struct ImportFormat {
    /// Its name on the command line.
    pub name: &'static str,
    /// Description of the files.
    pub summary: &'static str,
    /// How to make such a file.
    pub made_by: &'static str,
    /// The kind of recording that it becomes.
    pub makes: Makes,
    /// The options it takes.
    pub choices: &'static [Choice],
    run: fn(&mut Input, &mut dyn Write, &str, &ImportOptions) -> Result<Imported, ImportError>,
}

/// Every format.
pub static FORMATS: &[&ImportFormat] =
    &[&champsim::FORMAT, &lackey::FORMAT, &perf::FORMAT, &damon::FORMAT];

/// The format of a name.
pub fn find(name: &str) -> Result<&'static ImportFormat, ImportError> {
    FORMATS.iter().find(|f| f.name == name).copied().ok_or_else(|| ImportError::UnknownFormat {
        got: name.to_owned(),
        expected: terrace_core::names::expected(name, FORMATS.iter().map(|f| f.name)),
    })
}

impl ImportFormat {
    /// Whether it takes the options that are set.
    pub fn check(&self, options: &ImportOptions) -> Result<(), ImportError> {
        for (choice, given, least) in [
            (Choice::PageSize, options.page_size.map(PageSize::bytes), 1),
            (Choice::Period, options.period_ms, 1),
            (Choice::Sample, options.sample_one_in, 1),
        ] {
            let Some(value) = given else { continue };
            let option = choice.option();
            if !self.choices.contains(&choice) {
                let message = format!("format '{}' has no {option}; leave it out", self.name);
                return Err(ImportError::Option(message));
            }
            if value < least || value > 1 << 40 {
                let message = format!("{option} is {value}; expected 1 to 2^40");
                return Err(ImportError::Option(message));
            }
        }
        Ok(())
    }

    /// Imports into any stream; `name` is for messages. After an error the stream
    /// holds a part of a recording.
    pub fn import(
        &self,
        input: &mut Input,
        out: &mut dyn Write,
        name: &str,
        options: &ImportOptions,
    ) -> Result<Imported, ImportError> {
        self.check(options)?;
        (self.run)(input, out, name, options)
    }

    /// Imports into a new file, which gets its name when it is whole; after an error nothing is
    /// left.
    pub fn import_file(
        &self,
        input: &mut Input,
        path: &Path,
        options: &ImportOptions,
    ) -> Result<Imported, ImportError> {
        self.check(options)?;
        write_new(path, ImportError::Exists, |file, name| self.import(input, file, name, options))
    }
}

/// Writes a file that gets its name when it is whole; after an error nothing is left.
pub(crate) fn write_new<T, E: From<RecordingError>>(
    path: &Path,
    exists: impl Fn(String) -> E,
    write: impl FnOnce(&mut PartialFile, &str) -> Result<T, E>,
) -> Result<T, E> {
    let name = path.display().to_string();
    if fs::symlink_metadata(path).is_ok() {
        return Err(exists(name));
    }
    let error = |action| {
        let file = name.clone();
        move |source| RecordingError::Io { file, action, source }
    };
    let mut file = PartialFile::create(path).map_err(error("create"))?;
    let written = write(&mut file, &name)
        .and_then(|done| Ok(file.publish().map(|_| done).map_err(error("finish"))?));
    if written.is_err() {
        let mut partial = OsString::from(path);
        partial.push(".partial");
        match fs::remove_file(PathBuf::from(partial)) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(error("remove")(e).into()),
            _ => {}
        }
    }
    written
}

/// The header of references that no cache has filtered.
fn header(input: &Input, options: &ImportOptions, executed_by: &str) -> Header {
    let none = CacheShape { size_bytes: 0, ways: 0 };
    Header {
        command: vec![input.name().to_owned()],
        filter: Filter {
            level: Level::None,
            line_bytes: 64,
            l1: none,
            l2: none,
            llc: none,
            sample_one_in: options.sample_one_in.unwrap_or(1),
        },
        base_page_bytes: PageSize::Base.bytes(),
        huge_page_bytes: PageSize::Huge.bytes(),
        write_backs: false,
        created_by: options.created_by.clone(),
        executed_by: executed_by.to_owned(),
    }
}

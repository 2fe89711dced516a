//! Files of other tools: imported into a recording of Terrace in a temporary folder.

use std::path::Path;

use anyhow::Context;
use terrace_core::{InputError, refuse};
use terrace_recordings::import::{self, ImportError, ImportOptions, Input, Makes};

use crate::recording::references::references;
use crate::recording::{Evidence, Open, Recording, periods};

/// So much of a file's beginning, decompressed, says what it is.
const LOOKED_AT_BYTES: usize = 64 << 10;

/// Reads another tool's file: DAMON's by how it begins, anything else as text of `perf script`.
pub(super) fn imported(path: &Path, how: &Open) -> anyhow::Result<Recording> {
    let mut input = open(path)?;
    let begin = input.peek(LOOKED_AT_BYTES).map_err(InputError::new)?;
    let format = match import::is_damon(&begin) {
        true => "damon",
        false => "perf",
    };
    let format = import::find(format).map_err(InputError::new)?;
    let options = ImportOptions {
        page_size: how.page_size.filter(|_| format.choices.contains(&import::Choice::PageSize)),
        period_ms: None,
        sample_one_in: how
            .sample_one_in
            .filter(|_| format.choices.contains(&import::Choice::Sample)),
        created_by: terrace_identity::created_by("terrace"),
    };
    let folder = tempfile::tempdir().context("a folder for the imported recording")?;
    let target = folder.path().join(format!("imported.{}", format.makes.suffix()));
    let done = format.import_file(&mut input, &target, &options).map_err(|error| match error {
        ImportError::Recording(_) => anyhow::Error::from(error),
        error => refuse!(
            "{}: no recording of Terrace, and as {} it cannot be read: {error}",
            path.display(),
            format.summary
        )
        .into(),
    })?;
    let mut recording = match format.makes {
        Makes::Periods => periods(&target, path, Some(folder), how)?,
        Makes::References => references(&target, path, Some(folder), how)?,
    };
    if recording.evidence == Evidence::Samples {
        recording.name = first_command(&begin).unwrap_or(recording.name);
    }
    if let Some(place) = done.cut {
        recording.warnings.push(format!("{} was cut off at {place}", path.display()));
    }
    Ok(recording)
}

/// The program of the first sample: `perf script` begins its lines with it.
fn first_command(begin: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(begin);
    let line = text.lines().find(|l| !l.trim().is_empty() && !l.starts_with('#'))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = line.split_whitespace().next()?.chars().filter(|&c| plain(c)).collect();
    (!name.is_empty()).then_some(name)
}

fn open(path: &Path) -> Result<Input, InputError> {
    Input::open(path).map_err(|e| {
        refuse!(
            "{e}; expected a recording: a profile (.tprof), .trec, .tref, a DAMON record or text of \
             'perf script'"
        )
    })
}

//! The answer as result tables.

use std::path::Path;

use terrace_results::{ResultsError, Table, TableWriter};

use crate::answer::Answer;

/// Writes them into a directory that exists.
///
/// # Errors
/// What prevents a file from being written.
pub fn write(answer: &Answer, directory: &Path) -> Result<(), ResultsError> {
    put(directory, &answer.classes)?;
    put(directory, &answer.services)?;
    put(directory, &answer.hosts)?;
    put(directory, &answer.pairs)?;
    put(directory, &answer.left_out)
}

fn put<T: Table + Clone>(directory: &Path, rows: &[T]) -> Result<(), ResultsError> {
    let mut writer = TableWriter::create(directory)?;
    rows.iter().try_for_each(|row| writer.push(row.clone()))?;
    writer.finish()
}

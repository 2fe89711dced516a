//! Why results could not be read or a report not written.

use std::path::PathBuf;

use terrace_results::ResultsError;

/// Why results could not be read or a report not written. Each has what was got, what was
/// expected and what to do, in one line.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A table could not be read.
    #[error(transparent)]
    Table(#[from] ResultsError),
    /// There are no runs.
    #[error("{path}: got no runs, expected at least one row; run the experiment to its end")]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// A share outside of 0 to 1.
    #[error(
        "{path}: column '{column}', row {row}: got {got}, expected a share from 0 to 1; \
         run the experiment again to write the file anew"
    )]
    BadShare {
        /// Path of the file.
        path: PathBuf,
        /// Name of the column.
        column: &'static str,
        /// The row, counted from 1.
        row: usize,
        /// The value that was read.
        got: f64,
    },
    /// Claims that cannot be read.
    #[error("{path}: got '{problem}', expected the claims of a run; run the experiment again")]
    Claims {
        /// Path of the file.
        path: PathBuf,
        /// The fault in it.
        problem: String,
    },
    /// The report could not be written.
    #[error("{path}: got '{problem}' on writing the report; give a path that can be written")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        problem: String,
    },
}

//! Why results could not be read or a report not written.

use std::path::PathBuf;

use terrace_results::ResultsError;

/// Why results could not be read or a report not written. Each says what was got, what was
/// expected and what to do, in one line.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A table could not be read.
    #[error(transparent)]
    Table(#[from] ResultsError),
    /// There are no runs.
    #[error("{path}: got no runs, expected at least one row; run the experiment to its end")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A share that is none.
    #[error(
        "{path}: column '{column}', row {row}: got {got}, expected a share from 0 to 1; \
         run the experiment again to write the file anew"
    )]
    BadShare {
        /// The file.
        path: PathBuf,
        /// The column.
        column: &'static str,
        /// The row, counted from 1.
        row: usize,
        /// The value.
        got: f64,
    },
    /// Claims that cannot be read.
    #[error("{path}: got '{problem}', expected the claims of a run; run the experiment again")]
    Claims {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The report could not be written.
    #[error("{path}: got '{problem}' on writing the report; give a path that can be written")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        problem: String,
    },
}

//! Tables whose columns are known only when they are written: a column for each axis of a sweep.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::file::writer::SerializedFileWriter;

use crate::cell::{Kind, Value};
use crate::file::{ROWS_PER_GROUP, ResultsError, begin, end, write_group};

/// A column of such a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WideColumn {
    /// Name of the column.
    pub name: String,
    /// Physical kind of its values.
    pub kind: Kind,
    /// Whether its values may be null.
    pub nullable: bool,
}

/// Writes such a table; as [`crate::TableWriter`], it appears under its name when it is finished.
pub struct WideWriter {
    columns: Vec<WideColumn>,
    writer: Option<SerializedFileWriter<File>>,
    rows: Vec<Vec<Option<Value>>>,
    temporary: PathBuf,
    target: PathBuf,
}

impl WideWriter {
    /// Begins the table of this name in this directory.
    pub fn create(
        directory: &Path,
        name: &str,
        columns: Vec<WideColumn>,
    ) -> Result<Self, ResultsError> {
        let target = directory.join(format!("{name}.parquet"));
        let (temporary, writer) = begin(directory, name, &columns)?;
        Ok(WideWriter { columns, writer: Some(writer), rows: Vec::new(), temporary, target })
    }

    /// Adds a row: a value for each column, in their order.
    ///
    /// # Panics
    /// When there are more or fewer values than columns.
    pub fn push(&mut self, row: Vec<Option<Value>>) -> Result<(), ResultsError> {
        assert_eq!(row.len(), self.columns.len(), "a value for each column");
        self.rows.push(row);
        if self.rows.len() >= ROWS_PER_GROUP { self.flush() } else { Ok(()) }
    }

    /// Writes what is left and gives the file its name.
    pub fn finish(mut self) -> Result<(), ResultsError> {
        self.flush()?;
        let Some(writer) = self.writer.take() else { return Ok(()) };
        end(writer, &self.temporary, &self.target)
    }

    fn flush(&mut self) -> Result<(), ResultsError> {
        let rows = std::mem::take(&mut self.rows);
        let Some(writer) = self.writer.as_mut().filter(|_| !rows.is_empty()) else {
            return Ok(());
        };
        write_group(writer, &self.columns, rows)
            .map_err(|source| ResultsError::Parquet { path: self.target.clone(), source })
    }
}

impl Drop for WideWriter {
    fn drop(&mut self) {
        if self.writer.take().is_some() {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

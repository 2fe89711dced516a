//! Parquet files of tables: written in row groups as rows come, renamed into place when
//! complete; read back by column name.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::record::Field;
use parquet::schema::types::Type;

use crate::cell::{Kind, Value};
use crate::copy::{CopyError, append};
use crate::quiet::quietly;
use crate::table::Table;
use crate::wide::WideColumn;

/// Rows held in memory before they are written out as one row group.
pub(crate) const ROWS_PER_GROUP: usize = 16 * 1024;

/// Why a table could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file system reported an error.
    #[error("{path}: {source}; expected a results directory that can be read and written")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// There is no such file.
    #[error(
        "{path}: no such file; expected a results directory as 'terrace run --out DIR' makes it"
    )]
    Missing {
        /// Path of the file.
        path: PathBuf,
    },
    /// Not a Parquet file, or a damaged one.
    #[error(
        "{path}: {source}; expected a Parquet file as 'terrace run' writes it, run the experiment again"
    )]
    Parquet {
        /// Path of the file.
        path: PathBuf,
        /// The library's error.
        source: ParquetError,
    },
    /// A file so damaged that the Parquet library gave up on it without an error.
    #[error(
        "{path}: got a damaged file, expected a Parquet file as 'terrace run' writes it, run the experiment again"
    )]
    Damaged {
        /// Path of the file.
        path: PathBuf,
    },
    /// A column is missing or of another kind.
    #[error(
        "{path}: column '{column}' is missing or of another kind; the results were written by another version, run the experiment again"
    )]
    Column {
        /// Path of the file.
        path: PathBuf,
        /// Name of the column.
        column: &'static str,
    },
}

/// The file of table `T` in a results directory.
pub fn path<T: Table>(directory: &Path) -> PathBuf {
    directory.join(format!("{}.parquet", T::NAME))
}

/// Writes a table into a results directory. The file appears under its name when `finish` is
/// called; a writer that is dropped before leaves nothing.
pub struct TableWriter<T: Table> {
    writer: Option<SerializedFileWriter<File>>,
    rows: Vec<T>,
    temporary: PathBuf,
    target: PathBuf,
}

impl<T: Table> TableWriter<T> {
    /// Begins the table in this directory.
    pub fn create(directory: &Path) -> Result<Self, ResultsError> {
        let target = path::<T>(directory);
        let (temporary, writer) = begin(directory, T::NAME, &columns::<T>())?;
        Ok(TableWriter { writer: Some(writer), rows: Vec::new(), temporary, target })
    }

    /// Adds a row.
    pub fn push(&mut self, row: T) -> Result<(), ResultsError> {
        self.rows.push(row);
        if self.rows.len() >= ROWS_PER_GROUP { self.flush() } else { Ok(()) }
    }

    /// Adds all rows that the table of another results directory has, with `text` in their column
    /// `replaced`.
    pub fn append(
        &mut self,
        directory: &Path,
        replaced: &'static str,
        text: &str,
    ) -> Result<(), ResultsError> {
        self.flush()?;
        let path = path::<T>(directory);
        let file = open(&path)?;
        let Some(to) = self.writer.as_mut() else { return Ok(()) };
        let copied = quietly(|| {
            let from = SerializedFileReader::new(file)?;
            append::<T>(&from, to, replaced, text)
        });
        match copied {
            Some(Ok(())) => Ok(()),
            Some(Err(CopyError::Parquet(source))) => Err(ResultsError::Parquet { path, source }),
            Some(Err(CopyError::Column(column))) => Err(ResultsError::Column { path, column }),
            None => Err(ResultsError::Damaged { path }),
        }
    }

    /// Writes what is left and gives the file its name.
    pub fn finish(mut self) -> Result<(), ResultsError> {
        self.flush()?;
        let Some(writer) = self.writer.take() else { return Ok(()) };
        end(writer, &self.temporary, &self.target)
    }

    fn parquet(&self, source: ParquetError) -> ResultsError {
        ResultsError::Parquet { path: self.target.clone(), source }
    }

    fn flush(&mut self) -> Result<(), ResultsError> {
        let rows: Vec<_> = std::mem::take(&mut self.rows).iter().map(T::values).collect();
        let Some(writer) = self.writer.as_mut().filter(|_| !rows.is_empty()) else {
            return Ok(());
        };
        write_group(writer, &columns::<T>(), rows).map_err(|e| self.parquet(e))
    }
}

impl<T: Table> Drop for TableWriter<T> {
    fn drop(&mut self) {
        if self.writer.take().is_some() {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

fn columns<T: Table>() -> Vec<WideColumn> {
    let wide = |c: crate::table::Column| WideColumn {
        name: c.name.to_owned(),
        kind: c.kind,
        nullable: c.nullable,
    };
    T::columns().into_iter().map(wide).collect()
}

/// A new file in the directory that no other writer has, of this process or another, for a table of
/// this name.
fn temporary(directory: &Path, name: &str) -> Result<(PathBuf, File), ResultsError> {
    for number in 0u64.. {
        let path = directory.join(format!(".{name}.parquet.{}.{number}.part", std::process::id()));
        match File::options().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(ResultsError::Io { path, source }),
        }
    }
    unreachable!("numbers go on")
}

/// Ends a file that was begun and gives it its name; where either fails it is removed.
pub(crate) fn end(
    writer: SerializedFileWriter<File>,
    temporary: &Path,
    target: &Path,
) -> Result<(), ResultsError> {
    let path = || target.to_owned();
    let closed = writer.close().map_err(|source| ResultsError::Parquet { path: path(), source });
    let ended = closed.and_then(|_| {
        let renamed = std::fs::rename(temporary, target);
        renamed.map_err(|source| ResultsError::Io { path: path(), source })
    });
    ended.inspect_err(|_| {
        let _ = std::fs::remove_file(temporary);
    })
}

/// Begins a file of a table with these columns, under a temporary name.
pub(crate) fn begin(
    directory: &Path,
    name: &str,
    columns: &[WideColumn],
) -> Result<(PathBuf, SerializedFileWriter<File>), ResultsError> {
    let (path, file) = temporary(directory, name)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by(terrace_identity::created_by("terrace"))
        .build();
    match SerializedFileWriter::new(file, schema(name, columns), Arc::new(properties)) {
        Ok(writer) => Ok((path, writer)),
        Err(source) => {
            let _ = std::fs::remove_file(&path);
            Err(ResultsError::Parquet { path, source })
        }
    }
}

fn schema(name: &str, columns: &[WideColumn]) -> Arc<Type> {
    let field = |c: &WideColumn| {
        let (physical, logical) = match c.kind {
            Kind::Integer => (Physical::INT64, None),
            Kind::Real => (Physical::DOUBLE, None),
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Truth => (Physical::BOOLEAN, None),
        };
        let repetition = if c.nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let builder = Type::primitive_type_builder(&c.name, physical);
        let builder = builder.with_repetition(repetition).with_logical_type(logical);
        Arc::new(builder.build().expect("a primitive column"))
    };
    let fields = columns.iter().map(field).collect();
    Arc::new(Type::group_type_builder(name).with_fields(fields).build().expect("a flat schema"))
}

/// Writes rows as one row group.
pub(crate) fn write_group(
    writer: &mut SerializedFileWriter<File>,
    columns: &[WideColumn],
    mut rows: Vec<Vec<Option<Value>>>,
) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    for (index, column) in columns.iter().enumerate() {
        let values = rows.iter_mut().map(|row| row[index].take());
        let values: Vec<Option<Value>> = values.collect();
        let levels: Option<Vec<i16>> =
            column.nullable.then(|| values.iter().map(|v| v.is_some().into()).collect());
        let values = values.into_iter().flatten();
        match column.kind {
            Kind::Integer => write_column::<Int64Type>(&mut group, levels, values, |v| match v {
                Value::Integer(v) => v,
                _ => 0,
            })?,
            Kind::Real => write_column::<DoubleType>(&mut group, levels, values, |v| match v {
                Value::Real(v) => v,
                _ => 0.0,
            })?,
            Kind::Text => write_column::<ByteArrayType>(&mut group, levels, values, |v| match v {
                Value::Text(v) => ByteArray::from(v.into_bytes()),
                _ => ByteArray::new(),
            })?,
            Kind::Truth => write_column::<BoolType>(&mut group, levels, values, |v| {
                matches!(v, Value::Truth(true))
            })?,
        }
    }
    group.close()?;
    Ok(())
}

fn write_column<D: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    levels: Option<Vec<i16>>,
    values: impl Iterator<Item = Value>,
    plain: impl Fn(Value) -> D::T,
) -> Result<(), ParquetError> {
    let values: Vec<D::T> = values.map(plain).collect();
    let mut column = group
        .next_column()?
        .ok_or_else(|| ParquetError::General("fewer columns than the schema has".into()))?;
    column.typed::<D>().write_batch(&values, levels.as_deref(), None)?;
    column.close()
}

/// Reads table `T` of a results directory, columns by name; others are ignored.
pub fn read<T: Table>(directory: &Path) -> Result<Vec<T>, ResultsError> {
    let path = path::<T>(directory);
    let file = open(&path)?;
    // The library asserts some of what it reads, and so panics on certain damage.
    quietly(|| rows_of(file, &path)).unwrap_or(Err(ResultsError::Damaged { path: path.clone() }))
}

fn open(path: &Path) -> Result<File, ResultsError> {
    File::open(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => ResultsError::Missing { path: path.to_owned() },
        _ => ResultsError::Io { path: path.to_owned(), source },
    })
}

fn rows_of<T: Table>(file: File, path: &Path) -> Result<Vec<T>, ResultsError> {
    let broken = |source| ResultsError::Parquet { path: path.to_owned(), source };
    let reader = SerializedFileReader::new(file).map_err(broken)?;
    let columns = T::columns();
    let mut rows = Vec::new();
    for row in reader.get_row_iter(None).map_err(broken)? {
        let row = row.map_err(broken)?;
        let mut values: Vec<Option<Value>> = vec![None; columns.len()];
        for (name, field) in row.get_column_iter() {
            if let Some(index) = columns.iter().position(|c| c.name == name) {
                values[index] = value(field);
            }
        }
        let row = T::from_values(values)
            .map_err(|column| ResultsError::Column { path: path.to_owned(), column })?;
        rows.push(row);
    }
    Ok(rows)
}

fn value(field: &Field) -> Option<Value> {
    Some(match field {
        Field::Long(v) => Value::Integer(*v),
        Field::Double(v) => Value::Real(*v),
        Field::Str(v) => Value::Text(v.clone()),
        Field::Bool(v) => Value::Truth(*v),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::RunRow;
    use crate::wide::WideWriter;

    fn row(number: u64) -> RunRow {
        RunRow {
            run: format!("run-{number}"),
            hit_ratio: 0.25 * number as f64,
            operations: number.is_multiple_of(2).then_some(number),
            checksum_ok: (number == 1).then_some(true),
            emulated: number == 3,
            notes: (number == 2).then(|| "größer".to_owned()),
            ..RunRow::default()
        }
    }

    fn write(directory: &Path, count: u64) {
        let mut writer = TableWriter::create(directory).unwrap();
        (0..count).for_each(|n| writer.push(row(n)).unwrap());
        writer.finish().unwrap();
    }

    #[test]
    fn two_writers_of_one_table_at_once_each_write_a_whole_one() {
        let directory = tempfile::tempdir().unwrap();
        let mut writers: Vec<TableWriter<RunRow>> =
            (0..2).map(|_| TableWriter::create(directory.path()).unwrap()).collect();
        for (count, writer) in [(40, 0), (3, 1)] {
            (0..count).for_each(|n| writers[writer].push(row(n)).unwrap());
        }
        for (writer, count) in writers.into_iter().zip([40, 3]) {
            writer.finish().unwrap();
            assert_eq!(read::<RunRow>(directory.path()).unwrap().len(), count);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn rows_come_back_as_they_were_written_over_several_row_groups() {
        let directory = tempfile::tempdir().unwrap();
        let count = ROWS_PER_GROUP as u64 + 3;
        write(directory.path(), count);
        let rows: Vec<RunRow> = read(directory.path()).unwrap();
        assert_eq!(rows.len() as u64, count);
        for number in [0, 1, 2, 3, count - 1] {
            assert_eq!(rows[number as usize], row(number));
        }
    }

    #[test]
    fn tables_are_put_together_with_one_column_replaced() {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let count = ROWS_PER_GROUP as u64 + 3;
        write(directories[0].path(), count);
        let together = directories[1].path();
        let mut writer = TableWriter::create(together).unwrap();
        writer.push(row(7)).unwrap();
        writer.append(directories[0].path(), "run", "first").unwrap();
        writer.push(row(8)).unwrap();
        writer.append(directories[0].path(), "run", "second").unwrap();
        writer.finish().unwrap();
        let expected = |name: &str| {
            let name = name.to_owned();
            (0..count).map(move |n| RunRow { run: name.clone(), ..row(n) })
        };
        let rows: Vec<RunRow> = read(together).unwrap();
        let all = [row(7)].into_iter().chain(expected("first"));
        let all: Vec<_> = all.chain([row(8)]).chain(expected("second")).collect();
        assert!(rows == all, "{} rows of {}", rows.len(), all.len());
        // What is missing, damaged or another table is reported.
        let says = |directory: &Path| {
            let mut writer = TableWriter::<RunRow>::create(together).unwrap();
            writer.append(directory, "run", "x").unwrap_err().to_string()
        };
        let other = tempfile::tempdir().unwrap();
        assert!(says(other.path()).contains("no such file"));
        std::fs::write(path::<RunRow>(other.path()), b"PAR1\0\0\0\0PAR1").unwrap();
        assert!(says(other.path()).contains("expected a Parquet file"));
        let mut heat = TableWriter::create(other.path()).unwrap();
        heat.push(crate::HeatRow::default()).unwrap();
        heat.finish().unwrap();
        std::fs::rename(path::<crate::HeatRow>(other.path()), path::<RunRow>(other.path()))
            .unwrap();
        assert!(says(other.path()).contains("is missing or of another kind"));
        assert_eq!(read::<RunRow>(together).unwrap().len(), all.len(), "the table stays");
    }

    #[test]
    fn the_same_rows_give_the_same_bytes() {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let bytes = directories.map(|d| {
            write(d.path(), 5);
            std::fs::read(path::<RunRow>(d.path())).unwrap()
        });
        assert_eq!(bytes[0], bytes[1]);
    }

    #[test]
    fn a_writer_that_is_dropped_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = TableWriter::create(directory.path()).unwrap();
        writer.push(row(1)).unwrap();
        drop(writer);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        // Nor does one whose file cannot get its name: a folder has it.
        let target = path::<RunRow>(directory.path());
        std::fs::create_dir(&target).unwrap();
        let mut writer = TableWriter::create(directory.path()).unwrap();
        writer.push(row(1)).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("runs.parquet"), "{error}");
        let wide = WideWriter::create(directory.path(), "runs", Vec::new()).unwrap();
        wide.finish().unwrap_err();
        let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn what_cannot_be_read_is_reported_in_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let says = || read::<RunRow>(directory.path()).unwrap_err().to_string();
        assert!(says().contains("no such file"), "{}", says());
        let file = path::<RunRow>(directory.path());
        for hostile in [&b""[..], b"PAR1", b"PAR1\0\0\0\0PAR1", &[0xff; 4096]] {
            std::fs::write(&file, hostile).unwrap();
            assert!(says().contains("expected a Parquet file"), "{}", says());
        }
        write(directory.path(), 1);
        std::fs::copy(&file, path::<crate::PeriodRow>(directory.path())).unwrap();
        let error = read::<crate::PeriodRow>(directory.path()).unwrap_err().to_string();
        assert!(error.contains("column 'period' is missing"), "{error}");
    }

    #[test]
    fn damage_anywhere_is_an_error_or_goes_unnoticed() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), 2);
        let file = path::<RunRow>(directory.path());
        let whole = std::fs::read(&file).unwrap();
        let positions = (0..whole.len()).step_by(23);
        let mut refused = 0;
        for position in positions.clone() {
            let mut bytes = whole.clone();
            bytes[position] ^= 1 << (position % 8);
            std::fs::write(&file, bytes).unwrap();
            if let Err(error) = read::<RunRow>(directory.path()) {
                refused += 1;
                let error = error.to_string();
                assert!(error.contains("run the experiment again"), "{position}: {error}");
                assert_eq!(error.lines().count(), 1, "{position}: {error}");
            }
        }
        assert!(refused > positions.len() / 10, "only {refused} were refused");
    }
}

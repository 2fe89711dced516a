//! Copies a table's file into another column by column, with one column's text replaced: many times
//! as fast as row by row, which matters where tables of many runs become one.

use std::fs::File;

use parquet::basic::Type as Physical;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};

use crate::cell::Kind;
use crate::table::{Column, Table};

/// Why a file was not copied.
pub(crate) enum CopyError {
    /// It is damaged, or the other cannot be written.
    Parquet(ParquetError),
    /// A column is missing or of another kind.
    Column(&'static str),
}

impl From<ParquetError> for CopyError {
    fn from(error: ParquetError) -> Self {
        CopyError::Parquet(error)
    }
}

/// Appends all row groups of `from`, which stay the groups they are, with `text` in each row of the
/// column `replaced`.
pub(crate) fn append<T: Table>(
    from: &SerializedFileReader<File>,
    to: &mut SerializedFileWriter<File>,
    replaced: &'static str,
    text: &str,
) -> Result<(), CopyError> {
    let columns = T::columns();
    for number in 0..from.num_row_groups() {
        let group = from.get_row_group(number)?;
        let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        if rows == 0 {
            continue;
        }
        let mut written = to.next_row_group()?;
        for column in &columns {
            let index = place(&group.metadata().schema_descr_ptr(), column)?;
            let mut writer = written
                .next_column()?
                .ok_or_else(|| ParquetError::General("fewer columns than the schema has".into()))?;
            if column.name == replaced {
                let values = vec![ByteArray::from(text.as_bytes().to_vec()); rows];
                let levels = column.nullable.then(|| vec![1; rows]);
                writer.typed::<ByteArrayType>().write_batch(&values, levels.as_deref(), None)?;
            } else {
                let (nullable, writer) = (column.nullable, &mut writer);
                match group.get_column_reader(index)? {
                    ColumnReader::Int64ColumnReader(r) => copy(r, writer, rows, nullable)?,
                    ColumnReader::DoubleColumnReader(r) => copy(r, writer, rows, nullable)?,
                    ColumnReader::ByteArrayColumnReader(r) => copy(r, writer, rows, nullable)?,
                    ColumnReader::BoolColumnReader(r) => copy(r, writer, rows, nullable)?,
                    _ => return Err(CopyError::Column(column.name)),
                }
            }
            writer.close()?;
        }
        written.close()?;
    }
    Ok(())
}

/// Where a column of this kind is in the file.
fn place(
    file: &parquet::schema::types::SchemaDescriptor,
    column: &Column,
) -> Result<usize, CopyError> {
    let physical = match column.kind {
        Kind::Integer => Physical::INT64,
        Kind::Real => Physical::DOUBLE,
        Kind::Text => Physical::BYTE_ARRAY,
        Kind::Truth => Physical::BOOLEAN,
    };
    let fits = |c: &parquet::schema::types::ColumnDescPtr| {
        c.name() == column.name
            && c.physical_type() == physical
            && c.max_rep_level() == 0
            && c.max_def_level() == i16::from(column.nullable)
    };
    file.columns().iter().position(fits).ok_or(CopyError::Column(column.name))
}

fn copy<D: DataType>(
    mut from: ColumnReaderImpl<D>,
    to: &mut SerializedColumnWriter<'_>,
    rows: usize,
    nullable: bool,
) -> Result<(), CopyError> {
    let (mut values, mut levels) = (Vec::with_capacity(rows), Vec::new());
    let mut read = 0;
    while read < rows {
        let levels = nullable.then_some(&mut levels);
        let (records, _, _) = from.read_records(rows - read, levels, None, &mut values)?;
        if records == 0 {
            return Err(ParquetError::EOF(format!("{read} of {rows} rows in a column")).into());
        }
        read += records;
    }
    to.typed::<D>().write_batch(&values, nullable.then_some(&levels), None)?;
    Ok(())
}

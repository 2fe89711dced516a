//! Result tables: read from their Parquet files into Arrow's columns, and passed on through the
//! Arrow PyCapsule interface, without a copy.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::ffi::FFI_ArrowSchema;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::{TerraceError, refused};

/// A table of results. pyarrow.table(t), polars.DataFrame(t) and pandas read it without copying.
#[pyclass(frozen, module = "terrace")]
pub struct Table {
    schema: SchemaRef,
    /// One for each row group.
    batches: Arc<[RecordBatch]>,
}

impl Table {
    /// Reads a Parquet file.
    pub fn of_file(path: &Path) -> PyResult<Self> {
        let damaged = |e: String| {
            refused(format_args!(
                "{}: {e}; expected a table as Terrace writes it, run the experiment again",
                path.display()
            ))
        };
        let file = File::open(path).map_err(|e| damaged(e.to_string()))?;
        // The library asserts some of what it reads, and so panics on certain damage.
        let read = catch_unwind(AssertUnwindSafe(|| read(file)));
        read.unwrap_or_else(|_| Err("got a damaged file".to_owned())).map_err(damaged)
    }
}

/// Reads the file of a flat table of whole numbers, numbers, texts and truths.
fn read(file: File) -> Result<Table, String> {
    let reader = SerializedFileReader::new(file).map_err(|e| e.to_string())?;
    let mut fields = Vec::new();
    for column in reader.metadata().file_metadata().schema_descr().columns() {
        use parquet::basic::Type;
        let kind = match column.physical_type() {
            Type::INT64 => DataType::Int64,
            Type::DOUBLE => DataType::Float64,
            Type::BYTE_ARRAY => DataType::Utf8,
            Type::BOOLEAN => DataType::Boolean,
            other => return Err(format!("column '{}' is of kind {other}", column.name())),
        };
        if column.max_rep_level() > 0 || column.max_def_level() > 1 {
            return Err(format!("column '{}' holds lists", column.name()));
        }
        fields.push(Field::new(column.name(), kind, column.max_def_level() > 0));
    }
    let schema = Arc::new(Schema::new(fields));
    let batches = (0..reader.num_row_groups()).map(|number| {
        let group = reader.get_row_group(number).map_err(|e| e.to_string())?;
        let columns = schema.fields().iter().enumerate();
        let columns: Result<Vec<_>, _> =
            columns.map(|(at, field)| column(group.as_ref(), at, field)).collect();
        RecordBatch::try_new(schema.clone(), columns?).map_err(|e| e.to_string())
    });
    let batches = batches.collect::<Result<Vec<_>, _>>()?;
    Ok(Table { schema, batches: batches.into() })
}

/// A column of a row group as an array.
fn column(group: &dyn RowGroupReader, at: usize, field: &Field) -> Result<ArrayRef, String> {
    let rows = usize::try_from(group.metadata().num_rows()).map_err(|e| e.to_string())?;
    let nullable = field.is_nullable();
    Ok(match group.get_column_reader(at).map_err(|e| e.to_string())? {
        ColumnReader::Int64ColumnReader(reader) => {
            let (values, nulls) = values(reader, rows, nullable)?;
            Arc::new(Int64Array::new(values.into(), nulls))
        }
        ColumnReader::DoubleColumnReader(reader) => {
            let (values, nulls) = values(reader, rows, nullable)?;
            Arc::new(Float64Array::new(values.into(), nulls))
        }
        ColumnReader::BoolColumnReader(reader) => {
            let (values, nulls) = values(reader, rows, nullable)?;
            Arc::new(BooleanArray::new(values.into(), nulls))
        }
        ColumnReader::ByteArrayColumnReader(reader) => {
            let (values, nulls) = values(reader, rows, nullable)?;
            let mut texts = Vec::with_capacity(rows);
            for (at, value) in values.iter().enumerate() {
                texts.push(match nulls.as_ref().is_some_and(|nulls| nulls.is_null(at)) {
                    true => None,
                    false => Some(std::str::from_utf8(value.data()).map_err(|e| e.to_string())?),
                });
            }
            Arc::new(StringArray::from(texts))
        }
        _ => return Err(format!("column '{}' is of another kind", field.name())),
    })
}

/// The values of a column with a default where there is none, and where that is.
fn values<D: data_type::DataType>(
    mut reader: ColumnReaderImpl<D>,
    rows: usize,
    nullable: bool,
) -> Result<(Vec<D::T>, Option<NullBuffer>), String> {
    let (mut levels, mut there) = (Vec::new(), Vec::new());
    let mut read = 0;
    while read < rows {
        let levels = nullable.then_some(&mut levels);
        let (records, ..) = reader
            .read_records(rows - read, levels, None, &mut there)
            .map_err(|e| e.to_string())?;
        if records == 0 {
            return Err(format!("{read} rows in a column of {rows}"));
        }
        read += records;
    }
    if !nullable || there.len() == rows {
        return Ok((there, None));
    }
    let mut there = there.into_iter();
    let valid: Vec<bool> = levels.iter().map(|level| *level > 0).collect();
    let spread = |is: &bool| if *is { there.next() } else { None }.unwrap_or_default();
    Ok((valid.iter().map(spread).collect(), Some(valid.into())))
}

#[pymethods]
impl Table {
    /// Reads the Parquet file of a table.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| Table::of_file(&path))
    }

    /// The table as an Arrow stream (Arrow PyCapsule interface). Its columns are shared, not copied.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface lets a producer ignore what it cannot convert to.
        let _ = requested_schema;
        let batches: Vec<_> = self.batches.iter().cloned().map(Ok).collect();
        let reader = RecordBatchIterator::new(batches, self.schema.clone());
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// The schema of the table (Arrow PyCapsule interface).
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.schema.as_ref())
            .map_err(|e| TerraceError::new_err(e.to_string()))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|f| f.name().clone()).collect()
    }

    /// How many rows it has.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    fn __len__(&self) -> usize {
        self.num_rows()
    }

    fn __repr__(&self) -> String {
        format!(
            "<terrace.Table: {} rows of {} columns>",
            self.num_rows(),
            self.schema.fields().len()
        )
    }

    /// As a pyarrow.Table.
    fn to_pyarrow<'py>(this: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        this.py().import("pyarrow")?.call_method1("table", (this,))
    }

    /// As a polars.DataFrame.
    fn to_polars<'py>(this: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        this.py().import("polars")?.call_method1("DataFrame", (this,))
    }

    /// As a pandas.DataFrame, by way of pyarrow.
    fn to_pandas<'py>(this: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::to_pyarrow(this)?.call_method0("to_pandas")
    }
}

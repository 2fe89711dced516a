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
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyIterator, PyList, PySlice};

use crate::cells::{self, Cell, Shown};
use crate::errors::{TerraceError, raised, refused, unknown};

/// A table of results. `t["column"]` is a column as a NumPy array, `t[["a", "b"]]` some columns,
/// `t[0]` a row, `t[5:9]` and `t[mask]` some rows. pyarrow.table(t) and polars.DataFrame(t) read it
/// without copying, pandas.DataFrame(t) too reads it.
#[pyclass(frozen, module = "terrace")]
#[derive(Clone)]
pub struct Table {
    schema: SchemaRef,
    /// One for each row group.
    batches: Arc<[RecordBatch]>,
}

impl Table {
    /// Reads a Parquet file.
    pub fn of_file(path: &Path) -> PyResult<Self> {
        Table::read_as(path, path)
    }

    /// Reads a Parquet file that errors call by another name.
    fn read_as(path: &Path, name: &Path) -> PyResult<Self> {
        let damaged = |e: String| {
            refused(format_args!(
                "{}: {e}; expected a table as Terrace writes it, run the experiment again",
                name.display()
            ))
        };
        let file = File::open(path).map_err(|e| damaged(e.to_string()))?;
        // The library asserts some of what it reads, and so panics on certain damage.
        let read = catch_unwind(AssertUnwindSafe(|| read(file)));
        read.unwrap_or_else(|_| Err("got a damaged file".to_owned())).map_err(damaged)
    }
}

impl Table {
    /// Names of the columns.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.schema.fields().iter().map(|field| field.name().as_str())
    }

    /// How many rows it has.
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// The position of a column.
    fn position(&self, py: Python<'_>, name: &str) -> PyResult<usize> {
        self.names()
            .position(|known| known == name)
            .ok_or_else(|| unknown(py, "column", name, self.names()))
    }

    /// The batch of a row, and its number in it.
    fn place(&self, mut row: usize) -> Option<(usize, usize)> {
        for (at, batch) in self.batches.iter().enumerate() {
            match row.checked_sub(batch.num_rows()) {
                None => return Some((at, row)),
                Some(rest) => row = rest,
            }
        }
        None
    }

    /// The values of a column; nothing where it is not there.
    pub fn cells<'a>(&'a self, name: &str) -> Option<impl Iterator<Item = Cell> + use<'a>> {
        let at = self.names().position(|known| known == name)?;
        let batches = self.batches.iter();
        Some(batches.flat_map(move |batch| {
            (0..batch.num_rows()).map(move |row| cells::cell(batch.column(at), row))
        }))
    }

    /// The rows of these numbers.
    pub fn taken(&self, rows: impl Iterator<Item = usize>) -> PyResult<Table> {
        let places: Option<Vec<_>> = rows.map(|row| self.place(row)).collect();
        let places = places.ok_or_else(|| PyIndexError::new_err("a row past the last"))?;
        let batch = cells::taken(&self.schema, &self.batches, &places)?;
        Ok(Table { schema: self.schema.clone(), batches: [batch].into() })
    }

    /// The rows that have one of these texts in a column.
    pub fn with(&self, column: &str, values: &[String]) -> PyResult<Table> {
        let cells = self.cells(column).ok_or_else(|| refused(format_args!("no '{column}'")))?;
        let wanted = |cell: &Cell| matches!(cell, Cell::Text(text) if values.contains(text));
        let rows: Vec<_> = cells.enumerate().filter(|(_, c)| wanted(c)).map(|(at, _)| at).collect();
        self.taken(rows.into_iter())
    }

    /// Some of its columns.
    pub fn selected(&self, py: Python<'_>, names: &[String]) -> PyResult<Table> {
        let positions: Vec<_> =
            names.iter().map(|name| self.position(py, name)).collect::<PyResult<_>>()?;
        let project = |batch: &RecordBatch| batch.project(&positions);
        let batches: Result<Vec<_>, _> = self.batches.iter().map(project).collect();
        let schema = self.schema.project(&positions).map_err(|e| raised(e.into()))?;
        Ok(Table {
            schema: Arc::new(schema),
            batches: batches.map_err(|e| raised(e.into()))?.into(),
        })
    }

    /// Rows one after the other, without a copy.
    fn sliced(&self, first: usize, count: usize) -> Table {
        let (mut skip, mut left) = (first, count);
        let mut batches = Vec::new();
        for batch in self.batches.iter() {
            let rows = batch.num_rows();
            let from = skip.min(rows);
            let taken = left.min(rows - from);
            skip -= from;
            left -= taken;
            if taken > 0 {
                batches.push(batch.slice(from, taken));
            }
        }
        Table { schema: self.schema.clone(), batches: batches.into() }
    }

    /// As it shows itself.
    pub fn shown(&self) -> Shown {
        Shown::of(&self.schema, &self.batches)
    }

    /// Its row of this number as a dict.
    fn row<'py>(&self, py: Python<'py>, row: usize) -> PyResult<Bound<'py, PyDict>> {
        let Some((batch, row)) = self.place(row) else {
            let text = format!("row {row}: expected one of {} rows, from 0", self.rows());
            return Err(PyIndexError::new_err(text));
        };
        cells::row(py, &self.schema, &self.batches[batch], row)
    }

    /// The rows that an array of truths or of numbers names.
    fn by_array<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let array = py.import("numpy")?.call_method1("asarray", (key,))?;
        let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
        let rows = self.rows();
        let picked: Vec<usize> = match kind.as_str() {
            "b" => {
                let mask: Vec<bool> = array.call_method0("tolist")?.extract()?;
                if mask.len() != rows {
                    return Err(refused(format_args!(
                        "a mask of {} rows, expected one of {rows}",
                        mask.len()
                    )));
                }
                (0..rows).filter(|row| mask[*row]).collect()
            }
            "i" | "u" => {
                let numbers: Vec<i64> = array.call_method0("tolist")?.extract()?;
                numbers.into_iter().map(|n| counted(n, rows)).collect::<PyResult<_>>()?
            }
            _ => {
                let text = format!(
                    "a table indexed by {}, expected a column's name, a list of names, a row's number, a \
                     slice, or a mask of rows",
                    key.get_type()
                );
                return Err(PyTypeError::new_err(text));
            }
        };
        Ok(Bound::new(py, self.taken(picked.into_iter())?)?.into_any())
    }
}

/// The number of a row; one below 0 counts from the end.
fn counted(number: i64, rows: usize) -> PyResult<usize> {
    let from_start = if number < 0 { number + rows as i64 } else { number };
    usize::try_from(from_start).ok().filter(|row| *row < rows).ok_or_else(|| {
        PyIndexError::new_err(format!("row {number}: expected one of {rows} rows, from 0"))
    })
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
    /// Reads the Parquet file of a table, here or in an object store (`s3://BUCKET/PATH`).
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| match terrace_stores::is_elsewhere(&path) {
            true => {
                let copy = terrace_stores::fetch(&path);
                let copy = copy.map_err(|e| refused(format_args!("{}: {e}", path.display())))?;
                Table::read_as(copy.path(), &path)
            }
            false => Table::of_file(&path),
        })
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
    fn columns(&self) -> Vec<String> {
        self.names().map(str::to_owned).collect()
    }

    /// Names of the columns, as pyarrow calls them.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.columns()
    }

    /// How many rows it has.
    #[getter]
    fn num_rows(&self) -> usize {
        self.rows()
    }

    /// How many rows and columns it has.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        (self.rows(), self.schema.fields().len())
    }

    fn __len__(&self) -> usize {
        self.rows()
    }

    /// Whether it has a column of this name.
    fn __contains__(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// A column, by its name; some columns, by a list of names; a row, by its number; some rows, by a
    /// slice, a mask or their numbers.
    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        if let Ok(name) = key.extract::<String>() {
            let at = self.position(py, &name)?;
            let parts: Vec<_> = self.batches.iter().map(|batch| batch.column(at)).collect();
            return cells::array(py, self.schema.field(at).data_type(), &parts);
        }
        if let Ok(slice) = key.cast::<PySlice>() {
            let range = slice.indices(self.rows() as isize)?;
            let first = usize::try_from(range.start).unwrap_or(0);
            let some = match range.step {
                1 => self.sliced(first, range.slicelength),
                step => self.taken(
                    (0..range.slicelength as isize)
                        .map(|n| usize::try_from(range.start + n * step).unwrap_or(usize::MAX)),
                )?,
            };
            return Ok(Bound::new(py, some)?.into_any());
        }
        if let Ok(number) = key.extract::<i64>() {
            return Ok(self.row(py, counted(number, self.rows())?)?.into_any());
        }
        if let Ok(list) = key.cast::<PyList>()
            && let Ok(names) = list.extract::<Vec<String>>()
        {
            return Ok(Bound::new(py, self.selected(py, &names)?)?.into_any());
        }
        self.by_array(key)
    }

    /// Its rows, each as a dict.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let rows = PyList::empty(py);
        for batch in self.batches.iter() {
            for row in 0..batch.num_rows() {
                rows.append(cells::row(py, &self.schema, batch, row)?)?;
            }
        }
        rows.try_iter()
    }

    /// The first rows.
    #[pyo3(signature = (rows=5))]
    fn head(&self, rows: usize) -> Table {
        self.sliced(0, rows)
    }

    /// Names that an interactive Python completes after `t[`.
    fn _ipython_key_completions_(&self) -> Vec<String> {
        self.columns()
    }

    fn __repr__(&self) -> String {
        let (rows, columns) = self.shape();
        format!("<terrace.Table of {rows} rows, {columns} columns>\n{}", self.shown().text())
    }

    fn _repr_html_(&self) -> String {
        self.shown().html()
    }

    /// As a pyarrow.Table.
    fn to_pyarrow<'py>(this: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        library(this.py(), "pyarrow")?.call_method1("table", (this,))
    }

    /// As a polars.DataFrame.
    fn to_polars<'py>(this: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        library(this.py(), "polars")?.call_method1("DataFrame", (this,))
    }

    /// As a pandas.DataFrame, by way of pyarrow.
    fn to_pandas<'py>(this: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        library(this.py(), "pandas")?;
        Self::to_pyarrow(this)?.call_method0("to_pandas")
    }
}

/// A library that the package does without, until somebody asks for its tables.
fn library<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyModule>> {
    py.import(name).map_err(|error| {
        let text = format!("no module '{name}': expected it for this; pip install {name}");
        let missing = pyo3::exceptions::PyImportError::new_err(text);
        missing.set_cause(py, Some(error));
        missing
    })
}

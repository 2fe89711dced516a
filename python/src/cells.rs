//! What is in a table, for Python: columns as NumPy arrays, values, some of the rows, and the table
//! as text and as HTML.

use std::fmt::Write;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray,
};
use arrow_schema::{DataType, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::column::Values;
use crate::errors::raised;

/// Rows that a table shows of itself.
const SHOWN_ROWS: usize = 10;
/// Width of a table as text; columns that do not fit are counted.
const SHOWN_WIDTH: usize = 100;
/// Columns that a table shows as HTML, where the page can be moved sideways.
const SHOWN_COLUMNS: usize = 40;

/// One value of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// None.
    Missing,
    /// A whole number.
    Whole(i64),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// True or false.
    Truth(bool),
}

impl Cell {
    /// As an object of Python.
    pub fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Cell::Missing => py.None().into_bound(py),
            Cell::Whole(value) => value.into_pyobject(py)?.into_any(),
            Cell::Number(value) => value.into_pyobject(py)?.into_any(),
            Cell::Text(value) => value.into_pyobject(py)?.into_any(),
            Cell::Truth(value) => value.into_pyobject(py)?.to_owned().into_any(),
        })
    }

    /// As people read it: numbers to six digits.
    pub fn shown(&self) -> String {
        match self {
            Cell::Missing => "-".to_owned(),
            Cell::Whole(value) => value.to_string(),
            Cell::Number(value) => number(*value),
            Cell::Text(value) => value.clone(),
            Cell::Truth(value) => if *value { "True" } else { "False" }.to_owned(),
        }
    }
}

/// A number to six digits, without zeros at its end.
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-5..15).contains(&magnitude) {
        return format!("{value:.5e}");
    }
    let digits = usize::try_from(5 - magnitude).unwrap_or(0);
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// The value of a column at a row.
pub fn cell(column: &ArrayRef, row: usize) -> Cell {
    if column.is_null(row) {
        return Cell::Missing;
    }
    match column.data_type() {
        DataType::Int64 => Cell::Whole(column.as_primitive::<Int64Type>().value(row)),
        DataType::Float64 => Cell::Number(column.as_primitive::<Float64Type>().value(row)),
        DataType::Boolean => Cell::Truth(column.as_boolean().value(row)),
        _ => Cell::Text(column.as_string::<i32>().value(row).to_owned()),
    }
}

/// A row as a dict.
pub fn row<'py>(
    py: Python<'py>,
    schema: &SchemaRef,
    batch: &RecordBatch,
    row: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        all.set_item(field.name(), cell(column, row).object(py)?)?;
    }
    Ok(all)
}

/// A column as a NumPy array: whole numbers, numbers and truths as such, where all are there;
/// numbers with NaN where some are missing; else objects, with None.
pub fn array<'py>(
    py: Python<'py>,
    kind: &DataType,
    parts: &[&ArrayRef],
) -> PyResult<Bound<'py, PyAny>> {
    let complete = parts.iter().all(|part| part.null_count() == 0);
    let cells = || parts.iter().flat_map(|part| (0..part.len()).map(|row| cell(part, row)));
    match kind {
        DataType::Int64 if complete => {
            let all = parts.iter().flat_map(|p| p.as_primitive::<Int64Type>().values().iter());
            Values::Whole(all.copied().collect()).array(py)
        }
        DataType::Int64 | DataType::Float64 => {
            let value = |cell| match cell {
                Cell::Whole(value) => value as f64,
                Cell::Number(value) => value,
                _ => f64::NAN,
            };
            Values::Number(cells().map(value).collect()).array(py)
        }
        DataType::Boolean if complete => {
            Values::Truth(cells().map(|cell| u8::from(cell == Cell::Truth(true))).collect())
                .array(py)
        }
        _ => {
            let all = PyList::empty(py);
            for cell in cells() {
                all.append(cell.object(py)?)?;
            }
            py.import("numpy")?.call_method1("array", (all, "O"))
        }
    }
}

/// The rows of these numbers, in this order, as one batch.
pub fn taken(
    schema: &SchemaRef,
    batches: &[RecordBatch],
    rows: &[(usize, usize)],
) -> PyResult<RecordBatch> {
    let column = |at: usize, kind: &DataType| -> ArrayRef {
        let cells = rows.iter().map(|&(batch, row)| cell(batches[batch].column(at), row));
        match kind {
            DataType::Int64 => Arc::new(Int64Array::from_iter(cells.map(|cell| match cell {
                Cell::Whole(value) => Some(value),
                _ => None,
            }))),
            DataType::Float64 => Arc::new(Float64Array::from_iter(cells.map(|cell| match cell {
                Cell::Number(value) => Some(value),
                _ => None,
            }))),
            DataType::Boolean => Arc::new(BooleanArray::from_iter(cells.map(|cell| match cell {
                Cell::Truth(value) => Some(value),
                _ => None,
            }))),
            _ => Arc::new(StringArray::from_iter(cells.map(|cell| match cell {
                Cell::Text(value) => Some(value),
                _ => None,
            }))),
        }
    };
    let fields = schema.fields().iter().enumerate();
    let columns = fields.map(|(at, field)| column(at, field.data_type())).collect();
    RecordBatch::try_new(schema.clone(), columns).map_err(|e| raised(e.into()))
}

/// The first rows as columns of texts: heading, whether it is of numbers, and the values.
pub struct Shown {
    columns: Vec<(String, bool, Vec<String>)>,
    rows: usize,
    all_rows: usize,
}

impl Shown {
    /// Of a table.
    pub fn of(schema: &SchemaRef, batches: &[RecordBatch]) -> Self {
        let all_rows = batches.iter().map(RecordBatch::num_rows).sum();
        let rows = usize::min(all_rows, SHOWN_ROWS);
        let columns = schema.fields().iter().enumerate().map(|(at, field)| {
            let cells = batches.iter().flat_map(|batch| {
                (0..batch.num_rows()).map(move |row| cell(batch.column(at), row))
            });
            let numbers = matches!(field.data_type(), DataType::Int64 | DataType::Float64);
            (field.name().clone(), numbers, cells.take(rows).map(|cell| cell.shown()).collect())
        });
        Shown { columns: columns.collect(), rows, all_rows }
    }

    /// What is left out, in words; empty where nothing is.
    fn rest(&self, columns: usize) -> String {
        let counted = |number: usize, what: &str| match number {
            0 => None,
            1 => Some(format!("1 more {what}")),
            _ => Some(format!("{number} more {what}s")),
        };
        let rows = counted(self.all_rows - self.rows, "row");
        let columns = counted(self.columns.len() - columns, "column");
        [rows, columns].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// As text: aligned columns, as many as fit.
    pub fn text(&self) -> String {
        let width = |(name, _, values): &(String, bool, Vec<String>)| {
            values.iter().chain([name]).map(|text| text.chars().count()).max().unwrap_or(0)
        };
        let mut fitting = Vec::new();
        let mut total = 0;
        for column in &self.columns {
            let width = width(column);
            total += width + 2;
            if total > SHOWN_WIDTH + 2 && !fitting.is_empty() {
                break;
            }
            fitting.push((column, width));
        }
        let mut lines = vec![String::new(); self.rows + 1];
        for ((name, numbers, values), width) in &fitting {
            for (line, value) in lines.iter_mut().zip([name].into_iter().chain(values)) {
                // Writing to a text cannot fail.
                let _ = match numbers {
                    true => write!(line, "{value:>width$}  "),
                    false => write!(line, "{value:<width$}  "),
                };
            }
        }
        let rest = self.rest(fitting.len());
        if !rest.is_empty() {
            lines.push(format!("... {rest}"));
        }
        lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
    }

    /// As a table of HTML.
    pub fn html(&self) -> String {
        let columns = &self.columns[..self.columns.len().min(SHOWN_COLUMNS)];
        let mut html = "<table><thead><tr>".to_owned();
        for (name, ..) in columns {
            html += &format!("<th>{}</th>", escaped(name));
        }
        html += "</tr></thead><tbody>";
        for row in 0..self.rows {
            html += "<tr>";
            for (_, numbers, values) in columns {
                let style = if *numbers { " style=\"text-align:right\"" } else { "" };
                html += &format!("<td{style}>{}</td>", escaped(&values[row]));
            }
            html += "</tr>";
        }
        html += "</tbody></table>";
        let rest = self.rest(columns.len());
        if !rest.is_empty() {
            html += &format!("<p>{rest}</p>");
        }
        html
    }
}

/// A text without what HTML reads as its own.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Lines as paragraphs of HTML.
pub fn paragraphs(lines: &[String]) -> String {
    lines.iter().map(|line| format!("<p>{}</p>", escaped(line))).collect()
}

//! The results of a figure: a value by row, column and measure.

use std::collections::BTreeMap;
use std::fmt::Write;

use terrace_results::FigureRow;

/// A figure's values, with its rows, columns and measures in the order of the figure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Data {
    /// Rows that were run.
    pub rows: Vec<String>,
    /// Columns that were run.
    pub columns: Vec<String>,
    /// Names of the measures.
    pub measures: Vec<String>,
    values: BTreeMap<[usize; 3], f64>,
}

impl Data {
    /// Data without values.
    pub fn new(rows: Vec<String>, columns: Vec<String>, measures: Vec<String>) -> Self {
        Data { rows, columns, measures, values: BTreeMap::new() }
    }

    fn place(list: &[String], name: &str) -> Option<usize> {
        list.iter().position(|n| n == name)
    }

    /// Stores a value; one that is not a finite number is left out.
    pub fn put(&mut self, row: &str, column: &str, measure: &str, value: f64) {
        let place = [(&self.rows, row), (&self.columns, column), (&self.measures, measure)]
            .map(|(list, name)| Self::place(list, name));
        if let [Some(r), Some(c), Some(m)] = place
            && value.is_finite()
        {
            self.values.insert([r, c, m], value);
        }
    }

    /// The value of a cell, if there is one.
    pub fn get(&self, row: &str, column: &str, measure: &str) -> Option<f64> {
        let r = Self::place(&self.rows, row)?;
        let c = Self::place(&self.columns, column)?;
        let m = Self::place(&self.measures, measure)?;
        self.values.get(&[r, c, m]).copied()
    }

    /// Whether any cell has a value of this measure.
    pub fn has(&self, measure: &str) -> bool {
        let m = Self::place(&self.measures, measure);
        m.is_some_and(|m| self.values.keys().any(|&[_, _, of]| of == m))
    }

    /// A column's values, in the order of rows.
    pub fn column(&self, column: &str, measure: &str) -> Vec<f64> {
        self.rows.iter().filter_map(|r| self.get(r, column, measure)).collect()
    }

    /// The same values as they are printed: a picture of them is that of a page's tables.
    pub fn as_printed(&self) -> Data {
        let mut printed = self.clone();
        for value in printed.values.values_mut() {
            *value = number(*value).parse().unwrap_or(*value);
        }
        printed
    }

    /// Rows of the table to be written.
    pub fn table(&self, figure: &str) -> Vec<FigureRow> {
        let row = |(&[r, c, m], &value): (&[usize; 3], &f64)| FigureRow {
            figure: figure.to_owned(),
            row: self.rows[r].clone(),
            column: self.columns[c].clone(),
            measure: self.measures[m].clone(),
            value,
        };
        self.values.iter().map(row).collect()
    }

    /// A measure as a table of text: rows down, columns across, columns of equal width.
    pub fn text(&self, row_word: &str, measure: &str) -> String {
        let wide = self.rows.iter().map(|r| r.chars().count()).max().unwrap_or(0);
        let wide = wide.max(row_word.chars().count());
        let mut out = format!("{row_word:<wide$}");
        let widths: Vec<usize> = self.columns.iter().map(|c| c.chars().count().max(8)).collect();
        for (column, width) in self.columns.iter().zip(&widths) {
            write!(out, "  {column:>width$}").expect("writing to a string");
        }
        for row in &self.rows {
            write!(out, "\n{row:<wide$}").expect("writing to a string");
            for (column, &width) in self.columns.iter().zip(&widths) {
                let value = self.get(row, column, measure);
                let value = value.map_or("-".to_owned(), number);
                write!(out, "  {value:>width$}").expect("writing to a string");
            }
        }
        out
    }
}

/// A number with six significant digits: a page's tables, from which its verdicts must follow.
///
/// ```
/// use terrace_reproductions::data::precise;
/// assert_eq!(precise(181.7234567), "181.723");
/// assert_eq!([precise(0.25), precise(1.5e6), precise(3.0)], ["0.250000", "1500000", "3"]);
/// assert_eq!(precise(0.0001234567), "1.23457e-4");
/// ```
pub fn precise(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        return "0".to_owned();
    }
    if size >= 100_000.0 || value.fract() == 0.0 {
        return format!("{value:.0}");
    }
    let before = size.log10().floor() as i32 + 1;
    match before {
        ..0 => format!("{value:.5e}"),
        _ => format!("{value:.0$}", (6 - before) as usize),
    }
}

/// A number with four significant digits, no more.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if size >= 1000.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else if size >= 100.0 {
        format!("{value:.1}")
    } else if size >= 10.0 {
        format!("{value:.2}")
    } else if size >= 0.1 {
        format!("{value:.3}")
    } else {
        format!("{value:.2e}")
    }
}

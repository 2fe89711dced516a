//! Output of commands: lines that survive a reader who goes away, and small tables for lists of
//! kinds.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use anyhow::Context;
use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde_json::json;
use terrace_core::parameters::ParameterDoc;

/// Writes a line to standard output. A reader that has gone, as in `| head`, ends the output and
/// not the command; what else prevents the line is an error.
pub fn line(text: impl Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e).context("writing to standard output"),
        _ => Ok(()),
    }
}

/// Writes a line to standard error, where it can: a run does not end for want of a reader.
pub fn remark(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// [`line()`] of a format string.
macro_rules! say {
    ($($arg:tt)*) => { $crate::show::line(format_args!($($arg)*)) };
}
pub(crate) use say;

/// [`remark`] of a format string.
macro_rules! tell {
    ($($arg:tt)*) => { $crate::show::remark(format_args!($($arg)*)) };
}
pub(crate) use tell;

/// The format of a command's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people.
    Text,
    /// One JSON document for programs.
    Json,
}

/// A table without borders that wraps to the terminal.
pub fn table(header: &[&str]) -> Table {
    let mut table = list();
    table.set_header(header.iter().copied());
    table
}

/// The same without a header.
pub fn list() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width() as u16);
    table
}

/// Prints parameters with their defaults and meanings.
pub fn parameters<'a>(all: impl IntoIterator<Item = &'a ParameterDoc>) -> anyhow::Result<()> {
    let mut table = table(&["parameter", "default", "meaning"]);
    for p in all {
        table.add_row([p.name, p.default, p.meaning]);
    }
    if table.is_empty() { say!("It has no parameters.") } else { say!("{table}") }
}

/// The same for programs.
pub fn parameters_json<'a>(
    all: impl IntoIterator<Item = &'a ParameterDoc>,
) -> Vec<serde_json::Value> {
    let one =
        |p: &ParameterDoc| json!({ "name": p.name, "default": p.default, "meaning": p.meaning });
    all.into_iter().map(one).collect()
}

/// Columns of the terminal, or as many as most screens have.
pub fn width() -> usize {
    let width = Table::new().width().map_or(110, usize::from);
    width.clamp(60, 160)
}

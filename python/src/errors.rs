//! Errors as Python's exceptions: one line each, as on the command line.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::{PyErr, create_exception};
use terrace_core::InputError;
use terrace_core::names;

create_exception!(terrace, TerraceError, PyRuntimeError, "Something went wrong while it ran.");
create_exception!(
    terrace,
    Refused,
    PyValueError,
    "Input that cannot be used: what was got, what was expected, what to do. Nothing was changed."
);

/// Input that cannot be used becomes `Refused`, all else `TerraceError`.
pub fn raised(error: anyhow::Error) -> PyErr {
    let line = InputError::new(format!("{error:#}")).0;
    match error.chain().any(|e| e.is::<InputError>()) {
        true => Refused::new_err(line),
        false => TerraceError::new_err(line),
    }
}

/// An error of an experiment's keys in the words of Python instead of those of the file.
pub fn in_python(error: &InputError) -> String {
    let words = [
        ("unknown field `", "unknown key `"),
        ("at least one [[groups]] section", "at least one terrace.Group"),
        (" in [machine]", " of the machine"),
        ("see 'terrace policies'", "see terrace.policies()"),
        ("see 'terrace workloads'", "see terrace.workloads()"),
        ("`", "'"),
    ];
    words.iter().fold(error.0.clone(), |text, (file, python)| text.replace(file, python))
}

/// The end of an error about an unknown name: `; did you mean 'amp'?`, or nothing.
#[pyfunction]
pub fn hint(got: &str, known: Vec<String>) -> String {
    names::hint(got, known.iter().map(String::as_str))
}

/// A refusal of this text.
pub fn refused(text: impl std::fmt::Display) -> PyErr {
    Refused::new_err(InputError::new(text).0)
}

/// A refusal of a name that is none of these, as a `KeyError` too: `of` says what kind of name.
pub fn unknown<'a>(
    py: Python<'_>,
    of: &str,
    got: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> PyErr {
    let text = format!("no {of} is named '{got}'; expected {}", names::expected(got, known));
    let made = py.import("terrace._errors").and_then(|m| m.getattr("UnknownName")?.call1((text,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

//! Errors as Python's exceptions: one line each, as on the command line.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::{PyErr, create_exception};
use terrace_core::InputError;

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

/// A refusal of this text.
pub fn refused(text: impl std::fmt::Display) -> PyErr {
    Refused::new_err(InputError::new(text).0)
}

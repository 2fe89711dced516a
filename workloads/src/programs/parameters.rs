//! Parameters of a program, and why it may reject them.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Parameters of every program.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// Bytes of all its arrays together, met within 10 %.
    pub footprint_bytes: u64,
    /// Seed of data and choices.
    pub seed: u64,
    /// Number of threads; more than 1 only where the program says so.
    pub threads: usize,
    /// Its own parameters: a JSON object, or null for the defaults.
    pub options: Value,
}

impl Params {
    /// One thread, default options.
    pub fn new(footprint_bytes: u64, seed: u64) -> Params {
        Params { footprint_bytes, seed, threads: 1, options: Value::Null }
    }

    /// The program's own parameters. A key that it does not have is an error.
    pub fn options<T: DeserializeOwned + Default>(&self) -> Result<T, ProgramError> {
        if self.options.is_null() {
            return Ok(T::default());
        }
        if !self.options.is_object() {
            let what = format!("options {}: expected a table of names and values", self.options);
            return Err(ProgramError::BadParameter(what));
        }
        terrace_core::parameters::read(&self.options).map_err(ProgramError::BadParameter)
    }
}

/// The smallest footprint that programs accept: below it some cannot meet it within 10 %.
pub const LEAST_FOOTPRINT_BYTES: u64 = 2 << 20;

/// Maximum threads: their number is 16 bits of a reference.
pub const MOST_THREADS: usize = 4096;

/// Why a program did not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// No program has this name.
    #[error("no program is named '{got}'; expected {expected}")]
    Unknown {
        /// The requested name.
        got: String,
        /// The existing names.
        expected: String,
    },
    /// A parameter that the program does not have, or a value it cannot take.
    #[error("{0}")]
    BadParameter(String),
    /// There is no memory for an array.
    #[error(
        "cannot allocate {size_bytes} bytes for '{name}'; ask for a smaller footprint or free memory"
    )]
    Allocation {
        /// The array's name.
        name: &'static str,
        /// The array's size in bytes.
        size_bytes: u64,
    },
}

/// Rejects a parameter outside its range.
pub(super) fn in_range<T: PartialOrd + std::fmt::Display>(
    name: &str,
    got: T,
    least: T,
    most: T,
) -> Result<T, ProgramError> {
    if got >= least && got <= most {
        Ok(got)
    } else {
        Err(ProgramError::BadParameter(format!("{name} {got}: expected {least} to {most}")))
    }
}

//! Why a file of another tool could not be imported. Each message is one line.

use std::fmt;
use std::io;

use crate::error::RecordingError;

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A line, counted from 1.
    Line(u64),
    /// A byte, counted from 0, of what is left after decompression.
    Byte(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => write!(f, "line {line}"),
            Place::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// Why a file could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be opened or read, or does not fit its compression.
    #[error("cannot read '{file}' at byte {at}: {source}; give a file that is whole and readable")]
    Read {
        /// Path of the file.
        file: String,
        /// Bytes read before.
        at: u64,
        /// The error of the system or the decompressor.
        source: io::Error,
    },
    /// It is not of this format.
    #[error("{file}, {place}: {message}")]
    Malformed {
        /// Path of the file.
        file: String,
        /// Place of the fault.
        place: Place,
        /// What was got, what was expected.
        message: String,
    },
    /// No format has this name.
    #[error("no format is named '{got}'; expected {expected}")]
    UnknownFormat {
        /// The requested name.
        got: String,
        /// The names of the formats.
        expected: String,
    },
    /// An option that this format does not have, or a value that it cannot have.
    #[error("{0}")]
    Option(String),
    /// The recording to write is there already.
    #[error("'{0}' exists; give --out a name that is free, or remove it")]
    Exists(String),
    /// The recording cannot be written.
    #[error(transparent)]
    Recording(#[from] RecordingError),
}

/// The beginning of some bytes, printable in a message.
pub(super) fn shown(bytes: &[u8]) -> String {
    const SHOWN: usize = 48;
    let text = bytes[..bytes.len().min(SHOWN)].escape_ascii().to_string();
    if bytes.len() > SHOWN { format!("'{text}'...") } else { format!("'{text}'") }
}

//! Why a recording could not be written or read. Each message is one line: what was got, what
//! was expected, what to do.

use std::io;

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file could not be opened, read, written or renamed.
    #[error("cannot {action} recording '{file}': {source}; give a path where that can be done")]
    Io {
        /// The recording.
        file: String,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The file does not begin as a recording does.
    #[error(
        "'{file}' is not a Terrace recording: it does not begin with \"TERRACE\"; give a .trec file"
    )]
    NotARecording {
        /// The file.
        file: String,
    },
    /// The file ends before its header does.
    #[error(
        "recording '{file}' is cut off inside its header, so nothing of it can be read; record again"
    )]
    NoHeader {
        /// The recording.
        file: String,
    },
    /// Written in a format that this program does not know.
    #[error(
        "recording '{file}' has {what} version {got}, expected {expected}; use the Terrace that wrote it, or a newer one"
    )]
    Version {
        /// The recording.
        file: String,
        /// "container" or the kind of content.
        what: &'static str,
        /// The version found.
        got: u32,
        /// The version known.
        expected: u32,
    },
    /// A recording of something else.
    #[error(
        "recording '{file}' holds '{got}', expected '{expected}'; give a recording of that kind"
    )]
    Content {
        /// The recording.
        file: String,
        /// What it holds.
        got: String,
        /// What was to be read.
        expected: &'static str,
    },
    /// Bytes that were changed after they were written.
    #[error(
        "recording '{file}' is damaged at byte {offset}: {message}; what precedes it is sound, copy it again or record again"
    )]
    Damaged {
        /// The recording.
        file: String,
        /// Where.
        offset: u64,
        /// What was got and expected.
        message: String,
    },
    /// No group has this name.
    #[error("recording '{file}' has no group '{got}'; expected one of {expected}")]
    UnknownGroup {
        /// The recording.
        file: String,
        /// The name asked for.
        got: String,
        /// The names there are.
        expected: String,
    },
    /// Frames that a recording cannot hold: a defect of the writing program.
    #[error("cannot record into '{file}': {message}")]
    BadFrame {
        /// The recording.
        file: String,
        /// What was got and expected.
        message: String,
    },
}

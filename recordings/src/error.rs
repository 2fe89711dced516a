//! Why a recording could not be written or read. Each message is one line: what was got, what
//! was expected, what to do.

use std::io;

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file could not be opened, read, written or renamed.
    #[error("cannot {action} recording '{file}': {source}; give a path where that can be done")]
    Io {
        /// Path of the recording.
        file: String,
        /// The operation, such as "open".
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not begin as a recording does.
    #[error(
        "'{file}' is not a Terrace recording: it does not begin with \"TERRACE\"; give a file that Terrace recorded"
    )]
    NotARecording {
        /// Path of the file.
        file: String,
    },
    /// The file ends before its header does.
    #[error(
        "recording '{file}' is cut off inside its header, so nothing of it can be read; record again"
    )]
    NoHeader {
        /// Path of the recording.
        file: String,
    },
    /// Written in a format that this program cannot read.
    #[error(
        "recording '{file}' has {what} version {got}, expected {expected}; use the Terrace that wrote it, or a newer one"
    )]
    Version {
        /// Path of the recording.
        file: String,
        /// "container" or the kind of content.
        what: &'static str,
        /// The version found.
        got: u32,
        /// The newest version that this program reads.
        expected: u32,
    },
    /// A recording of something else.
    #[error(
        "recording '{file}' holds '{got}', expected '{expected}'; give a recording of that kind"
    )]
    Content {
        /// Path of the recording.
        file: String,
        /// The content that it holds.
        got: String,
        /// The expected content.
        expected: &'static str,
    },
    /// Bytes that were changed after they were written.
    #[error(
        "recording '{file}' is damaged at byte {offset}: {message}; what precedes it is sound, copy it again or record again"
    )]
    Damaged {
        /// Path of the recording.
        file: String,
        /// Place of the error.
        offset: u64,
        /// What was got and expected.
        message: String,
    },
    /// A file that is of use only whole, and is not.
    #[error(
        "'{file}' ends after {got} of its {expected} windows; expected a whole file, write it again"
    )]
    CutOff {
        /// Path of the file.
        file: String,
        /// Windows before its end.
        got: u64,
        /// Windows by its header.
        expected: u64,
    },
    /// No group has this name.
    #[error("recording '{file}' has no group '{got}'; expected {expected}")]
    UnknownGroup {
        /// Path of the recording.
        file: String,
        /// The requested name.
        got: String,
        /// The names of its groups.
        expected: String,
    },
    /// Frames that a recording cannot hold: a defect of the writing program.
    #[error("cannot record into '{file}': {message}")]
    BadFrame {
        /// Path of the recording.
        file: String,
        /// What was got and expected.
        message: String,
    },
}

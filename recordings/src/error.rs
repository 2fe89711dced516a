//! Why a recording could not be written or read. Each message is one line: what was got, what
//! was expected, what to do.

use std::io;

/// What to do where the system refuses an operation on a file.
fn remedy(action: &str, source: &io::Error) -> &'static str {
    let reads = matches!(action, "open" | "read");
    match source.kind() {
        io::ErrorKind::NotFound if reads => "give the path of an existing recording",
        io::ErrorKind::NotFound => "give a path in an existing folder",
        io::ErrorKind::PermissionDenied if reads => "give a file that you may read",
        io::ErrorKind::PermissionDenied => "give a path in a folder that you may write to",
        io::ErrorKind::IsADirectory => "give the path of a file",
        io::ErrorKind::StorageFull => "free space there, or give a path on a disk that has some",
        _ if reads => "check the disk, and copy the file again",
        _ => "check the disk, or give a path on another",
    }
}

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file could not be opened, read, written or renamed.
    #[error("cannot {action} recording '{file}': {source}; {}", remedy(.action, .source))]
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::period::{Header, PeriodWriter};
    use crate::reference::ReferenceReader;

    #[test]
    fn a_file_that_cannot_be_had_comes_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let open = |path: &Path| ReferenceReader::open(path).unwrap_err().to_string();
        let missing = open(&folder.path().join("none.tref"));
        assert!(missing.ends_with("; give the path of an existing recording"), "{missing}");
        let of_a_folder = open(folder.path());
        assert!(of_a_folder.ends_with("; give the path of a file"), "{of_a_folder}");
        let header = Header {
            created_by: String::new(),
            experiment: String::new(),
            machine: String::new(),
            kernel: String::new(),
            period_ms: 1,
            seed: 1,
            leaves_out_unmovable: false,
            groups: Vec::new(),
        };
        let made = PeriodWriter::create(&folder.path().join("no/r.trec"), header);
        let made = made.err().unwrap().to_string();
        assert!(made.ends_with("; give a path in an existing folder"), "{made}");
        let full = RecordingError::Io {
            file: "r".to_owned(),
            action: "write",
            source: io::Error::from(io::ErrorKind::StorageFull),
        };
        assert!(full.to_string().contains("; free space there, or give a path"), "{full}");
    }
}

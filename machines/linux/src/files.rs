//! Reading and writing the kernel's small text files: a missing one is `None`, a malformed one
//! an error that names it.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::faults;

/// Why a kernel file could not be read, understood or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It could not be written.
    #[error("cannot write '{value}' to {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What was to be written.
        value: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Its content is not as expected.
    #[error("{}: got '{got}', expected {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The content, shortened.
        got: String,
        /// What was expected.
        expected: &'static str,
    },
    /// It does not exist and is needed.
    #[error("{} does not exist: {remedy}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The remedy.
        remedy: &'static str,
    },
}

impl FileError {
    /// A malformed file; what was got is shortened to one readable line.
    pub fn malformed(path: &Path, got: &str, expected: &'static str) -> Self {
        let got: String = got.trim_end().chars().map(|c| if c == '\n' { ' ' } else { c }).collect();
        let got = match got.char_indices().nth(60) {
            Some((end, _)) => format!("{}...", &got[..end]),
            None => got,
        };
        FileError::Malformed { path: path.to_owned(), got, expected }
    }

    /// The system's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            FileError::Read { source, .. } | FileError::Write { source, .. } => {
                source.raw_os_error()
            }
            _ => None,
        }
    }
}

/// Whether an error means that the object does not exist: no file, or a process that ended between
/// opening and reading.
pub fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
        || matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV))
}

/// The text of a file, or `None` when there is no such file. Bytes that are not UTF-8 are replaced:
/// names of programs and paths of mappings may have any bytes.
pub fn read(path: &Path) -> Result<Option<String>, FileError> {
    match read_bytes(path) {
        Ok(bytes) => Ok(Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
        })),
        Err(e) if is_gone(&e) || e.kind() == ErrorKind::NotADirectory => Ok(None),
        Err(source) => Err(FileError::Read { path: path.to_owned(), source }),
    }
}

/// Reads in large pieces. Many kernel files give one consistent state per system call, and some
/// (`events/header_page`) give nothing from the second call on; `fs::read` would begin with a call
/// for 32 bytes.
fn read_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    faults::check(path)?;
    let mut file = fs::File::open(path)?;
    let mut bytes = vec![0; 16 << 10];
    let mut filled = 0;
    loop {
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if filled == bytes.len() {
            bytes.resize(2 * filled, 0);
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// The number in a file.
pub fn read_number<T: std::str::FromStr>(path: &Path) -> Result<Option<T>, FileError> {
    read(path)?
        .map(|text| {
            text.trim().parse().map_err(|_| FileError::malformed(path, &text, "one whole number"))
        })
        .transpose()
}

/// The names in a directory, sorted; empty when there is none.
pub fn list(path: &Path) -> Result<Vec<String>, FileError> {
    let error = |source| FileError::Read { path: path.to_owned(), source };
    let entries = match faults::check(path).and_then(|()| fs::read_dir(path)) {
        Ok(entries) => entries,
        Err(e) if is_gone(&e) || e.kind() == ErrorKind::NotADirectory => return Ok(Vec::new()),
        Err(e) => return Err(error(e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        if let Ok(name) = entry.map_err(error)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Writes to a kernel file, which must exist: it is never created.
pub fn write(path: &Path, value: &str) -> Result<(), FileError> {
    let open = |()| OpenOptions::new().write(true).truncate(true).open(path);
    let result = faults::check(path).and_then(open).and_then(|mut file| {
        // One system call: a kernel file takes each write as a whole command.
        let written = file.write(value.as_bytes())?;
        if written == value.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
    });
    result.map_err(|source| FileError::Write {
        path: path.to_owned(),
        value: value.to_owned(),
        source,
    })
}

/// Makes a folder, which must not exist.
pub fn make_folder(path: &Path) -> Result<(), FileError> {
    let made = faults::check(path).and_then(|()| fs::create_dir(path));
    made.map_err(|source| FileError::Write {
        path: path.to_owned(),
        value: "a new folder".to_owned(),
        source,
    })?;
    faults::made_folder(path);
    Ok(())
}

/// Removes a folder of the kernel's; one that is gone already is no error.
pub fn remove_folder(path: &Path) -> Result<(), FileError> {
    match faults::check(path).and_then(|()| faults::remove_folder(path)) {
        Err(source) if !is_gone(&source) => {
            Err(FileError::Write { path: path.to_owned(), value: "removal".to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// A list of numbers as the kernel writes them, `0-3,8`; `None` if the text is none. A range that
/// is too long counts as malformed, so that it cannot fill memory.
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last): (u32, u32) = match part.split_once('-') {
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            None => (part.parse().ok()?, part.parse().ok()?),
        };
        if first > last || last - first > 65_536 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// The list of numbers in a file.
pub fn read_list(path: &Path) -> Result<Option<Vec<u32>>, FileError> {
    read(path)?
        .map(|text| {
            parse_list(&text)
                .ok_or_else(|| FileError::malformed(path, &text, "a list such as 0-3,8"))
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_missing_file_is_none_and_a_malformed_one_names_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        assert_eq!(read_number::<u64>(&path).unwrap(), None);
        fs::write(&path, "many\n").unwrap();
        let message = read_number::<u64>(&path).unwrap_err().to_string();
        assert!(message.contains("value: got 'many', expected one whole number"), "{message}");
    }

    #[test]
    fn writing_never_creates() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("absent");
        assert!(write(&path, "1").is_err());
        assert!(!path.exists());
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        assert_eq!(parse_list("3-1"), None);
        assert_eq!(parse_list("0-4294967295"), None);
        assert_eq!(parse_list("a"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_not_one(text in "[0-9,\\- a]{0,20}") {
            parse_list(&text);
        }
    }
}

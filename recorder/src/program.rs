//! Kinds of executable files, and what runs them: an ELF program runs itself, a script is run by
//! its interpreter.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Most scripts that are each other's interpreter: Linux's own limit (`fs/exec.c`).
const MAX_INTERPRETERS: usize = 5;

/// What to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// An x86-64 ELF file.
    pub path: PathBuf,
    /// Arguments before the program's own, argument 0 included: those that come from a script's
    /// first line and name. Empty for a program that is no script.
    pub before: Vec<OsString>,
}

/// Why a file cannot be recorded: got, expected, what to do.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No such file on the path.
    #[error("cannot find program '{0}'; give the name of a program on the PATH or its path")]
    NotFound(String),
    /// The file cannot be opened or read.
    #[error("cannot read program '{path}': {source}; give a program that you may read")]
    Unreadable {
        /// The file.
        path: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file is for another machine.
    #[error("'{path}' is {got}, expected an x86-64 Linux program or a script for one")]
    NotX86 {
        /// The file.
        path: String,
        /// Its kind.
        got: String,
    },
}

/// Finds a program as a shell does.
pub fn find(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    let not_found = || ProgramError::NotFound(name.to_string_lossy().into_owned());
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return if path.is_file() { Ok(path) } else { Err(not_found()) };
    }
    let search = search.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    std::env::split_paths(search)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file() && is_executable(path))
        .ok_or_else(not_found)
}

fn is_executable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Follows scripts to the program that runs them.
pub fn resolve(path: &Path) -> Result<Program, ProgramError> {
    let mut program = Program { path: path.to_owned(), before: Vec::new() };
    for _ in 0..=MAX_INTERPRETERS {
        let head = head(&program.path)?;
        let Some(line) = head.strip_prefix(b"#!") else {
            return match what_is(&head) {
                None => Ok(program),
                Some(got) => {
                    let path = program.path.display().to_string();
                    Err(ProgramError::NotX86 { path, got })
                }
            };
        };
        let line = line.split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii();
        let split = line.iter().position(|b| b" \t".contains(b)).unwrap_or(line.len());
        let (interpreter, argument) = line.split_at(split);
        let argument = argument.trim_ascii();
        let mut before = vec![OsString::from_vec(interpreter.to_vec())];
        if !argument.is_empty() {
            before.push(OsString::from_vec(argument.to_vec()));
        }
        before.push(program.path.into_os_string());
        // The script's argument 0 is replaced by its path.
        before.extend(program.before.into_iter().skip(1));
        program = Program { path: PathBuf::from(OsStr::from_bytes(interpreter)), before };
    }
    let got = format!("a script behind more than {MAX_INTERPRETERS} others");
    Err(ProgramError::NotX86 { path: path.display().to_string(), got })
}

fn head(path: &Path) -> Result<Vec<u8>, ProgramError> {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(256).read_to_end(&mut head));
    let path = || path.display().to_string();
    read.map_err(|source| ProgramError::Unreadable { path: path(), source })?;
    Ok(head)
}

/// The kind of file, or `None` if these bytes begin an x86-64 ELF program.
fn what_is(head: &[u8]) -> Option<String> {
    const X86_64: u16 = 62;
    if !head.starts_with(b"\x7fELF") || head.len() < 20 {
        return Some("no ELF file".to_owned());
    }
    let machine = u16::from_le_bytes([head[18], head[19]]);
    if head[4] != 2 || head[5] != 1 || machine != X86_64 {
        return Some(format!("an ELF file of {}-bit machine {machine}", 32 * u32::from(head[4])));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_lead_to_their_interpreters() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("a.sh");
        std::fs::write(&script, "#! /bin/true -x y\nrest\n").unwrap();
        let program = resolve(&script).unwrap();
        assert_eq!(program.path, Path::new("/bin/true"));
        let before: Vec<_> = program.before.iter().map(|a| a.to_str().unwrap()).collect();
        assert_eq!(before, ["/bin/true", "-x y", script.to_str().unwrap()]);
        assert_eq!(resolve(Path::new("/bin/true")).unwrap().before, Vec::<OsString>::new());
    }

    #[test]
    fn what_cannot_run_is_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64, 0);
        bytes[18] = 183;
        std::fs::write(&other, &bytes).unwrap();
        let error = resolve(&other).unwrap_err().to_string();
        assert!(error.contains("machine 183, expected an x86-64"), "{error}");
        std::fs::write(&other, "text").unwrap();
        assert!(resolve(&other).unwrap_err().to_string().contains("no ELF file"));
        // A script that names itself.
        std::fs::write(&other, format!("#!{}\n", other.display())).unwrap();
        assert!(resolve(&other).unwrap_err().to_string().contains("behind more than"));
        assert!(find(OsStr::new("no-such-program"), None).is_err());
        assert!(find(OsStr::new("true"), None).is_ok());
    }
}

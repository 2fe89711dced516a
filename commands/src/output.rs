//! Where commands write: results that are there already are replaced only when asked to, and a file
//! is replaced whole or not at all.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use terrace_core::InputError;

/// The option `--force`.
#[derive(Args)]
pub struct Force {
    /// Replace results that are there already.
    #[arg(long)]
    force: bool,
}

impl Force {
    /// Refuses a file that is there.
    pub fn file(&self, path: &Path) -> Result<(), InputError> {
        match path.exists() {
            true => self.refuse(path, "exists"),
            false => Ok(()),
        }
    }

    /// Refuses a folder that has any of these files, which the command would replace.
    pub fn folder(&self, path: &Path, files: &[&str]) -> Result<(), InputError> {
        match files.iter().find(|file| path.join(file).exists()) {
            Some(file) => self.refuse(path, &format!("has results already ({file})")),
            None => Ok(()),
        }
    }

    fn refuse(&self, path: &Path, what: &str) -> Result<(), InputError> {
        if self.force {
            return Ok(());
        }
        Err(InputError::new(format_args!(
            "{} {what}; expected a name that is free: give another --out, or --force to replace it",
            path.display()
        )))
    }
}

/// Writes a file whole or not at all: under its name with `.part` appended, and renamed.
pub fn write_whole(path: &Path, content: impl AsRef<[u8]>) -> std::io::Result<()> {
    let mut part = OsString::from(path);
    part.push(".part");
    let part = PathBuf::from(part);
    std::fs::write(&part, content).and_then(|()| std::fs::rename(&part, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_replaced_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let names = || std::fs::read_dir(dir.path()).unwrap().count();
        let file = dir.path().join("a.toml");
        write_whole(&file, "one").unwrap();
        write_whole(&file, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        write_whole(&folder, "three").unwrap_err();
        assert_eq!(names(), 2, "the file and the folder");
    }
}

//! The directory of fetched packages and remembered results.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::error::{Doing, LabError};

/// A cache directory. Its contents can be deleted at any time.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// A cache in this directory, which is created if needed.
    pub fn at(root: impl Into<PathBuf>) -> Result<Self, LabError> {
        let root = root.into();
        std::fs::create_dir_all(&root)
            .doing(format!("make the cache directory {}", root.display()))?;
        let root = root.canonicalize().doing(format!("find {}", root.display()))?;
        Ok(Self { root })
    }

    /// The user's cache: `$TERRACE_CACHE_DIR`, or `terrace` in `$XDG_CACHE_HOME` or
    /// `$HOME/.cache`.
    pub fn of_user() -> Result<Self, LabError> {
        Self::at(user_directory(|name| std::env::var_os(name).map(PathBuf::from))?)
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Excludes other processes that fill the cache, until the file is dropped.
    pub(crate) fn lock(&self) -> Result<File, LabError> {
        lock(&self.root.join("lock"))
    }
}

/// Holds a lock on this file until the returned file is dropped.
pub(crate) fn lock(path: &Path) -> Result<File, LabError> {
    let file = File::create(path).doing(format!("make {}", path.display()))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)
        .doing(format!("lock {}", path.display()))?;
    Ok(file)
}

/// Writes a file by renaming, so that others see it whole or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), LabError> {
    let doing = || format!("write {}", path.display());
    let parent = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::NamedTempFile::new_in(parent).doing(doing())?;
    file.write_all(bytes).doing(doing())?;
    file.persist(path).map(|_| ()).map_err(|e| e.error).doing(doing())
}

fn user_directory(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, LabError> {
    // The XDG specification says that relative paths are ignored; so for the others.
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    absolute("TERRACE_CACHE_DIR")
        .or_else(|| absolute("XDG_CACHE_HOME").map(|path| path.join("terrace")))
        .or_else(|| absolute("HOME").map(|path| path.join(".cache/terrace")))
        .ok_or_else(|| LabError::Invalid {
            what: "the cache directory",
            got: "no TERRACE_CACHE_DIR, XDG_CACHE_HOME or HOME".to_owned(),
            expected: "one of them as an absolute path".to_owned(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_variable_wins() {
        let of = |set: &[(&str, &str)]| {
            user_directory(|name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value))
            })
        };
        let home = ("HOME", "/home/u");
        let all = [("TERRACE_CACHE_DIR", "/c"), ("XDG_CACHE_HOME", "/x"), home];
        assert_eq!(of(&all).unwrap(), Path::new("/c"));
        assert_eq!(of(&all[1..]).unwrap(), Path::new("/x/terrace"));
        assert_eq!(
            of(&[("XDG_CACHE_HOME", "x"), home]).unwrap(),
            Path::new("/home/u/.cache/terrace")
        );
        assert!(of(&[]).is_err());
    }
}

//! Files that are of no use before they are whole.

use std::path::{Path, PathBuf};

use terrace_recordings::container::PartialFile;

/// Removes what a [`PartialFile`] has written so far, when the work on it ends in an error or a
/// panic. Once it is published there is nothing to remove.
pub(crate) struct Unfinished(PathBuf);

impl Unfinished {
    /// For the file that is to be published under this path.
    pub fn of(path: &Path) -> Self {
        Unfinished(PartialFile::partial_of(path))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

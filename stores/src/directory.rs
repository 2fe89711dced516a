//! Folders of this host.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{Entry, Fetched, Store};

/// The folders below one; absolute paths are as they are.
pub struct Directory(pub PathBuf);

impl Directory {
    /// A path for the kernel, for which an empty one is none.
    fn path(&self, path: &Path) -> PathBuf {
        let whole = if path.as_os_str().is_empty() { self.0.clone() } else { self.0.join(path) };
        if whole.as_os_str().is_empty() { PathBuf::from(".") } else { whole }
    }
}

impl Store for Directory {
    fn entries(&self, folder: &Path) -> Result<Vec<Entry>, String> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(self.path(folder)).map_err(|e| e.to_string())? {
            let path = folder.join(entry.map_err(|e| e.to_string())?.file_name());
            // A link counts as what it leads to.
            let found = std::fs::metadata(self.path(&path)).ok();
            let is_folder = found.as_ref().is_some_and(std::fs::Metadata::is_dir);
            let modified = found.and_then(|found| found.modified().ok());
            entries.push(Entry { path, is_folder, modified });
        }
        entries.sort();
        Ok(entries)
    }

    fn is_folder(&self, path: &Path) -> Result<bool, String> {
        match std::fs::metadata(self.path(path)) {
            Ok(found) => Ok(found.is_dir()),
            // One that cannot be reached may be one: who reads it gets the reason.
            Err(e) => Ok(!matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)),
        }
    }

    fn fetch(&self, files: &[PathBuf]) -> Vec<Result<Fetched, String>> {
        files.iter().map(|file| Ok(Fetched::Own(self.path(file)))).collect()
    }

    fn shown(&self, path: &Path) -> String {
        self.path(path).display().to_string()
    }
}

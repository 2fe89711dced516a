//! The folders of hosts: which there are for a pattern, and the histories in each.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_core::{InputError, refuse};
use terrace_stores::{Entry, Fetched, Store, Stores, matching};

use crate::file::Fleet;

/// A folder of a store.
#[derive(Clone)]
pub struct Place {
    store: Arc<dyn Store>,
    path: PathBuf,
}

impl Place {
    /// The folder of a path, of files or of an object store.
    ///
    /// # Errors
    /// As [`Stores::of`].
    pub fn open(stores: &mut Stores, path: &str) -> Result<Self, String> {
        let (store, within) = stores.of(path)?;
        Ok(Place { store, path: PathBuf::from(within) })
    }

    /// The histories in it, by name.
    ///
    /// # Errors
    /// A folder that cannot be read, in words.
    pub fn histories(&self) -> Result<Vec<Entry>, String> {
        let mut files = self.store.entries(&self.path)?;
        files.retain(|e| !e.is_folder && e.path.extension().is_some_and(|e| e == "trec"));
        Ok(files)
    }

    /// Files to read these histories from, as [`Store::fetch`].
    pub fn fetch(&self, histories: &[PathBuf]) -> Vec<Result<Fetched, String>> {
        self.store.fetch(histories)
    }

    /// A path of its store in words.
    pub fn shown(&self, path: &Path) -> String {
        self.store.shown(path)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store.shown(&self.path))
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A host that has a folder.
#[derive(Debug, Clone)]
pub struct HostFolder {
    /// Position of its class.
    pub class: usize,
    /// Its name: that of the folder.
    pub name: String,
    /// The folder.
    pub place: Place,
}

/// The folders of all hosts, by class and name.
///
/// # Errors
/// A pattern that cannot be read or matches no folder, and a folder of two classes.
pub fn hosts(fleet: &Fleet) -> Result<Vec<HostFolder>, InputError> {
    let mut stores = Stores::new(&fleet.folder);
    let mut all: Vec<HostFolder> = Vec::new();
    let mut owner: BTreeMap<String, usize> = BTreeMap::new();
    for (class, of) in fleet.classes.iter().enumerate() {
        let error = |e: String| refuse!("class '{}': hosts = \"{}\": {e}", of.name, of.hosts);
        let (store, pattern) = stores.of(&of.hosts).map_err(error)?;
        let found = matching(&*store, pattern).map_err(error)?;
        if found.is_empty() {
            return Err(refuse!(
                "class '{}': no folder is named by hosts = \"{}\" in {}; expected a folder for \
                 each host",
                of.name,
                of.hosts,
                store.shown(Path::new(""))
            ));
        }
        for path in found {
            let place = Place { store: store.clone(), path };
            if let Some(first) = owner.insert(place.to_string(), class) {
                return Err(refuse!(
                    "{place} is a host of class '{}' and of class '{}': expected each in one",
                    fleet.classes[first].name,
                    of.name
                ));
            }
            let name = place.path.file_name();
            let name = name.map_or_else(|| place.to_string(), |n| n.to_string_lossy().into());
            all.push(HostFolder { class, name, place });
        }
    }
    // Hosts of two folders can have one name: then the path is shown.
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    all.iter().for_each(|host| *count.entry(host.name.clone()).or_default() += 1);
    for host in &mut all {
        if count.get(&host.name).is_some_and(|n| *n > 1) {
            host.name = host.place.to_string();
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(folder: &Path, patterns: &[&str]) -> Fleet {
        let mut text = String::new();
        for (number, pattern) in patterns.iter().enumerate() {
            text += &format!(
                "[[classes]]\nname = \"c{number}\"\nhosts = \"{pattern}\"\nmemory = \"1G\"\n"
            );
        }
        Fleet::parse(&text, folder.to_owned()).unwrap()
    }

    #[test]
    fn patterns_name_folders_level_by_level() {
        let place = tempfile::tempdir().unwrap();
        for folder in ["a/web-2/state", "a/web-1/state", "b/web-1/state", "b/db-1/state"] {
            std::fs::create_dir_all(place.path().join(folder)).unwrap();
        }
        std::fs::write(place.path().join("a/web-3"), "a file").unwrap();
        let names = |patterns: &[&str]| {
            let found = hosts(&fleet(place.path(), patterns)).unwrap();
            found.into_iter().map(|h| (h.class, h.name)).collect::<Vec<_>>()
        };
        let expected = [(0, "web-1".to_owned()), (0, "web-2".to_owned())];
        assert_eq!(names(&["a/web-*"]), expected);
        assert_eq!(names(&["{a,b}/db-?"]), [(0, "db-1".to_owned())]);
        // Two hosts of one name are distinguished.
        let all = names(&["*/web-*"]);
        assert!(all.iter().any(|h| h.1.ends_with("a/web-1")), "{all:?}");
        assert_eq!(all.len(), 3);
        let error = |patterns: &[&str]| hosts(&fleet(place.path(), patterns)).unwrap_err().0;
        assert!(error(&["a/x*"]).contains("no folder is named"));
        // A folder that cannot be reached is found: reading it says why.
        std::fs::create_dir(place.path().join("b/web-9")).unwrap();
        std::os::unix::fs::symlink("state", place.path().join("b/web-9/state")).unwrap();
        assert_eq!(names(&["b/web-*/state"]).len(), 2);
        assert!(error(&["a/**"]).contains("expected * for each level"));
        assert!(error(&["a/web-*", "a/*"]).contains("of class 'c0' and of class 'c1'"));
        assert!(error(&["gs://b/*"]).contains("expected a path of this host, or s3://BUCKET"));
        assert!(error(&["s3:///web-*"]).contains("got the bucket ''"));
        assert!(error(&["s3://b*/web-*"]).contains("got the bucket 'b*'"));
    }
}

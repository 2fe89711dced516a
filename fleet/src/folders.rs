//! The folders of hosts: which there are for a pattern, and the histories in each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use terrace_core::{InputError, refuse};

use crate::file::{Fleet, glob};

/// A host that has a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFolder {
    /// Position of its class.
    pub class: usize,
    /// Its name: that of the folder.
    pub name: String,
    /// The folder.
    pub path: PathBuf,
}

/// The folders of all hosts, by class and name.
///
/// # Errors
/// A pattern that cannot be read or matches no folder, and a folder of two classes.
pub fn hosts(fleet: &Fleet) -> Result<Vec<HostFolder>, InputError> {
    let mut all: Vec<HostFolder> = Vec::new();
    let mut owner: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for (class, of) in fleet.classes.iter().enumerate() {
        let found =
            matching(&fleet.folder, &of.hosts).map_err(|e| refuse!("class '{}': {e}", of.name))?;
        if found.is_empty() {
            return Err(refuse!(
                "class '{}': no folder is named by hosts = \"{}\" in {}; expected a folder for \
                 each host",
                of.name,
                of.hosts,
                shown(&fleet.folder)
            ));
        }
        for path in found {
            if let Some(first) = owner.insert(path.clone(), class) {
                return Err(refuse!(
                    "{} is a host of class '{}' and of class '{}': expected each in one",
                    path.display(),
                    fleet.classes[first].name,
                    of.name
                ));
            }
            let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into());
            all.push(HostFolder { class, name, path });
        }
    }
    // Hosts of two folders can have one name: then the path is shown.
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    all.iter().for_each(|host| *count.entry(host.name.clone()).or_default() += 1);
    for host in &mut all {
        if count.get(&host.name).is_some_and(|n| *n > 1) {
            host.name = host.path.display().to_string();
        }
    }
    Ok(all)
}

/// Histories of a host's folder, by name.
///
/// # Errors
/// A folder that cannot be read, in words.
pub fn histories(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files: Vec<PathBuf> = entries(folder)?;
    files.retain(|path| path.extension().is_some_and(|e| e == "trec") && !path.is_dir());
    Ok(files)
}

fn shown(folder: &Path) -> std::path::Display<'_> {
    if folder.as_os_str().is_empty() { Path::new(".").display() } else { folder.display() }
}

/// The entries of a folder, by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let error = |e: std::io::Error| format!("{}: {e}", shown(folder));
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(here).map_err(error)? {
        names.push(entry.map_err(error)?.file_name());
    }
    names.sort();
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// The folders that a pattern names, by path. Each part of the pattern is of one level.
fn matching(base: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let mut at = vec![match pattern.starts_with('/') {
        true => PathBuf::from("/"),
        false => base.to_owned(),
    }];
    for part in pattern.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part.contains("**") {
            return Err(format!(
                "hosts = \"{pattern}\": ** is of any depth, expected * for each level"
            ));
        }
        if !part.contains(['*', '?', '[', '{']) {
            at.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        let glob = glob(part)?;
        let mut next = Vec::new();
        // What is not there matches nothing.
        for path in at.iter().filter(|path| path.as_os_str().is_empty() || path.is_dir()) {
            let found = entries(path)?.into_iter();
            next.extend(found.filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                !name.starts_with('.') && glob.is_match(&*name)
            }));
        }
        at = next;
    }
    at.retain(|path| path.is_dir());
    at.sort();
    Ok(at)
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
        assert!(error(&["a/**"]).contains("expected * for each level"));
        assert!(error(&["a/web-*", "a/*"]).contains("of class 'c0' and of class 'c1'"));
    }
}

//! The tree of control groups, walked within bounds: the owner of a delegated subtree can make any
//! number of groups, and the walk runs on the thread that also serves signals.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;

use crate::faults;
use crate::files::{self, FileError};

/// Bounds of a walk: depth and number of groups.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Levels below the root.
    pub depth: usize,
    /// Groups whose state is read.
    pub groups: usize,
}

/// The result of a walk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// Paths below the root (`/a/b`) of groups with a process in themselves or below, sorted.
    pub populated: Vec<String>,
    /// Groups whose state was read.
    pub visited: usize,
    /// Lower bound of the groups left out: groups below them were not listed.
    pub unvisited: usize,
}

/// Walks the groups below `root`. A group, and what is below it, is visited only where `wanted`
/// accepts its path; groups near the root come first, so that a subtree with very many groups is
/// left out before those beside it. What is below a group without processes is not listed.
pub fn walk(
    root: &Path,
    bounds: Bounds,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Survey, FileError> {
    let mut survey = Survey::default();
    let mut queue = VecDeque::from([(String::new(), 0)]);
    while let Some((path, depth)) = queue.pop_front() {
        let folder = root.join(path.trim_start_matches('/'));
        if depth > 0 {
            if survey.visited == bounds.groups {
                survey.unvisited += 1 + queue.len();
                break;
            }
            survey.visited += 1;
            if !is_populated(&folder)? {
                continue;
            }
            survey.populated.push(path.clone());
        }
        // Groups that can be queued and still be visited; the names of more are not kept.
        let room = (bounds.groups - survey.visited).saturating_sub(queue.len());
        let mut names = Vec::new();
        for name in folders(&folder)? {
            let below = format!("{path}/{name}");
            if depth == bounds.depth || names.len() == room {
                survey.unvisited += usize::from(wanted(&below));
                continue;
            }
            if wanted(&below) {
                names.push(below);
            }
        }
        names.sort();
        queue.extend(names.into_iter().map(|below| (below, depth + 1)));
    }
    survey.populated.sort();
    Ok(survey)
}

/// Whether a process is in the group or below it: one small file, whatever is below. A group that
/// is gone has none.
fn is_populated(folder: &Path) -> Result<bool, FileError> {
    let events = files::read(&folder.join("cgroup.events"))?;
    Ok(events.is_some_and(|text| text.lines().any(|line| line == "populated 1")))
}

/// Names of the folders in a folder, by the types in the listing itself; none if it is gone. Names
/// that are not UTF-8 are left out: no pattern matches them.
pub(crate) fn folders(folder: &Path) -> Result<impl Iterator<Item = String>, FileError> {
    let entries = match faults::check(folder).and_then(|()| fs::read_dir(folder)) {
        Ok(entries) => Some(entries),
        Err(error) if files::is_gone(&error) => None,
        Err(source) => return Err(FileError::Read { path: folder.to_owned(), source }),
    };
    Ok(entries.into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        is_folder.then(|| entry.file_name().into_string().ok()).flatten()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a group; `populated` is the kernel's value for it.
    fn group(root: &Path, path: &str, populated: bool) {
        let folder = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(&folder).unwrap();
        let events = format!("populated {}\nfrozen 0\n", u8::from(populated));
        fs::write(folder.join("cgroup.events"), events).unwrap();
    }

    const BOUNDS: Bounds = Bounds { depth: 16, groups: 100 };

    fn all(_: &str) -> bool {
        true
    }

    #[test]
    fn groups_with_processes_are_found_and_nothing_below_empty_ones_is_read() {
        let root = tempfile::tempdir().unwrap();
        for (path, populated) in [("/a", true), ("/a/b", false), ("/a/b/c", false), ("/d", false)] {
            group(root.path(), path, populated);
        }
        fs::write(root.path().join("cgroup.procs"), "1\n").unwrap();
        let survey = walk(root.path(), BOUNDS, &all).unwrap();
        assert_eq!(survey.populated, ["/a"]);
        assert_eq!((survey.visited, survey.unvisited), (3, 0), "/a/b/c was read");
    }

    #[test]
    fn a_subtree_with_very_many_groups_takes_no_others_place() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "/attack", true);
        group(root.path(), "/attack/own", true);
        for n in 0..2000 {
            group(root.path(), &format!("/attack/own/{n:04}"), false);
        }
        group(root.path(), "/system", true);
        group(root.path(), "/system/redis", true);
        let survey = walk(root.path(), BOUNDS, &all).unwrap();
        assert!(survey.populated.contains(&"/system/redis".to_owned()), "{:?}", survey.populated);
        assert_eq!(survey.visited, 100);
        assert_eq!(survey.visited + survey.unvisited, 2004, "each is visited or counted");
    }

    #[test]
    fn only_what_is_wanted_is_visited() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "/system", true);
        group(root.path(), "/system/redis", true);
        for n in 0..2000 {
            group(root.path(), &format!("/user{n}"), true);
        }
        let survey = walk(root.path(), BOUNDS, &|path| path.starts_with("/system")).unwrap();
        assert_eq!(survey.populated, ["/system", "/system/redis"]);
        assert_eq!((survey.visited, survey.unvisited), (2, 0));
    }

    #[test]
    fn links_and_groups_that_are_too_deep_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let deep = "/d".repeat(40);
        for n in 1..=40 {
            group(root.path(), &deep[..2 * n], true);
        }
        std::os::unix::fs::symlink(root.path(), root.path().join("loop")).unwrap();
        let survey = walk(root.path(), BOUNDS, &all).unwrap();
        assert_eq!(survey.populated.len(), BOUNDS.depth);
        assert_eq!(survey.unvisited, 1);
    }
}

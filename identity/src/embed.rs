//! For build scripts: what a program is built from.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::StableHash;

/// Where the workspace is, seen from the folder of a crate: the nearest folder above it with a lock
/// file and a `core`.
fn root(crate_folder: &Path) -> &Path {
    let is_root = |folder: &&Path| folder.join("core/Cargo.toml").exists();
    crate_folder.ancestors().find(is_root).unwrap_or(crate_folder)
}

/// Prints what cargo is to set for [`this_build!`](crate::this_build), and has the build script run
/// again when a source or the commit has changed. `version` is the crate's.
pub fn emit(crate_folder: &Path, version: &str) {
    let root = root(crate_folder);
    let sources = sources(root);
    let mut hash = StableHash::new();
    for path in &sources.files {
        hash.add_part(path.strip_prefix(root).unwrap_or(path).as_os_str().as_encoded_bytes());
        hash.add_part(&std::fs::read(path).unwrap_or_default());
    }
    println!("cargo::rustc-env=TERRACE_BUILD_SOURCES={hash}");
    println!("cargo::rustc-env=TERRACE_BUILD_DESCRIPTION={}", describe(root, version));
    // A folder stands for all that is in it.
    let watched = sources.folders.iter().cloned().chain(git_files(root));
    for path in watched.filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// The version with commit and state, as far as git knows them: there may be no git, or sources from
/// an archive.
fn describe(root: &Path, version: &str) -> String {
    let Some(commit) = git(root, &["rev-parse", "--short=12", "HEAD"]) else {
        return version.to_owned();
    };
    // The repository of somebody else, in which the sources are a folder, says nothing of them.
    if git(root, &["ls-files", "core/Cargo.toml"]).is_none_or(|known| known.is_empty()) {
        return version.to_owned();
    }
    let changes = git(root, &["status", "--porcelain", "--untracked-files=no"]);
    match changes.is_none_or(|changes| changes.is_empty()) {
        true => format!("{version} ({commit})"),
        false => format!("{version} ({commit}, modified)"),
    }
}

/// What git writes when another commit is checked out or made.
fn git_files(root: &Path) -> Vec<PathBuf> {
    let mut names = vec!["HEAD".to_owned(), "packed-refs".to_owned()];
    names.extend(git(root, &["symbolic-ref", "--quiet", "HEAD"]));
    names
        .iter()
        .filter_map(|name| git(root, &["rev-parse", "--git-path", name]))
        .map(|path| root.join(path))
        .collect()
}

/// What git answers, trimmed; nothing where it fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    // Looks at the state only: a lock of the index would be in a user's way.
    let output = Command::new("git")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .arg("-C")
        .arg(root)
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

struct Sources {
    /// All that decides what a program does, in order.
    files: BTreeSet<PathBuf>,
    /// The folders at the top that have any.
    folders: BTreeSet<PathBuf>,
}

/// Rust sources and manifests, and what they include: everything in a crate's `src`.
fn sources(root: &Path) -> Sources {
    let mut sources = Sources { files: BTreeSet::new(), folders: BTreeSet::new() };
    for name in ["Cargo.toml", "Cargo.lock"] {
        sources.files.insert(root.join(name));
        sources.folders.insert(root.join(name));
    }
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        let names = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        for path in names.map(|entry| entry.path()).filter(|path| path.is_dir()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            if name == "src" && folder.join("Cargo.toml").exists() {
                sources.files.insert(folder.join("Cargo.toml"));
                sources.folders.insert(path.clone());
                add_all(&path, &mut sources.files);
            } else if depth < 2 {
                open.push((path, depth + 1));
            }
        }
    }
    sources
}

fn add_all(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => add_all(&path, files),
            path => drop(files.insert(path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_are_all_files_of_all_crates_and_nothing_that_is_built() {
        let folder = tempfile::tempdir().unwrap();
        let root_folder = folder.path();
        let write = |name: &str| {
            let path = root_folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        };
        let belong =
            ["Cargo.lock", "Cargo.toml", "core/Cargo.toml", "core/src/a/b.rs", "core/src/lib.rs"];
        let further = ["machines/os/Cargo.toml", "machines/os/src/x.toml", "docs/src.md"];
        let built = ["target/x/src/lib.rs", "target/x/Cargo.toml", ".git/src/lib.rs"];
        belong.iter().chain(&further).chain(&built).for_each(|name| write(name));
        let found = sources(root(&root_folder.join("core")));
        let names: Vec<_> = found
            .files
            .iter()
            .map(|path| path.strip_prefix(root_folder).unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, [&belong[..], &further[..2]].concat());
        assert!(found.folders.contains(&root_folder.join("machines/os/src")));
        assert_eq!(describe(root_folder, "1.2.3"), "1.2.3", "no repository");
    }
}

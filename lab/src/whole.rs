//! All files of a Debian package and of the packages that it depends on: for programs that open
//! modules, libraries or data by themselves, which [`crate::closure`] cannot know.
//!
//! Nothing is configured, as the packages' scripts are not run. Of what these would do one thing is made
//! up for: a library that is one of several alternatives, such as that of BLAS, is linked to where the
//! linker looks.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use crate::closure::{Closure, Sources, closure};
use crate::error::{Doing, LabError};
use crate::packages::{Package, Packages};

/// Packages that only others' scripts need, and the C library, which every guest has from its host.
const LEFT_OUT: [&str; 10] = [
    "adduser",
    "debconf",
    "dpkg",
    "init-system-helpers",
    "install-info",
    "libc6",
    "lsb-base",
    "sysvinit-utils",
    "tar",
    "ucf",
];

/// Folders of documents and of what is needed to build other programs.
const NOT_CARRIED: [&str; 7] = [
    "usr/include",
    "usr/share/doc",
    "usr/share/doc-base",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
];

/// All files of a package and of those that it depends on, fetched where they are not in the cache.
/// Libraries that none of them has come from the host; what then still lacks one comes without.
pub fn whole(
    packages: &Packages<'_>,
    name: &str,
    host: &Sources,
    say: &mut dyn FnMut(String),
) -> Result<Closure, LabError> {
    let mut sources = host.clone();
    for package in with_dependencies(packages, name, say)? {
        sources.roots.push(package.root);
    }
    let mut out = Closure::default();
    for root in &sources.roots {
        files(root, Path::new(""), &mut out)?;
    }
    for at in out.files.keys().chain(out.links.keys()) {
        if let Some(file) = at.file_name().and_then(|file| file.to_str())
            && file.contains(".so")
        {
            sources.add_library(file, at);
        }
    }
    for (at, from) in out.files.clone() {
        match closure(&from, &at, &sources) {
            Ok(own) => {
                out.links.extend(own.links);
                out.files.extend(own.files);
            }
            Err(LabError::LibraryMissing { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(out)
}

/// The package and those that it depends on, each once, in the order in which they are named.
fn with_dependencies(
    packages: &Packages<'_>,
    name: &str,
    say: &mut dyn FnMut(String),
) -> Result<Vec<Package>, LabError> {
    let mut found = vec![packages.get(name, say)?];
    let mut seen: BTreeSet<String> = LEFT_OUT.map(str::to_owned).into();
    seen.insert(name.to_owned());
    let mut waiting: VecDeque<String> = found[0].depends.iter().cloned().collect();
    while let Some(next) = waiting.pop_front() {
        // A virtual package has no version: it is a name for others, of which one may be there.
        if !seen.insert(next.clone()) || packages.version(&next, say)?.is_none() {
            continue;
        }
        let package = packages.get(&next, say)?;
        waiting.extend(package.depends.iter().cloned());
        found.push(package);
    }
    Ok(found)
}

/// Adds the files and links below `folder` of an unpacked package.
fn files(root: &Path, folder: &Path, out: &mut Closure) -> Result<(), LabError> {
    let at = root.join(folder);
    let reading = || format!("read {}", at.display());
    for entry in fs::read_dir(&at).doing(reading())? {
        let entry = entry.doing(reading())?;
        let within = folder.join(entry.file_name());
        if NOT_CARRIED.iter().any(|&one| within == Path::new(one)) {
            continue;
        }
        let kind = entry.file_type().doing(reading())?;
        let to = Path::new("/").join(&within);
        if kind.is_dir() {
            files(root, &within, out)?;
        } else if kind.is_symlink() {
            let target: PathBuf = fs::read_link(entry.path()).doing(reading())?;
            out.links.entry(to).or_insert(target);
        } else if kind.is_file() && to.extension().is_none_or(|extension| extension != "a") {
            out.files.entry(to).or_insert_with(|| entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::closure::that_needs;

    /// An unpacked package in a cache.
    fn package(cache: &Path, name: &str, depends: &str) -> PathBuf {
        let folder = cache.join("packages").join(name);
        fs::create_dir_all(folder.join("root")).unwrap();
        fs::write(folder.join("version"), "1\n").unwrap();
        fs::write(folder.join("depends"), depends).unwrap();
        folder.join("root")
    }

    fn put(root: &Path, path: &str, bytes: &[u8]) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn modules_and_data_of_a_package_and_of_those_it_depends_on_are_carried() {
        let dir = tempfile::tempdir().unwrap();
        let tool = package(dir.path(), "tool", "data (>= 1), debconf, alternative");
        let data = package(dir.path(), "data", "tool");
        let other = package(dir.path(), "alternative", "");
        put(&tool, "usr/lib/tool/module.so", &that_needs(b"libq.so.6"));
        put(&tool, "usr/share/doc/tool/copyright", b"-");
        put(&data, "usr/share/data/words", b"-");
        put(&data, "usr/lib/libdata.a", b"-");
        std::os::unix::fs::symlink("words", data.join("usr/share/data/list")).unwrap();
        let library = fs::read(std::env::current_exe().unwrap()).unwrap();
        put(&other, "usr/lib/x86_64-linux-gnu/q/libq.so.6", &library);

        let cache = Cache::at(dir.path()).unwrap();
        let mut say = |text| panic!("{text}");
        let out = whole(&Packages::new(&cache), "tool", &Sources::host(), &mut say).unwrap();
        let has = |path: &str| out.files.contains_key(Path::new(path));
        assert!(has("/usr/lib/tool/module.so") && has("/usr/share/data/words"), "{out:?}");
        assert!(!has("/usr/share/doc/tool/copyright") && !has("/usr/lib/libdata.a"), "{out:?}");
        assert_eq!(out.links[Path::new("/usr/share/data/list")], Path::new("words"));
        // The library is not where the linker looks, and what it needs is of the host.
        let linked = &out.links[Path::new("/usr/lib/x86_64-linux-gnu/libq.so.6")];
        assert_eq!(linked, Path::new("/usr/lib/x86_64-linux-gnu/q/libq.so.6"));
        assert!(out.files.keys().any(|path| path.ends_with("libc.so.6")), "{out:?}");
    }

    #[test]
    fn what_lacks_a_library_comes_without() {
        let dir = tempfile::tempdir().unwrap();
        let tool = package(dir.path(), "tool", "");
        put(&tool, "usr/bin/tool", &that_needs(b"libq.so.6"));
        let cache = Cache::at(dir.path()).unwrap();
        let packages = Packages::new(&cache);
        let out = whole(&packages, "tool", &Sources::host(), &mut |_| {}).unwrap();
        assert_eq!(out.files.len(), 1, "{out:?}");
    }
}

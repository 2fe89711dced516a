//! Debian packages: fetched with apt into the cache, unpacked there, never installed. What is in
//! the cache is used without asking apt again, so that a filled cache needs no network.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::{Apt, Suite, failed, run};
use crate::cache::Cache;
use crate::closure::{Closure, Sources, closure};
use crate::error::{Doing, LabError};

/// A package in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The packages it depends on; of alternatives the first.
    pub depends: Vec<String>,
    /// The directory that has its files.
    pub root: PathBuf,
}

/// A program found in a package, with everything that it needs.
#[derive(Debug, Clone)]
pub struct PackagedProgram {
    /// Its path in the guest.
    pub guest_path: PathBuf,
    /// It and its libraries.
    pub closure: Closure,
}

/// Directories of programs in packages.
const PROGRAM_DIRECTORIES: [&str; 7] =
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/games", "/usr/local/bin", "/usr/lib"];

/// Packages in a cache, of one suite.
#[derive(Debug, Clone)]
pub struct Packages<'a> {
    cache: &'a Cache,
    suite: Option<Suite>,
}

impl<'a> Packages<'a> {
    /// The packages of the host's own suite.
    #[must_use]
    pub fn new(cache: &'a Cache) -> Self {
        Self { cache, suite: None }
    }

    /// The packages of another suite, kept apart from those of the host's suite.
    #[must_use]
    pub fn of_suite(cache: &'a Cache, suite: Suite) -> Self {
        Self { cache, suite: Some(suite) }
    }

    fn directory(&self) -> PathBuf {
        match self.suite {
            None => self.cache.root().join("packages"),
            Some(suite) => self.cache.root().join("suites").join(suite.name()).join("packages"),
        }
    }

    fn apt(&self) -> Apt {
        Apt::new(self.cache, self.suite)
    }

    /// The names of the packages that need no fetching.
    #[must_use]
    pub fn cached(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory()).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// A package, fetched if it is not in the cache.
    pub fn get(&self, name: &str, say: &mut dyn FnMut(String)) -> Result<Package, LabError> {
        if let Some(package) = self.read(name)? {
            return Ok(package);
        }
        let _lock = self.cache.lock()?;
        // Another process may have fetched it meanwhile.
        if let Some(package) = self.read(name)? {
            return Ok(package);
        }
        match self.suite {
            None => say(format!("fetching the Debian package {name}")),
            Some(suite) => say(format!("fetching the Debian package {name} of {suite}")),
        }
        self.fetch(name, say)?;
        self.read(name)?.ok_or_else(|| failed(name, "it vanished from the cache", "try again"))
    }

    fn read(&self, name: &str) -> Result<Option<Package>, LabError> {
        check_name(name)?;
        let directory = self.directory().join(name);
        if !directory.is_dir() {
            return Ok(None);
        }
        let read = |file: &str| {
            let path = directory.join(file);
            fs::read_to_string(&path).doing(format!("read {} (delete its folder)", path.display()))
        };
        Ok(Some(Package {
            name: name.to_owned(),
            version: read("version")?.trim().to_owned(),
            depends: parse_depends(&read("depends")?),
            root: directory.join("root"),
        }))
    }

    /// Fetches into a separate directory, renamed when complete.
    fn fetch(&self, name: &str, say: &mut dyn FnMut(String)) -> Result<(), LabError> {
        let packages = self.directory();
        fs::create_dir_all(&packages).doing(format!("make {}", packages.display()))?;
        let work = tempfile::Builder::new()
            .prefix("fetching-")
            .tempdir_in(self.cache.root())
            .doing("make a directory in the cache")?;
        let apt = self.apt();
        apt.download(name, work.path(), say)?;
        let archive = fs::read_dir(work.path())
            .doing("read the directory of a fetched package")?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .ok_or_else(|| failed(name, "apt-get fetched no .deb file", &apt.remedy()))?;
        let whole = work.path().join("whole");
        let root = whole.join("root");
        fs::create_dir_all(&root).doing("make a directory in the cache")?;
        let damaged = "delete the cache and try again";
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(&archive).arg(&root);
        run(unpack, name, damaged)?;
        let field = |field: &str| {
            let mut ask = Command::new("dpkg-deb");
            ask.arg("--field").arg(&archive).arg(field);
            run(ask, name, damaged)
        };
        // Packages that others are configured by depend on libraries before they are unpacked.
        let depends = format!("{},{}", field("Depends")?.trim(), field("Pre-Depends")?);
        for (file, text) in [("version", field("Version")?), ("depends", depends)] {
            fs::write(whole.join(file), text).doing("write into the cache")?;
        }
        let to = packages.join(name);
        fs::rename(&whole, &to).doing(format!("make {}", to.display()))
    }

    /// The names of packages that match a regular expression.
    pub(crate) fn search(
        &self,
        pattern: &str,
        say: &mut dyn FnMut(String),
    ) -> Result<Vec<String>, LabError> {
        self.apt().search(pattern, say)
    }

    /// The version of a package: of the cached one, or else of the one that would be fetched.
    pub(crate) fn version(
        &self,
        name: &str,
        say: &mut dyn FnMut(String),
    ) -> Result<Option<String>, LabError> {
        match self.read(name)? {
            Some(package) => Ok(Some(package.version)),
            None => self.apt().candidate(name, say),
        }
    }

    /// A program of a package and all that it needs: from the host where the host has it, else from
    /// the package's dependencies, which are fetched one by one as far as they are needed.
    pub fn program(
        &self,
        package: &str,
        program: &str,
        host: &Sources,
        say: &mut dyn FnMut(String),
    ) -> Result<PackagedProgram, LabError> {
        let first = self.get(package, say)?;
        let mut sources = host.clone();
        let mut waiting: VecDeque<String> = first.depends.iter().cloned().collect();
        let mut fetched = BTreeSet::from([package.to_owned()]);
        sources.roots.push(first.root.clone());
        loop {
            let wanted = match self.locate(&first, program, &sources)? {
                Some((from, guest_path)) => match closure(&from, &guest_path, &sources) {
                    Ok(closure) => return Ok(PackagedProgram { guest_path, closure }),
                    Err(LabError::LibraryMissing { program, library }) => {
                        (Some(library.clone()), LabError::LibraryMissing { program, library })
                    }
                    Err(error) => return Err(error),
                },
                None => (
                    None,
                    LabError::ProgramMissing {
                        program: program.to_owned(),
                        reason: format!(
                            "the packages {} have none in {}",
                            fetched.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
                            PROGRAM_DIRECTORIES.join(", ")
                        ),
                    },
                ),
            };
            let (library, error) = wanted;
            // Dependencies are not searched for a program that the package does not even name.
            if library.is_none() && !self.names(&first, program) {
                return Err(error);
            }
            let Some(next) = take_next(&mut waiting, library.as_deref(), &fetched) else {
                return Err(error);
            };
            let package = match self.get(&next, say) {
                Ok(package) => package,
                // Virtual packages cannot be fetched; another dependency may provide the library.
                Err(LabError::Package { .. }) if !waiting.is_empty() => {
                    fetched.insert(next);
                    continue;
                }
                Err(error) => return Err(error),
            };
            fetched.insert(next);
            waiting.extend(package.depends.iter().cloned());
            sources.roots.push(package.root);
        }
    }

    /// Whether the package has a file or link (dangling, perhaps) of this name.
    fn names(&self, package: &Package, program: &str) -> bool {
        PROGRAM_DIRECTORIES.iter().any(|directory| {
            let path = package.root.join(directory.trim_start_matches('/')).join(program);
            fs::symlink_metadata(path).is_ok()
        })
    }

    fn locate(
        &self,
        package: &Package,
        program: &str,
        sources: &Sources,
    ) -> Result<Option<(PathBuf, PathBuf)>, LabError> {
        for directory in PROGRAM_DIRECTORIES {
            let guest = Path::new(directory).join(program);
            let named = package.root.join(guest.strip_prefix("/").unwrap_or(&guest));
            if fs::symlink_metadata(&named).is_ok()
                && let Some(from) = sources.find(&guest)
            {
                return Ok(Some((from, guest)));
            }
        }
        Ok(None)
    }
}

/// The dependency to fetch next: the one that should have the library by Debian's naming rule
/// (Policy 8.1), or else the next library, or else the next package.
fn take_next(
    waiting: &mut VecDeque<String>,
    library: Option<&str>,
    fetched: &BTreeSet<String>,
) -> Option<String> {
    waiting.retain(|name| !fetched.contains(name));
    let named = library.and_then(|library| {
        let names = package_names(library);
        waiting.iter().position(|name| names.contains(name))
    });
    let any_library =
        || library.and_then(|_| waiting.iter().position(|name| name.starts_with("lib")));
    let at = named.or_else(any_library).or(if waiting.is_empty() { None } else { Some(0) })?;
    waiting.remove(at)
}

/// `libjemalloc.so.2` is in `libjemalloc2`; a name that ends in a digit has a hyphen before the
/// version; packages rebuilt for 64-bit time end in `t64`.
fn package_names(soname: &str) -> Vec<String> {
    let Some((base, version)) = soname.split_once(".so") else { return Vec::new() };
    let base = base.to_lowercase().replace('_', "-");
    let version = version.trim_start_matches('.');
    let joint =
        if base.ends_with(|c: char| c.is_ascii_digit()) && !version.is_empty() { "-" } else { "" };
    let name = format!("{base}{joint}{version}");
    vec![format!("{name}t64"), name]
}

/// `a (>= 1), b | c, d:any` gives a, b, d.
fn parse_depends(text: &str) -> Vec<String> {
    text.split(',')
        .filter_map(|one| one.split('|').next())
        .filter_map(|one| one.split_whitespace().next())
        .map(|one| one.split(':').next().unwrap_or(one).to_owned())
        .filter(|name| check_name(name).is_ok())
        .collect()
}

/// Names become paths and arguments: only those that Debian's Policy 5.6.1 allows are accepted.
fn check_name(name: &str) -> Result<(), LabError> {
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    if begins && name.chars().all(allowed) {
        return Ok(());
    }
    Err(LabError::Invalid {
        what: "a package's name",
        got: format!("{name:?}"),
        expected: "lower-case letters, digits, + - and .".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read() {
        let text = "adduser, libatomic1 (>= 4.8), libssl3 (>= 3.0.0) | libssl1, python3:any\n";
        assert_eq!(parse_depends(text), ["adduser", "libatomic1", "libssl3", "python3"]);
        assert!(parse_depends("").is_empty());
        assert!(parse_depends(" , ../../etc (>= 1), |").is_empty());
    }

    #[test]
    fn libraries_name_their_package() {
        for (soname, package) in [
            ("libjemalloc.so.2", "libjemalloc2"),
            ("liblua5.1.so.0", "liblua5.1-0"),
            ("libgcc_s.so.1", "libgcc-s1"),
            ("libhiredis.so.0.14", "libhiredis0.14"),
        ] {
            assert!(package_names(soname).contains(&package.to_owned()), "{soname}");
        }
        assert!(package_names("nonsense").is_empty());
    }

    #[test]
    fn the_dependency_with_the_library_comes_first() {
        let mut waiting: VecDeque<String> =
            ["adduser", "libc6", "libjemalloc2", "libx1"].map(str::to_owned).into();
        let fetched = BTreeSet::from(["libc6".to_owned()]);
        let mut next = |library| take_next(&mut waiting, library, &fetched);
        assert_eq!(next(Some("libjemalloc.so.2")).as_deref(), Some("libjemalloc2"));
        assert_eq!(next(Some("libother.so.1")).as_deref(), Some("libx1"));
        assert_eq!(next(None).as_deref(), Some("adduser"));
        assert_eq!(next(None), None);
    }

    #[test]
    fn a_name_that_is_none_is_refused_before_apt_sees_it() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        for name in ["../x", "-o=Dir=/", "", "a b", "A"] {
            let error = Packages::new(&cache).get(name, &mut |_| {}).unwrap_err();
            assert!(matches!(error, LabError::Invalid { .. }), "{error}");
        }
    }

    #[test]
    fn a_cached_package_is_read_without_apt() {
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("packages/tool");
        fs::create_dir_all(package.join("root/usr/bin")).unwrap();
        fs::write(package.join("version"), "1.2-3\n").unwrap();
        fs::write(package.join("depends"), "libc6\n").unwrap();
        fs::write(package.join("root/usr/bin/tool"), "#!/bin/sh\n").unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let packages = Packages::new(&cache);
        let got = packages.get("tool", &mut |_| panic!("nothing to fetch")).unwrap();
        assert_eq!((got.version.as_str(), &got.depends[..]), ("1.2-3", &["libc6".to_owned()][..]));
        let sources = Sources::default();
        let found = packages.program("tool", "tool", &sources, &mut |_| {}).unwrap();
        assert_eq!(found.guest_path, Path::new("/usr/bin/tool"));
        let error = packages.program("tool", "other", &sources, &mut |_| {}).unwrap_err();
        assert!(matches!(error, LabError::ProgramMissing { .. }), "{error}");
    }
}

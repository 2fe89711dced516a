//! The shared libraries that a program needs, found as the dynamic linker would find them
//! (ld.so(8): `DT_RPATH` of the object and those that led to it unless it has `DT_RUNPATH`, then
//! `DT_RUNPATH`, then the linker's cache, then the default directories), in unpacked packages
//! first and on the host second. Nothing is executed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use goblin::elf::Elf;

use crate::error::{Doing, LabError};

/// Where Debian's dynamic linker looks by itself.
const DEFAULT_DIRECTORIES: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/lib/i386-linux-gnu",
    "/usr/lib/i386-linux-gnu",
];

/// Where files of the guest are taken from: unpacked packages, then the host itself.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The roots of unpacked packages.
    pub roots: Vec<PathBuf>,
    /// Whether the host itself is a source.
    host: bool,
    /// Library by soname, as in the host linker's cache.
    host_libraries: HashMap<String, Vec<PathBuf>>,
}

impl Sources {
    /// Nothing but these packages.
    #[must_use]
    pub fn packages(roots: Vec<PathBuf>) -> Self {
        Self { roots, ..Self::default() }
    }

    /// The host, with what its linker's cache has.
    #[must_use]
    pub fn host() -> Self {
        // `ldconfig` is in libc-bin, which every Debian has; without it, only the default
        // directories are searched.
        let output = ["/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"].iter().find_map(|name| {
            std::process::Command::new(name).arg("-p").output().ok().filter(|o| o.status.success())
        });
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        let host_libraries = parse_linker_cache(&text.unwrap_or_default());
        Self { roots: Vec::new(), host: true, host_libraries }
    }

    /// A library of this soname is at this path of the guest, where the linker does not look by itself.
    pub(crate) fn add_library(&mut self, soname: &str, at: &Path) {
        self.host_libraries.entry(soname.to_owned()).or_default().push(at.to_owned());
    }

    /// The file of this path in the guest, in the first source that has it. Links are followed
    /// from source to source, as a package may link into another.
    #[must_use]
    pub fn find(&self, guest_path: &Path) -> Option<PathBuf> {
        let mut path = guest_path.to_owned();
        // The kernel follows this many links (path_resolution(7)).
        for _ in 0..40 {
            let (at, link) = self
                .roots
                .iter()
                .find_map(|root| {
                    spellings(&path).into_iter().find_map(|spelling| {
                        let at = root.join(spelling.strip_prefix("/").unwrap_or(&spelling));
                        let metadata = std::fs::symlink_metadata(&at).ok()?;
                        Some((at, metadata.is_symlink()))
                    })
                })
                // The host's own links lead to its own files, so the kernel may follow them.
                .or_else(|| (self.host && path.is_file()).then(|| (path.clone(), false)))?;
            if !link {
                return at.is_file().then_some(at);
            }
            let target = std::fs::read_link(&at).ok()?;
            path = lexical(&path.parent().unwrap_or(Path::new("/")).join(target));
        }
        None
    }
}

/// The path, and the same on the other side of Debian's merged `/usr`.
fn spellings(path: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_owned()];
    if let Ok(rest) = path.strip_prefix("/usr") {
        all.push(Path::new("/").join(rest));
    } else if let Ok(rest) = path.strip_prefix("/") {
        all.push(Path::new("/usr").join(rest));
    }
    all
}

/// The path without `.` and `..`, without access to files.
fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                out.pop();
            }
            std::path::Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

/// Lines such as `libz.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libz.so.1`.
fn parse_linker_cache(text: &str) -> HashMap<String, Vec<PathBuf>> {
    let mut libraries: HashMap<String, Vec<PathBuf>> = HashMap::new();
    for line in text.lines() {
        if let Some((left, path)) = line.split_once(" => ")
            && let Some(name) = left.split_whitespace().next()
        {
            libraries.entry(name.to_owned()).or_default().push(PathBuf::from(path.trim()));
        }
    }
    libraries
}

/// The parts of an object that the linker reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Object {
    /// Class and machine: a library of another kind is skipped.
    kind: (bool, u16),
    needed: Vec<String>,
    rpath: Vec<String>,
    runpath: Vec<String>,
    interpreter: Option<PathBuf>,
}

/// None if these bytes are no ELF object (a script, for example).
fn parse(bytes: &[u8]) -> Option<Object> {
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    let elf = Elf::parse(bytes).ok()?;
    let split = |paths: &[&str]| -> Vec<String> {
        let parts = paths.iter().flat_map(|path| path.split(':'));
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    Some(Object {
        kind: (elf.is_64, elf.header.e_machine),
        needed: elf.libraries.iter().map(|&name| name.to_owned()).collect(),
        rpath: split(&elf.rpaths),
        runpath: split(&elf.runpaths),
        interpreter: elf.interpreter.map(PathBuf::from),
    })
}

fn read(path: &Path) -> Result<Option<Object>, LabError> {
    Ok(parse(&std::fs::read(path).doing(format!("read {}", path.display()))?))
}

/// Whether the program runs without any shared library.
pub(crate) fn is_static(path: &Path) -> Result<bool, LabError> {
    Ok(read(path)?.is_some_and(|object| object.interpreter.is_none() && object.needed.is_empty()))
}

/// The files that a program needs: their paths in the guest and on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Closure {
    /// Guest path to host path.
    pub files: BTreeMap<PathBuf, PathBuf>,
    /// Links that let the guest's linker find libraries outside its default directories.
    pub links: BTreeMap<PathBuf, PathBuf>,
}

/// Everything that the program at `from` on the host needs to run at `to` in the guest, itself
/// included. Libraries that it opens by itself at run time (dlopen) are not known here.
pub fn closure(from: &Path, to: &Path, sources: &Sources) -> Result<Closure, LabError> {
    let mut out = Closure::default();
    out.files.insert(to.to_owned(), from.to_owned());
    let Some(program) = read(from)? else { return Ok(out) };
    let kind = program.kind;
    if let Some(interpreter) = &program.interpreter {
        let at = sources.find(interpreter).ok_or_else(|| missing(from, interpreter))?;
        out.files.insert(interpreter.clone(), at);
    }
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut queue = vec![(program, from.to_owned(), Vec::<PathBuf>::new())];
    while let Some((object, object_path, inherited)) = queue.pop() {
        let origin = object_path.parent().unwrap_or(Path::new("/")).to_owned();
        let expand = |paths: &[String]| -> Vec<PathBuf> {
            let origin = origin.to_string_lossy();
            let expanded = paths.iter().map(|path| {
                let path = path.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin);
                lexical(Path::new(&path))
            });
            expanded.filter(|path| path.is_absolute()).collect()
        };
        // DT_RUNPATH switches DT_RPATH off and does not pass to what the object needs.
        let (own, passed_on) = if object.runpath.is_empty() {
            let mut rpath = expand(&object.rpath);
            rpath.extend(inherited);
            (rpath.clone(), rpath)
        } else {
            (expand(&object.runpath), Vec::new())
        };
        for soname in &object.needed {
            let known = out.files.keys().any(|path| path.ends_with(soname));
            if known || !seen.insert(soname.clone()) {
                continue;
            }
            let found = candidates(soname, &own, sources).find_map(|guest| {
                let host = sources.find(&guest)?;
                let library = read(&host).ok()??;
                (library.kind == kind).then_some((guest, host, library))
            });
            let (guest, host, library) = found.ok_or_else(|| missing(from, Path::new(soname)))?;
            if !guest.parent().is_some_and(is_default_directory) {
                let link = Path::new(DEFAULT_DIRECTORIES[1]).join(soname);
                out.links.insert(link, guest.clone());
            }
            out.files.insert(guest, host.clone());
            queue.push((library, host, passed_on.clone()));
        }
    }
    Ok(out)
}

/// All of a folder of the host, with the libraries from elsewhere that its programs and libraries
/// need. A library that lacks one of them could not be loaded on the host either, and comes alone.
pub fn folder(from: &Path, to: &Path, sources: &Sources) -> Result<Closure, LabError> {
    let mut out = Closure::default();
    for file in files_of(from)? {
        let place = to.join(file.strip_prefix(from).unwrap_or(&file));
        let own = match closure(&file, &place, sources) {
            Err(LabError::LibraryMissing { .. }) if !is_program(&file)? => Closure::default(),
            closure => closure?,
        };
        // Libraries of the folder keep their places in it, where those that need them look.
        let elsewhere = |at: &Path| !at.starts_with(from);
        out.links.extend(own.links.into_iter().filter(|(_, target)| elsewhere(target)));
        out.files.extend(own.files.into_iter().filter(|(_, at)| elsewhere(at)));
        out.files.insert(place, file);
    }
    Ok(out)
}

/// The files of a folder and of those in it.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let reading = || format!("read {}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).doing(reading())? {
        let path = entry.doing(reading())?.path();
        match path.is_dir() {
            true => files.extend(files_of(&path)?),
            false => files.push(path),
        }
    }
    Ok(files)
}

fn is_program(path: &Path) -> Result<bool, LabError> {
    Ok(read(path)?.is_some_and(|object| object.interpreter.is_some()))
}

fn is_default_directory(path: &Path) -> bool {
    DEFAULT_DIRECTORIES.iter().any(|&directory| path == Path::new(directory))
}

/// Paths in the guest at which a library may be, best first.
fn candidates<'a>(
    soname: &'a str,
    own: &'a [PathBuf],
    sources: &'a Sources,
) -> impl Iterator<Item = PathBuf> + 'a {
    let named = soname.contains('/').then(|| PathBuf::from(soname));
    let own = own.iter().map(move |directory| directory.join(soname));
    // Libraries of packages are in no cache: look for them in the default directories, too,
    // before the host's.
    let default = DEFAULT_DIRECTORIES.iter().map(move |dir| Path::new(dir).join(soname));
    let packaged: Vec<PathBuf> = default.clone().filter(|path| in_package(path, sources)).collect();
    let cached = sources.host_libraries.get(soname).into_iter().flatten().cloned();
    named.into_iter().chain(own).chain(packaged).chain(cached).chain(default)
}

fn in_package(guest_path: &Path, sources: &Sources) -> bool {
    sources.roots.iter().any(|root| {
        std::fs::symlink_metadata(root.join(guest_path.strip_prefix("/").unwrap_or(guest_path)))
            .is_ok()
    })
}

fn missing(program: &Path, library: &Path) -> LabError {
    LabError::LibraryMissing { program: program.to_owned(), library: library.display().to_string() }
}

/// The running test program, with a library of this name in the place of the C library.
#[cfg(test)]
pub(crate) fn that_needs(library: &[u8; 9]) -> Vec<u8> {
    let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let at = bytes.windows(10).position(|w| w == b"libc.so.6\0").unwrap();
    bytes[at..at + 9].copy_from_slice(library);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn this_test_program_brings_libc_and_its_interpreter() {
        let me = std::env::current_exe().unwrap();
        let out = closure(&me, Path::new("/usr/bin/me"), &Sources::host()).unwrap();
        assert_eq!(out.files[Path::new("/usr/bin/me")], me);
        assert!(out.files.contains_key(Path::new("/lib64/ld-linux-x86-64.so.2")));
        assert!(out.files.keys().any(|path| path.ends_with("libc.so.6")), "{out:?}");
    }

    #[test]
    fn a_script_brings_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("s");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        let out = closure(&script, Path::new("/usr/bin/s"), &Sources::host()).unwrap();
        assert_eq!(out.files.len(), 1);
        assert!(!is_static(&script).unwrap());
    }

    #[test]
    fn a_library_that_is_nowhere_is_named() {
        // Without a cache and with a name that no directory has.
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("odd");
        std::fs::write(&program, that_needs(b"libq.so.6")).unwrap();
        let error = closure(&program, Path::new("/odd"), &Sources::host()).unwrap_err();
        assert!(error.to_string().contains("libq.so.6"), "{error}");
    }

    #[test]
    fn a_folder_brings_what_its_programs_need_from_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("bin/me");
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        std::fs::write(dir.path().join("notes"), "text").unwrap();
        let to = Path::new("/opt/it");
        let out = folder(dir.path(), to, &Sources::host()).unwrap();
        assert_eq!(out.files[&to.join("bin/me")], program);
        assert_eq!(out.files[&to.join("notes")], dir.path().join("notes"));
        assert!(out.files.keys().any(|path| path.ends_with("libc.so.6")), "{out:?}");
        assert!(out.files.keys().all(|path| !path.starts_with(dir.path())), "{out:?}");
        // A program that cannot run is a fault.
        std::fs::write(&program, that_needs(b"libq.so.6")).unwrap();
        let error = folder(dir.path(), to, &Sources::host()).unwrap_err();
        assert!(error.to_string().contains("libq.so.6"), "{error}");
    }

    #[test]
    fn links_are_followed_through_packages() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(one.path().join("usr/bin")).unwrap();
        std::fs::create_dir_all(two.path().join("bin")).unwrap();
        std::os::unix::fs::symlink("../bin/real-tool", one.path().join("usr/bin/tool")).unwrap();
        std::fs::write(two.path().join("bin/real-tool"), "x").unwrap();
        let roots = vec![one.path().to_owned(), two.path().to_owned()];
        let sources = Sources::packages(roots);
        let found = sources.find(Path::new("/usr/bin/tool"));
        assert_eq!(found, Some(two.path().join("bin/real-tool")));
        assert_eq!(sources.find(Path::new("/usr/bin/no-such-tool-anywhere")), None);
    }

    #[test]
    fn a_link_to_itself_ends() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("loop", dir.path().join("loop")).unwrap();
        let sources = Sources::packages(vec![dir.path().to_owned()]);
        assert_eq!(sources.find(Path::new("/loop")), None);
    }

    #[test]
    fn the_linkers_cache_is_read() {
        let text = "2 libs found in cache `/etc/ld.so.cache'\n\
                    \tliba.so.1 (libc6,x86-64) => /opt/a/liba.so.1\n\
                    \tliba.so.1 (libc6) => /opt/a32/liba.so.1\nnonsense\n => \n";
        let libraries = parse_linker_cache(text);
        assert_eq!(libraries.len(), 1);
        let expected = ["/opt/a/liba.so.1", "/opt/a32/liba.so.1"].map(PathBuf::from);
        assert_eq!(libraries["liba.so.1"], expected);
    }

    proptest! {
        #[test]
        fn garbage_is_no_object_but_no_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&bytes);
            bytes.splice(0..0, *b"\x7fELF\x02\x01\x01");
            let _ = parse(&bytes);
        }

        #[test]
        fn damaged_objects_do_no_harm(at in 0usize..4096, value in any::<u8>()) {
            let mut bytes = std::fs::read("/proc/self/exe").unwrap();
            bytes.truncate(200_000);
            bytes[at] = value;
            let _ = parse(&bytes);
        }
    }
}

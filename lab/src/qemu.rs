//! The QEMU that emulates the machine: the host's, or one of Debian's packages, which is unpacked
//! in the cache and run from there. So a host can use a newer QEMU than its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::apt::Suite;
use crate::cache::Cache;
use crate::closure::Sources;
use crate::error::{Doing, LabError};
use crate::machine::QemuVersion;
use crate::packages::Packages;
use crate::requirements::find_program;

const PACKAGE: &str = "qemu-system-x86";
const PROGRAM: &str = "qemu-system-x86_64";
/// The emulator of single programs, which Debian 13 builds without plug-ins.
const USER_PACKAGE: &str = "qemu-user";
const USER_PROGRAM: &str = "qemu-x86_64";

const C_LIBRARY: &str = "libc.so.6";

/// The packages with firmware that the program reads, and its directory in them.
const FIRMWARE: [(&str, &str); 2] =
    [("qemu-system-data", "usr/share/qemu"), ("seabios", "usr/share/seabios")];

/// Which QEMU a machine runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Qemu {
    /// A program of the host: a path, or a name on `PATH`.
    Host(PathBuf),
    /// The packaged one of this major version, of the host's release or of its backports.
    Packaged {
        /// 10 of 10.0.2.
        major: u32,
    },
}

impl Default for Qemu {
    fn default() -> Self {
        Self::Host(PROGRAM.into())
    }
}

/// A QEMU that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QemuProgram {
    /// The program.
    pub path: PathBuf,
    /// Its version.
    pub version: QemuVersion,
    /// Arguments that come first: where its firmware is.
    pub args: Vec<String>,
    /// Directories of libraries that the host lacks, if there are any.
    pub library_path: Option<String>,
}

impl QemuProgram {
    /// A command that starts it.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let Some(path) = &self.library_path {
            command.env("LD_LIBRARY_PATH", path);
        }
        command.args(&self.args);
        command
    }
}

impl Qemu {
    /// The QEMU of this name: a major version, as in '10', of Debian's packages; or a path, or a
    /// name on `PATH`.
    #[must_use]
    pub fn named(word: &str) -> Self {
        word.parse().map_or_else(|_| Self::Host(word.into()), |major| Self::Packaged { major })
    }

    /// Finds or fetches it.
    pub fn program(
        &self,
        cache: &Cache,
        say: &mut dyn FnMut(String),
    ) -> Result<QemuProgram, LabError> {
        let mut program = match self {
            Self::Host(path) => QemuProgram {
                path: find_program(path).unwrap_or_else(|| path.clone()),
                version: QemuVersion { major: 0, minor: 0 },
                args: Vec::new(),
                library_path: None,
            },
            Self::Packaged { major } => packaged(*major, cache, say)?,
        };
        program.version = version(&program)?;
        Ok(program)
    }
}

/// The emulator of single programs with plug-ins, of Debian 12's packages, for a host of another
/// Debian; none for other hosts.
pub fn user_emulator(
    cache: &Cache,
    say: &mut dyn FnMut(String),
) -> Result<Option<QemuProgram>, LabError> {
    let release = host_release(&fs::read_to_string("/etc/os-release").unwrap_or_default());
    if release.is_none_or(|release| release == Suite::Bookworm.release()) {
        return Ok(None);
    }
    let packages = Packages::of_suite(cache, Suite::Bookworm);
    let mut program = in_cache((USER_PACKAGE, USER_PROGRAM), &packages, cache, say)?;
    program.version = version(&program)?;
    Ok(Some(program))
}

fn packaged(
    major: u32,
    cache: &Cache,
    say: &mut dyn FnMut(String),
) -> Result<QemuProgram, LabError> {
    let release = host_release(&fs::read_to_string("/etc/os-release").unwrap_or_default());
    // A newer release's QEMU needs that release's C library.
    let suites = Suite::ALL.into_iter().filter(|suite| release.as_deref() == Some(suite.release()));
    let mut had = Vec::new();
    for suite in [None].into_iter().chain(suites.map(Some)) {
        let packages =
            suite.map_or_else(|| Packages::new(cache), |suite| Packages::of_suite(cache, suite));
        let version = packages.version(PACKAGE, say)?;
        if version.as_deref().and_then(packaged_major) == Some(major) {
            return unpacked(&packages, cache, say);
        }
        let suite = suite.map_or("the host's suite", Suite::name);
        had.push(format!("{suite} has {}", version.as_deref().unwrap_or("none")));
    }
    Err(LabError::Package {
        package: PACKAGE.to_owned(),
        reason: format!("no version {major} is packaged for this host ({})", had.join(", ")),
        remedy: "ask for one that is, or give the path of a QEMU".to_owned(),
    })
}

fn unpacked(
    packages: &Packages<'_>,
    cache: &Cache,
    say: &mut dyn FnMut(String),
) -> Result<QemuProgram, LabError> {
    let mut program = in_cache((PACKAGE, PROGRAM), packages, cache, say)?;
    for (package, directory) in FIRMWARE {
        let directory = packages.get(package, say)?.root.join(directory);
        program.args.extend(["-L".to_owned(), directory.display().to_string()]);
    }
    Ok(program)
}

/// A program of a package, run from the cache with the libraries that the host lacks.
fn in_cache(
    (package, name): (&str, &str),
    packages: &Packages<'_>,
    cache: &Cache,
    say: &mut dyn FnMut(String),
) -> Result<QemuProgram, LabError> {
    let found = packages.program(package, name, &Sources::host(), say)?;
    let path = found.closure.files.get(&found.guest_path).cloned().ok_or_else(|| {
        LabError::ProgramMissing {
            program: name.to_owned(),
            reason: format!("the package {package} lacks it"),
        }
    })?;
    let libraries: BTreeSet<String> = found
        .closure
        .files
        .values()
        .filter(|file| **file != path && file.starts_with(cache.root()))
        .filter_map(|file| file.parent())
        // The host's dynamic linker takes the host's C library and no other; it is the newer one.
        .filter(|directory| !directory.join(C_LIBRARY).exists())
        .map(|directory| directory.display().to_string())
        .collect();
    let library_path =
        (!libraries.is_empty()).then(|| libraries.into_iter().collect::<Vec<_>>().join(":"));
    // The version is asked of the program itself.
    let version = QemuVersion { major: 0, minor: 0 };
    Ok(QemuProgram { path, version, args: Vec::new(), library_path })
}

fn version(program: &QemuProgram) -> Result<QemuVersion, LabError> {
    let output = program
        .command()
        .arg("--version")
        .output()
        .doing(format!("run {} --version", program.path.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    QemuVersion::parse(&text).ok_or_else(|| LabError::Invalid {
        what: "the answer of QEMU's --version",
        got: format!("{:?}", text.lines().next().unwrap_or_default()),
        expected: "a version of QEMU; check the machine's `qemu`".to_owned(),
    })
}

/// 10 of `1:10.0.2+ds-2+deb13u1~bpo12+1`.
fn packaged_major(version: &str) -> Option<u32> {
    let upstream = version.split_once(':').map_or(version, |(_, rest)| rest);
    upstream.split('.').next()?.parse().ok()
}

/// `VERSION_CODENAME` of os-release(5), where the host is a Debian.
fn host_release(os_release: &str) -> Option<String> {
    let field = |name: &str| {
        os_release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    field("VERSION_CODENAME").filter(|_| field("ID").as_deref() == Some("debian"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_packaged_version_and_anything_else_a_program() {
        assert_eq!(Qemu::named("10"), Qemu::Packaged { major: 10 });
        assert_eq!(Qemu::named("/opt/qemu"), Qemu::Host("/opt/qemu".into()));
        assert_eq!(Qemu::named("qemu-system-x86_64"), Qemu::default());
    }

    #[test]
    fn versions_of_packages_and_releases_of_hosts_are_read() {
        assert_eq!(packaged_major("1:10.0.2+ds-2+deb13u1~bpo12+1"), Some(10));
        assert_eq!(packaged_major("7.2+dfsg-7"), Some(7));
        assert_eq!(packaged_major("dfsg"), None);
        let text = "NAME=\"Debian GNU/Linux\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(host_release(text).as_deref(), Some("bookworm"));
        assert_eq!(host_release("VERSION_CODENAME=noble\nID=ubuntu\n"), None);
        assert_eq!(host_release(""), None);
    }

    /// Puts a package into a cache as if it had been fetched.
    fn put(cache: &Cache, directory: &str, files: &[(&str, &[u8])]) {
        let package = cache.root().join(directory);
        for (name, bytes) in files {
            let path = package.join("root").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&path, mode).unwrap();
        }
        fs::write(package.join("version"), "1:10.0.2+ds-2\n").unwrap();
        fs::write(package.join("depends"), "\n").unwrap();
    }

    #[test]
    fn a_packaged_one_runs_from_the_cache_with_its_own_firmware() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let script = b"#!/bin/sh\necho \"QEMU emulator version 10.0.2 ($@)\"\n";
        put(&cache, "packages/qemu-system-x86", &[("usr/bin/qemu-system-x86_64", script)]);
        put(&cache, "packages/qemu-system-data", &[("usr/share/qemu/pvh.bin", b"")]);
        put(&cache, "packages/seabios", &[("usr/share/seabios/bios-256k.bin", b"")]);
        let program = unpacked(&Packages::new(&cache), &cache, &mut |_| {}).unwrap();
        assert!(program.path.starts_with(cache.root()), "{program:?}");
        assert_eq!(program.library_path, None);
        for (argument, directory) in [(1, "usr/share/qemu"), (3, "usr/share/seabios")] {
            assert_eq!(program.args[argument - 1], "-L");
            assert!(program.args[argument].ends_with(directory), "{:?}", program.args);
        }
        assert_eq!(version(&program).unwrap(), QemuVersion { major: 10, minor: 0 });
    }
}

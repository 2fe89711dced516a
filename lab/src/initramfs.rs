//! The guest's root file system as a newc cpio archive, which the kernel unpacks before it starts
//! the first process. Entries are sorted and have no time, owner or inode of the host, so that the
//! same contents give the same bytes.
//!
//! The archive is not compressed: QEMU copies it into memory, whereas the guest would unpack it
//! with an emulated processor (docs/design.md has the figures).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use cpio::newc::{Builder, ModeFileType, trailer};

use crate::closure::Closure;
use crate::error::{Doing, LabError};
use crate::loaded::{self, Loaded};

/// Directories that are links into `/usr` in Debian since bookworm.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Directory { mode: u32 },
    Link { target: PathBuf },
    Bytes { bytes: Vec<u8>, mode: u32 },
    Host { from: PathBuf, mode: u32 },
}

/// A root file system under construction. Paths are absolute; the last entry put at a path wins.
#[derive(Debug, Clone, Default)]
pub struct Initramfs {
    entries: BTreeMap<PathBuf, Entry>,
}

impl Initramfs {
    /// A root with the directories that every program expects, all empty.
    pub fn new() -> Result<Self, LabError> {
        let mut root = Self::default();
        for name in MERGED {
            root.entries.insert(name.into(), Entry::Link { target: Path::new("usr").join(name) });
        }
        for path in [
            "/dev",
            "/etc",
            "/home",
            "/proc",
            "/root",
            "/run",
            "/sys",
            "/.lab",
            "/tmp",
            "/usr/bin",
            "/usr/lib",
            "/usr/lib64",
            "/usr/local/bin",
            "/usr/sbin",
            "/var/lib",
            "/var/log",
            "/var/tmp",
        ] {
            root.directory(path, 0o755)?;
        }
        let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
        root.bytes("/etc/passwd", users, 0o644)?;
        root.bytes("/etc/group", *b"root:x:0:\nnogroup:x:65534:\n", 0o644)?;
        root.bytes("/etc/hosts", *b"127.0.0.1 localhost\n::1 localhost\n", 0o644)?;
        Ok(root)
    }

    /// Puts a directory.
    pub fn directory(&mut self, to: impl AsRef<Path>, mode: u32) -> Result<(), LabError> {
        self.put(to.as_ref(), Entry::Directory { mode })
    }

    /// Puts a symbolic link.
    pub fn link(
        &mut self,
        to: impl AsRef<Path>,
        target: impl Into<PathBuf>,
    ) -> Result<(), LabError> {
        self.put(to.as_ref(), Entry::Link { target: target.into() })
    }

    /// Puts a file with these bytes.
    pub fn bytes(
        &mut self,
        to: impl AsRef<Path>,
        bytes: impl Into<Vec<u8>>,
        mode: u32,
    ) -> Result<(), LabError> {
        self.put(to.as_ref(), Entry::Bytes { bytes: bytes.into(), mode })
    }

    /// Puts one file of the host, its links followed, with its permission bits.
    pub fn host_file(&mut self, from: &Path, to: impl AsRef<Path>) -> Result<(), LabError> {
        let metadata = std::fs::metadata(from).doing(format!("read {}", from.display()))?;
        if !metadata.is_file() {
            return Err(LabError::Invalid {
                what: "a file for the guest",
                got: from.display().to_string(),
                expected: "a regular file".to_owned(),
            });
        }
        let mode = metadata.permissions().mode() & 0o7777;
        self.put(to.as_ref(), Entry::Host { from: from.to_owned(), mode })
    }

    /// Puts a file or directory of the host with everything in it; links inside stay links.
    pub fn host_tree(&mut self, from: &Path, to: impl AsRef<Path>) -> Result<(), LabError> {
        let to = to.as_ref();
        let metadata = std::fs::metadata(from).doing(format!("read {}", from.display()))?;
        if !metadata.is_dir() {
            return self.host_file(from, to);
        }
        self.directory(to, metadata.permissions().mode() & 0o7777)?;
        let reading = || format!("read {}", from.display());
        for entry in std::fs::read_dir(from).doing(reading())? {
            let entry = entry.doing(reading())?;
            let (path, to) = (entry.path(), to.join(entry.file_name()));
            if entry.file_type().doing(reading())?.is_symlink() {
                self.link(&to, std::fs::read_link(&path).doing(reading())?)?;
            } else {
                self.host_tree(&path, &to)?;
            }
        }
        Ok(())
    }

    /// Puts the files that a program needs, and links where there is nothing yet.
    pub fn closure(&mut self, closure: &Closure) -> Result<(), LabError> {
        for (to, from) in &closure.files {
            self.host_file(from, to)?;
        }
        for (to, target) in &closure.links {
            if !self.contains(to) {
                self.link(to, target)?;
            }
        }
        Ok(())
    }

    /// Whether there is something at this path.
    #[must_use]
    pub fn contains(&self, path: impl AsRef<Path>) -> bool {
        normal(path.as_ref()).is_ok_and(|path| self.entries.contains_key(&path))
    }

    fn put(&mut self, to: &Path, entry: Entry) -> Result<(), LabError> {
        let path = normal(to)?;
        for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
            self.entries.entry(parent.to_owned()).or_insert(Entry::Directory { mode: 0o755 });
        }
        match (self.entries.get(&path), &entry) {
            // An existing directory keeps its contents.
            (Some(Entry::Directory { .. }), Entry::Directory { .. }) | (None, _) => {}
            (Some(Entry::Directory { .. }), _) | (Some(_), Entry::Directory { .. }) => {
                return Err(LabError::Invalid {
                    what: "a path in the guest",
                    got: format!("{} as both a directory and a file", to.display()),
                    expected: "one of them".to_owned(),
                });
            }
            (Some(_), _) => {}
        }
        self.entries.insert(path, entry);
        Ok(())
    }

    /// Writes the archive.
    pub fn write<W: Write>(&self, mut out: W) -> Result<W, LabError> {
        let mut size = 0u64;
        for (number, (path, entry)) in (1u32..).zip(&self.entries) {
            let name = path.to_str().ok_or_else(|| LabError::Invalid {
                what: "a path in the guest",
                got: path.display().to_string(),
                expected: "a name in UTF-8".to_owned(),
            })?;
            let file = Builder::new(name).ino(number).nlink(1).mtime(0);
            out = match entry {
                Entry::Directory { mode } => {
                    let file = file.mode(*mode).set_mode_file_type(ModeFileType::Directory);
                    copy(file, &[][..], 0, out)
                }
                Entry::Link { target } => {
                    let target = target.as_os_str().as_encoded_bytes();
                    let file = file.mode(0o777).set_mode_file_type(ModeFileType::Symlink);
                    copy(file, target, target.len() as u64, out)
                }
                Entry::Bytes { bytes, mode } => {
                    size += bytes.len() as u64;
                    let file = file.mode(*mode).set_mode_file_type(ModeFileType::Regular);
                    copy(file, &bytes[..], bytes.len() as u64, out)
                }
                Entry::Host { from, mode } => {
                    let host = File::open(from).doing(format!("read {}", from.display()))?;
                    let reading = || format!("read {}", from.display());
                    let file = file.mode(*mode).set_mode_file_type(ModeFileType::Regular);
                    match loaded::of(&host).doing(reading())? {
                        Some(Loaded { bytes, header }) => {
                            size += bytes;
                            let behind = header.len() as u64;
                            (&host).seek(SeekFrom::Start(behind)).doing(reading())?;
                            copy(file, (&header[..]).chain(host), bytes, out)
                        }
                        None => {
                            let bytes = host.metadata().doing(reading())?.len();
                            size += bytes;
                            copy(file, host, bytes, out)
                        }
                    }
                }
            }
            .doing(format!("put /{} into the guest's root file system", path.display()))?;
        }
        tracing::debug!("initramfs: {} entries, {size} bytes of files", self.entries.len());
        trailer(out).doing("end the guest's root file system")
    }

    /// Writes the archive to an anonymous file in memory; returns its length in bytes.
    pub(crate) fn write_to_memory(&self) -> Result<(File, u64), LabError> {
        let fd = rustix::fs::memfd_create("terrace-initramfs", rustix::fs::MemfdFlags::CLOEXEC)
            .doing("make a file in memory")?;
        let out = self.write(BufWriter::with_capacity(1 << 20, File::from(fd)))?;
        let mut file = out.into_inner().map_err(|e| e.into_error()).doing("write an initramfs")?;
        let bytes = file.stream_position().doing("write an initramfs")?;
        file.seek(SeekFrom::Start(0)).doing("write an initramfs")?;
        Ok((file, bytes))
    }
}

/// Writes one entry. A file whose length differs from the declared length is an error: the rest of
/// the archive would be garbage.
fn copy<W: Write>(file: Builder, from: impl Read, bytes: u64, out: W) -> io::Result<W> {
    let size = u32::try_from(bytes).map_err(|_| {
        io::Error::other(format!("got {bytes} bytes, expected less than 4 GiB in one file"))
    })?;
    let mut writer = file.write(out, size);
    let copied = io::copy(&mut from.take(bytes), &mut writer)?;
    if copied != bytes {
        return Err(io::Error::other(format!("the file shrank from {bytes} to {copied} bytes")));
    }
    writer.finish()
}

/// The path in the archive: without the leading slash, without `.` and `..`, and with Debian's
/// links into `/usr` resolved.
fn normal(path: &Path) -> Result<PathBuf, LabError> {
    let mut parts: Vec<&std::ffi::OsStr> = Vec::new();
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => parts.push(name),
            Component::ParentDir | Component::Prefix(_) => {
                parts.clear();
                break;
            }
        }
    }
    if !path.is_absolute() || parts.is_empty() {
        return Err(LabError::Invalid {
            what: "a path in the guest",
            got: path.display().to_string(),
            expected: "an absolute path without `..`".to_owned(),
        });
    }
    let merged = parts.len() > 1 && MERGED.iter().any(|&name| parts[0] == name);
    let prefix = if merged { Path::new("usr") } else { Path::new("") };
    Ok(parts.iter().fold(prefix.to_owned(), |path, part| path.join(part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpio::newc::Reader;

    fn names(archive: &[u8]) -> Vec<(String, u32, u32, Vec<u8>)> {
        let mut rest = archive;
        let mut found = Vec::new();
        loop {
            let mut reader = Reader::new(rest).expect("a readable entry");
            if reader.entry().is_trailer() {
                return found;
            }
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).expect("its bytes");
            let entry = reader.entry();
            found.push((entry.name().to_owned(), entry.mode(), entry.mtime(), bytes));
            rest = reader.finish().expect("the next entry");
        }
    }

    #[test]
    fn what_is_put_is_in_the_archive_sorted_and_without_time() {
        let mut root = Initramfs::default();
        root.bytes("/z/last", *b"zz", 0o600).unwrap();
        root.link("/a", "z/last").unwrap();
        root.bytes("/bin/tool", *b"tool", 0o755).unwrap();
        let found = names(&root.write(Vec::new()).unwrap());
        let expected: [(&str, u32, &[u8]); 6] = [
            ("a", 0o120_777, b"z/last"),
            ("usr", 0o040_755, b""),
            ("usr/bin", 0o040_755, b""),
            ("usr/bin/tool", 0o100_755, b"tool"),
            ("z", 0o040_755, b""),
            ("z/last", 0o100_600, b"zz"),
        ];
        assert_eq!(found.len(), expected.len());
        for (got, (name, mode, bytes)) in found.iter().zip(expected) {
            assert_eq!((got.0.as_str(), got.1, got.2, &got.3[..]), (name, mode, 0, bytes));
        }
    }

    #[test]
    fn the_order_of_putting_does_not_show() {
        let write = |paths: &[&str]| {
            let mut root = Initramfs::new().unwrap();
            for path in paths {
                root.bytes(path, path.as_bytes(), 0o644).unwrap();
            }
            root.write(Vec::new()).unwrap()
        };
        assert!(write(&["/x", "/y/z"]) == write(&["/y/z", "/x"]));
    }

    #[test]
    fn a_directory_of_the_host_goes_in_whole() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/file"), "data").unwrap();
        std::os::unix::fs::symlink("sub/file", dir.path().join("link")).unwrap();
        let mut root = Initramfs::default();
        root.host_tree(dir.path(), "/in").unwrap();
        let found = names(&root.write(Vec::new()).unwrap());
        let names: Vec<&str> = found.iter().map(|entry| entry.0.as_str()).collect();
        assert_eq!(names, ["in", "in/link", "in/sub", "in/sub/file"]);
        assert_eq!(found[3].3, b"data");
        assert_eq!(found[1].3, b"sub/file");
    }

    #[test]
    fn odd_paths_are_refused() {
        let mut root = Initramfs::default();
        for path in ["relative", "/", "/a/../b", ""] {
            let error = root.bytes(path, *b"", 0o644).unwrap_err().to_string();
            assert!(error.contains("expected an absolute path"), "{error}");
        }
        root.directory("/d", 0o755).unwrap();
        assert!(root.bytes("/d", *b"", 0o644).is_err());
    }
}

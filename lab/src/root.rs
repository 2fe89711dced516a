//! A guest with a root file system and an init on a disk.

use std::path::{Path, PathBuf};

use crate::error::{Doing, LabError};
use crate::initramfs::Initramfs;
use crate::job::{GuestFile, GuestJob};
use crate::lab::COUNT_PERIOD;

const SWITCH: &str = include_str!("root.sh");

/// Modules that the guest needs for its disk, where its kernel has them not built in.
const MODULES: [&str; 1] = ["virtio_blk"];

/// QEMU's arguments for this disk: writable for the guest, the image unchanged.
pub(crate) fn qemu_args(disk: &Path) -> Vec<String> {
    // A comma separates QEMU's options.
    let file = disk.display().to_string().replace(',', ",,");
    vec![
        "-drive".to_owned(),
        format!("if=none,id=root,format=raw,snapshot=on,file={file}"),
        "-device".to_owned(),
        "virtio-blk-pci,drive=root".to_owned(),
    ]
}

/// Adds the files that switch to the disk to the first root file system.
pub(crate) fn put(
    root: &mut Initramfs,
    job: &GuestJob,
    modules_root: Option<&Path>,
) -> Result<(), LabError> {
    root.bytes("/.lab/root", SWITCH, 0o600)?;
    root.bytes("/.lab/carried", carried(job), 0o600)?;
    let found = modules_root.map(modules).transpose()?;
    for (name, path) in found.unwrap_or_default() {
        root.host_file(&path, Path::new("/.lab/modules").join(name))?;
    }
    Ok(())
}

/// Paths that are copied to the disk, a line each: the lab's own files, which the service reads, the
/// program for commands that count, and the job's files.
fn carried(job: &GuestJob) -> String {
    let own = ["/.lab", COUNT_PERIOD].map(str::to_owned);
    let files = job.files.iter().map(|file| {
        let (GuestFile::Host { to, .. } | GuestFile::Bytes { to, .. }) = file;
        to.display().to_string()
    });
    own.into_iter().chain(files).map(|path| format!("{}\n", path.trim_start_matches('/'))).collect()
}

/// Those of [`MODULES`] that are in this package.
fn modules(package: &Path) -> Result<Vec<(String, PathBuf)>, LabError> {
    let mut found = Vec::new();
    // Since Linux 7 packages have them below the target of /lib.
    let folders = ["lib/modules", "usr/lib/modules"].map(|folder| package.join(folder));
    if let Some(folder) = folders.iter().find(|folder| folder.is_dir()) {
        search(folder, &mut found)?;
    }
    Ok(found)
}

fn search(folder: &Path, found: &mut Vec<(String, PathBuf)>) -> Result<(), LabError> {
    let reading = || format!("read {}", folder.display());
    for entry in std::fs::read_dir(folder).doing(reading())? {
        let entry = entry.doing(reading())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().doing(reading())?;
        if kind.is_dir() {
            search(&entry.path(), found)?;
        } else if name.split_once(".ko").is_some_and(|(stem, _)| MODULES.contains(&stem)) {
            found.push((name, entry.path()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernels_modules_are_found_where_its_release_has_them() {
        for folder in ["lib/modules", "usr/lib/modules"] {
            let package = tempfile::tempdir().unwrap();
            let drivers = package.path().join(folder).join("6.12/kernel/drivers");
            std::fs::create_dir_all(&drivers).unwrap();
            for name in ["virtio_blk.ko.xz", "virtio_blk_other.ko", "ext4.ko"] {
                std::fs::write(drivers.join(name), "").unwrap();
            }
            let names: Vec<String> =
                modules(package.path()).unwrap().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["virtio_blk.ko.xz"], "{folder}");
        }
        assert!(modules(Path::new("/nowhere")).unwrap().is_empty());
    }

    #[test]
    fn a_command_on_a_disk_has_its_files_and_can_begin_a_window_of_counts() {
        let job = GuestJob::new("sh").bytes("count-period", "/srv/test.sh");
        let paths: Vec<String> = carried(&job).lines().map(str::to_owned).collect();
        assert_eq!(paths, [".lab", "usr/bin/count-period", "srv/test.sh"]);
    }

    #[test]
    fn a_disk_is_not_written_to_whatever_its_name() {
        let args = qemu_args(Path::new("/a,b.ext4")).join(" ");
        assert!(args.contains("snapshot=on,file=/a,,b.ext4"), "{args}");
    }
}

//! Paths of QEMU and the plug-in.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::launch::RecordError;
use crate::program;

const QEMU: &str = "qemu-x86_64";
/// The plug-in's file name.
pub(crate) const PLUGIN: &str = "libterrace_recorder_plugin.so";
/// Its folder, relative to that of the running program: the same, as cargo builds it, or where
/// `make install` puts it.
const FOLDERS: [&str; 2] = ["", "../lib/terrace"];
/// The folders in which cargo puts tests and examples: the plug-in is one level up. Only for
/// programs in these, because the folder above may be `/tmp`, where anyone can put a file.
const CARGOS: [&str; 2] = ["deps", "examples"];

/// The bytes after the number of the interface in the plug-in's file.
pub const INTERFACE_MARK: [u8; 28] = *b"terrace: the interface above";
/// The number that the plug-in is built with, for QEMU 6.0 to 8.2.
const BUILT_WITH: u32 = 1;

/// Writes a copy of the plug-in for QEMUs with another version of the interface, each of which
/// accepts a few versions only: 4 is that of 9.2 and of 10.0.
pub fn for_interface(plugin: &Path, version: u32, copy: &Path) -> std::io::Result<()> {
    let mut bytes = std::fs::read(plugin)?;
    let number = BUILT_WITH.to_le_bytes();
    let mut looked_for = number.to_vec();
    looked_for.extend(INTERFACE_MARK);
    let found: Vec<usize> = (0..bytes.len().saturating_sub(looked_for.len()))
        .step_by(4)
        .filter(|&at| bytes[at..].starts_with(&looked_for))
        .collect();
    let [at] = found[..] else {
        return Err(std::io::Error::other(format!(
            "{} has {} places with the number of its interface, expected one; build it anew",
            plugin.display(),
            found.len()
        )));
    };
    bytes[at..at + number.len()].copy_from_slice(&version.to_le_bytes());
    std::fs::write(copy, bytes)
}

/// QEMU's user emulator: the given one, or the one on the PATH.
pub(crate) fn qemu(given: Option<&Path>) -> Result<PathBuf, RecordError> {
    match given {
        Some(path) if path.is_file() => Ok(path.to_owned()),
        Some(path) => Err(RecordError::NoQemu(path.display().to_string())),
        None => program::find(OsStr::new(QEMU), std::env::var_os("PATH").as_deref())
            .map_err(|_| RecordError::NoQemu(QEMU.to_owned())),
    }
}

/// The plug-in: the given one, or the one that belongs to the running program.
pub fn plugin(given: Option<&Path>) -> Result<PathBuf, RecordError> {
    let found = match given {
        Some(path) => path.canonicalize().map_err(|source| RecordError::BadPlugin {
            path: path.display().to_string(),
            source,
        })?,
        None => {
            let running = std::env::current_exe().map_err(|source| RecordError::System {
                action: "find the running program",
                source,
            })?;
            let folder = running.parent().unwrap_or(Path::new("."));
            let of_cargo = CARGOS.iter().any(|name| folder.ends_with(name));
            FOLDERS
                .iter()
                .chain(of_cargo.then_some(&".."))
                .find_map(|place| folder.join(place).join(PLUGIN).canonicalize().ok())
                .ok_or_else(|| RecordError::NoPlugin(folder.display().to_string()))?
        }
    };
    if found.as_os_str().as_encoded_bytes().contains(&b',') {
        return Err(RecordError::Comma(found.display().to_string()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_plug_in_has_another_number_and_is_else_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (plugin, copy) = (folder.path().join("plugin"), folder.path().join("copy"));
        let mut bytes = vec![7; 64];
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(INTERFACE_MARK);
        bytes.extend([9; 33]);
        std::fs::write(&plugin, &bytes).unwrap();
        for_interface(&plugin, 4, &copy).unwrap();
        bytes[64] = 4;
        assert_eq!(std::fs::read(&copy).unwrap(), bytes);
        // The number cannot be found in the copy again.
        let error = for_interface(&copy, 4, &plugin).unwrap_err().to_string();
        assert!(error.contains("0 places") && error.lines().count() == 1, "{error}");
    }
}

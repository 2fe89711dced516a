//! Where QEMU and the plug-in are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::launch::RecordError;
use crate::program;

const QEMU: &str = "qemu-x86_64";
/// The plug-in's file.
pub(crate) const PLUGIN: &str = "libterrace_recorder_plugin.so";
/// Where it is, seen from the folder of the running program: beside it, as cargo builds it; one
/// up, for cargo's tests and examples; where `make install` puts it.
const FOLDERS: [&str; 3] = ["", "..", "../lib/terrace"];

/// QEMU's user emulator: the one given, or the one on the PATH.
pub(crate) fn qemu(given: Option<&Path>) -> Result<PathBuf, RecordError> {
    match given {
        Some(path) if path.is_file() => Ok(path.to_owned()),
        Some(path) => Err(RecordError::NoQemu(path.display().to_string())),
        None => program::find(OsStr::new(QEMU), std::env::var_os("PATH").as_deref())
            .map_err(|_| RecordError::NoQemu(QEMU.to_owned())),
    }
}

/// The plug-in: the one given, or the one that belongs to the running program.
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
            FOLDERS
                .iter()
                .find_map(|place| folder.join(place).join(PLUGIN).canonicalize().ok())
                .ok_or_else(|| RecordError::NoPlugin(folder.display().to_string()))?
        }
    };
    if found.as_os_str().as_encoded_bytes().contains(&b',') {
        return Err(RecordError::Comma(found.display().to_string()));
    }
    Ok(found)
}

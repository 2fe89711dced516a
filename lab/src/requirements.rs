//! Requirements of the host, with the remedy for each that is missing.

use std::path::{Path, PathBuf};

use crate::error::LabError;
use crate::kernel::Kernel;
use crate::machine::GuestMachine;
use crate::qemu::Qemu;

/// Something that the host lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRequirement {
    /// The missing program or file.
    pub what: String,
    /// The command that installs it.
    pub remedy: String,
}

impl From<MissingRequirement> for LabError {
    fn from(missing: MissingRequirement) -> Self {
        Self::HostProgramMissing { what: missing.what, remedy: missing.remedy }
    }
}

/// The requirements of this machine that the host lacks: empty if it can start. Kernel, busybox and
/// packaged programs need not be installed: they are fetched.
#[must_use]
pub fn missing_requirements(machine: &GuestMachine) -> Vec<MissingRequirement> {
    let qemu = "apt-get install --no-install-recommends qemu-system-x86";
    let debian = "use Debian or Ubuntu, or give the machine the path of a kernel";
    let host_qemu = match &machine.qemu {
        Qemu::Host(path) => Some((path.as_path(), qemu)),
        Qemu::Packaged { .. } => None,
    };
    let mut programs: Vec<_> = host_qemu.into_iter().collect();
    let packaged_kernel = matches!(machine.kernel, Kernel::Debian | Kernel::DebianSeries(_));
    if packaged_kernel || host_qemu.is_none() {
        programs.extend(["apt-get", "apt-cache", "dpkg-deb"].map(|name| (Path::new(name), debian)));
    }
    programs
        .into_iter()
        .filter(|(program, _)| find_program(program).is_none())
        .map(|(program, remedy)| MissingRequirement {
            what: program.display().to_string(),
            remedy: remedy.to_owned(),
        })
        .collect()
}

/// The file of a program given as a path or as a name on `PATH`.
#[must_use]
pub fn find_program(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Directories of system programs are not on every user's PATH.
    let more = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let places = std::env::split_paths(&path).chain(more);
    places.map(|place| place.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_qemu_is_named_with_its_remedy() {
        let machine =
            GuestMachine { qemu: Qemu::Host("no-such-qemu".into()), ..GuestMachine::default() };
        let missing = missing_requirements(&machine);
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert_eq!(missing[0].what, "no-such-qemu");
        assert!(missing[0].remedy.contains("apt-get install"));
    }

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        assert!(find_program(Path::new("sh")).is_some());
        assert!(find_program(Path::new("/bin/sh")).is_some());
        assert!(find_program(Path::new("/bin/no-such")).is_none());
    }
}

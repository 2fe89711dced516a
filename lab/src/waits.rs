//! Loops in which a guest's kernel waits as it boots, where its clock counts instructions: the plug-in
//! gives them the time that they take on hardware, and a boot takes the host less.
//!
//! Nothing depends on it, so a QEMU whose plug-ins are not known, or a program without the plug-in, does
//! without.

use crate::qemu::QemuProgram;
use crate::timed;
use terrace_timed::config::PAUSE_NS;

/// A function that QEMU exports where it has plug-ins.
const EXPORTED: &str = "qemu_plugin_register_vcpu_tb_trans_cb";

/// QEMU's arguments for it; none where it cannot be had.
pub(crate) fn arguments(qemu: &QemuProgram) -> Vec<String> {
    let plugin = timed::OLD
        .contains(&qemu.version)
        .then(|| terrace_recorder::places::plugin(None).ok())
        .flatten()
        .filter(|_| has_plugins(qemu));
    let argument =
        |path| vec!["-plugin".to_owned(), format!("{},waits={PAUSE_NS}", timed::quoted(path))];
    plugin.as_deref().map(argument).unwrap_or_default()
}

fn has_plugins(qemu: &QemuProgram) -> bool {
    let Ok(bytes) = std::fs::read(&qemu.path) else { return false };
    let Ok(elf) = goblin::elf::Elf::parse(&bytes) else { return false };
    elf.dynsyms.iter().any(|symbol| elf.dynstrtab.get_at(symbol.st_name) == Some(EXPORTED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::QemuVersion;

    #[test]
    fn a_program_without_plugins_gets_no_arguments() {
        let of = |path: &str, version| QemuProgram {
            path: path.into(),
            version,
            args: Vec::new(),
            library_path: None,
        };
        let version = QemuVersion { major: 7, minor: 2 };
        assert!(!has_plugins(&of("/bin/sh", version)) && !has_plugins(&of("/nowhere", version)));
        assert!(arguments(&of("/bin/sh", version)).is_empty());
        let newer = QemuVersion { major: 10, minor: 0 };
        assert!(arguments(&of("/usr/bin/qemu-system-x86_64", newer)).is_empty());
    }
}

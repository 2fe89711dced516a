//! Libraries of a QEMU that does not run with the host's own. QEMU finds them by an environment
//! variable, and gives the program another value of it, by an argument, or none.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The variable by which the dynamic linker finds libraries.
pub const VARIABLE: &str = "LD_LIBRARY_PATH";
const SET: &str = "-E";
const UNSET: &str = "-U";

/// QEMU's argument for the program's own value of the variable.
pub fn argument(value: Option<OsString>) -> [OsString; 2] {
    match value {
        Some(value) => {
            let mut entry = OsString::from(VARIABLE);
            entry.push("=");
            entry.push(value);
            [SET.into(), entry]
        }
        None => [UNSET.into(), VARIABLE.into()],
    }
}

/// Before QEMU executes itself for a program that a recorded one executes: the new program's own
/// value goes to the argument, and QEMU's stays in the environment. Without the argument nothing
/// changes.
pub fn carry_over(argv: &mut [Vec<u8>], envp: &mut Vec<Vec<u8>>, of_qemu: Option<&OsStr>) {
    let is_ours = |pair: &[Vec<u8>]| {
        [SET, UNSET].iter().any(|flag| pair[0] == flag.as_bytes())
            && pair[1].starts_with(VARIABLE.as_bytes())
    };
    let (Some(at), Some(of_qemu)) = (argv.windows(2).position(is_ours), of_qemu) else { return };
    let prefix = [VARIABLE.as_bytes(), b"="].concat();
    let own = envp.iter().find_map(|entry| entry.strip_prefix(&prefix[..]));
    let [flag, value] = argument(own.map(|own| OsStr::from_bytes(own).to_owned()));
    argv[at] = flag.as_bytes().to_vec();
    argv[at + 1] = value.as_bytes().to_vec();
    envp.retain(|entry| !entry.starts_with(&prefix));
    envp.push([&prefix[..], of_qemu.as_bytes()].concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(texts: &[&str]) -> Vec<Vec<u8>> {
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_program_that_is_executed_has_its_own_value_and_qemu_its_own() {
        let of_qemu = Some(OsStr::new("/cache"));
        for (own, flag, value) in [
            (None, "-U", "LD_LIBRARY_PATH"),
            (Some("LD_LIBRARY_PATH=/own"), "-E", "LD_LIBRARY_PATH=/own"),
        ] {
            let [set, entry] = argument(Some("/before".into()));
            let mut argv = bytes(&["qemu", "-0"]);
            argv.splice(1..1, [set, entry].map(|text| text.as_bytes().to_vec()));
            let mut envp = bytes(&["HOME=/root"]);
            envp.extend(own.map(|own| own.as_bytes().to_vec()));
            carry_over(&mut argv, &mut envp, of_qemu);
            assert_eq!(argv, bytes(&["qemu", flag, value, "-0"]));
            assert_eq!(envp, bytes(&["HOME=/root", "LD_LIBRARY_PATH=/cache"]));
        }
        // A QEMU of the host's libraries: nothing is touched.
        let (mut argv, mut envp) = (bytes(&["qemu", "-0"]), bytes(&["LD_LIBRARY_PATH=/own"]));
        carry_over(&mut argv, &mut envp, None);
        assert_eq!((argv, envp), (bytes(&["qemu", "-0"]), bytes(&["LD_LIBRARY_PATH=/own"])));
    }
}

//! Checks of a configuration against the system before the host is changed: the control group of
//! the socket, the socket's path, the state folder. `terraced check` makes the same checks.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Access, access};

use crate::config::Config;
use crate::control;

/// Checks a configuration against this system's files; changes nothing. The error is one line.
pub fn check(config: &Config, groups: &Path) -> Result<(), String> {
    let d = &config.daemon;
    control::group_of(groups, &d.control_group).map_err(|e| format!("daemon.{e}"))?;
    if let Ok(found) = std::fs::symlink_metadata(&d.control)
        && !found.file_type().is_socket()
    {
        return Err(format!(
            "daemon.control = '{}': is no socket; expected a free name or a socket: correct it",
            d.control.display()
        ));
    }
    folder("daemon.control", d.control.parent().unwrap_or(Path::new("/")))?;
    if !d.state.as_os_str().is_empty() {
        folder("daemon.state", &d.state)?;
    }
    Ok(())
}

/// Checks that a folder exists or can be made.
fn folder(key: &str, path: &Path) -> Result<(), String> {
    let Some(found) = path.ancestors().find(|p| p.exists()) else { return Ok(()) };
    let bad = |what: &str| {
        Err(format!(
            "{key}: '{}' {what}; expected a folder that terraced can write to: correct the path",
            found.display()
        ))
    };
    if !found.is_dir() {
        return bad("is no folder");
    }
    // Only for root: another user may check a file for the daemon, which runs with its own rights.
    if rustix::process::geteuid().is_root() && access(found, Access::WRITE_OK).is_err() {
        return bad("is read-only");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(daemon: &str) -> Config {
        let group = "[[groups]]\nname = \"g\"\ncgroup = \"/a\"\nfast_ratio = 0.5\n";
        Config::parse(&format!("[daemon]\n{daemon}\n{group}"), "t.toml").unwrap()
    }

    #[test]
    fn what_would_stop_a_start_is_found_before_it() {
        let keep = tempfile::tempdir().unwrap();
        let groups = keep.path().join("group");
        std::fs::write(&groups, "root:x:0:\nadm:x:4:\n").unwrap();
        std::fs::write(keep.path().join("file"), "").unwrap();
        let here = keep.path().display();
        let good = format!(
            "control = \"{here}/run/s\"\nstate = \"{here}/state\"\ncontrol_group = \"adm\""
        );
        check(&config(&good), &groups).unwrap();
        for (daemon, expected) in [
            (good.replace("adm", "nobody-knows"), "daemon.control_group = 'nobody-knows'"),
            (good.replace("/run/s", "/file"), "is no socket"),
            (good.replace("/run/s", "/file/s"), "file' is no folder"),
            (good.replace("/state", "/file/state"), "daemon.state"),
        ] {
            let message = check(&config(&daemon), &groups).unwrap_err();
            assert!(message.contains(expected) && !message.contains('\n'), "{message}");
        }
        assert!(!keep.path().join("run").exists() && !keep.path().join("state").exists());
    }
}

//! `terraced` on a live kernel: Debian's 6.12 in a virtual machine with two tiers.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that is built with the workspace and not with this test.
fn beside(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_terrace")).with_file_name(name);
    assert!(path.is_file(), "{}: run 'cargo build --workspace --bins' first", path.display());
    path
}

#[test]
fn the_daemon_serves_two_groups_reloads_survives_a_kill_and_harms_nothing() {
    let script = format!("{}/tests/daemon.sh:/srv/daemon.sh", env!("CARGO_MANIFEST_DIR"));
    let (daemon, workload) = (beside("terraced"), beside("terrace-workload"));
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["lab", "--timeout", "900", "--fast", "768M", "--slow", "512M"])
        .args(["--program", env!("CARGO_BIN_EXE_terrace")])
        .args(["--program", daemon.to_str().unwrap(), "--program", workload.to_str().unwrap()])
        .args(["--file", &script, "--", "sh", "/srv/daemon.sh"])
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    for line in ["reloads 20", "groups came and went", "killed: every setting", "all held"] {
        assert!(said.contains(line), "nothing of '{line}': {said}");
    }
}

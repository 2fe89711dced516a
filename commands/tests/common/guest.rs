//! Runs a script of this folder in a guest that has the programs of the workspace, and what those
//! scripts are run with.

// Each test file is a program of its own and uses a part.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Time passes with the guest's instructions: nothing waits for a pause to be over, and a host that is
/// busy slows nothing.
pub const CLOCK: [&str; 1] = ["--instructions-as-time"];
/// The arguments of `daemon_soak.sh` at its full length.
pub const LONG: [&str; 4] = ["100", "200", "2000", "1"];
/// What it prints then.
pub const LONG_LINES: [&str; 4] =
    ["kills 100", "groups 200 came and went", "periods 2000", "all held"];

/// A program that is built with the workspace and not with this test.
fn beside(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_terrace")).with_file_name(name);
    assert!(path.is_file(), "{}: run 'cargo build --workspace --bins' first", path.display());
    path
}

/// Runs a script of this folder in a guest with these options that has all programs, and returns
/// its output; fails where the script does, or where its output lacks these lines.
pub fn in_guest(
    kernel: &str,
    options: &[&str],
    script: &str,
    arguments: &[&str],
    timeout_s: u32,
    lines: &[&str],
) -> String {
    let tests = format!("{}/tests", env!("CARGO_MANIFEST_DIR"));
    let file = |name: &str| format!("{tests}/{name}:/srv/{name}");
    let (daemon, workload) = (beside("terraced"), beside("terrace-workload"));
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args([
            "lab",
            "--kernel",
            kernel,
            "--timeout",
            &timeout_s.to_string(),
            "--fast",
            "768M",
            "--slow",
            "512M",
        ])
        .args(options)
        .args(["--program", env!("CARGO_BIN_EXE_terrace")])
        .args(["--program", daemon.to_str().unwrap(), "--program", workload.to_str().unwrap()])
        .args(["--file", &file("daemon_common.sh"), "--file", &file(script)])
        .args(["--", "sh", &format!("/srv/{script}")])
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{printed}");
    for line in lines {
        assert!(printed.contains(line), "nothing of '{line}': {printed}");
    }
    printed
}

//! Hosts on which a run is impossible: rejected in one line, with nothing changed.

use std::path::Path;
use std::process::Command;

/// Runs an experiment on this host with these keys of its machine and its workload.
fn refusal(machine: &str, workload: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("x.toml"), folder.path().join("out"));
    let experiment = format!(
        "name = \"x\"\nperiod_ms = 1000\nperiods = 2\n[machine]\n{machine}\n[[groups]]\n\
         name = \"g\"\nfast_ratio = 0.5\n[groups.workload]\n{workload}\n"
    );
    std::fs::write(&file, experiment).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .arg("run")
        .args([Path::new(&file), Path::new("--out"), &out])
        .args(["--machine", "host", "--fix-conflicts"])
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert_eq!(printed.lines().count(), 1, "{printed}");
    assert!(!out.exists(), "a refusal made {}", out.display());
    printed
}

const ATTACH: &str = "kind = \"attach\"\npids = [1]";

#[test]
fn nodes_that_the_host_does_not_have_are_refused() {
    let printed = refusal("fast_nodes = [0]\nslow_nodes = [777]", ATTACH);
    assert!(printed.contains("777"), "{printed}");
}

#[test]
fn fast_nodes_without_slow_nodes_are_refused() {
    let printed = refusal("fast_nodes = [0]", ATTACH);
    assert!(printed.contains("both or none"), "{printed}");
}

#[test]
fn attaching_to_nothing_or_to_two_things_is_refused() {
    for workload in
        ["kind = \"attach\"", "kind = \"attach\"\npids = [1]\ncgroup = \"/system.slice\""]
    {
        let printed = refusal("", workload);
        assert!(printed.contains("expected one of cgroup"), "{printed}");
    }
}

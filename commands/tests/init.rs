//! What `terrace init` writes runs as it is.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Place, Printed, TERRACE};

/// The command that follows `next: ` in the output.
fn next(printed: &Printed) -> String {
    let line = printed.out.lines().find_map(|line| line.split_once("; next: ")).unwrap();
    line.1.to_owned()
}

#[test]
fn a_first_experiment_runs_by_the_command_that_is_named() {
    let place = Place::new();
    let printed = place.run("init experiment").good();
    assert!(printed.out.starts_with("memory: node 0 ("), "{printed}");
    let command = next(&printed);
    let compared = place.run(command.strip_prefix("terrace ").unwrap()).good();
    for policy in ["first-touch", "lru", "lfu", "amp"] {
        assert!(compared.out.lines().any(|l| l.starts_with(policy)), "{policy}: {compared}");
    }
    assert!(place.path("results/first/report.html").is_file());
    // What is there is not replaced.
    place.write("experiment.toml", "mine");
    place.run("init experiment").refused(&["experiment.toml exists", "--force"]);
    assert_eq!(std::fs::read(place.path("experiment.toml")).unwrap(), b"mine");
    place.run("init experiment --force").good();
    place.run("init experiment --out absent/e.toml").refused(&["absent/e.toml", "can be written"]);
    std::fs::create_dir(place.path("folder")).unwrap();
    place.run("init experiment --out folder --force").refused(&["folder", "can be written"]);
    assert!(!place.path("folder.part").exists());
}

#[test]
fn a_program_of_ones_own_becomes_an_experiment() {
    let place = Place::new();
    let printed = place.run("init experiment --out own.toml -- sleep 1").good();
    assert!(next(&printed).starts_with("terrace compare own.toml --policies "), "{printed}");
    // It is one of a live machine, and known to be.
    place.run("run own.toml").refused(&["workload 'command'", "--machine vm"]);
    place.run("init experiment --out x.toml -- no-such-program").refused(&["is no program"]);
    assert_eq!(place.names(), ["own.toml"]);
}

#[test]
fn a_first_configuration_is_one_that_terraced_takes() {
    let place = Place::new();
    place.run("init daemon").good();
    place.run("init daemon --cgroup /system.slice/x.service --out own.toml").good();
    let terraced = Path::new(TERRACE).with_file_name("terraced");
    for file in ["terraced.toml", "own.toml"] {
        let text = std::fs::read_to_string(place.path(file)).unwrap();
        assert!(text.contains("\ndry_run = true "), "{text}");
        let checked = Command::new(&terraced).arg("check").arg(place.path(file)).output().unwrap();
        assert!(checked.status.success(), "{text}\n{checked:?}");
    }
    place.run("init daemon").refused(&["terraced.toml exists", "--force"]);
    place.run("init daemon --cgroup x --out y.toml").refused(&["begins with '/'"]);
}

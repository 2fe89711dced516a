//! The tool on its own tree.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace-supply"))
        .args(["--tree", tree().to_str().unwrap()])
        .args(arguments)
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .output()
        .unwrap()
}

/// The tool's output in a file of this name.
fn written(command: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out");
    let output = run(&[command, "--out", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn every_licence_is_allowed_and_no_crate_needs_a_later_compiler() {
    let output = run(&["check"]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("licences allowed, none needs more than Rust 1."), "{printed}");
}

#[test]
fn notices_are_of_what_is_linked_with_the_texts_of_bundled_sources() {
    let notices = written("notices");
    let heads: BTreeSet<&str> = notices
        .lines()
        .filter(|line| !line.starts_with(' ') && line.contains(": "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    for linked in ["clap", "serde", "zstd-sys", "liblzma-sys", "globset"] {
        assert!(heads.contains(linked), "{linked}: {heads:?}");
    }
    // Crates that only tests, build scripts or the compiler run.
    for not in ["proptest", "cc", "serde_derive", "terrace-core"] {
        assert!(!heads.contains(not), "{not}");
    }
    for text in ["Meta Platforms", "XZ Utils", "Apache License", "UNICODE"] {
        assert!(notices.contains(text), "{text}");
    }
    assert!(!notices.contains("GNU GENERAL PUBLIC LICENSE\n"), "a licence that is not taken");
}

#[test]
fn the_bill_has_each_linked_crate_once_with_its_checksum_and_the_same_bytes_each_time() {
    let text = written("sbom");
    let bill: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    assert_eq!(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    let components = bill["components"].as_array().unwrap();
    let mut refs = BTreeSet::new();
    let notices = written("notices");
    for component in components {
        let (name, version) =
            (component["name"].as_str().unwrap(), component["version"].as_str().unwrap());
        assert!(refs.insert(component["bom-ref"].as_str().unwrap()), "{name} twice");
        if name.starts_with("terrace-") || name == "terrace" {
            continue;
        }
        assert_eq!(component["hashes"][0]["content"].as_str().unwrap().len(), 64, "{name}");
        assert!(notices.contains(&format!("{name} {version}: ")), "no notice of {name} {version}");
    }
    assert!(components.len() > 60, "{}", components.len());
    // Each name that a dependency uses is that of a component.
    for dependency in bill["dependencies"].as_array().unwrap() {
        for on in dependency["dependsOn"].as_array().unwrap() {
            assert!(refs.contains(on.as_str().unwrap()), "{on}");
        }
    }
    assert_eq!(text, written("sbom"));
}

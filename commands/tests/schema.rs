//! The schemas against the files that come with Terrace, by a validator that is not Terrace's.

mod common;
#[path = "schema/ranges.rs"]
mod ranges;

use std::path::PathBuf;
use std::process::Command;

use common::{Place, tree};

/// Validates each TOML file of the arguments after the schema's; prints what is wrong with each.
const VALIDATE: &str = r#"
import json, sys, tomllib, jsonschema
schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
for file in sys.argv[2:]:
    errors = sorted(validator.iter_errors(tomllib.load(open(file, "rb"))), key=str)
    print(file, "|", "; ".join(e.message.splitlines()[0] for e in errors[:3]))
"#;

/// What is wrong with each file.
fn faults(place: &Place, kind: &str, files: &[PathBuf]) -> Vec<String> {
    let schema = place.run(&format!("schema {kind}")).good();
    let schema = place.write("schema.json", schema.out);
    let output = Command::new("python3")
        .args(["-c", VALIDATE])
        .arg(schema)
        .args(files)
        .output()
        .expect("python3, with the package python3-jsonschema ('tools/setup test')");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split_once(" | ").unwrap_or((line, "")).1.to_owned()).collect()
}

/// The experiments among the examples: rack experiments and grids are other files.
fn experiments() -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut folders = vec![tree("examples")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            if text.contains("[groups.workload]") {
                all.push(path);
            }
        }
    }
    all.sort();
    all
}

/// Blocks of TOML in the documents that have this key at the top, written as files.
fn in_documents(place: &Place, key: &str) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let documents = std::fs::read_dir(tree("docs")).unwrap().map(|entry| entry.unwrap().path());
    for document in documents.chain([tree("README.md")]).filter(|path| path.is_file()) {
        let text = std::fs::read_to_string(&document).unwrap_or_default();
        let name = document.file_stem().unwrap().to_string_lossy().into_owned();
        for (number, block) in text.split("```toml\n").skip(1).enumerate() {
            let block = block.split("```").next().unwrap_or_default();
            if block.parse::<toml::Table>().is_ok_and(|table| table.contains_key(key)) {
                all.push(place.write(&format!("{name}-{number}.toml"), block));
            }
        }
    }
    all
}

#[test]
fn experiments_and_configurations_in_documents_fit_the_schemas() {
    let place = Place::new();
    for (kind, key) in [("experiment", "periods"), ("daemon", "daemon")] {
        let files = in_documents(&place, key);
        assert!(!files.is_empty(), "no document has a block of TOML with '{key}'");
        for (file, fault) in files.iter().zip(faults(&place, kind, &files)) {
            assert_eq!(fault, "", "{}", file.display());
        }
    }
}

#[test]
fn every_example_fits_the_schema_of_experiments_and_broken_ones_do_not() {
    let place = Place::new();
    let files = experiments();
    assert!(files.len() >= 15, "{files:?}");
    for (file, fault) in files.iter().zip(faults(&place, "experiment", &files)) {
        assert_eq!(fault, "", "{}", file.display());
    }
    let broken = [
        ("polici = \"lru\"", "'polici' was unexpected"),
        ("page_size = \"1G\"", "'1G'"),
        ("fast_ratio = \"half\"", "'half'"),
        ("fast = \"64Q\"", "'64Q'"),
    ];
    let mut files = Vec::new();
    for (number, (line, _)) in broken.iter().enumerate() {
        let text = common::SMALL.replace("fast_ratio = 0.5", line);
        files.push(place.write(&format!("{number}.toml"), text));
    }
    let more = [
        (common::SMALL.replace("amp", "apm"), "'apm'"),
        (common::SMALL.replace("lru-favor", "lru-favour"), "'lru-favour'"),
        (common::SMALL.replace("footprint_mib", "footprint_mb"), "'footprint_mb' was unexpected"),
        (common::SMALL.replace("periods = 20\n", ""), "'periods' is a required property"),
        (format!("{}[policies.amp]\nwindow = 1\n", common::SMALL), "'window' was unexpected"),
    ];
    for (number, (text, _)) in more.iter().enumerate() {
        files.push(place.write(&format!("more-{number}.toml"), text));
    }
    let expected = broken.iter().map(|b| b.1).chain(more.iter().map(|m| m.1));
    for (fault, expected) in faults(&place, "experiment", &files).iter().zip(expected) {
        assert!(fault.contains(expected), "'{expected}' is not in '{fault}'");
    }
}

#[test]
fn configurations_of_terraced_fit_their_schema_and_broken_ones_do_not() {
    let place = Place::new();
    place.run("init daemon --out made.toml").good();
    let good = [
        tree("examples/terraced.toml"),
        tree("packaging/debian/terraced.toml"),
        place.path("made.toml"),
    ];
    assert_eq!(faults(&place, "daemon", &good), ["", "", ""]);
    let group = "[[groups]]\nname = \"g\"\ncgroup = \"/a\"\nfast_ratio = 0.5\n";
    let own = "[policies.own]\nkind = \"python\"\nfile = \"own.py\"\n";
    let own_group = format!("{group}policy = \"own\"\n{own}");
    let file = place.write("own.toml", format!("{own_group}class = \"Own\"\n"));
    assert_eq!(faults(&place, "daemon", &[file]), [""]);
    let cases = [
        (format!("{group}polcy = \"lru\"\n"), "'polcy' was unexpected"),
        (format!("{group}policy = \"lur\"\n"), "'lur'"),
        (format!("[daemon]\nperiod = 1\n{group}"), "'period' was unexpected"),
        (format!("[sharing]\nfast = \"half\"\n{group}"), "'half'"),
        (group.replace("cgroup = \"/a\"\n", ""), "'cgroup' is a required property"),
        (format!("{group}tables = \"slow\"\n"), "'slow'"),
        (own_group.clone(), "'class' is a required property"),
        (format!("{own_group}class = \"Own\"\nfallbak = \"lru\"\n"), "'fallbak' was unexpected"),
    ];
    let files: Vec<PathBuf> =
        cases.iter().enumerate().map(|(n, c)| place.write(&format!("{n}.toml"), &c.0)).collect();
    for (fault, (_, expected)) in faults(&place, "daemon", &files).iter().zip(&cases) {
        assert!(fault.contains(expected), "'{expected}' is not in '{fault}'");
    }
}

#[test]
fn fleet_files_fit_their_schema_and_broken_ones_do_not() {
    let place = Place::new();
    assert_eq!(faults(&place, "fleet", &[tree("examples/fleet.toml")]), [""]);
    let class = "[[classes]]\nname = \"c\"\nhosts = \"h*\"\nmemory = \"1G\"\n";
    let cases = [
        (format!("slowdown = \"5\"\n{class}"), "'5'"),
        (format!("policy = \"lur\"\n{class}"), "'lur'"),
        (format!("{class}memry = 1\n"), "'memry' was unexpected"),
        (class.replace("hosts = \"h*\"\n", ""), "'hosts' is a required property"),
        ("seed = 1\n".to_owned(), "'classes' is a required property"),
    ];
    let files: Vec<PathBuf> =
        cases.iter().enumerate().map(|(n, c)| place.write(&format!("{n}.toml"), &c.0)).collect();
    for (fault, (_, expected)) in faults(&place, "fleet", &files).iter().zip(&cases) {
        assert!(fault.contains(expected), "'{expected}' is not in '{fault}'");
    }
}

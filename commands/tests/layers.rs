//! The layer table of `docs/architecture.md` against the dependencies of the crates, and the length of
//! files.

use std::collections::BTreeMap;
use std::path::Path;

fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Layer of each folder in the table, 1 the topmost.
fn layers(page: &str) -> BTreeMap<String, u32> {
    let row = |line: &str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let layer = cells.next()?.parse().ok()?;
        Some((cells.next()?.trim_matches('`').to_owned(), layer))
    };
    page.lines().filter_map(row).collect()
}

/// Folder and workspace dependencies of each crate, dependencies of tests left out.
fn crates() -> BTreeMap<String, Vec<String>> {
    let read = |path: &Path| -> toml::Table {
        std::fs::read_to_string(path).unwrap().parse().unwrap_or_else(|e| panic!("{path:?}: {e}"))
    };
    let workspace = read(&tree().join("Cargo.toml"));
    let members = workspace["workspace"]["members"].as_array().unwrap();
    let folders = members.iter().map(|m| m.as_str().unwrap().to_owned());
    let manifests: Vec<(String, toml::Table)> =
        folders.map(|f| (f.clone(), read(&tree().join(&f).join("Cargo.toml")))).collect();
    let folder_of: BTreeMap<&str, &str> = manifests
        .iter()
        .map(|(folder, manifest)| (manifest["package"]["name"].as_str().unwrap(), folder.as_str()))
        .collect();
    manifests
        .iter()
        .map(|(folder, manifest)| {
            let tables = ["dependencies", "build-dependencies"];
            let names = tables.iter().filter_map(|t| manifest.get(*t)?.as_table());
            let own = names.flat_map(|t| t.keys()).filter_map(|name| folder_of.get(name.as_str()));
            (folder.clone(), own.map(|&f| f.to_owned()).collect())
        })
        .collect()
}

/// Contradictions to the table, a line each.
fn contradictions(layers: &BTreeMap<String, u32>) -> Vec<String> {
    let mut found = Vec::new();
    let apart = ["packaging/supply", "python"];
    for (folder, dependencies) in crates().iter().filter(|(f, _)| !apart.contains(&f.as_str())) {
        let Some(layer) = layers.get(folder) else {
            found.push(format!("{folder} has no row"));
            continue;
        };
        for below in dependencies {
            if layers.get(below).is_some_and(|other| other <= layer) {
                found.push(format!("{folder} (layer {layer}) depends on {below}"));
            }
        }
    }
    let known = crates();
    found.extend(
        layers.keys().filter(|f| !known.contains_key(*f)).map(|f| format!("{f}: no crate")),
    );
    found
}

#[test]
fn every_crate_depends_on_lower_layers_only() {
    let page = std::fs::read_to_string(tree().join("docs/architecture.md")).unwrap();
    let layers = layers(&page);
    assert_eq!(contradictions(&layers), Vec::<String>::new());
    // The check must notice: the core above everything, and a crate without a row.
    let mut wrong = layers.clone();
    wrong.insert("core".to_owned(), 0);
    assert!(contradictions(&wrong).iter().any(|line| line.ends_with("depends on core")));
    wrong = layers;
    wrong.remove("engine");
    assert!(contradictions(&wrong).contains(&"engine has no row".to_owned()));
}

#[test]
fn every_path_that_the_architecture_page_names_exists() {
    let page = std::fs::read_to_string(tree().join("docs/architecture.md")).unwrap();
    let named =
        page.split('`').skip(1).step_by(2).filter(|t| t.contains('/') && !t.contains("NAME"));
    for path in named.filter(|t| !t.contains("FIGURE") && !t.contains("::") && !t.contains(' ')) {
        assert!(tree().join(path).exists(), "docs/architecture.md names {path}");
    }
}

/// A file that is longer has more than one subject.
const MOST_LINES: usize = 600;

#[test]
fn no_file_of_source_is_too_long() {
    fn search(folder: &Path, long: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                search(&path, long);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let lines = std::fs::read_to_string(&path).unwrap().lines().count();
                if lines > MOST_LINES {
                    long.push(format!("{}: {lines} lines", path.display()));
                }
            }
        }
    }
    let mut long = Vec::new();
    crates().keys().for_each(|folder| search(&tree().join(folder), &mut long));
    assert!(long.is_empty(), "expected at most {MOST_LINES} lines, split by subject: {long:?}");
}

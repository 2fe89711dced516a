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

/// Path and text of each file of Rust.
fn sources() -> Vec<(String, String)> {
    fn search(folder: &Path, found: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                search(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(tree()).unwrap().display().to_string();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut found = Vec::new();
    crates().keys().for_each(|folder| search(&tree().join(folder), &mut found));
    found.sort();
    // Crates in folders of other crates are found twice.
    found.dedup();
    assert!(found.len() > 700, "{} files of Rust", found.len());
    found
}

#[test]
fn no_file_of_source_is_too_long() {
    let lines = sources().into_iter().map(|(path, text)| (path, text.lines().count()));
    let long: Vec<_> = lines.filter(|(_, lines)| *lines > MOST_LINES).collect();
    assert!(long.is_empty(), "expected at most {MOST_LINES} lines, split by subject: {long:?}");
}

/// Lines of a function at most; of a table of cases and of made-up results there are more.
const MOST_LINES_OF_FUNCTION: usize = 80;
const TABLES: &[&str] = &[
    "commands/tests/bad_input.rs: experiments_that_cannot_be_are_refused_and_leave_nothing",
    "recordings/tests/formats.rs: what_makes_no_sense_is_reported_with_its_place",
    "report/tests/common/mod.rs: simulate",
];

/// Functions of a formatted file, with their lines from the one with 'fn' to the one that ends it.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let indented = line.trim_start();
        let Some((before, rest)) = indented.split_once("fn ") else { continue };
        let is_item = before.split_whitespace().all(|word| {
            ["const", "async", "unsafe", "extern", "\"C\""].contains(&word)
                || word.starts_with("pub")
        });
        let name = rest.split(['(', '<']).next().unwrap_or_default();
        if !is_item || name.is_empty() {
            continue;
        }
        let indent = &line[..line.len() - indented.len()];
        let ends = |line: &&str| line.strip_prefix(indent).is_some_and(|rest| rest == "}");
        let is_one_line = line.ends_with(['}', ';']);
        let more = if is_one_line { Some(0) } else { lines[first..].iter().position(ends) };
        found.push((name, 1 + more.unwrap_or(0)));
    }
    found
}

#[test]
fn no_function_is_too_long() {
    let text = "fn one() {}\npub(crate) const fn two<T>(\n    a: T,\n) -> T {\n    a\n}\n\
                    mod inner {\n    fn three() {\n        {\n        }\n    }\n}\n";
    assert_eq!(functions(text), [("one", 1), ("two", 5), ("three", 4)]);
    let files = sources();
    let all = files.iter().flat_map(|(path, text)| {
        functions(text).into_iter().map(move |(name, lines)| (format!("{path}: {name}"), lines))
    });
    let long: Vec<_> = all.filter(|(_, lines)| *lines > MOST_LINES_OF_FUNCTION).collect();
    let of_tables = |(name, _): &&(String, usize)| TABLES.contains(&name.as_str());
    assert_eq!(long.iter().filter(of_tables).count(), TABLES.len(), "a table has gone: {long:?}");
    let long: Vec<_> = long.iter().filter(|long| !of_tables(long)).collect();
    assert!(long.is_empty(), "expected at most {MOST_LINES_OF_FUNCTION} lines: {long:?}");
}

//! "Where things go" in `docs/architecture.md`: its files exist, and nothing beside a registry and
//! what is made of it has a list of its names.

mod common;

use std::path::{Path, PathBuf};

use common::Place;

/// A row of the table: files to write and to register in, and those that are made.
struct Row {
    write: String,
    register: Vec<String>,
    made: Vec<String>,
}

fn rows() -> Vec<Row> {
    let page = std::fs::read_to_string(common::tree("docs/architecture.md")).unwrap();
    let part = page.split("## Where things go").nth(1).unwrap();
    let part = part.split("\n## ").next().unwrap();
    let paths = |cell: &str| -> Vec<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let rows = part.lines().filter(|line| line.starts_with("| a")).map(|line| {
        let cells: Vec<&str> = line.split('|').collect();
        let [_, _, write, register, made, _] = cells[..] else { panic!("four cells: {line}") };
        let write = paths(write).into_iter().next().unwrap_or_else(|| panic!("a file: {line}"));
        Row { write, register: paths(register), made: paths(made) }
    });
    rows.collect()
}

/// The names of each registry, by its folder.
fn registries() -> Vec<(&'static str, Vec<String>)> {
    let names = |all: &mut dyn Iterator<Item = &'static str>| all.map(str::to_owned).collect();
    let help = Place::new().run("--help").good().out;
    let shown = help.lines().take_while(|line| *line != "Options:");
    let rows = shown.filter_map(|line| line.strip_prefix("  "));
    let listed = rows.filter(|row| row.starts_with(|c: char| c.is_ascii_lowercase()));
    let commands = listed.filter_map(|row| Some(row.split_whitespace().next()?.to_owned()));
    use terrace_workloads::{generators, kinds, programs};
    vec![
        (
            "core/src/policies",
            names(&mut terrace_core::policies::REGISTRY.iter().map(|kind| kind.name)),
        ),
        ("workloads/src/generators", names(&mut generators::REGISTRY.iter().map(|kind| kind.name))),
        ("workloads/src/kinds", names(&mut kinds::LIVE.iter().map(|kind| kind.name))),
        ("workloads/src/programs", names(&mut programs::REGISTRY.iter().map(|kind| kind.name))),
        (
            "machines/linux/src/signals",
            names(&mut terrace_linux::signals::SIGNALS.iter().map(|kind| kind.name)),
        ),
        (
            "machines/linux/src/samples",
            names(&mut terrace_linux::samples::SOURCES.iter().map(|kind| kind.name)),
        ),
        (
            "recordings/src/import",
            names(&mut terrace_recordings::import::FORMATS.iter().map(|format| format.name)),
        ),
        ("commands/src", commands.collect()),
    ]
}

/// Rust and Python below a folder, tests too.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if [".rs", ".py", ".pyi"].iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
}

/// The most names that a text has one after the other in quotes, with commas between them.
fn longest_list(text: &str, names: &[String]) -> usize {
    let (mut most, mut found) = (0, Vec::new());
    let mut parts = text.split('"').skip(1);
    while let (Some(quoted), Some(between)) = (parts.next(), parts.next()) {
        found.extend(names.iter().filter(|name| *name == quoted));
        if between.trim() != "," {
            found.sort_unstable();
            found.dedup();
            most = most.max(found.len());
            found.clear();
        }
    }
    most
}

#[test]
fn the_files_of_each_recipe_exist() {
    let rows = rows();
    assert!(rows.len() >= 8, "{} recipes", rows.len());
    for row in &rows {
        assert!(row.register.len() < 3, "{}: more than three files to change", row.write);
        let folder = row.write.split(['N', 'P']).next().unwrap();
        for path in [folder].into_iter().chain(row.register.iter().chain(&row.made).map(|p| &**p)) {
            assert!(common::tree(path).exists(), "docs/architecture.md names {path}");
        }
    }
    for (folder, _) in registries() {
        let is_there = rows.iter().any(|row| row.write == format!("{folder}/NAME.rs"));
        assert!(is_there, "no recipe for {folder}");
    }
}

#[test]
fn what_is_made_from_a_registry_has_its_names() {
    let rows = rows();
    for (folder, names) in registries() {
        let row = rows.iter().find(|row| row.write == format!("{folder}/NAME.rs")).unwrap();
        for made in &row.made {
            let text = std::fs::read_to_string(common::tree(made)).unwrap();
            for name in &names {
                let is_there = ["`", "\""].iter().any(|q| text.contains(&format!("{q}{name}{q}")));
                // A page has the policies that have parameters.
                assert!(is_there || made.ends_with(".md"), "{made} has no '{name}'");
            }
            assert!(names.iter().any(|name| text.contains(name.as_str())), "{made}, {folder}");
        }
    }
}

#[test]
fn every_registry_is_the_only_list_of_its_names() {
    let mut files = Vec::new();
    sources(&common::tree(""), &mut files);
    let tree = common::tree("");
    let texts: Vec<(String, String)> = files
        .iter()
        .map(|path| {
            let name = path.strip_prefix(&tree).unwrap().display().to_string();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    assert!(texts.len() > 500, "{} files of source", texts.len());
    let mut copies = Vec::new();
    for (folder, names) in registries() {
        assert!(names.len() >= 2, "{folder}: {names:?}");
        let list = format!("[\"{}\"]", names.join("\",\n \""));
        assert_eq!(longest_list(&list, &names), names.len());
        // Two or three names are not a list that somebody forgets.
        if names.len() < 5 {
            continue;
        }
        let row = rows().into_iter().find(|row| row.write == format!("{folder}/NAME.rs")).unwrap();
        for (path, text) in &texts {
            if row.made.contains(path) {
                continue;
            }
            let count = longest_list(text, &names);
            if count * 4 >= names.len() * 3 {
                copies
                    .push(format!("{path} lists {count} of the {} names of {folder}", names.len()));
            }
        }
    }
    assert!(copies.is_empty(), "take them from the registry: {copies:#?}");
}

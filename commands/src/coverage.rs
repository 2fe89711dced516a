//! `terrace coverage`: the coverage table of a source tree, and a check of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use terrace_core::InputError;

use crate::show::{say, tell};

/// Show which parts of Terrace work, from the table in its source tree.
#[derive(Args)]
pub struct Arguments {
    /// Fail when a row is missing, or names a command, file or test that does not exist.
    #[arg(long)]
    check: bool,
    /// Root of the source tree.
    #[arg(long, value_name = "DIR", default_value = ".")]
    tree: PathBuf,
}

/// Identifiers: a letter for each system and how many rows it has.
const SYSTEMS: [(&str, u32); 11] = [
    ("N", 7),
    ("R", 7),
    ("G", 7),
    ("A", 8),
    ("C", 10),
    ("B", 7),
    ("T", 5),
    ("V", 6),
    ("S", 4),
    ("H", 2),
    ("U", 5),
];

/// States a row can have.
const STATES: [&str; 3] = ["works", "partly", "not yet"];

struct Row {
    line: usize,
    id: String,
    state: String,
    command: String,
    test: String,
}

impl Arguments {
    /// Shows and checks.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let path = self.tree.join("docs/coverage.md");
        let text = std::fs::read_to_string(&path).map_err(|e| {
            InputError::new(format_args!(
                "{}: {e}; expected the root of a Terrace source tree, give it with --tree",
                path.display()
            ))
        })?;
        let rows = rows(&text);
        for state in STATES {
            let ids: Vec<_> =
                rows.iter().filter(|r| r.state == state).map(|r| r.id.as_str()).collect();
            say!("{state}: {} ({})", ids.len(), ids.join(" "))?;
        }
        if !self.check {
            return Ok(ExitCode::SUCCESS);
        }
        let problems = problems(&rows, &self.tree)?;
        for problem in &problems {
            tell!("docs/coverage.md: {problem}");
        }
        if problems.is_empty() {
            say!("every row names commands and tests that exist")?;
        }
        Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Rows of the table: lines of five cells that begin with an identifier.
fn rows(text: &str) -> Vec<Row> {
    let row = |(line, text): (usize, &str)| {
        let cells: Vec<_> = text.trim().strip_prefix('|')?.split('|').map(str::trim).collect();
        let id = cells.first()?;
        let (letter, number) = id.split_at_checked(1)?;
        let is_id = SYSTEMS.iter().any(|s| s.0 == letter) && number.parse::<u32>().is_ok();
        (is_id && cells.len() >= 5).then(|| Row {
            line: line + 1,
            id: (*id).to_owned(),
            state: cells[1].to_owned(),
            command: cells[3].to_owned(),
            test: cells[4].to_owned(),
        })
    };
    text.lines().enumerate().filter_map(row).collect()
}

fn problems(rows: &[Row], tree: &Path) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        if let Some(first) = seen.insert(&row.id, row.line) {
            problems.push(format!("line {}: {} is on line {first} too", row.line, row.id));
        }
        if !STATES.contains(&row.state.as_str()) {
            let states = STATES.join("', '");
            problems.push(format!("line {}: state '{}', expected '{states}'", row.line, row.state));
        }
    }
    for (letter, count) in SYSTEMS {
        for id in (1..=count).map(|n| format!("{letter}{n}")) {
            if !seen.contains_key(id.as_str()) {
                problems.push(format!("no row for {id}"));
            }
        }
    }
    let tests = tests(tree)?;
    let targets = std::fs::read_to_string(tree.join("Makefile")).unwrap_or_default();
    for row in rows.iter().filter(|r| r.state != "not yet") {
        let (commands, named) = (code(&row.command), code(&row.test));
        if commands.is_empty() || named.is_empty() {
            problems.push(format!(
                "line {}: {} is '{}' and needs a `command` and a `test`",
                row.line, row.id, row.state
            ));
        }
        for command in commands {
            if let Some(why) = command_is_wrong(command, tree, &targets) {
                problems.push(format!("line {}: `{command}`: {why}", row.line));
            }
        }
        for test in named {
            let name = test.rsplit("::").next().unwrap_or(test);
            if !tests.contains(name) {
                problems.push(format!("line {}: no test is named `{test}`", row.line));
            }
        }
    }
    Ok(problems)
}

/// The `quoted` parts of a cell.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).filter(|c| !c.is_empty()).collect()
}

/// Why a command line could not be run from the root of the tree, if so.
fn command_is_wrong(command: &str, tree: &Path, makefile: &str) -> Option<String> {
    let words: Vec<_> = command.split_whitespace().collect();
    match words.as_slice() {
        ["make", target, ..] => {
            let rule = format!("{target}:");
            let exists = makefile.lines().any(|l| l.starts_with(&rule));
            (!exists).then(|| format!("the Makefile has no target '{target}'"))
        }
        ["terrace", ..] => {
            let parsed = crate::cli::Cli::command().try_get_matches_from(&words);
            let refused = parsed.err().filter(|e| e.use_stderr());
            refused.map(|e| InputError::new(e.to_string().lines().next().unwrap_or("")).0).or_else(
                || {
                    let file = words.iter().find(|w| w.ends_with(".toml"))?;
                    (!tree.join(file).is_file()).then(|| format!("there is no file '{file}'"))
                },
            )
        }
        _ => Some("expected a command of 'terrace' or 'make'".to_owned()),
    }
}

/// Names of all test functions of the tree.
fn tests(tree: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut folders = vec![tree.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type()?.is_dir() {
                if name != "target" && !name.as_encoded_bytes().starts_with(b".") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                test_names(&std::fs::read_to_string(&path)?, &mut names);
            }
        }
    }
    Ok(names)
}

/// Adds the names of the functions of a source file that follow a test attribute.
fn test_names(source: &str, names: &mut BTreeSet<String>) {
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[test]") {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ").filter(|_| is_test) {
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
            names.extend(name.map(str::to_owned));
            is_test = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "| A1 | works | x | `terrace policies` | `a_test` |";

    fn tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let source = "#[test]\n#[ignore]\nfn a_test() {}\nfn no_test() {}\n";
        std::fs::write(tree.path().join("lib.rs"), source).unwrap();
        std::fs::write(tree.path().join("Makefile"), "demo: x\n").unwrap();
        tree
    }

    fn complaints(row: &str) -> Vec<String> {
        let missing = |p: &String| !p.starts_with("no row for");
        problems(&rows(row), tree().path()).unwrap().into_iter().filter(missing).collect()
    }

    #[test]
    fn a_true_row_passes_and_each_false_row_is_named() {
        assert_eq!(complaints(GOOD), Vec::<String>::new());
        for (from, to, expected) in [
            ("works", "fine", "state 'fine'"),
            ("a_test", "gone_test", "no test is named `gone_test`"),
            ("a_test", "no_test", "no test is named `no_test`"),
            ("`a_test`", "", "needs a `command` and a `test`"),
            ("policies", "polices", "`terrace polices`"),
            ("terrace policies", "make nothing", "no target 'nothing'"),
            ("terrace policies", "rm -r", "expected a command"),
            ("terrace policies", "terrace run no.toml --out x", "there is no file 'no.toml'"),
        ] {
            let found = complaints(&GOOD.replace(from, to));
            assert!(found.len() == 1 && found[0].contains(expected), "{from} -> {to}: {found:?}");
        }
    }

    #[test]
    fn a_missing_row_and_a_double_row_are_named() {
        let twice = format!("{GOOD}\n{GOOD}");
        let found = problems(&rows(&twice), tree().path()).unwrap();
        assert!(found.iter().any(|p| p == "no row for A2"), "{found:?}");
        assert!(found.iter().any(|p| p.contains("is on line 1 too")), "{found:?}");
    }
}

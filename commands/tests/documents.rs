//! Commands and configurations in documents: the programs accept each of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Documents for users.
fn documents() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(tree().join("docs")).unwrap();
    let mut all: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.extension().is_some_and(|e| e == "md"));
    all.push(tree().join("README.md"));
    all.sort();
    all
}

/// Blocks of a document: the language after the fence, and the text.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines() {
        match (line.trim().strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some((_, text))) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// Commands of `terrace` and `terraced` in a block: continued lines are joined, remarks cut off.
fn commands(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let parts = joined.lines().flat_map(|line| {
        let line = line.split(" # ").next().unwrap_or_default();
        // A remark in a column of its own.
        let line = line.split("   ").find(|part| !part.trim().is_empty()).unwrap_or_default();
        line.split(';').map(|part| part.trim().to_owned()).collect::<Vec<_>>()
    });
    parts.filter(|p| p.starts_with("terrace ") || p.starts_with("terraced ")).collect()
}

#[test]
fn every_command_in_a_document_exists_and_has_the_options_it_is_given() {
    let mut helps: BTreeMap<Vec<String>, String> = BTreeMap::new();
    let mut help = |words: &[String]| -> String {
        let known = helps.entry(words.to_vec()).or_insert_with(|| {
            let program = match words[0].as_str() {
                "terraced" => Path::new(env!("CARGO_BIN_EXE_terrace")).with_file_name("terraced"),
                _ => PathBuf::from(env!("CARGO_BIN_EXE_terrace")),
            };
            let output = Command::new(program).args(&words[1..]).arg("--help").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() { text } else { String::new() }
        });
        known.clone()
    };
    let mut checked = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for command in blocks(&text).iter().flat_map(|(_, block)| commands(block)) {
            let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            let name = document.file_name().unwrap().to_string_lossy().into_owned();
            let program: Vec<String> = words.iter().take(2).cloned().collect();
            let mut page = help(&program);
            assert!(!page.is_empty(), "{name}: '{command}': no such command");
            // Commands with subcommands of their own, such as 'terrace rack'.
            if let Some(third) = words.get(2).filter(|w| w.chars().all(|c| c.is_ascii_lowercase()))
            {
                let longer: Vec<String> = program.iter().chain([third]).cloned().collect();
                if page.contains(&format!("  {third} ")) && !help(&longer).is_empty() {
                    page = help(&longer);
                }
            }
            let own = words.iter().skip(2).take_while(|word| *word != "--");
            for option in own.filter(|word| word.starts_with("--")) {
                let option = option.split('=').next().unwrap_or_default();
                assert!(page.contains(option), "{name}: '{command}': no option {option}");
            }
            checked += 1;
        }
    }
    assert!(checked >= 40, "{checked} commands found in documents");
}

#[test]
fn every_configuration_in_a_document_is_one_that_terraced_takes() {
    let mut checked = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let whole = |block: &&(String, String)| {
            block.0 == "toml" && block.1.contains("[[groups]]") && block.1.contains("\ncgroup = ")
        };
        for (_, block) in blocks(&text).iter().filter(whole) {
            let name = document.display().to_string();
            if let Err(error) = terrace_daemon::Config::parse(block, &name) {
                panic!("{error}");
            }
            checked += 1;
        }
    }
    assert!(checked > 0, "no configuration found in documents");
}

#[test]
fn the_versions_of_files_are_those_of_the_page_on_compatibility() {
    use terrace_recordings::{period, profile, reference};
    let page = std::fs::read_to_string(tree().join("docs/compatibility.md")).unwrap();
    for (file, written, oldest) in [
        ("period recording (`.trec`)", period::CONTENT_VERSION, 1),
        ("reference recording (`.tref`)", reference::CONTENT_VERSION, reference::OLDEST_VERSION),
        ("profile (`.tprof`)", profile::CONTENT_VERSION, 1),
    ] {
        let row = page.lines().find(|l| l.contains(file)).unwrap_or_else(|| panic!("{file}"));
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let read = match written - oldest {
            1 => format!("{oldest} and {written}"),
            _ => format!("{oldest} to {written}"),
        };
        assert_eq!(cells[2..4], [written.to_string(), read], "{row}");
    }
}

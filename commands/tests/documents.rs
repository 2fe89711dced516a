//! Commands and configurations in documents: the programs accept each of them.

mod common;

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

/// Lines of commands in a block: continued lines are joined, remarks cut off.
fn lines_of(block: &str) -> Vec<String> {
    let joined: Vec<&str> = block.split("\\\n").map(str::trim_start).collect();
    let joined = joined.join(" ").replace("  --", " --");
    let parts = joined.lines().flat_map(|line| {
        let line = line.split(" # ").next().unwrap_or_default();
        // A remark in a column of its own.
        let line = line.split("   ").find(|part| !part.trim().is_empty()).unwrap_or_default();
        line.split(';').map(|part| part.trim().to_owned()).collect::<Vec<_>>()
    });
    parts.collect()
}

/// Commands of `terrace` and `terraced` in a block.
fn commands(block: &str) -> Vec<String> {
    let mut lines = lines_of(block);
    lines.retain(|line| line.starts_with("terrace ") || line.starts_with("terraced "));
    lines
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

/// Whether a text is what a document shows, in which `...` stands for anything: in a line for the
/// rest of it or a part, alone in a line for any number of lines.
fn fits(shown: &[&str], lines: &[&str]) -> bool {
    match shown.split_first() {
        None => lines.is_empty(),
        Some((&"...", rest)) => (0..=lines.len()).any(|n| fits(rest, &lines[n..])),
        Some((first, rest)) => {
            let Some((line, others)) = lines.split_first() else { return false };
            line_fits(first, line.trim_end()) && fits(rest, others)
        }
    }
}

fn line_fits(shown: &str, line: &str) -> bool {
    match shown.split_once("...") {
        None => shown == line,
        Some((before, after)) => line.strip_prefix(before).is_some_and(|rest| {
            after.is_empty()
                || (0..=rest.len())
                    .any(|n| rest.is_char_boundary(n) && line_fits(after, &rest[n..]))
        }),
    }
}

/// Runs the commands of a document's console blocks one after the other in one folder, and returns
/// how many there were. What `cat` shows of a file is what the file has.
fn play(name: &str, text: &str, place: &common::Place) -> usize {
    let mut count = 0;
    for (_, block) in blocks(text).iter().filter(|(language, _)| language == "console") {
        for step in block.split("$ ").skip(1) {
            let mut lines = step.lines().map(str::trim_end);
            let command = lines.next().unwrap();
            let shown: Vec<&str> = lines.collect();
            if let Some(file) = command.strip_prefix("cat ") {
                place.write(file, shown.join("\n") + "\n");
                continue;
            }
            let Some(arguments) = command.strip_prefix("terrace ") else {
                panic!("{name}: '{command}': expected a command of terrace, or cat");
            };
            let printed = place.run(arguments);
            assert!(!printed.err.contains("panicked"), "{name}: {printed}");
            let refused = shown.iter().any(|line| line.starts_with("terrace: "));
            assert_eq!(printed.code, Some(if refused { 2 } else { 0 }), "{name}: {printed}");
            let (out, all) = (printed.out.clone(), format!("{}{}", printed.out, printed.err));
            let fits_one = [&out, &all]
                .iter()
                .any(|text| fits(&shown, &text.lines().map(str::trim_end).collect::<Vec<_>>()));
            assert!(
                fits_one,
                "{name}: '{command}' does not print what is shown\n{}\n--- but\n{all}",
                shown.join("\n")
            );
            count += 1;
        }
    }
    count
}

#[test]
fn the_commands_of_the_tutorial_do_what_it_shows() {
    let text = std::fs::read_to_string(tree().join("docs/tutorial.md")).unwrap();
    let place = common::Place::new();
    assert!(play("tutorial.md", &text, &place) >= 5);
    for made in ["results/first/report.html", "words.tref", "answer/report.html"] {
        assert!(place.path(made).is_file(), "{made}");
    }
    let shows = |shown: &[&str], lines: &[&str]| fits(shown, lines);
    assert!(shows(&["a", "...", "c ... e"], &["a", "b", "b", "c d e"]));
    assert!(!shows(&["a ... c"], &["a b"]) && !shows(&["a"], &["a", "b"]) && !shows(&["a"], &[]));
}

/// What a command of the README needs that a test has not: other machines, programs and files, or
/// minutes.
const NOT_RUN: [&str; 15] = [
    "--machine",
    "terrace record -- COMMAND",
    "terrace import lackey",
    "terrace caches trace.tref",
    "terrace run examples/reference/gups.toml",
    "terrace profile",
    "terrace plan",
    "terrace fleet",
    "terrace reproduce nimble",
    "terrace watch",
    "terrace lab",
    "terrace top",
    "terrace help COMMAND",
    "terrace man",
    "terraced",
];

#[test]
fn the_commands_of_the_readme_run_in_its_order() {
    let text = std::fs::read_to_string(tree().join("README.md")).unwrap();
    let place = common::Place::new();
    std::os::unix::fs::symlink(
        tree().join("examples").canonicalize().unwrap(),
        place.path("examples"),
    )
    .unwrap();
    let all: Vec<String> = blocks(&text).iter().flat_map(|(_, block)| commands(block)).collect();
    let left_out = |command: &&String| NOT_RUN.iter().any(|part| command.contains(part));
    let run: Vec<&String> = all.iter().filter(|command| !left_out(command)).collect();
    assert!(run.len() >= 10, "{run:?}");
    for command in run {
        place.run(command.strip_prefix("terrace ").unwrap()).good();
    }
}

/// Commands of the other documents that are not run here, by how they begin, and why.
const ELSEWHERE: [(&str, &str); 22] = [
    ("terraced run", "two memory tiers, root: tests in virtual machines"),
    ("terrace explain", "a daemon that runs: tests in virtual machines"),
    ("terrace watch", "root and DAMON: tests in virtual machines"),
    ("terrace numactl", "two memory tiers: tests in virtual machines"),
    ("terrace lab", "a virtual machine: tests of their own"),
    ("terrace compare --rivals", "a part of a command"),
    ("terrace run --machine", "a part of a command"),
    ("terrace rack examples/rack/fig7.toml", "minutes; quick.toml is run"),
    ("terrace rack examples/rack/latency.toml", "minutes; quick.toml is run"),
    ("systemctl", "systemd: make system-test"),
    ("podman", "a container image: make system-test"),
    ("daxctl", "a device of CXL or persistent memory"),
    ("make", "builds or measures for minutes, or is the tests themselves"),
    ("TERRACE_PROFILES=", "measures for minutes"),
    ("FULL=1", "measures for minutes"),
    ("cargo", "builds, or is the tests themselves"),
    ("pip", "installs: tools/python test"),
    ("python", "the built package, or Ray: tools/python test"),
    ("tools/image", "root, and a builder of images: make system-test"),
    ("tools/python", "builds the Python package: tools/test"),
    ("tools/", "counts for minutes in virtual machines"),
    ("kernel/", "builds a kernel"),
];

/// Commands that have no argument and can be run as they are; other names of commands without
/// arguments are mentions of them.
const WHOLE: [&str; 3] = ["terrace policies", "terrace machines", "terrace signals"];

/// How a command line in a document begins.
const BEGINNINGS: [&str; 13] = [
    "terrace ",
    "terraced ",
    "make ",
    "tools/",
    "kernel/",
    "cargo ",
    "pip ",
    "python -m ",
    "systemctl ",
    "podman ",
    "daxctl ",
    "TERRACE_PROFILES=",
    "FULL=1 ",
];

/// The commands of a document, in its order: those of its blocks, and those in its sentences that
/// have arguments.
fn all_commands(text: &str) -> Vec<String> {
    let is_command = |line: &str| BEGINNINGS.iter().any(|beginning| line.starts_with(beginning));
    let code = ["toml", "rust", "python", "json", "console"];
    let mut all = Vec::new();
    for (language, block) in blocks(text) {
        if !code.contains(&language.as_str()) {
            let has_arguments = |line: &String| line.split_whitespace().count() > 2;
            let whole = |line: &String| has_arguments(line) || !line.starts_with("terrace ");
            all.extend(lines_of(&block).into_iter().filter(|l| is_command(l) && whole(l)));
        }
    }
    let mut inside = false;
    for line in text.lines() {
        inside ^= line.trim_start().starts_with("```");
        let quoted = line.split('`').skip(1).step_by(2).map(str::to_owned);
        let arguments =
            |c: &String| c.split_whitespace().count() > 2 || WHOLE.contains(&c.as_str());
        let found = quoted.filter(|c| is_command(c) && (arguments(c) || !c.starts_with("terrace")));
        all.extend(found.filter(|_| !inside));
    }
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|command| seen.insert(command.clone()));
    all
}

/// A folder with what the documents' commands name: the examples, and a fleet with its histories.
fn place_for_documents() -> common::Place {
    let place = common::Place::new();
    let (from, to) = (tree().join("examples"), place.path("examples"));
    assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
    std::fs::create_dir(place.path("target")).unwrap();
    terrace_fleet::synthetic::Shape { hosts: 15, services: 12, seed: 1 }
        .write(&place.path(""), &[250.0])
        .unwrap();
    place
}

/// Runs the commands of the documents but the README and the tutorial, each document's in its order
/// and in one folder. Prints how many ran, and which did not and why.
#[test]
fn the_commands_of_the_other_documents_run() {
    let packaged = tree().join("packaging/debian/terraced.toml").canonicalize().unwrap();
    let other = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        // What a row of the page on coverage names is held against the programs by another test.
        !["README.md", "tutorial.md", "coverage.md"].contains(&name.as_ref())
    };
    let (mut ran, mut elsewhere, mut used) = (0, Vec::new(), [false; ELSEWHERE.len()]);
    for document in documents().into_iter().filter(other) {
        let name = document.file_name().unwrap().to_string_lossy().into_owned();
        let place = place_for_documents();
        for command in all_commands(&std::fs::read_to_string(&document).unwrap()) {
            let given = ELSEWHERE.iter().position(|(start, _)| command.starts_with(start));
            if let Some(at) = given {
                used[at] = true;
                elsewhere.push(format!("{name}: {command}: {}", ELSEWHERE[at].1));
                continue;
            }
            let began = std::time::Instant::now();
            let line = command
                .replace("/etc/terrace/terraced.toml", &packaged.display().to_string())
                .replace("policies NAME", "policies amp")
                .replace(" DIR", " dir");
            let (program, arguments) = line.split_once(' ').unwrap();
            let printed = match program {
                "terrace" => place.run(arguments),
                "terraced" => common::Printed::new(
                    arguments,
                    Command::new(Path::new(common::TERRACE).with_file_name("terraced"))
                        .args(arguments.split_whitespace())
                        .current_dir(place.path(""))
                        .output()
                        .unwrap(),
                ),
                _ => panic!("{name}: '{command}': neither run nor listed"),
            };
            // A host without two tiers is refused, in words.
            match (printed.code, arguments.ends_with("--host")) {
                (Some(2), true) => assert!(printed.err.contains("tier"), "{name}: {printed}"),
                _ => drop(printed.good()),
            }
            ran += 1;
            println!("{name}: {command}: {} ms", began.elapsed().as_millis());
        }
    }
    for line in &elsewhere {
        println!("not run: {line}");
    }
    println!("{ran} commands of the documents ran, {} are run elsewhere", elsewhere.len());
    assert!(ran >= 20, "{ran} commands found in documents");
    let unused = ELSEWHERE.iter().zip(used).filter(|(_, used)| !used).map(|((start, _), _)| *start);
    assert_eq!(unused.collect::<Vec<&str>>(), [""; 0], "no document has a command that begins so");
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
    use terrace_recordings::{period, profile, reference, windows};
    let page = std::fs::read_to_string(tree().join("docs/compatibility.md")).unwrap();
    for (file, written, oldest) in [
        ("period recording (`.trec`)", period::CONTENT_VERSION, 1),
        ("reference recording (`.tref`)", reference::CONTENT_VERSION, reference::OLDEST_VERSION),
        ("profile (`.tprof`)", profile::CONTENT_VERSION, 1),
        ("windows (`.twin`)", windows::CONTENT_VERSION, 1),
    ] {
        let row = page.lines().find(|l| l.contains(file)).unwrap_or_else(|| panic!("{file}"));
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let read = match written - oldest {
            0 => format!("{written}"),
            1 => format!("{oldest} and {written}"),
            _ => format!("{oldest} to {written}"),
        };
        assert_eq!(cells[2..4], [written.to_string(), read], "{row}");
    }
}

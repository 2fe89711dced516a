//! The command line for a user: help, lists, completions, manual pages, and output whose reader has
//! gone.

mod common;

use common::{Place, Printed, with_results};
use terrace_core::policies::REGISTRY;
use terrace_results::{RunRow, read};

/// The commands that a help shows, without clap's own.
fn commands(help: &str) -> Vec<&str> {
    let listed = help.lines().skip_while(|line| *line != "First steps:");
    let listed = listed.take_while(|line| *line != "Options:");
    // Further lines of what a command is for are indented by more.
    let rows =
        listed.filter_map(|line| line.strip_prefix("  ").filter(|row| !row.starts_with(' ')));
    let names = rows.filter_map(|row| row.split_whitespace().next());
    let all: Vec<&str> = names.filter(|name| *name != "help").collect();
    assert!(all.len() > 30 && all.contains(&"policies"), "{all:?}");
    all
}

#[test]
fn every_command_has_a_help_that_shows_its_usage() {
    let place = Place::new();
    let all = place.run("--help").good();
    assert!(all.out.lines().all(|l| l.chars().count() <= 100), "{all}");
    for command in commands(&all.out) {
        let printed = place.run(&format!("{command} --help")).good();
        assert!(printed.out.contains(&format!("Usage: terrace {command}")), "{printed}");
        let short = place.run(&format!("{command} -h")).good();
        assert!(short.out.lines().all(|l| l.chars().count() <= 100), "{short}");
    }
    let version = place.run("--version").good().out;
    let described = concat!("terrace ", env!("CARGO_PKG_VERSION"), " (");
    // In an archive without git there is no commit to name.
    let mut git = std::process::Command::new("git");
    let asked = git.args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "HEAD"]).output();
    let known = asked.is_ok_and(|output| output.status.success());
    assert!(version.starts_with(described) || !known, "{version}");
    assert_eq!(place.run("-V").good().out, concat!("terrace ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn wrong_arguments_exit_with_2_and_say_what_was_expected() {
    let place = Place::new();
    for (arguments, expected) in [
        ("", "Usage: terrace <COMMAND>"),
        ("frobnicate", "unrecognized subcommand 'frobnicate'"),
        ("run", "<EXPERIMENT.toml>"),
        ("run e.toml", "e.toml: No such file"),
        ("run e.toml --out", "--out <DIR>"),
        ("run e.toml --out o --machine moon", "[possible values: sim, vm, host]"),
        ("run e.toml --out o --format yaml", "[possible values: text, json]"),
        ("run e.toml --out o --policies lru", "unexpected argument '--policies'"),
        ("compare e.toml --out o", "--policies <A,B,C>"),
        ("replay", "<RECORDING>"),
        ("report", "<DIR>"),
        ("report a b", "unexpected argument 'b'"),
        ("lab --fast much", "expected a number with an optional K, M, G or T"),
        ("lab --timeout 0", "--timeout"),
        ("lab --result /x", "--out <DIR>"),
        ("lab --threads two", "[possible values: auto, one, each]"),
        ("numactl --page-tables fast", "<COMMAND>"),
        ("numactl --page-tables near -- true", "expected 'fast', 'default', or the number"),
        ("numactl -- true", "expected --page-tables with 'fast'"),
        ("numactl --hard -- true", "--page-tables <PLACE>"),
        ("policies --format xml", "[possible values: text, json]"),
        ("workloads --frob", "unexpected argument '--frob'"),
        ("import lackey", "<FILE>"),
        ("import lackey x", "--out <RECORDING>"),
        ("export csv x", "--out <FILE>"),
        ("info", "<RECORDING>"),
        ("caches", "<RECORDING>"),
        ("machines --print-config", "<MACHINE>"),
        ("dram", "Usage: terrace dram"),
        ("dram --preset ddr4-2400", "--outstanding <N>"),
        ("dram --outstanding 1", "<CONFIG.toml|--preset"),
        ("dram --preset ddr4-2400 --outstanding 1 --offered-gbps 1", "cannot be used with"),
        ("dram --preset ddr4-2400 --outstanding 1 --footprint big", "big"),
        ("restore now", "unexpected argument 'now'"),
        ("completions", "<SHELL>"),
        ("completions tcsh", "[possible values: bash"),
        ("man --out", "--out <DIR>"),
    ] {
        let printed = place.run(arguments);
        assert_eq!(printed.code, Some(2), "{printed}");
        assert_eq!(printed.out, "", "{printed}");
        assert!(printed.err.contains(expected), "nothing of '{expected}': {printed}");
    }
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn policies_and_workloads_are_listed_for_people_and_programs() {
    let place = Place::new();
    for (command, names) in [
        ("policies", REGISTRY.iter().map(|k| k.name).collect::<Vec<_>>()),
        ("workloads", terrace_workloads::kinds::all().iter().map(|k| k.name).collect()),
    ] {
        let json = place.run(&format!("{command} --format json")).good().json();
        let kinds = json.as_array().unwrap();
        assert_eq!(kinds.iter().map(|k| k["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
        let text = place.run(command).good().out;
        for (kind, name) in kinds.iter().zip(&names) {
            let summary = kind["summary"].as_str().unwrap();
            assert!(!summary.is_empty() && kind["parameters"].is_array(), "{kind}");
            assert!(text.lines().any(|l| l.trim_start().starts_with(name)), "{name}: {text}");
            let one = place.run(&format!("{command} {name}")).good();
            if command == "policies" {
                // When to take it: in the list, in words that the table may break, and alone.
                let advice = kind["advice"].as_str().unwrap();
                assert!(advice.len() > 20, "{kind}");
                let first = advice.split(' ').next().unwrap();
                assert!(text.contains(first) && one.out.contains(first), "{advice}: {one}");
            }
            for parameter in kind["parameters"].as_array().unwrap() {
                let key = parameter["name"].as_str().unwrap();
                assert!(one.out.contains(key), "{key}: {one}");
                assert!(parameter["default"].is_string() && parameter["meaning"].is_string());
            }
            let alone = place.run(&format!("{command} {name} --format json")).good().json();
            assert_eq!(&alone, kind);
        }
        place.run(&format!("{command} nothing")).refused(&["'nothing'", "expected one of"]);
    }
}

#[test]
fn completions_and_manual_pages_have_every_command() {
    let place = Place::new();
    let help = place.run("--help").good().out;
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let printed = place.run(&format!("completions {shell}")).good();
        for command in commands(&help) {
            assert!(printed.out.contains(command), "{shell} knows nothing of {command}");
        }
    }
    let page = place.run("man").good();
    assert!(page.out.lines().any(|l| l.starts_with(".TH terrace 1")), "{page}");
    place.run("man --out pages").good();
    for command in commands(&help) {
        let page = place.path(&format!("pages/terrace-{command}.1"));
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.contains(&format!(".TH terrace-{command} 1")), "{command}: {text}");
        assert!(text.contains(".SH SYNOPSIS") && text.contains("terrace 0."), "{command}: {text}");
    }
    let run = std::fs::read_to_string(place.path("pages/terrace-run.1")).unwrap();
    // Example files are shown line by line, not filled to paragraphs.
    let notes = run.split(".SH NOTES\n.nf\n").nth(1).unwrap();
    assert!(notes.contains("\n  [[groups]]") && notes.trim_end().ends_with(".fi"), "{notes}");
}

#[test]
fn a_reader_who_goes_away_ends_the_output_and_not_the_command() {
    let place = with_results();
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    for arguments in [
        "policies",
        "policies --format json",
        "policies amp",
        "workloads",
        "workloads --format json",
        "import",
        "machines",
        "completions bash",
        "man",
        "restore --help",
        "replay good/recordings/amp.trec",
        "report good",
        "report good --format json",
        "compare e.toml --policies lru,lfu --out out --force",
    ] {
        let output = place.command(arguments).stdout(closed()).output().unwrap();
        let printed = Printed::new(arguments, output).good();
        assert!(printed.err.lines().all(|l| l.starts_with("run ")), "{printed}");
        let output = place.command(arguments).stderr(closed()).output().unwrap();
        Printed::new(arguments, output).good();
    }
    assert_eq!(read::<RunRow>(&place.path("out")).unwrap().len(), 2);
    // A rejection keeps its exit code when its output has no reader.
    let status = place.command("report absent").stderr(closed()).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let place = Place::new();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for arguments in ["policies", "workloads --format json", "completions zsh", "man"] {
        let output = place.command(arguments).stdout(full()).output().unwrap();
        Printed::new(arguments, output).failed(1, &["writing to standard output"]);
    }
}

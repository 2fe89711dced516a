//! `terrace fleet` from the command line: its answer in words, JSON and tables, what is left out, what
//! is refused.

mod common;

use common::{Place, tree};
use terrace_fleet::synthetic::Shape;
use terrace_results::{FleetClassRow, FleetHostRow, FleetServiceRow, read};

fn made() -> Place {
    let place = Place::new();
    Shape { hosts: 15, services: 12, seed: 1 }.write(&place.path(""), &[250.0]).unwrap();
    place
}

#[test]
fn a_fleet_is_answered_in_words_in_json_and_in_tables() {
    let place = made();
    let text = place.run("fleet fleet.toml --rollout --out answer").good();
    for part in [
        "is enough for 95.0 % of hosts",
        "5 are too few hosts for an interval",
        "with slow memory of 250 instead of 180 ns",
        "It saves",
        "service-11",
        "Stage 1: ",
        "Set in terraced.toml on hosts of class ",
        ": policy = \"lfu\" for every group, and fast_ratio by service, the upper share: service-",
        "Watch terrace_group_slowdown",
        "To stop: set fast_ratio",
    ] {
        assert!(text.out.contains(part), "no '{part}': {text}");
    }
    let without = place.run("fleet fleet.toml").good();
    assert!(!without.out.contains("Stage 1"), "{without}");
    let answer = place.path("answer");
    let classes: Vec<FleetClassRow> = read(&answer).unwrap();
    let services: Vec<FleetServiceRow> = read(&answer).unwrap();
    let hosts: Vec<FleetHostRow> = read(&answer).unwrap();
    assert_eq!((classes.len(), hosts.len()), (6, 30));
    // What is set is no less than what is enough for nearly all hosts, or they are too few to know.
    let bought = services.iter().find(|s| s.own_latency && s.class != "all").unwrap();
    let (_, set) = text.out.split_once(&format!("the upper share: {} ", bought.service)).unwrap();
    match bought.upper_fast_share {
        None => assert!(set.starts_with("too few hosts"), "{set}"),
        Some(upper) => {
            let ratio: f64 = set[..6].parse().unwrap();
            assert!((0.0..1e-4).contains(&(ratio - upper)), "{ratio}: {bought:?}");
        }
    }
    let json = place.run("fleet fleet.toml --format json").good().json();
    assert_eq!(json["fleet"]["classes"][0]["fast_share"], classes[0].fast_share);
    assert_eq!(json["fleet"]["services"].as_array().unwrap().len(), services.len());
    let kept = std::fs::read_to_string(answer.join("fleet.json")).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&kept).unwrap(), json);
    let report = std::fs::read_to_string(answer.join("report.html")).unwrap();
    for part in ["<svg", "Host classes", "Rollout", "terrace_group_hit_ratio"] {
        assert!(report.contains(part), "no '{part}' in the report");
    }
    // Results are replaced only with --force, by the same bytes.
    place.run("fleet fleet.toml --out answer").refused(&["has results already", "--force"]);
    let before = std::fs::read(answer.join("fleet_services.parquet")).unwrap();
    place.run("fleet fleet.toml --rollout --out answer --force --jobs 1").good();
    assert_eq!(std::fs::read(answer.join("fleet_services.parquet")).unwrap(), before);
}

#[test]
fn a_damaged_history_is_named_and_the_others_are_used() {
    let place = made();
    let host = Shape::host_name(3);
    place.write(&format!("{host}/bad.trec"), "no history");
    let text = place.run("fleet fleet.toml --out answer").good();
    assert!(text.out.contains("Left out: 1 file or folder, of 1 of 15 hosts"), "{text}");
    assert!(text.out.contains("bad.trec"), "{text}");
    let report = std::fs::read_to_string(place.path("answer").join("report.html")).unwrap();
    assert!(report.contains("Left out (1)") && report.contains("bad.trec"));
    // Without a folder for the answer all that was left out is shown, and not only what is named.
    for number in 0..4 {
        place.write(&format!("{}/worse{number}.trec", Shape::host_name(5)), "no history");
    }
    let text = place.run("fleet fleet.toml").good();
    assert!((0..4).all(|number| text.out.contains(&format!("worse{number}.trec: "))), "{text}");
    // Nothing is left of hosts without histories, and no folder is made.
    for number in 0..15 {
        let folder = place.path(&Shape::host_name(number));
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
    }
    place.run("fleet fleet.toml --out none").refused(&["of 15 hosts none", "no history"]);
    assert!(!place.path("none").exists());
}

#[test]
fn an_answer_that_cannot_be_written_is_shown_and_one_without_a_place_is_not_begun() {
    let place = made();
    place.write("file", "mine");
    // Before any host is read: there are none that could be.
    std::fs::rename(place.path("fleet.toml"), place.path("kept.toml")).unwrap();
    std::fs::write(place.path("fleet.toml"), "quantil = 0.9\n").unwrap();
    let printed = place.run("fleet fleet.toml --out file/answer");
    printed.refused(&["file/answer", "can be written to"]);
    // A folder in the place of a table cannot be replaced by one.
    std::fs::create_dir_all(place.path("answer/fleet_left_out.parquet")).unwrap();
    let printed = place.run("fleet kept.toml --out answer");
    assert_eq!(printed.code, Some(1), "{printed}");
    assert!(printed.out.contains("is enough for 95.0 % of hosts"), "{printed}");
    assert!(printed.err.contains("fleet_left_out.parquet"), "{printed}");
    assert!(!printed.out.contains("answer: "), "{printed}");
}

#[test]
fn fleet_files_that_cannot_be_used_are_refused() {
    let place = Place::new();
    place.run("fleet gone.toml").refused(&["gone.toml", "expected a fleet file"]);
    place.write("f.toml", "quantil = 0.9\n");
    place.run("fleet f.toml").refused(&["f.toml: line 1", "did you mean 'quantile'?"]);
    std::fs::copy(tree("examples/fleet.toml"), place.path("fleet.toml")).unwrap();
    place.run("fleet fleet.toml").refused(&[
        "class 'web'",
        "no folder is named",
        "histories/web-*",
    ]);
}

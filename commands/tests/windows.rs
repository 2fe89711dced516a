//! Windows of a program and the slowdown of the whole from them, from the command line.

mod common;

use common::Place;

/// Random updates of 4 MB, with small caches.
const EXPERIMENT: &str = r#"
name = "small"
period_ms = 1
periods = 100000

[machine]
fidelity = "trace"
fast = "16M"
slow = "16M"

[machine.hardware]
preset = "server-ddr5-cxl"
node.cores = 2
node.caches.l2 = "none"
node.caches.llc = { size = "256K", ways = 16, line_bytes = 64, latency_cycles = 70 }

[[groups]]
name = "g"
fast_ratio = 0.5
page_size = "4K"

[groups.workload]
kind = "program"
name = "kv"
footprint_mib = 4
"#;

const TAKE: &str = "windows e.toml --windows 40 --length 5000 --lead 500 --out w.twin";

fn place() -> Place {
    let place = Place::new();
    place.write("e.toml", EXPERIMENT);
    place
}

#[test]
fn windows_of_a_program_give_the_slowdown_of_the_whole_with_an_interval() {
    let place = place();
    place.run(TAKE).good();
    let answer = place.run("estimate w.twin --fast 25%,75% --check --format json").good().json();
    assert_eq!(answer["windows"], 40);
    assert!(answer["timed_share"].as_f64().unwrap() < 0.25, "{answer}");
    let estimates = answer["estimates"].as_array().unwrap();
    assert_eq!(estimates.len(), 2);
    for one in estimates {
        let number = |key: &str| one[key].as_f64().unwrap();
        let (low, high) = (number("slowdown_low"), number("slowdown_high"));
        assert!(low > 1.01 && high - low < 0.1, "{one}");
        assert_eq!(one["whole_is_within"], true, "{one}");
    }
    // Less fast memory is slower, and other places give another estimate.
    let slowdown =
        |answer: &serde_json::Value, n: usize| answer["estimates"][n]["slowdown"].clone();
    assert!(slowdown(&answer, 0).as_f64() > slowdown(&answer, 1).as_f64());
    place.run(&format!("{TAKE} --seed 2 --force")).good();
    let other = place.run("estimate w.twin --fast 25%,75% --format json").good().json();
    assert_ne!(slowdown(&other, 0), slowdown(&answer, 0));
}

#[test]
fn an_estimate_is_the_same_by_any_number_of_jobs_and_ends_early_where_that_is_enough() {
    let place = place();
    place.run(TAKE).good();
    let estimate = |options: &str| {
        let run = format!("estimate w.twin --fast 50% --format json {options}");
        place.run(&run).good().json()
    };
    let all = estimate("--jobs 1");
    assert_eq!(all, estimate("--jobs 4"));
    assert_eq!(all, estimate("--error 0%"));
    let early = estimate("--error 50%");
    assert_eq!((&early["windows"], &all["windows"]), (&10.into(), &40.into()));
    let missed = place.run("estimate w.twin --fast 50% --error 0%").good();
    assert!(missed.err.contains("take more of them"), "{}", missed.err);
}

#[test]
fn another_machine_can_be_asked_of_the_same_windows() {
    let place = place();
    place.run(TAKE).good();
    place.write("small.toml", EXPERIMENT.replace("256K", "64K"));
    let time_ms = |options: &str| {
        let answer = place.run(&format!("estimate w.twin --format json {options}")).good().json();
        answer["all_fast_ms"].as_f64().unwrap()
    };
    let (own, smaller) = (time_ms(""), time_ms("--experiment small.toml"));
    assert!(smaller > 1.05 * own, "{own} ms and {smaller} ms with smaller caches");
}

#[test]
fn windows_that_cannot_be_are_refused_in_a_line() {
    let place = place();
    place
        .run("windows e.toml --windows 8 --length 10000000 --out w.twin")
        .refused(&["loads and stores: expected at least", "run it whole"]);
    assert!(!place.path("w.twin").exists());
    place.run(&format!("{TAKE} --lines 100")).good();
    place.run("estimate w.twin").refused(&["100 lines", "take windows with --lines"]);
    place.run(TAKE).refused(&["w.twin exists", "--force"]);
    place.run(&format!("{TAKE} --force")).good();
    let whole = std::fs::read(place.path("w.twin")).unwrap();
    std::fs::write(place.path("cut.twin"), &whole[..whole.len() / 2]).unwrap();
    place.run("estimate cut.twin").refused(&["cut.twin' ends after", "of its 40 windows"]);
    place.run("estimate e.toml").refused(&["e.toml' is not a Terrace recording"]);
}

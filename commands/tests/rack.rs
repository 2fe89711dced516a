//! `terrace rack`, as a user meets it: tables, byte-identical results, refusals.

mod common;

use common::{Place, Said, TERRACE, tree};
use terrace_results::{RackRunRow, RackSampleRow, read};

const TINY: &str = r#"
name = "tiny"
schemes = ["BLOCK", "CPM"]
[rack]
instructions = 20_000
sample_us = 2.0
[rack.processor.caches]
l2 = "none"
llc = { size = "64K" }
[rack.mechanism]
fixed_count = 4
[[workloads]]
name = "stream"
program = "stream"
footprint = "2M"
"#;

#[test]
fn an_experiment_gives_tables_with_the_base_as_one() {
    let place = Place::new();
    place.write("tiny.toml", TINY);
    let said = place.run("rack tiny.toml --out results --format json").good();
    let rows = said.json();
    assert_eq!(rows.as_array().unwrap().len(), 3);
    let runs: Vec<RackRunRow> = read(&place.path("results")).unwrap();
    let base = &runs[0];
    assert_eq!((base.scheme.as_str(), base.slowdown, base.access_cost), ("local", 1.0, 1.0));
    assert_eq!(base.remote_reads, 0);
    for run in &runs[1..] {
        assert!(run.slowdown > 1.0 && run.remote_reads > 0, "{run:?}");
    }
    assert_eq!(runs[1].pages_in, 0);
    let samples: Vec<RackSampleRow> = read(&place.path("results")).unwrap();
    let sum: u64 = samples.iter().filter(|s| s.scheme == "BLOCK").map(|s| s.remote_reads).sum();
    assert!(sum > 0 && sum <= runs[1].remote_reads);
}

#[test]
fn threads_change_no_byte() {
    let place = Place::new();
    place.write("tiny.toml", TINY.replace("[rack]", "[rack]\nnodes = 3"));
    for threads in ["1", "2", "8"] {
        place.run(&format!("rack tiny.toml --out r{threads} --threads {threads}")).good();
    }
    for table in ["rack_runs", "rack_samples", "rack_ports", "rack_latencies"] {
        let bytes =
            |threads| std::fs::read(place.path(&format!("r{threads}/{table}.parquet"))).unwrap();
        assert!(!bytes(1).is_empty());
        assert!(bytes(1) == bytes(2) && bytes(1) == bytes(8), "{table}");
    }
}

#[test]
fn the_papers_experiments_can_be_read_and_the_overhead_is_its_own() {
    let place = Place::new();
    for n in 7..=12 {
        let file = tree(&format!("examples/rack/fig{n}.toml"));
        place.run(&format!("rack overhead {} --format json", file.display())).good();
    }
    let said = place.run("rack overhead --format json").good();
    let bytes: Vec<u64> =
        said.json().as_array().unwrap().iter().map(|s| s["bytes"].as_u64().unwrap()).collect();
    // 13.9 KB; 256 + 4,864 = 5 KB; 8,064 + 1,344 + 17,728 = 26.5 KB; 6.26 MB.
    assert_eq!(bytes, [14200, 256, 4864, 8064, 1344, 17728, 6_560_000]);
    let schemes = place.run("rack schemes --format json").good().json();
    let names: Vec<_> = schemes.as_array().unwrap().iter().map(|s| s["name"].clone()).collect();
    assert_eq!(names, ["PAGE", "BLOCK", "OTF", "E25", "E100", "PB", "CPM", "APM"]);
}

#[test]
fn racks_that_cannot_work_are_refused_before_anything_runs() {
    let place = Place::new();
    let refused = |change: &str, words: &[&str]| {
        place.write("bad.toml", TINY.replacen("[rack]", &format!("[rack]\n{change}"), 1));
        place.run("rack bad.toml --out out").refused(words);
        assert!(!place.path("out").exists());
    };
    refused("pools = 0", &["pools is 0", "expected 1 to"]);
    refused("nodes = 65", &["nodes is 65"]);
    refused("local_share = 1.5", &["local_share is 1.5", "expected 0 to 1"]);
    refused("network = { nic_gbit_per_s = 0.0 }", &["nic_gbit_per_s is 0", "nothing could move"]);
    refused("network = { port_buffer = \"1K\" }", &["port_buffer is 1K", "must fit"]);
    refused("network = { propagation_ns = 0.0, nic_ns = 0.0 }", &["expected 100 ps at least"]);
    refused("chunk = \"5000\"", &["chunk is 5000", "multiple of 4K"]);
    refused("colour = 1", &["colour"]);
    let mechanism = |change: &str, words: &[&str]| {
        place.write("bad.toml", TINY.replace("fixed_count = 4", change));
        place.run("rack bad.toml").refused(words);
    };
    mechanism("page_buffers = 10", &["npm is 25 but page_buffers 10", "never be complete"]);
    mechanism("tracker_entries = 10", &["npm is 25 but tracker_entries 10"]);
    mechanism("fixed_count = 0", &["fixed_count is 0"]);
    place.write("bad.toml", TINY.replace("\"stream\"", "\"nosuch\""));
    place.run("rack bad.toml").refused(&["no program is named 'nosuch'"]);
    place.write("bad.toml", TINY.replace("\"CPM\"", "\"FAST\""));
    place.run("rack bad.toml").refused(&["expected one of PAGE, BLOCK"]);
    place.run("rack missing.toml").refused(&["missing.toml"]);
    let nothing = std::process::Command::new(TERRACE).arg("rack").output().unwrap();
    assert_eq!(nothing.status.code(), Some(2));
    let _: Option<Said> = None;
}

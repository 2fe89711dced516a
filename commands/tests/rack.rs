//! `terrace rack` for a user: tables, byte-identical results, rejections.

mod common;

use common::{Place, Printed, TERRACE, tree};
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
    let printed = place.run("rack tiny.toml --out results --format json").good();
    let rows = printed.json();
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
fn a_trace_covers_its_time_and_nothing_else() {
    let place = Place::new();
    place.write("tiny.toml", TINY);
    place.run("rack tiny.toml --out out --trace 5..8").good();
    let names: Vec<_> = std::fs::read_dir(place.path("out")).unwrap().collect();
    let traces: Vec<_> = names
        .iter()
        .map(|n| n.as_ref().unwrap().file_name().into_string().unwrap())
        .filter(|n| n.starts_with("trace"))
        .collect();
    // All memory local sends no packet.
    assert_eq!(traces.len(), 2, "{traces:?}");
    for scheme in ["BLOCK", "CPM"] {
        let text = std::fs::read(place.path(&format!("out/trace-stream-{scheme}.json"))).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        let begins: Vec<f64> = events
            .iter()
            .filter(|e| e["ph"] == "X" || e["ph"] == "b")
            .map(|e| e["ts"].as_f64().unwrap())
            .collect();
        assert!(begins.iter().all(|t| (5.0..8.0).contains(t)));
        // A program that streams sends some in every part of it.
        for part in 0..6 {
            let from = 5.0 + 0.5 * f64::from(part);
            assert!(begins.iter().any(|t| (from..from + 0.5).contains(t)), "{scheme} {from}");
        }
        // A packet on a link is alone on it.
        let mut links: Vec<(u64, f64, f64)> = events
            .iter()
            .filter(|e| e["ph"] == "X")
            .map(|e| (&e["tid"], &e["ts"], &e["dur"]))
            .map(|(t, s, d)| (t.as_u64().unwrap(), s.as_f64().unwrap(), d.as_f64().unwrap()))
            .collect();
        links.sort_by(|a, b| a.partial_cmp(b).unwrap());
        for pair in links.windows(2).filter(|p| p[0].0 == p[1].0) {
            assert!(pair[0].1 + pair[0].2 <= pair[1].1 + 1e-9, "{scheme}: {pair:?}");
        }
        assert!(links.len() > 100);
    }
    let late = place.run("rack tiny.toml --out late --trace 1000000..1000001").good();
    assert!(late.err.contains("no packet was sent in --trace 1000000..1000001"), "{late}");
}

#[test]
fn the_papers_experiments_can_be_read_and_the_overhead_is_its_own() {
    let place = Place::new();
    for n in 7..=12 {
        let file = tree(&format!("examples/rack/fig{n}.toml"));
        place.run(&format!("rack overhead {} --format json", file.display())).good();
    }
    let printed = place.run("rack overhead --format json").good();
    let bytes: Vec<u64> =
        printed.json().as_array().unwrap().iter().map(|s| s["bytes"].as_u64().unwrap()).collect();
    // 13.9 KB; 256 + 4,864 = 5 KB; 8,064 + 1,344 + 17,728 = 26.5 KB; 6.26 MB.
    assert_eq!(bytes, [14200, 256, 4864, 8064, 1344, 17728, 6_560_000]);
    let schemes = place.run("rack schemes --format json").good().json();
    let names: Vec<_> = schemes.as_array().unwrap().iter().map(|s| s["name"].clone()).collect();
    assert_eq!(names, ["PAGE", "BLOCK", "OTF", "E25", "E100", "PB", "CPM", "APM"]);
}

#[test]
fn the_full_size_of_a_file_without_one_is_refused() {
    let place = Place::new();
    place.write("one.toml", TINY);
    place.run("rack one.toml --full --out out").refused(&["no full size", "leave --full out"]);
    assert!(!place.path("out").exists());
}

#[test]
fn racks_that_cannot_work_are_refused_before_anything_runs() {
    let place = Place::new();
    let refused = |change: &str, words: &[&str]| {
        // A key may be in a table once.
        let tiny = if change.starts_with("instructions") {
            TINY.replace("instructions = 20_000\n", "")
        } else {
            TINY.to_owned()
        };
        place.write("bad.toml", tiny.replacen("[rack]", &format!("[rack]\n{change}"), 1));
        place.run("rack bad.toml --out out").refused(words);
        assert!(!place.path("out").exists());
    };
    refused("pools = 0", &["pools is 0", "expected 1 to"]);
    refused("nodes = 65", &["nodes is 65"]);
    refused("nodes = 0", &["nodes is 0", "expected 1 to"]);
    refused("nodes = 17", &["17 nodes", "supported_nodes"]);
    refused("local_share = 1.5", &["local_share is 1.5", "expected 0 to 1"]);
    refused("local_share = -0.1", &["local_share is -0.1", "expected 0 to 1"]);
    refused("local_share = nan", &["local_share is NaN", "expected 0 to 1"]);
    refused("local_share = \"half\"", &["line 2", "\"half\"", "expected f64"]);
    refused("instructions = 0", &["instructions is 0"]);
    refused("pool_queue = 8", &["pool_queue is 8", "expected 64 to"]);
    refused("llc_mshrs = 0", &["llc_mshrs is 0"]);
    refused("network = { switch_gbit_per_s = -1.0 }", &["switch_gbit_per_s is -1", "expected"]);
    refused("network = { nic_buffer = \"2K\" }", &["nic_buffer is 2K", "must fit"]);
    refused("network = { output_queue = 0 }", &["output_queue is 0"]);
    refused("network = { nic_gbit_per_s = 0.0 }", &["nic_gbit_per_s is 0", "nothing could move"]);
    refused("network = { port_buffer = \"1K\" }", &["port_buffer is 1K", "must fit"]);
    refused("network = { propagation_ns = 0.0, nic_ns = 0.0 }", &["expected 100 ps at least"]);
    refused("chunk = \"5000\"", &["chunk is 5000", "multiple of 4K"]);
    refused("colour = 1", &["colour"]);
    refused("processor.prefetcher = {}", &["prefetcher is given", "expected it to be left out"]);
    let mechanism = |change: &str, words: &[&str]| {
        place.write("bad.toml", TINY.replace("fixed_count = 4", change));
        place.run("rack bad.toml").refused(words);
    };
    mechanism("page_buffers = 10", &["npm is 25 but page_buffers 10", "never be complete"]);
    mechanism("tracker_entries = 10", &["npm is 25 but tracker_entries 10"]);
    mechanism("fixed_count = 0", &["fixed_count is 0"]);
    mechanism("page_buffers = 0", &["page_buffers is 0"]);
    mechanism("npm = 0", &["npm is 0"]);
    mechanism("npm_least = 26", &["npm_least is 26", "at most npm 25"]);
    mechanism("page_requests = 0", &["page_requests is 0"]);
    mechanism("block_weight = 0", &["block_weight is 0"]);
    mechanism("batch_scale = 0.0", &["batch_scale is 0", "0.001 to 1"]);
    mechanism("training_us = -1.0", &["training_us is -1"]);
    place.write("bad.toml", TINY.replace("\"stream\"", "\"nosuch\""));
    place.run("rack bad.toml").refused(&["no program is named 'nosuch'"]);
    place.write("bad.toml", TINY.replace("\"CPM\"", "\"FAST\""));
    place.run("rack bad.toml").refused(&["expected one of PAGE, BLOCK"]);
    // Of two workloads the second is bad: the first must not have run.
    let second = |change: &str, words: &[&str]| {
        let text = format!("{TINY}\n[[workloads]]\nname = \"second\"\n{change}");
        place.write("bad.toml", text);
        place.run("rack bad.toml --out out").refused(words);
        assert!(!place.path("out").exists());
    };
    second(
        "program = \"gups\"\noptions = { iterations = \"x\" }",
        &["workload.second", "iterations"],
    );
    second("program = \"gups\"\noptions = { colour = 1 }", &["workload.second", "colour"]);
    second("program = \"gups\"\nfootprint = \"4K\"", &["workload.second", "footprint"]);
    second("recording = \"missing.trec\"", &["workload.second", "missing.trec"]);
    second("", &["workload.second", "expected one of program, recording and synthetic"]);
    second("program = \"gups\"\ndependent_loads = 2.0", &["dependent_loads is 2"]);
    place.run("rack missing.toml").refused(&["missing.toml"]);
    place.write("tiny.toml", TINY);
    place.write("file", "");
    place.run("rack tiny.toml --out file").refused(&["file", "expected a directory"]);
    place.run("rack tiny.toml --schemes FAST").refused(&["expected one of PAGE, BLOCK"]);
    place.run("rack tiny.toml --out out --trace 5..2").refused(&["--trace 5..2", "100..120"]);
    place.run("rack tiny.toml --out out --trace x").refused(&["--trace x", "100..120"]);
    place.run("rack overhead missing.toml").refused(&["missing.toml"]);
    let nothing = std::process::Command::new(TERRACE).arg("rack").output().unwrap();
    assert_eq!(nothing.status.code(), Some(2));
    let _: Option<Printed> = None;
}

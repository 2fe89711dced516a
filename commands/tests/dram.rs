//! `terrace dram` and `terrace machines`: their output can be read back, figures are within the
//! limits of the timings, and impossible values are rejected before anything runs.

mod common;

use common::Place;
use terrace_hardware::presets::{self, MachineConfig};

const QUICK: &str = "--requests 20000 --warm-up 2000 --format json";

#[test]
fn a_printed_configuration_can_be_changed_and_run() {
    let place = Place::new();
    let printed = place.run("dram --preset ddr4-2400 --print-config").good().out;
    for key in ["rcd = 17", "address_map = [", "page_policy = \"open\"", "read_queue = "] {
        assert!(printed.contains(key), "{key}: {printed}");
    }
    place.write("same.toml", &printed);
    assert_eq!(place.run("dram same.toml --print-config").good().out, printed);
    let idle = |file: &str| {
        let printed = place.run(&format!("dram {file} --outstanding 1 {QUICK}")).good().json();
        printed["read"]["p50_ns"].as_f64().unwrap()
    };
    place.write("slow.toml", printed.replace("rcd = 17", "rcd = 27"));
    // One read at a time, another row open: tRP + tRCD + CL + burst = 55 cycles of 833 ps.
    let (same, slow) = (idle("same.toml"), idle("slow.toml"));
    assert!((same - 45.815).abs() < 0.84, "{same}");
    assert!((slow - same - 8.33).abs() < 0.84, "{same} {slow}");
    place.write("two.toml", "preset = \"ddr4-2400\"\n[organization]\nchannels = 2\n");
    let two = place.run(&format!("dram two.toml --outstanding 64 {QUICK}")).good().json();
    assert!((two["peak_gb_per_s"].as_f64().unwrap() - 38.415).abs() < 0.01, "{two}");
    assert_eq!(two["capacity_bytes"], 16u64 << 30);
}

#[test]
fn achieved_bandwidth_is_what_is_offered_until_the_memory_is_full() {
    let place = Place::new();
    let run = |arguments: &str| {
        place.run(&format!("dram --preset ddr4-2400 {arguments} {QUICK}")).good().json()
    };
    let number = |v: &serde_json::Value, a: &str, b: &str| v[a][b].as_f64().unwrap();
    let light = run("--traffic random --reads 1.0 --offered-gbps 4");
    let heavy = run("--traffic random --reads 1.0 --offered-gbps 10");
    let over = run("--traffic random --reads 1.0 --offered-gbps 30");
    let achieved = |v: &serde_json::Value| v["achieved_gb_per_s"].as_f64().unwrap();
    assert!((achieved(&light) - 4.0).abs() < 0.2 && (achieved(&heavy) - 10.0).abs() < 0.4);
    // Four lines per tFAW, less refresh (machines/hardware/VALIDATION.md).
    assert!(achieved(&over) < 11.3, "{over}");
    assert!(number(&light, "read", "mean_ns") < number(&heavy, "read", "mean_ns"));
    assert!(number(&heavy, "read", "p99_ns") > number(&heavy, "read", "p50_ns"));
    assert_eq!(light["write"]["requests"], 0);
    let stream = run("--traffic sequential --outstanding 64");
    assert!((17.5..19.21).contains(&achieved(&stream)), "{stream}");
    let mixed = run("--traffic random --reads 0.5 --outstanding 16");
    assert!(mixed["write"]["requests"].as_u64().unwrap() > 9_000, "{mixed}");
    assert_eq!(mixed, run("--traffic random --reads 0.5 --outstanding 16"));
    let text = place.run("dram --preset ddr5-4800 --outstanding 4 --requests 2000").good().out;
    assert!(text.contains("GB/s achieved") && text.contains("p99 ns"), "{text}");
}

#[test]
fn memories_that_cannot_be_are_refused_in_one_line() {
    let place = Place::new();
    for (text, words) in [
        ("[timing]\nrc = 40", &["c.toml", "rc is 40; expected at least 56 (ras + rp"][..]),
        ("[timing]\ncl = 0", &["cl is 0"]),
        ("[timing]\nrefi = 400", &["leaves no time for work"]),
        ("[organization]\nbus_bits = 24", &["expected a power of two"]),
        ("[organization]\nrows = 0", &["rows is 0"]),
        (
            "[organization]\nchannels = 256\nranks = 16\nbank_groups = 64\nbanks_per_group = 64",
            &["16777216 banks"],
        ),
        ("[controller]\naddress_map = [\"row\"]", &["address_map lacks"]),
        ("[controller]\nwrite_high = 65", &["write_high is 65"]),
        ("colour = 1", &["unknown field `colour`"]),
        ("[timing", &["line 1"]),
    ] {
        place.write("c.toml", text);
        place.run("dram c.toml --outstanding 1").refused(words);
        place.run("dram c.toml --print-config").refused(words);
    }
    place.write("c.toml", [0xff, 0xfe, 0]);
    place.run("dram c.toml --outstanding 1").refused(&["UTF-8", "--print-config"]);
    place.run("dram absent.toml --outstanding 1").refused(&["absent.toml", "No such file"]);
    place.run("dram --preset ddr9 --outstanding 1").refused(&["ddr9", "known presets: ddr4-2133"]);
    for (arguments, words) in [
        ("--outstanding 0", &["outstanding is 0"][..]),
        ("--offered-gbps 0", &["0 GB/s are offered"]),
        ("--offered-gbps nan", &["NaN GB/s are offered"]),
        ("--outstanding 1 --reads 1.5", &["read share is 1.5"]),
        ("--outstanding 1 --requests 0", &["requests is 0"]),
        ("--offered-gbps -1", &["-1 GB/s are offered"]),
        ("--outstanding 1 --footprint 9G", &["footprint is"]),
    ] {
        place.run(&format!("dram --preset ddr4-2400 {arguments}")).refused(words);
    }
}

#[test]
fn machines_are_listed_and_their_configurations_can_be_read_back() {
    let place = Place::new();
    let all = place.run("machines --format json").good().json();
    let text = place.run("machines").good().out;
    assert_eq!(all.as_array().unwrap().len(), presets::names().count());
    for name in presets::names() {
        assert!(text.contains(name), "{name}: {text}");
        let printed = place.run(&format!("machines {name} --print-config")).good().out;
        let machine = presets::by_name(name).unwrap();
        assert_eq!(MachineConfig::from_toml(&printed).unwrap(), machine);
        let one = place.run(&format!("machines {name}")).good().out;
        assert!(machine.tiers.iter().all(|t| one.contains(&t.name)), "{one}");
        let json = place.run(&format!("machines {name} --format json")).good().json();
        assert!(all.as_array().unwrap().contains(&json));
    }
    // The bandwidth that a plan for the machine counts with.
    let server = place.run("machines server-ddr5-cxl").good().out;
    assert!(server.contains("reads 53 GB/s by its link"), "{server}");
    place.run("machines vax").refused(&["\"vax\"", "known presets: nimble"]);
}

//! Plans from the command line: a profile, a check, other tools' files, and rejections.

mod common;

use std::process::Command;

use common::Place;
use terrace_results::{PlanAnswerRow, PlanPointRow, read};

/// Random updates of 2 MB, with small caches.
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
node.caches.llc = { size = "128K", ways = 16, line_bytes = 64, latency_cycles = 70 }

[[groups]]
name = "g"
fast_ratio = 0.5
page_size = "4K"
moved_pages_per_period = 64

[groups.workload]
kind = "program"
name = "gups"
footprint_mib = 2
options = { updates_per_word = 1 }
"#;

/// The sentences of an answer.
fn plan_of(json: &serde_json::Value) -> Vec<String> {
    serde_json::from_value(json["answer"].clone()).unwrap()
}

fn profiled() -> Place {
    let place = Place::new();
    place.write("e.toml", EXPERIMENT);
    place.run("profile e.toml --interval 5000 --out p.tprof").good();
    place
}

#[test]
fn a_profile_has_an_answer_that_holds_when_it_is_run() {
    let place = profiled();
    let arguments = "plan p.tprof --slowdown 20% --policies first-touch,lfu --check --refine 2 \
                     --what-if --price-fast 4 --price-slow 1.5 --out answer";
    let printed = place.run(arguments).good();
    assert!(printed.out.contains("Checked at trace fidelity"), "{}", printed.out);
    assert!(printed.out.contains("huge pages"), "{}", printed.out);
    let answers: Vec<PlanAnswerRow> = read(&place.path("answer")).unwrap();
    let chosen = answers.iter().find(|a| a.recommended).unwrap();
    let measured = chosen.measured_slowdown.unwrap();
    assert!((measured - 1.2).abs() <= 0.01, "within a point of the target: {measured}");
    let points: Vec<PlanPointRow> = read(&place.path("answer")).unwrap();
    assert!(points.iter().all(|p| p.low <= p.slowdown && p.slowdown <= p.high));
    for file in ["report.html", "terraced.toml", "plan.json", "heat.parquet"] {
        assert!(place.path("answer").join(file).is_file(), "{file}");
    }
    let page = std::fs::read_to_string(place.path("answer/report.html")).unwrap();
    assert!(page.contains("terrace plan p.tprof") || page.contains("plan p.tprof"), "the command");
    assert!(page.contains("Choices that nothing beats") && !page.contains("<script"));
    // With 10 % the check moves the share, and the price is that of the share that it moved to.
    let moved = place.run(
        "plan p.tprof --slowdown 10% --policies first-touch,lfu --check --refine 2 \
         --price-fast 4 --price-slow 1.5 --format json",
    );
    let moved = moved.good().json();
    assert!(moved["checked"].as_array().unwrap().len() > 1, "{moved}");
    let plan = &moved["plan"];
    let gb = plan["programs"][0]["footprint_bytes"].as_f64().unwrap() / (1u64 << 30) as f64;
    let share = plan["recommended"][0]["point"]["share"].as_f64().unwrap();
    let (cost, priced) = (plan["cost"].as_f64().unwrap(), gb * (4.0 * share + 1.5 * (1.0 - share)));
    assert!((cost / priced - 1.0).abs() < 1e-9, "{cost} for {share}, not {priced}");
    // The same question has the same answer, to the byte.
    let one = place.run("plan p.tprof --slowdown 20% --format json --jobs 1").good();
    let two = place.run("plan p.tprof --slowdown 20% --format json --jobs 3").good();
    assert_eq!(one.out, two.out);
    let json = one.json();
    assert_eq!(json["plan"]["programs"][0]["name"], "gups");
    assert_eq!(json["plan"]["programs"][0]["evidence"], "measured");
    // At the latency that was planned for the table has the answer itself.
    let plan = &json["plan"];
    let planned_ns = &plan["machines"][0]["slow"]["latency_ns"];
    let rows = plan["sensitivity"].as_array().unwrap();
    let own = rows.iter().find(|row| &row["slow_latency_ns"] == planned_ns).unwrap();
    assert_eq!(own["share"], plan["recommended"][0]["point"]["share"]);
    assert_eq!(own["slowdown"], plan["recommended"][0]["point"]["slowdown"]);
    let machine = "Planned for machine 'server-ddr5-cxl': fast memory of 85 ns and 270 GB/s, slow \
                   memory of 191 ns and 53 GB/s.";
    assert!(plan_of(&json).contains(&machine.to_owned()), "{json}");
    for (arguments, words) in [
        ("plan p.tprof --slowdown 0% --fast-at-most 0%", &["no policy stays within 0.0 %"][..]),
        ("plan p.tprof --slowdown 5% --policies lfo", &["no policy is named 'lfo'"]),
        ("plan p.tprof --slowdown 5% --machine vax", &["known presets"]),
        ("plan p.tprof p.tprof --slowdown 5%", &["twice"]),
        ("plan p.tprof --slowdown -5%", &["expected 0 %"]),
        ("plan none.tprof --slowdown 5%", &["none.tprof"]),
        (
            "plan p.tprof --slowdown 5% --slow-latency-ns 200,300 --slow-bandwidth-gbps 1,2,3",
            &["2 values", "3 slow tiers"],
        ),
        ("plan p.tprof --slowdown 5% --price-fast 4 --price-slow 1,2", &["2 prices", "1 machines"]),
        (
            "plan p.tprof --slowdown 5% --group g",
            &["--group says nothing of a profile", "leave it"],
        ),
        ("plan p.tprof --slowdown 5% --sample 9", &["--sample says nothing of a profile"]),
        ("plan p.tprof --slowdown 5% --page-size 2M", &["--page-size says nothing of a profile"]),
    ] {
        place.run(arguments).refused(words);
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_shown_and_one_without_a_place_is_not_begun() {
    let place = profiled();
    place.write("file", "mine");
    place.write("damaged.tprof", "no profile");
    // Before the profile is read.
    let printed = place.run("plan damaged.tprof --slowdown 20% --out file/answer");
    printed.refused(&["file/answer", "can be written to"]);
    // A folder in the place of a table cannot be replaced by one.
    std::fs::create_dir_all(place.path("answer/plan_points.parquet")).unwrap();
    let printed = place.run("plan p.tprof --slowdown 20% --policies first-touch --out answer");
    assert_eq!(printed.code, Some(1), "{printed}");
    assert!(printed.out.contains("first-touch"), "{printed}");
    assert!(printed.err.contains("plan_points.parquet"), "{printed}");
    assert!(!printed.out.contains("answer: "), "{printed}");
}

#[test]
fn other_recordings_are_planned_from_and_reported_to_be_weaker() {
    let place = Place::new();
    place.write("e.toml", common::SMALL);
    place.run("run e.toml --out out").good();
    let printed = place.run("plan out/recordings/amp.trec --slowdown 5% --out answer").good();
    assert!(printed.out.contains("weaker than a profile's"), "{}", printed.out);
    assert!(printed.out.contains("an assumption, because such a recording has none"), "{printed}");
    assert!(place.path("answer/report.html").is_file());
    place
        .run("plan out/recordings/amp.trec --slowdown 5% --sample 9")
        .refused(&["--sample says nothing of a recording of periods", "leave it out"]);
    // A recording without its experiment.
    let refused = place.run("plan out/recordings/amp.trec --slowdown 5% --check");
    refused.refused(&["--check-with"]);

    let mut samples = String::new();
    for n in 0..400u64 {
        let page = if n % 4 == 0 { n % 64 } else { n % 8 };
        let (seconds, address) = (n as f64 / 100.0, 0x7f00_0000_0000 + page * 4096);
        samples.push_str(&format!("prog 12/12 {seconds:.6}: cpu/mem-loads/: {address:x} 401000\n"));
    }
    place.write("perf.txt", &samples);
    let printed = place.run("plan perf.txt --slowdown 5% --sample 1000 --format json").good();
    let json = printed.json();
    assert_eq!(json["plan"]["programs"][0]["format"], "memory samples");
    assert_eq!(json["plan"]["programs"][0]["name"], "prog");
    let share = json["plan"]["recommended"][0]["point"]["share"].as_f64().unwrap();
    assert!((0.05..1.0).contains(&share), "{share}");
    // The same of a program whose name begins as a compressed record does, and compressed itself.
    place.write("perf.txt", samples.replace("prog ", "xz "));
    let packed = Command::new("gzip").arg("-k").arg(place.path("perf.txt")).status().unwrap();
    assert!(packed.success());
    for file in ["perf.txt", "perf.txt.gz"] {
        let printed = place.run(&format!("plan {file} --slowdown 5% --sample 1000 --format json"));
        let json = printed.good().json();
        assert_eq!(json["plan"]["programs"][0]["format"], "memory samples", "{file}");
        assert_eq!(json["plan"]["programs"][0]["name"], "xz", "{file}");
        assert_eq!(json["plan"]["recommended"][0]["point"]["share"].as_f64(), Some(share));
    }
    // A time at which intervals would never end.
    place.write("late.txt", "a 1/1 0.0: e: 1000\na 1/1 18446744073.709551615: e: 1000\n");
    place
        .run("plan late.txt --slowdown 5% --sample 1000")
        .refused(&["a record at time 18446744073709551615", "expected at most"]);
    let error = &json["plan"]["curves"][0]["points"][1]["uncertainty"]["waiting"];
    assert!(error.as_f64().unwrap() > 0.0, "few samples are a cause of error");

    place.run("plan perf.txt out/recordings/amp.trec --slowdown 5%").refused(&["alike"]);
    place.write("junk.bin", [0u8, 1, 2, 3, 255]);
    place.run("plan junk.bin --slowdown 5%").refused(&["junk.bin"]);
}

//! Experiments at trace fidelity from the command line to the tables: run time and slowdown are
//! computed, profiles predict them, and the bytes do not depend on how many runs go on at once.

mod common;

use common::Place;
use terrace_results::{HardwareRow, RunRow, read};

/// A pointer chase through 4 MB, with small caches and half of the memory fast.
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
moved_pages_per_period = 64

[groups.workload]
kind = "program"
name = "mcf"
footprint_mib = 4
"#;

fn place(change: impl Fn(String) -> String) -> Place {
    let place = Place::new();
    place.write("e.toml", change(EXPERIMENT.to_owned()));
    place
}

#[test]
fn run_time_slowdown_and_exact_hits_come_out() {
    let place = place(|text| text);
    let printed = place.run("compare e.toml --policies first-touch,lfu --out out").good();
    assert!(printed.out.contains("slow-"), "{}", printed.out);
    let runs: Vec<RunRow> = read(&place.path("out")).unwrap();
    let hardware: Vec<HardwareRow> = read(&place.path("out")).unwrap();
    assert_eq!(runs.len(), 2);
    for run in &runs {
        let slowdown = run.slowdown.expect("a slowdown");
        assert!((1.0..2.5).contains(&slowdown), "{}: {slowdown}", run.policy);
        let projected = run.projected_slowdown.expect("a projection");
        let error = run.projection_error.expect("how far it is off");
        assert!(
            (projected / slowdown - 1.0 - error).abs() < 1e-6,
            "{projected} {slowdown} {error}"
        );
        assert!(error.abs() < 0.15, "{}: {projected} against {slowdown}", run.policy);
        let periods = hardware.iter().filter(|h| h.run == run.run);
        let references: u64 = periods.clone().map(|h| h.references).sum();
        assert_eq!(Some(references), run.references, "periods add up to the run");
        let tables = |h: &HardwareRow| Some(h.fast_table_pages? + h.slow_table_pages?);
        assert!(periods.clone().all(|h| tables(h).is_some_and(|pages| pages > 0)));
    }
    assert_eq!(runs[0].references, runs[1].references, "the same program under both");
    // A run at interval fidelity into the same folder has no such table, and leaves none behind.
    place.write("s.toml", common::SMALL);
    place.run("run s.toml --out out --force").good();
    assert!(!place.path("out/hardware.parquet").exists());
}

#[test]
fn a_program_that_streams_is_less_slow_in_slow_memory_with_a_prefetcher() {
    let slowdown = |workload: &str, prefetcher: &str| {
        let place = place(|text| {
            let text = text.replace("node.caches.l2 = \"none\"", prefetcher);
            let text = text.replace("name = \"mcf\"", &format!("name = \"{workload}\""));
            text.replace("fast_ratio = 0.5", "fast_ratio = 0.0")
        });
        place.run("compare e.toml --policies first-touch --out out").good();
        let runs: Vec<RunRow> = read(&place.path("out")).unwrap();
        runs[0].slowdown.expect("a slowdown")
    };
    let none = "";
    let one = "node.prefetcher = { streams = 32, lines_ahead = 20 }";
    let (without, with) = (slowdown("stream", none), slowdown("stream", one));
    assert!(with - 1.0 < 0.7 * (without - 1.0), "{with} with, {without} without");
    let (without, with) = (slowdown("gups", none), slowdown("gups", one));
    assert!((with / without - 1.0).abs() < 0.05, "{with} with, {without} without");
}

#[test]
fn a_prefetcher_that_has_no_level_for_its_lines_is_refused_in_one_line() {
    let place = place(|text| {
        text.replace(
            "node.caches.l2 = \"none\"",
            "node.caches.l2 = \"none\"\nnode.prefetcher = { streams = 4, lines_ahead = 4 }",
        )
    });
    let printed = place.run("compare e.toml --policies lru --out out");
    printed.refused(&["prefetcher", "the caches have no level for its lines", "expected an l2"]);
    assert_eq!(place.names(), ["e.toml"], "nothing half-written");
}

#[test]
fn outcomes_of_tables_that_follow_their_data_are_counted_and_reported() {
    let tables = "page_size = \"4K\"\ntables = { migrate = true }";
    let place = place(|text| text.replacen("page_size = \"4K\"", tables, 1));
    let printed = place.run("compare e.toml --policies first-touch,lfu --out out").good();
    let runs: Vec<RunRow> = read(&place.path("out")).unwrap();
    let hardware: Vec<HardwareRow> = read(&place.path("out")).unwrap();
    for run in &runs {
        let periods = || hardware.iter().filter(|h| h.run == run.run);
        let sums = [
            (run.table_moves, periods().filter_map(|h| h.table_moves).sum()),
            (run.table_already_there, periods().filter_map(|h| h.table_already_there).sum()),
            (run.table_within_tier, periods().filter_map(|h| h.table_within_tier).sum()),
            (run.table_maps_fast, periods().filter_map(|h| h.table_maps_fast).sum()),
            (run.table_lock_contended, periods().filter_map(|h| h.table_lock_contended).sum()),
            (run.table_no_room, periods().filter_map(|h| h.table_no_room).sum()),
        ];
        for (of_run, of_periods) in sums {
            assert_eq!(of_run, Some(of_periods), "{}: periods add up to the run", run.policy);
        }
        // Each page that moved requested its table's move once (algorithm 1).
        let outcomes: u64 = sums.iter().map(|s| s.1).sum();
        assert_eq!(outcomes, run.promoted_pages + run.demoted_pages, "{}", run.policy);
        assert_eq!(outcomes > 0, run.policy == "lfu");
    }
    assert!(printed.out.contains("Leaf tables of g under lfu"), "{}", printed.out);
    assert!(!printed.out.contains("Leaf tables of g under first-touch"), "{}", printed.out);
}

#[test]
fn page_tables_bound_to_full_memory_end_in_a_kill_that_is_reported() {
    let place = Place::new();
    let file = common::tree("examples/reference/bind-all.toml");
    let printed = place.run(&format!("run {} --out out", file.display())).good();
    let runs: Vec<RunRow> = read(&place.path("out")).unwrap();
    let [bound, soft] = &runs[..] else { panic!("{runs:?}") };
    assert_eq!((bound.killed, soft.killed), (Some(true), Some(false)));
    assert!(bound.slowdown.is_none() && soft.slowdown.is_some());
    let notes = bound.notes.as_deref().expect("why it was killed");
    for words in ["Killed: group 'bound'", "MB of slow memory were free", "slow allocations"] {
        assert!(notes.contains(words), "{notes}");
    }
    assert!(!notes.contains(" 0 MB"), "{notes}");
    let reported = printed.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(reported.contains("Killed: group 'bound'"), "{reported}");
}

#[test]
fn bound_page_tables_wait_for_reclaim_before_the_program_is_killed() {
    // Few pages to a leaf table, so that tables are what fills memory.
    let bound = |tables: &str| {
        let place = place(|text| {
            text.replacen("fast = \"16M\"", "fast = \"2M\"", 1)
                .replacen(
                    "[[groups]]",
                    "[machine.os]\nwatermarks = [{ min = 0.02, low = 0.02, high = 0.02 }]\n\
                     page_cache = [0.1]\n\n[[groups]]",
                    1,
                )
                .replacen(
                    "page_size",
                    &format!("sparse = {{ pte = 4, pmd = 64 }}\ntables = {tables}\npage_size"),
                    1,
                )
        });
        place.run("run e.toml --out out").good();
        let runs: Vec<RunRow> = read(&place.path("out")).unwrap();
        let periods: Vec<HardwareRow> = read(&place.path("out")).unwrap();
        let most = periods.iter().filter(|row| row.table_faults > Some(0));
        let most =
            most.map(|row| row.table_allocation_ms.unwrap() / row.table_faults.unwrap() as f64);
        (runs[0].killed == Some(true), most.fold(0.0, f64::max))
    };
    let (killed, soft_ms) = bound("{ placement = \"follow_data\" }");
    assert!(!killed && soft_ms > 0.0, "{soft_ms}");
    let (killed, hard_ms) = bound("{ placement = \"bind_all\", hard = true }");
    assert!(killed && hard_ms > 2.0 * soft_ms, "{hard_ms} {soft_ms}");
}

#[test]
fn a_run_that_fails_leaves_nothing_half_written() {
    // Data fits, but its page tables do not.
    let place = place(|text| {
        text.replacen("fast = \"16M\"", "fast = \"2M\"", 1).replacen(
            "slow = \"16M\"",
            "slow = \"2M\"",
            1,
        )
    });
    let printed = place.run("run e.toml --out out");
    assert!(printed.code == Some(1) && printed.err.contains("out of memory"), "{printed}");
    let left: Vec<_> = std::fs::read_dir(place.path("out/recordings")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!place.path("out/runs.parquet").exists());
}

#[test]
fn results_do_not_hang_on_how_many_runs_go_on_at_once() {
    let place = place(|text| text);
    let mut before: Option<Vec<Vec<u8>>> = None;
    for jobs in [1, 2, 8] {
        let out = format!("out-{jobs}");
        place
            .run(&format!(
                "compare e.toml --policies first-touch,lru,lfu --jobs {jobs} --out {out}"
            ))
            .good();
        let files = ["periods", "runs", "heat", "hardware"]
            .map(|table| std::fs::read(place.path(&out).join(format!("{table}.parquet"))).unwrap());
        let files = files.to_vec();
        if let Some(before) = &before {
            assert!(*before == files, "other bytes with {jobs} jobs");
        }
        before = Some(files);
    }
}

#[test]
fn a_profile_predicts_run_times_of_interval_simulation() {
    let place = place(|text| text);
    let printed = place.run("profile e.toml --out p.tprof --interval 20000 --format json").good();
    let profile = printed.json();
    let all_slow = profile["all_slow_slowdown"].as_f64().unwrap();
    assert!(all_slow > 1.3, "{profile}");
    let period = EXPERIMENT.replace("fidelity = \"trace\"", "fidelity = \"interval\"").replace(
        "kind = \"program\"\nname = \"mcf\"\nfootprint_mib = 4",
        "kind = \"profile\"\npath = \"p.tprof\"",
    );
    let period: Vec<&str> = period.lines().collect();
    let hardware = period.iter().position(|l| *l == "[machine.hardware]").unwrap();
    let groups = period.iter().position(|l| *l == "[[groups]]").unwrap();
    place.write("p.toml", [&period[..hardware], &period[groups..]].concat().join("\n"));
    place.run("run e.toml --out full").good();
    place.run("compare p.toml --policies amp --out short").good();
    let slowdown = |out: &str| {
        let runs: Vec<RunRow> = read(&place.path(out)).unwrap();
        runs[0].slowdown.expect("a slowdown")
    };
    let (full, short) = (slowdown("full"), slowdown("short"));
    assert!((short / full - 1.0).abs() < 0.05, "predicted {short}, came to {full}");
    // A profile that is no profile.
    place.write("p.tprof", "nonsense");
    place.run("run p.toml --out bad").refused(&["p.tprof", "is not a Terrace recording"]);
}

#[test]
fn machines_and_workloads_that_cannot_be_are_refused_before_anything_runs() {
    for (change, words) in [
        (("size = \"256K\"", "size = \"3000\""), &["caches.llc"][..]),
        (("ways = 16", "ways = 0"), &["ways"]),
        (("preset = \"server-ddr5-cxl\"", "preset = \"nowhere\""), &["no preset", "known presets"]),
        (("node.cores = 2", "node.cors = 2"), &["cors"]),
        (("footprint_mib = 4", "footprint_mib = 64"), &["all tiers together have 33554432 bytes"]),
        (("name = \"mcf\"", "name = \"mfc\""), &["no program is named 'mfc'", "mcf"]),
        (("kind = \"program\"", "kind = \"zipf\""), &["has no references"]),
        (("fidelity = \"trace\"", "fidelity = \"interval\""), &["expected only with fidelity"]),
    ] {
        let place = place(|text| text.replacen(change.0, change.1, 1));
        place.run("run e.toml --out out").refused(&[words, &["e.toml: "]].concat());
        assert!(!place.path("out").exists(), "{change:?} left results");
    }
}

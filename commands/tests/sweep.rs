//! Sweeps from the command line: every cell once, the same bytes however they were made, and the
//! effect of a killed program, of failing cells, and of running them elsewhere.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::Place;
use terrace_results::{RunRow, read};

const GRID: &str = r#"
name = "g"
[experiment]
name = "e"
period_ms = 1000
periods = 40
[[experiment.groups]]
name = "a"
fast_ratio = 0.5
workload = { kind = "lru-favor", footprint_mib = 256 }
[[axes]]
key = "policy"
values = ["lru", "lfu", "random", "amp"]
[[axes]]
key = "fast_ratio"
values = [0.3, 0.5, 0.7]
[[axes]]
key = "seed"
values = [1, 2, 3, 4]
"#;

/// The files that a sweep guarantees to be the same bytes: the merged tables and every cell.
fn bytes(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for name in ["runs", "periods", "heat", "sweep"] {
        let name = format!("{name}.parquet");
        files.insert(name.clone(), std::fs::read(folder.join(&name)).unwrap());
    }
    for cell in std::fs::read_dir(folder.join("cells")).unwrap() {
        let cell = cell.unwrap();
        let cell_name = cell.file_name().into_string().unwrap();
        for file in std::fs::read_dir(cell.path()).unwrap() {
            let file = file.unwrap();
            let name = format!("{cell_name}/{}", file.file_name().to_str().unwrap());
            files.insert(name, std::fs::read(file.path()).unwrap());
        }
    }
    files
}

/// Folders of finished cells.
fn finished(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder.join("cells")).into_iter().flatten().flatten();
    entries.filter(|e| !e.file_name().to_string_lossy().starts_with('.')).count()
}

#[test]
fn a_sweep_that_is_killed_goes_on_and_ends_with_the_same_bytes() {
    let place = Place::new();
    place.write("grid.toml", GRID);
    let serial = place.run("sweep grid.toml --out serial --jobs 1").good();
    assert!(serial.out.contains("report:"), "{}", serial.out);
    let mut child = place
        .command("sweep grid.toml --out killed --jobs 2")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Killed once some cells are there and before all are; bounded, in case it never begins.
    let began = Instant::now();
    while finished(&place.path("killed")) < 6 && began.elapsed() < Duration::from_secs(120) {
        if child.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::yield_now();
    }
    let _ = child.kill();
    child.wait().unwrap();
    let before = finished(&place.path("killed"));
    assert!(before >= 6, "{before} cells");
    let again = place.run("sweep grid.toml --out killed --jobs 2").good();
    assert!(again.err.contains("cells were there before"), "{}", again.err);
    assert_eq!(finished(&place.path("killed")), 48);
    assert_eq!(bytes(&place.path("serial")), bytes(&place.path("killed")));
    let runs: Vec<RunRow> = read(&place.path("killed")).unwrap();
    let mut names: Vec<_> = runs.iter().map(|r| r.run.clone()).collect();
    names.dedup();
    assert_eq!(names.len(), 48, "each cell once");
    // The tables are a results directory like any other.
    place.run("report killed").good();
}

#[test]
fn cells_run_one_by_one_anywhere_come_together_to_the_same_bytes() {
    let place = Place::new();
    place.write("grid.toml", GRID);
    place.run("sweep grid.toml --out whole").good();
    let list = place.run("sweep grid.toml --list").good();
    let cells: Vec<serde_json::Value> =
        list.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(cells.len(), 48);
    assert_eq!(cells[1]["values"]["seed"], "2");
    let hash = cells[47]["hash"].as_str().unwrap();
    // The last first, then parts that overlap.
    place.run(&format!("sweep grid.toml --out parts --cell {hash}")).good();
    place.run("sweep grid.toml --out parts --cell 3,40..48").good();
    place.run("sweep grid.toml --out parts --shard 2/2").good();
    let part = place.run("sweep grid.toml --out parts --shard 1/2 --format json").good();
    let printed: serde_json::Value = serde_json::from_str(&part.out).unwrap();
    assert_eq!((printed["done"].as_u64(), printed["of"].as_u64()), (Some(24), Some(48)));
    assert!(!place.path("parts/runs.parquet").exists(), "parts are not merged");
    let listed = place.run("sweep grid.toml --list --out parts").good();
    assert!(listed.out.lines().all(|l| l.contains("\"done\":true")), "{}", listed.out);
    place.run("sweep grid.toml --out parts --merge-only").good();
    assert_eq!(bytes(&place.path("whole")), bytes(&place.path("parts")));
}

#[test]
fn cells_that_fail_are_reported_and_the_others_go_on() {
    let place = Place::new();
    place.run("run e.toml --out x"); // makes nothing: there is no e.toml
    place.write("e.toml", common::SMALL);
    place.run("run e.toml --out x").good();
    // One of the recordings is no recording.
    std::fs::copy(place.path("x/recordings/amp.trec"), place.path("good.trec")).unwrap();
    place.write("bad.trec", "nonsense");
    let grid = r#"
name = "g"
[experiment]
name = "e"
period_ms = 1000
periods = 10
[[experiment.groups]]
name = "g"
fast_ratio = 0.5
workload = { kind = "recording", path = "good.trec" }
[[axes]]
key = "workload.path"
values = ["good.trec", "bad.trec"]
[[axes]]
key = "seed"
values = [1, 2]
"#;
    place.write("grid.toml", grid);
    let printed = place.run("sweep grid.toml --out out --retries 2");
    assert_eq!(printed.code, Some(1), "{}", printed.err);
    assert!(printed.err.contains("2 of 4 cells failed"), "{}", printed.err);
    assert!(printed.err.contains("bad.trec"), "{}", printed.err);
    let failures = std::fs::read_to_string(place.path("out/failures.jsonl")).unwrap();
    assert_eq!(failures.lines().count(), 2);
    // A rejection is not retried: it would be rejected again.
    assert!(failures.lines().all(|l| l.contains("\"attempts\":1")), "{failures}");
    // After the repair, only they are run again, and nothing of the failure is left.
    std::fs::copy(place.path("good.trec"), place.path("bad.trec")).unwrap();
    let printed = place.run("sweep grid.toml --out out").good();
    assert!(printed.err.contains("2 of 4 cells were there before"), "{}", printed.err);
    assert_eq!(std::fs::read_to_string(place.path("out/failures.jsonl")).unwrap(), "");
}

#[test]
fn what_cannot_be_swept_is_refused_in_one_line() {
    let place = Place::new();
    place.write("grid.toml", GRID);
    for (arguments, printed) in [
        ("sweep none.toml --out o", "none.toml"),
        ("sweep grid.toml --out o --columns slowness", "no column 'slowness'"),
        ("sweep grid.toml --out o --cell 48", "expected a number from 0 to 47"),
        ("sweep grid.toml --out o --shard 3/2", "expected a part"),
        ("sweep grid.toml --out grid.toml/x", "expected a folder"),
        ("sweep grid.toml --out o --merge-only", "o has no finished cells"),
    ] {
        let answer = place.run(arguments);
        assert_eq!(answer.code, Some(2), "{arguments}: {}", answer.err);
        assert!(answer.err.contains(printed), "{arguments}: {}", answer.err);
        assert_eq!(answer.err.trim().lines().count(), 1, "{arguments}: {}", answer.err);
        assert!(!place.path("o").exists(), "{arguments} left something");
    }
    let shown = place.run("sweep grid.toml --out o --cell 0").good();
    assert!(shown.out.contains("1 of 1 cells"), "{}", shown.out);
}

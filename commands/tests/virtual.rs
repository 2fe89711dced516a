//! The whole of Terrace on a live kernel: Debian's 6.12 in a virtual machine with two tiers. Time there
//! is mostly that of the guest's instructions: a busy host starves no period, and pauses are skipped.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use terrace_core::policies::REGISTRY;
use terrace_recordings::period::{PeriodReader, PeriodRecord, Record};
use terrace_results::{PeriodRow, RunRow, read};

fn terrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace")).args(arguments).output().unwrap()
}

fn printed(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// `terrace-workload`, which is built with the workspace and not with this test.
fn workload_program() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_terrace")).with_file_name("terrace-workload");
    assert!(path.is_file(), "{}: run 'cargo build --workspace --bins' first", path.display());
    path
}

/// Runs an experiment in the virtual machine under these policies.
fn compare(folder: &Path, experiment: &str, policies: &str) -> PathBuf {
    let _ = workload_program();
    let file = folder.join("experiment.toml");
    std::fs::write(&file, experiment).unwrap();
    let out = folder.join("out");
    let (file, out_text) = (file.to_str().unwrap(), out.to_str().unwrap());
    let arguments = ["compare", file, "--policies", policies, "--machine", "vm", "--out", out_text];
    let output = terrace(&arguments);
    assert!(output.status.success(), "{}", printed(&output));
    out
}

/// The periods of the only group of a recording.
fn periods(out: &Path, run: &str) -> Vec<PeriodRecord> {
    let path = out.join("recordings").join(format!("{run}.trec"));
    let records = PeriodReader::open(&path).unwrap().records();
    let period = |record| match record {
        Record::Period(period) => Some(*period),
        _ => None,
    };
    records.filter_map(|record| period(record.unwrap())).collect()
}

const HOT_AND_COLD: &str = r#"
name = "hot-and-cold"
period_ms = 1000
periods = 14

[machine]
clock = "instructions"

[[groups]]
name = "program"
fast_ratio = 0.5

[groups.workload]
kind = "hotcold"
footprint_mib = 256
hot_ratio = 0.25
"#;

#[test]
fn two_tiers_are_seen_in_the_guest() {
    let output = terrace(&["lab", "--fast", "768M", "--slow", "512M"]);
    let printed = printed(&output);
    assert!(output.status.success(), "{printed}");
    let tiers: Vec<_> = printed.lines().filter(|l| l.starts_with("memory_tier")).collect();
    assert_eq!(tiers.len(), 2, "{printed}");
    assert!(tiers[0].ends_with("nodes 0") && tiers[1].ends_with("nodes 1"), "{printed}");
    assert!(printed.contains(" 80 ns") && printed.contains(" 300 ns"), "{printed}");
}

#[test]
fn a_guest_in_which_something_is_missing_is_left_as_it_was() {
    let script = format!("{}/tests/refusals.sh:/srv/refusals.sh", env!("CARGO_MANIFEST_DIR"));
    let arguments = [
        &["lab", "--fast", "768M", "--slow", "512M", "--instructions-as-time"][..],
        &[
            "--program",
            env!("CARGO_BIN_EXE_terrace"),
            "--file",
            &script,
            "--",
            "sh",
            "/srv/refusals.sh",
        ],
    ];
    let output = terrace(&arguments.concat());
    let printed = printed(&output);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("all refused, nothing changed"), "{printed}");
}

#[test]
fn the_tracker_names_exactly_the_hot_pages() {
    let folder = tempfile::tempdir().unwrap();
    let out = compare(folder.path(), HOT_AND_COLD, "lru");

    let details: Value =
        serde_json::from_slice(&std::fs::read(out.join("details/lru.json")).unwrap()).unwrap();
    let events = details["program"]["events"].as_array().unwrap();
    let ready = events.iter().find(|e| e["event"] == "ready").unwrap();
    let hot: Vec<u64> =
        ready["hot_addresses"].as_array().unwrap().iter().map(|a| a.as_u64().unwrap()).collect();
    assert_eq!(hot.len(), 32);

    // The first scan may hold the tail of the program's own filling of its memory.
    let periods = periods(&out, "lru");
    assert!(periods.len() >= 7, "only {} periods", periods.len());
    for record in &periods[1..] {
        let scan = &record.scan;
        let mut seen: Vec<u64> =
            scan.accessed.iter_ones().map(|page| scan.layout.address(page).1).collect();
        seen.retain(|address| !hot.contains(address));
        let missed: Vec<_> = hot
            .iter()
            .filter(|&&address| {
                let page = scan.layout.index(scan.layout.address(0).0, address);
                !page.is_some_and(|page| scan.accessed.get(page))
            })
            .collect();
        assert!(seen.is_empty(), "period {}: cold pages {seen:x?} observed as hot", scan.period);
        assert!(missed.is_empty(), "period {}: hot pages {missed:x?} not observed", scan.period);
    }
    let last = &periods.last().unwrap().scan;
    for address in hot {
        let page = last.layout.index(last.layout.address(0).0, address).unwrap();
        assert!(last.fast.get(page), "hot page {address:#x} is in slow memory at the end");
    }
    let row = &read::<RunRow>(&out).unwrap()[0];
    assert_eq!(row.checksum_ok, Some(true));
    assert!(row.demoted_pages >= 1, "nothing had to move: {row:?}");
}

#[test]
fn scans_of_the_virtual_machine_give_the_same_plans_again() {
    let folder = tempfile::tempdir().unwrap();
    // Frames are not exposed there, and a static granularity is the code of the adaptive one. The
    // future is not known there either, and two that count samples have none.
    let refused = ["physical-4k", "optimum", "memtis", "colloid"];
    let runs = |name: &&str| !refused.contains(name) && !name.starts_with("granularity-");
    let policies: Vec<_> = REGISTRY.iter().map(|k| k.name).filter(runs).collect();
    let experiment = HOT_AND_COLD
        .replace("period_ms = 1000", "period_ms = 500")
        .replace("periods = 14", "periods = 12")
        .replace("footprint_mib = 256", "footprint_mib = 128\nshift_every_ms = 1500");
    let out = compare(folder.path(), &experiment, &policies.join(","));
    let rows = read::<RunRow>(&out).unwrap();
    let lru = rows.iter().find(|r| r.policy == "lru").unwrap();
    assert!(lru.promoted_pages > 0 && lru.demoted_pages > 0, "nothing had to move: {lru:?}");
    for policy in policies {
        let recording = out.join("recordings").join(format!("{policy}.trec"));
        let output = terrace(&["replay", recording.to_str().unwrap(), "--format", "json"]);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(output.status.success(), "{policy}: {answer:#}");
        assert!(answer["compared_periods"].as_u64().unwrap() >= 6, "{policy}: {answer:#}");
    }
}

#[test]
fn groups_have_their_own_policies_and_pages_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let group = |name: &str, policy: &str, pages: &str, hot: &str| {
        format!(
            "[[groups]]\nname = \"{name}\"\npolicy = \"{policy}\"\nfast_ratio = 0.5\n\
             page_size = \"{pages}\"\n[groups.workload]\nkind = \"hotcold\"\nfootprint_mib = 64\nhot_ratio = {hot}\n"
        )
    };
    let file = folder.path().join("two.toml");
    // The third has its memory in base pages, which are tracked and moved by ranges of 2 MB.
    let groups = group("young", "lru", "2M", "0.25")
        + &group("often", "lfu", "2M", "0.5")
        + &group("ranges", "lru", "auto", "0.25");
    let head =
        "name = \"two\"\nperiod_ms = 1000\nperiods = 8\n[machine]\nclock = \"instructions\"\n";
    std::fs::write(&file, format!("{head}{groups}")).unwrap();
    let out = folder.path().join("out");
    let arguments = ["run", file.to_str().unwrap(), "--machine", "vm", "--out"];
    let output = terrace(&[&arguments[..], &[out.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", printed(&output));
    let rows = read::<RunRow>(&out).unwrap();
    let names: Vec<_> = rows.iter().map(|r| (r.group.as_str(), r.policy.as_str())).collect();
    assert_eq!(names, [("young", "lru"), ("often", "lfu"), ("ranges", "lru")]);
    for (row, hot) in rows.iter().zip([0.25, 0.5]) {
        assert_eq!((row.pages_max, row.checksum_ok), (32, Some(true)), "{row:?}");
        // Half of the pages are fast at the end, and all the hot ones are among them.
        assert!((row.accessed_ratio - hot).abs() < 0.1, "{row:?}");
        assert!(row.demoted_pages >= 16 && row.hit_ratio > 0.8, "{row:?}");
    }
    // The hot base pages of the third are in every range: all are tracked, and half go down. How many
    // ranges 64 MiB are in depends on where they begin.
    let ranges = &rows[2];
    assert!((32..=34).contains(&ranges.pages_max), "{ranges:?}");
    assert_eq!(ranges.checksum_ok, Some(true), "{ranges:?}");
    assert!(ranges.accessed_ratio > 0.8 && ranges.demoted_pages >= 12, "{ranges:?}");
}

/// A program that changes from what LRU suits to what LFU suits, in the virtual machine.
#[test]
fn amp_learns_that_a_live_program_has_changed_its_behaviour() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let experiment = std::fs::read_to_string(root.join("examples/amp/live-mix.toml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = compare(folder.path(), &experiment, "amp");
    let rows: Vec<PeriodRow> = read(&out).unwrap();
    // Behind what each half begins with, until AMP has information.
    let share = |policy: &str, periods: std::ops::Range<u64>| {
        let of: Vec<_> = rows.iter().filter(|row| periods.contains(&row.period)).collect();
        assert!(of.len() >= 35, "{} periods of {periods:?}", of.len());
        of.iter().filter(|row| row.applied == policy).count() as f64 / of.len() as f64
    };
    let [first, second] = [share("lru", 40..80), share("lfu", 120..160)];
    println!("lru in {first:.2} of the periods before, lfu in {second:.2} at the end");
    assert!(first > 0.5 && second > 0.5, "lru in {first} before, lfu in {second} at the end");
}

/// The cost to any program of less fast memory, by the instructions of the processor that it has to
/// itself.
#[test]
fn a_command_is_timed_by_the_instructions_of_its_own_processor() {
    let folder = tempfile::tempdir().unwrap();
    // Words at random in an array of some 30 MB, of which a third is fast.
    let experiment = r#"
name = "command"
period_ms = 100
periods = 14
warm_up_periods = 12
[machine]
clock = "memory"
full = true
slow = "384M"
[machine.hardware]
preset = "server-ddr5-cxl"
node.caches.l2.size = "256K"
node.caches.llc.size = "2M"
node.caches.llc.ways = 16
[[groups]]
name = "awk"
policy = "first-touch"
fast = "10M"
page_size = "auto"
cpus = [0]
[groups.workload]
kind = "command"
command = ["sh", "-c", "exec awk 'BEGIN { for (i = 0; i < 150000; i++) a[i] = i; for (;;) a[int(150000 * rand())]++ }'"]
"#;
    let out = compare(folder.path(), experiment, "first-touch");
    let rows = read::<RunRow>(&out).unwrap();
    let [all_fast, row] = rows.as_slice() else { panic!("{rows:#?}") };
    assert_eq!((all_fast.slowdown, row.operations), (Some(1.0), None));
    let (slowdown, duration_ms) = (row.slowdown.unwrap(), row.duration_ms.unwrap());
    println!("slowdown {slowdown}, measured {duration_ms} ms");
    assert!((1.01..2.0).contains(&slowdown), "{row:#?}");
    assert!((150.0..250.0).contains(&duration_ms), "{row:#?}");
    // In the warm-up it is about as fast as behind it: it has done its work with the tenth on top, and the
    // warm-up did not have to be twice as long for that.
    let over = row.periods + row.lost_periods;
    assert!((10..=18).contains(&over), "{row:#?}");
    // Processor times are those of the last periods, which were timed: two, or more where they are short.
    let timed = row.measured_periods.unwrap() as usize;
    assert!((1..=4).contains(&timed), "{row:#?}");
    let periods = read::<PeriodRow>(&out).unwrap();
    let last = periods.iter().rev().filter(|period| period.run == row.run).take(timed);
    let tracker_ns: u64 = last.filter_map(|period| period.tracker_cpu_ns).sum();
    let tracker_ms = row.tracker_cpu_ms.unwrap();
    assert!(tracker_ms > 0.0 && (tracker_ms - tracker_ns as f64 / 1e6).abs() < 1e-6, "{row:#?}");
}

/// The time that a client measures is that of the machine's clock and counters. Behind the last mark a
/// guest runs at another speed, which is in neither.
#[test]
fn requests_are_timed_by_the_client_as_long_as_by_the_clock() {
    let folder = tempfile::tempdir().unwrap();
    let experiment = r#"
name = "requests"
period_ms = 50
periods = 5
warm_up_periods = 3
slowdown = false
[machine]
clock = "memory"
fast = "512M"
slow = "128M"
[[groups]]
name = "redis"
policy = "first-touch"
fast_ratio = 1.0
page_size = "auto"
[groups.workload]
kind = "redis-zipf"
footprint_mib = 8
operations_per_s = 0
pipeline = 16
sweep_share = 0.0
"#;
    let out = compare(folder.path(), experiment, "first-touch");
    let row = &read::<RunRow>(&out).unwrap()[0];
    let clock = std::fs::read(out.join("clock/first-touch.json")).unwrap();
    let clock: Value = serde_json::from_slice(&clock).unwrap();
    let by_clock_ms = clock["while_programs_ran"]["time_ns"].as_f64().unwrap() / 1e6;
    let by_client_ms = row.duration_ms.unwrap();
    println!("{by_client_ms} ms by the client, {by_clock_ms} ms by the clock");
    assert!(row.operations.is_some_and(|n| n > 10_000) && by_clock_ms > 50.0, "{row:#?}");
    assert!((by_client_ms - by_clock_ms).abs() < 0.5, "{by_client_ms} {by_clock_ms} {row:#?}");
}

/// By the host's clock, as experiments are without a key.
#[test]
fn redis_keeps_its_data_while_its_pages_move() {
    let folder = tempfile::tempdir().unwrap();
    let experiment = HOT_AND_COLD
        .replace("[machine]\nclock = \"instructions\"\n", "")
        .replace("kind = \"hotcold\"\n", "kind = \"redis-zipf\"\noperations_per_s = 300\n")
        .replace("footprint_mib = 256\nhot_ratio = 0.25", "footprint_mib = 64");
    let out = compare(folder.path(), &experiment, "lfu");
    let row = &read::<RunRow>(&out).unwrap()[0];
    assert_eq!(row.checksum_ok, Some(true), "{row:?}");
    assert!(row.operations.is_some_and(|n| n > 1000), "{row:?}");
    assert!(row.promoted_pages + row.demoted_pages > 0, "{row:?}");
    assert!(out.join("report.html").is_file());
}

#[test]
fn killing_the_engine_at_any_moment_harms_nothing() {
    let script = format!("{}/tests/kill.sh:/srv/kill.sh", env!("CARGO_MANIFEST_DIR"));
    let workload = workload_program();
    let arguments = [
        &["lab", "--timeout", "900", "--fast", "768M", "--slow", "512M"][..],
        &["--instructions-as-time"],
        &["--program", env!("CARGO_BIN_EXE_terrace"), "--program", workload.to_str().unwrap()],
        &["--file", &script, "--", "sh", "/srv/kill.sh", "50", "7"],
    ];
    let output = terrace(&arguments.concat());
    let printed = printed(&output);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("kills 50,") && printed.contains("\"checksum_ok\":true"), "{printed}");
    // Kills that only hit the start of the program would prove little.
    let number = |after: &str| -> u64 {
        let (_, rest) = printed.split_once(after).unwrap();
        rest.trim_start().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    assert!(number("in the middle of a run") >= 20, "{printed}");
    assert!(number("pages migrated") > 0, "{printed}");
}

/// The bytes that a summary of `terrace watch` gives behind a word, in MB.
fn megabytes(summary: &str, line: &str, behind: &str) -> f64 {
    let found = summary.lines().find(|l| l.trim_start().starts_with(line));
    let line = found.unwrap_or_else(|| panic!("{line}: {summary}"));
    let at = line.find(behind).unwrap_or_else(|| panic!("{behind}: {line}")) + behind.len();
    // What DAMON has not sampled is an upper bound.
    let number = line[at..].trim_start().trim_start_matches("at most ");
    let number = number.split('M').next().unwrap();
    number.parse().unwrap_or_else(|e| panic!("{number}: {e}: {line}"))
}

#[test]
fn the_memory_that_a_program_uses_is_watched_and_the_host_left_as_it_was() {
    let script = format!("{}/tests/watch.sh:/srv/watch.sh", env!("CARGO_MANIFEST_DIR"));
    let workload = workload_program();
    let output = terrace(&[
        "lab",
        "--fast",
        "768M",
        "--slow",
        "512M",
        "--instructions-as-time",
        "--timeout",
        "900",
        "--program",
        env!("CARGO_BIN_EXE_terrace"),
        "--program",
        workload.to_str().unwrap(),
        "--file",
        &script,
        "--",
        "sh",
        "/srv/watch.sh",
    ]);
    let printed = printed(&output);
    assert!(output.status.success() && printed.contains("all held"), "{printed}");
    // Of a command and of a process: 50 of 200 MB are hot, the rest is never accessed again.
    let summaries: Vec<_> = printed.split(" in ranges of 2 MB").skip(1).collect();
    assert_eq!(summaries.len(), 2, "{printed}");
    for summary in summaries {
        let accessed = megabytes(summary, "accessed", "accessed");
        let hot = megabytes(summary, "accesses", "99 % in");
        assert!((46.0..=56.0).contains(&accessed), "{accessed} MB: {summary}");
        assert!((40.0..=60.0).contains(&hot), "{hot} MB: {summary}");
    }
    let untouched =
        megabytes(printed.rsplit("in ranges of 2 MB").next().unwrap(), "untouched", "untouched");
    assert!((140.0..=152.0).contains(&untouched), "{untouched} MB: {printed}");
}

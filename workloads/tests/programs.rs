//! `terrace-workload` for its users: output, exit codes, bad usage.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn workload(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-workload"));
    command.args(arguments.split_whitespace());
    command
}

fn run(arguments: &str) -> Output {
    workload(arguments).stdin(Stdio::null()).output().unwrap()
}

fn events(output: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(output).lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn hotcold_on_huge_pages_says_what_is_hot_and_that_all_is_right() {
    let output =
        run("hotcold --pages 8 --hot 2 --duration-ms 120 --pause-ms 5 --shift-every-ms 60");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events = events(&output.stdout);
    let base = events[0]["base_address"].as_u64().unwrap();
    assert_eq!(base % (2 << 20), 0);
    assert_eq!(events[0]["page_size_bytes"], 2 << 20);
    let phases: Vec<_> = events.iter().filter(|e| e["event"] == "phase").collect();
    assert_eq!(phases.len(), 2);
    assert_ne!(phases[0]["hot_addresses"], phases[1]["hot_addresses"]);
    for phase in phases {
        let hot: Vec<u64> = serde_json::from_value(phase["hot_addresses"].clone()).unwrap();
        assert_eq!(hot.len(), 2);
        assert!(hot.iter().all(|a| (a - base).is_multiple_of(2 << 20) && (a - base) >> 21 < 8));
    }
    let result = events.last().unwrap();
    assert_eq!(result["event"], "result");
    assert_eq!(result["checksum_ok"], true);
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Keeps a process on one processor, where this one may use it.
fn run_on(pid: u32, cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(rustix::process::Pid::from_raw(pid as i32), &set);
}

/// The kernel's record of pages that were touched since `clear_refs`: the cold ones were not.
#[test]
fn hotcold_touches_no_cold_page_between_its_start_and_its_end() {
    let mut child = workload(
        "hotcold --pages 256 --page-size base --hot-every 16 --duration-ms 60000 --pause-ms 1 --wait-go",
    )
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let base = ready["base_address"].as_u64().unwrap();
    let pid = child.id();
    let procfs = |name: &str| format!("/proc/{pid}/{name}");
    // 1 clears the accessed bits of all pages.
    std::fs::write(procfs("clear_refs"), "1").unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let referenced_kb = || -> u64 {
        let smaps = std::fs::read_to_string(procfs("smaps")).unwrap();
        let mut inside = false;
        let mut kb = 0;
        for line in smaps.lines() {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap_or_default();
            if let Some((from, to)) = first.split_once('-') {
                let hex = |t| u64::from_str_radix(t, 16).unwrap_or(0);
                inside = hex(from) < base + (1 << 20) && hex(to) > base;
            } else if inside && first == "Referenced:" {
                kb += words.next().unwrap().parse::<u64>().unwrap();
            }
        }
        kb
    };
    assert_eq!(referenced_kb(), 0, "nothing is touched before the go");
    writeln!(stdin, "go").unwrap();
    let phase: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(phase["hot_addresses"].as_array().unwrap().len(), 16);
    // A page whose translation a processor kept over the clearing is marked again only after a new
    // walk: the program is moved from processor to processor until each round has had one.
    let hot_kb = 16 * 4;
    let limit = Instant::now() + Duration::from_secs(60);
    let mut seen_kb = 0;
    for cpu in (0..processors()).cycle() {
        run_on(pid, cpu);
        std::thread::sleep(Duration::from_millis(10));
        seen_kb = referenced_kb();
        if seen_kb >= hot_kb || Instant::now() > limit {
            break;
        }
    }
    assert_eq!(seen_kb, hot_kb, "the hot pages and no other, within a minute");
    writeln!(stdin, "stop").unwrap();
    let rest: Vec<Value> = lines.map(|l| serde_json::from_str(&l.unwrap()).unwrap()).collect();
    assert_eq!(rest.last().unwrap()["checksum_ok"], true);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_slip_on_a_control_line_is_reported_and_does_not_end_the_program() {
    let mut child = workload("hotcold --pages 4 --page-size base --hot 1 --duration-ms 60000")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"pahse 3\nphase 2\nstop\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("'pahse 3'") && printed.contains("expected"), "{printed}");
}

#[test]
fn each_synthetic_program_checks_its_memory() {
    for name in ["lru-favor", "lfu-favor", "random-favor"] {
        let output = run(&format!(
            "generator {name} --parameters {{\"footprint_mib\":64,\"startup_ms\":0}} \
             --duration-ms 150 --pause-ms 10 --period-ms 50"
        ));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let events = events(&output.stdout);
        let result = events.last().unwrap();
        assert_eq!(result["checksum_ok"], true);
        assert!(result["operations"].as_u64().unwrap() > 0, "{name}");
    }
}

#[test]
fn bad_usage_says_what_was_expected_with_exit_code_2() {
    let cases = [
        ("", "Usage"),
        ("hotcold --pages 8 --duration-ms 1", "--hot <HOT>|--hot-every"),
        ("hotcold --pages 8 --hot 9 --duration-ms 1", "expected 1 to 8"),
        ("hotcold --pages 0 --hot 1 --duration-ms 1", "cannot map 0 pages"),
        ("hotcold --pages 18446744073709551615 --hot 1 --duration-ms 1", "at most 2^46"),
        ("hotcold --pages 33554432 --hot 1 --duration-ms 1", "available here"),
        (
            "generator scan --duration-ms 1 --parameters {\"footprint_mib\":67108864}",
            "available here",
        ),
        ("hotcold --pages 8 --hot 1 --hot-every 2 --duration-ms 1", "cannot be used with"),
        ("hotcold --pages 8 --hot 1 --pause-ms 0 --duration-ms 1", "--pause-ms"),
        ("generator no-such --duration-ms 1", "expected one of"),
        ("generator lru-favor --duration-ms 1 --parameters {\"x\":1}", "unknown field"),
        ("generator lru-favor --duration-ms 1 --parameters {\"x\"", "invalid value"),
        ("redis-zipf load --server unix:/x", "--keys <KEYS>|--footprint-mib"),
        ("redis-zipf load --server nowhere --keys 1", "host:port"),
        ("redis-zipf load --server unix:/x --keys 0", "0 keys"),
        ("redis-zipf run --server unix:/x --keys 9 --duration-ms 1 --theta=-1", "theta"),
        ("redis-zipf run --server unix:/x --keys 9 --duration-ms 1 --shift 5:2", "AT_MS:SHARE"),
        (
            "redis-zipf run --server unix:/x --keys 9 --duration-ms 1 --operations-per-s 0",
            "per second",
        ),
    ];
    for (arguments, expected) in cases {
        let output = run(arguments);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {printed}");
        assert!(printed.contains(expected), "{arguments}: {printed}");
        assert!(output.stdout.is_empty());
    }
}

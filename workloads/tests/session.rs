//! Sessions: real processes, started, driven and ended.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use terrace_core::page::PageSize;
use terrace_workloads::kinds::{self, LiveContext, LiveProgram, LiveWorkload};
use terrace_workloads::live::{End, LiveCommand, Ready};
use terrace_workloads::session::{MemoryPolicy, Session, SessionOptions};

fn sh(script: &str) -> LiveCommand {
    LiveCommand {
        program: LiveProgram::Host("sh".into()),
        arguments: vec!["-c".into(), script.into()],
        environment: Vec::new(),
        within_ms: 20_000,
    }
}

fn workload(main: &str) -> LiveWorkload {
    LiveWorkload {
        main: sh(main),
        ready: Ready::Started,
        load: None,
        drive: None,
        verify: None,
        begin_line: None,
        end: End::Terminate,
        drive_is_marked: false,
        executes: Vec::new(),
        packages: Vec::new(),
    }
}

fn start(workload: &LiveWorkload) -> Session {
    Session::start(workload, &SessionOptions::default()).unwrap()
}

fn start_error(workload: &LiveWorkload) -> String {
    let error = Session::start(workload, &SessionOptions::default()).err().unwrap().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

fn alive(pid: u32) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists()
}

const SERVE: &str = "echo '{\"event\":\"ready\"}'; exec sleep 1000";

#[test]
fn a_program_that_ends_gives_its_result() {
    let main = "read go; echo \"{\\\"event\\\":\\\"result\\\",\\\"operations\\\":7,\\\"checksum_ok\\\":true,\\\"go\\\":\\\"$go\\\"}\"";
    let mut session = start(&LiveWorkload { begin_line: Some("now".into()), ..workload(main) });
    assert!(!session.ended(Duration::ZERO).unwrap(), "it waits for its line");
    session.begin().unwrap();
    assert!(session.ended(Duration::from_secs(20)).unwrap());
    let result = session.finish().unwrap();
    assert_eq!((result.operations, result.checksum_ok), (Some(7), Some(true)));
    assert_eq!(result.details["main"]["go"], "now");
}

#[test]
fn a_program_took_until_it_ended_however_late_somebody_asks() {
    let begun = Instant::now();
    let mut session = start(&workload("exec sleep 0.3"));
    std::thread::sleep(Duration::from_millis(200));
    session.begin().unwrap();
    while !state(session.main_pid()).starts_with('Z') {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    let seen_ms = begun.elapsed().as_millis() as f64;
    std::thread::sleep(Duration::from_secs(2));
    let duration_ms = session.finish().unwrap().duration_ms;
    assert!((300.0..=seen_ms + 50.0).contains(&duration_ms), "{duration_ms}, seen {seen_ms}");
}

/// A process's state: the field after its name in `stat`.
fn state(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().to_owned()
}

#[test]
fn load_drive_and_verify_run_in_order_beside_a_main_that_lives_until_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let log = log.display();
    let ready = Ready::Event { event: "ready".into(), within_ms: 20_000 };
    let step = |name: &str| {
        Some(sh(&format!(
            "echo {name} >> {log}; echo '{{\"event\":\"result\",\"operations\":3,\"operations_per_s\":1.5,\"duration_ms\":9,\"checksum_ok\":true}}'"
        )))
    };
    let workload = LiveWorkload {
        ready,
        load: step("load"),
        drive: step("drive"),
        verify: step("verify"),
        ..workload(SERVE)
    };
    let mut session = start(&workload);
    let pid = session.main_pid();
    session.begin().unwrap();
    assert!(session.ended(Duration::from_secs(20)).unwrap());
    assert!(alive(pid));
    let result = session.finish().unwrap();
    assert!(!alive(pid), "ended and collected");
    let steps = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert_eq!(steps, "load\ndrive\nverify\n");
    assert_eq!((result.operations, result.operations_per_s), (Some(3), Some(1.5)));
    assert_eq!((result.duration_ms, result.checksum_ok), (9.0, Some(true)));
}

#[test]
fn wrong_data_found_by_any_program_is_a_result_and_not_an_error() {
    let wrong = "echo '{\"event\":\"result\",\"checksum_ok\":false}'; exit 1";
    let right = "echo '{\"event\":\"result\",\"checksum_ok\":true}'";
    for (drive, verify) in [(wrong, right), (right, wrong)] {
        let workload =
            LiveWorkload { drive: Some(sh(drive)), verify: Some(sh(verify)), ..workload(SERVE) };
        let mut session = start(&workload);
        session.begin().unwrap();
        assert_eq!(session.finish().unwrap().checksum_ok, Some(false));
    }
}

#[test]
fn a_program_that_verifies_what_it_computed_has_checked_its_data() {
    for (line, intact) in [("true}'", true), ("false}'; exit 1", false)] {
        let main = format!("echo '{{\"event\":\"result\",\"verified\":{line}");
        let mut session = start(&workload(&main));
        session.begin().unwrap();
        assert!(session.ended(Duration::from_secs(20)).unwrap());
        assert_eq!(session.finish().unwrap().checksum_ok, Some(intact));
    }
}

#[test]
fn a_main_that_is_not_ready_in_time_says_so_and_is_killed() {
    let ready = |within_ms| Ready::Event { event: "ready".into(), within_ms };
    let error = start_error(&LiveWorkload {
        ready: ready(50),
        ..workload("echo cannot find my keys >&2; exec sleep 1000")
    });
    assert!(error.contains("not ready after 50 ms") && error.contains("'ready'"), "{error}");

    let error = start_error(&LiveWorkload {
        ready: ready(60_000),
        ..workload("echo cannot find my keys >&2; exit 3")
    });
    assert!(error.contains("exit code 3") && error.contains("cannot find my keys"), "{error}");
}

#[test]
fn a_main_that_dies_under_its_drive_ends_the_run_at_once() {
    let workload =
        LiveWorkload { drive: Some(sh("exec sleep 1000")), ..workload("read x; exec sleep 1000") };
    let mut session =
        start(&LiveWorkload { begin_line: None, end: End::Line("x".into()), ..workload });
    session.begin().unwrap();
    assert!(!session.ended(Duration::from_millis(10)).unwrap());
    let kill = std::process::Command::new("kill")
        .args(["-9", &session.main_pid().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    let start = Instant::now();
    let error = session.ended(Duration::from_secs(60)).unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_secs(30));
    assert!(error.contains("main program sh ended with signal 9"), "{error}");
}

#[test]
fn a_failed_load_and_a_drive_that_takes_too_long_are_errors() {
    let error = start_error(&LiveWorkload {
        load: Some(sh("echo disk full >&2; exit 4")),
        ..workload(SERVE)
    });
    assert!(error.contains("load program") && error.contains("disk full"), "{error}");

    let slow = LiveCommand { within_ms: 50, ..sh("exec sleep 1000") };
    let mut session = start(&LiveWorkload { drive: Some(slow), ..workload(SERVE) });
    session.begin().unwrap();
    let error = session.finish().unwrap_err().to_string();
    assert!(error.contains("not done after 50 ms"), "{error}");
}

#[test]
fn nothing_is_left_behind_by_a_finished_or_a_dropped_session() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    // A child in the background that ignores SIGTERM.
    let main = format!(
        "(trap '' TERM; while :; do sleep 1; done) & echo $! > {0}.part; mv {0}.part {0}; wait",
        pids.display()
    );
    for finish in [true, false] {
        let mut session = start(&workload(&main));
        let main_pid = session.main_pid();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !pids.exists() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        let child: u32 = std::fs::read_to_string(&pids).unwrap().trim().parse().unwrap();
        std::fs::remove_file(&pids).unwrap();
        assert!(alive(main_pid) && alive(child));
        session.begin().unwrap();
        if finish {
            let result = session.finish().unwrap();
            assert_eq!(result.checksum_ok, None, "it does not check");
        } else {
            drop(session);
        }
        assert!(!alive(main_pid));
        // It has been killed, and dies when it runs next. Its parent is gone: another process
        // collects it, so it may stay listed.
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z") || stat.contains(") X") {
                break;
            }
            assert!(Instant::now() < deadline, "{stat}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn what_cannot_be_started_is_refused_before_anything_runs() {
    let missing = LiveCommand {
        program: LiveProgram::Package { package: "no-pkg".into(), program: "no-such".into() },
        ..sh("")
    };
    let error = start_error(&LiveWorkload { verify: Some(missing), ..workload(SERVE) });
    assert!(error.contains("Debian package no-pkg"), "{error}");

    let refused = |options: SessionOptions| {
        Session::start(&workload(SERVE), &options).err().unwrap().to_string()
    };
    let cgroup = Some(PathBuf::from("/no/such/group"));
    let error = refused(SessionOptions { cgroup, ..Default::default() });
    assert!(error.contains("/no/such/group") && error.contains("expected"), "{error}");
    for nodes in [vec![], vec![64]] {
        let memory_policy = MemoryPolicy::Interleave(nodes);
        let error = refused(SessionOptions { memory_policy, ..Default::default() });
        assert!(error.contains("expected one or more nodes"), "{error}");
    }
}

/// The directory of version 2 control groups, if this host allows making one.
fn own_cgroup(name: &str) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let path = words.next()?;
        (words.next()? == "cgroup2").then(|| PathBuf::from(path))
    })?;
    let path = mount.join(format!("terrace-session-test-{}-{name}", std::process::id()));
    std::fs::create_dir(&path).ok()?;
    Some(path)
}

#[test]
fn main_and_nothing_else_runs_in_its_control_group_and_strays_are_killed() {
    let Some(cgroup) = own_cgroup("enter") else {
        eprintln!("skipped: needs root and a cgroup2 mount");
        return;
    };
    // A child that left the process group, as a daemon does.
    let main = "setsid sh -c 'trap \"\" TERM; exec sleep 1000' & read x; exec sleep 1000";
    let workload = LiveWorkload {
        drive: Some(sh("cat /proc/self/cgroup >&2; exec sleep 1000")),
        end: End::Terminate,
        begin_line: Some("go".into()),
        ..workload(main)
    };
    let options = SessionOptions { cgroup: Some(cgroup.clone()), ..Default::default() };
    let procs = || std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
    let mut session = Session::start(&workload, &options).unwrap();
    let main_pid = session.main_pid().to_string();
    session.begin().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while procs().lines().count() < 2 {
        assert!(Instant::now() < deadline, "the stray does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(procs().lines().any(|pid| pid == main_pid));
    assert!(procs().lines().count() <= 3, "main, its child and no drive: {}", procs());
    drop(session);
    assert_eq!(procs(), "", "the stray is gone too");
    std::fs::remove_dir(&cgroup).unwrap();
}

#[test]
fn main_alone_runs_on_its_processors() {
    let allowed = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
        line.trim().to_owned()
    };
    let first = allowed(std::process::id());
    let cpu: u32 = first.split([',', '-']).next().unwrap().parse().unwrap();
    // A processor that no machine has is passed over.
    let options = SessionOptions { cpus: vec![cpu, 1023], ..SessionOptions::default() };
    let drive = Some(sh("exec sleep 1000"));
    let workload = LiveWorkload { drive, ..workload("exec sleep 1000") };
    let mut session = Session::start(&workload, &options).unwrap();
    session.begin().unwrap();
    assert_eq!(allowed(session.main_pid()), cpu.to_string());
    assert_eq!(allowed(session.drive_pid().unwrap()), first);
}

#[test]
fn interleaving_is_in_force_from_the_first_page() {
    let policy = "sed -n '1p' /proc/self/numa_maps | grep -o interleave:0 && \
                  echo '{\"event\":\"result\",\"checksum_ok\":true}'";
    if !PathBuf::from("/proc/self/numa_maps").exists() {
        eprintln!("skipped: this kernel has no NUMA");
        return;
    }
    let options =
        SessionOptions { memory_policy: MemoryPolicy::Interleave(vec![0]), ..Default::default() };
    let main = LiveCommand { within_ms: 20_000, ..sh(policy) };
    let workload = LiveWorkload { main, end: End::Line(String::new()), ..workload("") };
    let session = Session::start(&workload, &options).unwrap();
    assert_eq!(session.finish().unwrap().checksum_ok, Some(true));
}

#[test]
fn a_program_in_base_pages_gets_no_huge_ones_and_neither_do_its_children() {
    let says = |base_pages: bool| {
        let wanted = u8::from(!base_pages);
        let line = format!(
            "sh -c 'grep -q \"^THP_enabled:.*{wanted}$\" /proc/self/status' && \
             echo '{{\"event\":\"result\",\"checksum_ok\":true}}'"
        );
        let main = LiveCommand { within_ms: 20_000, ..sh(&line) };
        let workload = LiveWorkload { main, end: End::Line(String::new()), ..workload("") };
        let options = SessionOptions { base_pages, ..Default::default() };
        Session::start(&workload, &options).and_then(Session::finish).map(|r| r.checksum_ok)
    };
    for base_pages in [true, false] {
        assert!(matches!(says(base_pages), Ok(Some(true))), "{base_pages}");
    }
}

fn context(folder: &std::path::Path) -> LiveContext {
    LiveContext {
        runtime_directory: folder.to_owned(),
        period_ms: 100,
        duration_ms: 500,
        marked: false,
        page_size: PageSize::Base,
        seed: 1,
    }
}

#[test]
fn each_live_kind_runs_from_its_parameters_to_its_result() {
    let cases = [
        (
            "redis-zipf",
            json!({ "footprint_mib": 8, "operations_per_s": 2000, "shifts": [{ "at_ms": 200, "to": 0.0 }] }),
        ),
        ("hotcold", json!({ "footprint_mib": 4, "pause_ms": 5, "shift_every_ms": 100 })),
        ("lru-favor", json!({ "footprint_mib": 4 })),
        ("lfu-favor", json!({ "footprint_mib": 4 })),
        ("random-favor", json!({ "footprint_mib": 4 })),
    ];
    for (name, parameters) in cases {
        let folder = tempfile::tempdir().unwrap();
        let kind = kinds::find(name).unwrap();
        let workload = kind.live(&parameters, &context(folder.path())).unwrap();
        let mut session = start(&workload);
        session.begin().unwrap();
        assert!(session.ended(Duration::from_secs(30)).unwrap(), "{name}");
        let result = session.finish().unwrap();
        assert_eq!(result.checksum_ok, Some(true), "{name}: {}", result.details);
        assert!(result.operations.unwrap() > 0, "{name}");
        assert!(result.duration_ms >= 400.0, "{name}: {}", result.duration_ms);
    }
}

#[test]
fn a_memory_program_asked_to_end_early_still_checks_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    let context = LiveContext { duration_ms: 600_000, ..context(folder.path()) };
    let parameters = json!({ "footprint_mib": 4, "pause_ms": 1 });
    let workload = kinds::find("hotcold").unwrap().live(&parameters, &context).unwrap();
    let mut session = start(&workload);
    session.begin().unwrap();
    assert!(!session.ended(Duration::from_millis(50)).unwrap());
    assert!(session.events().iter().any(|e| e["event"] == "phase"));
    let result = session.finish().unwrap();
    assert_eq!(result.checksum_ok, Some(true));
    assert!(result.duration_ms < 60_000.0);
}

#[test]
fn no_mark_goes_to_a_client_that_does_not_catch_it_yet() {
    let drive = Some(sh("echo '{\"event\":\"connected\"}'; exec sleep 1000"));
    let mut session =
        start(&LiveWorkload { drive, drive_is_marked: true, ..workload("exec sleep 1000") });
    session.begin().unwrap();
    // As it is, such a signal would end it.
    assert!(!session.catches_marks());
    let error = session.mark().unwrap_err().to_string();
    assert!(error.contains("drive program sh is not ready"), "{error}");
    assert!(!session.ended(Duration::from_millis(100)).unwrap());
}

#[test]
fn a_client_that_ends_at_the_second_mark_without_a_word_is_not_waited_for() {
    let script = "trap 'exit 0' USR1; echo '{\"event\":\"ready\"}'; while :; do sleep 0.05; done";
    let drive = Some(sh(script));
    let mut session =
        start(&LiveWorkload { drive, drive_is_marked: true, ..workload("exec sleep 1000") });
    session.begin().unwrap();
    let begun = Instant::now();
    while !session.catches_marks() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the client does not catch marks");
        assert!(!session.ended(Duration::from_millis(20)).unwrap());
    }
    session.mark().unwrap();
    session.measured().unwrap();
    assert!(session.ended(Duration::from_secs(20)).unwrap());
}

#[test]
fn requests_are_measured_from_mark_to_mark() {
    let folder = tempfile::tempdir().unwrap();
    let context = LiveContext { duration_ms: 600_000, marked: true, ..context(folder.path()) };
    let parameters = json!({ "footprint_mib": 8, "operations_per_s": 2000 });
    let workload = kinds::find("redis-zipf").unwrap().live(&parameters, &context).unwrap();
    let mut session = start(&workload);
    let begun = Instant::now();
    session.begin().unwrap();
    while !session.catches_marks() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the client does not catch marks");
        assert!(!session.ended(Duration::from_millis(20)).unwrap());
    }
    // Until the first mark it asks for what is not measured.
    assert!(!session.ended(Duration::from_millis(300)).unwrap());
    session.mark().unwrap();
    let measured = Instant::now();
    assert!(!session.ended(Duration::from_millis(500)).unwrap());
    session.mark().unwrap();
    session.measured().unwrap();
    let (since_begin, since_mark) = (begun.elapsed(), measured.elapsed());
    assert!(session.ended(Duration::from_secs(20)).unwrap(), "the second mark ends the client");
    let result = session.finish().unwrap();
    assert_eq!(result.checksum_ok, Some(true), "{}", result.details);
    let drive = &result.details["drive"];
    let before = drive["unmeasured_operations"].as_u64().unwrap();
    assert!(before > 0, "{drive}");
    // What was done before is in neither the count nor the time nor the rate.
    assert!(result.duration_ms <= since_mark.as_secs_f64() * 1e3, "{drive} {since_begin:?}");
    assert!(result.duration_ms >= 400.0, "{drive}");
    let all = ["reads", "writes", "sweep_reads"].map(|kind| drive[kind].as_u64().unwrap());
    assert_eq!(result.operations.unwrap() + before, all.iter().sum::<u64>(), "{drive}");
}

//! A run that is killed at any moment leaves the host restored. Real processes are killed, on a
//! folder of files that stands for the host: no root needed.
//!
//! The processes are this test binary itself, started with the name of one of the entries below.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use tempfile::TempDir;
use terrace_linux::guard::GuardCommand;
use terrace_linux::guard_main;
use terrace_linux::journal::Journal;
use terrace_linux::roots::Roots;
use terrace_linux::session::{Session, SessionError, restore_leftover};

const FOLDER: &str = "TERRACE_TEST_FOLDER";
/// The file of a setting.
type Setting = fn(&Roots) -> PathBuf;

const SETTINGS: [(Setting, &str); 3] =
    [(Roots::lru_gen, "0x0007"), (Roots::numa_balancing, "1"), (Roots::demotion, "true")];

/// Signals act on it even if the starter of the tests ignores them, as nohup ignores hang-ups.
fn entry(name: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", "--"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command
}

/// The guard: see [`GuardCommand`]. The journal and the run are the last two arguments; to the test
/// harness they are names of unknown tests.
#[test]
#[ignore = "the guard process of the other tests"]
fn guard_process() {
    let arguments: Vec<_> = std::env::args().collect();
    if let [.., journal, run] = arguments.as_slice()
        && Path::new(journal).is_absolute()
    {
        let failed = guard_main(Path::new(journal), run);
        assert!(failed.is_empty(), "{failed:?}");
    }
}

/// A run that changes settings back and forth until it is killed.
#[test]
#[ignore = "the run that the other tests kill"]
fn victim_process() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let roots = Roots::below(Path::new(&folder));
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", "guard_process", "--ignored", "--nocapture"];
    let guard = GuardCommand { program, arguments: arguments.map(Into::into).to_vec() };
    let session = Session::open(&roots, Some(guard)).unwrap();
    session.take_kdamonds(2).unwrap();
    session.make_cgroup(Path::new("terrace")).unwrap();
    // Without a guard nothing is changed, and one that is killed as it starts counts as none: the
    // run continues and starts another.
    let may_fail = |error: SessionError| match error {
        SessionError::Guard(_) => {}
        error => panic!("{error}"),
    };
    for round in 0u64.. {
        for (setting, _) in SETTINGS {
            let value = format!("changed {}", round % 7);
            session.set(&setting(&roots), &value).unwrap_or_else(may_fail);
        }
        session.watch_guard();
        match session.make_trace_instance(&format!("terrace-{round}")) {
            Ok(instance) => {
                if round == 0 {
                    println!("changed");
                }
                session.remove_trace_instance(&instance).unwrap();
            }
            Err(error) => may_fail(error),
        }
    }
}

fn host() -> (TempDir, Roots) {
    let keep = tempfile::tempdir().unwrap();
    let roots = Roots::below(keep.path());
    for folder in [roots.kdamonds(), roots.tracing().join("instances"), roots.cgroup()] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::create_dir_all(roots.proc.join("self")).unwrap();
    fs::write(roots.proc.join("self/cgroup"), "0::/\n").unwrap();
    fs::write(roots.cgroup().join("cgroup.procs"), "").unwrap();
    fs::write(roots.kdamonds().join("nr_kdamonds"), "0").unwrap();
    for (setting, value) in SETTINGS {
        fs::create_dir_all(setting(&roots).parent().unwrap()).unwrap();
        fs::write(setting(&roots), value).unwrap();
    }
    (keep, roots)
}

fn assert_as_it_was(roots: &Roots) {
    for (setting, value) in SETTINGS {
        let path = setting(roots);
        assert_eq!(fs::read_to_string(&path).unwrap(), value, "setting {}", path.display());
    }
    assert_eq!(fs::read_to_string(roots.kdamonds().join("nr_kdamonds")).unwrap().trim(), "0");
    assert!(!roots.cgroup().join("terrace").exists());
    let instances = fs::read_dir(roots.tracing().join("instances")).unwrap().count();
    assert_eq!(instances, 0, "trace instances left");
    assert!(!Journal::path(&roots.run).exists());
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn start(folder: &Path) -> Child {
    use std::os::unix::process::CommandExt;
    let mut command = entry("victim_process");
    command.env(FOLDER, folder).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    command.spawn().unwrap()
}

fn wait_until_changed(victim: &mut Child) {
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|l| l == "changed"), "the run did not start");
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The guards of a run, by their parent and their name. One that is dead and not yet reaped does
/// not count.
fn guards_of(victim: u32) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        if status.contains(&format!("\nPPid:\t{victim}\n")) && line.contains("guard_process") {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}

/// The guard of a run, once it has one.
fn guard_of(victim: u32) -> Pid {
    wait_for("the guard", || !guards_of(victim).is_empty());
    guards_of(victim)[0]
}

#[test]
fn a_run_killed_at_any_moment_leaves_the_host_as_it_was() {
    // Moments from before the first change to well within the rounds.
    for moment in 0..12u64 {
        let (keep, roots) = host();
        let mut victim = start(keep.path());
        std::thread::sleep(Duration::from_millis(moment * moment * 3));
        victim.kill().unwrap();
        victim.wait().unwrap();
        // Before the first change there may be neither guard nor journal.
        wait_for("the end of the journal", || !Journal::path(&roots.run).exists());
        assert_as_it_was(&roots);
        // And the next run may start.
        drop(Session::open(&roots, None).unwrap());
    }
}

#[test]
fn signals_that_end_a_run_restore_too_and_do_not_reach_the_guard() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (keep, roots) = host();
        let mut victim = start(keep.path());
        wait_until_changed(&mut victim);
        let guard = guard_of(victim.id());
        // As a terminal does: to the whole group.
        kill_process_group(pid(&victim), signal).unwrap();
        victim.wait().unwrap();
        wait_for("the end of the journal", || !Journal::path(&roots.run).exists());
        assert_as_it_was(&roots);
        wait_for("the end of the guard", || test_kill_process(guard).is_err());
    }
}

#[test]
fn a_guard_that_is_asked_to_end_stays_until_its_run_ends() {
    let (keep, roots) = host();
    let mut victim = start(keep.path());
    wait_until_changed(&mut victim);
    let guard = guard_of(victim.id());
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        kill_process(guard, signal).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_for("the end of the journal", || !Journal::path(&roots.run).exists());
    assert_as_it_was(&roots);
}

/// The watchdog of systemd aborts every process of a service that hangs.
#[test]
fn a_run_that_hangs_and_is_aborted_with_its_guard_leaves_the_host_as_it_was() {
    let (keep, roots) = host();
    let mut victim = start(keep.path());
    wait_until_changed(&mut victim);
    let guard = guard_of(victim.id());
    // Stopped, it cannot replace its guard.
    kill_process(pid(&victim), Signal::STOP).unwrap();
    for process in [guard, pid(&victim)] {
        kill_process(process, Signal::ABORT).unwrap();
    }
    kill_process(pid(&victim), Signal::CONT).unwrap();
    victim.wait().unwrap();
    wait_for("the end of the journal", || !Journal::path(&roots.run).exists());
    assert_as_it_was(&roots);
}

#[test]
fn a_guard_that_dies_is_replaced_and_the_other_restores() {
    let (keep, roots) = host();
    let mut victim = start(keep.path());
    wait_until_changed(&mut victim);
    for _ in 0..3 {
        let first = guard_of(victim.id());
        kill_process(first, Signal::KILL).unwrap();
        wait_for("another guard", || guards_of(victim.id()).iter().any(|pid| *pid != first));
    }
    // A guard that is being started does not count: until then the journal is there for the next
    // start.
    let guard = guard_of(victim.id());
    wait_for("the guard's duty", || {
        let ignored = fs::read_to_string(format!("/proc/{}/status", guard.as_raw_nonzero()));
        ignored.unwrap_or_default().lines().any(|l| {
            let mask = l.strip_prefix("SigCgt:").map(|m| u64::from_str_radix(m.trim(), 16));
            // It has handlers for signals that would end it: SIGTERM is 15.
            mask.is_some_and(|m| m.is_ok_and(|m| m >> 14 & 1 != 0))
        })
    });
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_for("the end of the journal", || !Journal::path(&roots.run).exists());
    assert_as_it_was(&roots);
}

#[test]
fn with_the_guard_killed_too_the_journal_stays_for_the_next_start() {
    let (keep, roots) = host();
    let mut victim = start(keep.path());
    wait_until_changed(&mut victim);
    // Stopped, it cannot replace its guard.
    kill_process(pid(&victim), Signal::STOP).unwrap();
    kill_process(guard_of(victim.id()), Signal::KILL).unwrap();
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(Journal::path(&roots.run).exists());
    assert_ne!(fs::read_to_string(roots.lru_gen()).unwrap(), SETTINGS[0].1);
    assert!(restore_leftover(&roots).unwrap() > 0);
    assert_as_it_was(&roots);
}

#[test]
fn a_second_run_is_refused_while_the_first_lives() {
    let (keep, roots) = host();
    let mut victim = start(keep.path());
    wait_until_changed(&mut victim);
    let message = Session::open(&roots, None).unwrap_err().to_string();
    assert!(message.contains(&victim.id().to_string()), "{message}");
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_for("the end of the journal", || !Journal::path(&roots.run).exists());
    assert_as_it_was(&roots);
}

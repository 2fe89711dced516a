//! `terrace record`: where its parts are found, how a recording ends, and what is left when it
//! cannot be written. Needs qemu-x86_64 (package qemu-user); without it only rejections are tested.

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::{Place, Printed, TERRACE, tree};
use serde_json::Value;
use terrace_recordings::reference::{Ending, ReferenceReader};

/// Longest wait for an expected event.
const PATIENCE: Duration = Duration::from_secs(60);

/// The folder of the program and of the plug-in; nothing where QEMU is missing.
fn built() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            if Command::new("qemu-x86_64").arg("--version").output().is_err() {
                eprintln!("no qemu-x86_64: apt-get install qemu-user; nothing is recorded");
                return None;
            }
            Path::new(TERRACE).parent().map(Path::to_owned)
        })
        .as_deref()
}

/// A recording under way: of a shell script, whose first line of output has been read.
struct Running {
    child: Child,
}

impl Running {
    fn start(place: &Place, level: &str, script: &str) -> Self {
        let record = format!("record --out r.tref --format json --level {level}");
        let mut command = place.command(&record);
        let mut child = command
            .args(["--", "/bin/sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Running { child }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(sent.success());
    }

    fn end(self) -> (Printed, Value) {
        let printed = Printed::new("record", self.child.wait_with_output().unwrap());
        let json = printed.out.find("\n{").map_or(0, |at| at + 1);
        let json =
            serde_json::from_str(&printed.out[json..]).unwrap_or_else(|e| panic!("{e}: {printed}"));
        (printed, json)
    }
}

/// Whether the process of this number exists and is no zombie.
fn runs(id: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).is_ok_and(|s| !s.contains(") Z "))
}

/// How a recording ended; every record is read.
fn ending(place: &Place) -> Ending {
    assert_eq!(place.names(), ["r.tref"], "the recording has its name, and nothing else is left");
    let mut reader = ReferenceReader::open(&place.path("r.tref")).unwrap();
    assert_eq!(reader.truncation(), None);
    let references = reader.records().map(Result::unwrap).count();
    assert!(references > 1000, "{references}");
    reader.ending().cloned().expect("a recording says how it ended")
}

#[test]
fn an_interrupted_program_ends_as_it_wants_to_and_its_recording_is_whole() {
    if built().is_none() {
        return;
    }
    let place = Place::new();
    let script = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do :; done";
    let running = Running::start(&place, "l1", script);
    running.signal("INT");
    let (printed, json) = running.end();
    assert_eq!(printed.code, Some(130), "{printed}");
    assert!(printed.out.contains("interrupted"), "{printed}");
    assert_eq!((&json["exit_code"], &json["cut_off"]), (&5.into(), &false.into()), "{json}");
    assert_eq!(ending(&place), Ending { exit_code: Some(5), ..Ending::default() });
}

#[test]
fn a_program_that_a_signal_ends_leaves_a_recording_that_says_so() {
    if built().is_none() {
        return;
    }
    let place = Place::new();
    let running = Running::start(&place, "l1", "echo ready; while :; do :; done");
    running.signal("TERM");
    let (printed, json) = running.end();
    assert_eq!(printed.code, Some(143), "{printed}");
    assert_eq!((&json["signal"], &json["cut_off"]), (&15.into(), &true.into()), "{json}");
    let ending = ending(&place);
    assert_eq!(ending, Ending { signal: Some(15), killed: 1, ..Ending::default() });
    assert!(ending.is_cut_off());
}

#[test]
fn a_second_signal_stops_a_program_that_does_not_mind_and_all_its_processes() {
    if built().is_none() {
        return;
    }
    let place = Place::new();
    let script =
        "trap '' INT; (while :; do :; done) & echo $! > child; echo ready; while :; do :; done";
    let mut running = Running::start(&place, "l1", script);
    let started = Instant::now();
    while running.child.try_wait().unwrap().is_none() {
        running.signal("INT");
        std::thread::sleep(Duration::from_millis(50));
        assert!(started.elapsed() < PATIENCE, "the second signal does not stop it");
    }
    let child = std::fs::read_to_string(place.path("child")).unwrap();
    assert!(!runs(&child), "the child runs on");
    std::fs::remove_file(place.path("child")).unwrap();
    let (printed, json) = running.end();
    assert_eq!(printed.code, Some(130), "{printed}");
    assert_eq!((&json["stopped"], &json["cut_off"]), (&true.into(), &true.into()), "{json}");
    assert_eq!(
        ending(&place),
        Ending { signal: Some(9), killed: 2, stopped: true, ..Ending::default() }
    );
}

#[test]
fn a_full_disk_is_reported_and_leaves_nothing() {
    if built().is_none() {
        return;
    }
    let place = Place::new();
    let script = "echo $$ > id; echo ready; while :; do :; done";
    let running = Running::start(&place, "none", script);
    let id = std::fs::read_to_string(place.path("id")).unwrap();
    std::fs::remove_file(place.path("id")).unwrap();
    // From now on a file may have this many bytes.
    let limited = Command::new("prlimit")
        .args(["--fsize=1000", "--pid", &running.child.id().to_string()])
        .status()
        .unwrap();
    assert!(limited.success());
    let printed = Printed::new("record", running.child.wait_with_output().unwrap());
    printed.failed(1, &["cannot write recording 'r.tref'", "File too large", "give a path"]);
    assert!(!runs(&id), "the program runs on");
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn what_is_missing_is_reported_in_one_line() {
    let place = Place::new();
    let alone = place.path("alone/terrace");
    std::fs::create_dir(place.path("alone")).unwrap();
    std::fs::copy(TERRACE, &alone).unwrap();
    let run = |program: &Path, arguments: &[&str], path: &str| {
        let mut command = Command::new(program);
        command.arg("record").args(arguments).args(["--", "/bin/true"]);
        command.current_dir(place.path(".")).env("PATH", path);
        Printed::new("record", command.output().unwrap())
    };
    run(Path::new(TERRACE), &[], "/none").refused(&["'qemu-x86_64'", "apt-get install qemu-user"]);
    run(Path::new(TERRACE), &["--qemu", "/none"], "/bin").refused(&["'/none'"]);
    if built().is_some() {
        let path = "/usr/bin:/bin";
        run(&alone, &[], path).refused(&["libterrace_recorder_plugin.so", "'make build'"]);
        run(&alone, &["--plugin", "/none"], path).refused(&["plug-in '/none'", "give the path"]);
        // One in the folder above is anyone's.
        std::fs::write(place.path("libterrace_recorder_plugin.so"), "").unwrap();
        run(&alone, &[], path).refused(&["libterrace_recorder_plugin.so", "'make build'"]);
        std::fs::remove_file(place.path("libterrace_recorder_plugin.so")).unwrap();
    }
    assert_eq!(place.names(), ["alone/"]);
}

#[test]
fn what_make_installs_records() {
    let Some(folder) = built() else { return };
    let place = Place::new();
    // Cargo's output takes the place of the release build.
    std::os::unix::fs::symlink(folder, place.path("release")).unwrap();
    let root = place.path("root");
    let installed = Command::new("make")
        .arg("-C")
        .arg(tree(""))
        .args(["--silent", "install", "CARGO=true"])
        .arg(format!("DESTDIR={}", root.display()))
        .env("CARGO_TARGET_DIR", place.path("."))
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let output = Command::new(root.join("usr/local/bin/terrace"))
        .args(["record", "--out"])
        .arg(place.path("r.tref"))
        .args(["--", "/bin/true"])
        .output()
        .unwrap();
    Printed::new("record", output).good();
    assert!(ReferenceReader::open(&place.path("r.tref")).unwrap().references() > 0);
}

//! Real programs under QEMU. Needs qemu-x86_64 (package qemu-user) and gcc; without QEMU the
//! tests say so and pass.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use terrace_recorder::launch::default_filter;
use terrace_recorder::{Options, RecordError, Recorder, Signals, Summary};
use terrace_recordings::reference::{
    Event, Filter, Level, Placed, Record, ReferenceReader, RegionKind,
};

/// The plug-in, built as cargo builds this test; nothing where QEMU is missing.
fn plugin() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            if Command::new("qemu-x86_64").arg("--version").output().is_err() {
                eprintln!("no qemu-x86_64: apt-get install qemu-user; nothing is tested");
                return None;
            }
            let built = Command::new(env!("CARGO"))
                .args(["build", "--locked", "--package", "terrace-recorder-plugin"])
                .status()
                .unwrap();
            assert!(built.success());
            let test = std::env::current_exe().unwrap();
            let target = test.parent().unwrap().parent().unwrap().parent().unwrap();
            Some(target.join("debug/libterrace_recorder_plugin.so"))
        })
        .as_deref()
}

fn options(out: &Path, level: Level) -> Options {
    Options {
        out: out.to_owned(),
        filter: Filter { level, ..default_filter() },
        qemu: None,
        plugin: plugin().map(Path::to_owned),
        created_by: "test".to_owned(),
    }
}

fn record(out: &Path, level: Level, command: &[&str]) -> Result<Summary, RecordError> {
    let command: Vec<OsString> = command.iter().map(OsString::from).collect();
    Recorder::new(options(out, level)).run(&command, &Signals::none(), &mut |_| {})
}

fn records(file: &Path) -> Vec<Placed> {
    let mut reader = ReferenceReader::open(file).unwrap();
    assert!(reader.truncation().is_none());
    reader.records().map(Result::unwrap).collect()
}

fn compile(folder: &Path, flags: &[&str], source: &str) -> String {
    let (c, program) = (folder.join("p.c"), folder.join("p"));
    std::fs::write(&c, source).unwrap();
    let done = Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&c).args(flags).status();
    assert!(done.unwrap().success());
    program.display().to_string()
}

#[test]
fn loads_and_stores_are_counted_exactly() {
    if plugin().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // 300,000 loads, 100,000 stores, and the store of the return address that no one returns to;
    // Valgrind's lackey counts 300,000, 100,001 and 3,200,406 instructions for it, in gcc 12's
    // code at -O1.
    let program = compile(
        folder.path(),
        &["-nostdlib", "-static", "-fno-stack-protector"],
        r#"static volatile unsigned long a[1000];
        void _start(void) {
            for (int r = 0; r < 100; r++)
                for (int i = 0; i < 1000; i++)
                    a[i] = a[i] + a[(i * 7) % 1000] + a[(i * 3) % 1000];
            __asm__ volatile("mov $157,%eax; mov $0x54455252,%edi; mov $42,%esi; syscall");
            __asm__ volatile("mov $231,%eax; mov $7,%edi; syscall");
        }"#,
    );
    let out = folder.path().join("a");
    let summary = record(&out, Level::None, &[&program]).unwrap();
    assert_eq!(summary.status.code(), Some(7));
    assert_eq!(summary.counts.loads, 300_000);
    assert!((100_000..100_010).contains(&summary.counts.stores), "{:?}", summary.counts);
    let records = records(&out);
    let references = records.iter().filter(|r| matches!(r.record, Record::Reference(_))).count();
    assert_eq!(references as u64, summary.counts.loads + summary.counts.stores);
    assert_eq!(references as u64, summary.references);
    assert!(records.iter().any(|r| r.record == Record::Event(Event::Mark { mark: 42 })));
    // After the caches, one reference for each of the array's 125 lines, and a few more.
    let out = folder.path().join("b");
    let summary = record(&out, Level::Llc, &[&program]).unwrap();
    assert!((125..140).contains(&summary.references), "{summary:?}");
}

#[test]
fn the_same_program_gives_the_same_file() {
    if plugin().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let files = ["a", "b"].map(|name| folder.path().join(name));
    for file in &files {
        record(file, Level::L1, &["/bin/true"]).unwrap();
    }
    assert!(std::fs::read(&files[0]).unwrap() == std::fs::read(&files[1]).unwrap());
    let reader = ReferenceReader::open(&files[0]).unwrap();
    let kinds: Vec<_> = reader.maps()[0].regions.iter().map(|r| r.kind).collect();
    assert!(kinds.contains(&RegionKind::Stack) && kinds.contains(&RegionKind::File), "{kinds:?}");
    assert!(reader.maps().len() >= 2, "one at the start, one at the end");
}

#[test]
fn children_and_what_they_execute_are_recorded() {
    if plugin().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a");
    let script = folder.path().join("s");
    std::fs::write(&script, "#!/bin/sh\n/bin/true\n").unwrap();
    let run = format!(". {0}; /bin/sh {0}; exit 3", script.display());
    let summary = record(&out, Level::L1, &["/bin/sh", "-c", &run]).unwrap();
    assert_eq!(summary.status.code(), Some(3));
    let reader = ReferenceReader::open(&out).unwrap();
    let commands: Vec<_> = reader.processes().iter().map(|p| p.command.join(" ")).collect();
    assert_eq!(commands.iter().filter(|c| *c == "/bin/true").count(), 2, "{commands:?}");
    // The processes' creators know them by their system ids.
    let created: Vec<u64> = records(&out)
        .iter()
        .filter_map(|r| match r.record {
            Record::Event(Event::Created { system_id, .. }) => Some(system_id),
            _ => None,
        })
        .collect();
    assert!(created.len() >= 2);
    let known: Vec<u64> = reader.processes().iter().map(|p| p.system_id.into()).collect();
    assert!(created.iter().all(|id| known.contains(id)), "{created:?} {known:?}");
}

#[test]
fn threads_have_streams_and_a_killed_program_loses_nothing() {
    if plugin().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile(
        folder.path(),
        &["-pthread"],
        r#"#include <pthread.h>
        #include <signal.h>
        #include <stdlib.h>
        #include <unistd.h>
        static void *work(void *at) {
            volatile char *p = at;
            for (long i = 0; i < 64 * 1000; i += 64) p[i] = 1;
            return 0;
        }
        int main(void) {
            pthread_t t[3];
            char *p[3];
            for (int i = 0; i < 3; i++) {
                p[i] = malloc(64 * 1000);
                pthread_create(&t[i], 0, work, p[i]);
            }
            for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
            work(p[0] = malloc(64 * 1000));
            kill(getpid(), SIGKILL);
        }"#,
    );
    let out = folder.path().join("a");
    let summary = record(&out, Level::L1, &[&program]).unwrap();
    assert_eq!(summary.ending(), "was killed by signal 9");
    assert_eq!(summary.streams, 4);
    let records = records(&out);
    assert!(records.windows(2).all(|w| w[0].time <= w[1].time));
    let mut stores: BTreeMap<u32, usize> = BTreeMap::new();
    for placed in &records {
        if let Record::Reference(r) = placed.record
            && r.store
        {
            *stores.entry(placed.stream).or_default() += 1;
        }
    }
    // Each thread misses on each of its thousand lines, the killed one up to its last.
    assert_eq!(stores.len(), 4);
    assert!(stores.values().all(|count| *count >= 1000), "{stores:?}");
}

#[test]
fn what_cannot_be_recorded_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a");
    let error = record(&out, Level::Llc, &["no-such-program"]).unwrap_err().to_string();
    assert!(error.contains("cannot find program"), "{error}");
    let none = Options { qemu: Some("/none".into()), ..options(&out, Level::Llc) };
    let error = Recorder::new(none)
        .run(&["true".into()], &Signals::none(), &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(error.contains("apt-get install qemu-user"), "{error}");
    if plugin().is_some() {
        let full = Path::new("/dev/full/x");
        assert!(record(full, Level::Llc, &["true"]).is_err());
        // QEMU starts and fails.
        let bad = Options { plugin: Some("/etc/passwd".into()), ..options(&out, Level::Llc) };
        assert!(Recorder::new(bad).run(&["true".into()], &Signals::none(), &mut |_| {}).is_err());
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

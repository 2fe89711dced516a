//! Real programs under QEMU. Needs qemu-x86_64 (package qemu-user) and gcc; without QEMU the tests
//! print so and pass.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use terrace_recorder::{Options, RecordError, Recorder, Signals, Summary};
use terrace_recordings::reference::{Event, Level, Placed, Record, ReferenceReader, RegionKind};

mod common;
use common::{compile, options, plugin};

fn record(out: &Path, level: Level, command: &[&str]) -> Result<Summary, RecordError> {
    let command: Vec<OsString> = command.iter().map(OsString::from).collect();
    Recorder::new(options(out, level)).run(&command, &Signals::none(), &mut |_| {})
}

fn records(file: &Path) -> Vec<Placed> {
    let mut reader = ReferenceReader::open(file).unwrap();
    assert!(reader.truncation().is_none());
    reader.records().map(Result::unwrap).collect()
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
    // The creators of these processes know them by their system ids.
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
fn each_thread_counts_its_own_instructions() {
    if plugin().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Two instructions a turn: 2, 4 and 8 million in three threads at once, then 6 million in
    // the first one, which was alone before and is no longer.
    let program = compile(
        folder.path(),
        &["-pthread"],
        r#"#include <pthread.h>
        static void *work(void *turns) {
            long n = (long)turns;
            __asm__ volatile("1: dec %0\n jnz 1b" : "+r"(n));
            return 0;
        }
        int main(void) {
            pthread_t t[3];
            work((void *)2000000);
            for (long i = 0; i < 3; i++) pthread_create(&t[i], 0, work, (void *)(1000000L << i));
            for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
            work((void *)3000000);
        }"#,
    );
    let out = folder.path().join("a");
    let summary = record(&out, Level::Llc, &[&program]).unwrap();
    let mut last: BTreeMap<u32, u64> = BTreeMap::new();
    for placed in records(&out) {
        last.insert(placed.stream, placed.instructions);
    }
    // The thread's other work, such as the C library's start, is below 300,000 instructions.
    let millions: Vec<u64> = last.values().map(|n| n / 1_000_000).collect();
    let rest: Vec<u64> = last.values().map(|n| n % 1_000_000).collect();
    let sorted: BTreeSet<u64> = millions.iter().copied().collect();
    assert_eq!((millions[0], sorted), (10, BTreeSet::from([2, 4, 8, 10])), "{last:?}");
    assert!(rest.iter().all(|rest| *rest < 300_000), "{last:?}");
    assert_eq!(summary.instructions / 1_000_000, 24);
}

#[test]
fn lines_that_were_changed_are_written_back_once_and_others_are_not() {
    if plugin().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Stores to the first 4 MB, loads of the next 4, twice; then loads of 64 KB more evict the rest
    // from the 32 KB and 64 KB.
    let program = compile(
        folder.path(),
        &["-nostdlib", "-static", "-fno-stack-protector"],
        r#"static char a[(8 << 20) + (64 << 10)] __attribute__((aligned(4096)));
        void _start(void) {
            volatile char *p = a;
            __asm__ volatile("mov $157,%eax; mov $0x54455252,%edi; mov $1,%esi; syscall");
            for (int turn = 0; turn < 2; turn++) {
                for (long i = 0; i < 4 << 20; i += 64) p[i] = 1;
                for (long i = 4 << 20; i < 8 << 20; i += 64) (void)p[i];
            }
            for (long i = 8 << 20; i < (8 << 20) + (64 << 10); i += 64) (void)p[i];
            __asm__ volatile("mov $231,%eax; mov $0,%edi; syscall");
        }"#,
    );
    for (level, sizes) in
        [(Level::L1, [32, 64, 128]), (Level::L2, [16, 32, 128]), (Level::Llc, [8, 16, 64])]
    {
        let out = folder.path().join(level.name());
        let mut options = options(&out, level);
        let filter = &mut options.filter;
        for (shape, kib) in [&mut filter.l1, &mut filter.l2, &mut filter.llc].into_iter().zip(sizes)
        {
            (shape.size_bytes, shape.ways) = (kib << 10, 8);
        }
        let recorder = Recorder::new(options);
        recorder.run(&[program.clone().into()], &Signals::none(), &mut |_| {}).unwrap();
        let (mut stores, mut loads, mut written) = (0, 0, BTreeMap::<u64, u32>::new());
        let records = records(&out);
        let main =
            records.iter().skip_while(|r| !matches!(r.record, Record::Event(Event::Mark { .. })));
        for placed in main {
            match placed.record {
                Record::Reference(r) if r.store => stores += 1,
                Record::Reference(_) => loads += 1,
                Record::WriteBack(w) => *written.entry(w.address).or_default() += 1,
                Record::Event(_) => {}
            }
        }
        assert_eq!((stores, loads), (2 * 65536, 2 * 65536 + 1024), "{level:?}");
        // Every line of the first 4 MB twice; lines of the stack and of the start at most a few
        // times.
        let twice = written.values().filter(|times| **times == 2).count();
        assert!((65530..=65540).contains(&twice), "{level:?}: {twice}");
        assert!(written.len() < 65536 + 10, "{level:?}: {}", written.len());
        assert!(written.keys().all(|address| address % 64 == 0));
    }
}

#[test]
fn a_sample_stands_for_the_whole() {
    if plugin().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let command = ["/usr/bin/env", "sh", "-c", "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done"];
    let mut counts = [0; 2];
    for (count, sample_one_in) in counts.iter_mut().zip([1, 50]) {
        let mut options = options(&folder.path().join(sample_one_in.to_string()), Level::None);
        options.filter.sample_one_in = sample_one_in;
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        let summary = Recorder::new(options).run(&command, &Signals::none(), &mut |_| {}).unwrap();
        *count = summary.references;
        assert!(summary.counts.loads + summary.counts.stores > 500_000);
    }
    let times = counts[0] as f64 / counts[1] as f64;
    assert!((48.0..52.0).contains(&times), "{counts:?}");
}

#[test]
fn each_stream_samples_its_own_positions_and_the_same_ones_again() {
    if plugin().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sampled = |name: &str, program: &str| {
        let out = folder.path().join(name);
        let mut options = options(&out, Level::None);
        options.filter.sample_one_in = 1000;
        Recorder::new(options).run(&[program.into()], &Signals::none(), &mut |_| {}).unwrap();
        out
    };
    let [one, other] = ["one", "other"].map(|name| sampled(name, "/bin/true"));
    assert!(std::fs::read(one).unwrap() == std::fs::read(other).unwrap());
    // Eight threads and eight processes that do the same, one after the other.
    let program = compile(
        folder.path(),
        &["-pthread"],
        r#"#include <pthread.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static volatile char a[64];
        static void *work(void *unused) {
            for (int i = 0; i < 20000; i++) a[i % 64] = 1;
            return unused;
        }
        int main(void) {
            for (int i = 0; i < 8; i++) {
                pthread_t t;
                pthread_create(&t, 0, work, 0);
                pthread_join(t, 0);
            }
            for (int i = 0; i < 8; i++) {
                if (fork() == 0) { work(0); _exit(0); }
                wait(0);
            }
            return 0;
        }"#,
    );
    let mut first = BTreeMap::new();
    for placed in records(&sampled("several", &program)) {
        if matches!(placed.record, Record::Reference(_)) {
            first.entry(placed.stream).or_insert(placed.instructions);
        }
    }
    assert!(first.len() >= 17, "{first:?}");
    let different: BTreeSet<u64> = first.values().copied().collect();
    assert!(different.len() > 14, "{first:?}");
}

#[test]
fn python_is_recorded_with_its_threads_and_signals() {
    if plugin().is_none() || Command::new("python3").arg("--version").output().is_err() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a");
    let script = "import os, signal, threading\n\
        got = []\n\
        signal.signal(signal.SIGUSR1, lambda *a: got.append(1))\n\
        t = threading.Thread(target=lambda: sum(range(100000)))\n\
        t.start(); os.kill(os.getpid(), signal.SIGUSR1); t.join()\n\
        raise SystemExit(7 if got else 1)";
    let summary = record(&out, Level::L2, &["python3", "-c", script]).unwrap();
    assert_eq!(summary.status.code(), Some(7));
    assert!(summary.streams >= 2 && !summary.ending.is_cut_off(), "{summary:?}");
    let returned =
        records(&out).iter().filter(|r| r.record == Record::Event(Event::SignalReturn)).count();
    assert!(returned >= 1);
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

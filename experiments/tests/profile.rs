//! One pass for a profile: what all runs share must not change the file.

use std::path::Path;

use terrace_experiments::Experiment;
use terrace_experiments::profile::{Passes, Profiled, profile, profile_in};
use terrace_experiments::run::Quiet;
use terrace_recordings::reference::{
    CacheShape, Event, Filter, Header, Level, Process, Reference, ReferenceBuilder,
};
use terrace_simulated::hardware::random::Random;

/// A workload on a machine with small caches.
fn experiment(workload: &str, page_size: &str, more: &str) -> Experiment {
    let text = format!(
        r#"
        name = "small"
        period_ms = 1
        periods = 100000
        [machine]
        fidelity = "trace"
        fast = "16M"
        slow = "16M"
        [machine.hardware]
        preset = "server-ddr5-cxl"
        node.cores = 4
        node.caches.l2 = {{ size = "32K", ways = 8, line_bytes = 64, latency_cycles = 15 }}
        node.caches.llc = {{ size = "128K", ways = 16, line_bytes = 64, latency_cycles = 70 }}
        [[groups]]
        name = "g"
        fast_ratio = 0.5
        page_size = "{page_size}"
        {more}
        [groups.workload]
        {workload}
        "#
    );
    Experiment::parse(&text, ".".into()).unwrap()
}

/// A recording of so many threads that read and write all over 4 MB, of which a part is unmapped and
/// mapped again on the way.
fn record(path: &Path, threads: u64) {
    const START: u64 = 1 << 32;
    const BYTES: u64 = 4 << 20;
    let shape = CacheShape { size_bytes: 32 << 10, ways: 8 };
    let filter = Filter {
        level: Level::None,
        line_bytes: 64,
        l1: shape,
        l2: shape,
        llc: shape,
        sample_one_in: 1,
    };
    let header = Header {
        command: vec!["made-up".to_owned()],
        filter,
        base_page_bytes: 4096,
        huge_page_bytes: 2 << 20,
        write_backs: false,
        created_by: "test".to_owned(),
        executed_by: "test".to_owned(),
    };
    let map = |address, length_bytes| Event::Map {
        address,
        length_bytes,
        protection: 3,
        flags: 0x22, // MAP_PRIVATE | MAP_ANONYMOUS
    };
    let file = std::fs::File::create(path).unwrap();
    let mut builder = ReferenceBuilder::new(file, "made-up", &header).unwrap();
    builder.process(&Process { process: 0, system_id: 0, command: header.command }).unwrap();
    builder.event(0, 0, 0, map(START, BYTES)).unwrap();
    let mut random = Random::new(7);
    for n in 0..60_000 {
        if n == 40_000 {
            let (address, length_bytes) = (START, BYTES / 2);
            builder.event(0, 0, n * 3, Event::Unmap { address, length_bytes }).unwrap();
            builder.event(0, 0, n * 3, map(address, length_bytes)).unwrap();
        }
        let address = START + random.below(BYTES / 8) * 8;
        let reference = Reference { address, size_log2: 3, store: n % 4 == 0 };
        builder.reference((n % threads) as u32, 0, n * 3 + 3, reference).unwrap();
    }
    builder.finish(false).unwrap();
}

fn bytes(passes: Passes, experiment: &Experiment, folder: &Path) -> (Profiled, Vec<u8>) {
    let path = folder.join(format!("{passes:?}.tprof"));
    let profiled = profile_in(passes, experiment, &path, 5000, &mut Quiet).unwrap();
    (profiled, std::fs::read(path).unwrap())
}

#[test]
fn one_pass_gives_the_bytes_of_seven() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = [1, 2].map(|threads| {
        let path = folder.path().join(format!("made-up-{threads}.tref"));
        record(&path, threads);
        format!("kind = \"recording\"\npath = \"{}\"", path.display())
    });
    let program = "kind = \"program\"\nname = \"stream\"\nfootprint_mib = 2\nthreads = 3\n\
                   options = { iterations = 1 }";
    let cases = [
        experiment(&one, "4K", "sparse = { pte = 8, pmd = 8 }"),
        experiment(&one, "2M", "start_ms = 1"),
        experiment(&two, "4K", "sparse = { pte = 8, pmd = 8 }"),
        experiment(&two, "2M", ""),
        experiment(program, "4K", ""),
    ];
    for (number, experiment) in cases.iter().enumerate() {
        let (apart, expected) = bytes(Passes::Apart, experiment, folder.path());
        let (together, got) = bytes(Passes::One, experiment, folder.path());
        assert_eq!(together, apart, "case {number}");
        assert!(together.intervals > 3, "case {number}: {together:?}");
        assert!(got == expected, "case {number}: {} and {} bytes", got.len(), expected.len());
    }
}

#[test]
fn a_profile_that_cannot_be_made_ends_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let text = "kind = \"recording\"\npath = \"missing.tref\"";
    let experiment = experiment(text, "4K", "");
    let out = folder.path().join("p.tprof");
    let error = profile(&experiment, &out, 5000, &mut Quiet).unwrap_err();
    assert!(format!("{error:#}").contains("missing.tref"), "{error:#}");
    assert!(!out.exists());
}

//! Guests whose clock knows the memory, measured from inside by their own clocks. These need QEMU,
//! gcc and, the first time, Debian's package archive.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use terrace_hardware::units::Bytes;
use terrace_lab::{Accel, ClockFigures, GuestJob, Lab, LabConfig, Machine, Program};
use terrace_timed::config::{TierSpeed, TimedConfig};

const MIB: u64 = 1 << 20;
const TIERS: [TierSpeed; 2] =
    [TierSpeed { latency_ns: 80.0, gb_per_s: 4.0 }, TierSpeed { latency_ns: 300.0, gb_per_s: 1.5 }];

/// The program that measures, and the plug-in, built once.
fn memory_speed() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = BUILT.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--package", "terrace-recorder-plugin"])
            .status();
        assert!(built.expect("cargo").success());
        let folder = tempfile::tempdir().expect("a directory");
        let program = folder.path().join("memory-speed");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memory_speed.c");
        let gcc =
            Command::new("gcc").args(["-O2", "-static", "-o"]).args([&program, &source]).status();
        assert!(gcc.expect("gcc; apt-get install gcc libc6-dev").success());
        (folder, program)
    });
    program
}

fn machine(cpus: u32) -> Machine {
    Machine {
        cpus,
        fast_bytes: 512 * MIB,
        slow_bytes: 256 * MIB,
        fast_latency_ns: 80,
        slow_latency_ns: 300,
        accel: Accel::Tcg,
        memory_clock: Some(Box::new(TimedConfig::with_tiers(&TIERS).expect("tiers"))),
        boot_timeout: Duration::from_secs(300),
        timeout: Duration::from_secs(1500),
        ..Machine::default()
    }
}

/// What the lines of a guest that ran this script say, by their first word, and its clock's figures.
fn measure(machine: Machine, script: &str) -> (Vec<(String, f64)>, ClockFigures) {
    let job = GuestJob::shell(script).program(Program::host(memory_speed()));
    let lab = Lab::new(LabConfig { machine, cache_dir: None }).expect("the lab");
    let result = lab.run(&job, |_| {});
    let result = result.unwrap_or_else(|e| panic!("{e}\n{}", e.console_tail().join("\n")));
    let text = result.stdout_text();
    let errors = String::from_utf8_lossy(&result.stderr);
    assert_eq!(result.exit_code, 0, "{text}{errors}");
    let lines = text.lines().filter_map(|line| {
        let (word, number) = line.split_once(' ')?;
        Some((word.to_owned(), number.parse().ok()?))
    });
    let lines = lines.collect();
    println!("{text}");
    let figures = result.clock.expect("figures");
    println!("{}", figures.line());
    (lines, figures)
}

fn of<'a>(lines: &'a [(String, f64)], word: &'a str) -> Vec<f64> {
    lines.iter().filter(|(w, _)| w == word).map(|(_, n)| *n).collect()
}

#[track_caller]
fn near(what: &str, got: f64, expected: f64, share: f64) {
    assert!((got / expected - 1.0).abs() < share, "{what}: {got}, expected {expected}");
}

#[test]
fn from_inside_each_node_has_the_latency_and_bandwidth_that_were_asked_for() {
    let script = "
        memory-speed chase 0 64 60000 && memory-speed chase 1 64 60000 &&
        memory-speed stream 0 64 400000 && memory-speed stream 1 64 400000 &&
        memory-speed sleep - - 200000 && memory-speed compute - - 3000000";
    let (lines, figures) = measure(machine(1), script);
    assert!(figures.complete);
    let (chase, stream) = (of(&lines, "chase"), of(&lines, "stream"));
    for (tier, speed) in TIERS.iter().enumerate() {
        near("latency in ns", chase[tier], speed.latency_ns, 0.03);
        near("bandwidth in GB/s", stream[tier], speed.gb_per_s, 0.05);
        assert!(figures.total.tiers[tier].reads > 400_000, "{figures:?}");
    }
    near("a sleep in us", of(&lines, "sleep")[0], 200_000.0, 0.02);
    // Two instructions a cycle at 3 GHz.
    near("time of an instruction in ns", of(&lines, "compute")[0], 1.0 / 6.0, 0.03);
}

#[test]
fn two_processors_take_as_long_as_one_in_a_guest() {
    let script = "
        memory-speed chase 1 64 60000 1 && memory-speed chase 1 64 60000 2 &&
        memory-speed compute - - 400000000 1 && memory-speed compute - - 400000000 2";
    // They share the tier's bandwidth and the last level, so there is plenty of one and so little of
    // the other that neither misses it: with 30 MiB of it, two take 12 % longer to lay out 64 MiB
    // each in random order, for half of what one finds there alone is the other's.
    let wide = TIERS.map(|tier| TierSpeed { gb_per_s: 200.0, ..tier });
    let mut config = TimedConfig::with_tiers(&wide).expect("tiers");
    config.hardware.node.caches.llc.size = Bytes::mib(1);
    config.hardware.node.caches.llc.ways = 16;
    config.hardware.node.caches.l2 = None;
    let (lines, _) =
        measure(Machine { memory_clock: Some(Box::new(config)), ..machine(2) }, script);
    for chase in of(&lines, "chase") {
        near("latency in ns", chase, 300.0, 0.03);
    }
    let elapsed = of(&lines, "elapsed_us");
    near("two that chase, in us", elapsed[1], elapsed[0], 0.05);
    near("two that compute, in us", elapsed[3], elapsed[2], 0.05);
}

#[test]
fn the_same_guest_twice_has_the_same_figures_to_the_digit() {
    // Starting programs, files, a pipe, sleeping, memory of both nodes.
    let script = "
        count-period; memory-speed chase 1 8 20000 && memory-speed stream 0 8 20000 | cat > /tmp/speed
        count-period; memory-speed sleep - - 2000 && ls -l / > /dev/null; count-period";
    let [(first, one), (second, two)] = [0, 1].map(|_| measure(machine(1), script));
    assert_eq!(first, second);
    for (window, (one, two)) in one.periods.iter().zip(&two.periods).enumerate() {
        assert_eq!(one, two, "window {window}");
    }
    assert_eq!(one.total, two.total);
    // What the kernel does for these, and nothing that is left of its start.
    let of_kernel = one.periods[1].instructions[1];
    assert!((2_000_000..12_000_000).contains(&of_kernel), "{of_kernel} instructions of the kernel");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let with = |change: &dyn Fn(&mut TimedConfig)| {
        let mut config = TimedConfig::with_tiers(&TIERS).expect("tiers");
        change(&mut config);
        let machine = Machine { memory_clock: Some(Box::new(config)), ..machine(1) };
        Lab::new(LabConfig { machine, cache_dir: None }).expect_err("refused").to_string()
    };
    let caches = with(&|c| c.hardware.node.caches.l2.as_mut().expect("a second level").ways = 0);
    assert!(caches.contains("ways") && caches.lines().count() == 1, "{caches}");
    let quantum = with(&|c| c.quantum_ns = 0);
    assert!(quantum.contains("quantum"), "{quantum}");
    let kvm = Machine { accel: Accel::Kvm, ..machine(1) };
    let kvm = Lab::new(LabConfig { machine: kvm, cache_dir: None }).expect_err("refused");
    assert!(kvm.to_string().contains("KVM"), "{kvm}");
}

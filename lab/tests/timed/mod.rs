//! Guests with the memory clock, and what is measured in them from inside.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use terrace_lab::{Accel, ClockFigures, GuestJob, GuestMachine, Kernel, Lab, LabConfig, Program};
use terrace_timed::config::{TierSpeed, TimedConfig};
use terrace_timed::figures::Figures;

pub const MIB: u64 = 1 << 20;
pub const TIERS: [TierSpeed; 2] =
    [TierSpeed { latency_ns: 80.0, gb_per_s: 4.0 }, TierSpeed { latency_ns: 300.0, gb_per_s: 1.5 }];

/// The measuring program, built once.
pub fn memory_speed() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = BUILT.get_or_init(|| {
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

pub fn machine(cpus: u32) -> GuestMachine {
    GuestMachine {
        cpus,
        fast_bytes: 512 * MIB,
        slow_bytes: 256 * MIB,
        fast_latency_ns: 80,
        slow_latency_ns: 300,
        accel: Accel::Tcg,
        memory_clock: Some(Box::new(TimedConfig::with_tiers(&TIERS).expect("tiers"))),
        boot_timeout: Duration::from_secs(300),
        timeout: Duration::from_secs(1500),
        ..GuestMachine::default()
    }
}

/// A script for a guest, and its machine.
pub struct Job<'a> {
    pub script: String,
    pub program: &'a Path,
}

/// Figures in the lines of a guest that ran this script, by their first word, and its clock's
/// figures.
pub fn measure(machine: GuestMachine, script: &str) -> (Vec<(String, f64)>, ClockFigures) {
    measure_of(machine, &Job { script: script.to_owned(), program: memory_speed() })
}

pub fn measure_of(machine: GuestMachine, job: &Job<'_>) -> (Vec<(String, f64)>, ClockFigures) {
    let job = GuestJob::shell(&job.script).program(Program::host(job.program));
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

/// The kernel's time for this cause in a window, in ns.
pub fn of_cause(figures: &Figures, cause: &str) -> f64 {
    figures.kernel.iter().filter(|c| c.cause == cause).map(|c| c.busy_ns).sum()
}

/// What the kernel does for page faults, system calls and page migration is booked under each.
pub fn assert_causes_of_the_kernels_time(kernel: Kernel) {
    let script = "memory-speed faults - 64 0 && memory-speed calls - - 200000 &&
        memory-speed moves - 32 0";
    let (_, figures) = measure(GuestMachine { kernel: kernel.clone(), ..machine(1) }, script);
    for (window, cause) in [(1, "page faults"), (3, "system calls"), (5, "page migration")] {
        let window = &figures.periods[window];
        let (most, all) = (of_cause(window, cause), window.busy_ns[1] as f64);
        println!("{kernel:?}: {cause} {:.2} % of {:.3} ms", 100.0 * most / all, all / 1e6);
        assert!(all > 1e6 && most > 0.9 * all, "{kernel:?}, {cause}: {window:?}");
        let sum: f64 = window.kernel.iter().map(|cause| cause.busy_ns).sum();
        assert!((sum - all).abs() < 2.0, "{sum} of {all}");
    }
    // What there is without them: timer interrupts, and programs that begin and end.
    let names = figures.total.kernel.iter().map(|cause| cause.cause.as_str());
    let names: Vec<_> = names.collect();
    assert!(names.contains(&"timer interrupts") && !names.contains(&"unknown"), "{names:?}");
}

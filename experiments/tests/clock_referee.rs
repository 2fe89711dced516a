//! A virtual machine with the memory clock compared with trace-driven simulation: the cost to
//! programs of half of memory in the slow tier. Needs QEMU, gcc and, the first time, Debian's
//! package archive.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value};
use terrace_core::page::PageSize;
use terrace_core::policy::Allocation;
use terrace_lab::{Accel, GuestJob, GuestMachine, Lab, LabConfig, Program};
use terrace_simulated::hardware::presets::{self, MachineConfig};
use terrace_simulated::reference::{
    Counts, Options, ReferenceConfig, ReferenceGroup, ReferenceMachine, program,
};
use terrace_timed::config::TimedConfig;
use terrace_timed::figures::Figures;
use terrace_workloads::programs::memory::{Edge, phase};
use terrace_workloads::programs::sink::{Mark, Reference, Sink};
use terrace_workloads::programs::{self, Params};

const MIB: u64 = 1 << 20;
const HARDWARE: &str = "granularity-amd-a10-6800k";

/// Programs with enough work that the ends of a window do not matter, and little enough for an
/// emulator.
const PROGRAMS: [(&str, &str); 12] = [
    ("gups", "updates_per_word=2"),
    ("bfs", "searches=2"),
    ("pagerank", "iterations=2"),
    ("stream", "iterations=4"),
    ("is", "iterations=2"),
    ("hashjoin", ""),
    ("kv", ""),
    ("xsbench", ""),
    ("mg", "iterations=1"),
    ("canneal", "temperatures=2"),
    ("lbm", "iterations=2"),
    ("cg", "inner_iterations=5"),
];
const FOOTPRINT_MIB: u64 = 16;
/// Those that take the least time; `TERRACE_REFEREE` selects others, by name, or 'all'.
const USUAL: &str = "gups,pagerank,stream,kv,xsbench,lbm";

/// Runs a command with its pages interleaved over the nodes.
const PLACED: &str = r#"
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    unsigned long nodes = strtoul(argv[1], 0, 0);
    if (argc < 3 || syscall(SYS_set_mempolicy, 3 /* interleave */, &nodes, 64)) return 99;
    execvp(argv[2], argv + 2);
    return 98;
}
"#;

fn params(options: &str) -> Params {
    let options: Map<String, Value> = options
        .split_whitespace()
        .filter_map(|option| option.split_once('='))
        .map(|(key, value)| (key.to_owned(), serde_json::from_str(value).expect("a number")))
        .collect();
    Params {
        footprint_bytes: FOOTPRINT_MIB * MIB,
        seed: 1,
        threads: 1,
        options: Value::Object(options),
    }
}

/// References before the main phase, and in it.
#[derive(Default)]
struct Phases {
    now: u64,
    main: Option<(u64, u64)>,
}

impl Sink for Phases {
    fn reference(&mut self, _reference: &Reference) -> ControlFlow<()> {
        self.now += 1;
        ControlFlow::Continue(())
    }

    fn mark(&mut self, mark: &Mark) {
        match (mark.phase, mark.edge) {
            (phase::MAIN, Edge::Begin) => self.main = Some((self.now, 0)),
            (phase::MAIN, Edge::End) => {
                if let Some((before, within)) = &mut self.main {
                    *within = self.now - *before;
                }
            }
            _ => {}
        }
    }
}

/// Time and counts of the main phase of a program at trace fidelity.
fn simulated(hardware: &MachineConfig, name: &str, options: &str, fast: f64) -> (f64, Counts) {
    let params = params(options);
    let mut phases = Phases::default();
    programs::trace(name, &params, &mut phases).expect(name).expect("it is not stopped");
    let (before, within) = phases.main.expect("a main phase");
    let config = ReferenceConfig {
        hardware: hardware.clone(),
        os: terrace_simulated::os::OsConfig::default(),
        period_ns: 1_000_000_000,
        reads_per_sample: 0,
        sample_seed: 1,
        options: Options::default(),
    };
    let machine = ReferenceMachine::new(config).expect("a machine");
    let group = ReferenceGroup {
        name: name.to_owned(),
        page_size: PageSize::Base,
        allocation: if fast < 1.0 { Allocation::Interleave } else { Allocation::FastFirst },
        needs_frames: false,
        tables: terrace_simulated::os::TablePolicy::default(),
        fast_budget: Box::new(move |layout| (layout.pages() as f64 * fast) as u64),
        start_ns: 0,
        stop_ns: None,
        stop_after_start_up_of: None,
    };
    let source = Box::new(program(name, &params, false).expect(name));
    let _interfaces = machine.add_group(group, source).expect("a group");
    machine.run_references(0, before, false).expect(name);
    let counted = machine.counts(0);
    let work = machine.run_references(0, within, false).expect(name);
    (work.took.as_ns(), machine.counts(0) - counted)
}

/// The program that marks its phases, and the one that places pages. Workloads are built with all
/// optimisation for tests too (`Cargo.toml`): their speed is compared.
fn built() -> (PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a directory");
    let (source, placed) = (folder.path().join("placed.c"), folder.path().join("placed"));
    std::fs::write(&source, PLACED).expect("a source");
    let gcc = Command::new("gcc").args(["-O2", "-static", "-o"]).args([&placed, &source]).status();
    assert!(gcc.expect("gcc; apt-get install gcc libc6-dev").success());
    let target = std::env::current_exe().expect("this program");
    let target = target.ancestors().find(|path| path.ends_with("debug")).expect("target/debug");
    let program = target.join("examples/marked-program");
    assert!(
        program.is_file(),
        "no {}: cargo build --workspace; cargo build -p terrace-recorder --examples",
        program.display()
    );
    (program, folder)
}

/// The clock's figures for each program's main phase: all fast, half slow.
fn in_guest(programs: &[(&str, &str)], program: &Path, placed: &Path) -> Vec<[Figures; 2]> {
    let mut script = "set -e\necho never > /sys/kernel/mm/transparent_hugepage/enabled
        echo 0 > /proc/sys/kernel/numa_balancing\n"
        .to_owned();
    for (name, options) in programs {
        for nodes in [1, 3] {
            script += &format!("placed {nodes} marked-program {name} {FOOTPRINT_MIB} {options}\n");
        }
    }
    let mut config = TimedConfig::of(presets::by_name(HARDWARE).expect("a preset"));
    config.follow_loads = false;
    let machine = GuestMachine {
        cpus: 1,
        fast_bytes: 512 * MIB,
        slow_bytes: 256 * MIB,
        accel: Accel::Tcg,
        memory_clock: Some(Box::new(config)),
        boot_timeout: Duration::from_secs(300),
        timeout: Duration::from_secs(3000),
        ..GuestMachine::default()
    };
    let job =
        GuestJob::shell(&script).program(Program::host(program)).program(Program::host(placed));
    let lab = Lab::new(LabConfig { machine, cache_dir: None }).expect("the lab");
    let result = lab.run(&job, |_| {}).unwrap_or_else(|e| panic!("{e}"));
    let text = result.stdout_text();
    let errors = String::from_utf8_lossy(&result.stderr);
    assert_eq!(result.exit_code, 0, "{text}{errors}");
    println!("{text}");
    let clock = result.clock.expect("figures");
    assert_eq!(clock.periods.len(), 4 * programs.len() + 1, "windows");
    let of = |at: usize| clock.periods[at].clone();
    (0..programs.len()).map(|n| [of(4 * n + 1), of(4 * n + 3)]).collect()
}

/// A row of the table: times in ms, other values in both sides' units. Those of the guest are of
/// all that its processor did, with the kernel's share after them.
fn row(name: &str, which: &str, guest: &Figures, (sim_ns, sim): &(f64, Counts)) -> String {
    let guest_ms = |ns: f64| ns / 1e6;
    let sim_ms = |ps: u64| ps as f64 / 1e9;
    let guest_stalls = [
        guest.compute_ns,
        guest.walk_stall_ns,
        guest.cache_stall_ns.iter().sum(),
        guest.tiers[0].stall_ns,
        guest.tiers[1].stall_ns,
        guest.store_stall_ns,
    ];
    let sim_stalls = [
        sim.compute_ps,
        sim.walk_stall_ps,
        sim.cache_stall_ps,
        sim.memory_stall_ps[0],
        sim.memory_stall_ps[1],
        sim.store_stall_ps,
    ];
    let stalls = guest_stalls.map(guest_ms).into_iter().zip(sim_stalls.map(sim_ms));
    let stalls: Vec<String> = stalls.map(|(g, s)| format!("{g:.2}/{s:.2}")).collect();
    format!(
        "| {name} | {which} | {:.2}/{:.2} | {:.2}/{:.2} | {} | {:.2}/{:.2} |",
        guest_ms(guest.time_ns as f64),
        sim_ns / 1e6,
        guest.instructions[0] as f64 / 1e6,
        sim.instructions as f64 / 1e6,
        stalls.join(" | "),
        guest_ms(guest.busy_ns[1] as f64),
        sim_ms(sim.fault_ps),
    )
}

#[test]
fn half_of_memory_slow_costs_programs_what_it_costs_in_trace_driven_simulation() {
    let chosen = std::env::var("TERRACE_REFEREE").unwrap_or_else(|_| USUAL.to_owned());
    let programs: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|(name, _)| chosen == "all" || chosen.split(',').any(|n| n == *name))
        .collect();
    assert!(!programs.is_empty(), "TERRACE_REFEREE={chosen}: expected 'all' or names of programs");
    let (program, folder) = built();
    let guest = in_guest(&programs, &program, &folder.path().join("placed"));
    let hardware = presets::by_name(HARDWARE).expect("a preset");
    println!("guest/simulated; ms, millions of instructions");
    println!(
        "| program | memory | time | instructions | compute | walks | caches | fast | slow | stores \
         | kernel |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut slowdowns = Vec::new();
    for ((name, options), guest) in programs.iter().zip(&guest) {
        let sim = [1.0, 0.5].map(|fast| simulated(&hardware, name, options, fast));
        for ((which, guest), sim) in ["fast", "half slow"].iter().zip(guest).zip(&sim) {
            println!("{}", row(name, which, guest, sim));
        }
        let slowdown = guest[1].time_ns as f64 / guest[0].time_ns as f64;
        slowdowns.push((name, slowdown, sim[1].0 / sim[0].0));
    }
    println!("| program | slowdown in the guest | simulated | off by |");
    println!("|---|---|---|---|");
    let mut errors = Vec::new();
    for (name, slowdown, expected) in &slowdowns {
        let error = slowdown / expected - 1.0;
        println!("| {name} | {slowdown:.3} | {expected:.3} | {:+.1} % |", 100.0 * error);
        errors.push(error.abs());
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let worst = errors.iter().copied().fold(0.0, f64::max);
    println!("mean {:.1} %, worst {:.1} %", 100.0 * mean, 100.0 * worst);
    assert!(mean < 0.05, "slowdowns are off by {mean:.3} in the mean, expected 0.05");
    assert!(worst < 0.10, "a slowdown is off by {worst:.3}, expected 0.10");
}

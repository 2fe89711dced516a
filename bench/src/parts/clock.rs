//! The speed of a virtual machine whose clock follows the memory, in processor time of its host.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use terrace_lab::{Accel, GuestJob, GuestMachine, Lab, LabConfig, Program};
use terrace_timed::config::TimedConfig;
use terrace_timed::figures::Figures;

use super::Part;
use super::record::cpu_time_s;
use crate::measure::Report;

/// This part's row.
pub const PART: Part = Part {
    name: "clock",
    measures: "a virtual machine whose clock knows the memory: instructions a second of its host",
    run,
};

const MIB: u64 = 1 << 20;

/// Loads that hit the first level, or random updates over memory.
const SOURCE: &str = r#"#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int main(int argc, char **argv) {
    uint64_t times = strtoull(argv[2], 0, 0), bytes = 256ul << 20, sum = 0, state = 88172645463325252ull;
    if (!strcmp(argv[1], "hits")) {
        static volatile uint64_t few[2048];
        for (uint64_t i = 0; i < times; i++) sum += few[i % 2048];
    } else {
        volatile uint64_t *all = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED) return 2;
        for (uint64_t at = 0; at < bytes / 8; at += 512) all[at] = 1;
        if (system("count-period")) return 3;
        for (uint64_t i = 0; i < times; i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            all[state % (bytes / 8)] ^= state;
        }
    }
    if (system("count-period")) return 3;
    return sum == 42;
}
"#;

/// Enough for seconds of a host.
const HITS: u64 = 60_000_000;
const UPDATES: u64 = 8_000_000;
const PLAIN_HITS: u64 = 300_000_000;

fn run(report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (source, program) = (folder.path().join("speed.c"), folder.path().join("speed"));
    std::fs::write(&source, SOURCE)?;
    let gcc = Command::new("gcc").args(["-O2", "-static", "-o"]).args([&program, &source]).status();
    ensure!(gcc.context("gcc; apt-get install gcc libc6-dev")?.success(), "gcc failed");

    let timed = terrace_hardware::presets::by_name(terrace_timed::config::DEFAULT_PRESET)?;
    let timed = GuestMachine { memory_clock: Some(Box::new(TimedConfig::of(timed))), ..machine() };
    let script = format!("count-period; speed hits {HITS}; speed updates {UPDATES}");
    let job = |script: &str| GuestJob::shell(script).program(Program::host(&program));
    let result = run_guest(timed, &job(&script))?;
    let clock = result.clock.context("a clock without figures")?;
    // Preparation, hits, filling memory, updates, end.
    ensure!(clock.periods.len() == 5, "{} windows, expected 5", clock.periods.len());
    let speed = |window: usize| minstr_per_s(&clock.periods[window], clock.host_cpu_ns[window]);
    let conditions = "caches, TLBs, walker, two tiers of server-ddr5-cxl, QEMU's processor time";
    let hits = format!("{HITS} loads that hit; {conditions}");
    report.add("clock.minstr_per_s", speed(1), "10^6/s", &hits)?;
    let updates = format!("{UPDATES} random updates over 256 MiB; {conditions}");
    report.add("clock.updates_minstr_per_s", speed(3), "10^6/s", &updates)?;

    // Counting alone has no counters of its own: the difference of a long and a short run.
    let plain = GuestMachine { instructions_as_time: true, ..machine() };
    let instructions = clock.periods[1].instructions[0] as f64 / HITS as f64;
    let cpu_s = |hits: u64| -> anyhow::Result<f64> {
        let before = cpu_time_s()?;
        run_guest(plain.clone(), &job(&format!("speed hits {hits}")))?;
        Ok(cpu_time_s()? - before)
    };
    let more_s = cpu_s(PLAIN_HITS)? - cpu_s(1)?;
    ensure!(more_s > 0.0, "counting {PLAIN_HITS} loads took no time");
    let rate = PLAIN_HITS as f64 * instructions / more_s / 1e6;
    let conditions = format!("{PLAIN_HITS} loads that hit; a clock of instructions");
    report.add("clock.plain_minstr_per_s", rate, "10^6/s", &conditions)
}

fn machine() -> GuestMachine {
    GuestMachine {
        cpus: 1,
        fast_bytes: 768 * MIB,
        slow_bytes: 256 * MIB,
        accel: Accel::Tcg,
        boot_timeout: Duration::from_secs(300),
        timeout: Duration::from_secs(1800),
        ..GuestMachine::default()
    }
}

fn run_guest(machine: GuestMachine, job: &GuestJob) -> anyhow::Result<terrace_lab::GuestResult> {
    let result = Lab::new(LabConfig { machine, cache_dir: None })?.run(job, |_| {})?;
    let errors = String::from_utf8_lossy(&result.stderr).into_owned();
    ensure!(result.exit_code == 0, "the guest ended with {}: {errors}", result.exit_code);
    Ok(result)
}

/// Instructions of the program alone: the kernel's work meanwhile costs as much.
fn minstr_per_s(figures: &Figures, host_cpu_ns: u64) -> f64 {
    figures.instructions[0] as f64 * 1e3 / host_cpu_ns.max(1) as f64
}

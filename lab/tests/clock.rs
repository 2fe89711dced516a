//! Guests with the memory clock, measured from inside by their own clocks. These need QEMU, gcc,
//! the plug-in (`cargo build --workspace`) and, the first time, Debian's package archive.

mod timed;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use terrace_hardware::cache::config::CacheConfig;
use terrace_hardware::cache::hierarchy::HierarchyConfig;
use terrace_hardware::presets;
use terrace_hardware::units::Bytes;
use terrace_lab::{Accel, ClockFigures, GuestJob, GuestMachine, Kernel, Lab, LabConfig, Qemu};
use terrace_timed::config::{TierSpeed, TimedConfig};
use terrace_timed::figures::Figures;
use terrace_timed::machine::observed::ObservationPlan;
use terrace_timed::samples::SamplePlan;
use terrace_timed::windows::WindowPlan;
use terrace_timed::work::{STEP_INSTRUCTIONS, WorkPlan};
use timed::{Job, TIERS, machine, measure, measure_of, memory_speed, of_cause};

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
        measure(GuestMachine { memory_clock: Some(Box::new(config)), ..machine(2) }, script);
    for chase in of(&lines, "chase") {
        near("latency in ns", chase, 300.0, 0.03);
    }
    let elapsed = of(&lines, "elapsed_us");
    near("two that chase, in us", elapsed[1], elapsed[0], 0.05);
    near("two that compute, in us", elapsed[3], elapsed[2], 0.05);
}

#[test]
fn before_the_clock_begins_processors_take_short_turns() {
    // Both are busy; then one is and the other one wakes up now and then. Without turns of the
    // plug-in's QEMU 7.2 goes on with the first one for as long as it is busy; QEMU 10 divides the time
    // until a timer is due, some milliseconds, by itself.
    let script = "
        memory-speed turns - - 400000 2 &&
        { memory-speed compute - - 1000000000 & } &&
        for n in 1 2 3 4 5 6 7 8 9 10; do memory-speed sleep - - 10000; done && wait &&
        memory-speed begin - - - && memory-speed chase 1 64 60000";
    let (lines, figures) = measure(GuestMachine { begins_marked: true, ..machine(2) }, script);
    assert!(figures.complete);
    let turns = of(&lines, "turns");
    assert!(
        turns.len() == 2 && turns.iter().all(|turn| (50.0..1500.0).contains(turn)),
        "{turns:?}"
    );
    let sleeps = of(&lines, "sleep");
    assert!(sleeps.len() == 10 && sleeps.iter().all(|us| *us < 15_000.0), "{sleeps:?}");
    near("latency in ns", of(&lines, "chase")[0], 300.0, 0.03);
}

/// A program of processor 0 that computes, measured after so much of its work, beside this on processor 1.
fn after_work(qemu: Qemu, samples: Option<SamplePlan>, beside: &str) -> ClockFigures {
    let script = format!(
        "count-period
        {{ taskset 1 memory-speed compute - - 4000000000 & }}
        {beside}
        taskset 2 memory-speed sleep - - 20000 && taskset 2 memory-speed begin - - - &&
        taskset 2 memory-speed sleep - - 40000; code=$?; killall memory-speed; exit $code"
    );
    let work = Some(WorkPlan { processors: vec![0], from_instructions: AFTER });
    measure(GuestMachine { begins_marked: true, work, samples, qemu, ..machine(2) }, &script).1
}
const AFTER: u64 = 400_000_000;

#[test]
fn systems_are_measured_from_the_same_place_of_a_programs_work() {
    // By the mark the program has executed some 60 million instructions, or half as many.
    let alone = after_work(Qemu::default(), None, "");
    let of_newer = after_work(Qemu::Packaged { major: 10 }, None, "");
    let before_clock = Some(ObservationPlan::default());
    let samples = SamplePlan { before_clock, ..SamplePlan::default() };
    let beside = "{ taskset 2 memory-speed compute - - 4000000000 & }";
    let shared = after_work(Qemu::default(), Some(samples), beside);
    for figures in [&alone, &of_newer, &shared] {
        assert!(figures.complete);
        let (work, total) = (figures.work.as_ref().unwrap(), &figures.total);
        let from = work.from_instructions;
        assert!((AFTER..AFTER + STEP_INSTRUCTIONS).contains(&from), "from {from}");
        // The guest's 40 ms are behind that: no time has passed meanwhile.
        assert!((40_000_000..120_000_000).contains(&total.time_ns), "{} ns", total.time_ns);
        let steps = total.program_instructions[0] / STEP_INSTRUCTIONS;
        assert!(steps.abs_diff(work.times_ns.len() as u64) <= 1, "{steps} steps: {work:?}");
        assert!(work.times_ns.is_sorted() && work.times_ns.last() <= Some(&total.time_ns));
    }
    let alone = alone.work.unwrap();
    for other in [of_newer, shared] {
        near("the same work", other.work.unwrap().slowdown(&alone).unwrap().0, 1.0, 0.02);
    }
}

#[test]
fn a_program_that_waits_for_time_to_pass_is_not_waited_for() {
    let script = "
        count-period; taskset 2 memory-speed begin - - - &&
        taskset 2 memory-speed sleep - - 40000 && count-period &&
        taskset 2 memory-speed sleep - - 40000";
    let work = Some(WorkPlan { processors: vec![0], from_instructions: AFTER });
    let (_, figures) = measure(GuestMachine { begins_marked: true, work, ..machine(2) }, script);
    assert!(figures.complete && figures.work.unwrap().from_instructions < AFTER);
    assert!((40_000_000..120_000_000).contains(&figures.total.time_ns));
}

#[test]
fn two_processors_that_stream_at_once_share_a_tiers_bandwidth() {
    let script = "memory-speed stream 0 64 400000 2 && memory-speed stream 1 64 400000 2";
    let (lines, _) = measure(machine(2), script);
    let stream = of(&lines, "stream");
    for (tier, speed) in TIERS.iter().enumerate() {
        let both = &stream[2 * tier..2 * tier + 2];
        near("bandwidth of both in GB/s", both.iter().sum(), speed.gb_per_s, 0.05);
        near("one to the other", both[0], both[1], 0.1);
    }
}

#[test]
fn balancing_costs_its_own_faults_where_all_memory_is_fast() {
    // Scans at once and often, so that there are faults within milliseconds; only memory without a
    // policy of its own is scanned.
    let script = "
        echo never > /sys/kernel/mm/transparent_hugepage/enabled
        for n in scan_delay_ms scan_period_min_ms; do
            echo 1 > /sys/kernel/debug/sched/numa_balancing/$n
        done
        for on in 0 1; do
            echo $on > /proc/sys/kernel/numa_balancing
            memory-speed chase - 32 400000
            sed -n 's/^\\(numa_hint_faults\\|numa_pages_migrated\\) /\\1 /p' /proc/vmstat
        done";
    let (lines, figures) = measure(machine(1), script);
    let faults = of(&lines, "numa_hint_faults");
    assert!(faults[0] == 0.0 && faults[1] > 100.0, "{faults:?} faults");
    assert_eq!(of(&lines, "numa_pages_migrated"), [0.0, 0.0], "there is nothing to gain");
    // The chase in each.
    let (off, on) = (&figures.periods[1], &figures.periods[3]);
    assert_eq!(off.instructions[0], on.instructions[0], "the program does the same");
    let of_kernel_ns = on.busy_ns[1] as f64 - off.busy_ns[1] as f64;
    assert!(of_kernel_ns > 0.0, "faults take time");
    // Its time is known apart: that of faults, most of which are before the chase, and of scans.
    let hints = |windows: std::ops::Range<usize>, cause: &str| -> f64 {
        figures.periods[windows].iter().map(|window| of_cause(window, cause)).sum()
    };
    for cause in ["NUMA hint faults", "NUMA hint scans"] {
        assert_eq!(hints(0..2, cause), 0.0, "{cause} without balancing");
    }
    let fault_ns = hints(2..5, "NUMA hint faults") / faults[1];
    println!("a hint fault takes {fault_ns:.0} ns");
    assert!((100.0..10_000.0).contains(&fault_ns), "{fault_ns} ns a fault");
    assert!(hints(2..5, "NUMA hint scans") > 0.0, "{:?}", figures.total.kernel);
    // What is left is that a page is translated again after its fault, and what the kernel put into
    // the caches.
    let own_ns = on.time_ns as f64 - of_kernel_ns;
    near("time without the kernel's, in ns", own_ns, off.time_ns as f64, 0.02);
}

/// Two programs with phases: what they take in detail, and by sampling windows.
#[test]
fn sampled_programs_take_what_they_take_in_detail_within_the_error() {
    let script = "
        seq 1 20000 | sed 's/\\(.*\\)/\\1 \\1\\1/' > /tmp/lines
        count-period; gzip -c /tmp/lines > /tmp/lines.gz; count-period
        sort -r /tmp/lines > /tmp/sorted; count-period";
    let windows = WindowPlan {
        window_instructions: 20_000,
        warm_up_instructions: 40_000,
        interval_instructions: 600_000,
        seed: 1,
    };
    let (_, whole_run) = measure(machine(1), script);
    let sampled = || {
        let mut config = TimedConfig::with_tiers(&TIERS).expect("tiers");
        config.windows = Some(windows);
        let machine = GuestMachine { memory_clock: Some(Box::new(config)), ..machine(1) };
        measure(machine, script).1
    };
    let once = sampled();
    let host_s = |run: &ClockFigures, window: usize| run.host_cpu_ns[window] as f64 / 1e9;
    for window in [1, 2] {
        let (whole, sampled) = (&whole_run.periods[window], &once.periods[window]);
        let found = sampled.windows.as_ref().expect("windows");
        let busy = |figures: &Figures| figures.busy_ns.iter().sum::<u64>() as f64;
        let error_ns = found.error_ns().expect("several windows");
        let all = sampled.extrapolated();
        let of_host = (host_s(&whole_run, window), host_s(&once, window));
        println!(
            "window {window}: {:.3} ms, sampled {:.3} ms, error {:.3} ms of {} windows; lines read {} \
             and {}; the host's processor {:.2} and {:.2} s",
            busy(whole) / 1e6,
            busy(sampled) / 1e6,
            error_ns / 1e6,
            found.sums[0].windows,
            whole.tiers[0].reads + whole.tiers[1].reads,
            all.tiers[0].reads + all.tiers[1].reads,
            of_host.0,
            of_host.1,
        );
        assert!(found.sums[0].windows >= 20.0, "{found:?}");
        let off_ns = (busy(sampled) - busy(whole)).abs();
        assert!(off_ns < error_ns, "off by {off_ns}, error {error_ns}");
        assert!(error_ns < 0.1 * busy(whole), "{error_ns} of {}", busy(whole));
    }
    assert_eq!(once.total, sampled().total, "the same again");
}

#[test]
fn the_kernels_time_is_that_of_what_a_program_makes_it_do() {
    timed::assert_causes_of_the_kernels_time(Kernel::Debian);
}

#[test]
fn the_same_guest_twice_has_the_same_figures_to_the_digit() {
    // Starting programs, files, a pipe, sleeping, memory of both nodes.
    let script = "
        memory-speed chase 1 8 20000 && memory-speed stream 0 8 20000 | cat > /tmp/speed
        count-period; memory-speed sleep - - 2000 && ls -l / > /dev/null; count-period";
    let [(first, one), (second, two)] = [0, 1].map(|_| measure(machine(1), script));
    assert_eq!(first, second);
    for (window, (one, two)) in one.periods.iter().zip(&two.periods).enumerate() {
        assert_eq!(one, two, "window {window}");
    }
    assert_eq!(one.total, two.total);
    // What the kernel does for these, and nothing that is left of its start.
    let of_kernel = one.total.instructions[1];
    assert!((2_000_000..20_000_000).contains(&of_kernel), "{of_kernel} instructions of the kernel");
}

/// Reads and updates at random in memory that the last level does not hold, between marks.
const MIX: &str = r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
static void mark(void) { __asm__ volatile(".byte 0x0f,0x1f,0x84,0x00,2,0x54,0x45,0x52" ::: "memory"); }
int main(int argc, char **argv) {
    uint64_t times = strtoull(argv[1], 0, 0), state = 88172645463325252ull, sum = 0;
    uint64_t huge = 2ul << 20, bytes = 8 * huge;
    char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    volatile uint64_t *all = (void *)(((uintptr_t)at + huge - 1) & ~(huge - 1));
    madvise((void *)all, bytes - huge, MADV_HUGEPAGE);
    for (uint64_t i = 0; i < (6ul << 20) / 8; i += 8) all[i] = i;
    mark();
    for (uint64_t i = 0; i < times; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        sum += all[state % ((6ul << 20) / 8)];
        all[(state >> 20) % ((128ul << 10) / 8)] += sum;
    }
    mark();
    return sum == 42;
}
"#;
const MIX_TIMES: u64 = 2_000_000;

/// Misses of data in the first and the last level, as cachegrind counts them.
fn cachegrind(folder: &Path, program: &Path, caches: &HierarchyConfig, times: u64) -> [f64; 2] {
    let out = folder.join("cachegrind");
    let level = |name: &str, c: &CacheConfig| format!("--{name}={},{},64", c.size.0, c.ways);
    let done = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=yes"])
        .arg(format!("--cachegrind-out-file={}", out.display()))
        .args([level("I1", &caches.l1), level("D1", &caches.l1), level("LL", &caches.llc)])
        .arg(program)
        .arg(times.to_string())
        .output()
        .expect("valgrind; apt-get install valgrind");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = std::fs::read_to_string(out).expect("what cachegrind wrote");
    let words = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).expect(key);
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let (events, counts) = (words("events:"), words("summary:"));
    let of = |event: &str| {
        let at = events.iter().position(|e| e == event).expect(event);
        counts[at].parse::<f64>().expect("a count")
    };
    [of("D1mr") + of("D1mw"), of("DLmr") + of("DLmw")]
}

#[test]
fn programs_miss_the_caches_as_often_as_cachegrind_says() {
    let folder = tempfile::tempdir().expect("a directory");
    let (source, program) = (folder.path().join("mix.c"), folder.path().join("mix"));
    std::fs::write(&source, MIX).expect("a source");
    let gcc = Command::new("gcc").args(["-O2", "-static", "-o"]).args([&program, &source]).status();
    assert!(gcc.expect("gcc; apt-get install gcc libc6-dev").success());
    // Two levels, as cachegrind has.
    let hardware = presets::by_name("granularity-amd-a10-6800k").expect("a preset");
    let caches = hardware.node.caches.clone();
    assert!(caches.l2.is_none());
    let [with, without] =
        [MIX_TIMES, 1].map(|times| cachegrind(folder.path(), &program, &caches, times));
    let config = Some(Box::new(TimedConfig::of(hardware)));
    let job = Job { script: format!("mix {MIX_TIMES}"), program: &program };
    let (_, figures) = measure_of(GuestMachine { memory_clock: config, ..machine(1) }, &job);
    let misses = figures.periods[1].misses[0];
    let expected = [with[0] - without[0], with[1] - without[1]];
    println!("first, second and last level missed: {misses:?}; cachegrind: {expected:?}");
    near("misses of the first level", misses[0] as f64, expected[0], 0.02);
    near("misses of the last level", misses[2] as f64, expected[1], 0.02);
}

/// A chase through pages of the fast node, each with a leaf table of its own; the tables are in the
/// node that is given, for the kernel allocates them by the policy of the process.
const TABLE_SPEED: &str = r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define PAGES 8192ul
static void mark(void) { __asm__ volatile(".byte 0x0f,0x1f,0x84,0x00,2,0x54,0x45,0x52" ::: "memory"); }
static uint64_t order[PAGES];
int main(int argc, char **argv) {
    unsigned long fast = 1, tables = 1ul << atoi(argv[1]);
    char *all = mmap(0, PAGES << 21, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED || syscall(SYS_mbind, all, PAGES << 21, 2, &fast, 64, 0)) return 2;
    if (syscall(SYS_set_mempolicy, 2, &tables, 64)) return 3;
    /* Another page of each 2 MiB, another line of each page. */
#define AT(i) ((uint64_t *)(all + ((i) << 21) + ((i) % 512 << 12) + ((i) * 7 % 64 << 6)))
    uint64_t state = 88172645463325252ull;
    for (uint64_t i = 0; i < PAGES; i++) order[i] = i;
    for (uint64_t i = PAGES - 1; i > 0; i--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        uint64_t j = state % i, t = order[i];
        order[i] = order[j], order[j] = t;
    }
    for (uint64_t i = 0; i < PAGES; i++) *AT(order[i]) = (uint64_t)AT(order[(i + 1) % PAGES]);
    uint64_t *at = AT(0);
    struct timespec a, b;
    for (uint64_t i = 0; i < PAGES; i++) at = (uint64_t *)*at;
    mark();
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (uint64_t i = 0; i < 2 * PAGES; i++) at = (uint64_t *)*at;
    clock_gettime(CLOCK_MONOTONIC, &b);
    mark();
    printf("load %.3f\n", ((b.tv_sec - a.tv_sec) * 1e9 + b.tv_nsec - a.tv_nsec) / (2 * PAGES));
    return at == 0;
}
"#;

#[test]
fn walks_are_charged_by_the_node_that_each_page_table_is_in() {
    let folder = tempfile::tempdir().expect("a directory");
    let (source, program) = (folder.path().join("tables.c"), folder.path().join("table-speed"));
    std::fs::write(&source, TABLE_SPEED).expect("a source");
    let gcc = Command::new("gcc").args(["-O2", "-static", "-o"]).args([&program, &source]).status();
    assert!(gcc.expect("gcc; apt-get install gcc libc6-dev").success());
    // Caches that hold neither the lines of the pages nor those of their leaf tables.
    let mut config = TimedConfig::with_tiers(&TIERS).expect("tiers");
    config.hardware.node.caches.llc.size = Bytes::kib(256);
    config.hardware.node.caches.llc.ways = 16;
    config.hardware.node.caches.l2 = None;
    let machine = |qemu| {
        let memory_clock = Some(Box::new(config.clone()));
        GuestMachine { qemu, memory_clock, ..machine(1) }
    };
    let script = "echo never > /sys/kernel/mm/transparent_hugepage/enabled
        table-speed 0 && table-speed 1";
    let job = Job { script: script.to_owned(), program: &program };
    let (lines, figures) = measure_of(machine(Qemu::Packaged { major: 10 }), &job);
    let load = of(&lines, "load");
    // A walk for each, and its leaf table's line from the node.
    let walks = figures.periods[3].walks;
    assert!(walks >= 16_384, "{walks} walks");
    let latency_ns = TIERS.map(|tier| tier.latency_ns);
    let leaf_ns = latency_ns[1] - latency_ns[0];
    // The directories above, an eighth as many lines, are in that node, too, and seldom cached.
    near("what slow tables cost a load, in ns", load[1] - load[0], leaf_ns, 0.25);
    assert!(load[1] - load[0] > 0.99 * leaf_ns, "{load:?}");
    // A QEMU whose registers cannot be read: tables are assumed in the fast tier.
    let (lines, _) = measure_of(machine(Qemu::default()), &job);
    let assumed = of(&lines, "load");
    near("assumed tables", assumed[1], assumed[0], 0.02);
    // Fewer tables are assumed than there are: the assumed ones are in the caches.
    assert!(assumed[0] < load[0], "{assumed:?} {load:?}");
}

#[test]
fn a_buffer_of_translated_code_that_is_used_up_ends_in_one_line() {
    // A QEMU with a small buffer.
    let folder = tempfile::tempdir().expect("a directory");
    let qemu = folder.path().join("qemu");
    let script = "#!/bin/sh\nfor word; do shift; case $word in tcg,thread=*) word=$word,tb-size=8;; esac\n\
                  set -- \"$@\" \"$word\"; done\nexec qemu-system-x86_64 \"$@\"\n";
    std::fs::write(&qemu, script).expect("a script");
    std::fs::set_permissions(&qemu, PermissionsExt::from_mode(0o755)).expect("a program");
    let script = "for n in 1 2 3 4 5 6; do
            find / -xdev > /dev/null & sh -c 'ls -lR /proc/sys' > /dev/null 2>&1 & wait
        done";
    let machine = |cpus| GuestMachine { qemu: Qemu::Host(qemu.clone()), ..machine(cpus) };
    let run = |cpus| {
        let lab = Lab::new(LabConfig { machine: machine(cpus), cache_dir: None }).expect("the lab");
        memory_speed();
        lab.run(&GuestJob::shell(script), |_| {})
    };
    let error = run(2).expect_err("several processors cannot begin anew").to_string();
    assert!(error.contains("--cpus 1") && error.lines().count() == 1, "{error}");
    assert_eq!(run(1).expect("one processor can").exit_code, 0);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let with = |change: &dyn Fn(&mut TimedConfig)| {
        let mut config = TimedConfig::with_tiers(&TIERS).expect("tiers");
        change(&mut config);
        let machine = GuestMachine { memory_clock: Some(Box::new(config)), ..machine(1) };
        Lab::new(LabConfig { machine, cache_dir: None }).expect_err("refused").to_string()
    };
    let caches = with(&|c| c.hardware.node.caches.l2.as_mut().expect("a second level").ways = 0);
    assert!(caches.contains("ways") && caches.lines().count() == 1, "{caches}");
    let quantum = with(&|c| c.quantum_ns = 0);
    assert!(quantum.contains("quantum"), "{quantum}");
    let kvm = GuestMachine { accel: Accel::Kvm, ..machine(1) };
    let kvm = Lab::new(LabConfig { machine: kvm, cache_dir: None }).expect_err("refused");
    assert!(kvm.to_string().contains("KVM"), "{kvm}");
}

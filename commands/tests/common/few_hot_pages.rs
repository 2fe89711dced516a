//! A program of ranges of which a few base pages have nearly all reads, under the policy LFU by ranges.

use std::time::Duration;

use terrace_lab::{GuestJob, GuestMachine, Kernel, Lab, LabConfig, Program};

use crate::known_reads::{beside_the_program, fast_and_in_the_best, known_reads};

/// What became of it.
pub struct Served {
    /// The share of its reads that go to fast memory in the end.
    pub fast: f64,
    /// The share that the best whole ranges would have.
    pub best_ranges: f64,
    /// Base pages that were promoted alone.
    pub moved_alone: u64,
}

/// Runs it on this kernel with these keys of the machine: 24 ranges of which 16 base pages each have
/// nearly all reads, and room for four ranges.
pub fn served(kernel: &str, keys: &str) -> Served {
    const RANGES: &str = "24 90 0 0 16";
    let experiment = format!(
        "name = \"few-hot-pages\"\nperiod_ms = 200\nperiods = 40\n\
         [machine]\n{keys}\n\
         [[groups]]\nname = \"program\"\npolicy = \"lfu\"\nfast = \"8M\"\npage_size = \"auto\"\n\
         workload = {{ kind = \"attach\", pids = [PID] }}\n"
    );
    let script = beside_the_program(
        RANGES,
        "kill -USR1 $P; sed s/PID/$P/ /srv/e.toml > /tmp/e.toml
        terrace run /tmp/e.toml --machine host --fix-conflicts --format json --out /tmp/out 1>&2 || exit 9
        kill -USR2 $P",
    );
    let job = GuestJob::shell(&script)
        .bytes(experiment, "/srv/e.toml")
        .result("/tmp/out")
        .program(Program::host(known_reads()))
        .program(Program::host(env!("CARGO_BIN_EXE_terrace")));
    let machine = GuestMachine {
        fast_bytes: 640 << 20,
        slow_bytes: 256 << 20,
        kernel: Kernel::named(kernel),
        instructions_as_time: true,
        timeout: Duration::from_secs(900),
        ..GuestMachine::default()
    };
    let lab = Lab::new(LabConfig { machine, cache_dir: None }).expect("the lab");
    let result = lab.run(&job, |_| {});
    let result = result.unwrap_or_else(|e| panic!("{e}\n{}", e.console_tail().join("\n")));
    let (text, errors) = (result.stdout_text(), String::from_utf8_lossy(&result.stderr));
    assert_eq!(result.exit_code, 0, "{text}{errors}");
    let (fast, best_ranges) = fast_and_in_the_best(&text, 4);
    let details = result.result("/tmp/out").expect("results").join("details/lfu.json");
    let details: serde_json::Value =
        serde_json::from_slice(&std::fs::read(details).unwrap()).unwrap();
    let moved_alone = details["program"]["refined"]["up_pages"].as_u64().expect("a count");
    println!(
        "{kernel}, {keys:?}: fast {fast:.3}, the best whole ranges {best_ranges:.3}, {moved_alone} \
         base pages moved alone"
    );
    Served { fast, best_ranges, moved_alone }
}

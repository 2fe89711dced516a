//! The cost of recording: the processor time of a recorded program and of the recorder, over the
//! program's own.
//!
//! The programs are compiled here: the pure forms of three patterns, each of which uses memory all
//! the time. Updates of random words depend on nothing and overlap; a pointer chase depends on the
//! line before; the processor prefetches a stream.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use terrace_recorder::launch::default_filter;
use terrace_recorder::{Options, Recorder, Signals};

use super::Part;
use crate::measure::{Report, median};

pub const PART: Part = Part {
    name: "record",
    measures: "processor time of 'terrace record' over that of the program alone",
    run,
};

const REPEATS: usize = 5;

/// Name, source, arguments.
const PROGRAMS: [(&str, &str, [&str; 2]); 3] = [
    (
        "updates",
        r#"#include <stdint.h>
        #include <stdlib.h>
        int main(int argc, char **argv) {
            uint64_t words = (uint64_t)atol(argv[1]) << 17, updates = atol(argv[2]) * 1000000;
            uint64_t *table = malloc(words * 8), x = 1;
            for (uint64_t i = 0; i < words; i++) table[i] = i;
            for (uint64_t i = 0; i < updates; i++) {
                x = x << 1 ^ ((int64_t)x < 0 ? 7 : 0);
                table[x * 0x9e3779b97f4a7c15 >> 20 & (words - 1)] ^= x;
            }
            return table[1] == 0;
        }"#,
        ["512", "40"],
    ),
    (
        "stream",
        r#"#include <stdlib.h>
        int main(int argc, char **argv) {
            long n = atol(argv[1]) * 131072 / 3, turns = atol(argv[2]);
            double *a = malloc(n * 8), *b = malloc(n * 8), *c = malloc(n * 8);
            for (long i = 0; i < n; i++) a[i] = 1.0 / (2 + argc), b[i] = 2, c[i] = 0;
            for (long t = 0; t < turns; t++) {
                for (long i = 0; i < n; i++) c[i] = a[i];
                for (long i = 0; i < n; i++) b[i] = 0.4 * c[i];
                for (long i = 0; i < n; i++) c[i] = a[i] + b[i];
                for (long i = 0; i < n; i++) a[i] = b[i] + 0.4 * c[i];
            }
            return a[n / 2] == 0;
        }"#,
        ["384", "4"],
    ),
    (
        "chase",
        r#"#include <stdint.h>
        #include <stdlib.h>
        int main(int argc, char **argv) {
            uint64_t n = (uint64_t)atol(argv[1]) << 14, steps = atol(argv[2]) * 1000000, x = 1;
            struct line { struct line *next; char pad[56]; } *l = aligned_alloc(64, n * 64);
            // A full cycle: x -> 5 x + 1 modulo a power of two.
            for (uint64_t i = 0; i < n; i++, x = (x * 5 + 1) & (n - 1))
                l[x].next = &l[((x * 5 + 1) & (n - 1)) * 0x9e3779b1 & (n - 1)];
            struct line *at = l;
            for (uint64_t i = 0; i < steps; i++) at = at->next ? at->next : l;
            return at == 0;
        }"#,
        ["512", "20"],
    ),
];

fn run(report: &mut Report) -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("terrace-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).context("creating a folder")?;
    let measured = all(report, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    measured
}

fn all(report: &mut Report, folder: &Path) -> anyhow::Result<()> {
    for (name, source, arguments) in PROGRAMS {
        let program = compile(folder, name, source)?;
        let command = [program.into_os_string(), arguments[0].into(), arguments[1].into()];
        let run = |before: &[&str]| {
            let whole = before.iter().map(OsStr::new);
            let whole: Vec<&OsStr> = whole.chain(command.iter().map(OsString::as_os_str)).collect();
            let ended = Command::new(whole[0]).args(&whole[1..]).status().context(name)?;
            ensure!(ended.success(), "{name} ended with {ended}, expected success");
            Ok(())
        };
        let alone_s = times(|| run(&[]))?;
        let emulated_s = times(|| run(&["qemu-x86_64"]))?;
        let recorded_s = times(|| {
            let out = folder.join("recording.tref");
            let options = Options {
                out: out.clone(),
                filter: default_filter(),
                qemu: None,
                qemu_libraries: None,
                plugin: None,
                created_by: "terrace-bench".to_owned(),
            };
            Recorder::new(options).run(&command, &Signals::none(), &mut |_| {})?;
            std::fs::remove_file(out).context("removing a recording")
        })?;
        let conditions = format!(
            "{} MiB, 32 KiB, 1 MiB and 32 MiB of caches; {alone_s:.2} s alone, {emulated_s:.2} s emulated, {recorded_s:.2} s recorded, medians of {REPEATS}",
            arguments[0]
        );
        report.add(&format!("record.{name}.slowdown_x"), recorded_s / alone_s, "x", &conditions)?;
        let emulation = format!("record.{name}.emulation_x");
        report.add(&emulation, emulated_s / alone_s, "x", &conditions)?;
        if name == "updates" {
            report.add("record.slowdown_x", recorded_s / alone_s, "x", &conditions)?;
        }
    }
    Ok(())
}

fn compile(folder: &Path, name: &str, source: &str) -> anyhow::Result<PathBuf> {
    let (c, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&c, source).context("writing a program")?;
    let built = Command::new("gcc").args(["-O2", "-o"]).arg(&program).arg(&c).status();
    ensure!(built.context("starting gcc; apt-get install gcc")?.success(), "gcc refused {name}");
    Ok(program)
}

fn times(mut run: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut taken_s = Vec::new();
    for _ in 0..REPEATS {
        let start_s = cpu_time_s()?;
        run()?;
        taken_s.push(cpu_time_s()? - start_s);
    }
    Ok(median(taken_s))
}

/// Processor time of this process and of its children that have ended, to the hundredth.
pub(super) fn cpu_time_s() -> anyhow::Result<f64> {
    /// The unit of `/proc/PID/stat` on every Linux for x86-64 (`USER_HZ`).
    const TICKS_PER_S: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").context("reading /proc/self/stat")?;
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    // utime, stime, cutime and cstime are 14 to 17; the state is 3.
    let ticks: u64 = fields.skip(11).take(4).filter_map(|f| f.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / TICKS_PER_S)
}

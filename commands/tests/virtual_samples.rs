//! Samples of reads in a virtual machine whose clock knows the memory, against what a program itself
//! counts of its reads. These need QEMU, gcc, the plug-in (`cargo build --workspace`) and, the first time, Debian's package archive.

#[path = "common/known_reads.rs"]
mod known_reads;

use std::collections::BTreeMap;
use std::time::Duration;

use known_reads::{beside_the_program, counted, fast_and_in_the_best, known_reads};
use serde_json::Value;
use terrace_core::scan::Scan;
use terrace_hardware::units::Bytes;
use terrace_lab::{Accel, GuestJob, GuestMachine, GuestResult, Lab, LabConfig, Program, Qemu};
use terrace_recorder::nodes::Mark;
use terrace_recordings::period::{PeriodReader, Record};
use terrace_timed::config::{TierSpeed, TimedConfig};
use terrace_timed::machine::observed::ObservationPlan;
use terrace_timed::samples::SamplePlan;

const MIB: u64 = 1 << 20;
const TIERS: [TierSpeed; 2] = [
    TierSpeed { latency_ns: 80.0, gb_per_s: 40.0 },
    TierSpeed { latency_ns: 300.0, gb_per_s: 20.0 },
];
const SAMPLE_READS: u32 = 300;
/// Reads of the program, as its arguments have it.
const READS: u32 = 5_000_000;
const ARGUMENTS: &str = "48 90 5000000 0";

/// Tiers behind caches that hold next to nothing of a program's pages, so that its reads miss.
fn machine(samples: SamplePlan) -> GuestMachine {
    let mut config = TimedConfig::with_tiers(&TIERS).expect("tiers");
    config.hardware.node.caches.llc.size = Bytes::kib(256);
    config.hardware.node.caches.llc.ways = 16;
    config.hardware.node.caches.l2 = None;
    GuestMachine {
        cpus: 1,
        fast_bytes: 640 * MIB,
        slow_bytes: 256 * MIB,
        fast_latency_ns: 80,
        slow_latency_ns: 300,
        accel: Accel::Tcg,
        memory_clock: Some(Box::new(config)),
        samples: Some(samples),
        boot_timeout: Duration::from_secs(300),
        timeout: Duration::from_secs(1500),
        ..GuestMachine::default()
    }
}

fn plan() -> SamplePlan {
    SamplePlan { accesses_per_sample: SAMPLE_READS, ..SamplePlan::default() }
}

fn run(machine: GuestMachine, job: GuestJob) -> GuestResult {
    let job = job
        .program(Program::host(known_reads()))
        .program(Program::host(env!("CARGO_BIN_EXE_terrace")));
    let lab = Lab::new(LabConfig { machine, cache_dir: None }).expect("the lab");
    let result = lab.run(&job, |_| {});
    let result = result.unwrap_or_else(|e| panic!("{e}\n{}", e.console_tail().join("\n")));
    let errors = String::from_utf8_lossy(&result.stderr);
    assert_eq!(result.exit_code, 0, "{}{errors}", result.stdout_text());
    println!("{}\n{errors}", result.clock.as_ref().expect("figures").line());
    result
}

/// Spearman's rank correlation, ties sharing their ranks' mean.
fn rank_correlation(one: &[f64], other: &[f64]) -> f64 {
    let ranks = |values: &[f64]| -> Vec<f64> {
        let rank = |value: f64| {
            let less = values.iter().filter(|v| **v < value).count() as f64;
            let equal = values.iter().filter(|v| **v == value).count() as f64;
            less + (equal - 1.0) / 2.0
        };
        values.iter().map(|v| rank(*v)).collect()
    };
    let (one, other) = (ranks(one), ranks(other));
    let mean = (one.len() as f64 - 1.0) / 2.0;
    let sum = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum()
    };
    let spread = (sum(&one, &one) * sum(&other, &other)).sqrt();
    if spread > 0.0 { sum(&one, &other) / spread } else { 0.0 }
}

/// Of what the best third of the pages has, the share that the third has which these put first; ties
/// count as chance would have it.
fn caught_by_the_top_third(signal: &[f64], exact: &[f64]) -> f64 {
    let third = exact.len() / 3;
    let best = |by: &[f64]| -> f64 {
        let mut sorted = by.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let bound = sorted[third - 1];
        let of = |test: &dyn Fn(f64) -> bool| -> Vec<f64> {
            by.iter().zip(exact).filter(|(b, _)| test(**b)).map(|(_, e)| *e).collect()
        };
        let (above, at) = (of(&|b| b > bound), of(&|b| b == bound));
        let left = (third - above.len()) as f64 / at.len() as f64;
        above.iter().sum::<f64>() + left * at.iter().sum::<f64>()
    };
    best(signal) / best(exact)
}

/// The same numbers in another order: what says nothing any more.
fn shuffled(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    let mut state = 1u64;
    for at in (1..values.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        values.swap(at, (state >> 33) as usize % (at + 1));
    }
    values
}

/// Reads samples for a while, which suffices for the program's reads.
const READ: &str = "terrace signals 1>&2
        terrace signals --read-ms 1200 --pid $P --sample-reads 300 --format json > /tmp/document & S=$!
        until ls -l /proc/$S/fd | grep -q vport; do sleep 0.02; done
        kill -USR1 $P; wait $S; cat /tmp/document; echo";

/// The document that `terrace signals` printed before the program's lines.
fn document(text: &str) -> Value {
    let document: String =
        text.lines().take_while(|line| !line.starts_with("at ")).collect::<Vec<_>>().join("\n");
    serde_json::from_str(&document).unwrap_or_else(|e| panic!("{e}: {document}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn samples_by_page(document: &Value, exact: &BTreeMap<u64, f64>) -> Vec<f64> {
    let pages = document["pages"].as_array().expect("pages");
    let by_page: BTreeMap<u64, f64> =
        pages.iter().map(|page| (page[0].as_u64().unwrap(), number(&page[1]))).collect();
    exact.keys().map(|address| by_page.get(address).copied().unwrap_or(0.0)).collect()
}

fn a_programs_samples_are_those_of_its_reads(qemu: Qemu) {
    let script = beside_the_program(ARGUMENTS, READ);
    let result = run(GuestMachine { qemu, ..machine(plan()) }, GuestJob::shell(&script));
    let text = result.stdout_text();
    let (exact, document) = (counted(&text), document(&text));
    assert_eq!(exact.len(), 48);
    let counts = &document["counts"];
    println!("{counts} {}", document["memory"]);
    assert_eq!(document["source"], "port");
    for reason in ["throttled", "malformed", "over_bound", "cached"] {
        assert_eq!(number(&counts[reason]), 0.0, "{reason}: {counts}");
    }
    // Each page has as many as its reads make, within five standard deviations.
    let samples = samples_by_page(&document, &exact);
    for ((address, reads), samples) in exact.iter().zip(&samples) {
        let expected = reads / f64::from(SAMPLE_READS);
        let bound = 5.0 * expected.sqrt() + 3.0;
        assert!((samples - expected).abs() < bound, "{address:#x}: {samples}, expected {expected}");
    }
    let all: f64 = samples.iter().sum();
    assert!((all * f64::from(SAMPLE_READS) / f64::from(READS) - 1.0).abs() < 0.05, "{all} samples");
    // Which memory served them is known by the pages' own places: they take turns.
    let exact: Vec<f64> = exact.into_values().collect();
    let slow: f64 = exact.iter().skip(1).step_by(2).sum::<f64>() / f64::from(READS);
    let [local, remote] = [0, 1].map(|n| number(&document["memory"][n]));
    assert!((remote / (local + remote) - slow).abs() < 0.05, "{local} {remote}, expected {slow}");
    // One instruction of the program, which is linked to addresses from 4 MiB on, makes the reads.
    let busiest = &document["instructions"][0];
    println!("instructions: {}", document["instructions"]);
    assert!((0x40_0000..0x80_0000).contains(&busiest[0].as_u64().unwrap()), "{busiest}");
    assert!(number(&busiest[1]) > 0.9 * (local + remote), "{busiest} of {local} and {remote}");
    // Ranks, and what ranks of no meaning would give.
    let [ranks, nothing] =
        [&samples, &shuffled(&samples)].map(|signal| rank_correlation(signal, &exact));
    let [caught, by_chance] =
        [&samples, &shuffled(&samples)].map(|signal| caught_by_the_top_third(signal, &exact));
    println!(
        "rank correlation {ranks:.3}, shuffled {nothing:.3}; top third {caught:.3}, {by_chance:.3}"
    );
    assert!(ranks > 0.93 && caught > 0.97, "{ranks} {caught}");
    assert!(nothing < 0.5 && by_chance < 0.8, "{nothing} {by_chance}");
}

#[test]
fn a_guest_has_samples_of_its_programs_reads_at_a_port() {
    a_programs_samples_are_those_of_its_reads(Qemu::default());
}

#[test]
fn a_newer_qemus_guest_has_the_same_samples() {
    a_programs_samples_are_those_of_its_reads(Qemu::Packaged { major: 10 });
}

#[test]
fn samples_that_are_lost_or_throttled_are_counted_in_the_guest() {
    let script = beside_the_program(ARGUMENTS, READ);
    // More than 10,000 a second come; every fifth is lost, and more than 2,500 throttle.
    let samples = SamplePlan { lose_one_in: 5, most_per_s: 2500, ..plan() };
    let result = run(machine(samples), GuestJob::shell(&script));
    let text = result.stdout_text();
    let (exact, document) = (counted(&text), document(&text));
    let count = |reason: &str| number(&document["counts"][reason]);
    println!("{}", document["counts"]);
    assert!(count("lost") > 50.0 && count("throttled") > 10.0, "{document}");
    assert_eq!(count("malformed"), 0.0);
    // What is left still ranks the pages.
    let samples = samples_by_page(&document, &exact);
    let exact: Vec<f64> = exact.into_values().collect();
    let caught = caught_by_the_top_third(&samples, &exact);
    assert!(caught > 0.9, "{caught}");
}

/// An experiment on the program that runs already. Without a word of samples: the emulator takes them,
/// so policies get them.
const EXPERIMENT: &str = r#"
name = "signals"
period_ms = 200
periods = 10
machine = { sample_reads = READS }
[[groups]]
name = "program"
policy = "memtis"
fast = "32M"
page_size = "auto"
workload = { kind = "attach", pids = [PID] }
"#;

/// What each signal says of the program's pages, summed over the periods; what the program itself
/// counted; and whether each page was fast in the last period.
struct Signals {
    bits: Vec<f64>,
    sampled_bits: Vec<f64>,
    samples: Vec<f64>,
    exact: Vec<f64>,
    fast: Vec<bool>,
}

/// Runs `memtis` on a program with such a pause between its reads.
fn signals(pause_us: u32, sample_reads: u32) -> Signals {
    let script = beside_the_program(
        &format!("48 90 0 {pause_us}"),
        "kill -USR1 $P; sed s/PID/$P/ /srv/e.toml > /tmp/e.toml
        terrace run /tmp/e.toml --machine host --fix-conflicts --format json --out /tmp/out 1>&2 || exit 9
        kill -USR2 $P",
    );
    let experiment = EXPERIMENT.replace("READS", &sample_reads.to_string());
    let job = GuestJob::shell(&script).bytes(experiment, "/srv/e.toml").result("/tmp/out");
    let plan = SamplePlan { accesses_per_sample: sample_reads, ..SamplePlan::default() };
    let result = run(machine(plan), job);
    let exact = counted(&result.stdout_text());
    let recordings = result.result("/tmp/out").expect("results").join("recordings");
    let recording = std::fs::read_dir(recordings).expect("recordings").next().expect("one");
    let records =
        PeriodReader::open(&recording.expect("a file").path()).expect("it opens").records();
    let scans: Vec<Scan> = records
        .filter_map(|record| match record.expect("it is whole") {
            Record::Period(period) => Some(period.scan),
            _ => None,
        })
        .collect();
    let stands_for = scans.iter().filter_map(|scan| Some(scan.counters.as_ref()?.reads_per_sample));
    assert!(stands_for.clone().count() > 0 && stands_for.max() == Some(sample_reads));
    let pages: Vec<u64> = exact.keys().copied().collect();
    // A signal of the page that begins at this address.
    let of = |value: &dyn Fn(&Scan, usize) -> f64| -> Vec<f64> {
        let sum = |address: &u64| {
            let page =
                |scan: &Scan| (0..scan.pages()).find(|p| scan.layout.address(*p).1 == *address);
            scans.iter().map(|scan| page(scan).map_or(0.0, |page| value(scan, page))).sum()
        };
        pages.iter().map(sum).collect()
    };
    let last = scans.last().expect("periods");
    println!(
        "{} scans, of them with samples {}",
        scans.len(),
        scans.iter().filter(|s| s.samples().is_some()).count()
    );
    Signals {
        bits: of(&|scan, page| f64::from(u8::from(scan.accessed.get(page)))),
        sampled_bits: of(&|scan, page| scan.counts.as_ref().map_or(0.0, |c| c.share(page))),
        samples: of(&|scan, page| scan.samples().map_or(0.0, |samples| samples[page].into())),
        fast: of(&|scan, page| {
            f64::from(u8::from(scan.period == last.period && scan.fast.get(page)))
        })
        .into_iter()
        .map(|fast| fast > 0.0)
        .collect(),
        exact: exact.into_values().collect(),
    }
}

/// Rank correlation with the exact counts, and the share that the top third catches.
fn judged(name: &str, signal: &[f64], exact: &[f64]) -> [f64; 2] {
    let figures = [rank_correlation(signal, exact), caught_by_the_top_third(signal, exact)];
    println!("{name}: rank correlation {:.3}, top third {:.3}", figures[0], figures[1]);
    figures
}

#[test]
fn samples_rank_pages_that_bits_cannot_tell_apart_and_memtis_places_them() {
    let found = signals(0, 500);
    let exact = &found.exact;
    let bits = judged("bits", &found.bits, exact);
    let sampled_bits = judged("sampled bits", &found.sampled_bits, exact);
    let samples = judged("samples", &found.samples, exact);
    let shuffled = judged("shuffled samples", &shuffled(&found.samples), exact);
    assert!(samples[0] > 0.95 && samples[1] > 0.97, "{samples:?}");
    assert!(bits[1] < samples[1] && sampled_bits[1] <= samples[1], "{bits:?} {sampled_bits:?}");
    assert!(shuffled[0] < 0.5 && shuffled[1] < 0.8, "{shuffled:?}");
    // 16 of the 48 pages may be fast.
    let fast = found.fast.iter().filter(|fast| **fast).count();
    assert!(fast <= 16, "{fast} pages");
    let placed: Vec<f64> = found.fast.iter().map(|fast| f64::from(u8::from(*fast))).collect();
    let placed = placed.iter().zip(exact).map(|(fast, reads)| fast * reads).sum::<f64>();
    let mut best = exact.clone();
    best.sort_by(|a, b| b.total_cmp(a));
    let share = placed / best[..16].iter().sum::<f64>();
    println!("memtis has {share:.3} of what the best 16 pages have in fast memory");
    assert!(share > 0.9, "{share}");
}

/// The hottest base pages of all ranges are in fast memory, where whole ranges would bring few of them.
fn hot_base_pages_come_by_samples(machine: GuestMachine, periods: u32, then: &str) {
    const RANGES: &str = "24 90 0 0 16";
    let script = beside_the_program(
        RANGES,
        &format!(
            "kill -USR1 $P; sed s/PID/$P/ /srv/e.toml > /tmp/e.toml
            terrace run /tmp/e.toml --machine host --fix-conflicts --format json --out /tmp/out 1>&2 || exit 9
            kill -USR2 $P
            {then}"
        ),
    );
    let periods = format!("periods = {periods}");
    let experiment = EXPERIMENT.replace("32M", "8M").replace("periods = 10", &periods);
    let experiment = experiment.replace("READS", "500");
    let job = GuestJob::shell(&script).bytes(experiment, "/srv/e.toml").result("/tmp/out");
    let job = job.bytes(Mark::Begin.program(), "/srv/begin");
    let result = run(machine, job);
    let (fast, best_ranges) = fast_and_in_the_best(&result.stdout_text(), 4);
    println!("fast {fast:.3}, the best whole ranges {best_ranges:.3}");
    // 384 base pages have fifteen of sixteen reads, and 2,048 may be fast.
    assert!(fast > best_ranges + 0.1 && fast > 0.85, "{fast} {best_ranges}");
}

#[test]
fn base_pages_that_samples_show_to_be_hot_leave_the_tier_of_their_range() {
    let plan = SamplePlan { accesses_per_sample: 500, ..SamplePlan::default() };
    hot_base_pages_come_by_samples(machine(plan), 10, "");
}

/// In a warm-up, in which a guest runs at full speed but for short stretches that are observed. A second
/// has fewer samples there, and on a busy host they come late, so it has twice as many periods.
#[test]
fn samples_come_before_the_clock_begins_where_that_is_asked_for() {
    let before_clock = Some(ObservationPlan::default());
    let plan = SamplePlan { accesses_per_sample: 500, before_clock, ..SamplePlan::default() };
    let machine = GuestMachine { begins_marked: true, ..machine(plan) };
    hot_base_pages_come_by_samples(
        machine,
        20,
        "cp /srv/begin /tmp; chmod +x /tmp/begin; /tmp/begin",
    );
}

#[test]
#[ignore = "not run to its end yet: it takes minutes of a quiet host"]
fn sampled_bits_rank_what_is_read_too_seldom_for_samples() {
    let found = signals(600, 20);
    let exact = &found.exact;
    judged("bits", &found.bits, exact);
    let sampled_bits = judged("sampled bits", &found.sampled_bits, exact);
    let samples = judged("samples", &found.samples, exact);
    assert!(sampled_bits[0] > 0.7, "{sampled_bits:?}");
    assert!(samples[0] > 0.3, "{samples:?}");
}

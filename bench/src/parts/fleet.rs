//! Fleets whose needs are known beforehand: how near the answers are, how often intervals contain
//! the truth, and what 200 and 2,000 hosts take in time and memory.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use terrace_fleet::answer::ALL_CLASSES;
use terrace_fleet::synthetic::{SLOW_LATENCY_NS, Shape};
use terrace_fleet::{Answer, Fleet, answer};

use super::Part;
use crate::measure::{Report, median};

pub const PART: Part = Part {
    name: "fleet",
    measures: "answers for simulated fleets against the known needs, their intervals, time and memory",
    run,
};

const SERVICES: usize = 40;
const OTHER_LATENCY_NS: f64 = 250.0;
/// Hosts of a fleet, and the seeds that it is made with.
const FLEETS: [(usize, &[u64]); 2] = [(200, &[1, 2, 3, 4, 5]), (2_000, &[1])];
/// Hosts that the truth is drawn from.
const DRAWS: usize = 300_000;
/// Points that an answer may be off.
const NEAR: f64 = 0.02;

/// What one fleet gave.
#[derive(Default)]
struct Found {
    near: Vec<bool>,
    service_intervals: Vec<bool>,
    class_intervals: Vec<bool>,
    off: Vec<f64>,
}

fn run(report: &mut Report) -> anyhow::Result<()> {
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut times = Vec::new();
    for (hosts, seeds) in FLEETS {
        let (mut found, mut walls, mut processors) = (Found::default(), Vec::new(), Vec::new());
        for &seed in seeds {
            let folder = tempfile::tempdir().context("a folder for histories")?;
            let shape = Shape { hosts, services: SERVICES, seed };
            shape.write(folder.path(), &[OTHER_LATENCY_NS])?;
            let fleet = Fleet::read(&folder.path().join("fleet.toml"))?;
            reset_peak();
            let (began, used) = (Instant::now(), processor_s());
            let got = answer(&fleet, jobs, &mut |_, _| {})?;
            walls.push(began.elapsed().as_secs_f64());
            processors.push(processor_s() - used);
            judge(&shape, &got, &mut found)?;
        }
        let conditions = format!(
            "{hosts} hosts in three classes, {SERVICES} services, latencies of {SLOW_LATENCY_NS} \
             and {OTHER_LATENCY_NS} ns, {} seeds, {jobs} jobs",
            seeds.len()
        );
        let part = |all: &[bool]| {
            100.0 * all.iter().filter(|ok| **ok).count() as f64 / all.len().max(1) as f64
        };
        let mut add = |what: &str, value: f64, unit: &str| {
            report.add(&format!("fleet.{hosts}.{what}"), value, unit, &conditions)
        };
        // Classes with too few hosts have none.
        add("class_intervals", found.class_intervals.len() as f64, "intervals")?;
        add("services_within_2_points_percent", part(&found.near), "%")?;
        add("worst_points", 100.0 * found.off.iter().copied().fold(0.0, f64::max), "points")?;
        let mean = found.off.iter().sum::<f64>() / found.off.len().max(1) as f64;
        add("mean_points", 100.0 * mean, "points")?;
        add("service_intervals_with_truth_percent", part(&found.service_intervals), "%")?;
        if !found.class_intervals.is_empty() {
            add("class_intervals_with_truth_percent", part(&found.class_intervals), "%")?;
        }
        let (wall, processor) = (median(walls), median(processors));
        add("wall_s", wall, "s")?;
        add("processor_s", processor, "s")?;
        add("peak_mib", peak_mib(), "MiB")?;
        times.push((hosts as f64, wall, processor));
    }
    if let [small, large] = times[..] {
        let more = large.0 / small.0;
        let conditions = "2,000 hosts over ten times 200";
        report.add("fleet.linear_wall", large.1 / small.1 / more, "ratio", conditions)?;
        report.add("fleet.linear_processor", large.2 / small.2 / more, "ratio", conditions)?;
    }
    Ok(())
}

fn judge(shape: &Shape, got: &Answer, found: &mut Found) -> anyhow::Result<()> {
    let within =
        |low: Option<f64>, high: Option<f64>, known: f64| Some(low? <= known && known <= high?);
    for (latency_ns, at) in [(SLOW_LATENCY_NS, None), (OTHER_LATENCY_NS, Some(OTHER_LATENCY_NS))] {
        let truth = shape.truth(latency_ns, DRAWS)?;
        for (service, known) in shape.services().iter().zip(&truth.services) {
            let row = got.services.iter().find(|s| {
                s.service == service.name && s.class == ALL_CLASSES && s.slow_latency_ns == at
            });
            let row = row.with_context(|| format!("no answer for {}", service.name))?;
            // The target is of the class's own latency.
            if at.is_none() {
                let off = (row.fast_share - known).abs();
                found.near.push(off <= NEAR);
                found.off.push(off);
            }
            found.service_intervals.extend(within(row.low, row.high, *known));
        }
        for (class, known) in ["small", "medium", "large"].iter().zip(&truth.classes) {
            let row =
                got.classes.iter().find(|c| &c.class == class && c.slow_latency_ns == latency_ns);
            let row = row.with_context(|| format!("no answer for {class}"))?;
            found.class_intervals.extend(within(row.low, row.high, *known));
        }
    }
    Ok(())
}

/// Processor time of the process so far, in s.
fn processor_s() -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Begins to measure the peak of memory anew, where the kernel can.
fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Most memory that the process had since then, in MiB.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string(Path::new("/proc/self/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib / 1024.0)
}

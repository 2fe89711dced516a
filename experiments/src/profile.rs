//! Makes a profile of a workload: the same references with all memory fast and with all of it slow,
//! interval by interval.

mod runs;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use terrace_core::page::Layout;
use terrace_core::remap::Remap;
use terrace_recordings::container::PartialFile;
use terrace_recordings::profile::{Header, Interval, ProfileWriter, TierSpeed};
use terrace_simulated::hardware::tier::TierConfig;
use terrace_simulated::hardware::units::Picoseconds;

use crate::file::Experiment;
use crate::reference;
use crate::run::{Event, Events};
use crate::unfinished::Unfinished;
pub use runs::Passes;
use runs::{Runs, Stretch};
use terrace_core::refuse;

/// The totals of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profiled {
    /// Intervals.
    pub intervals: u64,
    /// Loads and stores.
    pub references: u64,
    /// Run time with all memory fast.
    pub fast: Picoseconds,
    /// Run time with all memory slow.
    pub slow: Picoseconds,
}

/// Profiles the workload of the only group of an experiment at trace fidelity.
pub fn profile(
    experiment: &Experiment,
    out: &Path,
    interval_references: u64,
    events: &mut dyn Events,
) -> anyhow::Result<Profiled> {
    profile_in(Passes::One, experiment, out, interval_references, events)
}

/// [`profile`] with a choice of how the runs get the program's references.
pub fn profile_in(
    passes: Passes,
    experiment: &Experiment,
    out: &Path,
    interval_references: u64,
    events: &mut dyn Events,
) -> anyhow::Result<Profiled> {
    let [group] = &experiment.groups[..] else {
        return Err(refuse!(
            "{} groups: expected one, profiles are of one program each",
            experiment.groups.len()
        )
        .into());
    };
    if interval_references == 0 {
        return Err(refuse!("an interval of 0 references: expected at least 1").into());
    }
    let runs = Runs::new(experiment, group, passes)?;
    let header = Header {
        workload: reference::workload_name(&group.workload),
        machine: reference::machine_name(experiment),
        page_size: group.page_size.size(),
        footprint_bytes: runs.footprint_bytes,
        interval_references,
        tiers: reference::config(experiment)?.hardware.tiers.iter().map(speed).collect(),
        experiment: toml::to_string(experiment).ok(),
        created_by: terrace_identity::created_by("terrace"),
    };
    let name = out.display().to_string();
    let file = PartialFile::create(out)
        .map_err(|e| refuse!("{name}: {e}; expected a path that can be written"))?;
    let _unfinished = Unfinished::of(out);
    write(file, &name, &header, runs, events)
}

fn write(
    file: PartialFile,
    name: &str,
    header: &Header,
    runs: Runs,
    events: &mut dyn Events,
) -> anyhow::Result<Profiled> {
    let mut writer = ProfileWriter::new(file, name, header)?;
    let mut sum =
        Profiled { intervals: 0, references: 0, fast: Picoseconds::ZERO, slow: Picoseconds::ZERO };
    let mut before: Option<Arc<Layout>> = None;
    runs.each_interval(header.interval_references, |stretch| {
        let Stretch { fast, slow, mixed, scanned } = stretch;
        let scan = scanned.scan.context("a scan was asked for")?;
        if fast.references != slow.references {
            anyhow::bail!(
                "the workload made {} references with fast memory and {} with slow; expected the \
                 same, this is a defect of the workload",
                fast.references,
                slow.references
            );
        }
        let frames = scan.frames.as_deref().unwrap_or_default();
        let fresh = touched_in_order(before.as_deref(), &scan.layout, frames);
        before = Some(scan.layout.clone());
        writer.interval(&Interval {
            references: fast.references,
            fast_ps: fast.took.0,
            slow_ps: slow.took.0,
            mixed,
            scan_ps: scanned.took.since(fast.took).0,
            layout: scan.layout.clone(),
            accessed: scan.accessed,
            fresh,
            reads: scanned.page_reads,
        })?;
        sum.intervals += 1;
        let millions = sum.references / 1_000_000;
        sum.references += fast.references;
        sum.fast += fast.took;
        sum.slow += slow.took;
        if sum.references / 1_000_000 > millions {
            let text = format!("{} million references", sum.references / 1_000_000);
            events.event(Event::Stage(&text));
        }
        let is_over = fast.ended || slow.ended;
        Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    let file = writer.finish().context("writing the profile")?;
    file.publish().with_context(|| format!("writing {name}"))?;
    Ok(sum)
}

fn speed(tier: &TierConfig) -> TierSpeed {
    TierSpeed {
        name: tier.name.clone(),
        read_latency_ps: (tier.idle_read_ns() * 1e3).round() as u64,
        read_mb_per_s: (tier.read_gb_per_s() * 1e3).round() as u64,
    }
}

/// Pages that `before` did not have, in the order in which they were touched: without moves frames
/// are allocated in ascending order.
fn touched_in_order(before: Option<&Layout>, layout: &Layout, frames: &[u64]) -> Vec<usize> {
    let remap = match before {
        Some(before) => Remap::between(before, layout),
        None => Remap::from_nothing(layout),
    };
    let mut fresh: Vec<usize> = remap.fresh().flatten().collect();
    fresh.sort_by_key(|&page| frames.get(page).copied().unwrap_or(u64::MAX));
    fresh
}

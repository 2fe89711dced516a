//! Makes a profile of a workload: the same references with all memory fast and with all of it slow,
//! interval by interval.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use terrace_core::page::Layout;
use terrace_core::remap::Remap;
use terrace_recordings::container::PartialFile;
use terrace_recordings::mixed::MixedRun;
use terrace_recordings::profile::{Header, Interval, ProfileWriter, TierSpeed};
use terrace_simulated::hardware::tier::TierConfig;
use terrace_simulated::hardware::units::Picoseconds;
use terrace_simulated::reference::ReferenceMachine;

use crate::file::{Experiment, GroupSpec};
use crate::reference;
use crate::run::{Event, Events};
use terrace_core::refuse;

/// Mixed runs have one in so many pages slow. The first slow reads cost most (`docs/performance.md`),
/// so that is where measuring pays.
const SLOW_PARTS: [u64; 4] = [128, 32, 8, 2];

/// What a profile came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profiled {
    /// Intervals.
    pub intervals: u64,
    /// Loads and stores.
    pub references: u64,
    /// How long the program takes with all memory fast.
    pub fast: Picoseconds,
    /// How long it takes with all memory slow.
    pub slow: Picoseconds,
}

/// Profiles the workload of the only group of an experiment at trace fidelity.
pub fn profile(
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
    let fast = machine(experiment, group, reference::Share::AllFast)?;
    let slow = machine(experiment, group, reference::Share::AllSlow)?;
    let mixed = SLOW_PARTS
        .map(|part| machine(experiment, group, reference::Share::LastSlow(part)))
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?;
    // Another machine is looked at: that costs it time, which the others are spared.
    let seen = machine(experiment, group, reference::Share::AllFast)?;
    seen.count_pages();
    let header = Header {
        workload: reference::workload_name(&group.workload),
        machine: reference::machine_name(experiment),
        page_size: group.page_size.size(),
        footprint_bytes: fast.footprint_bytes(0),
        interval_references,
        tiers: reference::config(experiment)?.hardware.tiers.iter().map(speed).collect(),
        experiment: toml::to_string(experiment).ok(),
        created_by: terrace_identity::created_by("terrace"),
    };
    let name = out.display().to_string();
    let file = PartialFile::create(out)
        .map_err(|e| refuse!("{name}: {e}; expected a path that can be written"))?;
    let mut writer = ProfileWriter::new(file, &name, &header)?;
    let mut sum =
        Profiled { intervals: 0, references: 0, fast: Picoseconds::ZERO, slow: Picoseconds::ZERO };
    let mut before: Option<Arc<Layout>> = None;
    loop {
        let near = fast.run_references(0, interval_references, false)?;
        let far = slow.run_references(0, interval_references, false)?;
        let runs = mixed.iter().map(|machine| mixed_run(machine, interval_references));
        let runs = runs.collect::<anyhow::Result<Vec<_>>>()?;
        let looked_at = seen.run_references(0, interval_references, true)?;
        let scan = looked_at.scan.context("a scan was asked for")?;
        if near.references != far.references {
            anyhow::bail!(
                "the workload made {} references with fast memory and {} with slow; expected the \
                 same, this is a defect of the workload",
                near.references,
                far.references
            );
        }
        let frames = scan.frames.as_deref().unwrap_or_default();
        let fresh = touched_in_order(before.as_deref(), &scan.layout, frames);
        before = Some(scan.layout.clone());
        writer.interval(&Interval {
            references: near.references,
            fast_ps: near.took.0,
            slow_ps: far.took.0,
            mixed: runs,
            scan_ps: looked_at.took.since(near.took).0,
            layout: scan.layout.clone(),
            accessed: scan.accessed,
            fresh,
            reads: looked_at.page_reads,
        })?;
        sum.intervals += 1;
        let millions = sum.references / 1_000_000;
        sum.references += near.references;
        sum.fast += near.took;
        sum.slow += far.took;
        if sum.references / 1_000_000 > millions {
            let text = format!("{} million references", sum.references / 1_000_000);
            events.event(Event::Stage(&text));
        }
        if near.ended || far.ended {
            break;
        }
    }
    let file = writer.finish().context("writing the profile")?;
    file.publish().with_context(|| format!("writing {name}"))?;
    Ok(sum)
}

/// The next interval on a machine with a part of its memory slow.
fn mixed_run(machine: &ReferenceMachine, references: u64) -> anyhow::Result<MixedRun> {
    let before = machine.counts(0).reads;
    let work = machine.run_references(0, references, false)?;
    let after = machine.counts(0).reads;
    let read = |tier: usize| after[tier] - before[tier];
    let all: u64 = (0..after.len()).map(read).sum();
    let slow_ppm = (all - read(0)) * 1_000_000 / all.max(1);
    Ok(MixedRun { slow_ppm, took_ps: work.took.0 })
}

fn speed(tier: &TierConfig) -> TierSpeed {
    TierSpeed {
        name: tier.name.clone(),
        read_latency_ps: (tier.idle_read_ns() * 1e3).round() as u64,
        read_mb_per_s: (tier.read_gb_per_s() * 1e3).round() as u64,
    }
}

/// Pages that `before` did not have, in the order in which they were touched: on a machine where
/// nothing moves frames are given out in ascending order.
fn touched_in_order(before: Option<&Layout>, layout: &Layout, frames: &[u64]) -> Vec<usize> {
    let remap = match before {
        Some(before) => Remap::between(before, layout),
        None => Remap::from_nothing(layout),
    };
    let mut fresh: Vec<usize> = remap.fresh().flatten().collect();
    fresh.sort_by_key(|&page| frames.get(page).copied().unwrap_or(u64::MAX));
    fresh
}

/// A machine on which the program's memory is all fast, all slow, or in part slow.
fn machine(
    experiment: &Experiment,
    group: &GroupSpec,
    share: reference::Share,
) -> anyhow::Result<ReferenceMachine> {
    let config = reference::roomy(reference::config(experiment)?);
    let machine = ReferenceMachine::new(config)?;
    let source = reference::source(experiment, group)?;
    let _interfaces = machine.add_group(reference::unmanaged(group, share), source)?;
    Ok(machine)
}

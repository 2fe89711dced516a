//! The answer run at trace fidelity, where every load and store counts: whether the slowdown is
//! what was predicted, and what page tables in fast memory and huge pages would add.
//!
//! A check can correct the answer (`refine.rs`).

use anyhow::Context;
use serde::Serialize;
use terrace_core::InputError;
use terrace_core::page::{GroupPages, PageSize};
use terrace_experiments::Experiment;
use terrace_experiments::file::Fidelity;
use terrace_experiments::run::{Quiet, Request as RunRequest};
use terrace_experiments::runner::run;
use terrace_results::{RunRow, read};
use terrace_simulated::hardware::presets::MachineConfig;
use terrace_simulated::hardware::tier::{TierConfig, TierModel};
use terrace_simulated::os::{TablePlacement, TablePolicy};

use crate::memory::{Machine, Memory};
use crate::plan::{Plan, Request};
use crate::recording::Recording;
use crate::refine::refine;
use terrace_core::refuse;

/// The variant that all others are compared with.
pub const AS_PLANNED: &str = "as planned";

/// One run of the check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checked {
    /// Name of the program.
    pub program: String,
    /// The policy.
    pub policy: String,
    /// Which round of refining, from 0.
    pub round: u64,
    /// Share of fast memory.
    pub share: f64,
    /// Predicted slowdown.
    pub predicted: f64,
    /// Slowdown at trace fidelity.
    pub measured: f64,
}

/// The result of a variant of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhatIf {
    /// Name of the program.
    pub program: String,
    /// Name of the variant.
    pub variant: String,
    /// Run time in ms.
    pub duration_ms: f64,
    /// Part of the planned run time that it saves; negative where it takes longer.
    pub gain: f64,
}

/// The experiment to check a program with: the one given, or the recording's own.
pub fn experiment(
    recording: &Recording,
    given: Option<&Experiment>,
) -> Result<Experiment, InputError> {
    let own = recording.experiment.as_ref();
    let Some(experiment) = given.or(own) else {
        return Err(refuse!(
            "{}: it does not tell how it was made; expected the experiment: '--check-with \
             EXPERIMENT.toml'",
            recording.path.display()
        ));
    };
    if experiment.groups.len() != 1 {
        return Err(refuse!(
            "{} groups in the experiment: expected the one that was recorded",
            experiment.groups.len()
        ));
    }
    experiment.at_fidelity(Fidelity::Trace)
}

/// The experiment with the period and the bound on moves that the plan was asked for. It lasts as long as
/// before.
fn as_requested(experiment: &Experiment, request: &Request) -> Experiment {
    let mut experiment = experiment.clone();
    if let Some(period_ms) = request.period_ms {
        let lasts_us = experiment.periods.saturating_mul(experiment.period_length_us());
        // As many as an experiment may have.
        let periods = lasts_us.div_ceil(period_ms.saturating_mul(1000).max(1));
        experiment.periods = periods.clamp(1, 10_000_000);
        (experiment.period_ms, experiment.period_us) = (period_ms, None);
    }
    if request.moved_pages.is_some() {
        for group in &mut experiment.groups {
            group.moved_pages_per_period = request.moved_pages;
        }
    }
    experiment
}

/// The experiment under a policy, with a share of fast memory, on a machine.
fn with(
    experiment: &Experiment,
    policy: &str,
    share: f64,
    machine: &Machine,
    recorded: &Machine,
) -> anyhow::Result<Experiment> {
    let mut experiment = experiment.clone();
    let group = experiment.groups.first_mut().context("a group")?;
    group.policy = policy.to_owned();
    (group.fast_ratio, group.fast) = (Some(share), None);
    if machine.fast != recorded.fast || machine.slow != recorded.slow {
        let mut table = experiment.machine.hardware.clone().unwrap_or_default();
        if !table.contains_key("description") {
            let preset = crate::recording::ASSUMED_MACHINE;
            table.entry("preset").or_insert_with(|| preset.into());
        }
        let mut hardware = MachineConfig::try_from(table).map_err(InputError::new)?;
        for (tier, memory) in hardware.tiers.iter_mut().zip([&machine.fast, &machine.slow]) {
            as_planned(tier, memory)?;
        }
        let table = toml::Table::try_from(&hardware).context("writing the machine")?;
        experiment.machine.hardware = Some(table);
    }
    Ok(experiment.at_fidelity(Fidelity::Trace)?)
}

/// Gives a tier the latency and the bandwidth that were planned for.
fn as_planned(tier: &mut TierConfig, memory: &Memory) -> Result<(), InputError> {
    let bandwidth = tier.read_gb_per_s();
    let latency = tier.idle_read_ns();
    let differs = (bandwidth - memory.gb_per_s).abs() > 0.01 * bandwidth;
    match &mut tier.model {
        TierModel::Queueing(q) => {
            q.write_latency_ns *= memory.latency_ns / q.read_latency_ns;
            q.read_latency_ns = memory.latency_ns;
            if differs {
                q.write_gb_per_s *= memory.gb_per_s / q.read_gb_per_s;
                q.read_gb_per_s = memory.gb_per_s;
                q.link = None;
            }
        }
        // Its bandwidth follows from the timing of its commands, which has no factor.
        TierModel::Dram(_) if differs => {
            return Err(refuse!(
                "tier '{}' with DRAM by command is planned with {:.1} GB/s and has {bandwidth:.1} \
                 GB/s: expected the same bandwidth; plan without --slow-bandwidth-gbps, or check \
                 with an experiment whose tier has it ('--check-with EXPERIMENT.toml')",
                tier.name,
                memory.gb_per_s
            ));
        }
        TierModel::Dram(d) => d.path_ns += memory.latency_ns - latency,
    }
    Ok(())
}

fn measure(experiment: Experiment) -> anyhow::Result<RunRow> {
    let folder = tempfile::tempdir().context("a folder for the check's results")?;
    let request = RunRequest::simulated(experiment, folder.path().to_owned());
    run(request, &mut Quiet)?;
    read::<RunRow>(folder.path())?.into_iter().next().context("a row of the run")
}

/// Slowdown at trace fidelity.
pub fn slowdown(
    experiment: &Experiment,
    policy: &str,
    share: f64,
    machine: &Machine,
    recorded: &Machine,
) -> anyhow::Result<f64> {
    let row = measure(with(experiment, policy, share, machine, recorded)?)?;
    row.slowdown.with_context(|| {
        format!(
            "{} did not end within {} periods; give its experiment more",
            row.experiment, row.periods
        )
    })
}

/// Runs the recommendation for a program at trace fidelity, and up to `rounds` corrections of it.
/// The recommendation is changed to the least share that was run and met the target.
pub fn check(
    plan: &mut Plan,
    request: &Request,
    program: usize,
    experiment: &Experiment,
    rounds: u64,
    progress: &dyn Fn(&str),
) -> anyhow::Result<Vec<Checked>> {
    let machine = request.machines[plan.machine].clone();
    let recorded = &request.recordings[program].machine;
    let name = plan.recommended[program].program.clone();
    let experiment = as_requested(experiment, request);
    let mut measure = |round: u64, policy: &str, share: f64| {
        progress(&format!("running {name} at trace fidelity, round {round}"));
        slowdown(&experiment, policy, share, &machine, recorded)
    };
    refine(plan, request, program, rounds, &mut measure)
}

/// Runs variants of the recommendation for a program at trace fidelity.
pub fn what_if(
    plan: &Plan,
    request: &Request,
    program: usize,
    experiment: &Experiment,
    progress: &dyn Fn(&str),
) -> anyhow::Result<Vec<WhatIf>> {
    let machine = &request.machines[plan.machine];
    let recording = &request.recordings[program];
    let chosen = &plan.recommended[program];
    let experiment = as_requested(experiment, request);
    let base = with(&experiment, &chosen.policy, chosen.point.share, machine, &recording.machine)?;
    let tables = |placement, migrate| {
        let mut variant = base.clone();
        for group in &mut variant.groups {
            group.tables = Some(TablePolicy { placement, migrate, hard: false });
        }
        variant
    };
    let mut variants = vec![
        (AS_PLANNED, base.clone()),
        (
            "page tables bound to fast memory but for leaves, which follow their data",
            tables(TablePlacement::BindHighLevels, true),
        ),
        ("all page tables in fast memory", tables(TablePlacement::BindAll, false)),
    ];
    if recording.page_size == PageSize::Base {
        let mut huge = base.clone();
        for group in &mut huge.groups {
            group.page_size = GroupPages::Huge;
            // As many bytes as before.
            group.moved_pages_per_period =
                group.moved_pages_per_period.map(|pages| pages.div_ceil(512));
        }
        variants.push(("huge pages", huge));
    }
    let mut rows: Vec<WhatIf> = Vec::new();
    for (variant, experiment) in variants {
        progress(&format!("running {} at trace fidelity: {variant}", chosen.program));
        let row = measure(experiment)?;
        let duration_ms = row.duration_ms.context("a run that did not end")?;
        let as_planned = rows.first().map_or(duration_ms, |first| first.duration_ms);
        rows.push(WhatIf {
            program: chosen.program.clone(),
            variant: variant.to_owned(),
            duration_ms,
            gain: 1.0 - duration_ms / as_planned,
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_bandwidth_that_a_tier_cannot_have_is_refused() {
        let planned = |preset: &str, latency_ns, gb_per_s| {
            let text = format!(
                "name = \"e\"\nperiod_ms = 1\nperiods = 10\n[machine]\nfidelity = \"trace\"\n\
                 fast = \"16M\"\nslow = \"16M\"\nhardware.preset = \"{preset}\"\n[[groups]]\n\
                 name = \"g\"\nfast_ratio = 0.5\nworkload = {{ kind = \"program\", name = \"gups\" }}\n"
            );
            let experiment = Experiment::parse(&text, PathBuf::new()).unwrap();
            let recorded = Machine::preset(preset).unwrap();
            let machine = recorded.with_slow(latency_ns, gb_per_s);
            with(&experiment, "lru", 0.5, &machine, &recorded)
        };
        let refused = planned("server-ddr5-cxl-timing", None, Some(20.0)).unwrap_err().to_string();
        assert!(refused.contains("is planned with 20.0 GB/s and has"), "{refused}");
        assert!(refused.contains("expected the same bandwidth") && !refused.contains('\n'));
        // Its latency can be changed, and so can the bandwidth of a tier with a queue.
        for (preset, latency_ns, gb_per_s) in
            [("server-ddr5-cxl-timing", Some(300.0), None), ("server-ddr5-cxl", None, Some(20.0))]
        {
            let experiment = planned(preset, latency_ns, gb_per_s).unwrap();
            let table = experiment.machine.hardware.unwrap();
            let slow = Memory::from(&MachineConfig::try_from(table).unwrap().tiers[1]);
            assert!(latency_ns.is_none_or(|ns| (slow.latency_ns - ns).abs() < 1e-6), "{slow:?}");
            assert!(gb_per_s.is_none_or(|gb| (slow.gb_per_s - gb).abs() < 1e-6), "{slow:?}");
        }
    }

    #[test]
    fn a_check_has_the_period_and_the_moves_that_the_plan_was_asked_for() {
        let text = "name = \"e\"\nperiod_us = 500\nperiods = 1000\n[machine]\nfidelity = \"trace\"\n\
                    [[groups]]\nname = \"g\"\nfast_ratio = 0.5\n\
                    workload = { kind = \"program\", name = \"gups\" }\n";
        let experiment = Experiment::parse(text, PathBuf::new()).unwrap();
        let mut request = Request {
            recordings: Vec::new(),
            machines: Vec::new(),
            target: 1.05,
            policies: Vec::new(),
            fast_at_most: 1.0,
            seeds: 1,
            period_ms: None,
            moved_pages: None,
            settle_periods: 0,
            resolution: 0.01,
            jobs: 1,
        };
        let own = as_requested(&experiment, &request);
        assert_eq!((own.period_length_us(), own.periods), (500, 1000));
        (request.period_ms, request.moved_pages) = (Some(100), Some(64));
        let asked = as_requested(&experiment, &request);
        assert_eq!((asked.period_length_us(), asked.periods), (100_000, 5), "half a second");
        assert_eq!(asked.groups[0].moved_pages_per_period, Some(64));
    }
}

//! One recording under one policy with one share of fast memory.

use serde_json::Value;
use terrace_core::InputError;
use terrace_core::interfaces::MachineError;
use terrace_core::policy;
use terrace_engine::{Engine, FastLimit, Group, Observer, Options, PeriodReport};
use terrace_experiments::heat::{self, Heat};
use terrace_results::HeatRow;
use terrace_simulated::os::OsConfig;
use terrace_simulated::{GroupConfig, Machine as SimulatedMachine, MachineConfig};

use crate::memory::Machine;
use crate::recording::Recording;

/// Tiers without bounds: the group's share bounds it.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// Periods after which a run is given up: nothing that ends takes so many.
const MOST_PERIODS: u64 = 50_000_000;

/// Parameters of one playback.
#[derive(Debug, Clone)]
pub struct Setup<'a> {
    /// The policy.
    pub policy: &'a str,
    /// Its parameters, or null.
    pub parameters: &'a Value,
    /// Share of the footprint that may be in fast memory, 0 to 1.
    pub share: f64,
    /// Seed of the policy.
    pub seed: u64,
    /// Length of a period.
    pub period_ms: u64,
    /// Pages that may be moved in a period.
    pub moved_pages: u64,
    /// Periods at the beginning that are played and not counted.
    pub settle_periods: u64,
    /// Costs of moves.
    pub os: &'a OsConfig,
    /// The memory.
    pub machine: &'a Machine,
    /// Whether the time follows the share of slow reads in proportion.
    pub in_proportion: bool,
    /// Whether to record the heat map.
    pub heat: bool,
}

/// The result of one playback.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    /// Run time over that with all memory fast.
    pub slowdown: f64,
    /// Accessed pages that were fast, over accessed pages.
    pub hit_ratio: f64,
    /// Pages moved, either way.
    pub moved_pages: u64,
    /// Periods it took.
    pub periods: u64,
    /// The heat map, where it was requested.
    pub heat: Vec<HeatRow>,
}

#[derive(Default)]
struct Watch {
    settle_periods: u64,
    accessed: u64,
    hits: u64,
    moved: u64,
    periods: u64,
    heat: Option<Heat>,
}

impl Observer for Watch {
    fn period(&mut self, report: &PeriodReport<'_>) -> Result<(), MachineError> {
        self.periods += 1;
        if self.periods <= self.settle_periods {
            return Ok(());
        }
        self.accessed += report.scan.accessed.count() as u64;
        self.hits += report.scan.accessed.count_and(&report.scan.fast) as u64;
        self.moved += report.outcome.promoted_pages + report.outcome.demoted_pages;
        if let Some(heat) = &mut self.heat {
            heat.add(report.scan);
        }
        Ok(())
    }

    fn lost(&mut self, _: usize, _: u32, _: &str) -> Result<(), MachineError> {
        Ok(())
    }
}

/// Plays it.
pub fn play(recording: &Recording, setup: &Setup<'_>) -> anyhow::Result<Played> {
    let policy =
        policy::build(setup.policy, setup.parameters, setup.seed).map_err(InputError::new)?;
    let config = MachineConfig {
        seed: setup.seed,
        ..MachineConfig::new(NO_LIMIT_BYTES, NO_LIMIT_BYTES, setup.period_ms)
    };
    let machine = SimulatedMachine::new(config)?;
    let page_size = recording.page_size;
    let share = FastLimit::Ratio(setup.share).of_whole(page_size, recording.footprint_bytes);
    let group = GroupConfig {
        name: recording.name.clone(),
        page_size,
        allocation: policy.allocation(),
        fast_budget: Box::new(move |layout| share.pages(layout)),
        initial: None,
    };
    let intervals = recording.play_on(setup.machine, setup.in_proportion)?;
    let (mut tracker, mover) = machine.add_timed_group(group, intervals, setup.os)?;
    if policy.needs_frames() {
        tracker.tell_frames();
    }
    let group = Group {
        name: recording.name.clone(),
        tracker: Box::new(tracker),
        policy,
        mover: Box::new(mover),
        share,
        moved_pages: setup.moved_pages,
    };
    let heat = setup.heat.then(|| Heat::new(page_size));
    let mut watch = Watch { settle_periods: setup.settle_periods, heat, ..Watch::default() };
    let mut engine = Engine::new(vec![group], Options::default());
    // Checked before each period.
    let mut periods = 0;
    let mut settled = None;
    engine.run(&mut watch, || {
        if periods == setup.settle_periods {
            settled = machine.so_far_ps(0);
        }
        periods += 1;
        periods > MOST_PERIODS
    })?;
    let counted = |(took, fast): (u64, u64)| {
        let (before, fast_before) = settled?;
        Some((took - before, fast - fast_before)).filter(|(_, fast)| *fast > 0)
    };
    if watch.periods <= setup.settle_periods && setup.settle_periods > 0 {
        return Err(InputError::new(format_args!(
            "{} is over after {} periods, of which {} are not to be counted: expected fewer",
            recording.name, watch.periods, setup.settle_periods
        ))
        .into());
    }
    let Some((took, fast)) = machine.duration_ps(0).and_then(counted) else {
        anyhow::bail!(
            "{} did not end within {MOST_PERIODS} periods under {}; give a longer --period-ms",
            recording.name,
            setup.policy
        );
    };
    let heat = watch.heat.map(|map| heat::rows(&map, setup.policy, &recording.name));
    Ok(Played {
        slowdown: took as f64 / fast as f64,
        hit_ratio: if watch.accessed == 0 {
            1.0
        } else {
            watch.hits as f64 / watch.accessed as f64
        },
        moved_pages: watch.moved,
        periods: watch.periods,
        heat: heat.unwrap_or_default(),
    })
}

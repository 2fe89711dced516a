//! The runs of a profile: the same references with different parts of memory slow.
//!
//! Translations and caches of all but the scanned run are simulated once, where that is possible
//! (`terrace_simulated::reference::can_lead`): for a program of one thread.

use std::ops::ControlFlow;
use std::sync::mpsc::channel;

use anyhow::Context;
use terrace_core::InputError;
use terrace_recordings::mixed::MixedRun;
use terrace_simulated::reference::{
    Follower, ReferenceConfig, ReferenceMachine, ReferenceSource, TIERS, Work, can_lead, lead,
    shared,
};

use crate::file::{Experiment, GroupSpec};
use crate::reference::{self, Share};

/// One page in so many is slow in the mixed runs. The first slow reads cost most
/// (`docs/performance.md`), so most runs have few.
const SLOW_PARTS: [u64; 4] = [128, 32, 8, 2];

/// How the runs get the program's references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// The program runs, or its recording is decoded, once; the runs go on side by side.
    One,
    /// Every run has a source of its own, and they take turns. The profile is the same; one pass is
    /// compared with this.
    Apart,
}

/// Results of all runs in an interval.
pub(super) struct Stretch {
    /// All memory fast.
    pub(super) fast: Work,
    /// All memory slow.
    pub(super) slow: Work,
    /// Parts of it slow.
    pub(super) mixed: Vec<MixedRun>,
    /// All memory fast, and accessed bits read at the end of the interval.
    pub(super) scanned: Work,
}

/// One run.
enum Run {
    /// A machine of its own, whose accessed bits are read at the end of each interval if `is_scanned`.
    Alone { machine: ReferenceMachine, is_scanned: bool },
    /// A machine that has translations and caches in common with others.
    Following(Box<Follower>),
}

/// All runs of a profile.
pub(super) struct Runs {
    runs: Vec<Run>,
    passes: Passes,
    pub(super) footprint_bytes: Option<u64>,
}

impl Runs {
    pub(super) fn new(
        experiment: &Experiment,
        group: &GroupSpec,
        passes: Passes,
    ) -> anyhow::Result<Self> {
        let config = reference::roomy(reference::config(experiment)?);
        let source = || reference::source(experiment, group);
        let first = source()?;
        let footprint_bytes = first.footprint_bytes();
        let all_fast = reference::unmanaged(group, Share::AllFast);
        let runs = match can_lead(&config, &all_fast, &*first) {
            true => in_common(&config, group, passes, first, source)?,
            false => apart(&config, group, passes, first, source)?,
        };
        if let Some(Run::Alone { machine, .. }) = runs.last() {
            machine.count_pages();
        }
        Ok(Runs { runs, passes, footprint_bytes })
    }

    /// Runs everything to its end and passes `take` one interval after the other.
    pub(super) fn each_interval(
        mut self,
        references: u64,
        mut take: impl FnMut(Stretch) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        match self.passes {
            Passes::One => side_by_side(self.runs, references, take),
            Passes::Apart => loop {
                let all = self.runs.iter_mut().map(|run| run.next(references)).collect();
                if take(stretch(all)?)?.is_break() {
                    return Ok(());
                }
            },
        }
    }
}

/// Every run on a thread of its own. None runs far ahead of the shared source, so few intervals
/// wait to be taken.
fn side_by_side(
    runs: Vec<Run>,
    references: u64,
    mut take: impl FnMut(Stretch) -> anyhow::Result<ControlFlow<()>>,
) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let results: Vec<_> = runs
            .into_iter()
            .map(|mut run| {
                let (sender, receiver) = channel();
                scope.spawn(move || {
                    loop {
                        let next = run.next(references);
                        let is_last = next.as_ref().map_or(true, |(work, _)| work.ended);
                        if sender.send(next).is_err() || is_last {
                            return;
                        }
                    }
                });
                receiver
            })
            .collect();
        loop {
            let next = results.iter().map(|result| {
                result.recv().context("a run of the profile ended before the others")?
            });
            if take(stretch(next.collect())?)?.is_break() {
                return Ok(());
            }
        }
    })
}

impl Run {
    /// The next interval, and the share of its reads that were slow.
    fn next(&mut self, references: u64) -> anyhow::Result<(Work, u64)> {
        let before = self.reads();
        let work = match self {
            Run::Alone { machine, is_scanned } => {
                machine.run_references(0, references, *is_scanned)?
            }
            Run::Following(machine) => machine.run_references(references)?,
        };
        let after = self.reads();
        let read = |tier: usize| after[tier] - before[tier];
        let all: u64 = (0..after.len()).map(read).sum();
        Ok((work, (all - read(0)) * 1_000_000 / all.max(1)))
    }

    fn reads(&self) -> [u64; TIERS] {
        match self {
            Run::Alone { machine, .. } => machine.counts(0).reads,
            Run::Following(machine) => machine.reads(),
        }
    }
}

/// Combines the results of the runs, in their order.
fn stretch(all: anyhow::Result<Vec<(Work, u64)>>) -> anyhow::Result<Stretch> {
    let mut all = all?.into_iter();
    let mut next = || all.next().context("a profile has more runs");
    let (fast, slow) = (next()?.0, next()?.0);
    let mixed = SLOW_PARTS.map(|_| next());
    let mixed = mixed
        .into_iter()
        .map(|run| run.map(|(work, slow_ppm)| MixedRun { slow_ppm, took_ps: work.took.0 }));
    let mixed = mixed.collect::<anyhow::Result<_>>()?;
    Ok(Stretch { fast, slow, mixed, scanned: next()?.0 })
}

/// Fast memory of each run but the scanned one, in their order.
fn shares() -> Vec<Share> {
    let mut shares = vec![Share::AllFast, Share::AllSlow];
    shares.extend(SLOW_PARTS.map(Share::LastSlow));
    shares
}

/// All runs, each on a machine of its own. The scanned one is the last.
fn apart(
    config: &ReferenceConfig,
    group: &GroupSpec,
    passes: Passes,
    first: Box<dyn ReferenceSource>,
    source: impl Fn() -> Result<Box<dyn ReferenceSource>, InputError>,
) -> anyhow::Result<Vec<Run>> {
    let mut shares = shares();
    // A separate machine is scanned: scans cost time, which the others do not have.
    shares.push(Share::AllFast);
    let sources = match passes {
        Passes::One => shared(first, shares.len()),
        Passes::Apart => shares.iter().map(|_| source()).collect::<Result<_, _>>()?,
    };
    let last = shares.len() - 1;
    let runs = shares.into_iter().zip(sources).enumerate();
    runs.map(|(n, (share, source))| alone(config, group, share, source, n == last)).collect()
}

/// All runs, of which all but the scanned one, which is the last, follow a leader.
fn in_common(
    config: &ReferenceConfig,
    group: &GroupSpec,
    passes: Passes,
    first: Box<dyn ReferenceSource>,
    source: impl Fn() -> Result<Box<dyn ReferenceSource>, InputError>,
) -> anyhow::Result<Vec<Run>> {
    let group_of = |share| reference::unmanaged(group, share);
    let led = |shares: &[Share], source| {
        let groups = shares.iter().map(|share| group_of(*share)).collect();
        lead(config, &group_of(Share::AllFast), groups, source)
    };
    let shares = shares();
    let (followers, of_scanned) = match passes {
        Passes::One => {
            let mut sources = shared(first, 2);
            let (of_scanned, of_leader) = (sources.pop(), sources.pop());
            let of_leader = of_leader.context("a source for two")?;
            (led(&shares, of_leader)?, of_scanned.context("a source for two")?)
        }
        Passes::Apart => {
            let mut followers = Vec::new();
            for share in shares {
                followers.extend(led(&[share], source()?)?);
            }
            (followers, first)
        }
    };
    let followers = followers.into_iter().map(|f| Ok(Run::Following(Box::new(f))));
    followers.chain([alone(config, group, Share::AllFast, of_scanned, true)]).collect()
}

/// A machine on which a part of the program's memory is slow.
fn alone(
    config: &ReferenceConfig,
    group: &GroupSpec,
    share: Share,
    source: Box<dyn ReferenceSource>,
    is_scanned: bool,
) -> anyhow::Result<Run> {
    let machine = ReferenceMachine::new(config.clone())?;
    let _interfaces = machine.add_group(reference::unmanaged(group, share), source)?;
    Ok(Run::Alone { machine, is_scanned })
}

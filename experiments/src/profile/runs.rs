//! The runs of a profile: the same references with different parts of memory slow.
//!
//! Translations and caches of all but the scanned run are simulated once, where that is possible
//! (`terrace_simulated::reference::can_lead`): for a program of one thread.

use std::ops::ControlFlow;
use std::sync::mpsc::channel;

use anyhow::Context;
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
        let leads = can_lead(&config, &all_fast, &*first);
        let sources = |count| -> anyhow::Result<Vec<Box<dyn ReferenceSource>>> {
            Ok(match passes {
                Passes::One => shared(first, count),
                Passes::Apart => {
                    let others = (1..count).map(|_| source());
                    std::iter::once(Ok(first)).chain(others).collect::<Result<_, _>>()?
                }
            })
        };
        // The scanned run has a machine to itself: scans cost time, which the others do not have.
        let others = shares();
        let runs = match (leads, passes) {
            (true, Passes::One) => in_common(&config, group, &others, sources(2)?)?,
            (true, Passes::Apart) => {
                in_common(&config, group, &others, sources(others.len() + 1)?)?
            }
            (false, _) => apart(&config, group, &others, sources(others.len() + 1)?)?,
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

/// Runs with these shares and the scanned one, each on a machine of its own.
fn apart(
    config: &ReferenceConfig,
    group: &GroupSpec,
    others: &[Share],
    sources: Vec<Box<dyn ReferenceSource>>,
) -> anyhow::Result<Vec<Run>> {
    let shares = others.iter().map(|share| (*share, false)).chain([(Share::AllFast, true)]);
    let runs = shares.zip(sources);
    runs.map(|((share, is_scanned), source)| alone(config, group, share, source, is_scanned))
        .collect()
}

/// Runs with these shares, as many after each other as there are for each source but the last follow one
/// leader; and the scanned one, which has the last.
fn in_common(
    config: &ReferenceConfig,
    group: &GroupSpec,
    others: &[Share],
    mut sources: Vec<Box<dyn ReferenceSource>>,
) -> anyhow::Result<Vec<Run>> {
    let group_of = |share| reference::unmanaged(group, share);
    let of_scanned = sources.pop().context("a source for the scanned run")?;
    let mut runs = Vec::new();
    for (shares, source) in others.chunks(others.len() / sources.len()).zip(sources) {
        let groups = shares.iter().map(|share| group_of(*share)).collect();
        let followers = lead(config, &group_of(Share::AllFast), groups, source)?;
        runs.extend(followers.into_iter().map(|machine| Run::Following(Box::new(machine))));
    }
    runs.push(alone(config, group, Share::AllFast, of_scanned, true)?);
    Ok(runs)
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

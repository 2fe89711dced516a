//! The runs of a profile: the same references with different parts of memory slow.

use std::ops::ControlFlow;
use std::sync::mpsc::channel;

use anyhow::Context;
use terrace_recordings::mixed::MixedRun;
use terrace_simulated::reference::{ReferenceMachine, ReferenceSource, Work, shared};

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
struct Run {
    machine: ReferenceMachine,
    is_scanned: bool,
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
        let mixed = SLOW_PARTS.map(Share::LastSlow);
        let mut shares = vec![Share::AllFast, Share::AllSlow];
        shares.extend(mixed);
        // A separate machine is scanned: scans cost time, which the others do not have.
        shares.push(Share::AllFast);
        let source = || reference::source(experiment, group);
        let sources = match passes {
            Passes::One => shared(source()?, shares.len()),
            Passes::Apart => shares.iter().map(|_| source()).collect::<Result<_, _>>()?,
        };
        let footprint_bytes = sources.first().and_then(|s| s.footprint_bytes());
        let last = shares.len() - 1;
        let runs = shares.into_iter().zip(sources).enumerate();
        let runs = runs.map(|(n, (share, source))| {
            let machine = machine(experiment, group, share, source)?;
            let is_scanned = n == last;
            if is_scanned {
                machine.count_pages();
            }
            Ok(Run { machine, is_scanned })
        });
        Ok(Runs { runs: runs.collect::<anyhow::Result<_>>()?, passes, footprint_bytes })
    }

    /// Runs everything to its end and passes `take` one interval after the other.
    pub(super) fn each_interval(
        self,
        references: u64,
        mut take: impl FnMut(Stretch) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        match self.passes {
            Passes::One => side_by_side(self.runs, references, take),
            Passes::Apart => loop {
                let all = self.runs.iter().map(|run| run.next(references)).collect();
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
            .map(|run| {
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
    fn next(&self, references: u64) -> anyhow::Result<(Work, u64)> {
        let before = self.machine.counts(0).reads;
        let work = self.machine.run_references(0, references, self.is_scanned)?;
        let after = self.machine.counts(0).reads;
        let read = |tier: usize| after[tier] - before[tier];
        let all: u64 = (0..after.len()).map(read).sum();
        Ok((work, (all - read(0)) * 1_000_000 / all.max(1)))
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

/// A machine on which a part of the program's memory is slow.
fn machine(
    experiment: &Experiment,
    group: &GroupSpec,
    share: Share,
    source: Box<dyn ReferenceSource>,
) -> anyhow::Result<ReferenceMachine> {
    let config = reference::roomy(reference::config(experiment)?);
    let machine = ReferenceMachine::new(config)?;
    let _interfaces = machine.add_group(reference::unmanaged(group, share), source)?;
    Ok(machine)
}

//! Simulated runs, several at a time: each keeps its rows until those before it are written, so that
//! the results do not depend on how many there are.

use anyhow::Context;
use terrace_recordings::container::PartialFile;

use crate::file::Fidelity;
use crate::reference::{self, Baseline};
use crate::rows::{Kept, Rows};
use crate::run::{Event, Events, Run, starts};
use crate::simulated;

/// Runs them and adds their rows to the tables, in order.
pub(crate) fn run(
    runs: &[Run<'_>],
    jobs: usize,
    tables: &mut dyn Rows,
    events: &mut dyn Events,
) -> anyhow::Result<()> {
    let baseline = match runs.first() {
        Some(run) if run.experiment.machine.fidelity != Fidelity::Trace => Baseline::new(),
        Some(run) if !run.experiment.slowdown => vec![None; run.experiment.groups.len()],
        Some(run) => {
            events.event(Event::Stage("running with all memory fast, for comparison"));
            reference::baseline(&run.experiment).context("run with all memory fast")?
        }
        None => Baseline::new(),
    };
    if jobs <= 1 || runs.len() <= 1 {
        for (index, run) in runs.iter().enumerate() {
            events.event(starts(run, index, runs.len()));
            one(run, &baseline, tables, events)?;
            events.event(Event::RunEnds);
        }
        return Ok(());
    }
    let work = |run: &Run<'_>| {
        let mut kept = Kept::default();
        one(run, &baseline, &mut kept, &mut Nobody).map(|()| kept)
    };
    terrace_jobs::in_turn(runs, jobs, work, |index, kept| {
        events.event(starts(&runs[index], index, runs.len()));
        kept.give(tables)?;
        events.event(Event::RunEnds);
        Ok(())
    })
}

fn one(
    run: &Run<'_>,
    baseline: &Baseline,
    rows: &mut dyn Rows,
    events: &mut dyn Events,
) -> anyhow::Result<()> {
    let done = match run.experiment.machine.fidelity {
        Fidelity::Interval => simulated::run(run, rows, events),
        Fidelity::Trace => reference::run(run, baseline, rows, events),
    };
    if done.is_err() {
        // Half a recording of what can be run again at any time is of no use to anybody.
        let _ = std::fs::remove_file(PartialFile::partial_of(&run.recording()));
    }
    done.map(|_| ()).with_context(|| format!("run '{}'", run.name))
}

/// Several at once have no progress to show but their ends.
struct Nobody;

impl Events for Nobody {
    fn event(&mut self, _event: Event<'_>) {}
}

//! Simulated runs, several at a time: each keeps its rows until those before it are written, so
//! that the results do not depend on the number of jobs.

use anyhow::Context;
use terrace_results::RunRow;

use crate::rows::{Kept, Rows};
use crate::run::{Event, Events, Quiet, Run, starts};
use crate::unfinished::Unfinished;

/// Runs them by `one` and adds their rows to the tables, in order.
pub(crate) fn run(
    runs: &[Run<'_>],
    tables: &mut dyn Rows,
    events: &mut dyn Events,
    one: impl Fn(&Run<'_>, &mut dyn Rows, &mut dyn Events) -> anyhow::Result<Vec<RunRow>> + Sync,
) -> anyhow::Result<()> {
    let whole = |run: &Run<'_>, rows: &mut dyn Rows, events: &mut dyn Events| {
        // It can be made again at any time.
        let _recording = Unfinished::of(&run.recording());
        one(run, rows, events).map(|_| ()).with_context(|| format!("run '{}'", run.name))
    };
    let jobs = runs.first().map_or(1, |run| run.request.jobs);
    if jobs <= 1 || runs.len() <= 1 {
        for (index, run) in runs.iter().enumerate() {
            events.event(starts(run, index, runs.len()));
            whole(run, tables, events)?;
            events.event(Event::RunEnds);
        }
        return Ok(());
    }
    let work = |run: &Run<'_>| {
        let mut kept = Kept::default();
        whole(run, &mut kept, &mut Quiet).map(|()| kept)
    };
    terrace_jobs::in_turn(runs, jobs, work, |index, kept| {
        events.event(starts(&runs[index], index, runs.len()));
        kept.give(tables)?;
        events.event(Event::RunEnds);
        Ok(())
    })
}

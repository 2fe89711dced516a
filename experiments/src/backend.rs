//! The machines that experiments run on, and the choice by a request.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use terrace_results::RunRow;

use crate::file::Fidelity;
use crate::host::ThisHost;
use crate::reference::TraceDriven;
use crate::rows::Rows;
use crate::run::{Event, Events, MachineKind, Request, Run, starts};
use crate::simulated::Simulated;
use crate::virtual_machine::VirtualMachine;

/// Something that experiments run on.
pub(crate) trait Backend: Sync {
    /// Refuses runs that are impossible, before anything is written or changed.
    fn check(&self, runs: &[Run<'_>]) -> anyhow::Result<()>;

    /// Folders that its runs write to, beside that of recordings.
    fn folders(&self, _request: &Request) -> Vec<&'static str> {
        Vec::new()
    }

    /// Runs them and adds their rows to the tables, in order. False when a run finished and found a
    /// program's data damaged.
    fn run(
        &self,
        runs: &[Run<'_>],
        tables: &mut dyn Rows,
        events: &mut dyn Events,
    ) -> anyhow::Result<bool>;
}

/// Runs them one after the other. After a request to stop the run that is under way ends early: alone it
/// has results of its own, among others none that compare.
pub(crate) fn one_by_one(
    runs: &[Run<'_>],
    stop: &AtomicBool,
    events: &mut dyn Events,
    mut one: impl FnMut(&Run<'_>, &mut dyn Events) -> anyhow::Result<Vec<RunRow>>,
) -> anyhow::Result<bool> {
    let mut all_well = true;
    for (index, run) in runs.iter().enumerate() {
        events.event(starts(run, index, runs.len()));
        let rows = one(run, events).with_context(|| format!("run '{}'", run.name))?;
        events.event(Event::RunEnds);
        all_well &= rows.iter().all(|r| r.checksum_ok != Some(false));
        if runs.len() > 1 && stop.load(Ordering::Relaxed) {
            bail!(
                "interrupted in run '{}', {} of {}: no further run was started, and there are no \
                 results",
                run.name,
                index + 1,
                runs.len()
            );
        }
    }
    Ok(all_well)
}

/// The backend of a request.
pub(crate) fn of(request: &Request) -> &'static dyn Backend {
    match (request.machine, request.experiment.machine.fidelity) {
        (MachineKind::Simulated, Fidelity::Interval) => &Simulated,
        (MachineKind::Simulated, Fidelity::Trace) => &TraceDriven,
        (MachineKind::Virtual, _) => &VirtualMachine,
        (MachineKind::Host, _) => &ThisHost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Experiment;
    use crate::run::Quiet;

    #[test]
    fn after_a_request_to_stop_no_further_run_is_started() {
        let text = "name = \"small\"\nperiod_ms = 10\nperiods = 2\n\
                    [[groups]]\nname = \"g\"\nfast_ratio = 0.5\npolicy = \"lru\"\n\
                    workload = { kind = \"hotcold\", footprint_mib = 16 }\n";
        let experiment = Experiment::parse(text, ".".into()).unwrap();
        let request = Request::simulated(experiment.clone(), "out".into());
        let run = |name: &str| {
            let (name, experiment) = (name.to_owned(), experiment.clone());
            Run { name, experiment, rival: None, request: &request }
        };
        let runs = [run("lru"), run("lfu"), run("amp")];
        let started = |runs: &[Run<'_>], stops_in: &str| {
            let stop = AtomicBool::new(false);
            let mut started = Vec::new();
            let done = one_by_one(runs, &stop, &mut Quiet, |run, _| {
                started.push(run.name.clone());
                stop.store(run.name == stops_in, Ordering::Relaxed);
                Ok(Vec::new())
            });
            (started, done.map_err(|error| error.to_string()))
        };
        let (names, done) = started(&runs, "lfu");
        let error = done.unwrap_err();
        assert_eq!(names, ["lru", "lfu"]);
        assert!(error.starts_with("interrupted in run 'lfu', 2 of 3:"), "{error}");
        assert!(started(&runs, "amp").1.is_err());
        // What one run has until then is its result.
        assert_eq!(started(&runs[..1], "lru").1, Ok(true));
        assert_eq!(started(&runs, "").1, Ok(true));
    }
}

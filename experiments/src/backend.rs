//! The machines that experiments run on, and the choice by a request.

use anyhow::Context;
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

/// Runs them one after the other.
pub(crate) fn one_by_one(
    runs: &[Run<'_>],
    events: &mut dyn Events,
    mut one: impl FnMut(&Run<'_>, &mut dyn Events) -> anyhow::Result<Vec<RunRow>>,
) -> anyhow::Result<bool> {
    let mut all_well = true;
    for (index, run) in runs.iter().enumerate() {
        events.event(starts(run, index, runs.len()));
        let rows = one(run, events).with_context(|| format!("run '{}'", run.name))?;
        events.event(Event::RunEnds);
        all_well &= rows.iter().all(|r| r.checksum_ok != Some(false));
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

//! Runs an experiment: once as written, or once under each of several policies, on the machine
//! asked for, into one results directory.

use std::path::{Path, PathBuf};

use anyhow::Context;
use terrace_results::RunRow;

use crate::file::{Clock, Experiment, Fidelity};
use crate::parallel;
use crate::rows::Tables;
use crate::{host, reference, rival, simulated, virtual_machine};
use terrace_core::{InputError, refuse};
use terrace_linux::rivals::{self, Rival};

/// Where an experiment runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineKind {
    /// The simulated machine at interval fidelity.
    Simulated,
    /// A virtual two-tier machine.
    Virtual,
    /// The machine this runs on.
    Host,
}

impl MachineKind {
    /// Its name in result tables.
    pub fn name(self) -> &'static str {
        match self {
            MachineKind::Simulated => "sim",
            MachineKind::Virtual => "vm",
            MachineKind::Host => "host",
        }
    }
}

/// What shall be run.
#[derive(Debug, Clone)]
pub struct Request {
    /// The experiment.
    pub experiment: Experiment,
    /// Run it under each of these policies instead of the ones in the file.
    pub policies: Option<Vec<String>>,
    /// On a live machine: run it under each of these of Linux's own as well, or instead where there are
    /// no policies; all runs then have a full fast node.
    pub rivals: Vec<String>,
    /// Within a virtual machine that counts accesses: programs have their mappings apart from others.
    pub apart: bool,
    /// On a virtual machine: run it on each of these kernels, as `[machine] kernel` names them,
    /// instead of the one in the file. None: on that one.
    pub kernels: Vec<String>,
    /// Where.
    pub machine: MachineKind,
    /// The results directory.
    pub out: PathBuf,
    /// On the host: change settings that would spoil the run, and put them back.
    pub fix_conflicts: bool,
    /// On a virtual machine: count what goes to which tier, exactly.
    pub count_accesses: bool,
    /// Simulated runs at the same time, 1 at least. The results are the same bytes.
    pub jobs: usize,
}

/// What is told while it runs.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A run begins.
    RunStarts {
        /// Its name.
        run: &'a str,
        /// Its number, from 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// Periods it will have at most.
        periods: u64,
    },
    /// What is being done now.
    Stage(&'a str),
    /// A period of a group is over.
    Period {
        /// Its number, from 0.
        period: u64,
        /// The group.
        group: &'a str,
        /// Its fast-memory hit ratio.
        hit_ratio: f64,
        /// The policy applied.
        applied: &'a str,
    },
    /// Something a person should know.
    Note(&'a str),
    /// A line of a virtual machine's console.
    Console(&'a str),
    /// The run is over.
    RunEnds,
}

/// Is told what happens.
pub trait Events {
    /// Something happened.
    fn event(&mut self, event: Event<'_>);
}

/// One run of a request.
pub(crate) struct Run<'a> {
    /// Its name: a file name and a cell of tables.
    pub name: String,
    /// The experiment with the run's policies.
    pub experiment: Experiment,
    /// What of Linux's own moves pages instead of them.
    pub rival: Option<&'static dyn Rival>,
    /// What was asked for.
    pub request: &'a Request,
}

impl Run<'_> {
    /// Where its recording goes.
    pub fn recording(&self) -> PathBuf {
        self.request.out.join("recordings").join(format!("{}.trec", self.name))
    }

    /// Where what its programs said goes.
    pub fn details(&self) -> PathBuf {
        self.request.out.join("details").join(format!("{}.json", self.name))
    }

    /// Where the exact counts of its accesses go.
    pub fn accesses(&self) -> PathBuf {
        self.request.out.join("accesses").join(format!("{}.json", self.name))
    }

    /// Where what its clock counted goes, if it knows the memory.
    pub fn clock(&self) -> PathBuf {
        self.request.out.join("clock").join(format!("{}.json", self.name))
    }

    /// What is known of its groups before it runs.
    pub fn rows(&self, kernel: Option<&str>, emulated: bool) -> Vec<RunRow> {
        let experiment = &self.experiment;
        let row = |group: &crate::file::GroupSpec| RunRow {
            run: self.name.clone(),
            experiment: experiment.name.clone(),
            machine: self.request.machine.name().to_owned(),
            kernel: kernel.map(str::to_owned),
            policy: self.rival.map_or_else(|| group.policy.clone(), |r| r.name().to_owned()),
            parameters: match experiment.parameters_of(&group.policy) {
                _ if self.rival.is_some() => "{}".to_owned(),
                serde_json::Value::Null => "{}".to_owned(),
                parameters => parameters.to_string(),
            },
            group: group.name.clone(),
            workload: group.workload.kind.clone(),
            page_size_bytes: group.page_size.size().bytes(),
            period_ms: experiment.period_ms,
            seed: experiment.seed,
            fast_ratio: group.fast_ratio.unwrap_or(0.0),
            emulated,
            ..RunRow::default()
        };
        experiment.groups.iter().map(row).collect()
    }
}

/// Runs it. False when a run finished and found a program's data damaged.
pub fn run(request: Request, events: &mut dyn Events) -> anyhow::Result<bool> {
    let runs = runs(&request)?;
    if request.count_accesses && request.machine != MachineKind::Virtual {
        return Err(refuse!(
            "accesses are counted in the emulation of a virtual machine, and this is to run on {}; \
             use --machine vm",
            request.machine.name()
        )
        .into());
    }
    if !request.kernels.is_empty() && request.machine != MachineKind::Virtual {
        return Err(refuse!(
            "kernels are chosen for a virtual machine, and this is to run on {}; use --machine vm",
            request.machine.name()
        )
        .into());
    }
    let checked = match request.machine {
        MachineKind::Simulated => match request.experiment.machine.fidelity {
            Fidelity::Interval => simulated::check(&runs),
            Fidelity::Trace => reference::check(&runs),
        },
        MachineKind::Virtual => virtual_machine::check(&runs),
        MachineKind::Host => host::check(&runs),
    };
    checked.map_err(|e| match e.downcast::<InputError>() {
        Ok(error) => request.experiment.named(error).into(),
        Err(other) => other,
    })?;
    let out = &request.out;
    // What programs say of themselves: simulated ones say nothing.
    let details = (request.machine != MachineKind::Simulated).then_some("details");
    let accesses = request.count_accesses.then_some("accesses");
    let timed = request.machine == MachineKind::Virtual
        && request.experiment.machine.clock == Clock::Memory;
    let clock = timed.then_some("clock");
    for folder in ["recordings"].into_iter().chain(details).chain(accesses).chain(clock) {
        std::fs::create_dir_all(out.join(folder)).map_err(|e| {
            refuse!("{}: {e}; expected a folder for results that can be written to", out.display())
        })?;
    }
    let mut tables = Tables::create(out)?;
    let mut all_well = true;
    if request.machine == MachineKind::Simulated {
        parallel::run(&runs, request.jobs, &mut tables, events)?;
    } else {
        // By kernel: what all memory fast comes to.
        let mut all_fast = std::collections::BTreeMap::new();
        for (index, run) in runs.iter().enumerate() {
            let kernel = run.experiment.machine.kernel.clone();
            if request.machine == MachineKind::Virtual && !all_fast.contains_key(&kernel) {
                all_fast.insert(kernel.clone(), virtual_machine::all_fast(run, events)?);
            }
            let all_fast = all_fast.get(&kernel).and_then(Option::as_ref);
            events.event(starts(run, index, runs.len()));
            let rows = match (request.machine, run.rival) {
                (MachineKind::Host, Some(rival)) => rival::run(run, rival, &mut tables, events),
                (MachineKind::Host, None) => host::run(run, &mut tables, events),
                _ => virtual_machine::run(run, all_fast, &mut tables, events),
            };
            let rows = rows.with_context(|| format!("run '{}'", run.name))?;
            events.event(Event::RunEnds);
            all_well &= rows.iter().all(|r| r.checksum_ok != Some(false));
        }
    }
    tables.finish()?;
    Ok(all_well)
}

/// The event with which a run begins.
pub(crate) fn starts<'a>(run: &'a Run<'_>, index: usize, of: usize) -> Event<'a> {
    Event::RunStarts { run: &run.name, number: index + 1, of, periods: run.experiment.periods }
}

/// Writes a file so that it is there whole or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let part = PathBuf::from(format!("{}.part", path.display()));
    std::fs::write(&part, bytes)
        .and_then(|()| std::fs::rename(&part, path))
        .with_context(|| format!("writing {}", path.display()))
}

/// Each policy on the first kernel, then each on the next.
fn runs(request: &Request) -> anyhow::Result<Vec<Run<'_>>> {
    let policies = under_policies(request)?;
    if request.kernels.is_empty() {
        return Ok(policies);
    }
    let mut runs: Vec<Run<'_>> = Vec::new();
    for (index, kernel) in request.kernels.iter().enumerate() {
        if request.kernels[..index].contains(kernel) {
            return Err(refuse!("kernel '{kernel}' is named twice: expected each once").into());
        }
        // A path is of no use as a name; its last part is, where no other image is called so.
        let word = Path::new(kernel).file_name().and_then(|n| n.to_str()).unwrap_or(kernel);
        let taken = runs.iter().any(|r| r.name == format!("{}-{word}", policies[0].name));
        let number = if taken { format!("-{}", index + 1) } else { String::new() };
        for run in &policies {
            let mut experiment = run.experiment.clone();
            experiment.machine.kernel = Some(PathBuf::from(kernel));
            let name = format!("{}-{word}{number}", run.name);
            runs.push(Run { name, experiment, rival: run.rival, request });
        }
    }
    Ok(runs)
}

fn under_policies(request: &Request) -> anyhow::Result<Vec<Run<'_>>> {
    let mut runs = under_rivals(request)?;
    let full = if runs.is_empty() { None } else { Some(request.experiment.on_a_full_node()?) };
    let experiment = full.as_ref().unwrap_or(&request.experiment);
    let Some(policies) = &request.policies else {
        if !runs.is_empty() {
            return Ok(runs);
        }
        let policy = &experiment.groups[0].policy;
        let alike = experiment.groups.iter().all(|g| &g.policy == policy);
        let name = if alike { policy.clone() } else { "as-written".to_owned() };
        return Ok(vec![Run { name, experiment: experiment.clone(), rival: None, request }]);
    };
    for policy in policies {
        if runs.iter().any(|r| &r.name == policy) {
            return Err(refuse!("policy '{policy}' is named twice: expected each once").into());
        }
        let experiment = experiment.under(policy)?;
        runs.push(Run { name: policy.clone(), experiment, rival: None, request });
    }
    Ok(runs)
}

/// Each of Linux's own that is wanted.
fn under_rivals(request: &Request) -> anyhow::Result<Vec<Run<'_>>> {
    if !request.rivals.is_empty() && request.machine == MachineKind::Simulated {
        return Err(refuse!(
            "'{}' is Linux's own, and this is to run on sim; use --machine vm or host",
            request.rivals[0]
        )
        .into());
    }
    let mut wanted = Vec::new();
    for (index, name) in request.rivals.iter().enumerate() {
        let Some(rival) = rivals::find(name) else {
            let all: Vec<&str> = rivals::ALL.iter().map(|rival| rival.name()).collect();
            return Err(refuse!("rival '{name}': expected one of {}", all.join(", ")).into());
        };
        if request.rivals[..index].contains(name) {
            return Err(refuse!("rival '{name}' is named twice: expected each once").into());
        }
        wanted.push((name.clone(), rival));
    }
    let run = |(name, rival)| {
        let experiment = request.experiment.on_a_full_node()?;
        Ok(Run { name, experiment, rival: Some(rival), request })
    };
    wanted.into_iter().map(run).collect()
}

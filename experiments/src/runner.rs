//! Runs an experiment: once as written, or once under each of several policies, rivals and kernels,
//! on the requested machine, into one results directory.

use std::path::{Path, PathBuf};

use terrace_core::{InputError, names, refuse};
use terrace_linux::rivals;
use terrace_linux::samples::SampleReads;
use terrace_results::RunRow;

use crate::backend;
use crate::rows::Tables;
use crate::run::{Events, MachineKind, Request, Run, files_of_run};

/// Runs a request. False when a run finished and found a program's data damaged.
pub fn run(request: Request, events: &mut dyn Events) -> anyhow::Result<bool> {
    let runs = runs(&request)?;
    let only_virtual = |what: &str| {
        refuse!("{what}, and this is to run on {}; use --machine vm", request.machine.name())
    };
    if request.count_accesses && request.machine != MachineKind::Virtual {
        let what = "accesses are counted in the emulation of a virtual machine";
        return Err(only_virtual(what).into());
    }
    if !request.kernels.is_empty() && request.machine != MachineKind::Virtual {
        return Err(only_virtual("kernels are chosen for a virtual machine").into());
    }
    if let (Some(us), false) =
        (request.experiment.period_us, request.machine == MachineKind::Simulated)
    {
        let error = refuse!(
            "period_us = {us}: expected only on the simulated machine, and this is to run on {}; \
             use period_ms",
            request.machine.name()
        );
        return Err(request.experiment.named(error).into());
    }
    let backend = backend::of(&request);
    backend.check(&runs).map_err(|e| match e.downcast::<InputError>() {
        Ok(error) => request.experiment.named(error).into(),
        Err(other) => other,
    })?;
    let out = &request.out;
    let earlier = terrace_results::read::<RunRow>(out).unwrap_or_default();
    let folders: Vec<_> = ["recordings"].into_iter().chain(backend.folders(&request)).collect();
    for folder in &folders {
        std::fs::create_dir_all(out.join(folder)).map_err(|e| {
            refuse!("{}: {e}; expected a folder for results that can be written to", out.display())
        })?;
    }
    let mut tables = Tables::create(out)?;
    let all_well = backend.run(&runs, &mut tables, events)?;
    tables.finish()?;
    forget_earlier_runs(&earlier, &runs, &folders, out);
    Ok(all_well)
}

/// Removes what runs that were there before have left in a results directory: all files of those that
/// are none of these, and of the others those in folders that these have not written to.
fn forget_earlier_runs(earlier: &[RunRow], runs: &[Run<'_>], written: &[&str], out: &Path) {
    for name in earlier.iter().map(|row| &row.run) {
        let again = runs.iter().find(|run| run.name == *name);
        for (folder, file) in files_of_run(out, name) {
            // Mechanisms of Linux have no scans to record.
            let is_new = |run: &Run<'_>| {
                written.contains(&folder) && (folder != "recordings" || run.rival.is_none())
            };
            if !again.is_some_and(is_new) {
                let _ = std::fs::remove_file(file);
            }
        }
    }
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
        // A path is no name; its last part is, if no other image has the same.
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

/// One run for each of the requested mechanisms of Linux.
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
            return Err(refuse!("rival '{name}': expected {}", names::expected(name, all)).into());
        };
        if request.rivals[..index].contains(name) {
            return Err(refuse!("rival '{name}' is named twice: expected each once").into());
        }
        wanted.push((name.clone(), rival));
    }
    let run = |(name, rival)| {
        let mut experiment = request.experiment.on_a_full_node()?;
        // No policy reads them.
        experiment.machine.sample_reads = SampleReads::NONE;
        Ok(Run { name, experiment, rival: Some(rival), request })
    };
    wanted.into_iter().map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Experiment;
    use crate::run::Quiet;

    #[test]
    fn of_an_earlier_run_of_the_same_name_nothing_stays_that_this_one_does_not_write() {
        let text = "name = \"small\"\nperiod_ms = 100\nperiods = 2\n\
                    [[groups]]\nname = \"g\"\nfast_ratio = 0.5\npolicy = \"lru\"\n\
                    workload = { kind = \"zipf\", footprint_mib = 16 }\n";
        let place = tempfile::tempdir().unwrap();
        let out = place.path();
        let once = || {
            let experiment = Experiment::parse(text, ".".into()).unwrap();
            run(Request::simulated(experiment, out.to_owned()), &mut Quiet).unwrap();
        };
        once();
        let left = ["accesses", "clock", "details"].map(|folder| {
            std::fs::create_dir(out.join(folder)).unwrap();
            let file = out.join(folder).join("lru.json");
            std::fs::write(&file, "{}").unwrap();
            file
        });
        once();
        assert!(left.iter().all(|file| !file.exists()), "{left:?}");
        assert!(out.join("recordings/lru.trec").is_file());
    }

    #[test]
    fn programs_have_no_periods_of_microseconds() {
        let text = "name = \"small\"\nperiods = 2\nperiod_us = 400\n\
                    [machine]\nfidelity = \"trace\"\n\
                    [[groups]]\nname = \"g\"\nfast_ratio = 0.5\npolicy = \"lru\"\n\
                    workload = { kind = \"program\", name = \"gups\", footprint_mib = 16 }\n";
        let place = tempfile::tempdir().unwrap();
        for machine in [MachineKind::Host, MachineKind::Virtual] {
            let experiment = Experiment::parse(text, ".".into()).unwrap();
            let request = Request::simulated(experiment, place.path().join("out"));
            let error = run(Request { machine, ..request }, &mut Quiet).unwrap_err().to_string();
            assert!(error.contains("period_us = 400: expected only on the sim"), "{error}");
            assert!(!place.path().join("out").exists() && !error.contains('\n'), "{error}");
        }
    }
}

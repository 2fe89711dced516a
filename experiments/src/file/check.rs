//! Checks of an experiment that was read; each error has the key at fault, and so a line.

use terrace_core::lines::line_of_key;
use terrace_core::page::PageSize;
use terrace_core::parameters::key_in;
use terrace_core::policy::{self, PolicyError};
use terrace_core::{InputError, refuse};
use terrace_workloads::kinds;

use crate::file::machine::{Clock, Fidelity};
use crate::file::{Experiment, GroupSpec};

impl Experiment {
    pub(super) fn check(&self) -> Result<(), Fault> {
        let at = Fault::at;
        name_is_plain("name", &self.name).map_err(at(&["name"]))?;
        self.check_periods()?;
        self.check_machine().map_err(|(key, error)| at(&["machine", key])(error))?;
        if self.groups.is_empty() {
            let error = refuse!("no groups: expected at least one [[groups]] section");
            return Err(at(&["groups"])(error));
        }
        for (index, group) in self.groups.iter().enumerate() {
            let number = index.to_string();
            if self.groups[..index].iter().any(|g| g.name == group.name) {
                let error =
                    refuse!("two groups are named '{}': expected different names", group.name);
                return Err(at(&["groups", &number, "name"])(error));
            }
            let named = |error: InputError| refuse!("group '{}': {error}", group.name);
            self.check_group(group)
                .map_err(|(key, error)| at(&["groups", &number, key])(named(error)))?;
            // Policies of the caller are built when they run: building one may have any effect.
            if self.custom_policies.iter().any(|own| own.name() == group.policy) {
                continue;
            }
            self.policy_of(group).map_err(|error| match &error {
                PolicyError::Unknown { .. } => {
                    at(&["groups", &number, "policy"])(named(InputError::new(&error)))
                }
                PolicyError::BadParameter { .. } | PolicyError::Own(_) => {
                    self.at_parameter(&group.policy, named(InputError::new(&error)))
                }
            })?;
        }
        for (name, parameters) in &self.policies {
            if self.external(name).map_err(|e| self.at_parameter(name, e))?.is_some() {
                continue;
            }
            policy::build(name, parameters, self.seed).map_err(|e| {
                self.at_parameter(name, refuse!("policies.{name}: {e}; see 'terrace policies'"))
            })?;
        }
        Ok(())
    }

    /// Checks lengths and numbers of periods.
    fn check_periods(&self) -> Result<(), Fault> {
        let at = Fault::at;
        let fault = match self.period_us {
            Some(_) if self.period_ms != 0 => {
                Some(("period_us", refuse!("period_ms and period_us: expected one of them")))
            }
            Some(us) if !(1..=3_600_000_000).contains(&us) => {
                Some(("period_us", refuse!("period_us = {us}: expected 1 to 3600000000")))
            }
            Some(us) if self.machine.fidelity != Fidelity::Trace => Some((
                "period_us",
                refuse!("period_us = {us}: expected only with fidelity = \"trace\"; use period_ms"),
            )),
            None if !(1..=3_600_000).contains(&self.period_ms) => Some((
                "period_ms",
                refuse!("period_ms = {}: expected 1 to 3600000", self.period_ms),
            )),
            _ => None,
        };
        if let Some((key, error)) = fault {
            return Err(at(&[key])(error));
        }
        if !(1..=10_000_000).contains(&self.periods) {
            let error = refuse!("periods = {}: expected 1 to 10000000", self.periods);
            return Err(at(&["periods"])(error));
        }
        if self.warm_up_periods > 0 {
            let warm_up = self.warm_up_periods;
            let error = if warm_up >= self.periods {
                Some(refuse!(
                    "warm_up_periods = {warm_up}: expected fewer than periods = {}",
                    self.periods
                ))
            } else if self.machine.fidelity == Fidelity::Trace {
                Some(refuse!(
                    "warm_up_periods = {warm_up}: expected none at fidelity = \"trace\", which \
                     measures programs from their start; leave it out"
                ))
            } else {
                None
            };
            if let Some(error) = error {
                return Err(at(&["warm_up_periods"])(error));
            }
        }
        Ok(())
    }

    /// A fault of one of the parameters given for this policy.
    fn at_parameter(&self, policy: &str, error: InputError) -> Fault {
        let key = key_in(self.policies.get(policy), &error.0);
        Fault::at(&["policies", policy, key])(error)
    }

    /// Checks the machine; the error has its key.
    fn check_machine(&self) -> Result<(), (&'static str, InputError)> {
        let machine = &self.machine;
        if !(1..=64).contains(&machine.cpus) {
            return Err(("cpus", refuse!("machine.cpus = {}: expected 1 to 64", machine.cpus)));
        }
        for (key, size) in [("fast", machine.fast), ("slow", machine.slow)] {
            if size.is_some_and(|s| s.0 < PageSize::Huge.bytes()) {
                let error = refuse!("machine.{key}: expected at least one huge page, \"2M\"");
                return Err((key, error));
            }
        }
        if machine.fast_nodes.is_empty() != machine.slow_nodes.is_empty() {
            let error =
                refuse!("machine.fast_nodes and machine.slow_nodes: expected both or none of them");
            let key = if machine.slow_nodes.is_empty() { "fast_nodes" } else { "slow_nodes" };
            return Err((key, error));
        }
        // At interval fidelity the costs of moves are modelled for programs whose time is known.
        let profiled = self.groups.iter().any(|g| g.workload.kind == kinds::PROFILE);
        if machine.fidelity == Fidelity::Interval {
            let of_trace = [
                ("hardware", machine.hardware.is_some() && machine.clock != Clock::Memory),
                ("simulation", machine.simulation.is_some()),
                ("os", machine.os.is_some() && !profiled),
            ];
            if let Some((key, _)) = of_trace.into_iter().find(|(_, given)| *given) {
                let error = refuse!(
                    "machine.hardware, machine.os and machine.simulation: expected only with \
                     fidelity = \"trace\" (machine.hardware with clock = \"memory\" and machine.os \
                     with profiles too); set it so"
                );
                return Err((key, error));
            }
        }
        if let Some(options) = &machine.simulation {
            options.check().map_err(|e| ("simulation", refuse!("machine.{e}")))?;
        }
        if self.fills_before()
            && let Some(group) = self.groups.iter().find(|g| g.fast.is_none())
        {
            let error = refuse!(
                "group '{}': its fast memory is a share of what is not known before it runs, and the \
                 rest of fast memory is to be taken by then; give it a size, as in fast = \"64M\"",
                group.name
            );
            return Err(("full", error));
        }
        Ok(())
    }

    /// Checks one group; the error has its key.
    fn check_group(&self, group: &GroupSpec) -> Result<(), (&'static str, InputError)> {
        name_is_plain("name", &group.name).map_err(|e| ("name", e))?;
        let timed = [
            ("start_ms", group.start_ms.is_some()),
            ("stop_ms", group.stop_ms.is_some()),
            ("stop_after_start_up_of", group.stop_after_start_up_of.is_some()),
            ("sparse", group.sparse.is_some()),
        ];
        if self.machine.fidelity == Fidelity::Interval
            && let Some((key, _)) = timed.into_iter().find(|(_, given)| *given)
        {
            let error = refuse!(
                "start_ms, stop_ms, stop_after_start_up_of and sparse: expected only with fidelity = \
                 \"trace\" in [machine]"
            );
            return Err((key, error));
        }
        if self.machine.fidelity == Fidelity::Trace && !group.cpus.is_empty() {
            let error = refuse!("cpus: expected only on a live machine; leave it out");
            return Err(("cpus", error));
        }
        group.sparse.map_or(Ok(()), |sparse| sparse.check()).map_err(|e| ("sparse", e))?;
        if group.stop_ms.is_some_and(|stop| stop <= group.start_ms.unwrap_or(0)) {
            return Err(("stop_ms", refuse!("stop_ms: expected a time after start_ms")));
        }
        if let Some(other) = &group.stop_after_start_up_of {
            let is_program = |g: &&GroupSpec| g.name == *other && g.workload.kind == "program";
            if *other == group.name || !self.groups.iter().any(|g| is_program(&g)) {
                let error = refuse!(
                    "stop_after_start_up_of = \"{other}\": expected another group whose workload is a \
                     program"
                );
                return Err(("stop_after_start_up_of", error));
            }
            if group.stop_ms.is_some() {
                let error = refuse!("stop_ms and stop_after_start_up_of: expected one of them");
                return Err(("stop_after_start_up_of", error));
            }
        }
        match (group.fast_ratio, group.fast) {
            (Some(ratio), None) if (0.0..=1.0).contains(&ratio) => Ok(()),
            (Some(ratio), None) => {
                Err(("fast_ratio", refuse!("fast_ratio = {ratio}: expected 0 to 1")))
            }
            (None, Some(_)) => Ok(()),
            _ => {
                Err(("fast_ratio", refuse!("expected one of fast_ratio = 0.5 and fast = \"512M\"")))
            }
        }
    }
}

/// An error of an experiment, with the path of its key.
pub(super) struct Fault {
    path: Vec<String>,
    pub(super) error: InputError,
}

impl Fault {
    /// Makes a fault of an error at the key of this path.
    fn at(path: &[&str]) -> impl FnOnce(InputError) -> Self + use<> {
        let path = path.iter().map(|part| (*part).to_owned()).collect();
        move |error| Fault { path, error }
    }

    /// The error with its line in the text of the experiment.
    pub(super) fn in_file(self, text: &str) -> InputError {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        match line_of_key(text, &path) {
            Some(line) => refuse!("line {line}: {}", self.error),
            None => self.error,
        }
    }
}

impl From<Fault> for InputError {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

/// Names become file names, control groups and table cells.
pub(crate) fn name_is_plain(key: &str, name: &str) -> Result<(), InputError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=64).contains(&name.len()) && name.chars().all(plain) && !name.starts_with(['.', '-']) {
        Ok(())
    } else {
        Err(refuse!(
            "{key} = '{name}': expected 1 to 64 letters, digits, '-', '_' or '.', and a letter, digit or '_' first"
        ))
    }
}

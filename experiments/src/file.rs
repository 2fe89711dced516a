//! Experiment files: strict TOML, checked whole before anything runs.

mod check;
mod machine;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use terrace_core::lines::line_at;
use terrace_core::page::GroupPages;
use terrace_core::parameters::in_plain_words;
use terrace_core::policy::{self, Policy, PolicyError};
use terrace_engine::FastLimit;
use terrace_external::{ExternalPolicy, Patience, is_external};
use terrace_simulated::os::TablePolicy;

use crate::custom::CustomPolicy;
use crate::size::Size;
use crate::sparse::Sparse;
use terrace_core::{InputError, refuse};

pub(crate) use crate::file::check::name_is_plain;
pub use crate::file::machine::{Clock, Fidelity, MachineSpec};

/// An experiment: workloads on a machine under policies.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name, in results.
    pub name: String,
    /// Its purpose, in a line or two.
    #[serde(default)]
    pub description: String,
    /// Seed of everything random.
    #[serde(default = "one")]
    pub seed: u64,
    /// Length of a period in ms: how often accessed bits are read and pages moved. Give this or
    /// `period_us`.
    #[serde(default, skip_serializing_if = "is_zero_ms")]
    pub period_ms: u64,
    /// The same in us, at trace fidelity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_us: Option<u64>,
    /// Periods to run; the run ends earlier when all its workloads have ended.
    pub periods: u64,
    /// Periods at the beginning that are run and not measured: policies find their placement
    /// meanwhile. Programs that serve requests are measured from then on, and a virtual machine
    /// with the memory clock counts instructions until then, some ten times as fast. For a command
    /// with a processor of its own they go on until it has spent nearly a tenth more time in the program
    /// than they should take, for twice as long at most.
    #[serde(default, skip_serializing_if = "is_zero_ms")]
    pub warm_up_periods: u64,
    /// At trace fidelity, and with the memory clock of a virtual machine: whether it is also run
    /// with all memory fast, for slowdowns.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub slowdown: bool,
    /// The machine, if Terrace simulates or boots it.
    #[serde(default)]
    pub machine: MachineSpec,
    /// The groups, run at the same time.
    pub groups: Vec<GroupSpec>,
    /// Parameters of policies by the policy's name, wherever it is used.
    #[serde(default)]
    pub policies: BTreeMap<String, Value>,
    /// Policies of the caller, which no file can have.
    #[serde(skip)]
    pub custom_policies: Vec<CustomPolicy>,
    /// The folder that paths in the file are relative to.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The file itself, for messages; empty if it is none.
    #[serde(skip)]
    pub file: PathBuf,
}

fn one() -> u64 {
    1
}

fn yes() -> bool {
    true
}

fn is_yes(flag: &bool) -> bool {
    *flag
}

fn is_zero_ms(number: &u64) -> bool {
    *number == 0
}

/// A group: one workload under one policy with its share of fast memory.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// Its name, in results and as a control group.
    pub name: String,
    /// Its policy, unless the command line names others.
    #[serde(default = "amp")]
    pub policy: String,
    /// Its fast memory over its footprint, 0 to 1. Give this or `fast`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_ratio: Option<f64>,
    /// Its fast memory as a size. Give this or `fast_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast: Option<Size>,
    /// What is tracked and moved as a page. On a live machine, with "auto", programs get their
    /// pages as they are packaged, and accessed bits are sampled several times a period.
    #[serde(default = "huge")]
    pub page_size: GroupPages,
    /// Pages that may be moved for it in a period; no limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved_pages_per_period: Option<u64>,
    /// On a live machine: processors that its programs run on, and nothing else of the run; all where
    /// empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
    /// Where its page-table pages go: at trace fidelity, and live on the Terrace kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tables: Option<TablePolicy>,
    /// At trace fidelity: how many entries of page-table pages are used, for page tables of a
    /// larger program's shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparse: Option<Sparse>,
    /// At trace fidelity: when it starts, in ms of simulated time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<u64>,
    /// At trace fidelity: when it is ended, if it has not ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_ms: Option<u64>,
    /// At trace fidelity: the group whose program ends its start-up when this one is ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_after_start_up_of: Option<String>,
    /// Its workload.
    pub workload: WorkloadSpec,
}

fn amp() -> String {
    "amp".to_owned()
}

fn huge() -> GroupPages {
    GroupPages::Huge
}

/// A workload by its kind; the other keys are the kind's own parameters.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct WorkloadSpec {
    /// A kind of `terrace workloads`, or "recording".
    pub kind: String,
    /// The kind's parameters.
    #[serde(flatten)]
    pub parameters: serde_json::Map<String, Value>,
}

impl WorkloadSpec {
    /// The parameters in the form that the registries take.
    pub fn parameters(&self) -> Value {
        Value::Object(self.parameters.clone())
    }
}

impl GroupSpec {
    /// The group's share of fast memory.
    pub fn share(&self) -> FastLimit {
        match (self.fast_ratio, self.fast) {
            (Some(ratio), _) => FastLimit::Ratio(ratio),
            (None, Some(size)) => FastLimit::Bytes(size.0),
            (None, None) => FastLimit::Ratio(1.0),
        }
    }
}

impl Experiment {
    /// Length of a period in us.
    pub fn period_length_us(&self) -> u64 {
        self.period_us.unwrap_or(self.period_ms * 1000)
    }

    /// Reads and checks an experiment file.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            refuse!(
                "{}: {e}; expected an experiment file, see 'terrace run --help'",
                path.display()
            )
        })?;
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        let mut experiment =
            Self::parse(&text, folder).map_err(|e| refuse!("{}: {e}", path.display()))?;
        for warning in crate::renamed::warnings(&text) {
            tracing::warn!("{}: {warning}", path.display());
        }
        experiment.file = path.to_owned();
        Ok(experiment)
    }

    /// An error of this experiment, with the name of its file.
    pub fn named(&self, error: InputError) -> InputError {
        match self.file.as_os_str().is_empty() {
            true => error,
            false => refuse!("{}: {error}", self.file.display()),
        }
    }

    /// Reads and checks the text of an experiment file whose relative paths start at `folder`.
    pub fn parse(text: &str, folder: PathBuf) -> Result<Self, InputError> {
        let mut experiment: Experiment = toml::from_str(text).map_err(|e| {
            // A field missing from the whole file has no line.
            let of_file = e.message().starts_with("missing field");
            let somewhere = e.span().filter(|s| s.start > 0 || !of_file);
            let line = somewhere.map(|s| line_at(text, s.start));
            let place = line.map(|l| format!("line {l}: ")).unwrap_or_default();
            refuse!("{place}{}", in_plain_words(e.message()))
        })?;
        experiment.folder = folder;
        experiment.check().map_err(|fault| fault.in_file(text))?;
        Ok(experiment)
    }

    /// The same experiment with every group under this policy.
    pub fn under(&self, policy: &str) -> Result<Self, InputError> {
        let mut experiment = self.clone();
        experiment.groups.iter_mut().for_each(|g| g.policy = policy.to_owned());
        experiment.check()?;
        Ok(experiment)
    }

    /// The same experiment with a policy of the caller, which groups and requests can name like
    /// those of the registry.
    pub fn with_custom_policy(mut self, policy: CustomPolicy) -> Result<Self, InputError> {
        let name = policy.name();
        name_is_plain("the name of a policy", name)?;
        if terrace_core::policies::REGISTRY.iter().any(|kind| kind.name == name) {
            return Err(refuse!(
                "a policy of your own is named '{name}' like one of Terrace's: expected another name"
            ));
        }
        if self.custom_policies.iter().any(|own| own.name() == name) {
            return Err(refuse!(
                "two policies of your own are named '{name}': expected different names"
            ));
        }
        self.custom_policies.push(policy);
        Ok(self)
    }

    /// Makes the policy of a group.
    pub fn policy_of(&self, group: &GroupSpec) -> Result<Box<dyn Policy>, PolicyError> {
        self.policy_with(group, Patience::Simulated)
    }

    /// Makes the policy of a group of live programs, which run while it decides.
    pub fn live_policy_of(&self, group: &GroupSpec) -> Result<Box<dyn Policy>, PolicyError> {
        self.policy_with(group, Patience::Live { period_ms: self.period_ms })
    }

    fn policy_with(
        &self,
        group: &GroupSpec,
        patience: Patience,
    ) -> Result<Box<dyn Policy>, PolicyError> {
        if let Some(own) = self.custom_policies.iter().find(|own| own.name() == group.policy) {
            return Ok(own.build(self.seed));
        }
        match self.external(&group.policy)? {
            Some(external) => {
                let fallback = external.fallback(self.seed)?;
                Ok(Box::new(external.policy(self.seed, patience, fallback)))
            }
            None => policy::build(&group.policy, &self.parameters_of(&group.policy), self.seed),
        }
    }

    /// The policy of this name, if it has a process of its own.
    pub(crate) fn external(&self, name: &str) -> Result<Option<ExternalPolicy>, InputError> {
        let Some(table) = self.policies.get(name).filter(|table| is_external(table)) else {
            return Ok(None);
        };
        ExternalPolicy::read(name, table, &self.folder, |name| self.parameters_of(name)).map(Some)
    }

    /// The same experiment at this fidelity.
    pub fn at_fidelity(&self, fidelity: Fidelity) -> Result<Self, InputError> {
        let mut experiment = self.clone();
        experiment.machine.fidelity = fidelity;
        experiment.check().map_err(|fault| self.named(fault.error))?;
        Ok(experiment)
    }

    /// The same experiment for a mechanism of Linux that has no limits: fast memory is filled
    /// except for the groups' limits; where they may use all of it, it is filled only if the file says so.
    pub fn on_a_full_node(&self) -> Result<Self, InputError> {
        let mut experiment = self.clone();
        experiment.machine.full |= self.groups.iter().any(|g| g.fast_ratio != Some(1.0));
        experiment.check().map_err(|fault| self.named(fault.error))?;
        Ok(experiment)
    }

    /// Whether fast memory is filled before programs start. Where they may have all of it, that is at the
    /// end of the warm-up.
    pub(crate) fn fills_before(&self) -> bool {
        self.machine.full && self.groups.iter().any(|g| g.fast_ratio != Some(1.0))
    }

    /// Sum of the groups' limits that are given as a size.
    pub(crate) fn fast_bytes(&self) -> u64 {
        self.groups.iter().filter_map(|g| g.fast).map(|size| size.0).sum()
    }

    /// Parameters given for this policy, or null.
    pub fn parameters_of(&self, policy: &str) -> Value {
        self.policies.get(policy).cloned().unwrap_or(Value::Null)
    }

    /// Refuses policies that need an oracle trace, which exists on the simulated machine only.
    pub(crate) fn future_is_unknown(&self) -> Result<(), InputError> {
        for group in &self.groups {
            let policy = self.policy_of(group).map_err(InputError::new)?;
            if policy.needs_oracle() {
                return Err(refuse!(
                    "group '{}': policy '{}' needs an oracle trace, which recordings, \
                     profiles and generators have on the simulated machine at interval fidelity only; \
                     make a profile with 'terrace profile' and run that",
                    group.name,
                    group.policy
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(period: &str, fidelity: &str) -> Result<Experiment, String> {
        let text = format!(
            "name = \"e\"\n{period}\nperiods = 4\n[machine]\nfidelity = \"{fidelity}\"\n[[groups]]\n\
             name = \"g\"\nfast_ratio = 0.5\nworkload = {{ kind = \"program\", name = \"gups\", \
             footprint_mib = 4 }}\n"
        );
        Experiment::parse(&text, PathBuf::new()).map_err(|e| e.to_string())
    }

    #[test]
    fn a_period_is_given_in_ms_or_in_us() {
        let length_us = |period| with(period, "trace").map(|e| e.period_length_us());
        assert_eq!(length_us("period_ms = 2"), Ok(2000));
        assert_eq!(length_us("period_us = 400"), Ok(400));
        // An experiment that is written reads back the same.
        let text = toml::to_string(&with("period_us = 400", "trace").unwrap()).unwrap();
        let again = Experiment::parse(&text, PathBuf::new()).unwrap();
        assert_eq!((again.period_ms, again.period_us), (0, Some(400)));
    }

    #[test]
    fn a_warm_up_that_leaves_nothing_to_measure_is_refused() {
        let with = |warm_up: u64, fidelity| {
            with(&format!("period_ms = 2\nwarm_up_periods = {warm_up}"), fidelity)
        };
        assert_eq!(with(3, "interval").map(|e| e.warm_up_periods), Ok(3));
        let error = with(4, "interval").unwrap_err();
        assert!(error.contains("line 3: warm_up_periods = 4: expected fewer than"), "{error}");
        let error = with(1, "trace").unwrap_err();
        assert!(error.contains("expected none at fidelity = \"trace\""), "{error}");
    }

    #[test]
    fn a_group_ends_with_the_start_up_of_another_that_has_one() {
        let with = |key: &str, kind: &str, fidelity: &str| {
            let group = |name: &str, key: &str, kind: &str| {
                let named = if kind == "program" { "name = \"gups\", " } else { "" };
                format!(
                    "[[groups]]\nname = \"{name}\"\nfast_ratio = 0.5\n{key}\nworkload = {{ kind = \
                     \"{kind}\", {named}footprint_mib = 4 }}\n"
                )
            };
            let text = format!(
                "name = \"e\"\nperiod_ms = 1\nperiods = 4\n[machine]\nfidelity = \"{fidelity}\"\nfast = \
                 \"64M\"\nslow = \"64M\"\n{}{}",
                group("tenant", key, "program"),
                group("other", "", kind)
            );
            Experiment::parse(&text, PathBuf::new()).map_err(|e| e.to_string())
        };
        let after = |name: &str| format!("stop_after_start_up_of = \"{name}\"");
        assert_eq!(with(&after("other"), "program", "trace").map(|e| e.groups.len()), Ok(2));
        for (key, kind, fidelity, words) in [
            (after("another"), "program", "trace", "expected another group whose workload is a"),
            (after("tenant"), "program", "trace", "expected another group whose workload is a"),
            (after("other") + "\nstop_ms = 9", "program", "trace", "expected one of them"),
            (after("other"), "zipf", "interval", "expected only with fidelity"),
        ] {
            let error = with(&key, kind, fidelity).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{key}: {error}");
        }
    }

    #[test]
    fn a_period_that_cannot_be_is_refused_in_one_line() {
        for (period, fidelity, words) in [
            ("", "trace", "period_ms = 0: expected 1 to 3600000"),
            ("period_us = 0", "trace", "period_us = 0: expected 1 to 3600000000"),
            ("period_us = -1", "trace", "got integer `-1`, expected a whole number, 0 or more"),
            ("period_ms = 1\nperiod_us = 400", "trace", "expected one of them"),
            ("period_us = 400", "interval", "expected only with fidelity = \"trace\""),
        ] {
            let error = with(period, fidelity).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{period}: {error}");
        }
    }
}

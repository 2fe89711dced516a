//! Experiment files: strict TOML, checked whole before anything runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use terrace_core::lines::{line_at, line_of_key};
use terrace_core::page::{GroupPages, PageSize};
use terrace_core::parameters::{in_plain_words, key_in};
use terrace_core::policy::{self, Policy, PolicyError};
use terrace_engine::FastLimit;
use terrace_external::{ExternalPolicy, Patience, is_external};
use terrace_linux::backend::Mechanisms;
use terrace_simulated::os::{OsConfig, TablePolicy};
use terrace_simulated::reference::Options;
use terrace_workloads::kinds;

use crate::custom::CustomPolicy;
use crate::size::Size;
use crate::sparse::Sparse;
use terrace_core::{InputError, refuse};

/// An experiment: workloads on a machine under policies.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name, in results.
    pub name: String,
    /// What it shows, in a line or two.
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
    /// Periods to run; it ends before when all its workloads have ended.
    pub periods: u64,
    /// Of them, so many at the beginning are run and not measured: policies find their placement
    /// meanwhile. Programs that serve requests are measured from then on, and a virtual machine whose
    /// clock knows the memory counts instructions until then, some ten times as fast.
    #[serde(default, skip_serializing_if = "is_zero_ms")]
    pub warm_up_periods: u64,
    /// At trace fidelity, and where a virtual machine's clock knows the memory: whether it is also
    /// run with all memory fast, for slowdowns.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub slowdown: bool,
    /// The machine, where it is Terrace that makes it.
    #[serde(default)]
    pub machine: MachineSpec,
    /// The groups, run at the same time.
    pub groups: Vec<GroupSpec>,
    /// Parameters of policies by the policy's name, wherever it is used.
    #[serde(default)]
    pub policies: BTreeMap<String, Value>,
    /// Policies of the caller's own, which no file can have.
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

fn is_no(flag: &bool) -> bool {
    !*flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_ms(number: &u64) -> bool {
    *number == 0
}

/// The two tiers of a simulated or virtual machine.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct MachineSpec {
    /// Processors.
    pub cpus: u32,
    /// Size of the fast tier. Default: on the simulated machine the sum of the groups' shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast: Option<Size>,
    /// Size of the slow tier. Default: on the simulated machine without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow: Option<Size>,
    /// Latency of the fast tier in ns, as the virtual machine's firmware tells it.
    pub fast_latency_ns: u32,
    /// Latency of the slow tier in ns.
    pub slow_latency_ns: u32,
    /// Nodes of the fast tier of a host whose firmware does not tell its tiers. Give both or none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fast_nodes: Vec<u32>,
    /// Nodes of its slow tier.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow_nodes: Vec<u32>,
    /// Kernel of the virtual machine: "debian" (its package, the default), "debian-7.3" (that
    /// series, of Debian 13's backports), "terrace" (what `make kernel` built), "terrace-7.3" (what
    /// `make kernel KERNEL=7.3` built), or the path of an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// What emulates the virtual machine: the major version of Debian's QEMU, as in "10", a name on
    /// PATH, or a path. Default: the QEMU of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// By what a live machine tracks and moves pages: "auto" (the Terrace kernel's mechanisms where
    /// the kernel has them), "stock", or "terrace".
    #[serde(skip_serializing_if = "Mechanisms::is_auto")]
    pub mechanisms: Mechanisms,
    /// On a live machine: all fast memory but what the groups may use is taken for the time of the
    /// run, so that they have a full node and what knows no limits has no more room than they.
    #[serde(skip_serializing_if = "is_no")]
    pub full: bool,
    /// What the clocks of a virtual machine count.
    #[serde(skip_serializing_if = "Clock::is_host")]
    pub clock: Clock,
    /// How deep the simulated machine goes.
    #[serde(skip_serializing_if = "Fidelity::is_interval")]
    #[serde(alias = "depth")]
    pub fidelity: Fidelity,
    /// Of a workload of kind "profile", of any at trace fidelity, where a virtual machine's clock knows
    /// the memory, and on a host whose processor samples, one read from memory in so many is sampled
    /// and told to policies; 0: none is.
    #[serde(skip_serializing_if = "is_zero")]
    pub sample_reads: u32,
    /// At trace fidelity, and where a virtual machine's clock knows the memory: the machine's
    /// hardware, a preset by name and what to change of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware: Option<toml::Table>,
    /// At trace fidelity, and of it what moving pages costs where a workload is a profile: its
    /// operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<OsConfig>,
    /// At trace fidelity: how time is played.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulation: Option<Options>,
}

/// How deep a simulation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fidelity {
    /// Which pages are accessed in each period.
    #[default]
    #[serde(alias = "period")]
    Interval,
    /// Every reference, on hardware with an operating system.
    #[serde(alias = "reference")]
    Trace,
}

impl Fidelity {
    fn is_interval(&self) -> bool {
        *self == Fidelity::Interval
    }
}

/// What the clocks of a virtual machine count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// The host's time: what the guest gets done in a period depends on how busy the host is.
    #[default]
    Host,
    /// Its instructions, one a nanosecond, of all processors together, with the time skipped in
    /// which none runs: how busy the host is changes how long a run takes, not what the guest gets
    /// done in a period.
    Instructions,
    /// What its instructions and accesses of memory take on hardware with these tiers, processor by
    /// processor: times are those of a machine whose slow memory is slow.
    Memory,
}

impl Clock {
    fn is_host(&self) -> bool {
        *self == Clock::Host
    }

    /// Its name in result tables, which those of the host have none of.
    pub(crate) fn column(self) -> Option<&'static str> {
        match self {
            Clock::Host => None,
            Clock::Instructions => Some("instructions"),
            Clock::Memory => Some("memory"),
        }
    }
}

impl Default for MachineSpec {
    fn default() -> Self {
        // Local DRAM beside a CXL expander, rounded.
        MachineSpec {
            cpus: 2,
            fast: None,
            slow: None,
            fast_latency_ns: 80,
            slow_latency_ns: 300,
            fast_nodes: Vec::new(),
            slow_nodes: Vec::new(),
            kernel: None,
            qemu: None,
            mechanisms: Mechanisms::Auto,
            full: false,
            clock: Clock::Host,
            fidelity: Fidelity::Interval,
            sample_reads: 0,
            hardware: None,
            os: None,
            simulation: None,
        }
    }
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
    /// What it runs.
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
    /// The parameters as the registries take them.
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

    /// An error of what this experiment asks for, with the name of its file.
    pub fn named(&self, error: InputError) -> InputError {
        match self.file.as_os_str().is_empty() {
            true => error,
            false => refuse!("{}: {error}", self.file.display()),
        }
    }

    /// Reads and checks the text of an experiment file whose relative paths start at `folder`.
    pub fn parse(text: &str, folder: PathBuf) -> Result<Self, InputError> {
        let mut experiment: Experiment = toml::from_str(text).map_err(|e| {
            // What is missing of the whole file is on no line of it.
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

    /// The same experiment with a policy of the caller's own, which groups and requests can then name
    /// as they name those of the registry.
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

    /// Makes the policy of a group of live programs, which go on while it decides.
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

    /// The policy of this name, where it decides in a process of its own.
    pub(crate) fn external(&self, name: &str) -> Result<Option<ExternalPolicy>, InputError> {
        let Some(table) = self.policies.get(name).filter(|table| is_external(table)) else {
            return Ok(None);
        };
        ExternalPolicy::read(name, table, &self.folder, |name| self.parameters_of(name)).map(Some)
    }

    /// The same experiment at this depth.
    pub fn at_fidelity(&self, fidelity: Fidelity) -> Result<Self, InputError> {
        let mut experiment = self.clone();
        experiment.machine.fidelity = fidelity;
        experiment.check().map_err(|fault| self.named(fault.error))?;
        Ok(experiment)
    }

    /// The same experiment for something of Linux's that knows no limits: fast memory is full but for
    /// what the groups may use; where they may use all of it, there is nothing to fill.
    pub fn on_a_full_node(&self) -> Result<Self, InputError> {
        let mut experiment = self.clone();
        experiment.machine.full = self.groups.iter().any(|g| g.fast_ratio != Some(1.0));
        experiment.check().map_err(|fault| self.named(fault.error))?;
        Ok(experiment)
    }

    /// Fast memory that the groups may use together, where all of them say so as a size.
    pub(crate) fn fast_bytes(&self) -> u64 {
        self.groups.iter().filter_map(|g| g.fast).map(|size| size.0).sum()
    }

    /// Parameters given for this policy, or null.
    pub fn parameters_of(&self, policy: &str) -> Value {
        self.policies.get(policy).cloned().unwrap_or(Value::Null)
    }

    /// Refuses policies that plan with the future, where it cannot be known.
    pub(crate) fn future_is_unknown(&self) -> Result<(), InputError> {
        for group in &self.groups {
            let policy = self.policy_of(group).map_err(InputError::new)?;
            if policy.needs_oracle() {
                return Err(refuse!(
                    "group '{}': policy '{}' plans with the future, which is known of recordings, \
                     profiles and generators on the simulated machine at interval fidelity only; make a \
                     profile with 'terrace profile' and run that",
                    group.name,
                    group.policy
                ));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Fault> {
        let at = Fault::at;
        name_is_plain("name", &self.name).map_err(at(&["name"]))?;
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
            // Those of the caller's own are made when they are run: making one may do anything.
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

    /// A fault of one of the parameters given for this policy.
    fn at_parameter(&self, policy: &str, error: InputError) -> Fault {
        let key = key_in(self.policies.get(policy), &error.0);
        Fault::at(&["policies", policy, key])(error)
    }

    /// The machine; the error has its key.
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
        // What moves cost is played at interval fidelity too, for programs whose time is known.
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
        if machine.full
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

    /// One group; the error has its key.
    fn check_group(&self, group: &GroupSpec) -> Result<(), (&'static str, InputError)> {
        name_is_plain("name", &group.name).map_err(|e| ("name", e))?;
        let timed = [
            ("start_ms", group.start_ms.is_some()),
            ("stop_ms", group.stop_ms.is_some()),
            ("sparse", group.sparse.is_some()),
        ];
        if self.machine.fidelity == Fidelity::Interval
            && let Some((key, _)) = timed.into_iter().find(|(_, given)| *given)
        {
            let error = refuse!(
                "start_ms, stop_ms and sparse: expected only with fidelity = \"trace\" in [machine]"
            );
            return Err((key, error));
        }
        group.sparse.map_or(Ok(()), |sparse| sparse.check()).map_err(|e| ("sparse", e))?;
        if group.stop_ms.is_some_and(|stop| stop <= group.start_ms.unwrap_or(0)) {
            return Err(("stop_ms", refuse!("stop_ms: expected a time after start_ms")));
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

/// What is wrong with an experiment, and with which of its keys.
struct Fault {
    path: Vec<String>,
    error: InputError,
}

impl Fault {
    /// Makes a fault of an error at a key, given by its path.
    fn at(path: &[&str]) -> impl FnOnce(InputError) -> Self + use<> {
        let path = path.iter().map(|part| (*part).to_owned()).collect();
        move |error| Fault { path, error }
    }

    /// The error with its line in the text that the experiment was read from.
    fn in_file(self, text: &str) -> InputError {
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
        // What was read is written so that it reads the same.
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

//! The policy interface: the trait that every policy implements and the registry that names them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::input_error::InputError;
use crate::names;
use crate::oracle::OracleTrace;
use crate::page::PageSize;
use crate::parameters::{ParameterDoc, Parameters};
use crate::plan::{Decision, Outcome};
use crate::scan::{Budget, Scan};

/// Decides which pages to move. Pure: takes a scan and a budget, returns a decision; no I/O, no
/// clock, random numbers only from the seed it was built with. The same sequence of scans and
/// budgets gives the same sequence of decisions on every machine.
pub trait Policy: Send {
    /// The name it has in the registry.
    fn name(&self) -> &'static str;

    /// Takes the scan of one period and returns the moves. Called once per scan, in order.
    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision;

    /// Takes the outcome of the last decision's plan, before the next scan. Not called where nothing says
    /// how a plan ended.
    fn outcome(&mut self, _outcome: &Outcome, _page_size: PageSize) {}

    /// Pages that may be moved in the period of the last decision, those of its plan included: what is
    /// left of them a machine may use by itself ([`crate::interfaces::Mover::refine`]). 0 for policies that
    /// leave all pages where they are, and where a throttle in front of a policy holds moves back.
    fn most_moved_pages(&self, budget: &Budget) -> u64 {
        budget.moved_pages
    }

    /// Where new pages should be placed by a machine that can choose.
    fn allocation(&self) -> Allocation {
        Allocation::FastFirst
    }

    /// Whether it needs the frames of the pages ([`Scan::frames`]). Where the machine does not
    /// report them it should be refused beforehand.
    fn needs_frames(&self) -> bool {
        false
    }

    /// Whether it plans with knowledge of the future ([`Policy::set_oracle`]). Where there is no
    /// oracle trace it should be refused beforehand.
    fn needs_oracle(&self) -> bool {
        false
    }

    /// Passes the oracle trace of the group, before its first scan.
    fn set_oracle(&mut self, _future: Arc<OracleTrace>) {}

    /// What a policy that asks another process has to say of that; `None` of all others.
    fn external(&self) -> Option<ExternalReport> {
        None
    }

    /// Bytes of metadata held for the group's pages at this moment.
    fn metadata_bytes(&self) -> usize;
}

/// How a policy that asks another process fares, and who decided where that did not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExternalReport {
    /// Name of the policy that decides where the process does not.
    pub fallback: String,
    /// "deciding", or why it does not at the moment, as in `fallback_periods`.
    pub state: String,
    /// Periods that the process decided.
    pub decided_periods: u64,
    /// Periods that the fallback decided, by reason.
    pub fallback_periods: Vec<(String, u64)>,
    /// How often a process was started anew.
    pub restarts: u64,
    /// The last thing that went wrong.
    pub error: Option<String>,
}

impl ExternalReport {
    /// Periods that the fallback decided.
    pub fn lapses(&self) -> u64 {
        self.fallback_periods.iter().map(|(_, periods)| periods).sum()
    }

    /// Why it decided them, in words: `late 3, died 1`.
    pub fn reasons(&self) -> String {
        let counts = self.fallback_periods.iter().filter(|(_, periods)| *periods > 0);
        let one =
            |(reason, periods): &(String, u64)| format!("{} {periods}", reason.replace('_', " "));
        counts.map(one).collect::<Vec<_>>().join(", ")
    }

    /// All of it, in words.
    pub fn words(&self) -> String {
        let mut text = format!("its policy decided {} periods", self.decided_periods);
        if self.lapses() > 0 {
            text += &format!(", {} {} ({})", self.fallback, self.lapses(), self.reasons());
        }
        if let Some(error) = &self.error {
            text += &format!("; the last error: {error}");
        }
        text
    }
}

/// Where new pages go (nimble paper, section 3.2: never migrate on the allocation path).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Fast memory while the group has budget left, else slow.
    FastFirst,
    /// Alternate between the tiers in proportion to the budget.
    Interleave,
}

/// One kind of policy: a row of the registry.
pub struct PolicyKind {
    /// Its name in experiments and on the command line.
    pub name: &'static str,
    /// Its summary, in one line.
    pub summary: &'static str,
    /// When to take it, and when not, in one line or two.
    pub advice: &'static str,
    /// The paper and section it comes from.
    pub source: &'static str,
    /// Its parameters with their defaults and meanings.
    pub parameters: &'static [ParameterDoc],
    /// Makes one. Unknown parameters and impossible values are errors.
    pub build: Build,
}

impl From<InputError> for PolicyError {
    fn from(error: InputError) -> Self {
        PolicyError::Own(error)
    }
}

/// Builds a policy from its parameters (a JSON object, or null) and the seed of the run.
pub type Build = fn(parameters: &Value, seed: u64) -> Result<Box<dyn Policy>, PolicyError>;

/// Why a policy could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No policy has this name.
    #[error("no policy is named '{got}'; expected {expected}")]
    Unknown {
        /// The requested name.
        got: String,
        /// The names in the registry, and which of them was probably meant.
        expected: String,
    },
    /// A policy that is not Terrace's own cannot be used.
    #[error("{0}")]
    Own(InputError),
    /// A parameter that the policy does not have, or a value it cannot take.
    #[error("policy '{policy}': {message}")]
    BadParameter {
        /// The policy's name.
        policy: &'static str,
        /// What was got and what was expected.
        message: String,
    },
}

/// Builds the policy of this name. `parameters` is a JSON object, or null for the defaults.
pub fn build(name: &str, parameters: &Value, seed: u64) -> Result<Box<dyn Policy>, PolicyError> {
    let kinds = crate::policies::REGISTRY;
    let kind = kinds.iter().find(|k| k.name == name).ok_or_else(|| PolicyError::Unknown {
        got: name.to_owned(),
        expected: names::expected(name, kinds.iter().map(|k| k.name)),
    })?;
    (kind.build)(parameters, seed)
}

/// Reads a policy's parameters from the object given in an experiment, and checks their ranges;
/// null gives the defaults.
pub fn parameters<T: Parameters>(policy: &'static str, value: &Value) -> Result<T, PolicyError> {
    if value.is_null() {
        return Ok(T::default());
    }
    crate::parameters::read(value)
        .and_then(|parameters: T| parameters.check().map(|()| parameters))
        .map_err(|message| PolicyError::BadParameter { policy, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_asks_another_process_says_who_decided_and_why() {
        let mut report = ExternalReport {
            fallback: "lru".into(),
            decided_periods: 37,
            fallback_periods: vec![
                ("starting".into(), 1),
                ("late".into(), 0),
                ("given_up".into(), 2),
            ],
            ..ExternalReport::default()
        };
        assert_eq!((report.lapses(), report.reasons().as_str()), (3, "starting 1, given up 2"));
        report.error = Some("own.py, line 3: KeyError: 7".into());
        assert_eq!(
            report.words(),
            "its policy decided 37 periods, lru 3 (starting 1, given up 2); the last error: own.py, \
             line 3: KeyError: 7"
        );
        let good = ExternalReport { decided_periods: 40, ..ExternalReport::default() };
        assert_eq!(good.words(), "its policy decided 40 periods");
    }
}

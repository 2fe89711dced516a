//! The policy interface: the trait that every policy implements and the registry that names them.

use std::sync::Arc;

use serde_json::Value;

use crate::names;
use crate::oracle::OracleTrace;
use crate::parameters::{ParameterDoc, Parameters};
use crate::plan::Decision;
use crate::scan::{Budget, Scan};

/// Decides which pages to move. Pure: takes a scan and a budget, returns a decision; no I/O, no
/// clock, random numbers only from the seed it was built with. The same sequence of scans and
/// budgets gives the same sequence of decisions on every machine.
pub trait Policy: Send {
    /// The name it has in the registry.
    fn name(&self) -> &'static str;

    /// Takes the scan of one period and returns the moves. Called once per scan, in order.
    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision;

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

    /// Bytes of metadata held for the group's pages at this moment.
    fn metadata_bytes(&self) -> usize;
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

//! A program's result: a checksum and its own checks.

use serde::Serialize;

use super::native::Clock;
use crate::memory::checked::mix;

/// One check of a program on its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The property checked, with the figures.
    pub what: String,
    /// Whether the check passed.
    pub passed: bool,
}

/// What a kernel returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Equal results, equal checksums.
    pub checksum: u64,
    /// Operations of the main phase, in the unit that its kind names.
    pub operations: u64,
    /// The checks made.
    pub checks: Vec<Check>,
}

/// The result of a run of a program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProgramResult {
    /// The program's name.
    pub program: &'static str,
    /// Equal parameters, equal checksums: natively and traced, with any number of threads.
    pub checksum: u64,
    /// Whether every check passed.
    pub verified: bool,
    /// The checks.
    pub checks: Vec<Check>,
    /// Operations of the main phase.
    pub operations: u64,
    /// The unit of an operation.
    pub operation: &'static str,
    /// Bytes of all its arrays.
    pub footprint_bytes: u64,
    /// Seconds of its main phase. Traced, the time of making the trace.
    pub duration_s: f64,
    /// Seconds of each phase.
    pub phases: Vec<(&'static str, f64)>,
}

impl ProgramResult {
    pub(super) fn new(
        kind: &super::ProgramKind,
        outcome: Outcome,
        footprint_bytes: u64,
        clock: &Clock,
    ) -> ProgramResult {
        let phases = clock.phases().to_vec();
        let main = phases.iter().find(|(name, _)| *name == super::memory::phase::MAIN);
        ProgramResult {
            program: kind.name,
            checksum: outcome.checksum,
            verified: !outcome.checks.is_empty() && outcome.checks.iter().all(|c| c.passed),
            checks: outcome.checks,
            operations: outcome.operations,
            operation: kind.operation,
            footprint_bytes,
            duration_s: main.map_or(0.0, |(_, seconds)| *seconds),
            phases,
        }
    }
}

/// Makes a check.
pub(super) fn check(passed: bool, what: impl Into<String>) -> Check {
    Check { what: what.into(), passed }
}

/// Checks that an error is no greater than a limit. Not-a-number fails.
pub(super) fn check_error(what: &str, error: f64, limit: f64) -> Check {
    check(error <= limit, format!("{what} {error:.3e}, at most {limit:.1e}"))
}

/// Adds a value to a checksum in which order counts.
pub(super) fn fold(checksum: u64, value: u64) -> u64 {
    mix(checksum ^ value)
}

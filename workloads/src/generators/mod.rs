//! Generators: sources of accessed pages that need no program, for the simulated machine.
//!
//! To add one: write its file beside these, name it here, add its row to [`REGISTRY`]. A generator
//! defines which pages are touched in a span of time ([`program::Pattern`]); start-up, layout and
//! duration are the same for all ([`program`]).
//!
//! # Time, and what a name promises
//! A generator is a program with a timetable in ms; a period contains the touches in `[t, t +
//! period)`. Whether such a program favours a policy depends on the period: a tracker that samples
//! every 5 s cannot observe phases of 4 s. The adaptive-migration-policy paper (section 6.6) gives
//! its LRU-favor program phases of four seconds and samples every five (section 3.1). Taken
//! literally, every period would touch two working sets, at most one of which was touched in the
//! period before, so that LRU with half the memory hits less than half of the accessed pages (37 %
//! by its rule alone, 47 % with hysteresis), and any pages left in place hit half. The defaults
//! here therefore count in *units*: one second, or one period where periods are longer. At periods
//! of a second or less the phases are the paper's four seconds; at longer ones they grow with the
//! period and keep the property that the name promises. An explicit time is taken as given.

mod chance;
mod hotcold;
mod lfu_favor;
mod lru_favor;
mod mix;
pub mod program;
mod random_favor;
mod scan;
mod uniform;
mod walk;
mod zipf;

use serde_json::Value;
use terrace_core::page::PageSize;
use terrace_core::parameters::ParameterDoc;
use terrace_recordings::source::PeriodSource;

pub use mix::MIXES;

/// Every generator there is.
pub static REGISTRY: &[GeneratorKind] = &[
    lru_favor::KIND,
    lfu_favor::KIND,
    random_favor::KIND,
    mix::KIND,
    zipf::KIND,
    hotcold::KIND,
    uniform::KIND,
    scan::KIND,
];

/// One kind of generator: a row of the registry.
pub struct GeneratorKind {
    /// Its name in experiments.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// The paper and section it represents, with the row of the requirements; or the system that it
    /// models.
    pub stands_for: &'static str,
    /// Its own parameters with their defaults and meanings; [`COMMON_PARAMETERS`] are added, unless
    /// it is a `mix`.
    pub parameters: &'static [ParameterDoc],
    /// Builds a generator. Unknown parameters and impossible values are errors.
    pub build: fn(&Value, Timing) -> Built,
    /// The maximum footprint.
    pub footprint_bytes: fn(&Value) -> Result<u64, GeneratorError>,
}

/// A generator, or why there is none.
pub type Built = Result<Box<dyn PeriodSource>, GeneratorError>;

/// Parameters that every generator but `mix` has.
pub const COMMON_PARAMETERS: &[ParameterDoc] = &[
    ParameterDoc {
        name: "footprint_mib",
        default: "1024",
        meaning: "memory of the program in MiB (2^20 bytes), a whole number of pages (1 to 67108864)",
    },
    ParameterDoc {
        name: "startup_ms",
        default: "2000",
        meaning: "time in which the program first touches its memory, in address order; 0: it is all there from the start",
    },
    ParameterDoc {
        name: "duration_ms",
        default: "none",
        meaning: "time after which the program ends, start-up included, rounded up to whole periods; none: it never ends",
    },
];

/// The conditions that a generator is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Size of the pages it touches.
    pub page_size: PageSize,
    /// Length of the periods in which its accesses are reported.
    pub period_ms: u64,
    /// Seed of its random numbers.
    pub seed: u64,
}

impl Timing {
    /// The unit of default times: see the module's documentation.
    fn unit_ms(&self) -> u64 {
        self.period_ms.max(1000)
    }
}

/// Why a generator could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GeneratorError {
    /// No generator has this name.
    #[error("no generator is named '{got}'; expected {expected}")]
    Unknown {
        /// The requested name.
        got: String,
        /// The existing names.
        expected: String,
    },
    /// A parameter that the generator does not have, or a value it cannot take.
    #[error("generator '{generator}': {message}")]
    BadParameter {
        /// The generator's name.
        generator: &'static str,
        /// The message: got and expected.
        message: String,
    },
}

/// The generator of this name.
pub fn kind(name: &str) -> Result<&'static GeneratorKind, GeneratorError> {
    REGISTRY.iter().find(|k| k.name == name).ok_or_else(|| GeneratorError::Unknown {
        got: name.to_owned(),
        expected: terrace_core::names::expected(name, REGISTRY.iter().map(|k| k.name)),
    })
}

/// Builds the generator of this name. `parameters` is a JSON object, or null for the defaults.
pub fn build(name: &str, parameters: &Value, timing: Timing) -> Built {
    (kind(name)?.build)(parameters, timing)
}

/// The maximum footprint of the generator of this name with these parameters.
pub fn footprint_bytes(name: &str, parameters: &Value) -> Result<u64, GeneratorError> {
    (kind(name)?.footprint_bytes)(parameters)
}

#[cfg(test)]
mod tests;

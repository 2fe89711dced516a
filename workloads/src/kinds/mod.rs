//! The kinds of workload that experiments name. A kind may run live, or have a generator for the
//! simulated machine, or both.
//!
//! To add a live kind: write its file beside these, name it here, add its row to [`LIVE`]. A
//! generator of the same name is joined to it; a generator without a live kind is a kind of its
//! own.

mod command;
mod generated;
mod hotcold;
pub mod program;
mod redis_zipf;

use serde::de::DeserializeOwned;
use serde_json::Value;
use terrace_core::names;
use terrace_core::parameters;
use terrace_core::parameters::ParameterDoc;
use terrace_recordings::source::PeriodSource;

use crate::generators::{self, COMMON_PARAMETERS, GeneratorError, GeneratorKind, Timing};
use crate::live::ProgramMissing;
pub use crate::live::{
    End, LiveCommand, LiveContext, LiveProgram, LiveWorkload, Ready, WorkloadResult,
};

/// Every kind that runs live.
pub static LIVE: &[LiveKind] = &[
    redis_zipf::KIND,
    hotcold::KIND,
    generated::LRU_FAVOR,
    generated::LFU_FAVOR,
    generated::RANDOM_FAVOR,
    generated::ZIPF,
    generated::UNIFORM,
    generated::SCAN,
    generated::MIX,
    program::KIND,
    command::KIND,
];

/// Added to the time limits of programs, for filling and checking their memory on an emulated
/// machine.
const SLACK_MS: u64 = 180_000;

/// A live kind: a row of the registry.
pub struct LiveKind {
    /// Its name in experiments.
    pub name: &'static str,
    /// Summary in one line. Empty when the generator of its name has it.
    pub summary: &'static str,
    /// The workload it represents. Empty when the generator of its name has it.
    pub stands_for: &'static str,
    /// Its parameters with their defaults and meanings, without those of a generator.
    pub parameters: &'static [ParameterDoc],
    /// Returns the programs to start. Unknown parameters and impossible values are errors.
    pub build: fn(&Value, &LiveContext) -> Result<LiveWorkload, WorkloadError>,
}

/// A kind of workload.
#[derive(Clone, Copy)]
pub struct WorkloadKind {
    /// Its name in experiments.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// The workload it represents.
    pub stands_for: &'static str,
    /// How it runs on a live machine, if it does.
    pub live: Option<&'static LiveKind>,
    /// How it is modelled on the simulated machine, if it is.
    pub generator: Option<&'static GeneratorKind>,
    /// Parameters of neither of these two.
    extra: &'static [ParameterDoc],
}

impl WorkloadKind {
    /// The programs to start on a live machine.
    pub fn live(
        &self,
        parameters: &Value,
        context: &LiveContext,
    ) -> Result<LiveWorkload, WorkloadError> {
        let live = self.live.ok_or(WorkloadError::NotLive(self.name))?;
        (live.build)(parameters, context)
    }

    /// The accesses on the simulated machine.
    pub fn source(
        &self,
        parameters: &Value,
        timing: Timing,
    ) -> Result<Box<dyn PeriodSource>, WorkloadError> {
        let generator = self.generator.ok_or(match self.name {
            program::NAME => WorkloadError::NotByInterval(self.name),
            _ => WorkloadError::NoGenerator(self.name),
        })?;
        Ok((generator.build)(parameters, timing)?)
    }

    /// The machines that it can run on, as the command line names them.
    pub fn machines(&self) -> &'static [&'static str] {
        match (self.live.is_some(), self.generator.is_some()) {
            (true, true) => &["sim", "vm", "host"],
            (true, false) if self.name == program::NAME => &["sim", "vm", "host"],
            (true, false) => &["vm", "host"],
            (false, false) if self.name == ATTACH => &["host"],
            (false, _) => &["sim"],
        }
    }

    /// The parameters with their defaults and meanings: those of the live program, then those of
    /// the generator that it does not share.
    pub fn parameters(&self) -> Vec<&'static ParameterDoc> {
        let mut all: Vec<&ParameterDoc> = self.extra.iter().collect();
        all.extend(self.live.iter().flat_map(|l| l.parameters));
        if let Some(generator) = self.generator {
            all.extend(generator.parameters);
            if generator.name != "mix" {
                all.extend(COMMON_PARAMETERS);
            }
        }
        let mut seen = Vec::new();
        all.retain(|p| {
            !seen.contains(&p.name) && {
                seen.push(p.name);
                true
            }
        });
        all
    }
}

/// Why a workload cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// No kind has this name.
    #[error("no workload is named '{got}'; expected {expected}")]
    Unknown {
        /// The requested name.
        got: String,
        /// The existing names.
        expected: String,
    },
    /// A parameter that the kind does not have, or a value it cannot take.
    #[error("workload '{kind}': {message}")]
    BadParameter {
        /// The kind's name.
        kind: &'static str,
        /// The message: got and expected.
        message: String,
    },
    /// The same error from a generator.
    #[error(transparent)]
    Generator(#[from] GeneratorError),
    /// The kind has no live program.
    #[error(
        "workload '{0}' has no live program; run it with --machine sim, or choose another kind"
    )]
    NotLive(&'static str),
    /// The kind is simulated by reference, not by interval.
    #[error(
        "workload '{0}' is simulated reference by reference; run it with --fidelity trace (fidelity = \"trace\" in [machine]), or profile it once ('terrace profile') and run the profile (kind = \"profile\")"
    )]
    NotByInterval(&'static str),
    /// The kind has no model.
    #[error(
        "workload '{0}' has no model for the simulated machine; run it with --machine vm and simulate its recording (kind = \"recording\")"
    )]
    NoGenerator(&'static str),
    /// A program that it needs is missing.
    #[error(transparent)]
    Missing(#[from] ProgramMissing),
}

/// A recording is replayed by the layer that reads experiment files: it has the files' directory.
const RECORDING: WorkloadKind = WorkloadKind {
    name: "recording",
    summary: "the accessed pages of a recorded run, replayed on the simulated machine",
    stands_for: "any program that was recorded",
    live: None,
    generator: None,
    extra: &[
        ParameterDoc {
            name: "path",
            default: "none: it must be given",
            meaning: "the recording, relative to the experiment file",
        },
        ParameterDoc { name: "group", default: "the group's own name", meaning: "group in it" },
    ],
};

/// Name of the kind that plays a profile.
pub const PROFILE: &str = "profile";

/// Profiles are played by the layer that reads experiment files.
const PROFILED: WorkloadKind = WorkloadKind {
    name: PROFILE,
    summary: "the profile of a program, as 'terrace profile' makes it; run time at interval fidelity",
    stands_for: "any program that was profiled",
    live: None,
    generator: None,
    extra: &[ParameterDoc {
        name: "path",
        default: "none: it must be given",
        meaning: "the profile, relative to the experiment file",
    }],
};

/// Name of the kind that starts nothing: programs that already run.
pub const ATTACH: &str = "attach";

/// Programs that already run are found by the layer that reads experiment files.
const ATTACHED: WorkloadKind = WorkloadKind {
    name: ATTACH,
    summary: "programs that run already, on the host; nothing is started or ended",
    stands_for: "whatever they do",
    live: None,
    generator: None,
    extra: &[
        ParameterDoc {
            name: "cgroup",
            default: "none: this or pids must be given",
            meaning: "control group (v2) of the programs, below /sys/fs/cgroup",
        },
        ParameterDoc { name: "pids", default: "[]", meaning: "their process identifiers" },
    ],
};

/// Every kind there is: live ones, then generators without a live program, then recordings.
pub fn all() -> Vec<WorkloadKind> {
    let mut kinds: Vec<WorkloadKind> = Vec::new();
    for live in LIVE {
        let generator = generators::REGISTRY.iter().find(|g| g.name == live.name);
        let either = |own: &'static str, of: fn(&GeneratorKind) -> &'static str| {
            if own.is_empty() { generator.map_or("", of) } else { own }
        };
        kinds.push(WorkloadKind {
            name: live.name,
            summary: either(live.summary, |g| g.summary),
            stands_for: either(live.stands_for, |g| g.stands_for),
            live: Some(live),
            generator,
            extra: &[],
        });
    }
    for generator in generators::REGISTRY {
        if kinds.iter().all(|k| k.name != generator.name) {
            kinds.push(WorkloadKind {
                name: generator.name,
                summary: generator.summary,
                stands_for: generator.stands_for,
                live: None,
                generator: Some(generator),
                extra: &[],
            });
        }
    }
    kinds.extend([ATTACHED, RECORDING, PROFILED]);
    kinds
}

/// The kind of this name.
pub fn find(name: &str) -> Result<WorkloadKind, WorkloadError> {
    let kinds = all();
    kinds.iter().find(|k| k.name == name).copied().ok_or_else(|| WorkloadError::Unknown {
        got: name.to_owned(),
        expected: names::expected(name, kinds.iter().map(|k| k.name)),
    })
}

/// Reads a kind's parameters (a struct with `#[serde(default, deny_unknown_fields)]`); null gives
/// the defaults.
fn parse<T: DeserializeOwned>(kind: &'static str, value: &Value) -> Result<T, WorkloadError> {
    let empty = Value::Object(serde_json::Map::new());
    let value = if value.is_null() { &empty } else { value };
    parameters::read(value).map_err(|message| bad(kind, message))
}

fn bad(kind: &'static str, message: String) -> WorkloadError {
    WorkloadError::BadParameter { kind, message }
}

/// Rejects a number outside its range.
fn within<T: PartialOrd + std::fmt::Display>(
    kind: &'static str,
    name: &str,
    got: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<(), WorkloadError> {
    if range.contains(&got) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(bad(kind, format!("{name} is {got}, expected {least} to {most}")))
}

//! `program`: one of the workload programs of the papers' classes, natively on a live machine, as
//! references on the simulated one.

use serde::Deserialize;
use serde_json::Value;
use terrace_core::parameters::ParameterDoc;

use super::generated::own_program;
use super::{LiveKind, WorkloadError, bad, parse, within};
use crate::programs::{self, Params};

/// The kind's name in experiments.
pub const NAME: &str = "program";

pub(super) const KIND: LiveKind = LiveKind {
    name: NAME,
    summary: "a workload program of the papers' classes, simulated at trace fidelity; see 'terrace-workload program --list'",
    stands_for: "the programs of the papers' tables, each by its name",
    parameters: &[
        ParameterDoc {
            name: "name",
            default: "none: it must be given",
            meaning: "the program: bfs, gups, stream, xsbench and others",
        },
        ParameterDoc {
            name: "footprint_mib",
            default: "256",
            meaning: "memory that its data take in MiB, of 2^20 bytes (2 to 67108864)",
        },
        ParameterDoc {
            name: "threads",
            default: "1",
            meaning: "threads, where the program can use several (1 to 4096)",
        },
        ParameterDoc {
            name: "options",
            default: "{}",
            meaning: "the program's own parameters, as in { iterations = 20 }",
        },
        ParameterDoc {
            name: "dependent_loads",
            default: "false",
            meaning: "each load needs the one before, as in a chase along pointers (sim only)",
        },
    ],
    build: |parameters, context| {
        let p: Parameters = parse(NAME, parameters)?;
        let params = p.params(context.seed)?;
        let mut arguments = vec![
            NAME.to_owned(),
            p.name.clone(),
            format!("--footprint={}M", p.footprint_mib),
            format!("--seed={}", params.seed),
            format!("--threads={}", params.threads),
        ];
        for (key, value) in &p.options {
            arguments.push(format!("--set={key}={value}"));
        }
        own_program(arguments)
    },
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    name: String,
    footprint_mib: u64,
    threads: usize,
    options: serde_json::Map<String, Value>,
    dependent_loads: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters {
            name: String::new(),
            footprint_mib: 256,
            threads: 1,
            options: serde_json::Map::new(),
            dependent_loads: false,
        }
    }
}

impl Parameters {
    fn params(&self, seed: u64) -> Result<Params, WorkloadError> {
        within(NAME, "footprint_mib", self.footprint_mib, 2..=1 << 26)?;
        let options = match self.options.is_empty() {
            true => Value::Null,
            false => Value::Object(self.options.clone()),
        };
        let params = Params {
            footprint_bytes: self.footprint_mib << 20,
            seed,
            threads: self.threads,
            options,
        };
        programs::check(&self.name, &params).map_err(|e| bad(NAME, e.to_string()))?;
        Ok(params)
    }
}

/// The simulated machine's input to run it.
#[derive(Debug, Clone, PartialEq)]
pub struct Traced {
    /// The program's name.
    pub name: String,
    /// The program's parameters.
    pub params: Params,
    /// Each load depends on the one before.
    pub dependent_loads: bool,
}

/// Reads the parameters of this kind.
pub fn traced(parameters: &Value, seed: u64) -> Result<Traced, WorkloadError> {
    let p: Parameters = parse(NAME, parameters)?;
    let params = p.params(seed)?;
    Ok(Traced { name: p.name, params, dependent_loads: p.dependent_loads })
}

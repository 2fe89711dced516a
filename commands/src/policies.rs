//! `terrace policies`: the policies, their sources and parameters.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use terrace_core::InputError;
use terrace_core::policies::REGISTRY;
use terrace_core::policy::{self, PolicyKind};

use crate::show::{self, Format, say};

/// List the policies, or show one with its parameters.
#[derive(Args)]
pub struct Arguments {
    /// Show this policy alone, with its parameters.
    #[arg(value_name = "POLICY")]
    name: Option<String>,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Shows them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let Some(name) = &self.name else {
            self.show_all()?;
            return Ok(ExitCode::SUCCESS);
        };
        // The error for an unknown name lists the known ones.
        policy::build(name, &serde_json::Value::Null, 0).map_err(InputError::new)?;
        for kind in REGISTRY.iter().filter(|k| k.name == name) {
            self.show(kind)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn show_all(&self) -> anyhow::Result<()> {
        if self.format == Format::Json {
            let kinds: Vec<_> = REGISTRY.iter().map(json).collect();
            return say!("{}", serde_json::to_string_pretty(&kinds)?);
        }
        let mut table = show::table(&["policy", "what it does", "take it"]);
        for kind in REGISTRY {
            table.add_row([kind.name, kind.summary, kind.advice]);
        }
        say!("{table}\n")?;
        say!(
            "'terrace policies POLICY' shows one with its source and parameters; 'terrace compare' and\n\
             'terrace plan' try several on your program."
        )
    }

    fn show(&self, kind: &PolicyKind) -> anyhow::Result<()> {
        if self.format == Format::Json {
            return say!("{}", serde_json::to_string_pretty(&json(kind))?);
        }
        let mut table = show::list();
        table.add_row(["policy", kind.name]);
        table.add_row(["what it does", kind.summary]);
        table.add_row(["take it", kind.advice]);
        table.add_row(["source", kind.source]);
        say!("{table}\n")?;
        show::parameters(kind.parameters)?;
        if kind.parameters.is_empty() {
            return Ok(());
        }
        say!("\nIn an experiment they are in a section [policies.{}].", kind.name)
    }
}

fn json(kind: &PolicyKind) -> serde_json::Value {
    json!({
        "name": kind.name,
        "summary": kind.summary,
        "advice": kind.advice,
        "source": kind.source,
        "parameters": show::parameters_json(kind.parameters),
    })
}

//! `terrace workloads`: the kinds of workloads.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use terrace_core::InputError;
use terrace_workloads::kinds::{self, WorkloadKind};

use crate::show::{self, Format, say};

/// List the kinds of workloads, or show one with its parameters.
#[derive(Args)]
pub struct Arguments {
    /// Show this kind alone, with its meaning and its parameters.
    #[arg(value_name = "KIND")]
    name: Option<String>,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Shows them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        match &self.name {
            Some(name) => self.show(&kinds::find(name).map_err(InputError::new)?)?,
            None => self.show_all()?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn show_all(&self) -> anyhow::Result<()> {
        if self.format == Format::Json {
            let kinds: Vec<_> = kinds::all().iter().map(json).collect();
            return say!("{}", serde_json::to_string_pretty(&kinds)?);
        }
        let mut table = show::table(&["workload", "machines", "what it does"]);
        for kind in kinds::all() {
            table.add_row([kind.name, &kind.machines().join(" "), kind.summary]);
        }
        say!("{table}\n")?;
        say!("'terrace workloads KIND' shows one with its parameters.")
    }

    fn show(&self, kind: &WorkloadKind) -> anyhow::Result<()> {
        if self.format == Format::Json {
            return say!("{}", serde_json::to_string_pretty(&json(kind))?);
        }
        let mut table = show::list();
        table.add_row(["workload", kind.name]);
        table.add_row(["machines", &kind.machines().join(" ")]);
        table.add_row(["what it does", kind.summary]);
        table.add_row(["stands for", kind.stands_for]);
        say!("{table}\n")?;
        show::parameters(kind.parameters())?;
        say!("\nIn an experiment they are in a section [groups.workload], after the kind.")
    }
}

fn json(kind: &WorkloadKind) -> serde_json::Value {
    json!({
        "name": kind.name,
        "machines": kind.machines(),
        "summary": kind.summary,
        "stands_for": kind.stands_for,
        "parameters": show::parameters_json(kind.parameters()),
    })
}

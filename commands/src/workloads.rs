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
            table.add_row([kind.name, machines(&kind), kind.summary]);
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
        table.add_row(["machines", machines(kind)]);
        table.add_row(["what it does", kind.summary]);
        table.add_row(["stands for", kind.stands_for]);
        say!("{table}\n")?;
        show::parameters(kind.parameters())?;
        say!("\nIn an experiment they stand in a section [groups.workload], after the kind.")
    }
}

/// The machines that a kind can run on.
fn machines(kind: &WorkloadKind) -> &'static str {
    match (kind.live.is_some(), kind.generator.is_some()) {
        (true, true) => "sim vm host",
        (true, false) => "vm host",
        (false, true) => "sim",
        (false, false) if kind.name == kinds::ATTACH => "host",
        (false, false) => "sim",
    }
}

fn json(kind: &WorkloadKind) -> serde_json::Value {
    json!({
        "name": kind.name,
        "machines": machines(kind).split(' ').collect::<Vec<_>>(),
        "summary": kind.summary,
        "stands_for": kind.stands_for,
        "parameters": show::parameters_json(kind.parameters()),
    })
}

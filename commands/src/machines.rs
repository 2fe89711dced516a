//! `terrace machines`: the machines that can be simulated, and their configurations.

use std::process::ExitCode;

use clap::Args;
use comfy_table::ColumnConstraint;
use serde_json::json;
use terrace_core::InputError;
use terrace_hardware::presets::{self, MachineConfig};
use terrace_hardware::tier::{TierConfig, TierModel};

use crate::show::{self, Format, say};

/// List the machines that can be simulated, or show one.
#[derive(Args)]
pub struct Arguments {
    /// Show this machine alone.
    #[arg(value_name = "MACHINE")]
    name: Option<String>,
    /// Print its configuration, every key, as TOML.
    #[arg(long, requires = "name")]
    print_config: bool,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "text", conflicts_with = "print_config")]
    format: Format,
}

impl Arguments {
    /// Shows them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let Some(name) = &self.name else {
            self.show_all()?;
            return Ok(ExitCode::SUCCESS);
        };
        let machine = presets::by_name(name).map_err(InputError::new)?;
        match self.format {
            _ if self.print_config => show::line(toml::to_string(&machine)?.trim_end())?,
            Format::Json => say!("{}", serde_json::to_string_pretty(&document(name, &machine))?)?,
            Format::Text => show_one(name, &machine)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn show_all(&self) -> anyhow::Result<()> {
        let machines = presets::names()
            .map(|name| Ok((name, presets::by_name(name)?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        if self.format == Format::Json {
            let all: Vec<_> = machines.iter().map(|(name, m)| document(name, m)).collect();
            return say!("{}", serde_json::to_string_pretty(&all)?);
        }
        let mut table = show::table(&["machine", "processor", "tiers", "what it stands for"]);
        for (name, machine) in &machines {
            let tiers: Vec<_> = machine.tiers.iter().map(tier).collect();
            table.add_row([
                (*name).to_owned(),
                format!("{}, {}", cores(machine), caches(machine).join(", ")),
                tiers.join("; "),
                machine.description.clone(),
            ]);
        }
        // A name is to be copied: it is not wrapped.
        if let Some(names) = table.column_mut(0) {
            names.set_constraint(ColumnConstraint::ContentWidth);
        }
        say!("{table}\n")?;
        say!("'terrace machines MACHINE --print-config' prints one with every key.")
    }
}

fn show_one(name: &str, machine: &MachineConfig) -> anyhow::Result<()> {
    let node = &machine.node;
    let mut table = show::list();
    table.add_row(["machine".to_owned(), name.to_owned()]);
    table.add_row(["what it stands for".to_owned(), machine.description.clone()]);
    table.add_row(["cores".to_owned(), cores(machine)]);
    let core = &node.core;
    table.add_row([
        "window".to_owned(),
        format!(
            "{} instructions, {} outstanding misses, {} stores, {} page walkers",
            core.window_instructions, core.outstanding_misses, core.store_buffer, core.page_walkers
        ),
    ]);
    table.add_row(["caches".to_owned(), caches(machine).join(", ")]);
    table.add_row(["page-table levels".to_owned(), node.walker.levels.to_string()]);
    for t in &machine.tiers {
        table.add_row([format!("tier {}", t.name), tier(t)]);
    }
    say!("{table}\n")?;
    say!("'terrace machines {name} --print-config' prints it with every key.")
}

fn cores(machine: &MachineConfig) -> String {
    format!("{} x {:.1} GHz", machine.node.cores, f64::from(machine.node.core.clock_mhz) / 1000.0)
}

fn caches(machine: &MachineConfig) -> Vec<String> {
    let c = &machine.node.caches;
    let named = [("l1", Some(&c.l1)), ("l2", c.l2.as_ref()), ("llc", Some(&c.llc))];
    named.into_iter().filter_map(|(name, cache)| Some(format!("{name} {}", cache?.size))).collect()
}

/// A tier in a few words: the latency of an idle read beyond the caches, its bandwidth, and that of
/// reads over its link where the link has less.
fn tier(t: &TierConfig) -> String {
    let (words, medium) = match &t.model {
        TierModel::Queueing(q) => (
            format!(
                "{} {}, {:.0} ns, {:.0}/{:.0} GB/s",
                t.name, t.capacity, q.read_latency_ns, q.read_gb_per_s, q.write_gb_per_s
            ),
            q.read_gb_per_s,
        ),
        TierModel::Dram(d) => {
            let peak = d.dram.peak_gb_per_s();
            let path_ns = d.path_ns;
            let by = format!("DRAM by command over {path_ns:.0} ns, {peak:.0} GB/s peak");
            (format!("{} {}, {by}", t.name, t.capacity), peak)
        }
    };
    match t.read_gb_per_s() {
        linked if linked < medium => format!("{words}, reads {linked:.0} GB/s by its link"),
        _ => words,
    }
}

fn document(name: &str, machine: &MachineConfig) -> serde_json::Value {
    json!({
        "name": name,
        "description": machine.description,
        "node": machine.node,
        "tiers": machine.tiers,
    })
}

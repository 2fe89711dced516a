//! `terrace numactl`: a command whose page tables are placed apart from its data, and this
//! machine's mechanisms for tiering.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::{Args, ValueEnum};
use serde_json::json;
use terrace_core::InputError;
use terrace_linux::roots::Roots;
use terrace_linux::tiermem::{Device, Levels, TablePlace, TablePolicy, Target, TiermemError};
use terrace_linux::{numa, tiers};

use crate::show::{self, Format, say};

/// Run a command with its page tables in fast memory (needs the Terrace kernel).
///
/// Children inherit the policy, and so do programs that they execute. Data is placed as before;
/// use numactl for that. Without a command: this machine's tiers and what its kernel can do.
#[derive(Args)]
pub struct Arguments {
    /// Place of page tables: 'fast' (the nodes of the top tier), 'default', or a node's number.
    #[arg(long, value_name = "PLACE", value_parser = place, requires = "command")]
    page_tables: Option<TablePlace>,
    /// Levels of page tables.
    #[arg(long, value_enum, default_value = "upper", requires = "page_tables")]
    levels: Which,
    /// Never elsewhere: when there is no room, memory is reclaimed and in the end processes are
    /// killed, though other memory is free.
    #[arg(long, requires = "page_tables")]
    hard: bool,
    /// Let tables of the last level follow data that migrates to another tier.
    #[arg(long, requires = "page_tables")]
    follow: bool,
    /// Format of the list of mechanisms.
    #[arg(long, value_enum, default_value = "text", conflicts_with = "command")]
    format: Format,
    /// The command and its arguments, after '--'.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Sets of levels that have a name.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Which {
    /// All but the last, which maps base pages.
    Upper,
    /// All.
    All,
}

fn place(text: &str) -> Result<TablePlace, String> {
    match text {
        "fast" => Ok(TablePlace::Fast),
        "default" => Ok(TablePlace::Default),
        _ => text
            .parse()
            .map(TablePlace::Node)
            .map_err(|_| "expected 'fast', 'default', or the number of a node".to_owned()),
    }
}

impl Arguments {
    /// Sets the policy and becomes the command, or shows the machine's mechanisms.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let Some((program, arguments)) = self.command.split_first() else {
            show_machine(self.format)?;
            return Ok(ExitCode::SUCCESS);
        };
        let place = self.page_tables.ok_or_else(|| {
            InputError::new("expected --page-tables with 'fast', 'default', or a node's number")
        })?;
        let device = Device::open().map_err(InputError::new)?;
        if !device.features().page_table_policy() {
            return Err(InputError::new(
                "this kernel places no page tables; build one with CONFIG_TIERMEM_PT_POLICY",
            )
            .into());
        }
        let levels = match self.levels {
            Which::Upper => Levels::UPPER,
            Which::All => Levels::ALL,
        };
        let policy = TablePolicy { place, levels, hard: self.hard, follow: self.follow };
        device.set_table_policy(Target::This, policy).map_err(InputError::new)?;
        // Returns only when there is no such program.
        let error = Command::new(program).args(arguments).exec();
        Err(InputError::new(format_args!("{program}: {error}")).into())
    }
}

/// The tiers, and the mechanisms of the kernel's device or why there are none.
fn show_machine(format: Format) -> anyhow::Result<()> {
    let roots = Roots::default();
    let topology = tiers::discover(&roots)?;
    let device = Device::open();
    let nodes: Vec<_> = topology
        .tiers
        .iter()
        .enumerate()
        .flat_map(|(tier, t)| t.nodes.iter().map(move |n| (tier, n)))
        .map(|(tier, n)| Ok((tier, n, numa::memory(&roots, n.id)?.unwrap_or_default())))
        .collect::<anyhow::Result<_>>()?;
    if format == Format::Json {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(tier, n, memory)| {
                json!({
                    "node": n.id,
                    "tier": tier,
                    "total_bytes": memory.total_bytes,
                    "free_bytes": memory.free_bytes,
                    "read_latency_ns": n.performance.read_latency_ns,
                })
            })
            .collect();
        let mechanisms = device.as_ref().ok().map(|d| {
            let all = d.features().all().map(|(name, _, has)| (name.to_owned(), json!(has)));
            all.collect::<serde_json::Map<_, _>>()
        });
        let document = json!({ "nodes": nodes, "mechanisms": mechanisms });
        return say!("{}", serde_json::to_string_pretty(&document)?);
    }
    let mut table = show::table(&["node", "tier", "size", "free", "read latency"]);
    for (tier, node, memory) in nodes {
        let latency = node.performance.read_latency_ns;
        table.add_row([
            node.id.to_string(),
            tier.to_string(),
            format!("{} MB", memory.total_bytes >> 20),
            format!("{} MB", memory.free_bytes >> 20),
            latency.map_or_else(|| "not stated".to_owned(), |ns| format!("{ns} ns")),
        ]);
    }
    say!("{table}\n")?;
    match device {
        Ok(device) => {
            let mut table = show::table(&["mechanism", "this kernel", "what it does"]);
            for (name, what, has) in device.features().all() {
                table.add_row([name, if has { "has it" } else { "has it not" }, what]);
            }
            say!("{table}\n")?;
            let policy = device.table_policy(Target::This);
            say!(
                "page tables of this process: {}",
                policy.map_or_else(|e| e.to_string(), described)
            )
        }
        Err(TiermemError::Absent) => say!(
            "the kernel's own mechanisms only (move_pages, DAMON): it is not the Terrace kernel, \
             which 'make kernel' builds and 'terrace lab --kernel terrace' boots"
        ),
        Err(error) => say!("{error}"),
    }
}

fn described(policy: TablePolicy) -> String {
    let place = match policy.place {
        TablePlace::Default => return "where the task that needs one allocates".to_owned(),
        TablePlace::Fast => "fast memory".to_owned(),
        TablePlace::Node(node) => format!("node {node}"),
    };
    let which = match policy.levels {
        Levels::ALL => "all levels".to_owned(),
        Levels::UPPER => "upper levels".to_owned(),
        Levels(bits) => format!("levels {bits:#x}"),
    };
    let hard = if policy.hard { ", and nowhere else" } else { "" };
    let follow = if policy.follow { "; the last level follows data" } else { "" };
    format!("{which} in {place}{hard}{follow}")
}

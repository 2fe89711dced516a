//! The commands and their arguments.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{
    caches, compare, completions, coverage, daemon, dram, export, fleet, guard, heatmap, import,
    info, init, lab, machines, man, numactl, plan, policies, profile, rack, record, replay, report,
    reproduce, restore, run, schema, signals, sweep, top, watch, workloads,
};

/// Text below the commands in `--help` and in the manual page.
const MORE: &str = "\
First steps:
  terrace init experiment
  terrace compare experiment.toml --policies first-touch,lru,lfu,amp
  terrace watch PID
  terrace lab -- uname -a

Exit codes:
  0  done
  1  it failed, or what was checked does not hold
  2  it was asked in a way that cannot be done (arguments, files, rights);
     nothing was changed

Environment:
  TERRACE_LOG=info (or debug, trace) writes more to standard error";

/// Runs big-memory programs on little fast memory: finds the pages they use, keeps those in the
/// fast tier, moves the rest away, and reports the cost.
#[derive(Parser)]
#[command(name = "terrace", version, long_version = terrace_identity::this_build!().description, arg_required_else_help = true, after_long_help = MORE)]
pub struct Cli {
    /// The command to execute.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    Init(init::Arguments),
    Run(run::Arguments),
    Compare(compare::Arguments),
    Record(record::Arguments),
    Import(import::Arguments),
    Export(export::Arguments),
    Info(info::Arguments),
    Caches(caches::Arguments),
    Profile(profile::Arguments),
    Plan(Box<plan::Arguments>),
    Fleet(fleet::Arguments),
    Sweep(sweep::Arguments),
    Replay(replay::Arguments),
    Rack(rack::Arguments),
    Report(report::Arguments),
    Reproduce(reproduce::Arguments),
    Lab(Box<lab::Arguments>),
    Numactl(numactl::Arguments),
    Policies(policies::Arguments),
    Workloads(workloads::Arguments),
    Machines(machines::Arguments),
    Dram(dram::Arguments),
    Watch(watch::Arguments),
    Signals(signals::Arguments),
    Status(daemon::StatusArguments),
    Explain(daemon::ExplainArguments),
    Top(top::Arguments),
    Heatmap(heatmap::Arguments),
    Reload(daemon::ReloadArguments),
    Restore(restore::Arguments),
    Schema(schema::Arguments),
    Coverage(coverage::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
    #[command(hide = true)]
    Guard(guard::Arguments),
}

impl Command {
    /// Executes the command.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Init(a) => a.execute(),
            Command::Run(a) => a.execute(),
            Command::Compare(a) => a.execute(),
            Command::Record(a) => a.execute(),
            Command::Import(a) => a.execute(),
            Command::Export(a) => a.execute(),
            Command::Info(a) => a.execute(),
            Command::Caches(a) => a.execute(),
            Command::Profile(a) => a.execute(),
            Command::Plan(a) => a.execute(),
            Command::Fleet(a) => a.execute(),
            Command::Sweep(a) => a.execute(),
            Command::Replay(a) => a.execute(),
            Command::Rack(a) => a.execute(),
            Command::Report(a) => a.execute(),
            Command::Reproduce(a) => a.execute(),
            Command::Lab(a) => a.execute(),
            Command::Numactl(a) => a.execute(),
            Command::Policies(a) => a.execute(),
            Command::Workloads(a) => a.execute(),
            Command::Machines(a) => a.execute(),
            Command::Dram(a) => a.execute(),
            Command::Watch(a) => a.execute(),
            Command::Signals(a) => a.execute(),
            Command::Status(a) => a.execute(),
            Command::Explain(a) => a.execute(),
            Command::Top(a) => a.execute(),
            Command::Heatmap(a) => a.execute(),
            Command::Reload(a) => a.execute(),
            Command::Restore(a) => a.execute(),
            Command::Schema(a) => a.execute(),
            Command::Coverage(a) => a.execute(),
            Command::Completions(a) => a.execute(),
            Command::Man(a) => a.execute(),
            Command::Guard(a) => a.execute(),
        }
    }
}

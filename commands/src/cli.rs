//! The commands and their arguments.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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

/// Declares the commands by the headings of the help: for each its name and the type of its arguments,
/// which has `execute`. The last ones are in no help.
macro_rules! commands {
    ($($heading:literal { $($name:ident: $module:ident::$arguments:ident,)+ })+
     hidden { $($hidden:ident: $own:ident::$of_hidden:ident,)+ }) => {
        /// The commands.
        #[derive(Subcommand)]
        pub enum Command {
            $($($name(Box<crate::$module::$arguments>),)+)+
            $(#[command(hide = true)] $hidden(Box<crate::$own::$of_hidden>),)+
        }

        impl Command {
            /// Executes the command.
            pub fn execute(self) -> anyhow::Result<ExitCode> {
                match self {
                    $($(Command::$name(arguments) => arguments.execute(),)+)+
                    $(Command::$hidden(arguments) => arguments.execute(),)+
                }
            }
        }

        /// Headings of the help with the names of their commands as they are declared.
        pub const GROUPS: &[(&str, &[&str])] = &[$(($heading, &[$(stringify!($name)),+])),+];
    };
}

commands! {
    "First steps" {
        Init: init::Arguments,
    }
    "Experiments" {
        Run: run::Arguments,
        Compare: compare::Arguments,
        Sweep: sweep::Arguments,
        Replay: replay::Arguments,
        Report: report::Arguments,
    }
    "Recordings" {
        Record: record::Arguments,
        Import: import::Arguments,
        Export: export::Arguments,
        Info: info::Arguments,
        Caches: caches::Arguments,
    }
    "Planning" {
        Profile: profile::Arguments,
        Windows: windows::Arguments,
        Estimate: estimate::Arguments,
        Plan: plan::Arguments,
        Fleet: fleet::Arguments,
    }
    "This host" {
        Watch: watch::Arguments,
        Signals: signals::Arguments,
        Status: daemon::StatusArguments,
        Top: top::Arguments,
        Explain: daemon::ExplainArguments,
        Heatmap: heatmap::Arguments,
        Reload: daemon::ReloadArguments,
        Restore: restore::Arguments,
    }
    "Virtual machine and the Terrace kernel" {
        Lab: lab::Arguments,
        Numactl: numactl::Arguments,
    }
    "Papers and hardware models" {
        Reproduce: reproduce::Arguments,
        Rack: rack::Arguments,
        Dram: dram::Arguments,
    }
    "What there is" {
        Policies: policies::Arguments,
        Workloads: workloads::Arguments,
        Machines: machines::Arguments,
        Schema: schema::Arguments,
        Coverage: coverage::Arguments,
    }
    "Other" {
        Completions: completions::Arguments,
        Man: man::Arguments,
    }
    hidden {
        Guard: guard::Arguments,
    }
}

//! Arguments of `terraced`; `terrace man` makes its manual page of them.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Default path of the configuration.
const CONFIG: &str = "/etc/terrace/terraced.toml";

/// Text after the commands in `--help` and in the manual page.
const MORE: &str = "\
Signals:
  SIGHUP           read the configuration again; groups keep their state
  SIGTERM, SIGINT  restore every kernel setting and end

Exit codes:
  0  done
  1  it failed; a new start may help
  2  the request is impossible (arguments, configuration, rights, a host
     without two tiers or without what tracking needs); nothing was changed,
     and a new start fails likewise

Environment:
  TERRACE_LOG=info (or debug, trace) logs more on standard error

See also 'terrace status', 'terrace top' and docs/operator.md.";

/// Manages control groups: keeps the pages they use in fast memory and moves the rest away.
#[derive(Parser)]
#[command(name = "terraced", version, long_version = terrace_identity::this_build!().description, arg_required_else_help = true, after_long_help = MORE)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Run until a signal ends it.
    Run {
        /// The configuration.
        #[arg(default_value = CONFIG)]
        config: PathBuf,
        /// Move nothing, whatever the configuration says.
        #[arg(long)]
        dry_run: bool,
        /// Where the host cannot be managed (one memory tier, a kernel without what tracking
        /// needs), wait until it can instead of ending: for a cluster whose nodes differ.
        #[arg(long)]
        wait: bool,
    },
    /// Read a configuration and say what is wrong with it; changes nothing.
    Check {
        /// The configuration.
        #[arg(default_value = CONFIG)]
        config: PathBuf,
        /// Check also whether this host can be managed.
        #[arg(long)]
        host: bool,
    },
    /// Put back kernel settings that a daemon changed and could not put back itself.
    Restore,
    /// Wait for the end of the daemon that holds the pipe, then put settings back.
    #[command(hide = true)]
    Guard {
        /// The journal of changed settings.
        journal: PathBuf,
        /// The run whose journal it must be.
        run: String,
    },
}

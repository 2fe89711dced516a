//! `terrace init`: a first experiment, or a first configuration of terraced, for this host.

mod daemon;
mod experiment;
mod survey;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use terrace_core::InputError;
use terrace_linux::roots::Roots;

use crate::output::{Force, write_whole};
use crate::show::say;
use survey::Survey;

/// Write a first experiment or a first configuration of terraced, after a look at this host.
///
/// Reads what the kernel says of memory nodes, tiers and control groups; changes nothing but the file
/// that it writes, and needs no rights. What it wrote runs as it is, and says why each value is there.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// A first experiment: a made-up workload on the simulated machine, or a program of yours.
    Experiment {
        /// The file to write.
        #[arg(long, value_name = "FILE", default_value = "experiment.toml")]
        out: PathBuf,
        #[command(flatten)]
        force: Force,
        /// A program and its arguments, run in a virtual machine or on this host's tiers.
        #[arg(trailing_var_arg = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// A first configuration of terraced, which moves nothing until its 'dry_run' line is removed.
    Daemon {
        /// The file to write.
        #[arg(long, value_name = "FILE", default_value = "terraced.toml")]
        out: PathBuf,
        #[command(flatten)]
        force: Force,
        /// The control group to manage, below /sys/fs/cgroup; the one with the most memory if none
        /// is given.
        #[arg(long, value_name = "PATH")]
        cgroup: Option<String>,
    },
}

/// A file that was made.
struct Made {
    /// Its text.
    text: String,
    /// What to run next.
    next: String,
}

impl Arguments {
    /// Writes it.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let roots = Roots::default();
        match self.what {
            What::Experiment { out, force, command } => {
                force.file(&out)?;
                let survey = Survey::of(&roots);
                let made = experiment::made(&survey, &command, &out)?;
                write(&out, &survey, made)?;
            }
            What::Daemon { out, force, cgroup } => {
                force.file(&out)?;
                let survey = Survey::of(&roots);
                let made = daemon::made(&survey, cgroup.as_deref(), &out)?;
                write(&out, &survey, made)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn write(out: &Path, survey: &Survey, made: Made) -> anyhow::Result<()> {
    write_whole(out, made.text).map_err(|e| {
        InputError::new(format_args!("{}: {e}; expected a file that can be written", out.display()))
    })?;
    for line in survey.lines() {
        say!("{line}")?;
    }
    say!("wrote {}; next: {}", out.display(), made.next)
}

/// A text as TOML has it, quoted.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

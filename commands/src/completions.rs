//! `terrace completions`: shell completions.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::show;

/// Print the completions of a shell to standard output.
#[derive(Args)]
pub struct Arguments {
    /// The shell.
    shell: Shell,
}

impl Arguments {
    /// Prints them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let mut command = crate::cli::Cli::command();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "terrace", &mut script);
        show::line(String::from_utf8_lossy(&script).trim_end())?;
        Ok(ExitCode::SUCCESS)
    }
}

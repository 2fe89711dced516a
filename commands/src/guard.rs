//! `terrace guard` (hidden): the process that puts the host's settings back when the run that
//! started it ends in any way.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::show::tell;

/// Wait for the end of the run that holds the pipe, then put settings back.
#[derive(Args)]
pub struct Arguments {
    /// The journal of changed settings.
    journal: PathBuf,
    /// The run whose journal it must be.
    run: String,
}

impl Arguments {
    /// Guards.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let errors = terrace_linux::guard_main(&self.journal, &self.run);
        for error in &errors {
            tell!("terrace: not restored: {error}; 'terrace restore' tries again");
        }
        Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

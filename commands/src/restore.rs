//! `terrace restore`: puts back the settings of a run that ended without doing so.

use std::process::ExitCode;

use clap::Args;
use terrace_core::InputError;
use terrace_linux::conflicts::{self, Severity};
use terrace_linux::roots::Roots;
use terrace_linux::session;

use crate::show::say;

/// Put back kernel settings that an earlier run changed and could not put back itself.
#[derive(Args)]
pub struct Arguments {}

impl Arguments {
    /// Restores.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let roots = Roots::default();
        let lacking = conflicts::privileges(&roots)?;
        if let Some(conflict) = lacking.iter().find(|c| c.severity == Severity::Fatal) {
            return Err(InputError::new(conflict).into());
        }
        match session::restore_leftover(&roots)? {
            0 => say!("nothing to restore"),
            1 => say!("1 change undone"),
            changes => say!("{changes} changes undone"),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

//! Where commands write: results that are there already are replaced only when asked to.

use std::path::Path;

use clap::Args;
use terrace_core::InputError;

/// The option `--force`.
#[derive(Args)]
pub struct Force {
    /// Replace results that are there already.
    #[arg(long)]
    force: bool,
}

impl Force {
    /// Refuses a file that is there.
    pub fn file(&self, path: &Path) -> Result<(), InputError> {
        match path.exists() {
            true => self.refuse(path, "exists"),
            false => Ok(()),
        }
    }

    /// Refuses a folder that has any of these files, which the command would replace.
    pub fn folder(&self, path: &Path, files: &[&str]) -> Result<(), InputError> {
        match files.iter().find(|file| path.join(file).exists()) {
            Some(file) => self.refuse(path, &format!("has results already ({file})")),
            None => Ok(()),
        }
    }

    fn refuse(&self, path: &Path, what: &str) -> Result<(), InputError> {
        if self.force {
            return Ok(());
        }
        Err(InputError::new(format_args!(
            "{} {what}; expected a name that is free: give another --out, or --force to replace it",
            path.display()
        )))
    }
}

//! `terrace compare`: an experiment under several policies.

use std::process::ExitCode;

use clap::Args;

/// Run an experiment once under each of several policies and compare them.
///
/// Every group runs under the policy of the run, whatever the file says.
#[derive(Args)]
#[command(after_long_help = crate::run::EXPERIMENT_FILES)]
pub struct Arguments {
    /// The policies, separated by commas; see 'terrace policies'.
    #[arg(long, value_delimiter = ',', required = true, value_name = "A,B,C")]
    policies: Vec<String>,
    #[command(flatten)]
    common: crate::run::Common,
}

impl Arguments {
    /// Runs them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let policies = self.policies.iter().map(|p| p.trim().to_owned()).collect();
        self.common.execute(Some(policies))
    }
}

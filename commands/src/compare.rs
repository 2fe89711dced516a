//! `terrace compare`: an experiment under several policies, on several kernels.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use terrace_lab::Kernel;

/// Run an experiment once under each of several policies and compare them.
///
/// Every group runs under the policy of the run, whatever the file has.
#[derive(Args)]
#[command(after_long_help = crate::run::EXPERIMENT_FILES)]
pub struct Arguments {
    /// The policies, separated by commas; see 'terrace policies'.
    #[arg(long, value_delimiter = ',', required = true, value_name = "A,B,C")]
    policies: Vec<String>,
    /// On the virtual machine: each policy on each of these kernels, 'debian', 'debian-7.3' (that
    /// series, of Debian 13's backports), 'terrace' (built by 'make kernel') or the path of an
    /// image, instead of the one in the file.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    kernels: Vec<String>,
    #[command(flatten)]
    common: crate::run::Common,
}

impl Arguments {
    /// Runs them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let policies = self.policies.iter().map(|p| p.trim().to_owned()).collect();
        let kernels = self.kernels.iter().map(|k| kernel(k.trim())).collect::<Result<_, _>>()?;
        self.common.execute(Some(policies), kernels)
    }
}

/// A path of the command line is none from the experiment's folder.
fn kernel(given: &str) -> anyhow::Result<String> {
    Ok(match Kernel::named(given) {
        Kernel::Path(path) => {
            let path = std::path::absolute(&path).context(path.display().to_string())?;
            path.display().to_string()
        }
        _ => given.to_owned(),
    })
}

//! `terrace compare`: an experiment under several policies, on several kernels.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use terrace_lab::Kernel;

use crate::run::Compared;

/// Run an experiment once under each of several policies and compare them.
///
/// Every group runs under the policy of the run, whatever the file has.
#[derive(Args)]
#[command(after_long_help = crate::run::EXPERIMENT_FILES)]
pub struct Arguments {
    /// The policies, separated by commas; see 'terrace policies'.
    #[arg(long, value_delimiter = ',', required_unless_present = "rivals", value_name = "A,B,C")]
    policies: Vec<String>,
    /// On a live machine: what Linux does by itself, beside the policies: 'nothing', 'linux' (NUMA
    /// balancing between tiers, with demotion) or 'damon' (DAMON's migration of hot and cold pages by
    /// its authors' recipe).
    ///
    /// They know no limits, so in all runs the rest of fast memory is taken meanwhile, and groups say
    /// how much they may use as a size. Kernel settings are put back after each run.
    #[arg(long, value_delimiter = ',', value_name = "A,B,C")]
    rivals: Vec<String>,
    /// On the virtual machine: each policy on each of these kernels, 'debian', 'debian-7.3' (that
    /// series, of Debian 13's backports), 'terrace' or 'terrace-7.3' (built by 'make kernel') or
    /// the path of an image, instead of the one in the file.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    kernels: Vec<String>,
    #[command(flatten)]
    common: crate::run::Common,
}

impl Arguments {
    /// Runs them.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let names = |given: &[String]| given.iter().map(|p| p.trim().to_owned()).collect();
        let policies: Vec<String> = names(&self.policies);
        let policies = (!policies.is_empty()).then_some(policies);
        let rivals = names(&self.rivals);
        let kernels = self.kernels.iter().map(|k| kernel(k.trim())).collect::<Result<_, _>>()?;
        self.common.execute(Compared { policies, rivals, kernels })
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

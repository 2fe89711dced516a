//! The content of the package: which crates are linked into its programs, under which licences,
//! with which texts. `tools/deb` puts the notices and the bill of materials into the package; `make
//! test` checks the licences and the oldest compiler against the project's promises.

mod allowed;
mod crates;
mod notices;
mod sbom;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::crates::Crates;

#[derive(Parser)]
#[command(about, version)]
struct Arguments {
    /// The source tree.
    #[arg(long, value_name = "DIR", default_value = ".")]
    tree: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fail where a crate's licence is not allowed by deny.toml, or a crate needs a later compiler
    /// than the workspace's rust-version.
    Check,
    /// Write the notices of all crates that are linked into the package's programs.
    Notices {
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Write the software bill of materials (CycloneDX 1.5, JSON).
    Sbom {
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

fn main() -> ExitCode {
    match execute(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terrace-supply: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(arguments: &Arguments) -> Result<()> {
    let crates = Crates::of_tree(&arguments.tree)?;
    let write = |out: &PathBuf, text: String| {
        std::fs::write(out, text).with_context(|| format!("write {}", out.display()))
    };
    match &arguments.command {
        Command::Check => {
            let allowed = allowed::Allowed::of_tree(&arguments.tree)?;
            allowed.check(&crates)?;
            crates.check_compiler()?;
            println!(
                "{} crates, {} of them linked into the package: licences allowed, none needs more \
                 than Rust {}",
                crates.others().count(),
                crates.linked().len(),
                crates.rust_version()?
            );
            Ok(())
        }
        Command::Notices { out } => write(out, notices::notices(&crates, &arguments.tree)?),
        Command::Sbom { out } => write(out, sbom::sbom(&crates, &arguments.tree)?),
    }
}

//! `terrace windows`: short parts of a program, from which the time of the whole is estimated.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::json;
use terrace_experiments::Experiment;
use terrace_experiments::file::Fidelity;
use terrace_experiments::windows::windows;
use terrace_simulated::reference::windows::Choice;

use crate::output::Force;
use crate::progress::Screen;
use crate::show::{Format, say};

/// Text below the options in `--help` and in the manual page.
const MORE: &str = "\
Example:
  terrace windows examples/plan/kv.toml --windows 40 --out kv.twin
  terrace estimate kv.twin --fast 25%,50%,75%";

/// Take windows of a workload: short parts at random places, to be simulated alone.
///
/// The experiment must have one group, of kind "program" or "recording". Its references are read
/// twice, and none is simulated. The program is cut into equal parts, and one window is taken from
/// each, with the lines that were used last before it and the pages touched since the window
/// before. So 'terrace estimate' can simulate it on any machine, with any share of fast memory,
/// without the references between.
#[derive(Args)]
#[command(after_long_help = MORE, arg_required_else_help = true)]
pub struct Arguments {
    /// The experiment file.
    #[arg(value_name = "EXPERIMENT.toml")]
    experiment: PathBuf,
    /// The file of windows to write (.twin).
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    force: Force,
    /// Windows.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = RangedU64ValueParser::<u64>::new().range(8..=100_000))]
    windows: u64,
    /// Loads and stores of each.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = RangedU64ValueParser::<u64>::new().range(100..=10_000_000))]
    length: u64,
    /// Loads and stores before each that are simulated and not measured.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = RangedU64ValueParser::<u64>::new().range(1..=10_000_000))]
    lead: u64,
    /// Lines of 64 bytes before each, at most: somewhat more than the caches of the machines on
    /// which they will be simulated.
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 26))]
    lines: u64,
    /// Seed of the windows' places.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Format of the summary.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Takes the windows.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        self.force.file(&self.out)?;
        let experiment = Experiment::read(&self.experiment)?.at_fidelity(Fidelity::Trace)?;
        let choice = Choice {
            windows: self.windows,
            window_references: self.length,
            lead_references: self.lead,
            lines: self.lines,
            seed: self.seed,
        };
        let header = windows(&experiment, &self.out, &choice, &mut Screen::new(false))?;
        let share = (header.windows * choice.window_and_lead()) as f64 / header.references as f64;
        match self.format {
            Format::Json => say!(
                "{}",
                json!({
                    "windows_file": self.out,
                    "workload": header.workload,
                    "windows": header.windows,
                    "window_references": header.window_references,
                    "references": header.references,
                })
            )?,
            Format::Text => say!(
                "{}: {} windows of {} loads and stores, {:.2} % of the program's {}",
                self.out.display(),
                header.windows,
                header.window_references,
                100.0 * share,
                header.references,
            )?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

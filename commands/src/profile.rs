//! `terrace profile`: the cost of a workload with fast and with slow memory, interval by interval.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use terrace_experiments::Experiment;
use terrace_experiments::file::Fidelity;
use terrace_experiments::profile::profile;

use crate::output::Force;
use crate::progress::Screen;
use crate::show::{Format, say};

/// Simulate a workload with all its memory fast and with all of it slow, and write its profile.
///
/// The experiment must have one group, of kind "program" or "recording". It is simulated at trace
/// fidelity seven times in one pass: with fast memory, with slow, with a half, an 8th, a 32nd and a
/// 128th of it slow, and scanned. The recording is decoded once, and the seven use as many cores as
/// there are. The profile has the cost of each interval of the program and the pages
/// that cause it; as a workload of kind "profile" it gives run times at interval fidelity,
/// thousands of times faster, under any policy and any share of fast memory.
#[derive(Args)]
pub struct Arguments {
    /// The experiment file.
    #[arg(value_name = "EXPERIMENT.toml")]
    experiment: PathBuf,
    /// The profile to write (.tprof).
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    force: Force,
    /// Loads and stores in an interval. A period should hold several intervals.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    interval: u64,
    /// Format of the summary.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Makes the profile.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        self.force.file(&self.out)?;
        let experiment = Experiment::read(&self.experiment)?.at_fidelity(Fidelity::Trace)?;
        let done = profile(&experiment, &self.out, self.interval, &mut Screen::new(false))?;
        let (fast, slow) = (done.fast.as_seconds() * 1e3, done.slow.as_seconds() * 1e3);
        let slowdown = if fast > 0.0 { slow / fast } else { 1.0 };
        match self.format {
            Format::Json => say!(
                "{}",
                json!({
                    "profile": self.out,
                    "intervals": done.intervals,
                    "references": done.references,
                    "all_fast_ms": fast,
                    "all_slow_ms": slow,
                    "all_slow_slowdown": slowdown,
                })
            )?,
            Format::Text => say!(
                "{}: {} references in {} intervals; {fast:.3} ms with all memory fast, {slow:.3} ms \
                 with all of it slow (slowdown {slowdown:.3})",
                self.out.display(),
                done.references,
                done.intervals,
            )?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

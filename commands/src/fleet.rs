//! `terrace fleet`: how much fast memory the hosts of a fleet need.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use terrace_experiments::run::check_folder;
use terrace_fleet::answer::ALL_CLASSES;
use terrace_fleet::{Answer, Fleet, answer, files, rollout, words};
use terrace_planner::words::{money, size};

use crate::output::Force;
use crate::pages::meta;
use crate::progress::BETWEEN_LINES;
use crate::show::{self, Format, say, tell};

/// Text below the options in `--help` and in the manual page.
const MORE: &str = "\
The histories are those that terraced keeps in its 'state' folder, copied
into a folder for each host, of files or of a bucket (s3://). 'terrace schema
fleet' has the keys of the file.

Examples:
  terrace fleet fleet.toml
  terrace fleet fleet.toml --rollout --out answer
  terrace fleet fleet.toml --format json";

/// Find how much fast memory the hosts of a fleet need, from the histories of terraced on each.
///
/// Reads a folder of histories for each host, joins them by service and host class, and answers how
/// much fast memory each class needs for the slowdown that each service can bear, what that saves,
/// how sure it is, which services should not share a host, and what other slow memory changes.
#[derive(Args)]
#[command(after_long_help = MORE)]
pub struct Arguments {
    /// The fleet file.
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    /// Show with which hosts to begin, what to watch, and when to stop.
    #[arg(long)]
    rollout: bool,
    /// Folder for the answer: Parquet tables, report.html and fleet.json.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Hosts read at the same time; as many as there are processors by default. The answer is the
    /// same.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Format of the answer.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Services in the table of a terminal.
const SERVICES_MAX: usize = 40;

impl Arguments {
    /// Answers.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        if let Some(out) = &self.out {
            self.force.folder(out, &["fleet.json", "plan.json", "runs.parquet"])?;
            check_folder(out)?;
        }
        let fleet = Fleet::read(&self.file)?;
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let jobs = self.jobs.map_or(processors, usize::from);
        let mut last = Instant::now();
        let found = answer(&fleet, jobs, &mut |done, of| {
            if last.elapsed() >= BETWEEN_LINES {
                tell!("host {done} of {of}");
                last = Instant::now();
            }
        })?;
        let (lines, remarks) = (words::recommendation(&found), words::remarks(&found));
        let steps = if self.rollout { rollout::in_words(&found) } else { Vec::new() };
        // Hosts may have taken hours to read: what cannot be written is shown all the same.
        let out = self.out.as_deref();
        let written =
            out.map_or(Ok(()), |out| files::write(&found, out, &meta(files::title(&found))));
        match self.format {
            Format::Json => say!("{}", serde_json::to_string_pretty(&files::document(&found))?)?,
            Format::Text => {
                lines.iter().chain(&remarks).try_for_each(|line| say!("{line}"))?;
                class_table(&found)?;
                service_table(&found)?;
                if !steps.is_empty() {
                    say!("\nRollout:")?;
                    steps.iter().try_for_each(|line| say!("{line}"))?;
                }
                match out.filter(|_| written.is_ok()) {
                    Some(out) => say!("\nanswer: {}", out.display())?,
                    None => all_left_out(&found)?,
                }
            }
        }
        written.map(|()| ExitCode::SUCCESS)
    }
}

/// What was left out, where no table has it and the remarks name but a few.
fn all_left_out(found: &Answer) -> anyhow::Result<()> {
    if found.left_out.len() <= words::LEFT_OUT_MAX {
        return Ok(());
    }
    say!("\nLeft out:")?;
    found.left_out.iter().try_for_each(|left| say!("{}: {}", left.path, left.reason))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn between(low: Option<f64>, high: Option<f64>) -> String {
    match (low, high) {
        (Some(low), Some(high)) => format!("{}..{}", percent(low), percent(high)),
        _ => "too few hosts".to_owned(),
    }
}

fn class_table(found: &Answer) -> anyhow::Result<()> {
    let mut table = show::table(&[
        "class",
        "slow",
        "hosts",
        "fast",
        "share",
        "from..to",
        "safe",
        "overrun",
        "as bought",
        "saved",
    ]);
    for c in &found.classes {
        table.add_row([
            c.class.clone(),
            format!("{:.0} ns", c.slow_latency_ns),
            c.hosts.to_string(),
            size(c.fast_bytes),
            percent(c.fast_share),
            between(c.low, c.high),
            percent(c.safe_fast_share),
            percent(c.overrun_share),
            percent(c.overrun_as_bought_share),
            c.saved.map_or("-".to_owned(), money),
        ]);
    }
    say!("\n{table}")
}

fn service_table(found: &Answer) -> anyhow::Result<()> {
    let mut own: Vec<_> =
        found.services.iter().filter(|s| s.class == ALL_CLASSES && s.own_latency).collect();
    own.sort_by_key(|s| std::cmp::Reverse(s.fast_bytes));
    let mut table = show::table(&[
        "service", "bears", "hosts", "memory", "fast", "share", "from..to", "upper", "safe",
    ]);
    for s in own.iter().take(SERVICES_MAX) {
        table.add_row([
            s.service.clone(),
            percent(s.slowdown - 1.0),
            s.hosts.to_string(),
            size(s.footprint_bytes),
            size(s.fast_bytes),
            percent(s.fast_share),
            between(s.low, s.high),
            s.upper_fast_share.map_or("-".to_owned(), percent),
            percent(s.safe_fast_share),
        ]);
    }
    say!("\n{table}")?;
    match own.len().saturating_sub(SERVICES_MAX) {
        0 => Ok(()),
        n => say!("and {n} more services (fleet_services)"),
    }
}

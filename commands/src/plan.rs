//! `terrace plan`: how much fast memory programs need.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Args;
use serde_json::json;
use terrace_core::InputError;
use terrace_core::page::PageSize;
use terrace_experiments::Experiment;
use terrace_experiments::run::check_folder;
use terrace_planner::check::{self, Checked, WhatIf};
use terrace_planner::memory::Machine;
use terrace_planner::plan::{DEFAULT_POLICIES, Plan, Request, plan};
use terrace_planner::recording::{ASSUMED_MACHINE, Evidence, Open, Recording, Waiting};
use terrace_planner::tables::Tables;
use terrace_planner::{config, words};

use crate::arguments::{Pages, share};
use crate::output::Force;
use crate::progress::BETWEEN_LINES;
use crate::show::{self, Format, say, tell};

/// Text below the options in `--help` and in the manual page.
const MORE: &str = "\
Recordings, by their content:
  .tprof      made by 'terrace profile': costs were measured at trace
              fidelity, so slowdowns are predicted from measurements
  .trec       made by 'terrace run': accessed pages by period
  .tref       made by 'terrace record': references
  DAMON       made by 'damo record'
  perf        text of 'perf script' (see 'terrace import')
All but the first know which memory was used and not what that cost: hit
ratios and a latency model with an assumed --memory-share are taken, and the
answer says so.

Several recordings are programs that share one machine: each must meet the
target.

Examples:
  terrace profile examples/plan/kv.toml --interval 20000 --out kv.tprof
  terrace plan kv.tprof --slowdown 5%
  terrace plan kv.tprof --slowdown 5% --check --out answer
  terrace plan kv.tprof --slowdown 10% --price-fast 4 \\
      --slow-latency-ns 190,400 --price-slow 1.5,0.8";

/// Find how much fast memory programs need to stay within a slowdown.
///
/// Plays each recording under every policy with more and less fast memory, and answers with the
/// least that meets the target, with the errors of that prediction, in words, as tables, and as a
/// configuration of terraced. With prices it finds the cheapest machine.
#[derive(Args)]
#[command(after_long_help = MORE, arg_required_else_help = true)]
pub struct Arguments {
    /// The recordings, one for each program.
    #[arg(value_name = "RECORDING", required = true)]
    recordings: Vec<PathBuf>,
    /// How much slower than with all memory fast: "5%", or as a factor "1.05x".
    #[arg(long, value_name = "TARGET", value_parser = slowdown, allow_hyphen_values = true)]
    slowdown: f64,
    /// Policies to compare, separated by commas; see 'terrace policies'.
    #[arg(long, value_delimiter = ',', value_name = "A,B,C", default_values = DEFAULT_POLICIES)]
    policies: Vec<String>,
    /// Tiers of these machines; see 'terrace machines'. The recording's own if none is given.
    #[arg(long = "machine", value_delimiter = ',', value_name = "NAME")]
    machines: Vec<String>,
    /// Slow tiers of these idle read latencies beyond the caches.
    #[arg(long, value_delimiter = ',', value_name = "NS")]
    slow_latency_ns: Vec<f64>,
    /// Their bandwidths, in GB/s: one for all, or one for each.
    #[arg(long, value_delimiter = ',', value_name = "GB/S")]
    slow_bandwidth_gbps: Vec<f64>,
    /// Price of a GB (2^30 bytes) of fast memory, in any currency.
    #[arg(long, value_name = "PRICE", requires = "price_slow")]
    price_fast: Option<f64>,
    /// Price of a GB of slow memory: one for all machines, or one for each in their order.
    #[arg(long, value_delimiter = ',', value_name = "PRICE", requires = "price_fast")]
    price_slow: Vec<f64>,
    /// Most of each footprint that may be fast, as "60%".
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "100%")]
    fast_at_most: f64,
    /// Length of a period in ms, in which pages are tracked and moved once; the recording's own if
    /// not given.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    period_ms: Option<u64>,
    /// Pages moved in a period at most; as the recording's experiment has it if not given.
    #[arg(long, value_name = "PAGES")]
    moved_pages: Option<u64>,
    /// Periods at the beginning of each recording that are played and not counted: for programs that
    /// run for long after they have settled.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["check", "check_with", "refine", "what_if"])]
    settle_periods: u64,
    /// Seeds that policies are tried with: their spread is part of the error.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Without measured costs: share of time, with all memory fast, spent waiting for memory.
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "40%")]
    memory_share: f64,
    /// By how much that may be off either way.
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "20%")]
    memory_share_error: f64,
    /// Group of a period recording with several.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// References and DAMON records: pages they are put on (4K).
    #[arg(long, value_name = "SIZE", value_enum)]
    page_size: Option<Pages>,
    /// perf: one in N references was sampled (perf record -c N).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    sample: Option<u64>,
    /// Run the answer at trace fidelity, and show its error.
    #[arg(long)]
    check: bool,
    /// The same with this experiment, for a recording without its experiment.
    #[arg(long, value_name = "EXPERIMENT.toml")]
    check_with: Option<PathBuf>,
    /// Correct the answer by its check up to N times, each of which runs it again.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10))]
    refine: u64,
    /// Run at trace fidelity what page tables in fast memory and huge pages would add.
    #[arg(long)]
    what_if: bool,
    /// Folder for the answer: Parquet tables, report.html, plan.json and terraced.toml.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Runs at the same time; as many as there are processors by default. The answer is the same.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Format of the answer.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// A slowdown in an argument: `5%` or `1.05x`.
fn slowdown(text: &str) -> Result<f64, String> {
    let bad = || "expected a percentage as in 5%, or a factor as in 1.05x".to_owned();
    let text = text.trim();
    let value = match (text.strip_suffix('%'), text.strip_suffix('x')) {
        (Some(percent), _) => 1.0 + percent.trim().parse::<f64>().map_err(|_| bad())? / 100.0,
        (_, Some(factor)) => factor.trim().parse::<f64>().map_err(|_| bad())?,
        _ => return Err(bad()),
    };
    if value.is_finite() { Ok(value) } else { Err(bad()) }
}

/// The answer with its checks.
struct Found {
    plan: Plan,
    checked: Vec<Checked>,
    what_if: Vec<WhatIf>,
    config: String,
    words: Vec<String>,
    remarks: Vec<String>,
}

impl Arguments {
    /// Answers.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        if let Some(out) = &self.out {
            self.force.folder(out, &["plan.json", "fleet.json", "runs.parquet"])?;
            check_folder(out)?;
        }
        let request = self.request()?;
        let experiment = self.check_with.as_deref().map(Experiment::read).transpose()?;
        let wants_run = self.check || self.check_with.is_some() || self.refine > 0 || self.what_if;
        let experiments = match wants_run {
            true => request
                .recordings
                .iter()
                .map(|r| check::experiment(r, experiment.as_ref()))
                .collect::<Result<Vec<_>, _>>()?,
            false => Vec::new(),
        };
        let last = Mutex::new(Instant::now());
        let mut answer = plan(&request, &|done, of| {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.elapsed() >= BETWEEN_LINES {
                tell!("curve {done} of {of}");
                *last = Instant::now();
            }
        })?;
        let progress = |text: &str| tell!("{text}");
        let (mut checked, mut what_if) = (Vec::new(), Vec::new());
        for (program, experiment) in experiments.iter().enumerate() {
            if self.check || self.check_with.is_some() || self.refine > 0 {
                let rounds = self.refine;
                checked.extend(check::check(
                    &mut answer,
                    &request,
                    program,
                    experiment,
                    rounds,
                    &progress,
                )?);
            }
            if self.what_if {
                what_if.extend(check::what_if(&answer, &request, program, experiment, &progress)?);
            }
        }
        let mut lines = words::recommendation(&answer);
        lines.extend(words::checked(&checked));
        lines.extend(words::what_if(&what_if));
        let mut remarks = Vec::new();
        if what_if.is_empty() {
            remarks.push(match answer.programs.iter().all(|p| p.evidence == Evidence::Measured) {
                true => "What page tables in fast memory and huge pages add: '--what-if' runs it."
                    .to_owned(),
                false => "What page tables and huge pages add cannot be distinguished from such a \
                          recording; a profile can ('terrace profile')."
                    .to_owned(),
            });
        }
        remarks.extend(answer.warnings.iter().cloned());
        let found = Found {
            config: config::terraced_toml(&answer),
            plan: answer,
            checked,
            what_if,
            words: lines,
            remarks,
        };
        // Its runs may have taken hours: what cannot be written is shown all the same.
        let out = self.out.as_deref();
        let written = out.map_or(Ok(()), |out| found.write(out));
        match self.format {
            Format::Json => say!("{}", serde_json::to_string_pretty(&found.document())?)?,
            Format::Text => found.show(out.filter(|_| written.is_ok()))?,
        }
        written.map(|()| ExitCode::SUCCESS)
    }

    fn request(&self) -> anyhow::Result<Request> {
        let how = Open {
            group: self.group.clone(),
            page_size: self.page_size.map(PageSize::from),
            sample_one_in: self.sample,
            waiting: Waiting { share: self.memory_share, error: self.memory_share_error },
            machine: None,
        };
        let recordings = Recording::open_all(&self.recordings, &how)?;
        let machines = self.machines(&recordings)?;
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        Ok(Request {
            recordings,
            target: self.slowdown,
            policies: self.policies.iter().map(|p| p.trim().to_owned()).collect(),
            machines,
            fast_at_most: self.fast_at_most,
            seeds: self.seeds,
            period_ms: self.period_ms,
            moved_pages: self.moved_pages,
            settle_periods: self.settle_periods,
            resolution: 0.005,
            jobs: self.jobs.map_or(processors, usize::from),
        })
    }

    /// Machines by name, then those of the slow latencies; the recording's own where there are none.
    fn machines(&self, recordings: &[Recording]) -> Result<Vec<Machine>, InputError> {
        let own = match recordings.first() {
            Some(recording) => recording.machine.clone(),
            None => Machine::preset(ASSUMED_MACHINE)?,
        };
        let mut machines = Vec::new();
        for name in &self.machines {
            machines.push(Machine::preset(name.trim())?);
        }
        let (latencies, bandwidths) = (&self.slow_latency_ns, &self.slow_bandwidth_gbps);
        let slow_tiers = latencies.len().max(bandwidths.len());
        for (name, given) in [("slow-latency-ns", latencies), ("slow-bandwidth-gbps", bandwidths)] {
            if given.len() > 1 && given.len() != slow_tiers {
                return Err(InputError::new(format_args!(
                    "--{name} has {} values and there are {slow_tiers} slow tiers: expected one, \
                     or one for each",
                    given.len()
                )));
            }
        }
        let base = machines.first().cloned().unwrap_or_else(|| own.clone());
        for number in 0..slow_tiers {
            let nth = |all: &[f64]| all.get(number).or(all.first()).copied();
            machines.push(base.with_slow(nth(latencies), nth(bandwidths)));
        }
        if machines.is_empty() {
            machines.push(own);
        }
        if self.price_slow.len() > 1 && self.price_slow.len() != machines.len() {
            return Err(InputError::new(format_args!(
                "--price-slow has {} prices and there are {} machines: expected one, or one for \
                 each",
                self.price_slow.len(),
                machines.len()
            )));
        }
        for (number, machine) in machines.iter_mut().enumerate() {
            machine.price_fast = self.price_fast;
            machine.price_slow = self.price_slow.get(number).or(self.price_slow.first()).copied();
        }
        Ok(machines)
    }
}

impl Found {
    fn document(&self) -> serde_json::Value {
        json!({
            "answer": self.words,
            "remarks": self.remarks,
            "plan": self.plan,
            "checked": self.checked,
            "what_if": self.what_if,
            "terraced_toml": self.config,
        })
    }

    fn write(&self, out: &std::path::Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(out).map_err(|e| {
            InputError::new(format_args!(
                "{}: {e}; expected a folder for the answer that can be written to",
                out.display()
            ))
        })?;
        let tables = Tables::of(&self.plan, &self.checked);
        tables.write(out)?;
        crate::pages::write_plan(
            out,
            &self.plan,
            &tables,
            (&self.words, &self.remarks),
            &self.checked,
            &self.what_if,
            &self.config,
        )?;
        let document = serde_json::to_string_pretty(&self.document())?;
        terrace_experiments::run::write_whole(&out.join("plan.json"), document.as_bytes())?;
        terrace_experiments::run::write_whole(&out.join("terraced.toml"), self.config.as_bytes())?;
        Ok(())
    }

    fn show(&self, out: Option<&std::path::Path>) -> anyhow::Result<()> {
        for line in self.words.iter().chain(&self.remarks) {
            say!("{line}")?;
        }
        let plan = &self.plan;
        let priced = plan.cost.is_some();
        let mut header =
            vec!["program", "machine", "policy", "fast", "share", "slowdown", "from..to", "safe"];
        if priced {
            header.push("cost");
        }
        let mut table = show::table(&header);
        for (number, curve) in plan.curves.iter().enumerate() {
            let program = &plan.programs[curve.program];
            // The recommendation may have been corrected by a check.
            let recommended = plan.recommended.iter().find(|r| r.curve == number);
            let mut cells = vec![
                program.name.clone(),
                plan.machines[curve.machine].name.clone(),
                curve.policy.clone(),
            ];
            match recommended.map(|r| &r.point).or(curve.least_point()) {
                Some(p) => {
                    let by_curve = curve.safe.and_then(|at| curve.points.get(at)).map(|p| p.share);
                    let safe = recommended.map_or(by_curve, |r| r.safe_share);
                    cells.extend([
                        words::size((program.footprint_bytes as f64 * p.share) as u64),
                        format!("{:.1} %", 100.0 * p.share),
                        words::percent_over(p.slowdown),
                        format!("{}..{}", words::percent_over(p.low), words::percent_over(p.high)),
                        safe.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share)),
                    ]);
                    if priced {
                        cells.push(p.cost.map_or("-".to_owned(), words::money));
                    }
                }
                None => cells.push("not reached".to_owned()),
            }
            table.add_row(cells);
        }
        say!("\n{table}")?;
        if plan.sensitivity.len() > 1 {
            let mut table = show::table(&[
                "program",
                "policy",
                "slow latency",
                "least share",
                "as recommended",
            ]);
            for s in &plan.sensitivity {
                table.add_row([
                    s.program.clone(),
                    s.policy.clone(),
                    format!("{:.0} ns", s.slow_latency_ns),
                    s.share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share)),
                    words::percent_over(s.slowdown),
                ]);
            }
            say!("\n{table}")?;
        }
        match out {
            Some(out) => say!("\nanswer: {}", out.display()),
            None => say!("\nterraced.toml:\n\n{}", self.config.trim_end()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_people_write_them() {
        for (text, value) in [("5%", 1.05), ("1.05x", 1.05), ("0 %", 1.0), ("-3%", 0.97)] {
            assert!((slowdown(text).unwrap() - value).abs() < 1e-12, "{text}");
        }
        for text in ["5", "", "%", "x", "nan%", "infx", "five%"] {
            assert!(slowdown(text).is_err(), "{text}");
        }
        assert_eq!(share("60%"), Ok(0.6));
        assert!(share("160%").is_err() && share("-1%").is_err());
    }
}

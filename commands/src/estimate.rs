//! `terrace estimate`: the slowdown of a whole program from its windows, with an interval.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use terrace_experiments::Experiment;
use terrace_experiments::estimate::{Estimate, Estimated, Request, Windows};

use crate::arguments::share;
use crate::progress::Screen;
use crate::show::{Format, say, table};

/// Text below the options in `--help` and in the manual page.
const MORE: &str = "\
Pages stay where first touch puts them, and nothing is moved: for policies that
move pages, see 'terrace profile' and 'terrace compare'. The interval is of the
windows' places. What a window lacks of the state before it is not in it.

Examples:
  terrace windows examples/plan/kv.toml --windows 40 --out kv.twin
  terrace estimate kv.twin --fast 25%,50%,75%
  terrace estimate kv.twin --fast 50% --error 1%
  terrace estimate kv.twin --experiment slower-cxl.toml";

/// Estimate the slowdown of a program from windows of it, with its 95 % interval.
///
/// Each window is simulated at trace fidelity with all memory fast and with the shares asked for.
/// The answer is their ratio over all windows. With --error a quarter of the windows comes first,
/// and the others only if the interval is wider than that.
#[derive(Args)]
#[command(after_long_help = MORE, arg_required_else_help = true)]
pub struct Arguments {
    /// The windows, made by 'terrace windows'.
    #[arg(value_name = "FILE.twin")]
    windows: PathBuf,
    /// Shares of the footprint that are fast, as "25%,50%"; that of the experiment if not given.
    #[arg(long, value_name = "SHARES", value_parser = share, value_delimiter = ',')]
    fast: Vec<f64>,
    /// Half of the interval's width that is enough, in percent of the slowdown, as "2%".
    #[arg(long, value_name = "ERROR", value_parser = share)]
    error: Option<f64>,
    /// Machine and options of this experiment; those that the windows were taken with if not given.
    #[arg(long, value_name = "EXPERIMENT.toml")]
    experiment: Option<PathBuf>,
    /// Run the whole program too, and compare.
    #[arg(long)]
    check: bool,
    /// Simulations at a time; as many as there are processors if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    jobs: Option<u64>,
    /// Format of the answer.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

impl Arguments {
    /// Simulates the windows and shows the answer.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let experiment = self.experiment.as_deref().map(Experiment::read).transpose()?;
        let windows = Windows::open(&self.windows, experiment)?;
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let request = Request {
            fast_shares: self.fast,
            error: self.error,
            jobs: self.jobs.map_or(processors, |jobs| jobs as usize),
        };
        let answer = windows.estimate(&request, &mut Screen::new(false))?;
        let whole = match self.check {
            true => Some(windows.whole(&request)?),
            false => None,
        };
        match self.format {
            Format::Json => say!("{}", as_json(&answer, whole.as_deref()))?,
            Format::Text => show(&answer, whole.as_deref(), &windows)?,
        }
        if let Some(asked) = request.error {
            let missed = answer.estimates.iter().any(|e| relative_error(e) > asked);
            if missed {
                crate::show::remark(format_args!(
                    "the error is above {:.1} % with all {} windows; take more of them",
                    100.0 * asked,
                    answer.windows
                ));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn relative_error(estimate: &Estimate) -> f64 {
    estimate.slowdown.half_width / estimate.slowdown.value
}

fn is_within(estimate: &Estimate, whole: f64) -> bool {
    (whole - estimate.slowdown.value).abs() <= estimate.slowdown.half_width
}

fn as_json(answer: &Estimated, whole: Option<&[f64]>) -> serde_json::Value {
    let one = |(n, e): (usize, &Estimate)| {
        let ratio = e.slowdown;
        let mut object = json!({
            "fast_share": e.fast_share,
            "slowdown": ratio.value,
            "slowdown_low": ratio.value - ratio.half_width,
            "slowdown_high": ratio.value + ratio.half_width,
            "time_ms": e.time_ms,
            "fast_reads": e.fast_reads,
        });
        if let Some(whole) = whole {
            object["whole_slowdown"] = whole[n].into();
            object["whole_is_within"] = is_within(e, whole[n]).into();
        }
        object
    };
    json!({
        "windows": answer.windows,
        "timed_share": answer.timed_share,
        "all_fast_ms": answer.all_fast_ms,
        "estimates": answer.estimates.iter().enumerate().map(one).collect::<Vec<_>>(),
    })
}

fn show(answer: &Estimated, whole: Option<&[f64]>, windows: &Windows) -> anyhow::Result<()> {
    say!(
        "{}: {} windows, {:.2} % of {} loads and stores; {:.3} ms with all memory fast",
        windows.header().workload,
        answer.windows,
        100.0 * answer.timed_share,
        windows.header().references,
        answer.all_fast_ms,
    )?;
    let mut columns = vec!["fast", "time ms", "slowdown", "95 % interval", "error", "fast reads"];
    if whole.is_some() {
        columns.extend(["whole run", "within"]);
    }
    let mut rows = table(&columns);
    for (n, e) in answer.estimates.iter().enumerate() {
        let ratio = e.slowdown;
        let mut row = vec![
            e.fast_share.map_or("as given".to_owned(), |s| format!("{:.0} %", 100.0 * s)),
            format!("{:.3}", e.time_ms),
            format!("{:.4}", ratio.value),
            format!(
                "{:.4} to {:.4}",
                ratio.value - ratio.half_width,
                ratio.value + ratio.half_width
            ),
            format!("{:.2} %", 100.0 * relative_error(e)),
            format!("{:.1} %", 100.0 * e.fast_reads),
        ];
        if let Some(whole) = whole {
            row.push(format!("{:.4}", whole[n]));
            row.push(if is_within(e, whole[n]) { "yes" } else { "no" }.to_owned());
        }
        rows.add_row(row);
    }
    say!("{rows}")
}

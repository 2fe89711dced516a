//! `terrace rack`: runs experiments on the rack, and shows the sizes of its hardware and its
//! data-movement schemes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::{Args, Subcommand};
use serde_json::json;
use terrace_core::InputError;
use terrace_experiments::claims::Verdict;
use terrace_experiments::rack;
use terrace_rack::config::{MechanismConfig, RackConfig};
use terrace_rack::experiment::Placement;
use terrace_rack::mechanism::overhead;
use terrace_rack::scheme::REGISTRY;
use terrace_rack::trace::TraceConfig;
use terrace_results::RackRunRow;

use crate::output::Force;
use crate::show::{self, Format, say, tell};

/// Simulate a rack: compute nodes, a switch and memory pools, with pages moved by hardware.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    /// The experiment (examples/rack has one for each figure of the paper).
    #[arg(value_name = "RUN.toml")]
    file: Option<PathBuf>,
    /// Run these schemes instead of the file's, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    schemes: Vec<String>,
    /// Run at the size that the file has for full size.
    #[arg(long)]
    full: bool,
    /// Write result tables into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Trace every packet of this time, in microseconds, into DIR/trace-*.json, which Perfetto and
    /// Chrome's trace viewer open.
    #[arg(long, value_name = "FROM..TO", requires = "out")]
    trace: Option<String>,
    /// Threads of this machine; all its processors if not given. Results do not depend on it.
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,
    /// Format of results.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Subcommand)]
enum Other {
    /// Sizes of the structures in the switch, in bytes (section III-F of the paper).
    Overhead {
        /// An experiment whose rack to take the sizes from; the paper's sizes if not given.
        #[arg(value_name = "RUN.toml")]
        file: Option<PathBuf>,
        /// Format of the output.
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
    /// The data-movement schemes.
    Schemes {
        /// Format of the output.
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
}

impl Arguments {
    /// Runs and shows.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        match &self.other {
            Some(Other::Overhead { file, format }) => overhead(file.as_deref(), *format)?,
            Some(Other::Schemes { format }) => schemes(*format)?,
            None => self.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn run(&self) -> anyhow::Result<()> {
        let Some(file) = &self.file else {
            return Err(InputError::new("no experiment; expected 'terrace rack RUN.toml'").into());
        };
        let mut experiment = rack::read(file, self.full, &self.schemes)?;
        if let Some(span) = &self.trace {
            let trace = Some(span_of(span)?);
            experiment.variants.iter_mut().for_each(|v| v.rack.trace = trace);
        }
        let experiment = experiment;
        if let Some(out) = &self.out {
            self.force.folder(out, &["rack_runs.parquet", "runs.parquet"])?;
        }
        rack::check(&experiment, self.out.as_deref())?;
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = self.threads.map_or(processors, |n| n.get());
        let (all, ended) = (experiment.plan().len(), AtomicUsize::new(0));
        let finished = rack::run(&experiment, threads, |planned| {
            let n = ended.fetch_add(1, Ordering::Relaxed) + 1;
            let variant = &experiment.variants[planned.variant].name;
            let workload = match experiment.placement {
                Placement::Alone => &experiment.workloads[planned.workloads[0]].name,
                Placement::Together => "together",
            };
            tracing::info!("{n} of {all}: {variant} {workload} {}", rack::scheme_name(planned));
        })?;
        let tables = rack::tables(&experiment, &finished);
        if let Some(out) = &self.out {
            tables.write(out)?;
            if let Some(span) = &self.trace {
                let mut packets = 0;
                for run in &finished {
                    packets += rack::write_trace(&experiment, run, out)?;
                }
                if packets == 0 {
                    let last = tables.runs.iter().map(|r| r.time_ns).fold(0.0, f64::max) / 1000.0;
                    tell!(
                        "no packet was sent in --trace {span}; the longest run took {last:.0} us"
                    );
                }
            }
        }
        let verdicts = rack::verdicts(&experiment, &tables.runs)?;
        if let Some(out) = &self.out
            && !verdicts.is_empty()
        {
            rack::write_verdicts(&verdicts, out)?;
        }
        if self.format == Format::Json {
            if let Some(out) = &self.out {
                crate::report::write_rack(out)?;
            }
            return say!("{}", serde_json::to_string_pretty(&tables.runs)?);
        }
        for variant in &experiment.variants {
            let rows: Vec<_> = tables.runs.iter().filter(|r| r.variant == variant.name).collect();
            let slowdown = |r: &RackRunRow| r.slowdown;
            say!("{}: slowdown, variant {}", experiment.name, variant.name)?;
            matrix(&rows, slowdown, 2)?;
            say!("\nmemory access cost over local")?;
            matrix(&rows, |r| r.access_cost, 2)?;
            say!("\nlocal and buffer hits, percent")?;
            matrix(&rows, |r| 100.0 * r.local_hit_ratio, 1)?;
            say!("")?;
        }
        if !verdicts.is_empty() {
            say!("the paper says, and here\n")?;
            claims(&verdicts)?;
        }
        if let Some(out) = &self.out {
            let report = crate::report::write_rack(out)?;
            tell!("tables are in {}, report: {}", out.display(), report.display());
        }
        Ok(())
    }
}

/// A span of time.
fn span_of(text: &str) -> anyhow::Result<TraceConfig> {
    let numbers = text.split_once("..").map(|(a, b)| (a.trim().parse(), b.trim().parse()));
    match numbers {
        Some((Ok(from_us), Ok(to_us))) if 0.0 <= from_us && from_us < to_us && to_us <= 1e9 => {
            Ok(TraceConfig { from_us, to_us })
        }
        _ => {
            let bad = format!("--trace {text}: expected a span in microseconds, such as 100..120");
            Err(InputError::new(bad).into())
        }
    }
}

/// A paper's claim, and the measured value.
fn claims(verdicts: &[Verdict]) -> anyhow::Result<()> {
    let mut table = show::table(&["the paper says", "where", "expected", "here", ""]);
    for v in verdicts {
        table.add_row([&v.says, &v.source, &v.expected, &v.here, &v.words()]);
    }
    say!("{table}")
}

/// Workloads down, schemes across.
fn matrix(
    rows: &[&RackRunRow],
    value: impl Fn(&RackRunRow) -> f64,
    digits: usize,
) -> anyhow::Result<()> {
    let mut schemes: Vec<&str> = Vec::new();
    let mut workloads: Vec<(&str, u64)> = Vec::new();
    for row in rows.iter().filter(|r| r.scheme != "local") {
        if !schemes.contains(&row.scheme.as_str()) {
            schemes.push(&row.scheme);
        }
        let key = (row.workload.as_str(), row.node);
        if !workloads.contains(&key) {
            workloads.push(key);
        }
    }
    let mut header = vec!["workload", "node"];
    header.extend(&schemes);
    let mut table = show::table(&header);
    for (workload, node) in &workloads {
        let mut cells = vec![(*workload).to_owned(), node.to_string()];
        cells.extend(schemes.iter().map(|scheme| {
            let row = rows
                .iter()
                .find(|r| r.workload == *workload && r.node == *node && r.scheme == *scheme);
            row.map_or(String::new(), |r| format!("{:.digits$}", value(r)))
        }));
        table.add_row(cells);
    }
    say!("{table}")
}

fn overhead(file: Option<&std::path::Path>, format: Format) -> anyhow::Result<()> {
    let config = match file {
        None => MechanismConfig::default(),
        Some(file) => {
            let experiment = rack::read(file, false, &[])?;
            experiment.variants.first().map_or(RackConfig::default(), |v| v.rack.clone()).mechanism
        }
    };
    let structures = overhead::structures(&config);
    if format == Format::Json {
        let all: Vec<_> = structures
            .iter()
            .map(|s| {
                json!({ "structure": s.name, "entries_per_node": s.entries, "bits": s.bits,
                        "bytes": s.bytes, "paper_bytes": s.paper_bytes, "note": s.note })
            })
            .collect();
        return say!("{}", serde_json::to_string_pretty(&all)?);
    }
    let mut table =
        show::table(&["structure", "entries a node", "bits", "bytes", "the paper", "note"]);
    for s in &structures {
        let paper =
            if s.paper_bytes > 0.0 { format!("{:.0}", s.paper_bytes) } else { String::new() };
        table.add_row([
            s.name.to_owned(),
            s.entries.to_string(),
            s.bits.to_string(),
            s.bytes.to_string(),
            paper,
            s.note.to_owned(),
        ]);
    }
    let sum: u64 = structures.iter().map(|s| s.bytes).sum();
    say!("{table}\n\n{sum} bytes in all for {} nodes", config.supported_nodes)
}

fn schemes(format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        let all: Vec<_> = REGISTRY
            .iter()
            .map(|s| json!({ "name": s.name, "summary": s.summary, "source": s.source }))
            .collect();
        return say!("{}", serde_json::to_string_pretty(&all)?);
    }
    let mut table = show::table(&["scheme", "what it does", "from"]);
    for s in REGISTRY {
        table.add_row([s.name, s.summary, s.source]);
    }
    say!("{table}")
}

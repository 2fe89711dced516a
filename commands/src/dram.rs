//! `terrace dram`: one DRAM system under traffic.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args, ValueEnum};
use serde_json::json;
use terrace_core::InputError;
use terrace_hardware::dram::config::DramConfig;
use terrace_hardware::dram::presets;
use terrace_hardware::dram::traffic::{Latency, Load, Pattern, Traffic, TrafficReport, dram_run};
use terrace_hardware::units::Bytes;

use crate::show::{self, Format, say};

/// Text below the options.
const MORE: &str = "\
A configuration names a preset and replaces what differs:

  preset = \"ddr4-2400\"
  [organization]
  channels = 2
  [timing]
  rcd = 18
  [controller]
  page_policy = \"closed\"

--print-config prints one with every key. Latencies are from the request to the end of its data
burst, front and back end of the controller included.";

/// Load DRAM with traffic and measure its bandwidth and latencies.
///
/// Simulates DDR4 or DDR5 command by command (banks, rows, refresh, read and write turns) under
/// random or sequential traffic, either offered at a rate or with N reads outstanding, and
/// reports achieved bandwidth and latencies. The same seed gives the same figures.
#[derive(Args)]
#[command(arg_required_else_help = true, after_long_help = MORE,
    override_usage = "terrace dram <CONFIG.toml|--preset NAME> \
        <--offered-gbps GB/S|--outstanding N> [OPTIONS]",
    group = ArgGroup::new("memory").args(["config", "preset"]).required(true),
    group = ArgGroup::new("load").args(["offered_gbps", "outstanding", "print_config"])
        .required(true))]
pub struct Arguments {
    /// The memory: a TOML file.
    #[arg(value_name = "CONFIG.toml")]
    config: Option<PathBuf>,
    /// Or a preset, unchanged: ddr4-2133, ddr4-2400, ddr4-2666, ddr4-2933, ddr4-3200, ddr5-4800,
    /// ddr5-5600.
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Print the configuration with every key and stop.
    #[arg(long)]
    print_config: bool,
    /// Address of the next line.
    #[arg(long, value_enum, default_value = "random")]
    traffic: Where,
    /// Share of reads among the requests, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    reads: f64,
    /// Requests come at random times (a Poisson process) at this rate in GB/s, served or not.
    #[arg(long, value_name = "GB/S")]
    offered_gbps: Option<f64>,
    /// Reads under way at a time; a write is done when the write queue takes it.
    #[arg(long, value_name = "N")]
    outstanding: Option<u32>,
    /// Requests to measure.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    requests: u64,
    /// Requests before those, to fill queues and open rows.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    warm_up: u64,
    /// Memory to use, from address 0 on, such as 64M; without it all of it.
    #[arg(long, value_name = "SIZE")]
    footprint: Option<Bytes>,
    /// Seed of addresses, times and kinds.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Format of the answer.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Where {
    /// At a random address.
    Random,
    /// After the last one.
    Sequential,
}

impl Arguments {
    /// Runs the traffic.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let config = self.read()?;
        if self.print_config {
            show::line(toml::to_string(&config)?.trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        let load = match (self.offered_gbps, self.outstanding) {
            (Some(rate), _) => Load::OfferedGbPerS(rate),
            (None, outstanding) => Load::Outstanding(outstanding.unwrap_or(1)),
        };
        let traffic = Traffic {
            pattern: match self.traffic {
                Where::Random => Pattern::Random,
                Where::Sequential => Pattern::Sequential,
            },
            read_share: self.reads,
            load,
            requests: self.requests,
            warm_up: self.warm_up,
            footprint: self.footprint,
            seed: self.seed,
        };
        let report = dram_run(&config, &traffic).map_err(InputError::new)?;
        match self.format {
            Format::Json => {
                let mut answer = serde_json::to_value(&report)?;
                answer["capacity_bytes"] = json!(config.organization.capacity_bytes());
                answer["traffic"] = serde_json::to_value(traffic)?;
                say!("{}", serde_json::to_string_pretty(&answer)?)?;
            }
            Format::Text => text(&config, &report)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn read(&self) -> anyhow::Result<DramConfig> {
        let Some(path) = &self.config else {
            let name = self.preset.as_deref().unwrap_or(presets::DEFAULT);
            return Ok(presets::by_name(name).map_err(InputError::new)?);
        };
        let refuse = |problem: &dyn std::fmt::Display, what: &str| {
            InputError::new(format_args!("{}: {problem}{what}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|e| {
            refuse(&e, "; expected a DRAM configuration, 'terrace dram --preset ddr4-2400 --print-config' prints one")
        })?;
        Ok(DramConfig::from_toml(&text).map_err(|e| refuse(&e, ""))?)
    }
}

fn text(config: &DramConfig, report: &TrafficReport) -> anyhow::Result<()> {
    let o = &config.organization;
    say!(
        "{} in {} channel(s) of {} rank(s); {:.3} of {:.3} GB/s achieved ({:.1} %)",
        Bytes(o.capacity_bytes()),
        o.channels,
        o.ranks,
        report.achieved_gb_per_s,
        report.peak_gb_per_s,
        100.0 * report.achieved_gb_per_s / report.peak_gb_per_s
    )?;
    let mut table = show::table(&["", "requests", "mean ns", "p50 ns", "p99 ns", "max ns"]);
    for (name, latency) in [("reads", &report.read), ("writes", &report.write)] {
        let Latency { requests, mean_ns, p50_ns, p99_ns, max_ns } = *latency;
        if requests > 0 {
            let ns = [mean_ns, p50_ns, p99_ns, max_ns].map(|ns| format!("{ns:.1}"));
            table.add_row([name.to_owned(), requests.to_string()].into_iter().chain(ns));
        }
    }
    say!("{table}")?;
    let c = report.counts;
    let requests = (c.row_hits + c.row_misses + c.row_conflicts).max(1) as f64;
    let share = |n: u64| 100.0 * n as f64 / requests;
    say!(
        "rows, warm-up included: {:.1} % open, {:.1} % closed, {:.1} % another open; {} activations, {} refreshes, {} turns to writing",
        share(c.row_hits),
        share(c.row_misses),
        share(c.row_conflicts),
        c.activations,
        c.refreshes,
        c.write_drains
    )
}

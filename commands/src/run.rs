//! `terrace run`: an experiment on a machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use terrace_core::refuse;
use terrace_experiments::Experiment;
use terrace_experiments::file::Fidelity;
use terrace_experiments::run::{MachineKind, Request};
use terrace_report::Results;

use crate::output::Force;
use crate::progress::Screen;
use crate::show::{Format, tell};

/// Text on experiment files in `--help` and the manual pages.
pub const EXPERIMENT_FILES: &str = r#"Experiment files:
  name = "example"            # names: letters, digits, '-', '_', '.'
  description = "two at once" # optional
  seed = 1                    # of everything random (1)
  period_ms = 1000            # pages are tracked and moved once a period
  periods = 100               # at most; it ends when its workloads have

  [machine]                   # optional: made by sim and vm, not by host
  cpus = 2                    # processors (2)
  fast = "1G"                 # fast tier (sim: what the groups may use)
  slow = "2G"                 # slow tier (sim: without bound)
  fast_latency_ns = 80        # as the firmware of vm reports it (80)
  slow_latency_ns = 300       # (300)
  kernel = "bzImage"          # of vm (Debian's packaged kernel)
  clock = "host"              # of vm: or "instructions", one a ns, or
                              # "memory", see below (host)
  full = false                # of vm and host: true lets others have the rest
                              # of fast memory meanwhile (false)
  fidelity = "interval"       # of sim: or "trace", see below (interval)
  sample_reads = "auto"       # policies get one read in so many: of a host
                              # that samples, with the memory clock; of sim by
                              # number, of "profile" and at trace fidelity
                              # (auto; 0: none)

  [[groups]]                  # one or more, run at the same time
  name = "first"
  policy = "amp"              # see 'terrace policies' (amp)
  fast_ratio = 0.5            # its fast memory over its footprint,
                              # or its size: fast = "512M"
  page_size = "2M"            # tracked and moved in these: 2M, 4K, or auto:
                              # vm, host: in ranges of 2M whatever maps them,
                              # bits sampled often; else as 2M (2M)
  moved_pages_per_period = 64 # at most (without bound)

  [groups.workload]
  kind = "zipf"               # see 'terrace workloads'
  footprint_mib = 1024        # and its parameters

  [policies.amp]              # optional: parameters of a policy
  window_periods = 36

At trace fidelity workloads are of kind "program" or "recording", periods
are of simulated time, and there are these besides:
  [machine.hardware]          # see 'terrace machines'
  preset = "server-ddr5-cxl"  # and what to change of it: node.cores = 4
  [machine.os]                # huge_pages, watermarks, levels, page_cache
  migration.threads = 4       # exchange, batches, splitting, shootdowns
  costs.preset = "nimble"     # what each step costs
  [machine.simulation]        # how time is played: quantum_ns = 1000
  [[groups]]
  tables = { placement = "bind_high_levels", migrate = true }
  start_ms = 0                # when the program starts and is ended
  stop_ms = 500
  sparse = { pte = 64, pmd = 8 } # used of 512 entries: more page-table pages
and before the tables slowdown = false, for no run with all memory fast.

With clock = "memory" the virtual machine's time is simulated: what its
instructions and accesses of memory take on two tiers of fast_latency_ns and
slow_latency_ns, or on [machine.hardware] as above. A millisecond of a busy
guest takes a second or less; choose short periods. slowdown = false as above."#;

/// Run an experiment as its file has it and write its results.
#[derive(Args)]
#[command(after_long_help = EXPERIMENT_FILES)]
pub struct Arguments {
    /// On a live machine: let what Linux does by itself move pages instead of a policy: 'nothing',
    /// 'linux' or 'damon'; see '--rivals' of 'terrace compare'.
    #[arg(long, value_name = "NAME")]
    rival: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Arguments that every command with an experiment has.
#[derive(Args)]
pub struct Common {
    /// The experiment file.
    #[arg(value_name = "EXPERIMENT.toml")]
    experiment: PathBuf,
    /// The machine to run on.
    #[arg(long, value_enum, default_value = "sim")]
    machine: Machine,
    /// Folder for the results: Parquet tables, recordings and report.html.
    ///
    /// It is made when it is not there; results/NAME by default, with the experiment's name.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Format of the result.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// On the host: change kernel settings that would spoil the run, for its time.
    ///
    /// They are journaled first and put back afterwards, also after a crash. Without this such
    /// settings are refused.
    #[arg(long)]
    fix_conflicts: bool,
    /// On the virtual machine: count every load and store by tier, in the emulation.
    ///
    /// Shows the exact shares of fast memory beside the tracker's hit ratio and writes all counts,
    /// period by period, to accesses/RUN.json. Of all programs in the guest together; slower.
    #[arg(long)]
    count_accesses: bool,
    /// Fidelity of the simulated machine, in place of the file's.
    #[arg(long, value_enum)]
    #[arg(alias = "depth")]
    fidelity: Option<FidelityArgument>,
    /// Runs at the same time, simulated ones and those on virtual machines whose clocks count; as many
    /// as there are processors by default, and memory for their machines.
    ///
    /// The results of simulated runs are the same bytes for any number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Show the console of the virtual machine while it runs.
    #[arg(long)]
    console: bool,
    /// Within a virtual machine that counts accesses: programs have their mappings apart from others.
    #[arg(long, hide = true)]
    apart: bool,
}

/// What an experiment is run under, one after the other.
#[derive(Default)]
pub struct Compared {
    /// Policies; what the file says where there are none.
    pub policies: Option<Vec<String>>,
    /// What Linux does by itself, by name.
    pub rivals: Vec<String>,
    /// Kernels of the virtual machine; the one in the file where there are none.
    pub kernels: Vec<String>,
}

/// Machines by their names on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Machine {
    /// The simulated machine: which pages are accessed in a period, and where they are placed.
    Sim,
    /// A virtual machine with two memory tiers: the real programs on a real kernel.
    Vm,
    /// The memory tiers of this host; needs root.
    Host,
}

impl Machine {
    fn kind(self) -> MachineKind {
        match self {
            Machine::Sim => MachineKind::Simulated,
            Machine::Vm => MachineKind::Virtual,
            Machine::Host => MachineKind::Host,
        }
    }

    fn name(self) -> &'static str {
        self.kind().name()
    }
}

/// Fidelities by their names on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FidelityArgument {
    /// Which pages are accessed in each period.
    #[value(alias = "period")]
    Interval,
    /// Every reference, on hardware with an operating system: run time comes out.
    #[value(alias = "reference")]
    Trace,
}

impl Arguments {
    /// Runs it.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        self.common.execute(Compared { rivals: Vec::from_iter(self.rival), ..Compared::default() })
    }
}

impl Common {
    /// Runs the experiment, once under each of what is compared.
    pub fn execute(self, compared: Compared) -> anyhow::Result<ExitCode> {
        let Compared { policies, rivals, kernels } = compared;
        let mut experiment = Experiment::read(&self.experiment)?;
        if let Some(fidelity) = self.fidelity {
            experiment = experiment.at_fidelity(match fidelity {
                FidelityArgument::Interval => Fidelity::Interval,
                FidelityArgument::Trace => Fidelity::Trace,
            })?;
        }
        for (given, option, what, machine) in [
            (self.console, "--console", "the console of a virtual machine", Machine::Vm),
            (self.fix_conflicts, "--fix-conflicts", "settings of this host", Machine::Host),
        ] {
            if given && self.machine != machine {
                let [asked, meant] = [self.machine, machine].map(Machine::name);
                let refusal = refuse!(
                    "{option} is for {what}, and this is to run on {asked}; leave it out, or use \
                     --machine {meant}"
                );
                return Err(refusal.into());
            }
        }
        let out = self.out.unwrap_or_else(|| Path::new("results").join(&experiment.name));
        self.force.folder(&out, &["runs.parquet", "sweep.parquet", "plan.json", "fleet.json"])?;
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let request = Request {
            experiment,
            policies,
            rivals,
            apart: self.apart,
            kernels,
            machine: self.machine.kind(),
            out: out.clone(),
            fix_conflicts: self.fix_conflicts,
            count_accesses: self.count_accesses,
            jobs: self.jobs.map_or(processors, usize::from),
        };
        let all_well = terrace_experiments::runner::run(request, &mut Screen::new(self.console))?;
        // That of the results before is of none now, even if the new one cannot be written.
        let _ = std::fs::remove_file(out.join("report.html"));
        let results = Results::read(&out)?;
        let report = crate::report::write(&out, &results)?;
        crate::report::show(&results, self.format, &report)?;
        if !all_well {
            tell!("terrace: a program's data was damaged; see checksum_ok in the results");
        }
        Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_experiment_file_in_the_help_is_one() {
        let text = EXPERIMENT_FILES.lines().skip(1).take_while(|l| !l.starts_with("At "));
        let text = text.collect::<Vec<_>>().join("\n");
        let experiment = Experiment::parse(&text, PathBuf::new()).unwrap();
        let written = serde_json::to_value(&experiment).unwrap();
        assert_eq!(written["groups"][0]["moved_pages_per_period"], 64);
        assert_eq!(written["machine"]["slow"], 2u64 << 30);
        assert!(EXPERIMENT_FILES.lines().all(|l| l.len() < 79), "wider than a terminal");
    }
}

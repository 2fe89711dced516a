//! Experiments on the rack: from a file to result tables.

use std::path::Path;

use terrace_rack::config::RackConfig;
use terrace_rack::experiment::{Experiment, Finished, Planned};
use terrace_rack::outcome::{Histogram, NodeOutcome, Outcome, Sample};
use terrace_rack::scheme::{Batch, REGISTRY};
use terrace_rack::simulate::RunError;
use terrace_results::{
    RackLatencyRow, RackPortRow, RackRunRow, RackSampleRow, ResultsError, Table, TableWriter,
};

use crate::claims::{self, Claim, Fact, Verdict};
use terrace_core::{InputError, refuse};

/// Reads an experiment; with `full` at full size, under `schemes` unless there are none.
pub fn read(file: &Path, full: bool, schemes: &[String]) -> Result<Experiment, InputError> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| refuse!("{}: {e}; expected an experiment on the rack", file.display()))?;
    let experiment = Experiment::from_toml(&text, full, schemes)
        .map_err(|e| refuse!("{}: {e}", file.display()))?;
    claims(&experiment).map_err(|e| refuse!("{}: {e}", file.display()))?;
    Ok(experiment)
}

/// The measures of claims.
const MEASURES: [&str; 17] = [
    "slowdown",
    "access_cost",
    "access_ns",
    "local_hit_ratio",
    "local_ns",
    "remote_ns",
    "stall_ns",
    "batches",
    "npm",
    "pool_read_ns",
    "buffer_hit_ns",
    "page_fetch_ns",
    "page_move_ns",
    "misses_per_1000",
    // Latency of a page fetch over that of a read from a pool, and of a buffer hit.
    "page_over_block",
    "buffer_hit_over_block",
    // Latency of a page that moves alone, from request to local memory, over that of a read from a
    // pool.
    "page_move_over_block",
];

/// The claims of an experiment.
pub fn claims(experiment: &Experiment) -> Result<Vec<Claim>, InputError> {
    let nodes = experiment.variants.iter().map(|v| v.rack.nodes).max().unwrap_or(1);
    let schemes = REGISTRY.iter().map(|s| s.name).chain([LOCAL]);
    let dimensions = [
        ("variant", experiment.variants.iter().map(|v| v.name.clone()).collect()),
        ("workload", experiment.workloads.iter().map(|w| w.name.clone()).collect()),
        ("scheme", schemes.map(str::to_owned).collect()),
        ("node", (0..nodes).map(|n| n.to_string()).collect()),
    ];
    claims::read(&experiment.claims, &dimensions.into(), &MEASURES)
}

/// Checks the claims of an experiment against its runs.
pub fn verdicts(experiment: &Experiment, runs: &[RackRunRow]) -> Result<Vec<Verdict>, InputError> {
    let over = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
    let fact = |r: &RackRunRow| Fact {
        dimensions: [
            ("variant", r.variant.clone()),
            ("workload", r.workload.clone()),
            ("scheme", r.scheme.clone()),
            ("node", r.node.to_string()),
        ]
        .into(),
        measures: [
            ("slowdown", Some(r.slowdown)),
            ("access_cost", Some(r.access_cost)),
            ("access_ns", Some(r.access_ns)),
            ("local_hit_ratio", Some(r.local_hit_ratio)),
            ("local_ns", Some(r.local_ns)),
            ("remote_ns", Some(r.remote_ns)),
            ("stall_ns", Some(r.stall_ns)),
            ("batches", Some(r.batches as f64)),
            ("npm", Some(r.npm as f64)),
            ("pool_read_ns", r.pool_read_ns),
            ("buffer_hit_ns", r.buffer_hit_ns),
            ("page_fetch_ns", r.page_fetch_ns),
            ("page_move_ns", r.page_move_ns),
            ("misses_per_1000", Some(r.misses_per_1000)),
            ("page_move_over_block", over(r.page_move_ns, r.pool_read_ns)),
            ("page_over_block", over(r.page_fetch_ns, r.pool_read_ns)),
            ("buffer_hit_over_block", over(r.buffer_hit_ns, r.pool_read_ns)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect(),
    };
    let facts: Vec<Fact> = runs.iter().map(fact).collect();
    Ok(claims(experiment)?.iter().map(|claim| claim.check(&facts)).collect())
}

/// Checks that every workload can start, and that results can be written, before anything runs.
pub fn check(experiment: &Experiment, out: Option<&Path>) -> Result<(), InputError> {
    experiment.check().map_err(InputError::new)?;
    out.map_or(Ok(()), make_directory)
}

fn make_directory(directory: &Path) -> Result<(), InputError> {
    std::fs::create_dir_all(directory)
        .map_err(|e| refuse!("{}: {e}; expected a directory for results", directory.display()))
}

/// Runs an experiment. An impossible configuration is an input error.
pub fn run(
    experiment: &Experiment,
    threads: usize,
    done: impl Fn(&Planned) + Sync,
) -> anyhow::Result<Vec<Finished>> {
    experiment.run(threads, done).map_err(|error| match error {
        RunError::Config(e) => InputError::new(e).into(),
        other => other.into(),
    })
}

/// Name in tables of the base of slowdowns: all memory local.
pub const LOCAL: &str = "local";

/// Name of a run in tables.
pub fn scheme_name(planned: &Planned) -> &'static str {
    planned.scheme.map_or(LOCAL, |s| s.name)
}

/// The tables of an experiment.
#[derive(Debug, Default)]
pub struct Tables {
    /// A row for each node of each run.
    pub runs: Vec<RackRunRow>,
    /// Timelines of the nodes.
    pub samples: Vec<RackSampleRow>,
    /// Ports of the switch.
    pub ports: Vec<RackPortRow>,
    /// Latencies.
    pub latencies: Vec<RackLatencyRow>,
}

fn ns(ps: u64) -> f64 {
    ps as f64 / 1000.0
}

fn known_mean_ns(ps: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| mean_ns(ps, count))
}

fn mean_ns(ps: u64, count: u64) -> f64 {
    ns(ps) / count.max(1) as f64
}

/// Mean time of an instruction, in ps.
fn pace(node: &NodeOutcome) -> f64 {
    node.time as f64 / node.instructions.max(1) as f64
}

/// What the rows of a run have in common.
struct RunOf<'a> {
    experiment: &'a str,
    variant: &'a str,
    scheme: &'static str,
    rack: RackConfig,
    /// Whether pages migrate one by one.
    moves_alone: bool,
}

/// Makes the tables of finished runs.
pub fn tables(experiment: &Experiment, finished: &[Finished]) -> Tables {
    let mut tables = Tables::default();
    for run in finished {
        let of = RunOf {
            experiment: &experiment.name,
            variant: &experiment.variants[run.planned.variant].name,
            scheme: scheme_name(&run.planned),
            rack: experiment.rack_of(&run.planned).0,
            moves_alone: run.planned.scheme.is_some_and(|s| s.batch == Batch::Fixed(1)),
        };
        let base = &finished[run.planned.base].outcome;
        for (n, node) in run.outcome.nodes.iter().enumerate() {
            tables.runs.push(run_row(&of, n, node, &base.nodes[n]));
            tables.samples.extend(node.samples.iter().map(|s| sample_row(&of, n, node, s)));
            tables.latencies.extend(latency_rows(&of, n, node));
        }
        let ports = 0..run.outcome.links.len();
        tables.ports.extend(ports.map(|port| port_row(&of, port, &run.outcome)));
    }
    tables
}

/// The row of a node; `local` is the same node with all memory local.
fn run_row(of: &RunOf<'_>, n: usize, node: &NodeOutcome, local: &NodeOutcome) -> RackRunRow {
    let c = &node.counts;
    let l = &c.remote_latency;
    let part = |i: usize| mean_ns(l.sums[i], l.total.count());
    RackRunRow {
        experiment: of.experiment.to_owned(),
        variant: of.variant.to_owned(),
        scheme: of.scheme.to_owned(),
        node: n as u64,
        workload: node.workload.clone(),
        nodes: of.rack.nodes.into(),
        pools: of.rack.pools.into(),
        local_share: of.rack.local_share,
        nic_gbit_per_s: of.rack.network.nic_gbit_per_s,
        switch_gbit_per_s: of.rack.network.switch_gbit_per_s,
        instructions: node.instructions,
        time_ns: ns(node.time),
        slowdown: pace(node) / pace(local),
        access_ns: c.access_ns(),
        access_cost: c.access_ns() / local.counts.access_ns(),
        local_reads: c.local_reads,
        migrated_reads: c.migrated_reads,
        remote_reads: c.remote_reads,
        buffer_reads: c.buffer_reads,
        local_hit_ratio: (c.local_reads + c.buffer_reads) as f64 / c.reads().max(1) as f64,
        local_writes: c.local_writes,
        remote_writes: c.remote_writes,
        local_ns: mean_ns(c.local_ps, c.local_reads),
        remote_ns: mean_ns(c.remote_ps, c.remote_reads),
        pool_read_ns: known_mean_ns(c.remote_ps - c.buffer_ps, c.remote_reads - c.buffer_reads),
        buffer_hit_ns: known_mean_ns(c.buffer_hit_ps, c.buffer_hits),
        page_fetch_ns: known_mean_ns(node.controller.fetch_ps, node.controller.fetches),
        page_move_ns: of.moves_alone.then(|| known_mean_ns(c.page_move_ps, c.pages_in)).flatten(),
        misses_per_1000: c.reads() as f64 * 1000.0 / node.instructions.max(1) as f64,
        remote_nic_ns: part(1),
        remote_switch_ns: part(2),
        remote_queue_ns: part(3),
        remote_dram_ns: part(4),
        pages_in: c.pages_in,
        pages_out: c.pages_out,
        batches: c.migrations,
        stall_ns: ns(c.stall_ps),
        pages_fetched: node.controller.pages,
        pending: node.controller.pending,
        npm: node.npm.into(),
        score: node.score.into(),
        hot_count: node.threshold.map(|t| t.count.into()),
        hot_per_us: node.threshold.map(|t| t.frequency_per_us),
        trainings: node.controller.trainings,
        block_queue_max: node.queues_max.0 as u64,
        pending_max: node.queues_max.1 as u64,
    }
}

/// A row of a node's timeline.
fn sample_row(of: &RunOf<'_>, n: usize, node: &NodeOutcome, s: &Sample) -> RackSampleRow {
    RackSampleRow {
        variant: of.variant.to_owned(),
        scheme: of.scheme.to_owned(),
        node: n as u64,
        workload: node.workload.clone(),
        from_ns: ns(s.from),
        to_ns: ns(s.to),
        instructions: s.instructions,
        local_reads: s.local_reads,
        migrated_reads: s.migrated_reads,
        remote_reads: s.remote_reads,
        buffer_reads: s.buffer_reads,
        pages_in: s.pages_in,
        pages_out: s.pages_out,
        misses: s.misses,
        nic_bytes: s.nic_bytes,
        block_queue: s.block_queue,
        pending: s.pending,
        buffered: s.buffered,
        npm: s.npm,
        score: s.score as f64,
    }
}

/// The latencies of a node, bin by bin.
fn latency_rows(of: &RunOf<'_>, n: usize, node: &NodeOutcome) -> Vec<RackLatencyRow> {
    let c = &node.counts;
    let l = &c.remote_latency;
    let parts: [(&str, &Histogram); 6] = [
        ("local", &c.local_latency),
        ("remote", &l.total),
        ("nic", &l.nic),
        ("switch", &l.switch),
        ("queue", &l.queue),
        ("dram", &l.dram),
    ];
    let rows = parts.into_iter().flat_map(|(part, histogram)| {
        histogram.bins().map(move |(from_ns, reads)| RackLatencyRow {
            variant: of.variant.to_owned(),
            scheme: of.scheme.to_owned(),
            node: n as u64,
            workload: node.workload.clone(),
            part: part.to_owned(),
            from_ns,
            reads,
        })
    });
    rows.collect()
}

/// The row of a port of the switch.
fn port_row(of: &RunOf<'_>, port: usize, outcome: &Outcome) -> RackPortRow {
    let link = &outcome.links[port];
    let nodes = outcome.nodes.len();
    let time = outcome.time.max(1) as f64;
    RackPortRow {
        variant: of.variant.to_owned(),
        scheme: of.scheme.to_owned(),
        workload: outcome.nodes[0].workload.clone(),
        port: match port.checked_sub(nodes) {
            None => format!("node {port}"),
            Some(pool) => format!("pool {pool}"),
        },
        up_utilisation: link.up.busy as f64 / time,
        down_utilisation: link.down.busy as f64 / time,
        in_utilisation: link.in_busy as f64 / time,
        up_bytes: link.up.bytes,
        down_bytes: link.down.bytes,
        down_page_bytes: link.down.page_bytes,
        up_packets: link.up.packets,
        down_packets: link.down.packets,
        nic_bytes_max: link.up.waiting_bytes_max,
        output_bytes_max: link.down.waiting_bytes_max,
        buffer_bytes_max: link.down.buffer_bytes_max,
    }
}

fn write_table<T: Table + Clone>(directory: &Path, rows: &[T]) -> Result<(), ResultsError> {
    let mut writer = TableWriter::create(directory)?;
    rows.iter().try_for_each(|row| writer.push(row.clone()))?;
    writer.finish()
}

/// Writes the results of the claims, for programs.
pub fn write_verdicts(verdicts: &[Verdict], out: &Path) -> anyhow::Result<()> {
    let path = out.join("claims.json");
    let unfinished = path.with_extension("json.tmp");
    let text = serde_json::to_string_pretty(verdicts)?;
    std::fs::write(&unfinished, text)
        .and_then(|()| std::fs::rename(&unfinished, &path))
        .map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))
}

/// Writes the traced packets of a run, and returns how many events they are; `None` if there were
/// none, as where all memory is local.
pub fn write_trace(experiment: &Experiment, run: &Finished, out: &Path) -> anyhow::Result<usize> {
    let slices = &run.outcome.trace;
    if slices.is_empty() {
        return Ok(0);
    }
    let variant = &experiment.variants[run.planned.variant].name;
    let workload = &run.outcome.nodes[0].workload;
    let parts = ["trace", variant, workload, scheme_name(&run.planned)];
    let named: Vec<_> = parts.into_iter().filter(|part| *part != "-").collect();
    let file = |c: char| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' };
    let name: String = named.join("-").chars().map(file).collect();
    let path = out.join(format!("{name}.json"));
    let unfinished = path.with_extension("json.tmp");
    let text = terrace_rack::trace::chrome_json(slices, run.outcome.nodes.len());
    std::fs::write(&unfinished, text)
        .and_then(|()| std::fs::rename(&unfinished, &path))
        .map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
    Ok(slices.len())
}

impl Tables {
    /// Writes all tables into a directory, which is created if needed.
    pub fn write(&self, directory: &Path) -> anyhow::Result<()> {
        make_directory(directory)?;
        write_table(directory, &self.runs)?;
        write_table(directory, &self.samples)?;
        write_table(directory, &self.ports)?;
        write_table(directory, &self.latencies)?;
        Ok(())
    }
}

//! Every policy on programs of the papers' classes: slowdown at period depth, from one profile a
//! program, at four shares of fast memory.
//!
//! Terrace's own policy was designed on the first sets: they are not blind. The sets called `new`
//! were run once, with the parameters that were left then. `docs/policies.md` has the tables and
//! why programs live as long as they do here.
//!
//! `TERRACE_PROFILES` names a folder that profiles are kept in and taken from; `TERRACE_CASES` a
//! file for the table of all cases.

mod evaluate;

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use terrace_core::policy;
use terrace_experiments::Experiment;
use terrace_experiments::profile::profile;
use terrace_experiments::run::{Event, Events};

use super::Part;
use crate::measure::Report;
use evaluate::{Setup, Workload};

pub const PART: Part = Part {
    name: "policies",
    measures: "slowdown under every policy and the offline optimum, and what each part of Terrace's adds",
    run,
};

/// A set: its name, the seed and the footprint in MiB of its programs, and the programs with their
/// options.
type Set = (&'static str, u64, u32, &'static [(&'static str, &'static str)]);

const SETS: [Set; 6] = [
    ("new_programs", 23, 8, &[("xsbench", "{}"), ("hashjoin", "{}")]),
    (
        "new_inputs",
        23,
        12,
        &[
            ("mcf", "{}"),
            ("kv", "{ requests_per_item = 20, theta = 0.8, read_percent = 50, value_bytes = 256 }"),
            ("lu", "{ iterations = 2 }"),
            ("canneal", "{ temperatures = 8 }"),
            ("bwaves", "{ iterations = 1, sweeps = 20 }"),
            ("btree", "{ absent_percent = 50 }"),
            ("bfs", "{ searches = 2 }"),
            ("als", "{ iterations = 1, ratings_per_user = 50 }"),
        ],
    ),
    (
        "design",
        1,
        8,
        &[
            ("kv", "{ requests_per_item = 40 }"),
            ("bfs", "{ searches = 3 }"),
            ("cg", "{ iterations = 1, inner_iterations = 10 }"),
            ("als", "{ iterations = 1 }"),
            ("lulesh", "{ iterations = 5 }"),
            ("mg", "{ iterations = 2 }"),
        ],
    ),
    ("design_added", 3, 8, &[("canneal", "{}"), ("pagerank", "{ iterations = 6 }")]),
    (
        "first_test",
        7,
        8,
        &[
            ("pagerank", "{ iterations = 6 }"),
            ("btree", "{}"),
            ("mcf", "{}"),
            ("canneal", "{}"),
            ("gups", "{ updates_per_word = 4 }"),
            ("freqmine", "{}"),
            ("ua", "{ iterations = 15 }"),
            ("is", "{ iterations = 4 }"),
        ],
    ),
    (
        "second_test",
        11,
        8,
        &[
            ("lbm", "{ iterations = 12 }"),
            ("minife", "{ iterations = 20 }"),
            ("cactus", "{ iterations = 5 }"),
            ("stream", "{ iterations = 8 }"),
            ("lu", "{ iterations = 4 }"),
            ("deepsjeng", "{ depth = 11 }"),
            ("bwaves", "{ iterations = 2 }"),
            ("ft", "{ iterations = 1 }"),
        ],
    ),
];

const RATIOS: [f64; 4] = [0.1, 0.3, 0.5, 0.7];

/// Policies that are compared; the first is what shares of the way are counted from.
const POLICIES: [&str; 11] = [
    "first-touch",
    "terrace",
    "lru",
    "lfu",
    "lists",
    "amp",
    "granularity",
    "tpp",
    "memtis",
    "colloid",
    "optimum",
];

/// Terrace's policy without one of its parts.
fn ablations() -> [(&'static str, Value); 10] {
    [
        ("without the price of reads", json!({"weigh_reads": false})),
        ("without a memory over phases", json!({"keep_long": false})),
        ("without going back", json!({"retreat": false})),
        ("without operations of regions", json!({"operation_bytes": 4096})),
        ("without believing regions alike", json!({"regions": false})),
        ("without the age of phases", json!({"lindy": 1e6})),
        ("without exposure", json!({"exposure": 0})),
        ("without weighing costs", json!({"weigh_costs": false})),
        ("without following phases", json!({"follow_phases": false})),
        ("long memory only", json!({"memory": "long"})),
    ]
}

/// A program lives for so long at least with all memory fast: some 40 times what it costs to move a
/// footprint of 8 MB once (`docs/policies.md`).
const LEAST_LIFE_MS: u64 = 640;

/// A footprint of 8 MB moves in some 16 ms: as long to a period of 1 ms as 32 GB of huge pages
/// are to one of a second.
const SETUP: Setup = Setup { period_ms: 1, moved_pages: 32, reads_per_sample: 16, seed: 1 };

struct Quiet;

impl Events for Quiet {
    fn event(&mut self, _: Event<'_>) {}
}

/// Slowdowns of one program at one share of fast memory.
struct Row {
    name: String,
    ratio: f64,
    passes: usize,
    of_policy: Vec<f64>,
    bound: f64,
    ablated: Vec<f64>,
    without_samples: f64,
}

fn run(report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("a folder for profiles")?;
    let kept = std::env::var_os("TERRACE_PROFILES").map(PathBuf::from);
    let folder = kept.as_deref().unwrap_or(folder.path());
    let mut cases = String::from(
        "# Policies, case by case\n\nWritten by `make bench BENCH=policies` with `TERRACE_CASES` \
         naming this file: slowdowns. `policies.md` says what they mean.\n",
    );
    for (set, seed, footprint_mib, programs) in SETS {
        let mut rows = Vec::new();
        for (program, options) in programs {
            let path = profiled(program, options, seed, footprint_mib, folder)
                .with_context(|| format!("the profile of {program}"))?;
            let workload = Workload::read(program, &path)?.lengthened(LEAST_LIFE_MS);
            for ratio in RATIOS {
                rows.push(measure(&workload, ratio)?);
            }
            eprintln!("{set}: {program}");
        }
        let table = table(set, &rows);
        eprintln!("{table}");
        cases += &table;
        tell(report, set, &rows)?;
    }
    if let Some(path) = std::env::var_os("TERRACE_CASES") {
        std::fs::write(&path, cases).context("writing the table of cases")?;
    }
    Ok(())
}

/// All cases of a set.
fn table(set: &str, rows: &[Row]) -> String {
    let ablations = ablations().map(|(name, _)| name).join(" | ");
    let head = format!("| program | fast | bound | {} | passes |", POLICIES.join(" | "));
    let mut policies = format!("{head}\n|---|---|---|{}---|\n", "---|".repeat(POLICIES.len()));
    let mut parts = format!("| program | fast | terrace | {ablations} | without samples |\n");
    parts += &format!("|---|---|---|{}---|\n", "---|".repeat(self::ablations().len()));
    for row in rows {
        let cells = |of: &[f64]| of.iter().map(|s| format!("{s:.3} | ")).collect::<String>();
        let first = format!("| {} | {:.0} % |", row.name, row.ratio * 100.0);
        let (bound, passes) = (row.bound, row.passes);
        policies += &format!("{first} {bound:.3} | {}{passes} |\n", cells(&row.of_policy));
        let (own, blind) = (row.of_policy[1], row.without_samples);
        parts += &format!("{first} {own:.3} | {}{blind:.3} |\n", cells(&row.ablated));
    }
    format!("\n## `{set}`\n\n{policies}\nTerrace's policy without its parts:\n\n{parts}")
}

/// One program at one share of fast memory under everything.
fn measure(workload: &Workload, ratio: f64) -> anyhow::Result<Row> {
    let slowdown = |name: &str, parameters: &Value, setup: &Setup| -> anyhow::Result<f64> {
        let policy = policy::build(name, parameters, setup.seed)?;
        workload.run(policy, ratio, setup)
    };
    let of_policy = POLICIES.iter().map(|name| slowdown(name, &Value::Null, &SETUP));
    let ablated = ablations().map(|(_, parameters)| slowdown("terrace", &parameters, &SETUP));
    let blind = Setup { reads_per_sample: 0, ..SETUP };
    Ok(Row {
        name: workload.name.clone(),
        ratio,
        passes: workload.passes(),
        of_policy: of_policy.collect::<anyhow::Result<_>>()?,
        bound: workload.bound(ratio, &SETUP)?,
        ablated: ablated.into_iter().collect::<anyhow::Result<_>>()?,
        without_samples: slowdown("terrace", &Value::Null, &blind)?,
    })
}

/// The means of a set.
fn tell(report: &mut Report, set: &str, rows: &[Row]) -> anyhow::Result<()> {
    let mean = |of: &dyn Fn(&Row) -> f64| {
        (rows.iter().map(|row| of(row).ln()).sum::<f64>() / rows.len().max(1) as f64).exp()
    };
    let conditions = |of: &str| {
        format!("{of}; geometric mean over the programs of the set at 10, 30, 50 and 70 % fast")
    };
    let optimum = POLICIES.len() - 1;
    let (stay, best) = (mean(&|row| row.of_policy[0]), mean(&|row| row.of_policy[optimum]));
    let low = mean(&|row| row.bound);
    for (number, name) in POLICIES.iter().enumerate() {
        let slowdown = mean(&|row| row.of_policy[number]);
        let key = format!("policies.{set}.{}", name.replace('-', "_"));
        report.add(&format!("{key}_slowdown"), slowdown, "x", &conditions("slowdown"))?;
        for (to, end, of) in
            [("share", best, "run of the offline optimum"), ("bound", low, "bound")]
        {
            let way = 100.0 * (stay - slowdown) / (stay - end);
            let what = format!("share of the way from first touch to the {of}, of the means");
            report.add(&format!("{key}_{to}_percent"), way, "%", &what)?;
        }
    }
    let own = POLICIES.iter().position(|name| *name == "terrace").unwrap_or(0);
    let key = |what: &str| format!("policies.{set}.{what}");
    report.add(&key("bound_slowdown"), low, "x", &conditions("bound"))?;
    for (number, (name, _)) in ablations().iter().enumerate() {
        let name = format!("terrace_{}_slowdown", name.replace(' ', "_"));
        let slowdown = mean(&|row| row.ablated[number]);
        report.add(&key(&name), slowdown, "x", &conditions("slowdown"))?;
        let loss = |row: &Row| row.ablated[number] / row.of_policy[0] - 1.0;
        let most = rows.iter().map(loss).fold(0.0, f64::max) * 100.0;
        let name = name.replace("_slowdown", "_loss_percent");
        report.add(&key(&name), most, "%", "what it loses against first touch, at worst")?;
    }
    let blind = mean(&|row| row.without_samples);
    report.add(
        &key("terrace_without_samples_slowdown"),
        blind,
        "x",
        &conditions("slowdown with accessed bits and counters only"),
    )?;
    // How far from the best policy that knows no future, and from staying put, at worst.
    let worst = |of: &dyn Fn(&Row) -> f64| rows.iter().map(of).fold(0.0, f64::max) * 100.0;
    let behind = |row: &Row| {
        let best = row.of_policy[..optimum].iter().copied().fold(f64::INFINITY, f64::min);
        row.of_policy[own] / best - 1.0
    };
    let near = rows.iter().filter(|row| behind(row) <= 0.02).count() as f64;
    let all = rows.len();
    let what = format!("of {all}, Terrace's policy is the best or within 2 % of it");
    report.add(&key("terrace_within_2_percent"), near, "cases", &what)?;
    report.add(
        &key("terrace_behind_best_percent"),
        worst(&behind),
        "%",
        "how far Terrace's policy is behind the best of the others, at worst",
    )?;
    report.add(
        &key("terrace_loss_percent"),
        worst(&|row| row.of_policy[own] / row.of_policy[0] - 1.0),
        "%",
        "what Terrace's policy loses against first touch, at worst",
    )
}

/// The profile of a program in a folder; one that is there is taken.
fn profiled(
    program: &str,
    options: &str,
    seed: u64,
    footprint_mib: u32,
    folder: &Path,
) -> anyhow::Result<PathBuf> {
    let path = folder.join(format!("{program}-{seed}.tprof"));
    if path.exists() {
        return Ok(path);
    }
    // A server with CXL whose last level is to the footprint what 30 MB are to half a gigabyte.
    let text = format!(
        "name = \"policies\"\nseed = {seed}\nperiod_ms = 1\nperiods = 100000\n[machine]\ndepth = \
         \"reference\"\nfast = \"64M\"\nslow = \"64M\"\nhardware = {{ preset = \
         \"server-ddr5-cxl\", node.cores = 4, node.caches.l2 = {{ size = \"64K\", ways = 16, \
         line_bytes = 64, latency_cycles = 15 }}, node.caches.llc = {{ size = \"512K\", ways = 16, \
         line_bytes = 64, latency_cycles = 70 }} }}\n[[groups]]\nname = \"g\"\nfast_ratio = \
         0.5\npage_size = \"4K\"\n[groups.workload]\nkind = \"program\"\nname = \
         \"{program}\"\nfootprint_mib = {footprint_mib}\noptions = {options}\n"
    );
    let experiment = Experiment::parse(&text, ".".into()).map_err(|e| anyhow::anyhow!("{e}"))?;
    profile(&experiment, &path, 20_000, &mut Quiet)?;
    Ok(path)
}

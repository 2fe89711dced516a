//! Every policy on programs of the papers' classes: slowdown at interval fidelity, from one profile a
//! program, at four shares of fast memory.
//!
//! Terrace's own policy was designed on the first sets: they are not blind. The sets called `new`
//! were run once, with the parameters of that time. `docs/policies.md` has the tables and the
//! reason for the programs' run lengths here.
//!
//! `TERRACE_PROFILES` names a folder in which profiles are kept; `TERRACE_CASES` a file for the
//! table of all cases. The experiment also runs in pieces: [`choice`] lists the variables, and
//! [`known`] keeps figures from one piece to the next.

mod choice;
mod evaluate;
mod known;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use terrace_core::policy;
use terrace_experiments::Experiment;
use terrace_experiments::profile::profile;
use terrace_experiments::run::Quiet;

use super::Part;
use crate::measure::Report;
use choice::Choice;
use evaluate::{Setup, Signals, Workload};
use known::Known;

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

/// Policies that are compared; shares of the gain are counted from the first.
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

/// Terrace's policy without one of its parts, and its signals: some parts are for machines that do
/// not sample reads.
fn ablations() -> impl Iterator<Item = (&'static str, Value, Signals)> {
    let sampled = [
        ("without the cost per slow read", json!({"weigh_reads": false})),
        ("without the long horizon", json!({"keep_long": false})),
        ("without the retreat", json!({"retreat": false})),
        ("without operations of regions", json!({"operation_bytes": 4096})),
        ("without taking regions as alike", json!({"regions": false})),
        ("without the age of phases", json!({"phase_age_factor": 1e6})),
        ("without the cost of moving back", json!({"return_cost_share": 0})),
        ("without weighing costs", json!({"weigh_costs": false})),
        ("without following phases", json!({"follow_phases": false})),
        ("long horizon only", json!({"horizon": "long"})),
    ];
    let counted = [
        ("without counting reads", json!({"count_reads": false})),
        ("without the gain discount", json!({"gain_discount": 1})),
    ];
    let sampled = sampled.into_iter().map(|(name, of)| (name, of, Signals::Samples));
    sampled.chain(counted.into_iter().map(|(name, of)| (name, of, Signals::Counters)))
}

/// Minimum run length of a program with all memory fast: some 40 times the time to move a footprint
/// of 8 MB once (`docs/policies.md`).
const MINIMUM_RUN_LENGTH_MS: u64 = 640;

/// A footprint of 8 MB moves in some 16 ms: the ratio to a period of 1 ms is that of 32 GB of huge
/// pages to one of a second.
const SETUP: Setup = Setup { period_ms: 1, moved_pages: 32, reads_per_sample: 16, seed: 1 };

/// One run: a policy with parameters, and its signals.
struct Column {
    /// The name of its figures in the tables.
    name: String,
    policy: &'static str,
    parameters: Value,
    signals: Signals,
}

/// The bound's place among the figures.
const BOUND: &str = "bound";

/// All runs of a case, without the bound.
fn columns() -> Vec<Column> {
    let of =
        |name: String, policy, parameters, signals| Column { name, policy, parameters, signals };
    let policies = POLICIES.iter().map(|&p| of(p.to_owned(), p, Value::Null, Signals::Samples));
    let parts = ablations().map(|(name, parameters, signals)| {
        of(format!("terrace {name}"), "terrace", parameters, signals)
    });
    let less = |signals: Signals| POLICIES.into_iter().map(move |p| (p, signals));
    let less = [Signals::Counters, Signals::Bits].into_iter().flat_map(less);
    // First touch and the oracle are the same with all signals.
    let less = less.filter(|(p, _)| !["first-touch", "optimum"].contains(p));
    let less =
        less.map(|(p, signals)| of(format!("{p}, {}", signals.name()), p, Value::Null, signals));
    policies.chain(parts).chain(less).collect()
}

/// Slowdowns of one program at one share of fast memory.
struct Row {
    name: String,
    ratio: f64,
    passes: usize,
    of: BTreeMap<String, f64>,
}

impl Row {
    fn get(&self, column: &str) -> Option<f64> {
        self.of.get(column).copied()
    }

    fn cell(&self, column: &str) -> String {
        self.get(column).map_or_else(|| "-".to_owned(), |slowdown| format!("{slowdown:.3}"))
    }
}

fn run(report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("a folder for profiles")?;
    let kept = std::env::var_os("TERRACE_PROFILES").map(PathBuf::from);
    let folder = kept.as_deref().unwrap_or(folder.path());
    std::fs::create_dir_all(folder).context("the folder for profiles")?;
    let choice = Choice::from_environment()?;
    let mut known = Known::open(std::env::var_os("TERRACE_FIGURES").map(PathBuf::from))?;
    let columns = columns();
    let mut cases = String::from(
        "# Policies, case by case\n\nWritten by `make bench BENCH=policies` with `TERRACE_CASES` \
         naming this file: slowdowns. `policies.md` says what they mean.\n",
    );
    for (set, seed, footprint_mib, programs) in SETS.iter().filter(|set| choice.has_set(set.0)) {
        let mut rows = Vec::new();
        for (program, options) in programs.iter().filter(|p| choice.has_program(p.0)) {
            let path = profiled(program, options, *seed, *footprint_mib, folder)
                .with_context(|| format!("the profile of {program}"))?;
            let workload = Workload::read(program, &path)?.lengthened(MINIMUM_RUN_LENGTH_MS);
            for ratio in RATIOS.into_iter().filter(|&ratio| choice.has_share(ratio)) {
                let case = format!("{set} {program} {:.0}", ratio * 100.0);
                rows.push(measure(&workload, ratio, &case, &columns, &choice, &mut known)?);
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
    let part = |title: &str, columns: &[(String, String)]| {
        let any = |column: &&(String, String)| rows.iter().any(|r| r.get(&column.1).is_some());
        let columns: Vec<_> = columns.iter().filter(any).collect();
        if columns.is_empty() {
            return String::new();
        }
        let heads = columns.iter().map(|c| c.0.as_str()).collect::<Vec<_>>().join(" | ");
        let mut text = format!("{title}| program | fast | {heads} | passes |\n");
        text += &format!("|---|---|{}---|\n", "---|".repeat(columns.len()));
        for row in rows {
            let cells = columns.iter().map(|c| row.cell(&c.1)).collect::<Vec<_>>().join(" | ");
            let (name, passes) = (&row.name, row.passes);
            text += &format!("| {name} | {:.0} % | {cells} | {passes} |\n", row.ratio * 100.0);
        }
        text
    };
    let same = |name: &str| (name.to_owned(), name.to_owned());
    let of =
        |signals: Signals| columns().into_iter().filter(move |column| column.signals == signals);
    let is_part = |column: &Column| column.parameters != Value::Null;
    let policies: Vec<_> = [BOUND].into_iter().chain(POLICIES).map(same).collect();
    let part_of = |column: Column| {
        let name = column.name.strip_prefix("terrace ").unwrap_or(&column.name);
        (name.to_owned(), column.name.clone())
    };
    let parts = of(Signals::Samples).filter(is_part).map(part_of);
    let parts: Vec<_> = [same("terrace")].into_iter().chain(parts).collect();
    let mut text = format!("\n## `{set}`\n\n") + &part("", &policies);
    text += &part("\nTerrace's policy without its parts:\n\n", &parts);
    for (signals, title) in [
        (Signals::Counters, "\nWith accessed bits and counters, no samples:\n\n"),
        (Signals::Bits, "\nWith accessed bits alone:\n\n"),
    ] {
        let columns = of(signals).map(|column| match is_part(&column) {
            true => part_of(column),
            false => (column.policy.to_owned(), column.name),
        });
        text += &part(title, &[same("first-touch")].into_iter().chain(columns).collect::<Vec<_>>());
    }
    text
}

/// One program at one share of fast memory under the selected policies. Known figures are not run
/// again.
fn measure(
    workload: &Workload,
    ratio: f64,
    case: &str,
    columns: &[Column],
    choice: &Choice,
    known: &mut Known,
) -> anyhow::Result<Row> {
    let mut of = BTreeMap::new();
    for Column { name, policy, parameters, signals } in columns {
        if choice.has(policy, *signals) {
            let slowdown = known.or_run(case, name, || {
                let policy = policy::build(policy, parameters, SETUP.seed)?;
                workload.run(policy, ratio, &SETUP, *signals)
            })?;
            of.insert(name.clone(), slowdown);
        }
    }
    if choice.has(BOUND, Signals::Samples) {
        let bound = known.or_run(case, BOUND, || workload.bound(ratio, &SETUP))?;
        of.insert(BOUND.to_owned(), bound);
    }
    Ok(Row { name: workload.name.clone(), ratio, passes: workload.passes(), of })
}

/// Reports the means of a set, as far as all of its selected cases have been run.
fn tell(report: &mut Report, set: &str, rows: &[Row]) -> anyhow::Result<()> {
    let all = rows.len();
    let values = |column: &str| -> Option<Vec<f64>> {
        rows.iter().map(|row| row.get(column)).collect::<Option<Vec<_>>>().filter(|v| !v.is_empty())
    };
    let mean = |column: &str| {
        let values = values(column)?;
        Some((values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp())
    };
    let most_lost = |column: &str| -> Option<f64> {
        let (own, stay) = (values(column)?, values("first-touch")?);
        Some(own.iter().zip(stay).map(|(own, stay)| own / stay - 1.0).fold(0.0, f64::max) * 100.0)
    };
    let conditions = |of: &str| format!("{of}; geometric mean over {all} cases of the set");
    let key =
        |what: &str| format!("policies.{set}.{}", what.replace(", ", "_").replace([' ', '-'], "_"));
    let (stay, best, low) = (mean("first-touch"), mean("optimum"), mean(BOUND));
    for name in POLICIES {
        let Some(slowdown) = mean(name) else { continue };
        report.add(&key(&format!("{name}_slowdown")), slowdown, "x", &conditions("slowdown"))?;
        for (to, end, of) in
            [("share", best, "run of the offline optimum"), ("bound", low, "bound")]
        {
            let (Some(stay), Some(end)) = (stay, end) else { continue };
            let way = 100.0 * (stay - slowdown) / (stay - end);
            let what = format!("share of the way from first touch to the {of}, of the means");
            report.add(&key(&format!("{name}_{to}_percent")), way, "%", &what)?;
        }
    }
    if let Some(low) = low {
        report.add(&key("bound_slowdown"), low, "x", &conditions("bound"))?;
    }
    for Column { name, signals, .. } in columns().into_iter().skip(POLICIES.len()) {
        let what = conditions(&format!("slowdown with {}", signals.name()));
        if let Some(slowdown) = mean(&name) {
            report.add(&key(&format!("{name}_slowdown")), slowdown, "x", &what)?;
        }
        if let Some(lost) = most_lost(&name) {
            let what = "what it loses against first touch, at worst";
            report.add(&key(&format!("{name}_loss_percent")), lost, "%", what)?;
        }
    }
    // The worst distances from the best policy without an oracle trace, and from first touch.
    let rivals: Option<Vec<_>> =
        POLICIES.into_iter().filter(|&name| name != "optimum").map(values).collect();
    if let (Some(own), Some(rivals)) = (values("terrace"), rivals) {
        let best = |row: usize| rivals.iter().map(|of| of[row]).fold(f64::INFINITY, f64::min);
        let behind = |row: usize| own[row] / best(row) - 1.0;
        let near = (0..all).filter(|&row| behind(row) <= 0.02).count() as f64;
        let what = format!("of {all}, Terrace's policy is the best or within 2 % of it");
        report.add(&key("terrace_within_2_percent"), near, "cases", &what)?;
        let worst = (0..all).map(behind).fold(0.0, f64::max) * 100.0;
        let what = "how far Terrace's policy is behind the best of the others, at worst";
        report.add(&key("terrace_behind_best_percent"), worst, "%", what)?;
    }
    match most_lost("terrace") {
        Some(lost) => {
            let what = "what Terrace's policy loses against first touch, at worst";
            report.add(&key("terrace_loss_percent"), lost, "%", what)
        }
        None => Ok(()),
    }
}

/// The profile of a program in a folder; an existing one is used.
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
    // A server with CXL whose last level has the ratio to the footprint of 30 MB to half a
    // gigabyte.
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

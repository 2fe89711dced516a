//! Kind "runs": every cell is an experiment on the simulated machine, at either fidelity.
//!
//! Where the figure has profiles, each workload that is a program is run at trace fidelity once for
//! all cells that share it and its machine; the cells are then run at interval fidelity.
//!
//! Measures are the numeric columns of the run's tables (`runs`; of `hardware` the sums over the
//! run), and these: `performance` (1 over `slowdown`), `pair_performance` and `geomean_performance`
//! (of two groups, of all), `hit_ratio_of_all` (the hit ratio of the adaptive-migration-policy paper,
//! section 3.2), `chose_POLICY_share` and `operations_POLICY_share` (of periods, and of
//! migration operations, in which an adaptive policy applied it), `settled_periods`, and the
//! measures that [`super::ratios`] derives. `main_duration_ms`, and `main_` before a column of
//! `hardware`, are of the program after its start-up ([`super::main_phase`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value as Json;
use terrace_experiments::Experiment;
use terrace_experiments::file::Fidelity;
use terrace_experiments::profile::profile;
use terrace_experiments::run::{Event, Events, Quiet, Request};
use terrace_experiments::runner::run;
use terrace_identity::StableHash;
use terrace_results::{HardwareRow, PeriodRow, RunRow, read};
use toml::{Table, Value};

use super::main_phase;
use super::ratios::made;
use super::{Cell, Job, Kind};
use crate::claims::geomean;
use crate::data::Data;

pub(super) const KIND: Kind = Kind {
    name: "runs",
    summary: "experiments on the simulated machine, at trace fidelity or, with profiles, at interval fidelity",
    has_seed: true,
    make,
};

fn make(job: &Job<'_>, events: &mut dyn Events) -> anyhow::Result<Data> {
    let mut data = job.empty();
    let cells = job.cells();
    let experiments = prepare(job, &cells, events)?;
    events.event(Event::Stage(&format!("{}: {} runs", job.figure.name, cells.len())));
    let pairs: Vec<_> = cells.iter().zip(&experiments).collect();
    let measured =
        terrace_jobs::try_all(&pairs, job.jobs, |(cell, e)| measure(job, cell, (*e).clone()))?;
    for (cell, measured) in cells.iter().zip(measured) {
        for name in &job.figure.measures {
            if let Some(value) = measured.value(name) {
                data.put(&cell.row, &cell.column, name, value);
            }
        }
    }
    Ok(data)
}

/// The experiments of the cells, with profiles in place of programs where the figure has them.
pub(super) fn prepare(
    job: &Job<'_>,
    cells: &[Cell],
    events: &mut dyn Events,
) -> anyhow::Result<Vec<Experiment>> {
    let mut experiments = Vec::new();
    let tables = with_profiles(job, cells.iter().map(|cell| cell.settings.clone()), events)?;
    for (cell, mut settings) in cells.iter().zip(tables) {
        settings.insert("name".to_owned(), job.figure.name.replace('/', "-").into());
        let text = toml::to_string(&settings)?;
        let mut experiment = Experiment::parse(&text, PathBuf::from("."))
            .with_context(|| format!("row '{}', column '{}'", cell.row, cell.column))?;
        experiment.slowdown = job.figure.measures.iter().any(|m| needs_slowdown(m));
        experiments.push(experiment);
    }
    Ok(experiments)
}

/// Whether a measure compares with a run that has all memory fast. Others do not need that run.
fn needs_slowdown(measure: &str) -> bool {
    ["slowdown", "performance", "projection", "projected"].iter().any(|part| measure.contains(part))
}

/// A profile to be made: its path, the program's name, and the experiment of it.
struct ToProfile {
    path: PathBuf,
    name: String,
    alone: Table,
}

/// Experiments with profiles in place of their programs, where the figure has them. Missing
/// profiles are made, several at a time: every one is a file of its own.
pub(super) fn with_profiles(
    job: &Job<'_>,
    tables: impl Iterator<Item = Table>,
    events: &mut dyn Events,
) -> anyhow::Result<Vec<Table>> {
    let mut tables: Vec<Table> = tables.collect();
    let Some(wanted) = &job.figure.profile else { return Ok(tables) };
    let mut missing: Vec<ToProfile> = Vec::new();
    for table in &mut tables {
        for one in profiled(job, table, wanted.interval_references)? {
            if !one.path.exists() && missing.iter().all(|m| m.path != one.path) {
                events
                    .event(Event::Stage(&format!("{}: profile of {}", job.figure.name, one.name)));
                missing.push(one);
            }
        }
    }
    let profiles = job.profiles();
    std::fs::create_dir_all(&profiles).with_context(|| format!("making {}", profiles.display()))?;
    terrace_jobs::try_all(&missing, job.jobs, |one| {
        let experiment = Experiment::parse(&toml::to_string(&one.alone)?, PathBuf::from("."))?
            .at_fidelity(Fidelity::Trace)?;
        profile(&experiment, &one.path, wanted.interval_references, &mut Quiet)
            .with_context(|| format!("profile of {}", one.name))
    })?;
    Ok(tables)
}

/// Puts profiles in place of an experiment's programs, and returns them.
fn profiled(
    job: &Job<'_>,
    settings: &mut Table,
    interval_references: u64,
) -> anyhow::Result<Vec<ToProfile>> {
    let whole = settings.clone();
    let mut profiles = Vec::new();
    let Some(Value::Array(groups)) = settings.get_mut("groups") else { return Ok(profiles) };
    for group in groups.iter_mut().filter_map(Value::as_table_mut) {
        if !is_program(group) {
            continue;
        }
        let mut alone = whole.clone();
        alone.insert("groups".to_owned(), Value::Array(vec![unmanaged(group)]));
        alone.remove("policies");
        alone.insert("name".to_owned(), "profiled".into());
        same_costs(&mut alone, &job.figure.experiment);
        let name = format!(
            "{:016x}.tprof",
            key(&alone, interval_references, terrace_identity::build().sources)?
        );
        let path = std::path::absolute(job.profiles().join(name))?;
        let mut workload = Table::new();
        workload.insert("kind".to_owned(), "profile".into());
        workload.insert("path".to_owned(), path.display().to_string().into());
        let program = group.insert("workload".to_owned(), Value::Table(workload));
        let name = program.as_ref().and_then(|w| w.get("name")?.as_str()).unwrap_or("program");
        profiles.push(ToProfile { path, name: name.to_owned(), alone });
    }
    if let Some(machine) = settings.get_mut("machine").and_then(Value::as_table_mut) {
        for key in ["fidelity", "depth", "hardware", "simulation"] {
            machine.remove(key);
        }
        // The operating system's costs are kept: moves are played at interval fidelity too, where
        // the experiment has a key of its own for them.
    }
    Ok(profiles)
}

/// Costs of moves do not affect a program without moves: they belong to the figure, so that cells
/// which differ in them share profiles.
fn same_costs(alone: &mut Table, figure: &Table) {
    let own = figure.get("machine").and_then(|m| m.get("os")).and_then(Value::as_table);
    let os = alone.get_mut("machine").and_then(|m| m.get_mut("os")).and_then(Value::as_table_mut);
    let Some(os) = os else { return };
    for key in ["costs", "migration"] {
        match own.and_then(|own| own.get(key)) {
            Some(value) => os.insert(key.to_owned(), value.clone()),
            None => os.remove(key),
        };
    }
}

fn is_program(group: &Table) -> bool {
    group.get("workload").and_then(|w| w.get("kind")).and_then(Value::as_str) == Some("program")
}

/// The group for profiling: without keys that only concern its management.
fn unmanaged(group: &Table) -> Value {
    let mut group = group.clone();
    const MANAGEMENT: [&str; 7] = [
        "policy",
        "moved_pages_per_period",
        "tables",
        "start_ms",
        "stop_ms",
        "stop_after_start_up_of",
        "fast",
    ];
    for key in MANAGEMENT {
        group.remove(key);
    }
    group.insert("fast_ratio".to_owned(), 1.0.into());
    group.insert("name".to_owned(), "profiled".into());
    Value::Table(group)
}

/// Identifies a profile: equal for the same program and machine, by the same build.
fn key(experiment: &Table, interval_references: u64, sources: &str) -> anyhow::Result<u64> {
    let mut hash = StableHash::new();
    let mut experiment = experiment.clone();
    // Names and lengths do not affect the program.
    for name in ["name", "description", "period_ms", "period_us", "periods"] {
        experiment.remove(name);
    }
    hash.add_part(toml::to_string(&experiment)?.as_bytes());
    hash.add_part(&interval_references.to_le_bytes());
    hash.add_part(sources.as_bytes());
    Ok(hash.value())
}

/// The policies that adaptive ones choose among.
const ADAPTED: [&str; 6] =
    ["lru", "lfu", "random", "granularity-4k", "granularity-64k", "granularity-2m"];

/// The measured values of one cell.
struct Measured {
    /// The numeric columns of the run's rows: the first group's under their names, every group's
    /// under GROUP.COLUMN.
    columns: BTreeMap<String, f64>,
}

impl Measured {
    fn value(&self, measure: &str) -> Option<f64> {
        match measure {
            "performance" => Some(1.0 / self.columns.get("slowdown")?),
            // Accessed pages in fast memory over all pages: over the run it is the product, as long as
            // the number of pages stays.
            "hit_ratio_of_all" => {
                Some(self.columns.get("hit_ratio")? * self.columns.get("accessed_ratio")?)
            }
            "pair_performance" => {
                let both =
                    self.columns.get("first.slowdown")? * self.columns.get("second.slowdown")?;
                Some(1.0 / both.sqrt())
            }
            "geomean_performance" => {
                let slowdowns = self.columns.iter().filter(|(name, _)| name.ends_with(".slowdown"));
                let inverse: Vec<f64> = slowdowns.map(|(_, s)| 1.0 / s).collect();
                (!inverse.is_empty()).then(|| geomean(&inverse))
            }
            other => {
                let column = |name: &str| self.columns.get(name).copied();
                let of_main = |name: &str| column(&format!("{}{name}", main_phase::PREFIX));
                column(other).or_else(|| made(other, &column)).or_else(|| {
                    other.strip_prefix(main_phase::PREFIX).and_then(|name| made(name, &of_main))
                })
            }
        }
    }
}

fn measure(job: &Job<'_>, cell: &Cell, experiment: Experiment) -> anyhow::Result<Measured> {
    let describe = || format!("row '{}', column '{}'", cell.row, cell.column);
    run_cell(job, cell, experiment).and_then(|out| measured(&out)).with_context(describe)
}

/// Runs a cell's experiment, unless an earlier figure has run the same, or an earlier command of this
/// build the same cell; returns the folder with its results.
pub(super) fn run_cell(
    job: &Job<'_>,
    cell: &Cell,
    experiment: Experiment,
) -> anyhow::Result<PathBuf> {
    if let Some(out) = job.run_cache.run_before(&experiment) {
        return Ok(out);
    }
    let plain = |name: &str| name.replace(['/', ' '], "-");
    let out = job.folder.join("runs").join(plain(&cell.row)).join(plain(&cell.column));
    // A user's own figure may read files, whose contents are not known here.
    let is_known = !job.figure.name.starts_with("own/");
    if !(is_known && job.run_cache.was_left(&experiment, &out)) {
        job.run_cache.changes(&out)?;
        run(Request::simulated(experiment.clone(), out.clone()), &mut Quiet)?;
    }
    job.run_cache.was_run(&experiment, &out)?;
    Ok(out)
}

fn measured(out: &Path) -> anyhow::Result<Measured> {
    let mut columns = BTreeMap::new();
    let mut put = |group: &str, first: bool, name: &str, value: f64| {
        if first {
            columns.insert(name.to_owned(), value);
        }
        columns.insert(format!("{group}.{name}"), value);
    };
    let rows: Vec<RunRow> = read(out)?;
    for (index, row) in rows.iter().enumerate() {
        if let Json::Object(fields) = serde_json::to_value(row)? {
            for (name, value) in fields {
                if let Some(value) = value.as_f64() {
                    put(&row.group, index == 0, &name, value);
                }
            }
        }
    }
    let periods: Vec<PeriodRow> = read(out)?;
    let hardware: Vec<HardwareRow> =
        if terrace_results::path::<HardwareRow>(out).exists() { read(out)? } else { Vec::new() };
    for (index, row) in rows.iter().enumerate() {
        let first = index == 0;
        let group = row.group.as_str();
        let of_group = || periods.iter().filter(|p| p.group == group);
        let count = of_group().count().max(1) as f64;
        let operations = of_group().map(|p| p.migration_operations).sum::<u64>().max(1) as f64;
        for policy in ADAPTED {
            let chosen = || of_group().filter(|p| p.applied == policy);
            put(group, first, &format!("chose_{policy}_share"), chosen().count() as f64 / count);
            let by = chosen().map(|p| p.migration_operations).sum::<u64>() as f64;
            put(group, first, &format!("operations_{policy}_share"), by / operations);
        }
        for (name, value) in settled(&of_group().collect::<Vec<_>>()) {
            put(group, first, &name, value);
        }
        let of_group: Vec<&PeriodRow> = of_group().collect();
        let hardware: Vec<&HardwareRow> = hardware.iter().filter(|h| h.group == group).collect();
        for (name, value) in sums(&hardware)? {
            put(group, first, &name, value);
        }
        if let Some(main) = main_phase::of(row, &of_group, &hardware) {
            put(group, first, &format!("{}duration_ms", main_phase::PREFIX), main.duration_ms);
            for (name, value) in sums(&hardware[main.first_row..])? {
                put(group, first, &format!("{}{name}", main_phase::PREFIX), value);
            }
        }
    }
    Ok(Measured { columns })
}

/// What the columns of these rows come to.
fn sums(rows: &[&HardwareRow]) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for row in rows {
        let Json::Object(fields) = serde_json::to_value(row)? else { continue };
        for (name, value) in fields {
            let Some(value) = value.as_f64() else { continue };
            // Placement is a state, every other column an amount.
            let is_state = name.ends_with("_table_pages");
            let sum = sums.entry(name).or_default();
            *sum = if is_state { value } else { *sum + value };
        }
    }
    // A ratio of the whole run is no sum of those of its periods.
    sums.retain(|name, _| !name.ends_with("_ratio"));
    Ok(sums)
}

/// In how many periods after the middle of the run the choice that is made at its end was made for
/// the rest of it: "settled_periods", where a mix's second program begins in the middle.
fn settled(periods: &[&PeriodRow]) -> Vec<(String, f64)> {
    let Some(last) = periods.last() else { return Vec::new() };
    let middle = periods.len() / 2;
    // A program that has just ended or begun may make the very last choice an exception.
    let end = periods[middle..].iter().rev().take(periods.len() / 8 + 1);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    end.for_each(|p| *counts.entry(p.applied.as_str()).or_default() += 1);
    let main = counts.iter().max_by_key(|(_, n)| **n).map_or(last.applied.as_str(), |(p, _)| p);
    let first = periods[middle..].iter().position(|p| p.applied == main);
    first.map(|n| ("settled_periods".to_owned(), n as f64)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_differ_in_what_moves_cost_share_a_profile() {
        let figure: Table = toml::from_str("machine.os.costs.preset = 'free'").unwrap();
        let of = |text: &str| {
            let mut alone: Table = toml::from_str(text).unwrap();
            same_costs(&mut alone, &figure);
            key(&alone, 1, "").unwrap()
        };
        let plain = of("machine.os.costs = { preset = 'free' }");
        let dear = "machine.os = { costs = { preset = 'free', copy_gb_per_s = 1.0 }, migration = { \
                    threads = 4 } }";
        assert_eq!(of(dear), plain);
        assert_ne!(of("machine.os = { costs = { preset = 'free' }, levels = 5 }"), plain);
    }

    #[test]
    fn another_build_takes_no_profile_of_this_one() {
        let experiment = toml::from_str("machine.os.costs.preset = 'free'").unwrap();
        let by = |sources| key(&experiment, 1, sources).unwrap();
        assert_eq!(by("0123"), by("0123"));
        assert_ne!(by("0123"), by("4567"));
    }
}

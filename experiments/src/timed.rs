//! Runs on a virtual machine with the memory clock: its hardware, the same run with all memory
//! fast, and the clock's figures in the columns of the tables.

use serde_json::json;
use terrace_lab::{ClockFigures, GuestMachine};
use terrace_results::{HardwareRow, KernelCauseRow, ResultsError, RunRow};
use terrace_simulated::hardware::presets::MachineConfig;
use terrace_timed::config::{DEFAULT_PRESET, TierSpeed, TimedConfig};
use terrace_timed::figures::{CauseFigures, Figures, TierFigures};

use crate::file::{Clock, Experiment, MachineSpec};
use crate::rows::Rows;
use crate::run::{Event, Events, Run, write_whole};
use crate::size::Size;
use terrace_core::{InputError, refuse};

/// Windows between marks before that of the first period: until programs are started, and until the
/// first period begins.
const BEFORE_PERIODS: usize = 2;

/// Windows before that of the first counted period: none after a warm-up, at whose end counting
/// begins.
pub(crate) fn before_periods(experiment: &Experiment) -> usize {
    if experiment.warm_up_periods > 0 { 0 } else { BEFORE_PERIODS }
}

/// The windows of periods among those between marks. After a warm-up counting ends with the last
/// period; otherwise there is one window more.
pub(crate) fn periods_in<'a, W>(windows: &'a [W], experiment: &Experiment) -> &'a [W] {
    let after = usize::from(experiment.warm_up_periods == 0);
    let end = windows.len().saturating_sub(after);
    windows.get(before_periods(experiment)..end).unwrap_or_default()
}

/// Group name of rows for all groups together.
const ALL_GROUPS: &str = "all";

/// The policy that moves nothing.
const NOTHING_MOVED: &str = "first-touch";

/// The hardware of the clock: the named one, or the usual processor with two tiers of the latencies
/// that the firmware reports.
pub(crate) fn hardware(wanted: &MachineSpec) -> Result<TimedConfig, InputError> {
    if let Some(table) = &wanted.hardware {
        let mut table = table.clone();
        if !table.contains_key("description") {
            table.entry("preset").or_insert_with(|| DEFAULT_PRESET.into());
        }
        let hardware = MachineConfig::try_from(table);
        return Ok(TimedConfig::of(hardware.map_err(|e| refuse!("machine.hardware: {e}"))?));
    }
    let usual = GuestMachine::default();
    let tier = |latency_ns: u32, mib_per_s: u32| TierSpeed {
        latency_ns: latency_ns.into(),
        gb_per_s: f64::from(mib_per_s) * f64::from(1 << 20) / 1e9,
    };
    let tiers = [
        tier(wanted.fast_latency_ns, usual.fast_bandwidth_mib_per_s),
        tier(wanted.slow_latency_ns, usual.slow_bandwidth_mib_per_s),
    ];
    TimedConfig::with_tiers(&tiers).map_err(InputError::new)
}

/// The rival under which nothing tracks or moves pages.
pub(crate) const NOTHING_AT_WORK: &str = "nothing";

/// Memory of its virtual machine, both tiers together.
pub(crate) fn memory_bytes(machine: &MachineSpec) -> u64 {
    let usual = GuestMachine::default();
    let size = |size: Option<Size>, usual: u64| size.map_or(usual, |size| size.0);
    size(machine.fast, usual.fast_bytes).saturating_add(size(machine.slow, usual.slow_bytes))
}

/// Whether slowdowns are measured, against a run with all memory fast.
pub(crate) fn has_reference(experiment: &Experiment) -> bool {
    experiment.machine.clock == Clock::Memory && experiment.slowdown
}

/// The same experiment with all memory fast and nothing moved.
pub(crate) fn with_all_memory_fast(experiment: &Experiment) -> Result<Experiment, InputError> {
    let mut experiment = experiment.under(NOTHING_MOVED)?;
    // A run without moves needs no warm-up.
    let measured = experiment.periods - experiment.warm_up_periods;
    experiment.warm_up_periods = experiment.warm_up_periods.min(1);
    experiment.periods = experiment.warm_up_periods + measured;
    let machine = &mut experiment.machine;
    machine.full = false;
    machine.fast = Some(Size(memory_bytes(machine)));
    for group in &mut experiment.groups {
        group.fast = None;
        group.fast_ratio = Some(1.0);
    }
    Ok(experiment)
}

/// Results of a run with all memory fast and nothing moved.
pub(crate) struct AllFast {
    /// Its groups.
    pub rows: Vec<RunRow>,
    /// Figures of its clock.
    pub clock: Option<ClockFigures>,
}

impl AllFast {
    /// Run time of this group over that of the same group here: of its programs if they ended, of
    /// one of their operations if they were ended. `None` if neither is known.
    pub fn slowdown(&self, row: &RunRow, experiment: &Experiment) -> Option<f64> {
        let fast = self.rows.iter().find(|r| r.group == row.group)?;
        let time = |row: &RunRow| {
            let duration_ms = row.duration_ms?;
            match row.operations {
                Some(operations) => (operations > 0).then(|| duration_ms / operations as f64),
                None => {
                    (row.periods + row.lost_periods < experiment.periods).then_some(duration_ms)
                }
            }
        };
        let (time, fast) = (time(row)?, time(fast)?);
        (fast > 0.0).then(|| time / fast)
    }
}

/// The clock's figures from the start of the programs, or the end of the warm-up, to the end of the
/// last period.
fn while_programs_ran(clock: &ClockFigures, experiment: &Experiment) -> Option<Figures> {
    if experiment.warm_up_periods > 0 {
        return Some(clock.total.clone());
    }
    let (first, last) = (clock.periods.first()?, clock.periods.last()?);
    (clock.periods.len() > BEFORE_PERIODS).then(|| clock.total.since(first).since(last))
}

fn ms(ns: f64) -> f64 {
    ns / 1e6
}

/// Fast memory, and all other tiers together.
fn tiers(figures: &Figures) -> (TierFigures, TierFigures) {
    let mut tiers = figures.tiers.iter().cloned();
    let fast = tiers.next().unwrap_or_default();
    let slow = tiers.fold(TierFigures::default(), |all, tier| TierFigures {
        reads: all.reads + tier.reads,
        writes: all.writes + tier.writes,
        read_ns: all.read_ns + tier.read_ns,
        stall_ns: all.stall_ns + tier.stall_ns,
        tier: tier.tier,
    });
    (fast, slow)
}

fn hit_ratio(fast: &TierFigures, slow: &TierFigures) -> f64 {
    let all = fast.reads + slow.reads;
    if all == 0 { 0.0 } else { fast.reads as f64 / all as f64 }
}

/// Adds the clock's figures, which are not known by group.
pub(crate) fn fill(row: &mut RunRow, clock: &ClockFigures, experiment: &Experiment) {
    let [_] = experiment.groups.as_slice() else { return };
    let Some(figures) = while_programs_ran(clock, experiment) else { return };
    let (fast, slow) = tiers(&figures);
    row.reference_hit_ratio = Some(hit_ratio(&fast, &slow));
    row.references = Some(figures.references);
    row.walk_ms = Some(ms(figures.walk_ns));
    row.walk_stall_ms = Some(ms(figures.walk_stall_ns));
    row.fast_stall_ms = Some(ms(fast.stall_ns));
    row.slow_stall_ms = Some(ms(slow.stall_ns));
    row.fast_loaded_ns = fast.loaded_latency_ns();
    row.slow_loaded_ns = slow.loaded_latency_ns();
    row.kernel_ms = Some(ms(figures.busy_ns[1] as f64));
}

/// Writes what the kernel's time was for.
pub(crate) fn write_causes(
    run: &Run<'_>,
    clock: &ClockFigures,
    tables: &mut dyn Rows,
) -> Result<(), ResultsError> {
    let figures = while_programs_ran(clock, &run.experiment);
    let row = |cause: CauseFigures| KernelCauseRow {
        run: run.name.clone(),
        cause: cause.cause,
        time_ms: ms(cause.busy_ns),
    };
    let causes = figures.into_iter().flat_map(|figures| figures.kernel);
    causes.map(row).try_for_each(|row| tables.kernel_cause(row))
}

/// Writes all figures of the clock, and rows of them period by period.
pub(crate) fn write(
    run: &Run<'_>,
    clock: &ClockFigures,
    all_fast: Option<&AllFast>,
    tables: &mut dyn Rows,
    events: &mut dyn Events,
) -> anyhow::Result<()> {
    let experiment = &run.experiment;
    let group = match experiment.groups.as_slice() {
        [group] => group.name.as_str(),
        _ => ALL_GROUPS,
    };
    let periods = periods_in(&clock.periods, experiment);
    for (period, figures) in (experiment.warm_up_periods..).zip(periods) {
        tables.hardware(hardware_row(&run.name, group, period, figures))?;
    }
    write_causes(run, clock, tables)?;
    let document = json!({
        "hardware": hardware(&experiment.machine)?,
        "while_programs_ran": while_programs_ran(clock, experiment),
        "clock": clock,
        "all_fast": all_fast.map(|all_fast| {
            let durations = all_fast.rows.iter().map(|row| (row.group.clone(), row.duration_ms));
            json!({
                "duration_ms": durations.collect::<std::collections::BTreeMap<_, _>>(),
                "while_programs_ran": all_fast.clock.as_ref().and_then(|clock| while_programs_ran(clock, experiment)),
            })
        }),
    });
    write_whole(&run.clock(), &serde_json::to_vec_pretty(&document)?)?;
    let line = clock.line();
    events.event(Event::Note(&format!("{line} ({})", run.clock().display())));
    Ok(())
}

fn hardware_row(run: &str, group: &str, period: u64, figures: &Figures) -> HardwareRow {
    let (fast, slow) = tiers(figures);
    HardwareRow {
        run: run.to_owned(),
        group: group.to_owned(),
        period,
        references: figures.references,
        instructions: figures.instructions.iter().sum(),
        compute_ms: ms(figures.compute_ns),
        walk_stall_ms: ms(figures.walk_stall_ns),
        cache_stall_ms: ms(figures.cache_stall_ns.iter().sum()),
        fast_stall_ms: ms(fast.stall_ns),
        slow_stall_ms: ms(slow.stall_ns),
        store_stall_ms: ms(figures.store_stall_ns),
        kernel_ms: Some(ms(figures.busy_ns[1] as f64)),
        walks: figures.walks,
        walk_ms: ms(figures.walk_ns),
        fast_reads: fast.reads,
        slow_reads: slow.reads,
        fast_loaded_ns: fast.loaded_latency_ns(),
        slow_loaded_ns: slow.loaded_latency_ns(),
        fast_writes: fast.writes,
        slow_writes: slow.writes,
        reference_hit_ratio: hit_ratio(&fast, &slow),
        ..HardwareRow::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const TWO_GROUPS: &str = "name = \"e\"\nperiod_ms = 100\nperiods = 6\n\
        [machine]\nclock = \"memory\"\nslow = \"512M\"\n\
        [[groups]]\nname = \"a\"\nfast = \"64M\"\npolicy = \"lru\"\nworkload = { kind = \"zipf\" }\n\
        [[groups]]\nname = \"b\"\nfast_ratio = 0.1\nworkload = { kind = \"zipf\" }\n";

    fn experiment(text: &str) -> Experiment {
        Experiment::parse(text, PathBuf::from(".")).unwrap()
    }

    fn one_group() -> Experiment {
        let mut one = experiment(TWO_GROUPS);
        one.groups.truncate(1);
        one
    }

    fn row(group: &str, operations: Option<u64>, duration_ms: f64, periods: u64) -> RunRow {
        RunRow {
            group: group.to_owned(),
            operations,
            duration_ms: Some(duration_ms),
            periods,
            ..RunRow::default()
        }
    }

    #[test]
    fn with_all_memory_fast_nothing_is_slow_or_moved() {
        let fast = with_all_memory_fast(&experiment(TWO_GROUPS)).unwrap();
        assert_eq!(fast.machine.fast, Some(Size((1024 + 512) << 20)));
        for group in &fast.groups {
            assert_eq!((group.fast, group.fast_ratio), (None, Some(1.0)));
            assert_eq!(group.policy, "first-touch");
        }
    }

    #[test]
    fn with_all_memory_fast_as_much_is_measured_after_a_short_warm_up() {
        let text = TWO_GROUPS.replace("periods = 6", "periods = 60\nwarm_up_periods = 50");
        let text = text.replace("fast_ratio = 0.1", "fast = \"8M\"");
        let full = experiment(&text).on_a_full_node().unwrap();
        let fast = with_all_memory_fast(&full).unwrap();
        assert_eq!((fast.warm_up_periods, fast.periods), (1, 11));
        // Fast memory is filled neither here nor in the guest.
        assert!(full.machine.full && !fast.machine.full);
        assert!(!fast.on_a_full_node().unwrap().machine.full);
    }

    #[test]
    fn windows_of_periods_are_distinguished_from_those_around_them() {
        let windows = [0, 1, 2, 3, 4];
        assert_eq!(periods_in(&windows, &one_group()), [2, 3]);
        assert_eq!(periods_in(&windows[..2], &one_group()), [0; 0]);
        let warmed = Experiment { warm_up_periods: 1, ..one_group() };
        assert_eq!(periods_in(&windows, &warmed), windows);
    }

    #[test]
    fn slowdown_is_of_the_same_work() {
        let all_fast = AllFast {
            rows: vec![row("a", None, 200.0, 2), row("b", Some(100), 600.0, 6)],
            clock: None,
        };
        let experiment = experiment(TWO_GROUPS);
        let slowdown = |row: RunRow| all_fast.slowdown(&row, &experiment);
        assert_eq!(slowdown(row("a", None, 300.0, 3)), Some(1.5));
        // It was ended with the last period: its run time is unknown.
        assert_eq!(slowdown(row("a", None, 600.0, 6)), None);
        // As long, with half the work.
        assert_eq!(slowdown(row("b", Some(50), 600.0, 6)), Some(2.0));
        assert_eq!(slowdown(row("b", Some(0), 600.0, 6)), None);
        assert_eq!(slowdown(row("c", None, 300.0, 3)), None);
    }

    /// Figures of windows that read so many lines of each tier.
    fn clock(windows: &[[u64; 2]]) -> ClockFigures {
        let figures = |reads: [u64; 2]| Figures {
            time_ns: 1000 * (reads[0] + reads[1]),
            references: 3 * (reads[0] + reads[1]),
            busy_ns: [0, 1_000_000 * reads[1]],
            tiers: (0..2)
                .map(|tier| TierFigures {
                    reads: reads[tier],
                    read_ns: 100.0 * (tier as f64 + 1.0) * reads[tier] as f64,
                    stall_ns: 1e6 * reads[tier] as f64,
                    ..TierFigures::default()
                })
                .collect(),
            ..Figures::default()
        };
        let sum = windows.iter().fold([0, 0], |a, b| [a[0] + b[0], a[1] + b[1]]);
        let periods = windows.iter().map(|window| figures(*window)).collect();
        ClockFigures { total: figures(sum), periods, host_cpu_ns: Vec::new(), complete: true }
    }

    #[test]
    fn what_the_clock_counted_is_of_the_time_of_the_programs_and_of_one_group() {
        // Preparation, start, two periods, end.
        let clock = clock(&[[1000, 1000], [10, 0], [20, 10], [30, 30], [500, 500]]);
        let mut of_one = RunRow::default();
        fill(&mut of_one, &clock, &one_group());
        assert_eq!(of_one.references, Some(300));
        assert_eq!(of_one.reference_hit_ratio, Some(0.6));
        assert_eq!((of_one.fast_stall_ms, of_one.slow_stall_ms), (Some(60.0), Some(40.0)));
        assert_eq!((of_one.fast_loaded_ns, of_one.slow_loaded_ns), (Some(100.0), Some(200.0)));
        assert_eq!(of_one.kernel_ms, Some(40.0));
        let mut of_two = RunRow::default();
        fill(&mut of_two, &clock, &experiment(TWO_GROUPS));
        assert_eq!(of_two.references, None, "nobody knows which group's");
    }

    #[test]
    fn hardware_is_refused_in_one_line() {
        for (hardware, named) in [
            ("preset = \"abacus\"", "abacus"),
            ("node.caches.l1.ways = 0", "ways"),
            ("node.nosuch = 1", "nosuch"),
        ] {
            let text = format!("{TWO_GROUPS}[machine.hardware]\n{hardware}\n");
            let spec = experiment(&text).machine;
            let refused = hardware_error(&spec);
            assert!(refused.contains(named) && refused.lines().count() == 1, "{refused}");
        }
    }

    fn hardware_error(spec: &MachineSpec) -> String {
        let config = match hardware(spec) {
            Err(refused) => return refused.to_string(),
            Ok(config) => config.sized(1, &[1 << 30; 2]),
        };
        config.check().expect_err("hardware that cannot be").to_string()
    }
}

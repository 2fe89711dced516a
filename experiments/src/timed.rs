//! Runs on a virtual machine with the memory clock: its hardware, the same run with all memory
//! fast, and the clock's figures in the columns of the tables.

use serde_json::json;
use terrace_lab::{ClockFigures, GuestMachine};
use terrace_linux::samples::SampleReads;
use terrace_results::{HardwareRow, KernelCauseRow, ResultsError, RunRow};
use terrace_simulated::hardware::presets::MachineConfig;
use terrace_timed::config::{DEFAULT_PRESET, TierSpeed, TimedConfig};
use terrace_timed::figures::{CauseFigures, Figures, TierFigures};
use terrace_timed::windows::WindowPlan;

use crate::file::{Clock, Experiment, MachineSpec};
use crate::rows::Rows;
use crate::run::{Event, Events, Run, write_whole};
use crate::size::Size;
use crate::slowdown::{AllFast, counts_instructions};
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

/// Lengths of a warm-up and from sampling window to sampling window, in windows, where none are set.
const WARM_UP_TIMES: u64 = 2;
const INTERVAL_TIMES: u64 = 30;

/// Group name of rows for all groups together.
const ALL_GROUPS: &str = "all";

/// The policy that moves nothing.
const NOTHING_MOVED: &str = "first-touch";

/// The hardware of the clock: the named one, or the usual processor with two tiers of the latencies
/// that the firmware reports.
pub(crate) fn hardware(experiment: &Experiment) -> Result<TimedConfig, InputError> {
    let windows = windows(experiment)?;
    let wanted = &experiment.machine;
    if let Some(table) = &wanted.hardware {
        let mut table = table.clone();
        if !table.contains_key("description") {
            table.entry("preset").or_insert_with(|| DEFAULT_PRESET.into());
        }
        let hardware = MachineConfig::try_from(table);
        let hardware = hardware.map_err(|e| refuse!("machine.hardware: {e}"))?;
        return Ok(TimedConfig { windows, ..TimedConfig::of(hardware) });
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
    let config = TimedConfig::with_tiers(&tiers).map_err(InputError::new)?;
    Ok(TimedConfig { windows, ..config })
}

/// The sampling windows, if everything is not timed in detail.
fn windows(experiment: &Experiment) -> Result<Option<WindowPlan>, InputError> {
    let wanted = &experiment.machine;
    let keys = [wanted.window_warm_up_instructions, wanted.window_interval_instructions];
    if wanted.window_instructions == 0 {
        return match keys {
            [None, None] => Ok(None),
            _ => Err(refuse!(
                "machine.window_instructions = 0: expected a number, as its warm-up or interval is \
                 set"
            )),
        };
    }
    if wanted.sample_reads.or(0) > 0 {
        return Err(refuse!(
            "machine.window_instructions with sample_reads: expected one of them, as reads between \
             windows are not observed"
        ));
    }
    let window_instructions = u64::from(wanted.window_instructions);
    let or = |key: Option<u32>, times: u64| key.map_or(times * window_instructions, u64::from);
    let plan = WindowPlan {
        window_instructions,
        warm_up_instructions: or(keys[0], WARM_UP_TIMES),
        interval_instructions: or(keys[1], INTERVAL_TIMES),
        seed: experiment.seed,
    };
    plan.check().map_err(|e| refuse!("machine: {e}"))?;
    Ok(Some(plan))
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
    // A run without moves needs no warm-up. Where instructions of a program are compared, it has to
    // get as far before them as in the other runs.
    if !experiment.groups.iter().any(|group| !group.cpus.is_empty()) {
        let measured = experiment.periods - experiment.warm_up_periods;
        experiment.warm_up_periods = experiment.warm_up_periods.min(1);
        experiment.periods = experiment.warm_up_periods + measured;
    }
    // `full` as in the other runs: on a node with much free memory the kernel's buffers are spread over
    // more of it, and miss the caches more often.
    let machine = &mut experiment.machine;
    machine.sample_reads = SampleReads::NONE;
    machine.fast = Some(Size(memory_bytes(machine)));
    for group in &mut experiment.groups {
        group.fast = None;
        group.fast_ratio = Some(1.0);
    }
    Ok(experiment)
}

/// The clock's figures from the start of the programs, or the end of the warm-up, to the end of the
/// last period.
fn while_programs_ran(clock: &ClockFigures, experiment: &Experiment) -> Option<Figures> {
    raw_while_programs_ran(clock, experiment).map(|figures| figures.extrapolated())
}

/// The same with the counters of sampling windows only, where there are any.
fn raw_while_programs_ran(clock: &ClockFigures, experiment: &Experiment) -> Option<Figures> {
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
        misses: [0, 1].map(|side| all.misses[side] + tier.misses[side]),
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
    if row.operations.is_none() && counts_instructions(&experiment.groups[0], experiment) {
        row.duration_ms = Some(ms(figures.time_ns as f64));
    }
    row.reference_hit_ratio = Some(hit_ratio(&fast, &slow));
    [row.program_hit_ratio, row.kernel_hit_ratio] = figures.first_tier_shares();
    row.references = Some(figures.references);
    row.walk_ms = Some(ms(figures.walk_ns));
    row.walk_stall_ms = Some(ms(figures.walk_stall_ns));
    row.fast_stall_ms = Some(ms(fast.stall_ns));
    row.slow_stall_ms = Some(ms(slow.stall_ns));
    row.fast_loaded_ns = fast.loaded_latency_ns();
    row.slow_loaded_ns = slow.loaded_latency_ns();
    row.kernel_ms = Some(ms(figures.busy_ns[1] as f64));
}

/// Adds how well a run time that was estimated from sampling windows is known, and from how much.
pub(crate) fn fill_error(row: &mut RunRow, clock: &ClockFigures, experiment: &Experiment) {
    let Some(figures) = raw_while_programs_ran(clock, experiment) else { return };
    let Some(windows) = &figures.windows else { return };
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let all = figures.instructions.iter().sum::<u64>() as f64;
    let estimated: f64 = windows.sums.iter().map(|sums| sums.estimated).sum();
    row.sampled_ratio = Some(share(all - estimated, all));
    let busy_ns = figures.busy_ns.iter().sum::<u64>() as f64;
    let error = windows.error_ns().map(|error_ns| share(error_ns, busy_ns));
    row.duration_error_ms = error.zip(row.duration_ms).map(|(error, ms)| error * ms);
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
        "hardware": hardware(experiment)?,
        "while_programs_ran": while_programs_ran(clock, experiment),
        "clock": clock,
        "all_fast": all_fast.map(|all_fast| {
            let durations = all_fast.rows.iter().map(|row| (row.group.clone(), row.duration_ms));
            json!({
                "work": all_fast.clock.as_ref().and_then(|clock| clock.work.as_ref()),
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
    let figures = &figures.extrapolated();
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

    use terrace_timed::windows::{WindowFigures, WindowSums};
    use terrace_timed::work::WorkFigures;

    use super::*;
    use crate::slowdown::{Slowdown, work};

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
        // What is left of fast memory is filled once the programs have theirs.
        assert!(full.fills_before() && fast.machine.full && !fast.fills_before());
        let in_guest = fast.on_a_full_node().unwrap();
        assert!(in_guest.machine.full && !in_guest.fills_before());
    }

    /// Figures of so much time in which two processors executed so many instructions of programs.
    fn executed(time_ns: u64, program_instructions: [u64; 2]) -> ClockFigures {
        let program_instructions = program_instructions.to_vec();
        let total = Figures { time_ns, program_instructions, ..Figures::default() };
        ClockFigures {
            total,
            periods: Vec::new(),
            work: None,
            host_cpu_ns: Vec::new(),
            complete: true,
        }
    }

    #[test]
    fn a_program_with_processors_of_its_own_is_measured_by_its_instructions() {
        let text = TWO_GROUPS.replace("periods = 6", "periods = 6\nwarm_up_periods = 4");
        let own = text.replacen("name = \"a\"\n", "name = \"a\"\ncpus = [1]\n", 1);
        let [own, shared] = [own, text].map(|text| experiment(&text));
        let all_fast = AllFast {
            rows: vec![row("a", None, 9.0, 6)],
            periods: 6,
            clock: Some(executed(200, [50, 100])),
        };
        // What the other processor executes does not count.
        let clock = executed(200, [99, 80]);
        let slowdown = |row, experiment| all_fast.slowdown(&row, Some(&clock), experiment);
        let of = |times, of, instructions| Some(Slowdown { times, of, instructions });
        let an_instruction = of(1.25, "an instruction", None);
        assert_eq!(slowdown(row("a", None, 9.0, 6), &own), an_instruction);
        // Where its work is known, the time for the part that both have done says more.
        let with_work = |clock: ClockFigures, times_ns: &[u64]| {
            let work = WorkFigures { from_instructions: 7, times_ns: times_ns.to_vec() };
            ClockFigures { work: Some(work), ..clock }
        };
        let by_work = AllFast {
            rows: Vec::new(),
            periods: 6,
            clock: all_fast.clock.clone().map(|clock| with_work(clock, &[40, 100, 200])),
        };
        let other = with_work(clock.clone(), &[50, 130]);
        let same = of(1.3, "the same instructions", Some(2_000_000));
        assert_eq!(by_work.slowdown(&row("a", None, 9.0, 6), Some(&other), &own), same);
        assert_eq!(by_work.slowdown(&row("a", None, 9.0, 6), Some(&clock), &own), an_instruction);
        // Its own operations say more, and without a processor of its own nothing is known.
        assert_eq!(slowdown(row("a", Some(10), 9.0, 6), &own), None);
        assert_eq!(slowdown(row("a", None, 9.0, 6), &shared), None);
        // It must get as far before in the run with all memory fast.
        assert_eq!(with_all_memory_fast(&own).unwrap().warm_up_periods, 4);
        let mut alone = own.clone();
        alone.groups.truncate(1);
        let mut machine = hardware(&own).unwrap();
        machine.hardware.node.core.clock_mhz = 2500;
        let of = |experiment: &Experiment| work(experiment, &machine);
        assert_eq!(of(&alone), None, "a client counts what it serves");
        alone.groups[0].workload.kind = "command".to_owned();
        let plan = of(&alone).unwrap();
        let periods_ns = 4 * alone.period_ms * 1_000_000;
        // A tenth more than a warm-up has cycles.
        assert_eq!((plan.processors, plan.from_instructions), (vec![1], periods_ns * 11 / 4));
        assert_eq!((of(&own), of(&shared)), (None, None));
        let mut of_part = row("a", None, 9.0, 6);
        fill(&mut of_part, &executed(2_000_000, [1, 1]), &alone);
        assert_eq!(of_part.duration_ms, Some(2.0));
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
            periods: 6,
            clock: None,
        };
        let experiment = experiment(TWO_GROUPS);
        let slowdown = |row: RunRow| {
            let slowdown = all_fast.slowdown(&row, None, &experiment)?;
            Some((slowdown.times, slowdown.of))
        };
        assert_eq!(slowdown(row("a", None, 300.0, 3)), Some((1.5, "run time")));
        // It was ended with the last period: its run time is unknown.
        assert_eq!(slowdown(row("a", None, 600.0, 6)), None);
        // As long, with half the work.
        assert_eq!(slowdown(row("b", Some(50), 600.0, 6)), Some((2.0, "an operation")));
        assert_eq!(slowdown(row("b", Some(0), 600.0, 6)), None);
        assert_eq!(slowdown(row("c", None, 300.0, 3)), None);
    }

    #[test]
    fn a_program_that_a_shorter_run_with_all_memory_fast_ended_has_no_slowdown() {
        let warmed =
            experiment(&TWO_GROUPS.replace("periods = 6", "periods = 6\nwarm_up_periods = 4"));
        let periods = with_all_memory_fast(&warmed).unwrap().periods;
        assert_eq!(periods, 3);
        let slowdown = |fast_periods| {
            let rows = vec![row("a", None, 200.0, fast_periods)];
            let all_fast = AllFast { rows, periods, clock: None };
            all_fast.slowdown(&row("a", None, 500.0, 5), None, &warmed).map(|s| s.times)
        };
        assert_eq!(slowdown(2), Some(2.5));
        assert_eq!(slowdown(3), None);
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
                    misses: [reads[tier], reads[1 - tier]],
                    ..TierFigures::default()
                })
                .collect(),
            ..Figures::default()
        };
        let sum = windows.iter().fold([0, 0], |a, b| [a[0] + b[0], a[1] + b[1]]);
        let periods = windows.iter().map(|window| figures(*window)).collect();
        ClockFigures {
            total: figures(sum),
            periods,
            work: None,
            host_cpu_ns: Vec::new(),
            complete: true,
        }
    }

    #[test]
    fn what_the_clock_counted_is_of_the_time_of_the_programs_and_of_one_group() {
        // Preparation, start, two periods, end.
        let clock = clock(&[[1000, 1000], [10, 0], [20, 10], [30, 30], [500, 500]]);
        let mut of_one = RunRow::default();
        fill(&mut of_one, &clock, &one_group());
        assert_eq!(of_one.references, Some(300));
        assert_eq!(of_one.reference_hit_ratio, Some(0.6));
        assert_eq!((of_one.program_hit_ratio, of_one.kernel_hit_ratio), (Some(0.6), Some(0.4)));
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
            let refused = hardware_error(&experiment(&text));
            assert!(refused.contains(named) && refused.lines().count() == 1, "{refused}");
        }
    }

    #[test]
    fn windows_have_lengths_of_their_own_or_the_usual_ones() {
        let of = |keys: &str| {
            let text = TWO_GROUPS.replace("slow = \"512M\"", &format!("slow = \"512M\"\n{keys}"));
            let config = hardware(&experiment(&text)).map_err(|refusal| refusal.to_string())?;
            let of = |p: WindowPlan| [p.warm_up_instructions, p.interval_instructions, p.seed];
            Ok::<_, String>(config.windows.map(of))
        };
        assert_eq!(of(""), Ok(None));
        let seed = experiment(TWO_GROUPS).seed;
        assert_eq!(of("window_instructions = 10000"), Ok(Some([20_000, 300_000, seed])));
        let own = "window_instructions = 10000\nwindow_warm_up_instructions = 0\n\
                   window_interval_instructions = 50000";
        assert_eq!(of(own), Ok(Some([0, 50_000, seed])));
        for (keys, named) in [
            ("window_interval_instructions = 50000", "window_instructions = 0"),
            ("window_instructions = 10", "10 instructions"),
            ("window_instructions = 10000\nwindow_interval_instructions = 20000", "at least"),
            ("window_instructions = 10000\nsample_reads = 100", "sample_reads"),
        ] {
            let refused = of(keys).unwrap_err();
            assert!(refused.contains(named) && refused.lines().count() == 1, "{refused}");
        }
    }

    #[test]
    fn an_error_is_a_part_of_the_run_time() {
        let sums = WindowSums {
            windows: 2.0,
            n: 200.0,
            t: 1000.0,
            nn: 20_000.0,
            tt: 520_000.0,
            nt: 100_000.0,
            estimated: 1800.0,
        };
        let windows = WindowFigures { sums: [sums, WindowSums::default()], ..Default::default() };
        let error_ns = windows.error_ns().unwrap();
        let total = Figures {
            instructions: [2000, 0],
            busy_ns: [10, 0],
            windows: Some(windows),
            ..Figures::default()
        };
        let clock = |total: &Figures| ClockFigures { total: total.clone(), ..clock(&[]) };
        let warmed = Experiment { warm_up_periods: 1, ..one_group() };
        let mut of_sampled = row("a", None, 50.0, 5);
        fill_error(&mut of_sampled, &clock(&total), &warmed);
        assert_eq!(of_sampled.sampled_ratio, Some(0.1));
        let expected = error_ns / 10.0 * 50.0;
        let error = of_sampled.duration_error_ms.unwrap();
        assert!(error > 0.0 && (error - expected).abs() < 1e-9, "{error}, expected {expected}");
        let mut of_whole = row("a", None, 50.0, 5);
        fill_error(&mut of_whole, &clock(&Figures { windows: None, ..total }), &warmed);
        assert_eq!((of_whole.sampled_ratio, of_whole.duration_error_ms), (None, None));
    }

    fn hardware_error(experiment: &Experiment) -> String {
        let config = match hardware(experiment) {
            Err(refused) => return refused.to_string(),
            Ok(config) => config.sized(1, &[1 << 30; 2]),
        };
        config.check().expect_err("hardware that cannot be").to_string()
    }
}

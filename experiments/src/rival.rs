//! Runs on this host's own tiers in which a mechanism of Linux moves pages: the same programs in
//! the same control groups with the same fast memory as under a policy, and without Terrace.
//!
//! There is no tracker, so hit ratios are known only where accesses are counted. A period has the
//! fast memory of each group, and the pages that the kernel reports as migrated. These are of the
//! whole host: they are in the rows only where there is a single group.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::mm::MlockAllFlags;
use terrace_core::InputError;
use terrace_core::page::PageSize;
use terrace_engine::FastLimit;
use terrace_linux::rivals::{KernelMoves, Rival, RivalHost};
use terrace_linux::{Filled, GuardCommand, HostOptions, Source};
use terrace_recorder::nodes::{Mark, mark};
use terrace_results::{PeriodRow, RunRow};
use terrace_workloads::session::Session;

use crate::file::Experiment;
use crate::full_node::{fill_up, with_note};
use crate::host::{fill, finish_sessions, kernel_release, options, start};
use crate::kept_off::KeptOff;
use crate::measured::{Measured, WarmUpWork};
use crate::rows::Rows;
use crate::run::{Event, Events, Run, write_whole};

/// Name in the column of movers.
const MOVER: &str = "kernel";
/// A group has more fast memory than its limit from so many times that on: what its program maps of files,
/// and what the kernel keeps free beside the limit, are counted, too.
const OVER: f64 = 1.25;

/// Opens the host with the rival's settings.
fn open(
    run: &Run<'_>,
    rival: &'static dyn Rival,
    stop: &Arc<AtomicBool>,
    events: &mut dyn Events,
) -> anyhow::Result<(RivalHost, Option<Filled>)> {
    let guard = GuardCommand::this_program(["guard"]).context("finding the guard")?;
    let host_options =
        HostOptions { guard: Some(guard), stop: Some(Arc::clone(stop)), ..options(run) };
    let host = RivalHost::open(&host_options, rival).map_err(InputError::new)?;
    for conflict in host.conflicts() {
        events.event(Event::Note(&format!("{}; changed until the end of the run", conflict.found)));
    }
    let mut filled = None;
    if run.experiment.fills_before() {
        filled = Some(host.leave_free(run.experiment.fast_bytes()).map_err(InputError::new)?);
    }
    if run.experiment.machine.full {
        // What others have in fast memory stays there, and this program is among them: the kernel
        // would demote it, and the groups have its place.
        let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
        if let Err(error) = rustix::mm::mlockall(all) {
            tracing::warn!(%error, "memory of this program may be demoted, and leave room");
        }
    }
    Ok((host, filled))
}

/// Puts the host back.
fn close(host: RivalHost, experiment: &Experiment) -> anyhow::Result<()> {
    host.close()?;
    if experiment.machine.full {
        // None was locked, or all are free again: either is as before.
        let _ = rustix::mm::munlockall();
    }
    Ok(())
}

/// Runs it and adds its rows to the tables.
pub(crate) fn run(
    run: &Run<'_>,
    rival: &'static dyn Rival,
    stop: &Arc<AtomicBool>,
    tables: &mut dyn Rows,
    events: &mut dyn Events,
) -> anyhow::Result<Vec<RunRow>> {
    let experiment = &run.experiment;
    let _elsewhere = KeptOff::cpus_of(experiment)?;
    let (host, filled) = open(run, rival, stop, events)?;
    // For emulated machines whose accesses are counted; no effect elsewhere.
    let work = WarmUpWork::begin(experiment);
    let mut sessions = Vec::new();
    let mut sources = Vec::new();
    for spec in &experiment.groups {
        let (session, source) = start(run, spec, &host, events)?;
        sessions.push(session);
        sources.push(source);
    }
    let first = host.moves()?;
    host.begin().map_err(InputError::new)?;
    for session in sessions.iter_mut().flatten() {
        session.begin()?;
    }

    let mut rows = run.rows(kernel_release().as_deref(), false);
    let alone = rows.len() == 1;
    // Since the programs began.
    let mut before = KernelMoves::default();
    let mut measured = Measured::of(experiment, work);
    let mut observed = Observed::default();
    let mut held_bytes = Vec::new();
    let at_once = experiment.warm_up_periods == 0 && experiment.fills_before();
    let fill_node = |held: &[u64]| fill_fast_memory(&host, experiment, &filled, held);
    let mut unfilled = at_once.then(|| fill_node(&[])).flatten();
    mark(Mark::Period);
    let mut periods = Periods::begin(experiment);
    while measured.goes_on() && !stop.load(Ordering::Relaxed) {
        let Some(number) = periods.next(&mut sessions)? else { break };
        let begins = measured.begins();
        if begins {
            unfilled = fill_node(&held_bytes);
            observed = Observed::now(&host, &sources, first)?;
        }
        measured.between_periods(number + 1, host.topology(), sessions.iter().flatten())?;
        if !begins && !measured.is_measuring() {
            observed = Observed::now(&host, &sources, first)?;
            held_bytes.push(observed.all_bytes());
        }
        let moves = if alone { [before, observed.moves] } else { [KernelMoves::default(); 2] };
        for (row, &placed) in rows.iter_mut().zip(&observed.placed) {
            let of_period = period_row(row, number, experiment.period_ms, placed, moves);
            add(row, &of_period);
            let (period, group, applied) = (number, row.group.as_str(), rival.name());
            events.event(Event::Period { period, group, hit_ratio: f64::NAN, applied });
            tables.period(of_period)?;
        }
        before = observed.moves;
    }
    let begun = measured.end();
    if !stop.load(Ordering::Relaxed) {
        begun?;
    }
    let moved = host.moves()?.since(first);
    let names: Vec<_> = experiment.groups.iter().map(|g| g.name.as_str()).collect();
    let (results, details) = finish_sessions(&names, sessions)?;
    let specs = experiment.groups.iter().zip(&observed.placed);
    for ((row, (spec, [held_bytes, _])), result) in rows.iter_mut().zip(specs).zip(&results) {
        complete(row, rival, spec.share(), *held_bytes);
        row.notes = with_note(row.notes.take(), unfilled.as_ref());
        row.migrated_bytes = alone.then_some(moved.migrated * PageSize::Base.bytes());
        result.iter().for_each(|result| fill(row, result));
    }
    close(host, experiment)?;
    write_whole(&run.details(), &serde_json::to_vec_pretty(&details)?)?;
    rows.iter().cloned().try_for_each(|row| tables.run(row))?;
    measured.rows(&run.name).into_iter().try_for_each(|row| tables.kernel_thread(row))?;
    Ok(rows)
}

/// What the kernel has done with the groups. All mappings are read for it, which takes the time of some
/// thousand requests and which policies do not do: so it is read before what is measured begins, and
/// after it has ended.
#[derive(Default)]
struct Observed {
    /// Since the programs began.
    moves: KernelMoves,
    /// Bytes of each group in fast memory, and in all.
    placed: Vec<[u64; 2]>,
}

impl Observed {
    fn now(host: &RivalHost, sources: &[Source], first: KernelMoves) -> anyhow::Result<Self> {
        let placed = |source| host.placement(source).map(|(fast, all)| [fast, all]);
        let placed = sources.iter().map(placed).collect::<Result<_, _>>()?;
        Ok(Observed { moves: host.moves()?.since(first), placed })
    }

    /// Bytes of all groups.
    fn all_bytes(&self) -> u64 {
        self.placed.iter().map(|&[_, all]| all).sum()
    }
}

/// Fills fast memory for what is measured, where it is to be full: groups that may have all of it had so
/// many bytes in the periods of the warm-up. What to note where that was not possible.
fn fill_fast_memory(
    host: &RivalHost,
    experiment: &Experiment,
    filled: &Option<Filled>,
    held_bytes: &[u64],
) -> Option<String> {
    let take_rest = || host.take_rest(growth_bytes(held_bytes));
    let give_headroom = || filled.as_ref().map_or(Ok(()), |filled| host.give_headroom(filled));
    fill_up(experiment, give_headroom, take_rest)
}

/// By how much groups that had so many bytes in the periods of the warm-up may grow behind it: from the
/// least to the most that they had in its second half. Programs that free memory and get it again are
/// somewhere in between, and elsewhere a moment later; of the others this is next to nothing.
fn growth_bytes(held: &[u64]) -> u64 {
    let held = &held[held.len() / 2..];
    let [most, least] = [held.iter().max(), held.iter().min()].map(|b| b.copied().unwrap_or(0));
    most - least
}

/// Adds a period to the row of its group.
fn add(row: &mut RunRow, of_period: &PeriodRow) {
    row.periods += 1;
    row.pages_max = row.pages_max.max(of_period.pages);
    row.promoted_pages += of_period.promoted_pages;
    row.demoted_pages += of_period.demoted_pages;
}

/// The periods of a run by this host's clock.
struct Periods {
    due: Instant,
    length: Duration,
    ended: u64,
    programs_ended: bool,
}

impl Periods {
    fn begin(experiment: &Experiment) -> Self {
        Self {
            due: Instant::now(),
            length: Duration::from_millis(experiment.period_ms),
            ended: 0,
            programs_ended: false,
        }
    }

    /// Waits until the next one has ended and returns its number; `None` where all programs have ended.
    fn next(&mut self, sessions: &mut [Option<Session>]) -> anyhow::Result<Option<u64>> {
        if self.programs_ended {
            return Ok(None);
        }
        self.due += self.length;
        std::thread::sleep(self.due.saturating_duration_since(Instant::now()));
        // `ended` is called for all, so that each notes when its program ended.
        let ended = sessions.iter_mut().flatten().map(|s| s.ended(Duration::ZERO));
        let ended = ended.collect::<Result<Vec<_>, _>>()?;
        self.programs_ended = !ended.is_empty() && ended.iter().all(|ended| *ended);
        self.ended += 1;
        Ok(Some(self.ended - 1))
    }
}

/// A period of a group with so many bytes in fast memory, and in all, and what the kernel had moved
/// since the programs began, before the period and after it.
fn period_row(
    run: &RunRow,
    number: u64,
    period_ms: u64,
    [fast, all]: [u64; 2],
    [before, after]: [KernelMoves; 2],
) -> PeriodRow {
    let base_pages = run.page_size_bytes / PageSize::Base.bytes();
    // The kernel moves single base pages. Whole pages of the group are counted since the beginning, so
    // that the periods add up to the total: each alone would lose its remainder.
    let pages = |before: u64, after: u64| (after / base_pages).saturating_sub(before / base_pages);
    PeriodRow {
        run: run.run.clone(),
        experiment: run.experiment.clone(),
        machine: run.machine.clone(),
        policy: run.policy.clone(),
        group: run.group.clone(),
        period: number,
        time_ms: number * period_ms,
        pages: all / run.page_size_bytes,
        fast_pages: fast / run.page_size_bytes,
        promoted_pages: pages(before.promoted, after.promoted),
        demoted_pages: pages(before.demoted, after.demoted),
        applied: run.policy.clone(),
        hit_ratio: f64::NAN,
        accessed_ratio: f64::NAN,
        stability: f64::NAN,
        ..PeriodRow::default()
    }
}

/// What is to be known of a run in which a group has had more fast memory than its limit: Linux knows no
/// limits, and takes what it can get by moving other programs' memory away.
fn over_limit(row: &RunRow, limit: FastLimit, held_bytes: u64) -> String {
    let limit_bytes = match limit {
        FastLimit::Bytes(bytes) => bytes,
        FastLimit::Ratio(ratio) => (ratio * (row.pages_max * row.page_size_bytes) as f64) as u64,
    };
    if held_bytes as f64 <= OVER * limit_bytes as f64 {
        return String::new();
    }
    let [held_mib, limit_mib] = [held_bytes, limit_bytes].map(|bytes| bytes >> 20);
    format!(
        "; '{}' had {held_mib} MiB of fast memory at its end, more than its limit of {limit_mib} MiB",
        row.group
    )
}

/// Fills in the values that are known of a run without a tracker, whose group has had so many bytes of
/// fast memory at its end.
fn complete(row: &mut RunRow, rival: &dyn Rival, limit: FastLimit, held_bytes: u64) {
    row.mover = Some(MOVER.to_owned());
    row.notes = Some(rival.summary().to_owned() + &over_limit(row, limit, held_bytes));
    (row.hit_ratio, row.accessed_ratio, row.stability) = (f64::NAN, f64::NAN, f64::NAN);
    (row.applied_main, row.applied_main_share) = (rival.name().to_owned(), 1.0);
    row.fast_ratio = match (limit, row.pages_max * row.page_size_bytes) {
        (FastLimit::Ratio(ratio), _) => ratio,
        (FastLimit::Bytes(_), 0) => 0.0,
        (FastLimit::Bytes(fast), bytes) => (fast as f64 / bytes as f64).min(1.0),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_linux::rivals;

    #[test]
    fn programs_that_free_memory_may_get_it_again() {
        assert_eq!(growth_bytes(&[]), 0);
        assert_eq!(
            growth_bytes(&[10, 400, 70, 20, 70, 43, 20]),
            50,
            "what it freed in the set-up stays so"
        );
        assert_eq!(growth_bytes(&[1, 30, 99, 99, 99, 99]), 0);
    }

    #[test]
    fn what_is_not_known_without_a_tracker_is_no_number() {
        let mut row = RunRow { page_size_bytes: 2 << 20, ..RunRow::default() };
        let moves = KernelMoves { promoted: 1024, demoted: 512, migrated: 1536 };
        let moves = [KernelMoves::default(), moves];
        let period = period_row(&row, 3, 1000, [64 << 20, 192 << 20], moves);
        assert_eq!((period.pages, period.fast_pages, period.time_ms), (96, 32, 3000));
        assert_eq!((period.promoted_pages, period.demoted_pages), (2, 1));
        assert!(period.hit_ratio.is_nan() && period.stability.is_nan());
        row.pages_max = period.pages;
        let linux = rivals::find("linux").unwrap();
        complete(&mut row, linux, FastLimit::Bytes(64 << 20), 70 << 20);
        assert!(row.hit_ratio.is_nan() && (row.fast_ratio - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!((row.applied_main.as_str(), row.mover.as_deref()), ("linux", Some("kernel")));
        assert_eq!(row.notes.as_deref(), Some(linux.summary()));
        row.group = "store".to_owned();
        complete(&mut row, linux, FastLimit::Ratio(0.25), 61 << 20);
        let notes = row.notes.unwrap();
        assert!(
            notes.contains("'store' had 61 MiB") && notes.contains("limit of 48 MiB"),
            "{notes}"
        );
    }

    #[test]
    fn pages_of_periods_add_up_to_all_that_was_moved() {
        let row = RunRow { page_size_bytes: 2 << 20, ..RunRow::default() };
        let after = |periods: u64| {
            let [promoted, demoted] = [300, 100].map(|base_pages| base_pages * periods);
            KernelMoves { promoted, demoted, migrated: promoted + demoted }
        };
        let periods = (0..10).map(|number| {
            period_row(&row, number, 1000, [0, 0], [after(number), after(number + 1)])
        });
        let (promoted, demoted) = periods.fold((0, 0), |(promoted, demoted), period| {
            (promoted + period.promoted_pages, demoted + period.demoted_pages)
        });
        // 3,000 and 1,000 base pages.
        assert_eq!((promoted, demoted), (5, 1));
    }
}

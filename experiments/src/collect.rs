//! Turns the engine's reports into result tables and a recording.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use terrace_core::interfaces::MachineError;
use terrace_core::plan::{Failure, FailureReason};
use terrace_core::scan::Scan;
use terrace_engine::{Observer, PeriodReport};
use terrace_recordings::container::PartialFile;
use terrace_recordings::error::RecordingError;
use terrace_recordings::period::{GroupHeader, Header, PeriodWriter};
use terrace_results::{HardwareRow, PeriodRow, RunRow};

use crate::file::GroupSpec;
use crate::heat::{self, Heat};
use crate::rows::Rows;
use crate::run::{Event, Events, MachineKind, Run};

/// Collects one run: rows, heat map, recording.
pub(crate) struct Collector<'a> {
    period_us: u64,
    groups: Vec<Member>,
    tables: &'a mut dyn Rows,
    recording: PeriodWriter<PartialFile>,
    events: &'a mut dyn Events,
    warm_up: WarmUpRounds,
}

struct Member {
    row: RunRow,
    ratio_is_given: bool,
    heat: Heat,
    lost: u64,
    rounds: Rounds,
    /// Periods whose ratios are summed.
    measured: u64,
    /// Those of them whose processor times are.
    timed: u64,
    accessed: u64,
    hits: u64,
    accessed_ratios: f64,
    stabilities: f64,
    applied: BTreeMap<&'static str, u64>,
    tracker_ns: Option<u64>,
    daemon_ns: Option<u64>,
}

/// Rounds of the engine in one group, each of which has a period or lost some. The warm-up ends after so
/// many rounds, whatever the number of the period then.
struct Rounds {
    warm_up: WarmUpRounds,
    over: u64,
    /// Those that were over at the last report: processor times are since then.
    at_report: u64,
}

/// Rounds in the warm-up: those of the experiment, unless the run sets others. A live run's warm-up ends
/// by time.
pub(crate) type WarmUpRounds = Rc<Cell<u64>>;

impl Rounds {
    fn after(warm_up: WarmUpRounds) -> Self {
        Rounds { warm_up, over: 0, at_report: 0 }
    }

    fn lost(&mut self) {
        self.over += 1;
    }

    /// Whether this report is of a period after the warm-up, and whether its processor times are.
    fn report(&mut self) -> (bool, bool) {
        let warm_up = self.warm_up.get();
        let of_measured = (self.over >= warm_up, self.at_report >= warm_up);
        self.over += 1;
        self.at_report = self.over;
        of_measured
    }
}

impl<'a> Collector<'a> {
    /// Collects a run of these groups into these tables and into the run's recording; `events` gets
    /// an event after every period.
    pub fn new(
        run: &Run<'_>,
        kernel: &str,
        rows: Vec<RunRow>,
        tables: &'a mut dyn Rows,
        events: &'a mut dyn Events,
    ) -> Result<Self, RecordingError> {
        let experiment = &run.experiment;
        let group = |g: &GroupSpec| GroupHeader {
            name: g.name.clone(),
            policy: g.policy.clone(),
            parameters: experiment.parameters_of(&g.policy),
            policy_seed: experiment.seed,
            page_size: g.page_size.size(),
            fast_share: g.fast_ratio.unwrap_or(0.0),
        };
        let header = Header {
            created_by: terrace_identity::created_by("terrace"),
            experiment: experiment.name.clone(),
            machine: run.request.machine.name().to_owned(),
            kernel: kernel.to_owned(),
            // Recordings have whole milliseconds.
            period_ms: experiment.period_length_us().div_ceil(1000),
            seed: experiment.seed,
            leaves_out_unmovable: run.request.machine != MachineKind::Simulated,
            groups: experiment.groups.iter().map(group).collect(),
        };
        let recording = PeriodWriter::create(&run.recording(), header)?;
        let warm_up = WarmUpRounds::new(Cell::new(experiment.warm_up_periods));
        let member =
            |(row, spec): (RunRow, &GroupSpec)| Member::new(row, spec, Rc::clone(&warm_up));
        let groups = rows.into_iter().zip(&experiment.groups).map(member).collect();
        Ok(Collector {
            period_us: experiment.period_length_us(),
            groups,
            tables,
            recording,
            events,
            warm_up,
        })
    }

    /// The warm-up, if there is one, ends when its rounds are set to those that are over.
    pub fn warm_up_by_time(&self) -> WarmUpRounds {
        if self.warm_up.get() > 0 {
            self.warm_up.set(u64::MAX);
        }
        Rc::clone(&self.warm_up)
    }

    /// Adds the hardware costs of a period.
    pub fn hardware(&mut self, row: HardwareRow) -> Result<(), MachineError> {
        self.tables.hardware(row).map_err(machine_error)
    }

    /// Writes the rows of the run. `complete` adds values that are known at the end of the run.
    pub fn finish(
        self,
        mut complete: impl FnMut(usize, &mut RunRow),
    ) -> anyhow::Result<Vec<RunRow>> {
        let mut rows = Vec::new();
        for (index, member) in self.groups.into_iter().enumerate() {
            for bin in heat::rows(&member.heat, &member.row.run, &member.row.group) {
                self.tables.heat(bin)?;
            }
            let mut row = member.summary();
            complete(index, &mut row);
            self.tables.run(row.clone())?;
            rows.push(row);
        }
        self.recording.publish()?;
        Ok(rows)
    }
}

impl Member {
    fn new(row: RunRow, spec: &GroupSpec, warm_up: WarmUpRounds) -> Self {
        Member {
            heat: Heat::new(spec.page_size.size()),
            row,
            ratio_is_given: spec.fast_ratio.is_some(),
            lost: 0,
            rounds: Rounds::after(warm_up),
            measured: 0,
            timed: 0,
            accessed: 0,
            hits: 0,
            accessed_ratios: 0.0,
            stabilities: 0.0,
            applied: BTreeMap::new(),
            tracker_ns: None,
            daemon_ns: None,
        }
    }

    fn add(&mut self, report: &PeriodReport<'_>, row: &PeriodRow) {
        let (is_measured, is_timed) = self.rounds.report();
        let r = &mut self.row;
        r.periods += 1;
        r.pages_max = r.pages_max.max(row.pages);
        // Of the most that it had, as for rivals: a group that ends has few pages in its last period,
        // and a limit may be more than a group needs.
        if !self.ratio_is_given {
            r.fast_ratio = ratio(report.limit_pages, r.pages_max).min(1.0);
        }
        r.lost_periods += row.lost_periods;
        r.promoted_pages += row.promoted_pages;
        r.demoted_pages += row.demoted_pages;
        r.exchanged_pairs += row.exchanged_pairs;
        r.migration_operations += row.migration_operations;
        for reason in FailureReason::ALL {
            *run_failures(r, reason) += *period_failures(&mut row.clone(), reason);
        }
        if is_measured {
            self.measured += 1;
            self.accessed += row.accessed_pages;
            self.hits += row.fast_accessed_pages;
            self.accessed_ratios += row.accessed_ratio;
            self.stabilities += row.stability;
        }
        if is_timed {
            self.timed += 1;
            add(&mut self.tracker_ns, report.cpu.tracker_ns);
            add(&mut self.daemon_ns, report.cpu.tracker_ns);
            add(&mut self.daemon_ns, report.cpu.policy_ns);
            add(&mut self.daemon_ns, report.cpu.mover_ns);
        }
        *self.applied.entry(report.decision.applied).or_default() += 1;
        self.heat.add(report.scan);
    }

    fn summary(self) -> RunRow {
        let mut row = self.row;
        row.lost_periods += self.lost;
        // Of a group that ended in the warm-up nothing is known.
        let known = |value: f64| if self.measured == 0 { f64::NAN } else { value };
        let mean = |sum: f64| known(sum / self.measured as f64);
        row.accessed_ratio = mean(self.accessed_ratios);
        row.stability = mean(self.stabilities);
        row.hit_ratio = known(ratio(self.hits, self.accessed));
        row.measured_periods = Some(self.timed);
        // The first of equals by name, so that the row does not depend on the order of a map.
        let main = self.applied.iter().max_by_key(|(name, n)| (**n, std::cmp::Reverse(**name)));
        if let Some((name, &periods)) = main {
            row.applied_main = (*name).to_owned();
            row.applied_main_share = ratio(periods, row.periods);
        }
        let ms = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e6);
        row.tracker_cpu_ms = ms(self.tracker_ns);
        row.daemon_cpu_ms = ms(self.daemon_ns);
        row
    }
}

impl Observer for Collector<'_> {
    fn period(&mut self, report: &PeriodReport<'_>) -> Result<(), MachineError> {
        let member = &mut self.groups[report.group];
        let row = row(self.period_us, member, report);
        member.lost = 0;
        member.add(report, &row);
        self.events.event(Event::Period {
            period: row.period,
            group: &row.group,
            hit_ratio: row.hit_ratio,
            applied: &row.applied,
        });
        let PeriodReport { group, scan, budget, decision, outcome, .. } = report;
        self.recording.period(*group, scan, budget, decision, outcome).map_err(machine_error)?;
        self.tables.period(row).map_err(machine_error)
    }

    fn lost(&mut self, group: usize, periods: u32, reason: &str) -> Result<(), MachineError> {
        let member = &mut self.groups[group];
        // The next scan counts them; those that no scan follows are counted at the end.
        member.lost += u64::from(periods);
        member.rounds.lost();
        tracing::warn!(group = member.row.group, periods, reason, "periods lost");
        self.recording.lost(group, periods, reason).map_err(machine_error)
    }

    fn ended(&mut self, group: usize) -> Result<(), MachineError> {
        self.recording.ended(group).map_err(machine_error)
    }
}

fn machine_error(error: impl std::fmt::Display) -> MachineError {
    MachineError(error.to_string())
}

fn row(period_us: u64, member: &Member, report: &PeriodReport<'_>) -> PeriodRow {
    let Scan { period, layout, accessed, fast, .. } = report.scan;
    let features = &report.decision.features;
    let (planned_promotions, planned_demotions) = report.decision.plan.pages(layout.page_size());
    let (pages, accessed_pages) = (layout.pages() as u64, accessed.count() as u64);
    let fast_accessed_pages = accessed.count_and(fast) as u64;
    let mut row = PeriodRow {
        run: member.row.run.clone(),
        experiment: member.row.experiment.clone(),
        machine: member.row.machine.clone(),
        policy: member.row.policy.clone(),
        group: member.row.group.clone(),
        period: *period,
        time_ms: period * period_us / 1000,
        pages,
        accessed_pages,
        fast_pages: fast.count() as u64,
        fast_accessed_pages,
        hit_ratio: ratio(fast_accessed_pages, accessed_pages),
        accessed_ratio: ratio(accessed_pages, pages),
        stability: features.stability,
        applied: report.decision.applied.to_owned(),
        lru_hit_average: features.lru_hit_average,
        lfu_hit_average: features.lfu_hit_average,
        planned_promotions,
        planned_demotions,
        promoted_pages: report.outcome.promoted_pages,
        demoted_pages: report.outcome.demoted_pages,
        exchanged_pairs: report.outcome.exchanged_pairs,
        migration_operations: report.outcome.operations,
        lost_periods: report.scan.lost_periods.into(),
        tracker_cpu_ns: report.cpu.tracker_ns,
        policy_cpu_ns: report.cpu.policy_ns,
        mover_cpu_ns: report.cpu.mover_ns,
        untracked_bytes: report.untracked_bytes,
        ..PeriodRow::default()
    };
    for Failure { range, reason, .. } in &report.outcome.failures {
        *period_failures(&mut row, *reason) += range.pages(layout.page_size());
    }
    row
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn add(sum: &mut Option<u64>, part: Option<u64>) {
    if let Some(part) = part {
        *sum = Some(sum.unwrap_or(0) + part);
    }
}

/// The column of a reason, in either table.
macro_rules! failures {
    ($name:ident, $row:ty) => {
        fn $name(row: &mut $row, reason: FailureReason) -> &mut u64 {
            match reason {
                FailureReason::Busy => &mut row.failed_busy,
                FailureReason::Absent => &mut row.failed_absent,
                FailureReason::NoRoom => &mut row.failed_no_room,
                FailureReason::NotAllowed => &mut row.failed_not_allowed,
                FailureReason::Denied => &mut row.failed_denied,
                FailureReason::ProcessGone => &mut row.failed_process_gone,
                FailureReason::StayedPut => &mut row.failed_stayed_put,
                FailureReason::OutOfTime => &mut row.failed_out_of_time,
                FailureReason::Unsupported => &mut row.failed_unsupported,
            }
        }
    };
}
failures!(period_failures, PeriodRow);
failures!(run_failures, RunRow);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_ends_by_rounds_and_processor_times_begin_with_the_next_report() {
        let after = |rounds| Rounds::after(WarmUpRounds::new(Cell::new(rounds)));
        let mut rounds = after(3);
        assert_eq!(rounds.report(), (false, false));
        // Many periods may be lost in one round.
        rounds.lost();
        assert_eq!(rounds.report(), (false, false));
        assert_eq!([rounds.report(), rounds.report()], [(true, true); 2]);
        // Of a report after a lost round the processor times are of the warm-up, too.
        let mut rounds = after(2);
        rounds.report();
        rounds.lost();
        assert_eq!(rounds.report(), (true, false));
        assert_eq!(rounds.report(), (true, true));
        assert_eq!(after(0).report(), (true, true));
        // A warm-up that ends by time: its rounds are known as it ends.
        let mut rounds = after(u64::MAX);
        assert_eq!([rounds.report(), rounds.report()], [(false, false); 2]);
        rounds.warm_up.set(2);
        assert_eq!(rounds.report(), (true, true));
    }

    #[test]
    fn of_a_group_that_ended_in_the_warm_up_no_ratio_is_known() {
        let spec = "name = \"g\"\nfast_ratio = 0.5\nworkload = { kind = \"program\" }\n";
        let spec: GroupSpec = toml::from_str(spec).unwrap();
        let of = |measured: u64, accessed: u64| {
            let mut member = Member::new(RunRow::default(), &spec, WarmUpRounds::new(Cell::new(3)));
            (member.measured, member.accessed, member.hits) = (measured, accessed, accessed / 2);
            member.summary()
        };
        let row = of(0, 0);
        assert!([row.hit_ratio, row.accessed_ratio, row.stability].iter().all(|r| r.is_nan()));
        assert_eq!(of(2, 8).hit_ratio, 0.5);
        // It ran, and used nothing.
        assert_eq!(of(2, 0).hit_ratio, 0.0);
    }
}

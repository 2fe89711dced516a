//! Slowdowns of runs on a virtual machine with the memory clock, against the same run with all memory
//! fast: by run time, by operations, or by the work of programs that report neither.

use std::time::Duration;

use terrace_lab::ClockFigures;
use terrace_results::{RUN_TIME, RunRow};
use terrace_timed::config::TimedConfig;
use terrace_timed::figures::Figures;
use terrace_timed::full_speed::instructions_in;
use terrace_timed::work::WorkPlan;

use crate::file::{Experiment, GroupSpec};

/// Workloads of which nothing reports operations. The clients of others would count what is served
/// while a program catches up, in no time.
const REPORTS_NOTHING: &str = "command";

/// What a slowdown is of, beside run time: the words of the results' column.
const OPERATION: &str = "an operation";
const SAME_INSTRUCTIONS: &str = "the same instructions";
const INSTRUCTION: &str = "an instruction";

/// A slowdown, and what it is of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slowdown {
    pub times: f64,
    pub of: &'static str,
    /// How many of the same instructions.
    pub instructions: Option<u64>,
}

impl Slowdown {
    /// Writes it to a row.
    pub fn fill(self, row: &mut RunRow) {
        row.slowdown = Some(self.times);
        row.slowdown_of = Some(self.of.to_owned());
        row.slowdown_instructions = self.instructions;
    }
}

/// Results of a run with all memory fast and nothing moved.
pub(crate) struct AllFast {
    /// Its groups.
    pub rows: Vec<RunRow>,
    /// After so many periods its programs were ended.
    pub periods: u64,
    /// Figures of its clock.
    pub clock: Option<ClockFigures>,
}

impl AllFast {
    /// Run time of this group over that of the same group here: of its programs if they ended, of
    /// one of their operations if they were ended; or of one of their instructions after a warm-up,
    /// on processors that nothing else uses. `None` if none of these is known.
    pub fn slowdown(
        &self,
        row: &RunRow,
        clock: Option<&ClockFigures>,
        experiment: &Experiment,
    ) -> Option<Slowdown> {
        let of = |times, of| Slowdown { times, of, instructions: None };
        if row.operations.is_none()
            && let Some(spec) = experiment.groups.iter().find(|spec| spec.name == row.group)
            && counts_instructions(spec, experiment)
        {
            let work = |clock: Option<&ClockFigures>| clock?.work.clone();
            if let (Some(own), Some(fast)) = (work(clock), work(self.clock.as_ref())) {
                if let Some((times, instructions)) = own.slowdown(&fast) {
                    let instructions = Some(instructions);
                    return Some(Slowdown { times, of: SAME_INSTRUCTIONS, instructions });
                }
                tracing::warn!(
                    group = row.group,
                    "measured from instruction {} on, and with all memory fast from {}: the slowdown is \
                     of the time for an instruction; let warm_up_periods be larger",
                    own.from_instructions,
                    fast.from_instructions
                );
            }
            let ns = |clock: Option<&ClockFigures>| ns_an_instruction(spec, &clock?.total);
            return Some(of(ns(clock)? / ns(self.clock.as_ref())?, INSTRUCTION));
        }
        let fast = self.rows.iter().find(|r| r.group == row.group)?;
        let time = |row: &RunRow, periods: u64| {
            let duration_ms = row.duration_ms?;
            match row.operations {
                Some(operations) => (operations > 0).then(|| duration_ms / operations as f64),
                None => (row.periods + row.lost_periods < periods).then_some(duration_ms),
            }
        };
        let (time, fast) = (time(row, experiment.periods)?, time(fast, self.periods)?);
        let what = if row.operations.is_some() { OPERATION } else { RUN_TIME };
        (fast > 0.0).then(|| of(time / fast, what))
    }
}

/// Whether the work of a group in what is measured is known by its instructions.
pub(crate) fn counts_instructions(group: &GroupSpec, experiment: &Experiment) -> bool {
    experiment.warm_up_periods > 0 && !group.cpus.is_empty()
}

/// Processors of a program that has one to itself, and how long it is to run on it before it is measured.
pub(crate) fn before_measured(experiment: &Experiment) -> Option<(&[u32], Duration)> {
    let [group] = experiment.groups.as_slice() else { return None };
    let [_] = group.cpus[..] else { return None };
    let is_known = counts_instructions(group, experiment) && group.workload.kind == REPORTS_NOTHING;
    let warm_up = Duration::from_millis(experiment.warm_up_periods * experiment.period_ms);
    // What it executes while trackers begin comes on top.
    is_known.then(|| (&group.cpus[..], warm_up + warm_up / 10))
}

/// The work of such a program: it is measured from a place that systems have not passed by the end of the
/// warm-up, since it executes no more there in a virtual machine at full speed.
pub(crate) fn work(experiment: &Experiment, machine: &TimedConfig) -> Option<WorkPlan> {
    let (processors, time) = before_measured(experiment)?;
    let from_instructions = instructions_in(time.as_nanos() as u64, machine);
    Some(WorkPlan { processors: processors.to_vec(), from_instructions })
}

/// Time for an instruction of a group that has its processors to itself; `None` if it executed none.
fn ns_an_instruction(group: &GroupSpec, figures: &Figures) -> Option<f64> {
    let of = |cpu: &u32| figures.program_instructions.get(*cpu as usize);
    let instructions: u64 = group.cpus.iter().filter_map(of).sum();
    (instructions > 0).then(|| figures.time_ns as f64 / instructions as f64)
}

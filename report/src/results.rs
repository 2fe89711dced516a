//! The results of a directory as a report needs them: its tables, checked.

use std::path::Path;

use terrace_results::{HeatRow, KernelCauseRow, KernelThreadRow, PeriodRow, RunRow, path, read};

use crate::error::ReportError;
use crate::format::{clean, list};
use crate::rows::values;

/// The reasons for which a move can fail, in the order of their columns.
pub const FAILURE_REASONS: [&str; 9] = [
    "busy",
    "absent",
    "no_room",
    "not_allowed",
    "denied",
    "process_gone",
    "stayed_put",
    "out_of_time",
    "unsupported",
];

/// Sums over the moves of a row.
pub(crate) trait Moves {
    /// Pages that were not moved, by reason in the order of [`FAILURE_REASONS`].
    fn failures(&self) -> [u64; FAILURE_REASONS.len()];
    /// Pages promoted or demoted.
    fn moved_pages(&self) -> u64;

    /// Pages that were not moved.
    fn failed_pages(&self) -> u64 {
        self.failures().iter().fold(0, |sum, &n| sum.saturating_add(n))
    }
}

macro_rules! moves {
    ($row:ty) => {
        impl Moves for $row {
            fn failures(&self) -> [u64; FAILURE_REASONS.len()] {
                [
                    self.failed_busy,
                    self.failed_absent,
                    self.failed_no_room,
                    self.failed_not_allowed,
                    self.failed_denied,
                    self.failed_process_gone,
                    self.failed_stayed_put,
                    self.failed_out_of_time,
                    self.failed_unsupported,
                ]
            }

            fn moved_pages(&self) -> u64 {
                self.promoted_pages.saturating_add(self.demoted_pages)
            }
        }
    };
}
moves!(PeriodRow);
moves!(RunRow);

/// Whether an adaptive policy was at work: one that applies other policies than itself.
pub(crate) fn is_adaptive(run: &RunRow) -> bool {
    !run.applied_main.is_empty() && run.applied_main != run.policy
}

/// How long a run's tracker, policy and mover were at work where their processor time was measured, in
/// ms. The run time may be shorter: programs may end before the last period does.
pub(crate) fn at_work_ms(run: &RunRow) -> Option<f64> {
    let periods_ms = run.measured_periods.unwrap_or(run.periods) as f64 * run.period_length_ms();
    let at_work_ms = run.duration_ms.unwrap_or(0.0).max(periods_ms);
    (at_work_ms > 0.0 && at_work_ms.is_finite()).then_some(at_work_ms)
}

/// The contents of a directory of results.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Results {
    /// The runs, a row per group, in the order in which they were written.
    pub runs: Vec<RunRow>,
    /// The periods of all runs.
    pub periods: Vec<PeriodRow>,
    /// The heat of all runs.
    pub heat: Vec<HeatRow>,
    /// What the kernel's own threads took, on live machines.
    pub kernel_threads: Vec<KernelThreadRow>,
    /// What the kernel's time was for, on virtual machines whose clock models the memory.
    pub kernel_causes: Vec<KernelCauseRow>,
}

impl Results {
    /// Reads `runs.parquet`, `periods.parquet` and `heat.parquet` of a directory. There must be
    /// at least one run; periods and heat may have no rows, and `kernel-threads.parquet` and
    /// `kernel-causes.parquet` need not be there. A share that is not known (NaN) is let through and
    /// shown as missing; one outside 0 to 1 is an error.
    pub fn read(directory: &Path) -> Result<Results, ReportError> {
        let runs: Vec<RunRow> = read(directory)?;
        let file = path::<RunRow>(directory);
        if runs.is_empty() {
            return Err(ReportError::Empty { path: file });
        }
        check(&file, "fast_ratio", &runs, |r| r.fast_ratio)?;
        check(&file, "hit_ratio", &runs, |r| r.hit_ratio)?;
        check(&file, "accessed_ratio", &runs, |r| r.accessed_ratio)?;
        check(&file, "stability", &runs, |r| r.stability)?;
        check(&file, "applied_main_share", &runs, |r| r.applied_main_share)?;

        let periods: Vec<PeriodRow> = read(directory)?;
        let file = path::<PeriodRow>(directory);
        check(&file, "hit_ratio", &periods, |p| p.hit_ratio)?;
        check(&file, "accessed_ratio", &periods, |p| p.accessed_ratio)?;
        check(&file, "stability", &periods, |p| p.stability)?;

        let heat: Vec<HeatRow> = read(directory)?;
        let file = path::<HeatRow>(directory);
        check(&file, "accessed_share", &heat, |h| h.accessed_share)?;
        check(&file, "fast_share", &heat, |h| h.fast_share)?;
        let has_threads = path::<KernelThreadRow>(directory).is_file();
        let kernel_threads = if has_threads { read(directory)? } else { Vec::new() };
        let has_causes = path::<KernelCauseRow>(directory).is_file();
        let kernel_causes = if has_causes { read(directory)? } else { Vec::new() };
        Ok(Results { runs, periods, heat, kernel_threads, kernel_causes })
    }

    /// A title for a report of them: the experiments, and what was compared.
    pub fn title(&self) -> String {
        let experiments = list(&values(&self.runs, |r| clean(&r.experiment)));
        match values(&self.runs, |r| clean(&r.policy)).as_slice() {
            [] => experiments,
            [policy] => format!("{experiments} under {policy}"),
            policies if policies.len() <= 3 => {
                format!("{experiments}: {} compared", list(policies))
            }
            policies => format!("{experiments}: {} policies compared", policies.len()),
        }
    }
}

/// Lets through NaN and what is within 0 and 1, up to a rounding error.
fn check<T>(
    file: &Path,
    column: &'static str,
    rows: &[T],
    value: impl Fn(&T) -> f64,
) -> Result<(), ReportError> {
    for (i, row) in rows.iter().enumerate() {
        let got = value(row);
        if !got.is_nan() && !(-1e-9..=1.0 + 1e-9).contains(&got) {
            return Err(ReportError::BadShare { path: file.to_owned(), column, row: i + 1, got });
        }
    }
    Ok(())
}

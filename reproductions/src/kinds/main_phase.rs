//! A program's run after its start-up, as papers measure it: from the first period on that is wholly
//! of its main phase.

use terrace_results::{HardwareRow, PeriodRow, RunRow};

/// Before the names of measures that are of the main phase.
pub(super) const PREFIX: &str = "main_";

/// The main phase of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MainPhase {
    /// The first of its rows of `hardware`.
    pub(super) first_row: usize,
    /// From the start of that row's period to the program's end, in ms.
    pub(super) duration_ms: f64,
}

/// The main phase of a group's program, from its rows in order; none where its start-up does not
/// show, or where it has no whole period. A program that starts later than the run does so at the
/// start of a period.
pub(super) fn of(
    run: &RunRow,
    periods: &[&PeriodRow],
    hardware: &[&HardwareRow],
) -> Option<MainPhase> {
    let is_main = |h: &HardwareRow| h.references > 0 && h.main_references == Some(h.references);
    let first_row = hardware.iter().position(|h| is_main(h))?;
    let start_ms = |h: &HardwareRow| Some(periods.iter().find(|p| p.period == h.period)?.time_ms);
    let program_ms = start_ms(hardware.iter().find(|h| h.references > 0)?)?;
    let start_up_ms = start_ms(hardware[first_row])? - program_ms;
    Some(MainPhase { first_row, duration_ms: run.duration_ms? - start_up_ms as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_the_first_period_that_has_no_start_up_in_it() {
        let run = RunRow { duration_ms: Some(47.5), ..RunRow::default() };
        let periods: Vec<PeriodRow> = (0..5)
            .map(|period| PeriodRow { period, time_ms: 10 * period, ..PeriodRow::default() })
            .collect();
        let main = |references: &[(u64, Option<u64>)]| {
            let hardware: Vec<HardwareRow> = (0..)
                .zip(references)
                .map(|(period, &(references, main_references))| HardwareRow {
                    period,
                    references,
                    main_references,
                    ..HardwareRow::default()
                })
                .collect();
            let (periods, hardware): (Vec<_>, Vec<_>) =
                (periods.iter().collect(), hardware.iter().collect());
            of(&run, &periods, &hardware)
        };
        let all = [(9, Some(0)), (9, Some(4)), (9, Some(9)), (0, Some(0)), (5, Some(5))];
        assert_eq!(main(&all), Some(MainPhase { first_row: 2, duration_ms: 27.5 }));
        // A program that starts at the second period has not run in the first.
        let later = [(0, Some(0)), (9, Some(4)), (9, Some(9)), (9, Some(9))];
        assert_eq!(main(&later), Some(MainPhase { first_row: 2, duration_ms: 37.5 }));
        assert_eq!(main(&[(9, Some(0)), (9, Some(4))]), None, "no whole period");
        assert_eq!(main(&[(9, None), (9, None)]), None, "it does not show");
        assert_eq!(main(&[]), None);
    }
}

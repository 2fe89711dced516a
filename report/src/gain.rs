//! What less fast memory costs and what of it is regained: one sentence for each set of runs that
//! can be compared, from slowdowns against all memory fast.

use terrace_results::RunRow;

use crate::format::{count, list, percent_round};
use crate::rows::{Panel, Rows, is_reference, moves_nothing};

/// Less than this is no loss that could be regained.
const LEAST_LOSS: f64 = 0.005;

/// The run that others are compared with: one in which nothing is moved, if there is one; else the
/// first.
pub(crate) fn baseline<'a>(panel: &Panel<'a>) -> Option<&'a RunRow> {
    panel.runs.iter().find(|r| moves_nothing(r)).or(panel.runs.first()).copied()
}

/// The sentence; none where nothing is known of slowdowns, or nothing to compare with.
pub(crate) fn sentence(panel: &Panel, rows: &Rows) -> Option<String> {
    let base = baseline(panel).filter(|r| moves_nothing(r))?;
    let cost = |r: &RunRow| r.slowdown.filter(|s| s.is_finite());
    let lost = cost(base)? - 1.0;
    let mut others: Vec<(&RunRow, f64)> = (panel.runs.iter())
        .filter(|r| !std::ptr::eq(**r, base) && !is_reference(r))
        .filter_map(|r| Some((*r, cost(r)?)))
        .collect();
    others.sort_by(|a, b| a.1.total_cmp(&b.1));
    if others.is_empty() {
        return None;
    }
    let share = percent_round(base.fast_ratio);
    let of = match base.fast_ratio {
        r if r > 0.0 => format!("With fast memory for {share} of it and nothing moved"),
        _ => "With less fast memory and nothing moved".to_owned(),
    };
    let group = &base.group;
    if lost < LEAST_LOSS {
        return Some(format!("{of}, {group} takes {:.3} times as long: no loss.", lost + 1.0));
    }
    let reported: Vec<String> = others
        .iter()
        .map(|(run, cost)| {
            let regained = percent_round((100.0 * (1.0 + lost - cost) / lost).round() / 100.0);
            format!("{} {cost:.2} ({regained} of the loss regained)", rows.series_name(run))
        })
        .collect();
    let rate = |r: &RunRow| r.operations_per_s.filter(|rate| *rate >= 1.0);
    let all_fast = panel.runs.iter().find(|r| is_reference(r) && r.group == base.group);
    let rates = all_fast.and_then(|fast| Some((rate(base)?, rate(fast)?)));
    let rates = rates.map_or_else(String::new, |(with, all)| {
        let (with, all) = (count(with.round() as u64), count(all.round() as u64));
        format!(" ({with} operations a second instead of {all})")
    });
    Some(format!(
        "{of}, {group} takes {:.2} times as long as with all memory fast{rates}; under {}.",
        lost + 1.0,
        list(&reported)
    ))
}

#[cfg(test)]
mod tests {
    use terrace_results::ALL_FAST;

    use super::*;

    fn run(policy: &str, slowdown: Option<f64>) -> RunRow {
        RunRow {
            policy: policy.to_owned(),
            run: policy.to_owned(),
            group: "redis".to_owned(),
            fast_ratio: 0.5,
            slowdown,
            ..RunRow::default()
        }
    }

    fn message(runs: &[RunRow]) -> Option<String> {
        let rows = Rows::new(runs);
        rows.compared().iter().find_map(|panel| sentence(panel, &rows))
    }

    #[test]
    fn what_is_lost_and_regained_is_reported_best_first() {
        let runs = [run("nothing", Some(1.4)), run("linux", Some(1.3)), run("amp", Some(1.1))];
        assert_eq!(
            message(&runs).unwrap(),
            "With fast memory for 50 % of it and nothing moved, redis takes 1.40 times as long as \
             with all memory fast; under amp 1.10 (75 % of the loss regained) and linux 1.30 (25 % \
             of the loss regained)."
        );
        // What makes it worse has regained less than nothing.
        let worse = message(&[run("first-touch", Some(1.2)), run("lru", Some(1.3))]).unwrap();
        assert!(worse.contains("lru 1.30 (-50"), "{worse}");
    }

    #[test]
    fn requests_a_second_are_reported_beside_those_of_the_run_with_all_memory_fast() {
        let at = |policy: &str, slowdown, rate| RunRow {
            operations_per_s: Some(rate),
            ..run(policy, Some(slowdown))
        };
        let all_fast = RunRow { fast_ratio: 1.0, ..at(ALL_FAST, 1.0, 40_000.4) };
        let runs = [all_fast, at("nothing", 1.6, 25_000.0), at("terrace", 1.15, 34_800.0)];
        assert_eq!(
            message(&runs).unwrap(),
            "With fast memory for 50 % of it and nothing moved, redis takes 1.60 times as long as \
             with all memory fast (25,000 operations a second instead of 40,000); under terrace 1.15 \
             (75 % of the loss regained)."
        );
        // Linux's own knows of a little more memory, and no tracker.
        let mut linux = at("linux", 1.3, 30_800.0);
        (linux.fast_ratio, linux.mover) = (0.48, Some("kernel".to_owned()));
        let with_linux = [&runs[..], &[linux]].concat();
        let whole = message(&with_linux).unwrap();
        assert!(
            whole.ends_with("regained) and linux 1.30 (50 % of the loss regained)."),
            "{whole}"
        );
        // The run that all are measured against regains nothing of anything.
        assert_eq!(message(&runs[..2]), None);
    }

    #[test]
    fn nothing_is_reported_where_there_is_no_loss_or_nothing_to_compare() {
        assert_eq!(message(&[run("amp", Some(1.1)), run("lru", Some(1.2))]), None);
        assert_eq!(message(&[run("nothing", Some(1.1))]), None);
        assert_eq!(message(&[run("nothing", None), run("amp", Some(1.2))]), None);
        let none = message(&[run("nothing", Some(1.001)), run("amp", Some(1.002))]).unwrap();
        assert!(none.ends_with("no loss."), "{none}");
    }
}

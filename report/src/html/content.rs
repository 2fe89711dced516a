//! All values of the template, put together.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::{Value, context};
use terrace_results::PeriodRow;

use super::ReportMeta;
use super::explanations::{notes, parameter_list, setup, subtitle};
use super::figures::{bar_figures, heat, timelines};
use super::findings::findings;
use super::tables::{failures, table};
use super::theme::{HEAT, PLACE, Palette};
use super::threads::{causes, threads};
use crate::format::clean;
use crate::results::Results;
use crate::rows::Rows;

/// Periods by run and group, in order.
pub(super) type PeriodsByRun<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a PeriodRow>>;

/// All values of the template.
pub(super) fn content(results: &Results, meta: &ReportMeta) -> Value {
    let rows = Rows::new(&results.runs);
    let palette = Palette::new(results);
    let mut by_run: BTreeMap<(&str, &str), Vec<&PeriodRow>> = BTreeMap::new();
    for period in &results.periods {
        by_run.entry((&period.run, &period.group)).or_default().push(period);
    }
    for periods in by_run.values_mut() {
        periods.sort_by_key(|p| p.period);
    }
    let policies = results.runs.iter().map(|r| &r.policy).collect::<BTreeSet<_>>().len();
    let (timelines, timelines_left_out) = timelines(&rows, &by_run, &palette);
    let (heat, heat_left_out) = heat(results, &rows, &palette);
    context! {
        version => clean(&meta.generated_by_version),
        title => clean(&meta.title),
        command => clean(&meta.command),
        css => super::css(),
        subtitle => subtitle(&results.runs),
        findings => findings(results, &rows),
        table => table(&rows, &by_run, &palette),
        bars_title => match (policies, results.runs.len()) {
            (2.., _) => "Policies compared",
            (_, 2..) => "Runs compared",
            _ => "The run",
        },
        bars => bar_figures(results, &rows, &palette),
        timelines,
        timelines_left_out,
        heat,
        heat_left_out,
        heat_ramp => HEAT.css(),
        place_ramp => PLACE.css(),
        failures => failures(&rows, &palette),
        threads => threads(results),
        causes => causes(results),
        setup => setup(results, meta),
        parameters => parameter_list(results, &palette),
        notes => notes(results),
    }
}

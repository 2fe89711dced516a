//! What distinguishes rows: which of a run's particulars differ within the results and so must be
//! in tables and charts, and which are the same for all and are shown once.

use crate::format::{clean, percent_round};
use terrace_results::{ALL_FAST, RUN_TIME, RunRow};

/// A particular of a run, beside its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Particular {
    Experiment,
    Machine,
    Kernel,
    Mechanisms,
    FastRatio,
    Group,
    Workload,
    Seed,
    Run,
}

impl Particular {
    /// All, in the order in which they are shown.
    const ALL: [Particular; 9] = [
        Particular::Experiment,
        Particular::Machine,
        Particular::Kernel,
        Particular::Mechanisms,
        Particular::FastRatio,
        Particular::Group,
        Particular::Workload,
        Particular::Seed,
        Particular::Run,
    ];

    /// Its heading.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Particular::Experiment => "experiment",
            Particular::Machine => "machine",
            Particular::Kernel => "kernel",
            Particular::Mechanisms => "tracked and moved by",
            Particular::FastRatio => "fast memory",
            Particular::Group => "group",
            Particular::Workload => "workload",
            Particular::Seed => "seed",
            Particular::Run => "run",
        }
    }

    /// Its value, fit to be shown.
    pub(crate) fn value(self, run: &RunRow) -> String {
        match self {
            Particular::Experiment => clean(&run.experiment),
            Particular::Machine => clean(&run.machine),
            Particular::Kernel => clean(run.kernel.as_deref().unwrap_or("")),
            Particular::Mechanisms => {
                let mut all: Vec<String> =
                    [&run.tracker, &run.mover].into_iter().flatten().map(|m| clean(m)).collect();
                all.dedup();
                all.join(", ")
            }
            Particular::FastRatio => percent_round(run.fast_ratio),
            Particular::Group => clean(&run.group),
            Particular::Workload => clean(&run.workload),
            Particular::Seed => run.seed.to_string(),
            Particular::Run => clean(&run.run),
        }
    }

    /// Whether runs that differ in it are drawn in one chart, as lines of the same policy.
    fn within_panel(self) -> bool {
        matches!(self, Particular::Seed | Particular::Run)
    }
}

/// Runs that can be compared with each other: they differ in policy, seed or repetition only.
pub(crate) struct Panel<'a> {
    /// Its title beside other panels, empty when it is the only one.
    pub(crate) title: String,
    /// Its runs, in the order of the results.
    pub(crate) runs: Vec<&'a RunRow>,
}

/// The rows of the results in the order in which they are shown.
pub(crate) struct Rows<'a> {
    all: &'a [RunRow],
    /// The particulars that must be shown in every row.
    pub(crate) shown: Vec<Particular>,
    /// The runs, by panel. Never an empty panel.
    pub(crate) panels: Vec<Panel<'a>>,
}

impl<'a> Rows<'a> {
    /// Sorts the runs into panels, in the order of their first appearance.
    pub(crate) fn new(runs: &'a [RunRow]) -> Self {
        let shown = shown(runs);
        let apart: Vec<Particular> = shown.iter().copied().filter(|p| !p.within_panel()).collect();
        Rows { all: runs, panels: panels(runs, &apart), shown }
    }

    /// Where runs differ in fast memory: panels of runs that differ in policy, repetition and
    /// fast memory only.
    pub(crate) fn sweeps(&self) -> Vec<Panel<'a>> {
        let apart = |p: &Particular| !p.within_panel() && *p != Particular::FastRatio;
        let apart: Vec<Particular> = self.shown.iter().copied().filter(apart).collect();
        let mut sweeps = panels(self.all, &apart);
        sweeps.retain_mut(|panel| {
            panel.runs.retain(|run| !is_reference(run));
            let ratios = panel.runs.iter().copied();
            values(ratios, |run| Particular::FastRatio.value(run)).len() > 1
        });
        sweeps
    }

    /// Runs whose slowdowns can be compared. By what pages are tracked and moved, and how much of a
    /// group's memory that knows of is fast, differs between Linux's own and policies; where one run
    /// with all memory fast and one in which nothing is moved are there for all, they are one set.
    pub(crate) fn compared(&self) -> Vec<Panel<'a>> {
        let apart = |p: &Particular| {
            !p.within_panel() && !matches!(p, Particular::FastRatio | Particular::Mechanisms)
        };
        let apart: Vec<Particular> = self.shown.iter().copied().filter(apart).collect();
        let sets = panels(self.all, &apart);
        let count = |set: &Panel<'a>, is: fn(&RunRow) -> bool| {
            set.runs.iter().filter(|run| is(run)).count()
        };
        let whole =
            |set: &Panel<'a>| count(set, is_reference) == 1 && count(set, moves_nothing) == 1;
        if sets.iter().all(whole) { sets } else { panels(self.all, &self.apart()) }
    }

    fn apart(&self) -> Vec<Particular> {
        self.shown.iter().copied().filter(|p| !p.within_panel()).collect()
    }

    /// All runs, panel by panel.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &'a RunRow> + '_ {
        self.panels.iter().flat_map(|panel| panel.runs.iter().copied())
    }

    /// The name of a run's line or bar within its panel.
    pub(crate) fn series_name(&self, run: &RunRow) -> String {
        let mut name = clean(&run.policy);
        for particular in self.shown.iter().filter(|p| p.within_panel()) {
            name.push_str(&format!(" · {} {}", particular.heading(), particular.value(run)));
        }
        name
    }
}

/// Whether it is the run with all memory fast, which is shown with those that are measured against it.
pub(crate) fn is_reference(run: &RunRow) -> bool {
    run.policy == ALL_FAST
}

/// Names of policies and rivals under which nothing is moved.
const NOTHING_MOVED: [&str; 2] = ["first-touch", "nothing"];

/// Whether nothing is moved in it, by its policy.
pub(crate) fn moves_nothing(run: &RunRow) -> bool {
    NOTHING_MOVED.contains(&&*run.policy.replace('_', "-"))
}

/// Runs that are the same in some particulars, in the order of their first appearance.
fn panels<'a>(runs: &'a [RunRow], apart: &[Particular]) -> Vec<Panel<'a>> {
    let mut panels: Vec<(Vec<String>, Panel)> = Vec::new();
    for run in runs {
        let key: Vec<String> = apart.iter().map(|p| p.value(run)).collect();
        if let Some((_, panel)) = panels.iter_mut().find(|(k, _)| *k == key) {
            panel.runs.push(run);
        } else {
            let titles = apart.iter().map(|p| format!("{} {}", p.heading(), p.value(run)));
            let title = titles.collect::<Vec<_>>().join(" · ");
            panels.push((key, Panel { title, runs: vec![run] }));
        }
    }
    let mut panels: Vec<Panel> = panels.into_iter().map(|(_, panel)| panel).collect();
    if distinct(runs, Particular::Workload) > 1 && !apart.contains(&Particular::Workload) {
        for Panel { title, runs } in &mut panels {
            let workload = Particular::Workload.value(runs[0]);
            if runs.iter().all(|run| Particular::Workload.value(run) == workload) {
                let apart = if title.is_empty() { "" } else { " · " };
                title.push_str(&format!("{apart}workload {workload}"));
            }
        }
    }
    panels
}

/// What slowdowns are of: run time, unless all that is known is of something else.
pub(crate) fn slowdown_of<'a>(runs: impl IntoIterator<Item = &'a RunRow>) -> String {
    let known = runs.into_iter().filter(|run| run.slowdown.is_some() && !is_reference(run));
    let of = values(known, |run| run.slowdown_of.clone().unwrap_or_else(|| RUN_TIME.to_owned()));
    match of.as_slice() {
        [] => RUN_TIME.to_owned(),
        [one] if one == RUN_TIME => RUN_TIME.to_owned(),
        all => format!("time for {}", all.join(", or for ").replace(RUN_TIME, "all of a run")),
    }
}

/// The distinct values of a particular, in the order of their first appearance.
pub(crate) fn values<'a>(
    runs: impl IntoIterator<Item = &'a RunRow>,
    value: impl Fn(&RunRow) -> String,
) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for run in runs {
        let value = value(run);
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all
}

fn distinct(runs: &[RunRow], particular: Particular) -> usize {
    let of_reference = |run: &&RunRow| particular == Particular::FastRatio && is_reference(run);
    let all = values(runs.iter().filter(|run| !of_reference(run)), |run| particular.value(run));
    all.len()
}

fn by_tiermem(run: &RunRow) -> bool {
    [&run.tracker, &run.mover].into_iter().flatten().any(|m| m == "tiermem")
}

/// Experiment, machine, kernel, mechanisms, fast memory and group are shown as soon as they differ;
/// workload, seed and run only where rows would be the same without them.
fn shown(runs: &[RunRow]) -> Vec<Particular> {
    let mut shown: Vec<Particular> = Vec::new();
    let keys = |shown: &[Particular]| {
        let key = |run: &RunRow| -> Vec<String> {
            let particulars = shown.iter().map(|p| p.value(run));
            particulars.chain([run.policy.clone()]).collect()
        };
        runs.iter().map(key).collect::<std::collections::BTreeSet<_>>().len()
    };
    for particular in Particular::ALL {
        // The mechanisms of the Terrace kernel are shown even where all rows have them.
        let differs = distinct(runs, particular) > 1
            || particular == Particular::Mechanisms && runs.iter().any(by_tiermem);
        let always =
            !matches!(particular, Particular::Workload | Particular::Seed | Particular::Run);
        let mut with = shown.clone();
        with.push(particular);
        if differs && (always || keys(&with) > keys(&shown)) {
            shown = with;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(run: &str, policy: &str, group: &str, workload: &str, seed: u64) -> RunRow {
        let text = str::to_owned;
        RunRow {
            run: text(run),
            policy: text(policy),
            group: text(group),
            workload: text(workload),
            seed,
            ..RunRow::default()
        }
    }

    #[test]
    fn what_is_the_same_for_all_is_not_shown() {
        let runs = [run("1", "lru", "g", "zipf", 1), run("2", "amp", "g", "zipf", 1)];
        let rows = Rows::new(&runs);
        assert!(rows.shown.is_empty());
        assert_eq!(rows.panels.len(), 1);
        assert_eq!(rows.panels[0].title, "");
        assert_eq!(rows.series_name(&runs[1]), "amp");
    }

    #[test]
    fn groups_and_repetitions_are_distinguished() {
        let runs = [
            run("1", "amp", "a", "zipf", 1),
            run("1", "amp", "b", "scan", 1),
            run("2", "amp", "a", "zipf", 2),
            run("2", "amp", "b", "scan", 2),
        ];
        let rows = Rows::new(&runs);
        assert_eq!(rows.shown, [Particular::Group, Particular::Seed]);
        assert_eq!(rows.panels.len(), 2);
        assert_eq!(rows.panels[0].title, "group a · workload zipf");
        assert_eq!(rows.series_name(&runs[2]), "amp · seed 2");
        assert_eq!(rows.runs().count(), 4);
    }

    #[test]
    fn the_terrace_kernels_mechanisms_are_reported_even_where_all_runs_have_them() {
        let by = |run: RunRow, tracker: &str, mover: &str| RunRow {
            tracker: Some(tracker.to_owned()),
            mover: Some(mover.to_owned()),
            ..run
        };
        let run = || run("1", "lru", "g", "zipf", 1);
        assert!(Rows::new(&[by(run(), "damon", "move_pages")]).shown.is_empty());
        let mixed = [by(run(), "tiermem", "tiermem"), by(run(), "damon", "tiermem"), run()];
        let rows = Rows::new(&mixed[..1]);
        assert_eq!(rows.shown, [Particular::Mechanisms]);
        assert_eq!(rows.panels[0].title, "tracked and moved by tiermem");
        let values: Vec<_> = mixed.iter().map(|r| Particular::Mechanisms.value(r)).collect();
        assert_eq!(values, ["tiermem", "damon, tiermem", ""]);
    }

    #[test]
    fn kernels_are_distinguished_where_they_differ() {
        let on = |kernel: &str| RunRow {
            kernel: Some(kernel.to_owned()),
            ..run("1", "lru", "g", "zipf", 1)
        };
        assert!(
            Rows::new(&[on("6.12.1"), on("6.12.1")]).shown.iter().all(|p| *p != Particular::Kernel)
        );
        let both = [on("6.12.1"), on("6.12.1-terrace")];
        let rows = Rows::new(&both);
        assert_eq!(rows.shown, [Particular::Kernel]);
        assert_eq!(rows.panels[1].title, "kernel 6.12.1-terrace");
    }

    #[test]
    fn the_run_with_all_memory_fast_is_shown_with_those_that_are_measured_against_it() {
        let with = |policy: &str, fast_ratio| RunRow {
            fast_ratio,
            ..run(policy, policy, "g", "redis", 1)
        };
        let runs = [with(ALL_FAST, 1.0), with("nothing", 0.5), with("amp", 0.5)];
        let rows = Rows::new(&runs);
        assert!(rows.shown.is_empty(), "{:?}", rows.shown);
        assert_eq!(rows.panels.len(), 1);
        assert!(rows.sweeps().is_empty());
    }

    #[test]
    fn runs_with_more_and_less_fast_memory_are_a_sweep() {
        let with = |ratio: f64, group: &str| RunRow {
            fast_ratio: ratio,
            ..run(&ratio.to_string(), "lru", group, "zipf", 1)
        };
        let runs = [with(0.25, "a"), with(0.5, "a"), with(0.5, "b")];
        let rows = Rows::new(&runs);
        assert_eq!(rows.panels.len(), 3);
        let sweeps = rows.sweeps();
        assert_eq!(sweeps.len(), 1);
        assert_eq!((sweeps[0].title.as_str(), sweeps[0].runs.len()), ("group a", 2));
        assert!(Rows::new(&runs[1..]).sweeps().is_empty());
    }

    #[test]
    fn mixes_of_workloads_are_panels_of_their_own() {
        let runs = [
            run("1", "amp", "a", "zipf", 1),
            run("1", "amp", "b", "scan", 1),
            run("2", "amp", "a", "loop", 1),
            run("2", "amp", "b", "zipf", 1),
        ];
        let rows = Rows::new(&runs);
        assert_eq!(rows.shown, [Particular::Group, Particular::Workload]);
        assert_eq!(rows.panels.len(), 4);
    }
}

//! Page tables of live groups on the Terrace kernel: the requested placement, and the placement at
//! the end of each period.

use terrace_linux::Source;
use terrace_linux::files;
use terrace_linux::roots::Roots;
use terrace_linux::tiermem::{Levels, TablePlace, TablePolicy};
use terrace_results::{RunRow, TablePagesRow};
use terrace_simulated::os::TablePlacement;

use crate::file::GroupSpec;
use terrace_core::{InputError, refuse};

/// The kernel's policy for the requested placement, if there is one.
pub(crate) fn policy(group: &GroupSpec) -> Result<Option<TablePolicy>, InputError> {
    let Some(wanted) = group.tables else { return Ok(None) };
    let (place, levels) = match wanted.placement {
        TablePlacement::FollowData => (TablePlace::Default, Levels::UPPER),
        TablePlacement::BindHighLevels => (TablePlace::Fast, Levels::UPPER),
        TablePlacement::BindAll => (TablePlace::Fast, Levels::ALL),
        TablePlacement::FirstTouch | TablePlacement::Interleave => {
            return Err(refuse!(
                "tables: a live machine places page tables as data, or binds them: expected \
                 placement = \"follow_data\", \"bind_high_levels\" or \"bind_all\""
            ));
        }
    };
    Ok(Some(TablePolicy { place, levels, hard: wanted.hard, follow: wanted.migrate }))
}

/// Outcomes for page tables whose data moved (Radiant paper, table 5), on the whole machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moves([u64; 6]);

/// Lines of `/proc/vmstat`, in the order of [`Moves::fill`].
const MOVES: [&str; 6] = [
    "pt_migrate_success",
    "pt_migrate_same_node",
    "pt_migrate_same_tier",
    "pt_migrate_has_fast",
    "pt_migrate_busy",
    "pt_migrate_fail",
];

impl Moves {
    /// From the text of `/proc/vmstat`; `None` if the kernel has no such counters.
    fn parse(text: &str) -> Option<Self> {
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|l| l.split_once(' '));
            lines.find(|(n, _)| *n == name)?.1.trim().parse().ok()
        };
        let mut all = [0; 6];
        for (number, name) in all.iter_mut().zip(MOVES) {
            *number = value(name)?;
        }
        Some(Self(all))
    }

    fn now() -> Option<Self> {
        let path = Roots::default().proc.join("vmstat");
        Self::parse(&files::read(&path).ok().flatten()?)
    }

    fn since(self, before: Self) -> Self {
        let mut all = self.0;
        all.iter_mut().zip(before.0).for_each(|(now, before)| *now = now.saturating_sub(before));
        Self(all)
    }

    /// Into the columns of the one group of a run.
    pub(crate) fn fill(self, row: &mut RunRow) {
        let [moved, same_node, same_tier, has_fast, busy, failed] = self.0.map(Some);
        row.table_moves = moved;
        row.table_already_there = same_node;
        row.table_within_tier = same_tier;
        row.table_maps_fast = has_fast;
        row.table_lock_contended = busy;
        row.table_no_room = failed;
    }
}

/// Counts the groups' page tables, period by period.
pub(crate) struct TableCounts {
    run: String,
    groups: Vec<(String, Source)>,
    before: Option<Moves>,
    /// The counts.
    pub rows: Vec<TablePagesRow>,
}

impl TableCounts {
    /// Counts these groups, from now on.
    pub(crate) fn new(run: &str, groups: Vec<(String, Source)>) -> Self {
        Self { run: run.to_owned(), groups, before: Moves::now(), rows: Vec::new() }
    }

    /// Counts after so many periods: the state at the end of the last of them. Nodes without a page of a
    /// level have no row.
    pub(crate) fn between_periods(
        &mut self,
        over: u64,
        count: impl Fn(&Source) -> Option<[Vec<u64>; 5]>,
    ) {
        let Some(period) = over.checked_sub(1) else { return };
        for (group, source) in &self.groups {
            let Some(levels) = count(source) else { return };
            for (level, nodes) in (1..).zip(levels) {
                for (node, pages) in (0..).zip(nodes).filter(|(_, pages)| *pages > 0) {
                    let (run, group) = (self.run.clone(), group.clone());
                    self.rows.push(TablePagesRow { run, group, period, level, node, pages });
                }
            }
        }
    }

    /// Outcomes since the beginning, if a single group can have caused them.
    pub(crate) fn moves(&self) -> Option<Moves> {
        (self.groups.len() == 1).then(|| Some(Moves::now()?.since(self.before?)))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_kernel_are_read_by_name() {
        let text = |from: u64| {
            let lines = MOVES.iter().zip(from..).map(|(n, v)| format!("{n} {v}\n"));
            format!("nr_free_pages 7\n{}pgfault 9\n", lines.collect::<String>())
        };
        let (before, after) = (Moves::parse(&text(10)).unwrap(), Moves::parse(&text(110)).unwrap());
        assert_eq!(before.0, [10, 11, 12, 13, 14, 15]);
        let mut row = RunRow::default();
        after.since(before).fill(&mut row);
        assert_eq!((row.table_moves, row.table_no_room), (Some(100), Some(100)));
        assert_eq!(Moves::parse("nr_free_pages 7\n"), None);
    }

    #[test]
    fn a_period_has_the_page_tables_at_its_end() {
        let groups = vec![("g".to_owned(), Source::Pids(vec![1]))];
        let mut counts = TableCounts::new("lru", groups);
        // As the engine asks: before the first period and after each.
        for over in 0..=3 {
            let leaves = vec![10 + over, 0];
            counts
                .between_periods(over, |_| Some([leaves.clone(), vec![], vec![], vec![], vec![]]));
        }
        let rows: Vec<_> = counts.rows.iter().map(|row| (row.period, row.pages)).collect();
        assert_eq!(rows, [(0, 11), (1, 12), (2, 13)]);
    }
}

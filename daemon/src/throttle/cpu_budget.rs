//! A budget of processor time: the pages that may be moved in a period with what tracking and deciding
//! leave of it. What the move of a page costs is measured.

use super::page_budget::PageBudget;

/// Weight of a new measurement of what a page's move costs.
const COST_WEIGHT: f64 = 0.3;
/// Before anything was moved so many pages are assumed to use up a period's budget: their moves show
/// what a page costs.
const FIRST_PAGES: f64 = 16.0;

/// Processor time of one group.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CpuBudget {
    /// Of tracking and deciding in a period, in ns.
    fixed_ns: f64,
    /// Of the move of a page, in ns; 0 before the first.
    page_ns: f64,
    pages: PageBudget,
}

impl CpuBudget {
    /// Begins a period that may use so much time, in ns; returns the pages that may be moved in it. Where
    /// a page costs more than a period has, it moves once enough was saved.
    pub fn pages(&mut self, budget_ns: f64) -> u64 {
        let page_ns = if self.page_ns > 0.0 { self.page_ns } else { budget_ns / FIRST_PAGES };
        self.pages.pages((budget_ns - self.fixed_ns).max(0.0) / page_ns.max(1.0))
    }

    /// What so many periods took, of which the last had a scan and the others were lost: tracking and
    /// deciding, and the moves of so many pages, in ns.
    pub fn took(&mut self, periods: u64, fixed_ns: u64, moved_pages: f64, moves_ns: u64) {
        self.fixed_ns = fixed_ns as f64 / periods as f64;
        self.pages.spend(moved_pages);
        if moved_pages > 0.0 {
            let page_ns = moves_ns as f64 / moved_pages;
            self.page_ns = match self.page_ns {
                0.0 => page_ns,
                old => old + COST_WEIGHT * (page_ns - old),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages moved in so many periods of 1 ms each for moves, where a page costs so much and each
    /// period moves all that it may.
    fn moved(budget: &mut CpuBudget, periods: u32, page_ns: u64) -> u64 {
        let period = |_| {
            let pages = budget.pages(1_500_000.0);
            budget.took(1, 500_000, pages as f64, pages * page_ns);
            pages
        };
        (0..periods).map(period).sum()
    }

    #[test]
    fn pages_that_cost_more_than_a_period_has_move_every_few_periods() {
        let mut budget = CpuBudget::default();
        // The first page shows what a page costs: as much as three periods have.
        budget.took(1, 500_000, 1.0, 3_000_000);
        let few = moved(&mut budget, 30, 3_000_000);
        assert!((9..=11).contains(&few), "{few}");
        // It becomes cheaper, which is noticed.
        let many = moved(&mut budget, 60, 100_000);
        assert!(many > 200, "{many}");
    }

    #[test]
    fn what_lost_periods_took_is_not_of_one() {
        let mut budget = CpuBudget::default();
        budget.took(10, 5_000_000, 1.0, 1_000_000);
        assert!((0..10).map(|_| budget.pages(1_500_000.0)).sum::<u64>() >= 5);
    }

    #[test]
    fn nothing_moves_where_tracking_takes_the_whole_budget() {
        let mut budget = CpuBudget::default();
        budget.took(1, 1_500_000, 0.0, 0);
        assert_eq!((0..100).map(|_| budget.pages(1_500_000.0)).sum::<u64>(), 0);
    }
}

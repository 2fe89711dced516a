//! A budget of pages that need not be whole: the bandwidth of a period may be less than a page, and
//! a page moves when enough has been saved.

/// Saved budget of pages.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PageBudget {
    saved: f64,
}

impl PageBudget {
    /// Begins a period with so many pages; returns the whole pages that may be moved in it. At most
    /// a page is saved for later.
    pub fn pages(&mut self, allowed: f64) -> u64 {
        self.saved = self.saved.clamp(0.0, 1.0) + allowed.max(0.0);
        self.saved as u64
    }

    /// Subtracts moved pages, which may be parts of one.
    pub fn spend(&mut self, pages: f64) {
        self.saved = (self.saved - pages).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_page_come_together_and_idle_periods_save_no_more_than_one() {
        let mut budget = PageBudget::default();
        let moved: u64 = (0..100)
            .map(|_| {
                let pages = budget.pages(0.3);
                budget.spend(pages as f64);
                pages
            })
            .sum();
        assert!((29..=30).contains(&moved), "{moved}");
        for _ in 0..100 {
            budget.pages(2.5);
        }
        assert_eq!(budget.pages(2.5), 3);
    }
}

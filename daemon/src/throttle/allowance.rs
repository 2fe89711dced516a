//! A budget of pages that need not be whole: what a period's bandwidth allows may be less than a
//! page, and a page moves when enough has come together.

/// Pages that may be moved, saved up.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Allowance {
    saved: f64,
}

impl Allowance {
    /// A period begins that allows so many pages: whole pages that may be moved in it. What was not
    /// used before is not saved beyond a page.
    pub fn pages(&mut self, allowed: f64) -> u64 {
        self.saved = self.saved.clamp(0.0, 1.0) + allowed.max(0.0);
        self.saved as u64
    }

    /// So many were moved.
    pub fn spend(&mut self, pages: u64) {
        self.saved = (self.saved - pages as f64).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_page_come_together_and_idle_periods_save_no_more_than_one() {
        let mut allowance = Allowance::default();
        let moved: u64 = (0..100)
            .map(|_| {
                let pages = allowance.pages(0.3);
                allowance.spend(pages);
                pages
            })
            .sum();
        assert!((29..=30).contains(&moved), "{moved}");
        for _ in 0..100 {
            allowance.pages(2.5);
        }
        assert_eq!(allowance.pages(2.5), 3);
    }
}

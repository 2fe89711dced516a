//! The answer of a policy that is not Terrace's own: pages to promote and to demote, checked before
//! they become a plan.

use terrace_core::bits::PageBits;
use terrace_core::builder::PlanBuilder;
use terrace_core::plan::Plan;
use terrace_core::scan::{Budget, Scan};
use terrace_core::{InputError, refuse};

/// Pages to move, a bit for each page of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moves {
    /// Pages to promote.
    pub up: PageBits,
    /// Pages to demote.
    pub down: PageBits,
}

impl Moves {
    /// No moves, of so many pages.
    pub fn none(pages: usize) -> Self {
        Moves { up: PageBits::new(pages), down: PageBits::new(pages) }
    }

    /// Refuses moves of pages that are where they should go already, and more moves than the budget
    /// allows.
    pub fn check(&self, scan: &Scan, budget: &Budget) -> Result<(), InputError> {
        if self.up.len() != scan.pages() || self.down.len() != scan.pages() {
            return Err(refuse!(
                "moves of {} pages, expected those of this scan, which has {}",
                self.up.len(),
                scan.pages()
            ));
        }
        let fast = scan.fast.words();
        let first = |bits: &PageBits, wrong: &dyn Fn(u64, u64) -> u64| {
            let words = bits.words().iter().zip(fast).enumerate();
            words
                .map(|(at, (&b, &f))| (at, wrong(b, f)))
                .find(|(_, w)| *w != 0)
                .map(|(at, w)| 64 * at + w.trailing_zeros() as usize)
        };
        if let Some(page) = first(&self.up, &|bits, fast| bits & fast) {
            return Err(refuse!("promote has page {page}, which is in fast memory already"));
        }
        if let Some(page) = first(&self.down, &|bits, fast| bits & !fast) {
            return Err(refuse!("demote has page {page}, which is in slow memory already"));
        }
        let (ups, downs) = (self.up.count() as u64, self.down.count() as u64);
        let resident = scan.fast.count() as u64;
        let after = resident + ups - downs;
        if ups > 0 && after > budget.fast_pages {
            return Err(refuse!(
                "{ups} promotions and {downs} demotions leave {after} pages in fast memory, expected \
                 at most {}; demote more, or use terrace.select",
                budget.fast_pages
            ));
        }
        if ups + downs > budget.moved_pages {
            return Err(refuse!(
                "{} moves, expected at most {}; use terrace.select",
                ups + downs,
                budget.moved_pages
            ));
        }
        Ok(())
    }

    /// As a plan of exchanges and the remaining moves.
    pub fn plan(&self, scan: &Scan) -> Plan {
        let mut plan = PlanBuilder::new(&scan.layout);
        for (word, (&up, &down)) in self.up.words().iter().zip(self.down.words()).enumerate() {
            if up | down != 0 {
                plan.word(word, up, down);
            }
        }
        plan.finish()
    }
}

//! Policies on a live machine: beside its plan, a policy names pages that may be demoted where a
//! promotion finds no room, as under terraced. A policy does not know how much of fast memory other
//! programs leave free. And pages that could not be moved are left out of what it sees.

use std::fmt;
use std::sync::Arc;

use terrace_core::coldness::Coldness;
use terrace_core::oracle::OracleTrace;
use terrace_core::page::PageSize;
use terrace_core::plan::{Decision, Outcome};
use terrace_core::policy::{Allocation, ExternalReport, Policy};
use terrace_core::remap::LayoutFollower;
use terrace_core::scan::{Budget, Scan};
use terrace_core::unmovable::MovableOnly;

/// A policy whose plans name victims.
pub(crate) struct WithVictims {
    policy: MovableOnly,
    layout: LayoutFollower,
    coldness: Coldness,
}

impl WithVictims {
    pub(crate) fn new(policy: Box<dyn Policy>) -> Self {
        WithVictims {
            policy: MovableOnly::new(policy),
            layout: LayoutFollower::default(),
            coldness: Coldness::default(),
        }
    }
}

impl fmt::Debug for WithVictims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithVictims").field("policy", &self.policy.name()).finish_non_exhaustive()
    }
}

impl Policy for WithVictims {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        if let Some(remap) = self.layout.follow(&scan.layout) {
            self.coldness.remap(&remap);
        }
        self.coldness.observe(scan);
        let mut decision = self.policy.decide(scan, budget);
        decision.plan.victims = self.coldness.victims(scan, &decision.plan, self.policy.left_out());
        decision
    }

    fn outcome(&mut self, outcome: &Outcome, page_size: PageSize) {
        self.policy.outcome(outcome, page_size);
    }

    fn most_moved_pages(&self, budget: &Budget) -> u64 {
        self.policy.most_moved_pages(budget)
    }

    fn allocation(&self) -> Allocation {
        self.policy.allocation()
    }

    fn needs_frames(&self) -> bool {
        self.policy.needs_frames()
    }

    fn needs_oracle(&self) -> bool {
        self.policy.needs_oracle()
    }

    fn set_oracle(&mut self, future: Arc<OracleTrace>) {
        self.policy.set_oracle(future);
    }

    fn external(&self) -> Option<ExternalReport> {
        self.policy.external()
    }

    fn metadata_bytes(&self) -> usize {
        self.policy.metadata_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::bits::PageBits;
    use terrace_core::page::Layout;

    #[test]
    fn a_promotion_comes_with_the_coldest_page_that_is_fast() {
        let lru = terrace_core::policy::build("lru", &serde_json::Value::Null, 1).unwrap();
        let mut policy = WithVictims::new(lru);
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, 4));
        let bits = |pages: &[usize]| {
            let mut bits = PageBits::new(4);
            pages.iter().for_each(|&page| bits.set(page, true));
            bits
        };
        // Pages 0 and 1 are fast, and 0 was used a period before. There seems to be room for a
        // third.
        let (fast, budget) = (bits(&[0, 1]), Budget::fast(3));
        let scan =
            |period, accessed| Scan::new(period, Arc::clone(&layout), accessed, fast.clone());
        policy.decide(&scan(0, bits(&[0])), &budget);
        let plan = policy.decide(&scan(1, bits(&[2])), &budget).plan;
        let address = |page| layout.address(page).1;
        assert_eq!(plan.promotions[0].start, address(2));
        let victims: Vec<_> = plan.victims.iter().map(|v| (v.up.start, v.down.start)).collect();
        assert_eq!(victims, [(address(2), address(1))]);
    }
}

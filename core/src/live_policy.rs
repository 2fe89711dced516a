//! A policy as it decides on a live machine outside of terraced, which has a throttle in its place.
//!
//! Beside its plan it names pages that may be demoted where a promotion finds no room: a policy does not
//! know how much of fast memory other programs leave free. And pages that could not be moved are left out
//! of what it sees.

use std::fmt;
use std::sync::Arc;

use crate::coldness::Coldness;
use crate::oracle::OracleTrace;
use crate::page::PageSize;
use crate::plan::{Decision, Outcome};
use crate::policy::{Allocation, ExternalReport, Policy};
use crate::remap::LayoutFollower;
use crate::scan::{Budget, Scan};
use crate::unmovable::Unmovable;

/// A policy whose plans name victims, and which is not shown unmovable pages as they are.
pub struct LivePolicy {
    policy: Box<dyn Policy>,
    layout: LayoutFollower,
    coldness: Coldness,
    unmovable: Unmovable,
}

impl LivePolicy {
    /// This policy; nothing is left out yet.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>) -> Self {
        LivePolicy {
            policy,
            layout: LayoutFollower::default(),
            coldness: Coldness::default(),
            unmovable: Unmovable::default(),
        }
    }
}

impl fmt::Debug for LivePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LivePolicy").field("policy", &self.policy.name()).finish_non_exhaustive()
    }
}

impl Policy for LivePolicy {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        if let Some(remap) = self.layout.follow(&scan.layout) {
            self.coldness.remap(&remap);
        }
        self.coldness.observe(scan);
        self.unmovable.next_period();
        let left_out = self.unmovable.left_out(scan);
        let mut decision = match left_out.count() {
            0 => self.policy.decide(scan, budget),
            _ => self.policy.decide(&Unmovable::mask(scan, &left_out), budget),
        };
        self.unmovable.take_out(&mut decision.plan, scan.layout.page_size());
        decision.plan.victims = self.coldness.victims(scan, &decision.plan, &left_out);
        decision
    }

    fn outcome(&mut self, outcome: &Outcome, page_size: PageSize) {
        self.unmovable.learn(outcome, page_size);
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
    use crate::bits::PageBits;
    use crate::page::{Layout, VirtualRange};
    use crate::plan::{Direction, Failure, FailureReason};
    use crate::scan::PeriodCounters;

    /// Periods of a group whose page 0 cannot be moved in the first half. Page 3 is accessed all the time, page 0
    /// never, page 2 now and then, and in the second half as much as page 3. Which pages are fast at the end of each
    /// half; by samples or accessed bits.
    fn halves(mut policy: Box<dyn Policy>, by_samples: bool) -> [Vec<usize>; 2] {
        const HALF: u64 = 150;
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, 4));
        let mut fast: PageBits = (0..4).map(|page| page < 2).collect();
        let mut found = [Vec::new(), Vec::new()];
        for period in 0..2 * HALF {
            let half = (period / HALF) as usize;
            let now_and_then = period % 8 == 0;
            let accessed = [false, now_and_then, now_and_then || half == 1, true];
            let bits = accessed.into_iter().collect();
            let mut scan = Scan::new(period, Arc::clone(&layout), bits, fast.clone());
            let counters = PeriodCounters {
                samples: Some(accessed.map(|accessed| if accessed { 40 } else { 0 }).into()),
                reads_per_sample: 100,
                reads: [4000, 4000],
                read_latency_ps: [80_000, 300_000],
                ..PeriodCounters::default()
            };
            scan.counters = by_samples.then(|| Arc::new(counters));
            let plan = policy.decide(&scan, &Budget::fast(2)).plan;
            let mut moved = fast.clone();
            plan.apply(&layout, &mut moved);
            let mut failures = Vec::new();
            if half == 0 && !moved.get(0) {
                let (space, start) = layout.address(0);
                let range = VirtualRange { space, start, size_bytes: PageSize::Huge.bytes() };
                let (direction, reason) = (Direction::Demotion, FailureReason::Busy);
                failures.push(Failure { range, direction, reason });
                // What was to have its place stays as well.
                moved.clone_from(&fast);
            }
            fast = moved;
            policy.outcome(&Outcome { failures, ..Outcome::default() }, PageSize::Huge);
            found[half] = fast.iter_ones().collect();
        }
        found
    }

    #[test]
    fn a_page_that_cannot_leave_keeps_no_other_from_coming_and_leaves_once_it_can() {
        for by_samples in [false, true] {
            for name in ["lfu", "lru", "amp", "terrace"] {
                let build = || crate::policy::build(name, &serde_json::Value::Null, 1).unwrap();
                let [first, _] = halves(build(), by_samples);
                assert_eq!(first, [0, 1], "{name}: page 0 can be moved after all");
                let [first, second] = halves(Box::new(LivePolicy::new(build())), by_samples);
                assert_eq!((first, second), (vec![0, 3], vec![2, 3]), "{name}, {by_samples}");
            }
        }
    }

    #[test]
    fn a_promotion_comes_with_the_coldest_page_that_is_fast() {
        let lru = crate::policy::build("lru", &serde_json::Value::Null, 1).unwrap();
        let mut policy = LivePolicy::new(lru);
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

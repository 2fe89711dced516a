//! First touch: pages stay where they were allocated, in fast memory while it has room, else in
//! slow memory (nimble paper, section 3.2). The baseline without migration.
//!
//! The one exception: pages that exceed the budget are demoted, the latest to arrive first, as
//! first touch with that much fast memory would have placed them. Of pages first observed in the
//! same scan those with the highest addresses count as the latest.

use crate::builder::PlanBuilder;
use crate::features::FeatureCounter;
use crate::parameters::NoParameters;
use crate::plan::{Decision, Plan};
use crate::policy::{Policy, PolicyKind, parameters};
use crate::remap::Remap;
use crate::scan::{Budget, Scan};
use crate::select::MoveLimits;

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "first-touch",
    summary: "leaves pages where they were first placed, fast memory until it is full; demotes only what exceeds the limit",
    advice: "as the baseline that others are compared with; moving pays only where it is beaten",
    source: "nimble paper, section 3.2",
    parameters: NoParameters::DOCS,
    build: |value, _seed| {
        let NoParameters {} = parameters("first-touch", value)?;
        Ok(Box::new(FirstTouch::default()))
    },
};

#[derive(Debug, Default)]
struct FirstTouch {
    features: FeatureCounter,
    /// In which change of the layout each page came, from 0. All changes past the 65,535th count
    /// as one.
    arrival: Vec<u16>,
    changes: u16,
}

impl FirstTouch {
    fn remap(&mut self, remap: &Remap) {
        self.arrival = remap.values(&self.arrival, self.changes, remap.new_pages());
        self.changes = self.changes.saturating_add(1);
    }

    /// Demotes `count` pages of fast memory, the latest first.
    fn demote_latest(&self, scan: &Scan, mut count: u64) -> Plan {
        let mut plan = PlanBuilder::new(&scan.layout);
        if count == 0 {
            return plan.finish();
        }
        let mut residents = vec![0u64; usize::from(self.changes) + 1];
        scan.fast.iter_ones().for_each(|page| residents[usize::from(self.arrival[page])] += 1);
        let mut last = residents.len() - 1;
        while residents[last] < count {
            count -= residents[last];
            last -= 1;
        }
        // Of those that came in change `last`, the first ones stay.
        let mut stay = residents[last] - count;
        for (word, &fast) in scan.fast.words().iter().enumerate() {
            let (mut left, mut down) = (fast, 0);
            while left != 0 {
                let bit = left & left.wrapping_neg();
                let page = 64 * word + bit.trailing_zeros() as usize;
                let arrival = usize::from(self.arrival[page]);
                if arrival == last && stay > 0 {
                    stay -= 1;
                } else if arrival >= last {
                    down |= bit;
                }
                left ^= bit;
            }
            plan.word(word, 0, down);
        }
        plan.finish()
    }
}

impl Policy for FirstTouch {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        if let Some(remap) = self.features.follow(scan) {
            self.remap(&remap);
        }
        let (features, resident) = self.features.count(scan);
        let due = MoveLimits::new(budget, resident, 0, 0).demotions;
        Decision { plan: self.demote_latest(scan, due), applied: KIND.name, features }
    }

    fn most_moved_pages(&self, _budget: &Budget) -> u64 {
        0
    }

    fn metadata_bytes(&self) -> usize {
        self.features.size_bytes() + self.arrival.capacity() * size_of::<u16>()
    }
}

//! Interleave: pages of fast and slow memory alternate in the proportion of the budget, in the
//! order of their addresses (the weighted interleaving that Linux calls `MPOL_WEIGHTED_INTERLEAVE`;
//! the radiant paper, sections 2.3 and 6.4, has it as a baseline). Accesses are not used.
//!
//! A page is misplaced when, with it, the number of fast pages up to its address leaves the
//! proportion by a page or more; only misplaced pages move. So pages that a machine allocated
//! alternately stay where they are, and when the group grows only as many move as the new
//! proportion asks for.

use crate::bits::PageBits;
use crate::builder::PlanBuilder;
use crate::features::FeatureCounter;
use crate::parameters::NoParameters;
use crate::plan::{Decision, Plan};
use crate::policy::{Allocation, Policy, PolicyKind, parameters};
use crate::scan::{Budget, Scan};
use crate::select::{MoveLimits, first_bits};

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "interleave",
    summary: "alternates pages between the tiers in proportion to the budget",
    advice: "where bandwidth, not latency, is the limit: both tiers are read at once",
    source: "radiant paper, sections 2.3 and 6.4; weighted interleaving of Linux",
    parameters: NoParameters::DOCS,
    build: |value, _seed| {
        let NoParameters {} = parameters("interleave", value)?;
        Ok(Box::new(Interleave::default()))
    },
};

#[derive(Debug, Default)]
struct Interleave {
    features: FeatureCounter,
}

impl Policy for Interleave {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        self.features.follow(scan);
        let (features, resident) = self.features.count(scan);
        Decision { plan: plan(scan, budget, resident), applied: KIND.name, features }
    }

    fn most_moved_pages(&self, _budget: &Budget) -> u64 {
        0
    }

    fn allocation(&self) -> Allocation {
        Allocation::Interleave
    }

    fn metadata_bytes(&self) -> usize {
        self.features.size_bytes()
    }
}

fn plan(scan: &Scan, budget: &Budget, resident: u64) -> Plan {
    let (mut ups, mut downs) = (PageBits::new(scan.pages()), PageBits::new(scan.pages()));
    misplaced(&scan.fast, budget.fast_pages, |page, up| {
        if up { ups.set(page, true) } else { downs.set(page, true) }
    });
    let allowed = MoveLimits::new(budget, resident, ups.count() as u64, downs.count() as u64);
    let (mut up_limit, mut down_limit) = (allowed.ups(), allowed.downs());
    let mut plan = PlanBuilder::new(&scan.layout);
    for (word, (&up, &down)) in ups.words().iter().zip(downs.words()).enumerate() {
        plan.word(word, first_bits(up, &mut up_limit), first_bits(down, &mut down_limit));
    }
    plan.finish()
}

/// Walks the pages in order and calls `each` for those that break the proportion: of the first
/// `i` of `n` pages, at least the whole part of `i * fast_pages / n` less one are to be fast, and
/// no more than that rounded up.
fn misplaced(fast: &PageBits, fast_pages: u64, mut each: impl FnMut(usize, bool)) {
    let pages = fast.len() as u64;
    let fast_pages = fast_pages.min(pages);
    // `whole` and `rest`: quotient and remainder of i * fast_pages / pages.
    let (mut whole, mut rest, mut placed) = (0u64, 0u64, 0u64);
    for page in 0..fast.len() {
        rest += fast_pages;
        if rest >= pages {
            rest -= pages;
            whole += 1;
        }
        let most = whole + u64::from(rest > 0);
        let is_fast = fast.get(page);
        let with = placed + u64::from(is_fast);
        if with > most {
            each(page, false);
        } else if with + 1 < whole {
            each(page, true);
            placed += 1;
        } else {
            placed = with;
        }
    }
}

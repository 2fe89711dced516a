//! The offline optimum: what migration could do at most, with knowledge of the future and the costs
//! of moves counted. Not a policy for use: a ceiling to compare policies with.
//!
//! It gets an oracle trace of the program ([`Policy::set_oracle`]), puts prices on fast memory
//! ([`crate::oracle`]), and at the end of each period moves the pages whose gain from being fast
//! exceeds that of the page that makes room for them by more than both moves cost, the greatest
//! difference first. How far the program has come is given by its references, or by the
//! period where references are not counted.
//!
//! How exact: its result is a real run, within the machine's periods, budgets and costs; a
//! policy that is luckier in a period could beat it by a little. What no policy can beat is
//! [`Outlook::bound_ns`]; `docs/policies.md` has both. Machines without an oracle trace refuse
//! it. Without a trace it moves only the pages that exceed its budget.

use std::sync::Arc;

use crate::bits::PageBits;
use crate::builder::PlanBuilder;
use crate::features::FeatureCounter;
use crate::oracle::{OracleTrace, Outlook, Purpose};
use crate::parameters::NoParameters;
use crate::plan::Decision;
use crate::policy::{Policy, PolicyKind, parameters};
use crate::scan::{Budget, Scan};
use crate::select::MoveLimits;

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "optimum",
    summary: "offline: moves what the future, known beforehand, makes worth it; a ceiling",
    advice: "as the yardstick for others in interval simulation; never live, for it needs the future",
    source: "Lagrange prices of fast memory and dynamic programming, docs/policies.md",
    parameters: NoParameters::DOCS,
    build: |value, _seed| {
        let NoParameters {} = parameters(KIND.name, value)?;
        Ok(Box::new(Optimum::default()))
    },
};

#[derive(Debug, Default)]
struct Optimum {
    features: FeatureCounter,
    future: Option<Arc<OracleTrace>>,
    /// The prices for this many pages of fast memory.
    outlook: Option<(u64, Outlook)>,
}

impl Optimum {
    /// The outlook for a budget. Small changes of the budget do not change prices by much.
    fn outlook(&mut self, fast_pages: u64) -> Option<&Outlook> {
        let future = self.future.as_ref()?;
        let near = |pages: u64| pages.abs_diff(fast_pages) <= pages / 16;
        if self.outlook.as_ref().is_none_or(|(pages, _)| !near(*pages)) {
            self.outlook = Some((fast_pages, Outlook::solve(future, fast_pages, Purpose::Plan)));
        }
        self.outlook.as_ref().map(|(_, outlook)| outlook)
    }
}

impl Policy for Optimum {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn needs_oracle(&self) -> bool {
        true
    }

    fn set_oracle(&mut self, future: Arc<OracleTrace>) {
        self.future = Some(Arc::new(future.by_periods()));
        self.outlook = None;
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        self.features.follow(scan);
        let (features, resident) = self.features.count(scan);
        let (up_ns, down_ns) =
            self.future.as_ref().map_or((0.0, 0.0), |f| (f.promotion_ns, f.demotion_ns));
        let (mut slow, mut fast) = (Vec::new(), Vec::new());
        if let Some(outlook) = self.outlook(budget.fast_pages) {
            let progress = scan.counters.as_ref().map_or(scan.period + 1, |m| m.references);
            let span = outlook.span_at(progress);
            for page in 0..scan.pages() {
                let (space, address) = scan.layout.address(page);
                if scan.fast.get(page) {
                    fast.push((outlook.loss_ns(space, address, span), page));
                } else {
                    let gain = outlook.gain_ns(space, address, span);
                    if gain > up_ns {
                        slow.push((gain, page));
                    }
                }
            }
            slow.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        } else {
            fast.extend(scan.fast.iter_ones().map(|page| (0.0, page)));
        }
        fast.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        let allowed = MoveLimits::new(budget, resident, slow.len() as u64, resident);
        let (mut ups, mut downs) = (PageBits::new(scan.pages()), PageBits::new(scan.pages()));
        let (due, rest) = fast.split_at(allowed.demotions as usize);
        due.iter().for_each(|&(_, page)| downs.set(page, true));
        let (into_room, others) = slow.split_at(allowed.promotions as usize);
        into_room.iter().for_each(|&(_, page)| ups.set(page, true));
        let pairs = others.iter().zip(rest).take(allowed.exchanges as usize);
        for (&(gain, up), &(loss, down)) in pairs {
            if gain - loss.max(-up_ns) <= up_ns + down_ns {
                break;
            }
            ups.set(up, true);
            downs.set(down, true);
        }
        // Demoted pages wait for no other page, so the program loses less than by exchanges.
        let plan = PlanBuilder::apart(&scan.layout, &ups, &downs);
        Decision { plan, applied: KIND.name, features }
    }

    fn metadata_bytes(&self) -> usize {
        // Its oracle trace is not metadata of pages.
        self.features.size_bytes()
    }
}

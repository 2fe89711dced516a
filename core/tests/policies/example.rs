//! Example: promotes pages that were accessed in two periods in a row, in place of pages that were
//! accessed in neither.

use terrace_core::builder::PlanBuilder;
use terrace_core::declare_parameters;
use terrace_core::features::FeatureCounter;
use terrace_core::plan::Decision;
use terrace_core::policy::{Policy, PolicyKind, parameters};
use terrace_core::scan::{Budget, Scan};
use terrace_core::select::MoveLimits;

declare_parameters! {
    struct Parameters {
        promotions: usize = 1000, from 1 to 1000000 => "pages that are promoted in a period, at most";
    }
}

pub const KIND: PolicyKind = PolicyKind {
    name: "example",
    summary: "keeps pages that are accessed again in fast memory",
    advice: "when to take it, and when not",
    source: "the paper and its section",
    parameters: Parameters::DOCS,
    build: |value, _seed| {
        let parameters = parameters(KIND.name, value)?;
        Ok(Box::new(Example {
            parameters,
            features: FeatureCounter::default(),
            before: Vec::new(),
        }))
    },
};

struct Example {
    parameters: Parameters,
    features: FeatureCounter,
    /// Whether each page was accessed in the period before.
    before: Vec<bool>,
}

impl Policy for Example {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        // Pages have come or gone: what is kept by page follows its page.
        if let Some(remap) = self.features.follow(scan) {
            self.before = remap.values(&self.before, false, remap.new_pages());
        }
        let (features, resident) = self.features.count(scan);
        let pages = |fast: bool| (0..scan.pages()).filter(move |&p| scan.fast.get(p) == fast);
        let is_hot = |&p: &usize| scan.accessed.get(p) && self.before[p];
        let is_idle = |&p: &usize| !scan.accessed.get(p) && !self.before[p];
        let up: Vec<usize> = pages(false).filter(is_hot).take(self.parameters.promotions).collect();
        let mut down: Vec<usize> = pages(true).filter(is_idle).collect();
        // Demotions that are due come first, free room next, and then pairs: all within the budget.
        let limits = MoveLimits::new(budget, resident, up.len() as u64, down.len() as u64);
        // Over budget, pages in use are demoted where no idle ones are left.
        down.extend(pages(true).filter(|p| !is_idle(p)));
        down.truncate(limits.downs() as usize);
        down.sort_unstable();
        let mut plan = PlanBuilder::new(&scan.layout);
        up[..limits.ups() as usize].iter().for_each(|&page| plan.promote(page..page + 1));
        down.iter().for_each(|&page| plan.demote(page..page + 1));
        self.before = (0..scan.pages()).map(|page| scan.accessed.get(page)).collect();
        Decision { plan: plan.finish(), applied: KIND.name, features }
    }

    fn metadata_bytes(&self) -> usize {
        self.features.size_bytes() + self.before.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use terrace_core::bits::PageBits;
    use terrace_core::page::{Layout, PageSize};

    #[test]
    fn a_page_that_is_accessed_twice_takes_the_place_of_an_idle_one() {
        // Four pages, the first is fast; page 2 is accessed in both periods.
        let layout = Arc::new(Layout::contiguous(PageSize::Base, 4));
        let mut policy = (KIND.build)(&serde_json::Value::Null, 0).unwrap();
        let only = |page: usize| (0..4).map(|p| p == page).collect::<PageBits>();
        for (period, expected) in [(0, 0), (1, 1)] {
            let scan = Scan::new(period, Arc::clone(&layout), only(2), only(0));
            let plan = policy.decide(&scan, &Budget::fast(1)).plan;
            assert_eq!(plan.exchanges.len(), expected, "in period {period}");
        }
    }
}

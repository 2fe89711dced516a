//! A group of pages under a policy: the smallest machine that can execute plans. It checks every
//! plan by the rules that all policies must keep.

use std::sync::Arc;

use serde_json::Value;
use terrace_core::bits::PageBits;
use terrace_core::counts::AccessCounts;
use terrace_core::page::{Layout, PageSize, VirtualRange};
use terrace_core::plan::{Decision, Plan};
use terrace_core::policies::REGISTRY;
use terrace_core::policy::{Policy, PolicyError, PolicyKind};
use terrace_core::scan::{Budget, Scan};

/// The template of `CONTRIBUTING.md`.
static EXAMPLE: PolicyKind = crate::example::KIND;

/// All policies, and the template for more.
fn kinds() -> impl Iterator<Item = &'static PolicyKind> {
    REGISTRY.iter().chain([&EXAMPLE])
}

/// Their names.
pub fn policies() -> impl Iterator<Item = &'static str> {
    kinds().map(|kind| kind.name)
}

/// The policy of a name.
pub fn build(name: &str, parameters: &Value) -> Result<Box<dyn Policy>, PolicyError> {
    let kind = kinds().find(|kind| kind.name == name).unwrap_or_else(|| panic!("no {name}"));
    (kind.build)(parameters, 42)
}

pub struct Model {
    pub policy: Box<dyn Policy>,
    pub layout: Arc<Layout>,
    pub fast: PageBits,
    pub budget: Budget,
    pub lost_periods: u32,
    period: u64,
}

impl Model {
    /// `pages` huge pages, the first of them in fast memory as far as it goes.
    pub fn new(policy: &str, pages: usize, fast_pages: u64) -> Self {
        let layout = Layout::contiguous(PageSize::Huge, pages as u64);
        let fast = (0..pages).map(|page| (page as u64) < fast_pages).collect();
        Self::placed(policy, layout, fast, Budget::fast(fast_pages))
    }

    pub fn placed(name: &str, layout: Layout, fast: PageBits, budget: Budget) -> Self {
        Model {
            policy: build(name, &Value::Null).unwrap(),
            layout: Arc::new(layout),
            fast,
            budget,
            lost_periods: 0,
            period: 0,
        }
    }

    /// A period in which the pages that `accessed` names were accessed; executes the plan.
    pub fn period(&mut self, accessed: impl Fn(usize) -> bool) -> Decision {
        let decision = self.observe(accessed);
        decision.plan.apply(&self.layout, &mut self.fast);
        decision
    }

    /// A period of so many samples, of each page in so many of which it was accessed; executes the
    /// plan.
    pub fn sampled_period(&mut self, samples: u8, count: impl Fn(usize) -> u8) -> Decision {
        let counts: Arc<[u8]> = (0..self.layout.pages()).map(count).collect();
        let accessed = counts.iter().map(|&count| count > 0).collect();
        let scan = Scan::new(self.period, Arc::clone(&self.layout), accessed, self.fast.clone());
        let scan = scan.with_counts(AccessCounts { samples, interval_us: 50_000, counts });
        let decision = self.decide(scan);
        decision.plan.apply(&self.layout, &mut self.fast);
        decision
    }

    /// A period whose plan is not executed, only checked.
    pub fn observe(&mut self, accessed: impl Fn(usize) -> bool) -> Decision {
        let accessed = (0..self.layout.pages()).map(accessed).collect();
        let scan = Scan::new(self.period, Arc::clone(&self.layout), accessed, self.fast.clone());
        self.decide(scan)
    }

    fn decide(&mut self, scan: Scan) -> Decision {
        let mut scan = scan;
        scan.lost_periods = self.lost_periods;
        self.period += 1;
        let decision = self.policy.decide(&scan, &self.budget);
        check(&decision, &scan, &self.budget);
        decision
    }

    /// Pages in fast memory.
    pub fn resident(&self) -> u64 {
        self.fast.count() as u64
    }
}

/// Pages moved, both ways.
pub fn moved(plan: &Plan, page_size: PageSize) -> u64 {
    let (up, down) = plan.pages(page_size);
    up + down
}

/// What every plan must keep to.
pub fn check(decision: &Decision, scan: &Scan, budget: &Budget) {
    let (plan, layout) = (&decision.plan, &scan.layout);
    let size = layout.page_size();
    let mut after = scan.fast.clone();
    let mut seen = PageBits::new(scan.pages());
    let mut go = |range: &VirtualRange, from_fast: bool| {
        assert!(range.size_bytes > 0 && range.size_bytes.is_multiple_of(size.bytes()));
        for page in 0..range.pages(size) {
            let address = range.start + page * size.bytes();
            let index = layout.index(range.space, address).expect("a page of the group");
            assert_eq!(layout.address(index), (range.space, address), "whole pages");
            assert!(!seen.get(index), "page {index} is in the plan twice");
            seen.set(index, true);
            assert_eq!(scan.fast.get(index), from_fast, "page {index} is not where it leaves from");
            after.set(index, !from_fast);
        }
    };
    plan.promotions.iter().for_each(|range| go(range, false));
    plan.demotions.iter().for_each(|range| go(range, true));
    for pair in &plan.exchanges {
        assert_eq!(pair.up.size_bytes, pair.down.size_bytes);
        go(&pair.up, false);
        go(&pair.down, true);
    }
    let mut applied = scan.fast.clone();
    plan.apply(layout, &mut applied);
    assert_eq!(applied, after, "Plan::apply does what the plan says");

    let (before, after) = (scan.fast.count() as u64, after.count() as u64);
    assert!(moved(plan, size) <= budget.moved_pages, "more moves than allowed");
    if budget.moved_pages >= before.saturating_sub(budget.fast_pages) {
        assert!(after <= budget.fast_pages, "over budget after the plan");
    } else {
        assert_eq!(after, before - budget.moved_pages, "demotions that are due come first");
    }
    for ratio in [
        decision.features.hit_ratio,
        decision.features.hit_ratio_of_all,
        decision.features.stability,
        decision.features.accessed_ratio,
    ] {
        assert!((0.0..=1.0).contains(&ratio));
    }
}

//! TPP: tiering as Linux does it by hint faults, with demotion ahead of need ("TPP: Transparent
//! Page Placement for CXL-Enabled Tiered-Memory", Maruf et al., ASPLOS 2023, sections 5.1 to 5.3;
//! Linux since 5.18 and 6.1, `numa_balancing` mode 2 and `demotion_enabled`).
//!
//! - **Promotion.** A page in slow memory that is accessed a second time within the *hot
//!   threshold* is promoted. Like Linux, which holds promotions at a rate and moves the threshold
//!   by a sixteenth when more or fewer pages are candidates than that, the policy tightens the
//!   threshold while candidates exceed the limit by a tenth and relaxes it while they are a tenth
//!   below.
//! - **Demotion** is apart from allocation and ahead of it: free fast memory is kept above a
//!   watermark (TPP's `demote_scale_factor`, 2 %) by demoting from the inactive end. Promotions may
//!   use that headroom: only the bound limits them, not the watermark.
//!
//! What is simplified:
//! - A hint fault shows when a page was touched, to the millisecond; an accessed bit in which
//!   period. The threshold is kept in sixteenths of a period and compared in whole ones.
//! - Hint faults sample a part of memory at a time (256 MB a scan) and cost a fault each; here
//!   every page of slow memory is scanned in every period at no cost.
//! - The inactive list's end is the page of the greatest age; a page is inactive when it was not
//!   accessed for `inactive_periods` periods, one of which is its second chance.
//! - On live Linux `kswapd` demotes while promotion goes on. Here one plan does both: as many
//!   inactive pages are demoted as promotion and the watermark need. Pages are not exchanged.

use crate::bits::PageBits;
use crate::builder::PlanBuilder;
use crate::declare_parameters;
use crate::features::FeatureCounter;
use crate::hotness::{Hotness, NEVER};
use crate::plan::{Decision, Plan};
use crate::policy::{Policy, PolicyKind, parameters};
use crate::scan::{Budget, Scan};
use crate::select::first_bits;

declare_parameters! {
    struct Parameters {
        hot_threshold_periods: u8 = 1, from 1 to 64
            => "the second access must follow within so many periods";
        promote_limit_pages: u64 = 0
            => "pages promoted in a period at most; the threshold follows it. 0: no limit";
        watermark_ratio: f64 = 0.02, from 0 to 1 => "part of fast memory that demotion keeps free";
        inactive_periods: u8 = 2, from 1 to 64
            => "periods without an access after which a page may be demoted";
    }
}

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "tpp",
    summary: "as Linux: promotes on the second access, demotes ahead of need",
    advice: "to have Linux's NUMA balancing beside others in a simulation; live, '--rivals linux' is the real one",
    source: "TPP, ASPLOS 2023, section 5; Linux numa_balancing mode 2",
    parameters: Parameters::DOCS,
    build: |value, _seed| Ok(Box::new(Tpp::new(parameters(KIND.name, value)?))),
};

#[derive(Debug)]
struct Tpp {
    parameters: Parameters,
    features: FeatureCounter,
    hotness: Hotness,
    /// Ages before the scan, from which the time of the access before this one follows.
    ages_before: Vec<u8>,
    /// The hot threshold in sixteenths of a period.
    threshold: u32,
}

impl Tpp {
    fn new(parameters: Parameters) -> Self {
        let p = &parameters;
        Tpp {
            features: FeatureCounter::default(),
            hotness: Hotness::new(),
            ages_before: Vec::new(),
            threshold: 16 * u32::from(p.hot_threshold_periods),
            parameters,
        }
    }

    /// Pages of slow memory that were accessed now and within the threshold before.
    fn candidates(&self, scan: &Scan) -> PageBits {
        let periods = (self.threshold / 16).max(1);
        let mut candidates = PageBits::new(scan.pages());
        let words = scan.accessed.words().iter().zip(scan.fast.words());
        for (word, (&accessed, &fast)) in words.enumerate() {
            let mut left = accessed & !fast;
            while left != 0 {
                let page = 64 * word + left.trailing_zeros() as usize;
                left &= left - 1;
                // The age before this scan counts from the scan before it; what was lost since is time
                // that has passed, too.
                let before = self.ages_before[page];
                let since = u32::from(before).saturating_add(scan.lost_periods);
                if before != NEVER && since < periods {
                    candidates.set(page, true);
                }
            }
        }
        candidates
    }

    /// Pages of fast memory by age, the oldest class last: how many there are of each.
    fn by_age(&self, scan: &Scan) -> [u64; 128] {
        let mut counts = [0; 128];
        for page in scan.fast.iter_ones() {
            counts[usize::from(self.hotness.age_classes()[page])] += 1;
        }
        counts
    }

    /// Demotes this many pages, the oldest first.
    fn demote(&self, scan: &Scan, counts: &[u64; 128], pages: u64, plan: &mut PlanBuilder<'_>) {
        let (mut left, mut class) = (pages, 128);
        while left > 0 && class > 0 {
            class -= 1;
            left = left.saturating_sub(counts[class]);
        }
        // All that are older than `class`, and of that class as many as are still needed.
        let older: u64 = counts[class + usize::from(class < 128)..].iter().sum();
        let mut of_class = pages.saturating_sub(older);
        let ages = self.hotness.age_classes();
        for (word, &fast) in scan.fast.words().iter().enumerate() {
            if pages == 0 {
                return;
            }
            let (mut down, mut at) = (0u64, 0u64);
            let mut left = fast;
            while left != 0 {
                let bit = left & left.wrapping_neg();
                let age = usize::from(ages[64 * word + bit.trailing_zeros() as usize]);
                if age > class {
                    down |= bit;
                } else if age == class {
                    at |= bit;
                }
                left ^= bit;
            }
            plan.word(word, 0, down | first_bits(at, &mut of_class));
        }
    }

    /// Linux's `numa_promotion_adjust_threshold`.
    fn adjust(&mut self, candidates: u64) {
        let limit = self.parameters.promote_limit_pages;
        let most = 16 * u32::from(self.parameters.hot_threshold_periods);
        if limit == 0 {
            return;
        }
        let step = (2 * most / 16).max(1);
        if candidates * 10 > limit * 11 {
            self.threshold = self.threshold.saturating_sub(step).max(step);
        } else if candidates * 10 < limit * 9 {
            self.threshold = (self.threshold + step).min(most);
        }
    }
}

impl Policy for Tpp {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        if let Some(remap) = self.features.follow(scan) {
            self.hotness.remap(&remap);
        }
        let (features, resident) = self.features.count(scan);
        self.ages_before.clear();
        self.ages_before.extend_from_slice(self.hotness.age_classes());
        self.hotness.observe(scan);

        let candidates = self.candidates(scan);
        let wanted = candidates.count() as u64;
        let limit = match self.parameters.promote_limit_pages {
            0 => u64::MAX,
            pages => pages,
        };
        let by_age = self.by_age(scan);
        let inactive: u64 = by_age[usize::from(self.parameters.inactive_periods)..].iter().sum();
        let watermark = (budget.fast_pages as f64 * self.parameters.watermark_ratio).ceil() as u64;
        let watermark = watermark.min(budget.fast_pages);

        // Demotions that are due come first and take any page they must.
        let due = resident.saturating_sub(budget.fast_pages).min(budget.moved_pages);
        let moves = budget.moved_pages - due;
        let room = budget.fast_pages.saturating_sub(resident);
        let inactive = inactive.saturating_sub(due);
        // Promotion uses free memory, headroom too, then the memory that demotion frees for it: two
        // moves.
        let into_room = wanted.min(limit).min(room).min(moves);
        let behind = (wanted.min(limit) - into_room).min(inactive).min((moves - into_room) / 2);
        let promotions = if due > 0 { 0 } else { into_room + behind };
        let free_after = if due > 0 { 0 } else { room - into_room };
        let left = moves - into_room - 2 * behind;
        let ahead = watermark.saturating_sub(free_after).min(inactive - behind).min(left);
        let demotions = due + if due > 0 { ahead } else { behind + ahead };
        self.adjust(wanted);

        let (mut ups, mut downs) = (PlanBuilder::new(&scan.layout), PlanBuilder::new(&scan.layout));
        let mut left = promotions;
        for (word, &bits) in candidates.words().iter().enumerate() {
            if left == 0 {
                break;
            }
            ups.word(word, first_bits(bits, &mut left), 0);
        }
        self.demote(scan, &by_age, demotions, &mut downs);
        let plan = Plan { promotions: ups.finish().promotions, ..downs.finish() };
        Decision { plan, applied: KIND.name, features }
    }

    fn metadata_bytes(&self) -> usize {
        self.features.size_bytes() + self.hotness.size_bytes() + self.ages_before.capacity()
    }
}

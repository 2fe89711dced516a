//! AMP: the adaptive migration policy (adaptive-migration-policy paper, sections 4 and 5;
//! `docs/coverage.md`, A3, A4). Each period it applies Random, LRU or LFU (algorithm 1):
//!
//! - **Random** when the accessed-page ratio exceeds the fast-memory ratio by more than 20 points;
//! - else **LRU** when its average fast-memory hit ratio is greater than that of LFU;
//! - else **LFU**.
//!
//! The hit ratio is the paper's: accessed pages in fast memory over *all* pages; the average is
//! over the last 36 periods. The policy that was applied is measured by the real placement of the
//! scan. One that was not is emulated (figure 9): it moves pages between *shadow* places, one bit
//! a page, under the same budget as the real one, and is measured by them.
//!
//! Where the paper is silent:
//! - *Warm-up.* "Each workload starts with Random in the warming-up stage" (section 6.6) names no
//!   length. The default is 3 periods, as in the experiment scripts that the authors published.
//! - *While Random is applied* both LRU and LFU are emulated and averaged, so that the first
//!   choice after it rests on evidence. (The scripts stop averaging then.)
//! - *Equal averages* give LFU, as algorithm 1 has it. `switch_margin` (0 by default, as in the
//!   paper) asks more of the policy that is not applied.
//! - *The fast-memory ratio* is the pages that the budget allows over the pages of the group, 1
//!   at most: what a full group has in fast memory.
//! - *Shadow places* begin as the real ones, for new pages too. When a policy stops being
//!   applied, its shadow starts from the real placement that it leaves; when it is applied, it
//!   starts from the real placement.
//! - *Lost periods* enter no average.
//! - *Samples.* Where accessed bits are sampled several times a period, a page counts in both
//!   ratios by the share of samples in which it had been accessed, and LFU goes by that share.

use super::random::RandomFill;
use super::ranked::{Rank, Ties};
use crate::bits::PageBits;
use crate::builder::PlanBuilder;
use crate::declare_parameters;
use crate::features::{FeatureCounter, MovingAverage, part_of, ratio};
use crate::hotness::Hotness;
use crate::plan::{Decision, Features};
use crate::policy::{Policy, PolicyKind, parameters};
use crate::scan::{Budget, Scan};
use crate::select::KeyCounts;

declare_parameters! {
    struct Parameters {
        warmup_periods: u32 = 3 => "periods at the start in which Random is applied";
        window_periods: usize = 36, from 1 to 100000
            => "periods that the moving averages of the hit ratios go back";
        random_margin: f64 = 0.2, from 0 to 1
            => "Random is applied when the accessed-page ratio exceeds the fast-memory ratio by more \
                than this";
        switch_margin: f64 = 0.0, from 0 to 1
            => "average hit ratio by which LRU or LFU must be better to replace the other";
        lru_resident_bonus: u8 = 1 => "resident_bonus of lru";
        lfu_resident_bonus: u8 = 1 => "resident_bonus of lfu";
        ties: String = "resident".to_owned(), written "\"resident\"", one of ["resident", "list"]
            => "ties of lru and lfu (\"resident\" or \"list\")";
    }
}

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "amp",
    summary: "applies Random, LRU or LFU, whichever suits the group at the time",
    advice: "when in doubt, live too: the default; needs accessed bits alone, and picks LRU, LFU or Random by itself",
    source: "adaptive-migration-policy paper, sections 4 and 5, algorithm 1",
    parameters: Parameters::DOCS,
    build: |value, seed| Ok(Box::new(Amp::new(parameters(KIND.name, value)?, seed))),
};

/// The policies that AMP chooses from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Random,
    By(Rank),
}

/// LRU or LFU within AMP.
#[derive(Debug)]
struct Candidate {
    rank: Rank,
    ties: Ties,
    /// Its placement, had the policy been applied; stale while it is applied.
    shadow: PageBits,
    hit_ratios: MovingAverage,
}

impl Candidate {
    fn new(rank: Rank, ties: Ties, window: usize) -> Self {
        let hit_ratios = MovingAverage::new(window);
        Candidate { rank, ties, shadow: PageBits::default(), hit_ratios }
    }
}

#[derive(Debug)]
struct Amp {
    parameters: Parameters,
    features: FeatureCounter,
    hotness: Hotness,
    random: RandomFill,
    lru: Candidate,
    lfu: Candidate,
    applied: Choice,
    periods: u32,
}

impl Amp {
    fn new(parameters: Parameters, seed: u64) -> Self {
        let p = &parameters;
        Amp {
            features: FeatureCounter::default(),
            hotness: Hotness::new(),
            random: RandomFill::new(seed),
            lru: Candidate::new(
                Rank::Recency,
                Ties::new(&p.ties, p.lru_resident_bonus),
                p.window_periods,
            ),
            lfu: Candidate::new(
                Rank::Frequency,
                Ties::new(&p.ties, p.lfu_resident_bonus),
                p.window_periods,
            ),
            applied: Choice::Random,
            periods: 0,
            parameters,
        }
    }

    fn follow(&mut self, scan: &Scan) {
        if let Some(remap) = self.features.follow(scan) {
            self.hotness.remap(&remap);
            for candidate in [&mut self.lru, &mut self.lfu] {
                candidate.shadow = remap.bits_or(&candidate.shadow, &scan.fast);
            }
        }
    }

    /// Adds the hit ratios of this period to the averages.
    fn measure(&mut self, scan: &Scan, features: &Features) {
        for candidate in [&mut self.lru, &mut self.lfu] {
            let hit_ratio = if self.applied == Choice::By(candidate.rank) {
                features.hit_ratio_of_all
            } else {
                part_of(scan.accesses_in(&candidate.shadow), scan.pages() as f64)
            };
            candidate.hit_ratios.push(hit_ratio);
        }
    }

    /// The choice by algorithm 1.
    fn choose(&mut self, scan: &Scan, budget: &Budget, features: &Features) -> Choice {
        let p = &self.parameters;
        self.periods = self.periods.saturating_add(1);
        let pages = scan.pages() as u64;
        let fast_ratio = ratio(budget.fast_pages.min(pages), pages);
        if self.periods <= p.warmup_periods
            || features.accessed_ratio > fast_ratio + p.random_margin
        {
            return Choice::Random;
        }
        let lead = match self.applied {
            Choice::By(Rank::Recency) => -p.switch_margin,
            Choice::By(Rank::Frequency) => p.switch_margin,
            Choice::Random => 0.0,
        };
        if self.lru.hit_ratios.mean() > self.lfu.hit_ratios.mean() + lead {
            Choice::By(Rank::Recency)
        } else {
            Choice::By(Rank::Frequency)
        }
    }
}

impl Policy for Amp {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        self.follow(scan);
        let (mut features, resident) = self.features.count(scan);
        self.measure(scan, &features);
        features.lru_hit_average = Some(self.lru.hit_ratios.mean());
        features.lfu_hit_average = Some(self.lfu.hit_ratios.mean());

        let before = self.applied;
        self.applied = self.choose(scan, budget, &features);
        for candidate in [&mut self.lru, &mut self.lfu] {
            let choice = Choice::By(candidate.rank);
            if before == choice && self.applied != choice {
                candidate.shadow.clone_from(&scan.fast);
            }
        }

        // One pass over memory ages the pages and counts the keys of both candidates, each by the
        // placement that it acts upon: the real one or its shadow.
        let applied = self.applied;
        let real = |rank| applied == Choice::By(rank);
        let (lru, lfu) = (&self.lru, &self.lfu);
        let lru_fast = if real(lru.rank) { &scan.fast } else { &lru.shadow }.words();
        let lfu_fast = if real(lfu.rank) { &scan.fast } else { &lfu.shadow }.words();
        let (mut lru_counts, mut lfu_counts) = (KeyCounts::new(), KeyCounts::new());
        self.hotness.observe_with(scan, |word, ages, idles| {
            lru_counts.count(ages, lru_fast[word]);
            lfu_counts.count(idles, lfu_fast[word]);
        });

        let mut plan = PlanBuilder::new(&scan.layout);
        for (candidate, counts) in [(&mut self.lru, lru_counts), (&mut self.lfu, lfu_counts)] {
            let rank = candidate.rank;
            let selection = candidate.ties.select(&counts, rank, budget, scan.pages());
            let keys = rank.keys(&self.hotness);
            if real(rank) {
                selection.moves(keys, scan.fast.words(), |word, up, down| {
                    plan.word(word, up, down);
                });
            } else {
                selection.place(keys, &mut candidate.shadow);
            }
        }
        let (plan, applied) = match applied {
            Choice::Random => (self.random.plan(scan, budget, resident), "random"),
            Choice::By(rank) => (plan.finish(), rank.policy()),
        };
        Decision { plan, applied, features }
    }

    fn metadata_bytes(&self) -> usize {
        self.features.size_bytes()
            + self.hotness.size_bytes()
            + self.lru.shadow.size_bytes()
            + self.lfu.shadow.size_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Layout, PageSize};
    use std::sync::Arc;

    #[test]
    fn a_policy_that_is_left_goes_on_from_the_real_placement() {
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, 4));
        let place = |bits: u64| PageBits::from_words(vec![bits], 4);
        let mut amp = Amp::new(Parameters::default(), 0);
        // Nothing may move, in the shadows neither.
        let budget = Budget { fast_pages: 2, moved_pages: 0 };
        let period = |amp: &mut Amp, fast: u64| {
            let scan = Scan::new(0, Arc::clone(&layout), place(0), place(fast));
            amp.decide(&scan, &budget).applied
        };
        assert_eq!(period(&mut amp, 0b0011), "random");
        amp.periods = 100;
        amp.applied = Choice::By(Rank::Recency);
        assert_eq!(period(&mut amp, 0b1100), "lfu", "averages are equal");
        assert_eq!(amp.lru.shadow, place(0b1100), "where LRU left the pages");
        assert_eq!(period(&mut amp, 0b1010), "lfu");
        assert_eq!(amp.lru.shadow, place(0b1100), "its own from then on");
    }
}

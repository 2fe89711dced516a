//! The common part of LRU and LFU: fast memory holds the pages whose key is smallest.

use crate::builder::PlanBuilder;
use crate::features::FeatureCounter;
use crate::hotness::{Hotness, IDLE, NEVER};
use crate::plan::Decision;
use crate::policy::Policy;
use crate::scan::{Budget, Scan};
use crate::select::KeyCounts;

/// The key by which pages are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rank {
    /// The age class.
    Recency,
    /// The idle count.
    Frequency,
}

impl Rank {
    /// The policy that places pages by this rank.
    pub fn policy(self) -> &'static str {
        match self {
            Rank::Recency => "lru",
            Rank::Frequency => "lfu",
        }
    }

    /// The key of pages that have no access on record.
    pub fn coldest(self) -> u8 {
        match self {
            Rank::Recency => NEVER,
            Rank::Frequency => IDLE,
        }
    }

    /// The keys of all pages.
    pub fn keys(self, hotness: &Hotness) -> &[u8] {
        match self {
            Rank::Recency => hotness.age_classes(),
            Rank::Frequency => hotness.idle_counts(),
        }
    }
}

/// A policy that keeps the pages of the smallest keys in fast memory.
#[derive(Debug)]
pub(super) struct Ranked {
    rank: Rank,
    resident_bonus: u8,
    features: FeatureCounter,
    hotness: Hotness,
}

impl Ranked {
    pub fn new(rank: Rank, resident_bonus: u8) -> Self {
        Ranked {
            rank,
            resident_bonus,
            features: FeatureCounter::default(),
            hotness: Hotness::new(),
        }
    }
}

impl Policy for Ranked {
    fn name(&self) -> &'static str {
        self.rank.policy()
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        if let Some(remap) = self.features.follow(scan) {
            self.hotness.remap(&remap);
        }
        let (features, _) = self.features.count(scan);
        let fast = scan.fast.words();
        let mut counts = KeyCounts::new();
        match self.rank {
            Rank::Recency => {
                self.hotness.observe_with(scan, |word, ages, _| counts.count(ages, fast[word]));
            }
            Rank::Frequency => {
                self.hotness.observe_with(scan, |word, _, idles| counts.count(idles, fast[word]));
            }
        }
        let selection = counts.select(self.rank.coldest(), budget, self.resident_bonus);
        let mut plan = PlanBuilder::new(&scan.layout);
        selection.moves(self.rank.keys(&self.hotness), fast, |word, up, down| {
            plan.word(word, up, down);
        });
        Decision { plan: plan.finish(), applied: self.rank.policy(), features }
    }

    fn metadata_bytes(&self) -> usize {
        self.features.size_bytes() + self.hotness.size_bytes()
    }
}

//! The common part of LRU and LFU: fast memory holds the pages whose key is smallest.

use crate::builder::PlanBuilder;
use crate::features::FeatureCounter;
use crate::hotness::{Hotness, IDLE, NEVER};
use crate::plan::Decision;
use crate::policy::Policy;
use crate::scan::{Budget, Scan};
use crate::select::{KeyCounts, Selection};

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

/// Which of two equally hot pages is in fast memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ties {
    /// The one that is there, which counts as hotter by a bonus in steps of the key.
    Resident(u8),
    /// The one that is not: the order of a sorted list that begins with the pages of slow memory.
    List,
}

impl Ties {
    /// From the parameters `ties` and `resident_bonus`.
    pub fn new(ties: &str, resident_bonus: u8) -> Self {
        if ties == "list" { Ties::List } else { Ties::Resident(resident_bonus) }
    }

    /// The pages that move when those of the smallest keys belong in fast memory.
    pub fn select(
        self,
        counts: &KeyCounts,
        rank: Rank,
        budget: &Budget,
        pages: usize,
    ) -> Selection {
        match self {
            Ties::Resident(bonus) => counts.select(rank.coldest(), budget, bonus),
            Ties::List => counts.select_by_list(rank.coldest(), budget, pages as u64),
        }
    }
}

/// A policy that keeps the pages of the smallest keys in fast memory.
#[derive(Debug)]
pub(super) struct Ranked {
    rank: Rank,
    ties: Ties,
    features: FeatureCounter,
    hotness: Hotness,
}

impl Ranked {
    pub fn new(rank: Rank, ties: Ties) -> Self {
        Ranked { rank, ties, features: FeatureCounter::default(), hotness: Hotness::new() }
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
        let selection = self.ties.select(&counts, self.rank, budget, scan.pages());
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

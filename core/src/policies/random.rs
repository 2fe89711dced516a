//! Random: fill fast memory, then stay (adaptive-migration-policy paper, section 3.1;
//! `docs/coverage.md`, A2). New pages go to fast memory while there is room; when pages in fast memory
//! are freed, pages of slow memory chosen at random take their room. Nothing else moves.
//!
//! Where the paper is silent: when the budget shrinks, the pages that must go are chosen at
//! random too.

use crate::bits::PageBits;
use crate::builder::PlanBuilder;
use crate::features::FeatureCounter;
use crate::parameters::NoParameters;
use crate::plan::{Decision, Plan};
use crate::policy::{Policy, PolicyKind, parameters};
use crate::scan::{Budget, Scan};
use crate::select::MoveLimits;
use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "random",
    summary: "fills fast memory, then stays; refills at random what is freed",
    advice: "where memory is used all alike, so that no order is to be found: it moves next to nothing",
    source: "adaptive-migration-policy paper, section 3.1",
    parameters: NoParameters::DOCS,
    build: |value, seed| {
        let NoParameters {} = parameters("random", value)?;
        let fill = RandomFill::new(seed);
        Ok(Box::new(Random { features: FeatureCounter::default(), fill }))
    },
};

#[derive(Debug)]
struct Random {
    features: FeatureCounter,
    fill: RandomFill,
}

impl Policy for Random {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        self.features.follow(scan);
        let (features, resident) = self.features.count(scan);
        let plan = self.fill.plan(scan, budget, resident);
        Decision { plan, applied: KIND.name, features }
    }

    fn metadata_bytes(&self) -> usize {
        self.features.size_bytes()
    }
}

/// Makes the plans of Random; AMP uses it too.
#[derive(Debug)]
pub(super) struct RandomFill {
    random: Pcg64Mcg,
}

impl RandomFill {
    pub fn new(seed: u64) -> Self {
        RandomFill { random: Pcg64Mcg::seed_from_u64(seed) }
    }

    /// Promotes random pages into free room, or demotes random pages that exceed the budget.
    /// Draws as many random numbers as pages move, or stay if those are fewer.
    pub fn plan(&mut self, scan: &Scan, budget: &Budget, resident: u64) -> Plan {
        let slow = scan.pages() as u64 - resident;
        let allowed = MoveLimits::new(budget, resident, slow, 0);
        let up = allowed.promotions > 0;
        let (from, count) = match up {
            true => (slow, allowed.promotions),
            false => (resident, allowed.demotions),
        };
        let mut plan = PlanBuilder::new(&scan.layout);
        if count > 0 {
            let chosen = self.choose(count as usize, from as usize);
            let pages = scan.pages();
            let mut rank = 0;
            for (word, &fast) in scan.fast.words().iter().enumerate() {
                let here = !0 >> (64 - (pages - 64 * word).min(64));
                let candidates = if up { !fast & here } else { fast };
                let number = candidates.count_ones() as usize;
                if number > 0 {
                    let moves = deposit(chosen.bits_at(rank, number), candidates);
                    rank += number;
                    plan.word(word, if up { moves } else { 0 }, if up { 0 } else { moves });
                }
            }
        }
        plan.finish()
    }

    /// `count` of `from` things, every choice equally likely (Floyd's method, Communications of
    /// the ACM 30(9), 1987).
    fn choose(&mut self, count: usize, from: usize) -> PageBits {
        let leave_out = count > from / 2;
        let draws = if leave_out { from - count } else { count };
        let mut chosen = PageBits::new(from);
        if leave_out {
            chosen.set_range(0..from, true);
        }
        for last in from - draws..from {
            let drawn = self.below(last as u64 + 1) as usize;
            let taken = chosen.get(drawn) != leave_out;
            chosen.set(if taken { last } else { drawn }, !leave_out);
        }
        chosen
    }

    /// A number below `bound`, all equally likely (Lemire's method, arXiv 1805.10941).
    fn below(&mut self, bound: u64) -> u64 {
        let uneven = bound.wrapping_neg() % bound;
        loop {
            let wide = u128::from(self.random.next_u64()) * u128::from(bound);
            if wide as u64 >= uneven {
                return (wide >> 64) as u64;
            }
        }
    }
}

/// Puts the low bits of `bits`, in order, where `mask` has ones.
fn deposit(mut bits: u64, mut mask: u64) -> u64 {
    let mut result = 0;
    while mask != 0 {
        let lowest = mask & mask.wrapping_neg();
        if bits & 1 != 0 {
            result |= lowest;
        }
        bits >>= 1;
        mask ^= lowest;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_is_about_equally_likely() {
        let mut fill = RandomFill::new(7);
        for count in 0..=6 {
            let mut times = [0u32; 6];
            for _ in 0..6000 {
                let chosen = fill.choose(count, 6);
                assert_eq!(chosen.count(), count);
                chosen.iter_ones().for_each(|i| times[i] += 1);
            }
            let expected = 1000 * count as u32;
            assert!(times.iter().all(|t| t.abs_diff(expected) < 200), "{count}: {times:?}");
        }
    }

    #[test]
    fn bits_are_deposited_in_order() {
        assert_eq!(deposit(0b1011, 0b1101_0010), 0b1001_0010);
        assert_eq!(deposit(!0, !0), !0);
    }
}

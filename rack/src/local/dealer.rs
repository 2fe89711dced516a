//! Which of a node's pages are local and which remote, by the set share ("the memory page allocations
//! are performed across local and remote memory at a fixed ratio", the paper's section IV-B).
//!
//! If pages alternated strictly, every second page of an array would be local, and a program that
//! strides over an even number of pages would use one memory alone: its local hits would depend
//! more on parity than on the share. On a real machine several threads fault at once, so the order
//! of two neighbours is random. So the ratio is exact within every [`HAND`] pages, and their order
//! is random.

use rand_core::RngCore;
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;

use crate::config::Dealing;

/// Pages within which the ratio is exact.
const HAND: usize = 64;

/// Decides which pages are local.
#[derive(Debug, Clone)]
pub struct Dealer {
    dealing: Dealing,
    local_share: f64,
    /// Fraction of a local page left over for the next [`HAND`] pages, less than one.
    owed: f64,
    hand: Vec<bool>,
    random: Pcg64Mcg,
}

impl Dealer {
    /// The dealer of a node.
    pub fn new(dealing: Dealing, local_share: f64, seed: u64) -> Self {
        let random = Pcg64Mcg::seed_from_u64(seed);
        Dealer { dealing, local_share, owed: 0.0, hand: Vec::new(), random }
    }

    /// Whether the next page is local. The answer stays the same until the page is
    /// [dealt](Dealer::dealt).
    pub fn is_local(&mut self) -> bool {
        if self.hand.is_empty() {
            self.draw();
        }
        self.hand.last().copied().unwrap_or(false)
    }

    /// Records that the next page was mapped.
    pub fn dealt(&mut self) {
        self.hand.pop();
    }

    /// How many of the next pages will be remote.
    pub fn remote_among(&self, pages: usize) -> u32 {
        let mut ahead = self.clone();
        let is_remote = |_| {
            let remote = !ahead.is_local();
            ahead.dealt();
            u32::from(remote)
        };
        (0..pages).map(is_remote).sum()
    }

    fn draw(&mut self) {
        let pages = match self.dealing {
            Dealing::InTurns => 1,
            Dealing::Shuffled => HAND,
        };
        self.owed += self.local_share * pages as f64;
        // A share such as 0.1 does not add up exactly.
        let local = ((self.owed + 1e-9).floor() as usize).min(pages);
        self.owed -= local as f64;
        self.hand.extend((0..pages).map(|page| page < local));
        for last in (1..pages).rev() {
            let other = (self.random.next_u64() % (last as u64 + 1)) as usize;
            self.hand.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deal(dealer: &mut Dealer, pages: usize) -> Vec<bool> {
        let mut one = || {
            let local = dealer.is_local();
            assert_eq!(local, dealer.is_local());
            dealer.dealt();
            local
        };
        (0..pages).map(|_| one()).collect()
    }

    #[test]
    fn the_ratio_is_exact_in_every_64_pages_and_no_stride_sees_one_memory_alone() {
        for share in [0.0, 0.2, 0.25, 0.5, 0.6, 1.0] {
            let pages = deal(&mut Dealer::new(Dealing::Shuffled, share, 7), 6400);
            for (hand, dealt) in pages.chunks(64).enumerate() {
                let before = pages[..hand * 64].iter().filter(|&&l| l).count();
                let after = before + dealt.iter().filter(|&&l| l).count();
                let due = share * 64.0 * (hand + 1) as f64;
                assert!((after as f64 - due).abs() < 1.0 + 1e-6, "{share} {hand}: {after} {due}");
            }
        }
        let pages = deal(&mut Dealer::new(Dealing::Shuffled, 0.5, 7), 6400);
        let even = pages.iter().step_by(2).filter(|&&l| l).count() as f64 / 3200.0;
        assert!((even - 0.5).abs() < 0.03, "{even}");
    }

    #[test]
    fn in_turns_every_second_page_is_local_and_a_seed_gives_the_same_order_again() {
        let turns = deal(&mut Dealer::new(Dealing::InTurns, 0.5, 7), 6);
        assert_eq!(turns, [false, true, false, true, false, true]);
        let of = |seed| deal(&mut Dealer::new(Dealing::Shuffled, 0.5, seed), 640);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}

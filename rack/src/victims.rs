//! Which local pages are evicted for migrated ones (section III-E): clock, least recently used, or
//! least often used.

use crate::Time;
use crate::config::VictimPolicy;

/// A policy's view of a node's pages, by page.
pub trait Pages {
    /// Number of pages.
    fn count(&self) -> u32;
    /// Whether a page is in local memory and may be evicted.
    fn may_leave(&self, page: u32) -> bool;
    /// Reads and clears the page's accessed bit.
    fn take_accessed(&mut self, page: u32) -> bool;
    /// Time of the last memory access to the page.
    fn last_access(&self, page: u32) -> Time;
    /// Number of memory accesses to the page.
    fn accesses(&self, page: u32) -> u32;
}

/// A policy and its state.
#[derive(Debug, Clone)]
pub struct Victims {
    policy: VictimPolicy,
    hand: u32,
    /// Pages whose accessed bits were cleared.
    passed: Vec<u32>,
}

impl Victims {
    /// The initial state of a policy.
    pub fn new(policy: VictimPolicy) -> Self {
        Victims { policy, hand: 0, passed: Vec::new() }
    }

    /// Chooses up to `wanted` pages.
    pub fn choose(&mut self, wanted: usize, pages: &mut impl Pages) -> Vec<u32> {
        match self.policy {
            VictimPolicy::Clock => self.clock(wanted, pages),
            VictimPolicy::Lru => least(wanted, pages, |p, page| (p.last_access(page), page)),
            VictimPolicy::Counters => {
                least(wanted, pages, |p, page| (u64::from(p.accesses(page)), page))
            }
        }
    }

    /// Pages that were skipped because they had been accessed, since the last call.
    pub fn passed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.passed)
    }

    fn clock(&mut self, wanted: usize, pages: &mut impl Pages) -> Vec<u32> {
        let count = pages.count();
        let mut chosen = Vec::with_capacity(wanted);
        // Twice around: the first round may only clear bits.
        for _ in 0..2 * u64::from(count) {
            if chosen.len() == wanted {
                break;
            }
            let page = self.hand % count;
            self.hand = (page + 1) % count;
            if !pages.may_leave(page) || chosen.contains(&page) {
                continue;
            }
            if pages.take_accessed(page) {
                self.passed.push(page);
            } else {
                chosen.push(page);
            }
        }
        chosen
    }
}

fn least<P: Pages, K: Ord>(wanted: usize, pages: &P, key: impl Fn(&P, u32) -> K) -> Vec<u32> {
    let mut all: Vec<u32> = (0..pages.count()).filter(|&p| pages.may_leave(p)).collect();
    if wanted < all.len() {
        all.select_nth_unstable_by_key(wanted, |&p| key(pages, p));
        all.truncate(wanted);
    }
    all.sort_unstable_by_key(|&p| key(pages, p));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accessed bit, last access, accesses; page 3 may not be evicted.
    struct Five(Vec<(bool, Time, u32)>);

    impl Pages for Five {
        fn count(&self) -> u32 {
            5
        }
        fn may_leave(&self, page: u32) -> bool {
            page != 3
        }
        fn take_accessed(&mut self, page: u32) -> bool {
            std::mem::take(&mut self.0[page as usize].0)
        }
        fn last_access(&self, page: u32) -> Time {
            self.0[page as usize].1
        }
        fn accesses(&self, page: u32) -> u32 {
            self.0[page as usize].2
        }
    }

    fn five() -> Five {
        Five(vec![(true, 50, 1), (false, 40, 2), (true, 30, 3), (false, 0, 0), (false, 20, 9)])
    }

    #[test]
    fn each_policy_chooses_by_its_own_measure() {
        let choose = |policy| Victims::new(policy).choose(2, &mut five());
        assert_eq!(choose(VictimPolicy::Clock), [1, 4]);
        assert_eq!(choose(VictimPolicy::Lru), [4, 2]);
        assert_eq!(choose(VictimPolicy::Counters), [0, 1]);
    }

    #[test]
    fn the_clock_goes_around_again_when_all_were_accessed() {
        let mut clock = Victims::new(VictimPolicy::Clock);
        let mut pages = five();
        assert_eq!(clock.choose(4, &mut pages), [1, 4, 0, 2]);
        assert_eq!(clock.passed(), [0, 2]);
        assert_eq!(clock.choose(9, &mut pages).len(), 4);
    }
}

//! Equations 1 to 4 (section III-G2): the cost and gain of batches of migrations, a node's score of
//! them, and the controller's NPM from the score.

use crate::Time;

/// Cost and gain of some batches, in picoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Shootdown and invalidation.
    pub invalidation: Time,
    /// Translations filled again: NPM times the time of a TLB miss.
    pub tlb_misses: Time,
    /// Copying pages.
    pub copy: Time,
    /// Time of accesses to victims in remote memory, beyond their local time.
    pub victims: Time,
    /// Accesses to migrated pages in local memory.
    pub accesses: u64,
    /// Gain of reads that the switch's page buffers served: a pool would have taken longer. Figure
    /// 9 counts them with local accesses, and many of a hot page's reads come while its batch is
    /// not yet complete.
    pub buffered: Time,
}

impl Ledger {
    /// Equation 1.
    pub fn overhead(&self) -> Time {
        self.invalidation + self.tlb_misses + self.copy + self.victims
    }

    /// Equation 2: accesses times the difference of remote and local access time, and the gain of
    /// page buffers before.
    pub fn benefit(&self, remote: Time, local: Time) -> Time {
        self.accesses * remote.saturating_sub(local) + self.buffered
    }

    /// Equation 3, in percent, limited to -100 to 100.
    pub fn score(&self, remote: Time, local: Time) -> i32 {
        let (benefit, overhead) = (self.benefit(remote, local) as f64, self.overhead() as f64);
        if overhead == 0.0 {
            return if benefit > 0.0 { 100 } else { 0 };
        }
        ((benefit - overhead) / overhead * 100.0).clamp(-100.0, 100.0) as i32
    }
}

/// Equation 4, at least 1 and at most `most`.
pub fn next_npm(npm: u32, score: i32, most: u32) -> u32 {
    let new = f64::from(npm) + f64::from(npm) * f64::from(score) / 100.0;
    (new.round() as u32).clamp(1, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_equations_are_those_of_the_paper() {
        let ledger = Ledger {
            invalidation: 10,
            tlb_misses: 20,
            copy: 30,
            victims: 40,
            accesses: 15,
            buffered: 0,
        };
        assert_eq!(ledger.overhead(), 100);
        assert_eq!(ledger.benefit(30, 20), 150);
        assert_eq!(ledger.score(30, 20), 50);
        assert_eq!(ledger.score(20, 20), -100);
        assert_eq!(ledger.score(1000, 20), 100);
        assert_eq!(ledger.score(20, 30), -100);
        assert_eq!(Ledger::default().score(2, 1), 0);
        let buffered = Ledger { buffered: 50, ..ledger };
        assert_eq!((buffered.benefit(30, 20), buffered.score(30, 20)), (200, 100));
    }

    #[test]
    fn npm_follows_the_score_within_the_buffers() {
        assert_eq!(next_npm(25, 20, 100), 30);
        assert_eq!(next_npm(25, 100, 100), 50);
        assert_eq!(next_npm(80, 100, 100), 100);
        assert_eq!(next_npm(25, -60, 100), 10);
        assert_eq!(next_npm(25, -100, 100), 1);
    }
}

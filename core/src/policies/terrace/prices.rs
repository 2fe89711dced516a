//! What a slow read costs more than a fast one, now: the price that reads of a period count by.
//!
//! A read that others are waited for together with costs little, one that everything waits for
//! costs all of the latency. So reads of different phases are not worth the same, and pages are
//! judged by what their slow reads cost, not by how many they are. The price of a period is what
//! the period lost to slow memory over its slow reads. Where it had few, as in a phase whose pages
//! all lie in fast memory, that says little: then counts what like phases cost before.
//!
//! Phases are told apart by the share of their reads that the first placement has in slow memory.
//! It does not change when pages move.

/// Upper ends of the classes of phases.
const CLASSES: [f64; 12] = [0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.35, 0.45, 0.6, 0.75, 0.9, 1.0];
/// What is left after a period of a class of what was measured before it.
const KEEP: f64 = 0.97;
/// A class that is known by so many slow reads counts as much as all classes together; a period
/// with so many as much as its class.
const PRIOR: f64 = 16.0;

/// Sums of a class of phases, from which its price follows by least squares through nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    /// Reads times the square of the share of them that was slow.
    reads: f64,
    /// Cost times that share.
    cost: f64,
}

/// Prices by class, and that of the last period.
#[derive(Debug, Default)]
pub struct Prices {
    sums: [Sums; CLASSES.len()],
    now: f64,
}

impl Prices {
    /// Takes in a period: its units of reads, those of them that were slow, those that would have
    /// been under the first placement, and what slow memory cost.
    pub fn period(&mut self, reads: f64, slow: f64, slow_at_home: f64, cost: f64) {
        if reads < 1.0 {
            return;
        }
        let share = (slow / reads).clamp(0.0, 1.0);
        let at_home = (slow_at_home / reads).clamp(0.0, 1.0);
        let class = CLASSES.iter().position(|&end| at_home <= end).unwrap_or(CLASSES.len() - 1);
        if slow >= 1.0 {
            let Sums { reads: of_reads, cost: of_cost } = &mut self.sums[class];
            *of_reads = *of_reads * KEEP + share * share * reads;
            *of_cost = *of_cost * KEEP + share * cost;
        }
        let add = |a: Sums, b: &Sums| Sums { reads: a.reads + b.reads, cost: a.cost + b.cost };
        let all = self.sums.iter().fold(Sums::default(), add);
        let usual = all.cost / all.reads.max(1e-9);
        let Sums { reads: of_reads, cost: of_cost } = self.sums[class];
        let of_class = (of_cost + PRIOR * usual) / (of_reads + PRIOR);
        self.now = (cost + PRIOR * of_class) / (slow.min(reads) + PRIOR);
    }

    /// What a slow read cost in the last period, or would have cost if there was none.
    pub fn now(&self) -> f64 {
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_without_slow_reads_has_the_price_of_phases_like_it() {
        let mut prices = Prices::default();
        for _ in 0..50 {
            // One phase, all of it slow at first, where a read costs 100; another with a tenth
            // slow, where one costs 900.
            prices.period(1000.0, 1000.0, 1000.0, 100_000.0);
            prices.period(1000.0, 100.0, 100.0, 90_000.0);
        }
        prices.period(1000.0, 0.0, 1000.0, 0.0);
        assert!((95.0..140.0).contains(&prices.now()), "{}", prices.now());
        prices.period(1000.0, 0.0, 100.0, 0.0);
        assert!((500.0..910.0).contains(&prices.now()), "{}", prices.now());
        // What is measured now counts more.
        prices.period(1000.0, 500.0, 100.0, 500_000.0);
        assert!((950.0..1010.0).contains(&prices.now()), "{}", prices.now());
    }
}

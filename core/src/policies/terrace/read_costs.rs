//! The cost per slow read: what a slow read costs more than a fast one at present. The reads of a
//! period count by it.
//!
//! A slow read that overlaps with others costs little, one that everything waits for costs all of
//! the latency. So reads of different phases do not have the same value, and pages are judged by
//! the cost of their slow reads, not by their number. The cost in a period is the time lost to slow
//! memory over its slow reads. Where a period had few, as in a phase whose pages are all in fast
//! memory, that shows little: then the cost in like phases before counts.
//!
//! Phases are distinguished by the share of their reads that the initial placement has in slow
//! memory. It does not change when pages move.

/// Upper ends of the classes of phases.
const CLASSES: [f64; 12] = [0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.35, 0.45, 0.6, 0.75, 0.9, 1.0];
/// Part of a class's earlier measurements that is kept after a period.
const KEEP: f64 = 0.97;
/// A class with this many slow reads counts as much as all classes together; a period with this
/// many as much as its class.
const PRIOR: f64 = 16.0;

/// Sums of a class of phases; its cost per slow read follows by least squares through nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    /// Reads times the square of the share of them that was slow.
    reads: f64,
    /// Cost times that share.
    cost: f64,
}

/// Costs per slow read by class, and that of the last period.
#[derive(Debug, Default)]
pub struct ReadCosts {
    sums: [Sums; CLASSES.len()],
    now: f64,
}

impl ReadCosts {
    /// Adds a period: its units of reads, those of them that were slow, those that would have been
    /// under the initial placement, and the cost of slow memory.
    pub fn period(&mut self, reads: f64, slow: f64, slow_initially: f64, cost: f64) {
        if reads < 1.0 {
            return;
        }
        let share = (slow / reads).clamp(0.0, 1.0);
        let initially = (slow_initially / reads).clamp(0.0, 1.0);
        let class = CLASSES.iter().position(|&end| initially <= end).unwrap_or(CLASSES.len() - 1);
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

    /// The cost per slow read in the last period, or what it would have been if there was none.
    pub fn now(&self) -> f64 {
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_without_slow_reads_has_the_cost_of_phases_like_it() {
        let mut costs = ReadCosts::default();
        for _ in 0..50 {
            // One phase, all of it slow at first, where a read costs 100; another with a tenth
            // slow, where one costs 900.
            costs.period(1000.0, 1000.0, 1000.0, 100_000.0);
            costs.period(1000.0, 100.0, 100.0, 90_000.0);
        }
        costs.period(1000.0, 0.0, 1000.0, 0.0);
        assert!((95.0..140.0).contains(&costs.now()), "{}", costs.now());
        costs.period(1000.0, 0.0, 100.0, 0.0);
        assert!((500.0..910.0).contains(&costs.now()), "{}", costs.now());
        // New measurements count more.
        costs.period(1000.0, 500.0, 100.0, 500_000.0);
        assert!((950.0..1010.0).contains(&costs.now()), "{}", costs.now());
    }
}

//! The work of a program that has processors to itself: the instructions that these execute outside
//! of the kernel.
//!
//! Runs of a program under several systems are compared over the same work, however far each has come
//! in a warm-up of the same time. They are measured from the same count of instructions on, and the
//! time of each further million is kept.

use serde::{Deserialize, Serialize};

use crate::config::TimedError;
use crate::flow::Block;

/// From one kept time to the next.
pub const STEP_INSTRUCTIONS: u64 = 1_000_000;

/// Whose work is counted, and from where on it is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkPlan {
    /// The program's processors.
    pub processors: Vec<u32>,
    /// A clock whose beginning is marked begins when so many instructions were executed since the
    /// first mark of a period; no time passes until then.
    pub from_instructions: u64,
}

impl WorkPlan {
    /// Reports an impossible plan.
    pub fn check(&self) -> Result<(), TimedError> {
        if self.processors.is_empty() || self.processors.iter().any(|cpu| *cpu >= u64::BITS) {
            return Err(TimedError(format!(
                "the work of processors {:?}; expected some, each below {}",
                self.processors,
                u64::BITS
            )));
        }
        Ok(())
    }
}

/// What was measured of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkFigures {
    /// Instructions before the clock began.
    pub from_instructions: u64,
    /// Time since it began, after each further [`STEP_INSTRUCTIONS`].
    pub times_ns: Vec<u64>,
}

impl WorkFigures {
    /// Time over that with all memory fast, for the first two fifths of the work that is done there, and the
    /// instructions of that: the same for all systems, but for one that is 2.5 times as slow and has not
    /// done as much. `None` if it has done none, or they have begun at different places of it.
    #[must_use]
    pub fn slowdown(&self, fast: &WorkFigures) -> Option<(f64, u64)> {
        let steps = self.times_ns.len().min((2 * fast.times_ns.len()).div_ceil(5));
        let at = |figures: &WorkFigures| figures.times_ns.get(steps.checked_sub(1)?).copied();
        let (own, with_all_fast) = (at(self)?, at(fast)?);
        let apart = self.from_instructions.abs_diff(fast.from_instructions);
        (apart < STEP_INSTRUCTIONS && with_all_fast > 0)
            .then(|| (own as f64 / with_all_fast as f64, steps as u64 * STEP_INSTRUCTIONS))
    }
}

/// The work that is counted.
#[derive(Debug, Clone)]
pub struct Work {
    /// A bit for each of the processors.
    processors: u64,
    from: u64,
    /// Whether it is counted yet.
    counts: bool,
    done: u64,
    figures: WorkFigures,
}

impl Work {
    /// Nothing is counted yet.
    #[must_use]
    pub fn new(plan: &WorkPlan) -> Self {
        let bit = |cpu: &u32| 1u64.checked_shl(*cpu).unwrap_or(0);
        Work {
            processors: plan.processors.iter().map(bit).fold(0, |all, one| all | one),
            from: plan.from_instructions,
            counts: false,
            done: 0,
            figures: WorkFigures::default(),
        }
    }

    /// Counts from now on, if it does not yet.
    pub fn begin(&mut self) {
        self.counts = true;
    }

    /// A block begins.
    #[inline]
    pub fn block(&mut self, cpu: usize, block: &Block) {
        if self.counts && !block.kernel && self.processors >> (cpu & 63) & 1 == 1 {
            self.done += u64::from(block.instructions);
        }
    }

    /// Whether less has been done than what is to be done before the clock begins.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.counts && self.done < self.from
    }

    /// The clock begins.
    pub fn clock_begins(&mut self) {
        self.figures = WorkFigures { from_instructions: self.done, times_ns: Vec::new() };
    }

    /// So much time has passed since it began.
    #[inline]
    pub fn at(&mut self, time_ns: u64) {
        let steps = self.figures.times_ns.len() as u64 + 1;
        if self.done - self.figures.from_instructions >= steps * STEP_INSTRUCTIONS {
            self.figures.times_ns.push(time_ns);
        }
    }

    /// What was measured since the clock began.
    #[must_use]
    pub fn figures(&self) -> &WorkFigures {
        &self.figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(instructions: u32, kernel: bool) -> Block {
        Block { instructions, kernel, ..Block::default() }
    }

    #[test]
    fn instructions_of_its_processors_outside_of_the_kernel_count_once_it_began() {
        let plan = WorkPlan { processors: vec![1, 3], from_instructions: 100 };
        plan.check().unwrap();
        let mut work = Work::new(&plan);
        work.block(1, &block(1000, false));
        assert!(!work.is_behind(), "not begun");
        work.begin();
        for cpu in 0..4 {
            work.block(cpu, &block(20, false));
            work.block(cpu, &block(500, true));
        }
        assert!(work.is_behind());
        work.block(3, &block(60, false));
        assert!(!work.is_behind());
        work.clock_begins();
        assert_eq!(work.figures().from_instructions, 100);
        for time_ns in [7, 9, 11, 13] {
            work.block(1, &block(600_000, false));
            work.at(time_ns);
        }
        assert_eq!(work.figures().times_ns, [9, 13]);
        for processors in [vec![], vec![64]] {
            assert!(WorkPlan { processors, from_instructions: 1 }.check().is_err());
        }
    }

    #[test]
    fn slowdown_is_of_the_same_work_for_all() {
        let of = |from_instructions, times_ns: &[u64]| WorkFigures {
            from_instructions,
            times_ns: times_ns.to_vec(),
        };
        let fast = of(100, &[10, 20, 30, 40]);
        // What comes behind counts for none, however far each has come.
        assert_eq!(of(105, &[10, 30]).slowdown(&fast), Some((1.5, 2_000_000)));
        assert_eq!(of(95, &[10, 30, 90, 91, 92]).slowdown(&fast), Some((1.5, 2_000_000)));
        assert_eq!(of(95, &[25]).slowdown(&fast), Some((2.5, 1_000_000)));
        // Nothing in common.
        assert_eq!(of(100, &[]).slowdown(&fast), None);
        assert_eq!(of(100 + STEP_INSTRUCTIONS, &[10, 30]).slowdown(&fast), None);
    }
}

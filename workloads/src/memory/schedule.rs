//! Which pages a memory program touches when: a known hot set, for the tests of trackers, or the
//! pages of a generator, so that the programs of the simulated machine run on real memory too.

use terrace_recordings::source::{PeriodSource, SourceError};

use super::checked::mix;

/// Which pages to touch. Time runs from the start of the first round.
pub trait Schedule {
    /// The phase at this moment.
    fn phase(&self, elapsed_ms: u64) -> u64;

    /// The pages of a phase, ascending, for a program whose point is to name them; they are
    /// announced before the first of them is touched.
    fn announced(&self, phase: u64) -> Option<Vec<usize>>;

    /// Appends the pages touched by a round that accounts for the time up to `to_ms`. Returns
    /// whether the program goes on.
    fn round(
        &mut self,
        phase: u64,
        to_ms: u64,
        pages: &mut Vec<usize>,
    ) -> Result<bool, SourceError>;
}

/// How a hot set is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// This many pages in a seeded order; the next phase takes the next ones, so that hot sets
    /// of successive phases are disjoint for as long as there are pages left.
    Seeded {
        /// Number of pages, at least 1 and at most all.
        count: usize,
    },
    /// Every k-th page, starting one page later in each phase.
    Every {
        /// The distance k, at least 1.
        step: usize,
        /// Of so many pages from the first on; at least 1 and at most all.
        within: usize,
    },
}

/// Touches the whole hot set in every round and nothing else.
pub struct HotCold {
    order: Vec<usize>,
    choice: Choice,
    shift_every_ms: Option<u64>,
    /// The hot set of the cached phase.
    current: Option<(u64, Vec<usize>)>,
}

impl HotCold {
    /// A hot set out of `pages` pages; a new one every `shift_every_ms`, or only on request.
    ///
    /// # Panics
    /// When the choice cannot be made from so few pages.
    pub fn new(pages: usize, choice: Choice, shift_every_ms: Option<u64>, seed: u64) -> Self {
        match choice {
            Choice::Seeded { count } => assert!((1..=pages).contains(&count)),
            Choice::Every { step, within } => {
                assert!((1..=within).contains(&step) && within <= pages);
            }
        }
        let mut order: Vec<usize> = (0..pages).collect();
        order.sort_by_key(|&page| mix(seed ^ mix(page as u64)));
        HotCold { order, choice, shift_every_ms, current: None }
    }

    fn hot(&self, phase: u64) -> Vec<usize> {
        let pages = self.order.len();
        let mut hot: Vec<usize> = match self.choice {
            Choice::Seeded { count } => {
                let first = (phase as u128 * count as u128 % pages as u128) as usize;
                (0..count).map(|i| self.order[(first + i) % pages]).collect()
            }
            Choice::Every { step, within } => {
                ((phase % step as u64) as usize..within).step_by(step).collect()
            }
        };
        hot.sort_unstable();
        hot
    }
}

impl Schedule for HotCold {
    fn phase(&self, elapsed_ms: u64) -> u64 {
        self.shift_every_ms.map_or(0, |every| elapsed_ms / every.max(1))
    }

    fn announced(&self, phase: u64) -> Option<Vec<usize>> {
        Some(self.hot(phase))
    }

    fn round(
        &mut self,
        phase: u64,
        _to_ms: u64,
        pages: &mut Vec<usize>,
    ) -> Result<bool, SourceError> {
        if self.current.as_ref().is_none_or(|(p, _)| *p != phase) {
            self.current = Some((phase, self.hot(phase)));
        }
        if let Some((_, hot)) = &self.current {
            pages.extend(hot);
        }
        Ok(true)
    }
}

/// Touches the pages of a generator. The pages of a period are touched once each, in order, spread
/// over the period: a tracker whose periods begin at other moments observes as many pages, and a
/// walk stays a walk.
pub struct Generated {
    source: Box<dyn PeriodSource>,
    period_ms: u64,
    /// Periods taken from the source.
    taken: u64,
    /// The pages of the last one, and how many of them were touched.
    pages: Vec<usize>,
    touched: usize,
}

impl Generated {
    /// The periods of this source, at this length.
    ///
    /// # Panics
    /// When periods have no length.
    pub fn new(source: Box<dyn PeriodSource>, period_ms: u64) -> Self {
        assert!(period_ms > 0);
        Generated { source, period_ms, taken: 0, pages: Vec::new(), touched: 0 }
    }
}

impl Schedule for Generated {
    fn phase(&self, _elapsed_ms: u64) -> u64 {
        0
    }

    fn announced(&self, _phase: u64) -> Option<Vec<usize>> {
        None
    }

    fn round(
        &mut self,
        _phase: u64,
        to_ms: u64,
        pages: &mut Vec<usize>,
    ) -> Result<bool, SourceError> {
        let current = to_ms / self.period_ms;
        while self.taken <= current {
            // The rest of the period before is touched now in a late round; older periods are
            // skipped, so that one period does not contain the pages of many.
            if self.taken == current {
                pages.extend(&self.pages[self.touched..]);
            }
            let Some(period) = self.source.next_period()? else { return Ok(false) };
            self.pages.clear();
            self.pages.extend(period.accessed.iter_ones());
            self.touched = 0;
            self.taken += 1;
        }
        let passed = u128::from(to_ms % self.period_ms);
        let due = (self.pages.len() as u128 * passed / u128::from(self.period_ms)) as usize;
        if due > self.touched {
            pages.extend(&self.pages[self.touched..due]);
            self.touched = due;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generators::{self, Timing};
    use serde_json::{Value, json};
    use terrace_core::page::PageSize;

    #[test]
    fn hot_sets_are_what_was_announced_and_change_with_the_phase() {
        let mut s = HotCold::new(64, Choice::Seeded { count: 16 }, Some(1000), 3);
        for phase in 0..6 {
            let announced = s.announced(phase).unwrap();
            assert_eq!(announced.len(), 16);
            assert_eq!(s.phase(phase * 1000 + 999), phase);
            let mut touched = Vec::new();
            s.round(phase, 0, &mut touched).unwrap();
            assert_eq!(touched, announced);
            let next = s.announced(phase + 1).unwrap();
            assert!(announced.iter().all(|page| !next.contains(page)));
        }
        let other = HotCold::new(64, Choice::Seeded { count: 16 }, None, 4);
        assert_ne!(other.announced(0), s.announced(0), "the seed chooses");
        assert_eq!(other.phase(1 << 40), 0, "without shifts there is one phase");
    }

    #[test]
    fn every_kth_page_starts_one_later_in_each_phase() {
        let s = HotCold::new(10, Choice::Every { step: 4, within: 10 }, Some(1), 0);
        assert_eq!(s.announced(0).unwrap(), [0, 4, 8]);
        assert_eq!(s.announced(1).unwrap(), [1, 5, 9]);
        assert_eq!(s.announced(3).unwrap(), [3, 7]);
        assert_eq!(s.announced(4), s.announced(0));
        // In a part of the pages alone.
        let s = HotCold::new(10, Choice::Every { step: 2, within: 5 }, Some(1), 0);
        assert_eq!(s.announced(0).unwrap(), [0, 2, 4]);
        assert_eq!(s.announced(1).unwrap(), [1, 3]);
    }

    fn source(name: &str, parameters: &Value) -> Box<dyn PeriodSource> {
        let timing = Timing { page_size: PageSize::Huge, period_ms: 1000, seed: 5 };
        generators::build(name, parameters, timing).unwrap()
    }

    #[test]
    fn each_period_touches_what_the_generator_names_and_nothing_else() {
        for name in ["lru-favor", "lfu-favor", "random-favor"] {
            let parameters =
                json!({ "footprint_mib": 512, "startup_ms": 0, "duration_ms": 20_000 });
            let mut model = source(name, &parameters);
            let mut live = Generated::new(source(name, &parameters), 1000);
            let mut now_ms = 0;
            for period in 0..20 {
                let mut touched = Vec::new();
                // Rounds of 70 ms: some of them straddle the end of a period, and touch the rest of
                // that period's pages too.
                while now_ms < (period + 1) * 1000 {
                    assert!(live.round(0, now_ms, &mut touched).unwrap());
                    now_ms += 70;
                }
                live.round(0, (period + 1) * 1000, &mut touched).unwrap();
                let named = model.next_period().unwrap().unwrap().accessed;
                assert_eq!(touched, named.iter_ones().collect::<Vec<_>>(), "{name} {period}");
            }
            assert!(!live.round(0, 20_000, &mut Vec::new()).unwrap(), "it ends with its source");
        }
    }

    #[test]
    fn a_round_that_comes_hours_late_touches_no_more_than_a_period() {
        let mut live =
            Generated::new(source("random-favor", &json!({ "footprint_mib": 512 })), 1000);
        let mut pages = Vec::new();
        live.round(0, 500, &mut pages).unwrap();
        pages.clear();
        live.round(0, 3_600_500, &mut pages).unwrap();
        assert!(pages.len() <= 2 * 256, "{}", pages.len());
    }
}

//! The unit in which a policy counts accesses: samples of so many reads each, or accessed bits.
//!
//! A group may have samples only later, for others on the host have none of it at first, and it may have
//! none any more. A count of bits and one of samples say nothing of each other, so what was counted
//! before is dropped then. A processor may take one read in another number, too, and counts of samples
//! are brought to that.

use crate::scan::Scan;

/// After so many periods without samples there are none any more, and bits count again. Of a few periods
/// nothing is known: a source may have too few of a group for a while.
const MOST_WITHOUT_SAMPLES: u32 = 16;

/// The unit of a policy's counts.
#[derive(Debug, Default)]
pub(super) struct AccessUnit {
    /// Whether they are of samples; `None` before the first period.
    by_samples: Option<bool>,
    /// Periods in a row without samples.
    without_samples: u32,
    /// Reads for each sample.
    reads_per_sample: u32,
}

/// What a period says in the unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PeriodUnit {
    /// Whether accesses are counted by samples.
    pub by_samples: bool,
    /// Whether this period's are known.
    pub known: bool,
    /// The unit is another from now on, and what was counted before says nothing.
    pub is_new: bool,
    /// What was counted before is to be multiplied by this.
    pub factor: f32,
}

impl AccessUnit {
    /// The unit of this period.
    pub fn follow(&mut self, scan: &Scan) -> PeriodUnit {
        let counters = scan.counters.as_ref().filter(|counters| counters.samples.is_some());
        let before = self.by_samples;
        let mut unit = PeriodUnit { by_samples: true, known: true, is_new: false, factor: 1.0 };
        if let Some(counters) = counters {
            let now = counters.reads_per_sample;
            unit.is_new = before == Some(false);
            if now > 0 && self.reads_per_sample > 0 {
                unit.factor = self.reads_per_sample as f32 / now as f32;
            }
            (self.by_samples, self.without_samples, self.reads_per_sample) = (Some(true), 0, now);
            return unit;
        }
        self.without_samples = self.without_samples.saturating_add(1);
        if before == Some(true) && self.without_samples < MOST_WITHOUT_SAMPLES {
            return PeriodUnit { known: false, ..unit };
        }
        (self.by_samples, self.reads_per_sample) = (Some(false), 0);
        PeriodUnit { by_samples: false, is_new: before == Some(true), ..unit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::PageBits;
    use crate::page::{Layout, PageSize};
    use crate::scan::PeriodCounters;
    use std::sync::Arc;

    fn scan(reads_per_sample: Option<u32>) -> Scan {
        let layout = Arc::new(Layout::contiguous(PageSize::Base, 2));
        let scan = Scan::new(0, layout, PageBits::ones(2), PageBits::new(2));
        match reads_per_sample {
            None => scan,
            Some(reads_per_sample) => scan.with_counters(Arc::new(PeriodCounters {
                samples: Some([1, 1].into()),
                reads_per_sample,
                ..PeriodCounters::default()
            })),
        }
    }

    #[test]
    fn counts_are_dropped_where_samples_begin_or_end_and_scaled_where_they_stand_for_others() {
        let mut unit = AccessUnit::default();
        let bits = PeriodUnit { by_samples: false, known: true, is_new: false, factor: 1.0 };
        let samples = PeriodUnit { by_samples: true, ..bits };
        assert_eq!(unit.follow(&scan(None)), bits);
        assert_eq!(unit.follow(&scan(Some(400))), PeriodUnit { is_new: true, ..samples });
        assert_eq!(unit.follow(&scan(Some(400))), samples);
        assert_eq!(unit.follow(&scan(Some(1600))), PeriodUnit { factor: 0.25, ..samples });
        for _ in 1..MOST_WITHOUT_SAMPLES {
            assert_eq!(unit.follow(&scan(None)), PeriodUnit { known: false, ..samples });
        }
        assert_eq!(unit.follow(&scan(None)), PeriodUnit { is_new: true, ..bits });
        assert_eq!(unit.follow(&scan(None)), bits);
        // Of a program that has samples from the beginning nothing is dropped.
        assert_eq!(AccessUnit::default().follow(&scan(Some(16))), samples);
    }
}

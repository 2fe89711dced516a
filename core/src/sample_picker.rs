//! Which of the events that a processor counts are samples, as with PEBS and IBS.
//!
//! One in so many is: the distance from one sample to the next is drawn anew each time, from half to
//! one and a half of the mean, so that no pattern of the program stays hidden.

use rand_core::RngCore;
use rand_pcg::Pcg64;

/// Picks one event in so many.
#[derive(Debug, Clone)]
pub struct SamplePicker {
    period: u32,
    random: Pcg64,
    /// Events until the next sample.
    left: u64,
}

impl SamplePicker {
    /// One sample in so many events; 0: none. `seed` is that of the distances.
    pub fn new(period: u32, seed: u64) -> Self {
        let random = Pcg64::new(seed.into(), 0x5a);
        let mut picker = SamplePicker { period, random, left: 0 };
        picker.left = picker.distance();
        picker
    }

    /// One sample in so many events from now on.
    pub fn set_period(&mut self, period: u32) {
        self.period = period;
        self.left = self.distance();
    }

    /// Whether any event is a sample.
    pub fn is_on(&self) -> bool {
        self.period > 0
    }

    /// Events for each sample; 0: there are none.
    pub fn period(&self) -> u32 {
        self.period
    }

    /// How many of the next so many events are samples.
    #[inline]
    pub fn pick(&mut self, mut events: u64) -> u64 {
        if !self.is_on() {
            return 0;
        }
        let mut picked = 0;
        while events >= self.left {
            events -= self.left;
            self.left = self.distance();
            picked += 1;
        }
        self.left -= events;
        picked
    }

    /// Events from one sample to the next.
    fn distance(&mut self) -> u64 {
        let mean = u64::from(self.period);
        let least = mean.div_ceil(2);
        let below = 2 * (mean - least) + 1;
        let drawn = (u128::from(self.random.next_u64()) * u128::from(below)) >> 64;
        least + drawn as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_in_so_many_is_a_sample_and_no_two_distances_need_be_alike() {
        let mut picker = SamplePicker::new(100, 3);
        let mut distances = Vec::new();
        let mut last = 0;
        for event in 1..=100_000u64 {
            if picker.pick(1) == 1 {
                distances.push(event - last);
                last = event;
            }
        }
        assert!((950..1050).contains(&distances.len()), "{}", distances.len());
        assert!(distances.iter().all(|d| (50..=150).contains(d)));
        distances.dedup();
        assert!(distances.len() > 900, "distances differ");
        assert_eq!(SamplePicker::new(0, 3).pick(1 << 40), 0);
    }

    #[test]
    fn another_period_counts_at_once() {
        let mut picker = SamplePicker::new(1_000_000, 7);
        picker.set_period(10);
        assert!((900..1100).contains(&picker.pick(10_000)));
        picker.set_period(1000);
        assert!((8..13).contains(&picker.pick(10_000)));
    }

    #[test]
    fn the_mean_distance_is_the_period_however_short() {
        for period in [1, 2, 3, 4, 7, 100] {
            let picked = SamplePicker::new(period, 5).pick(1_000_000 * u64::from(period));
            let error = (picked as f64 / 1e6 - 1.0).abs();
            assert!(error < 0.002, "{picked} of 1,000,000 with one in {period}");
        }
    }
}

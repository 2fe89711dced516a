//! Number of pages in one call of migration, from the times of earlier calls.
//!
//! A call takes a fixed time, mostly for draining every processor's LRU caches, and a time for each
//! page. Programs wait for pages only during the second. So the two are separated (a line is fitted
//! to the calls so far, with less weight for older ones), and the number of pages follows the
//! second alone: smaller batches because of the first would cost more and save no waiting.

use std::time::Duration;

/// Weight of the earlier calls at each new one.
const MEMORY: f64 = 0.9;

/// A larger batch is tried while a call takes less than this many times the stall.
const EXPLORE: f64 = 3.0;

/// After so many calls of one size, each too long for a larger batch, a larger one is tried all the
/// same: where the fixed time is long, as on a host with many busy processors, small batches would
/// never show it.
const PATIENCE: u32 = 16;

/// Sizes of batches.
#[derive(Debug)]
pub struct BatchSizer {
    /// Longest time for which the pages of a batch should be unmapped, in s.
    stall_s: f64,
    most: usize,
    batch: usize,
    /// Weighted sums over calls of 1, pages, pages squared, time, pages times time.
    sums: [f64; 5],
    /// Consecutive calls of one size.
    alike: u32,
}

impl BatchSizer {
    /// Starts with `first` pages; never more than `most`.
    pub fn new(stall: Duration, first: usize, most: usize) -> Self {
        BatchSizer { stall_s: stall.as_secs_f64(), most, batch: first, sums: [0.0; 5], alike: 0 }
    }

    /// Pages for the next call.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Takes the time of a call that moved `pages` pages.
    pub fn took(&mut self, pages: usize, time: Duration) {
        let (n, t) = (pages as f64, time.as_secs_f64());
        for (sum, new) in self.sums.iter_mut().zip([1.0, n, n * n, t, n * t]) {
            *sum = *sum * MEMORY + new;
        }
        let slope = self.per_page_s();
        self.alike = if slope.is_some() { 0 } else { self.alike + 1 };
        let larger = (self.batch + self.batch.div_ceil(4)) as f64;
        let wanted = match slope {
            Some(s) if s > 0.0 => self.stall_s / s,
            // The time per page is hidden by the time per call.
            Some(_) => larger,
            // Calls of one size do not separate the two times: another size will.
            None if t <= EXPLORE * self.stall_s => larger,
            None if self.alike >= PATIENCE => {
                self.alike = 0;
                larger
            }
            None => n * self.stall_s / t,
        };
        // Larger step by step, and only as far as calls have really been that large: one quick call
        // proves nothing.
        let step = if pages >= self.batch { self.batch * 2 } else { self.batch };
        self.batch = (wanted as usize).min(step).clamp(1, self.most);
    }

    /// Time per page: the slope of the fitted line, which noise may make negative. `None` with
    /// calls of one size only.
    fn per_page_s(&self) -> Option<f64> {
        let [w, n, nn, t, nt] = self.sums;
        let spread = nn * w - n * n;
        let slope = (nt * w - n * t) / spread;
        (spread > 1e-3 * n * n).then_some(slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of batches when a call takes so long in itself and per page.
    fn sizes(own_us: u64, page_us: u64, calls: usize) -> Vec<usize> {
        let mut batch_sizer = BatchSizer::new(Duration::from_millis(20), 2, 64);
        (0..calls)
            .map(|_| {
                let batch = batch_sizer.batch();
                batch_sizer.took(batch, Duration::from_micros(own_us + page_us * batch as u64));
                batch
            })
            .collect()
    }

    #[test]
    fn quick_pages_go_in_ever_larger_batches() {
        assert_eq!(sizes(0, 100, 8), [2, 3, 6, 12, 24, 48, 64, 64]);
    }

    #[test]
    fn slow_pages_go_in_small_ones() {
        assert_eq!(sizes(0, 7000, 5), [2, 3, 2, 2, 2]);
        assert_eq!(sizes(0, 30_000, 5), [2, 3, 1, 1, 1]);
        assert_eq!(sizes(0, 300_000, 5), [2, 1, 1, 1, 1]);
    }

    #[test]
    fn a_call_that_is_slow_by_itself_does_not_make_batches_small() {
        let sizes = sizes(15_000, 1000, 100);
        // Sometimes a slightly larger one, to measure again.
        assert!(sizes[10..].iter().all(|s| (19..=25).contains(s)), "{sizes:?}");
    }

    /// Sizes of batches when a call's fixed time varies by up to so much.
    fn sizes_in_noise(own_us: u64, noise_us: u64, page_us: u64, calls: usize) -> Vec<usize> {
        let mut batch_sizer = BatchSizer::new(Duration::from_millis(20), 2, 64);
        let mut state = 1u64;
        (0..calls)
            .map(|_| {
                let batch = batch_sizer.batch();
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let own_us = own_us + (state >> 33) % noise_us;
                batch_sizer.took(batch, Duration::from_micros(own_us + page_us * batch as u64));
                batch
            })
            .collect()
    }

    #[test]
    fn a_call_that_is_very_slow_by_itself_is_found_out() {
        let mean = |sizes: &[usize]| sizes.iter().sum::<usize>() / sizes.len();
        let quick_pages = sizes_in_noise(100_000, 200_000, 10, 600);
        assert!(mean(&quick_pages[100..]) >= 16, "{quick_pages:?}");
        // Where the pages are slow, larger batches are tried only sometimes.
        let slow_pages = sizes_in_noise(1, 20_000, 300_000, 200);
        let tries = slow_pages[1..].iter().filter(|s| **s > 1).count();
        assert!(slow_pages.iter().all(|s| *s <= 2) && tries <= 12, "{slow_pages:?}");
    }
}

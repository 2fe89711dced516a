//! How many pages one call should move, from how long calls have taken.
//!
//! A call takes a time of its own, mostly for draining every processor's LRU caches, and a time
//! for each page. Only during the second are pages away from the program. So the two are told
//! apart (a line fitted to the calls so far, older ones counting less), and the number of pages
//! follows the second alone: making batches smaller because the first is long would cost more and
//! spare nobody.

use std::time::Duration;

/// How much the calls so far count beside a new one.
const MEMORY: f64 = 0.9;

/// How many times the stall a call may take for a larger batch to be tried.
const EXPLORE: f64 = 3.0;

/// Sizes of batches.
#[derive(Debug)]
pub struct Pace {
    /// Time for which the pages of a batch should be away at most.
    stall_s: f64,
    most: usize,
    batch: usize,
    /// Weighted sums over calls of 1, pages, pages squared, time, pages times time.
    sums: [f64; 5],
}

impl Pace {
    /// Starts with `first` pages; never more than `most`.
    pub fn new(stall: Duration, first: usize, most: usize) -> Self {
        Pace { stall_s: stall.as_secs_f64(), most, batch: first, sums: [0.0; 5] }
    }

    /// Pages for the next call.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// A call that moved `pages` pages took this long.
    pub fn took(&mut self, pages: usize, time: Duration) {
        let (n, t) = (pages as f64, time.as_secs_f64());
        for (sum, new) in self.sums.iter_mut().zip([1.0, n, n * n, t, n * t]) {
            *sum = *sum * MEMORY + new;
        }
        let wanted = match self.per_page_s() {
            Some(s) => self.stall_s / s,
            // Calls of one size do not tell the two times apart: another size will.
            None if t <= EXPLORE * self.stall_s => (self.batch + self.batch.div_ceil(4)) as f64,
            None => n * self.stall_s / t,
        };
        // Larger step by step, and only as far as calls have really been that large: one quick
        // call is no proof.
        let step = if pages >= self.batch { self.batch * 2 } else { self.batch };
        self.batch = (wanted as usize).min(step).clamp(1, self.most);
    }

    /// Time per page: the slope of the fitted line. `None` with calls of one size only, or when
    /// noise has bent the line below nought.
    fn per_page_s(&self) -> Option<f64> {
        let [w, n, nn, t, nt] = self.sums;
        let spread = nn * w - n * n;
        let slope = (nt * w - n * t) / spread;
        (spread > 1e-3 * n * n && slope > 0.0).then_some(slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of batches when a call takes so long of its own and per page.
    fn sizes(own_us: u64, page_us: u64, calls: usize) -> Vec<usize> {
        let mut pace = Pace::new(Duration::from_millis(20), 2, 64);
        (0..calls)
            .map(|_| {
                let batch = pace.batch();
                pace.took(batch, Duration::from_micros(own_us + page_us * batch as u64));
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
        // Now and then one that is a little larger, to see whether it still is so.
        assert!(sizes[10..].iter().all(|s| (19..=25).contains(s)), "{sizes:?}");
    }
}

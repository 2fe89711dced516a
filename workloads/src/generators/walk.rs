//! A walk over a set of pages, again and again at constant speed, with a stride.

use std::ops::Range;

use terrace_core::bits::PageBits;

use super::program::{Rounding, Span, position};

/// Walks over a set of pages once in `sweep_ms`. With a stride of s it takes pages 0, s, 2s, ..,
/// then 1, s + 1, .., as a walk down the columns of a matrix does; every page once in a sweep.
#[derive(Debug, Clone)]
pub(super) struct Walk {
    set: Range<usize>,
    sweep_ms: u64,
    stride: usize,
}

impl Walk {
    /// `sweep_ms` and `stride` are at least 1.
    pub(super) fn new(set: Range<usize>, sweep_ms: u64, stride: usize) -> Self {
        debug_assert!(sweep_ms > 0 && stride > 0);
        Walk { set, sweep_ms, stride }
    }

    /// Sets the bits of the pages walked in the span, which counts from the walk's start.
    pub(super) fn touch(&self, span: Span, accessed: &mut PageBits) {
        let pages = self.set.len();
        let from = position(span.from_ms, pages, self.sweep_ms, Rounding::Down);
        let to = position(span.to_ms, pages, self.sweep_ms, Rounding::Up);
        if to - from >= pages as u64 {
            accessed.set_range(self.set.clone(), true);
            return;
        }
        // Less than one sweep: at most one turn of the end.
        let (first, steps) = ((from % pages as u64) as usize, (to - from) as usize);
        let turn = (first + steps).min(pages);
        self.touch_steps(first..turn, accessed);
        self.touch_steps(0..first + steps - turn, accessed);
    }

    fn touch_steps(&self, steps: Range<usize>, accessed: &mut PageBits) {
        let start = self.set.start;
        if self.stride == 1 {
            accessed.set_range(start + steps.start..start + steps.end, true);
        } else {
            steps.for_each(|step| accessed.set(start + self.page(step), true));
        }
    }

    /// The page at this step of a sweep, counted within the set.
    fn page(&self, step: usize) -> usize {
        let stride = self.stride.min(self.set.len());
        let (rows, longer) = (self.set.len() / stride, self.set.len() % stride);
        // The first `longer` columns have one page more than the rest.
        let (column, row) = if step < longer * (rows + 1) {
            (step / (rows + 1), step % (rows + 1))
        } else {
            let step = step - longer * (rows + 1);
            (longer + step / rows, step % rows)
        };
        row * stride + column
    }
}

/// Checks a time in ms that must not be 0, and a stride.
pub(super) fn at_least_1(name: &str, value: u64) -> Result<u64, String> {
    if value > 0 { Ok(value) } else { Err(format!("{name} is 0, expected at least 1")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_sweep_takes_every_page_once(pages in 1usize..300, stride in 1usize..400) {
            let walk = Walk::new(10..10 + pages, 1000, stride);
            let mut taken: Vec<_> = (0..pages).map(|step| walk.page(step)).collect();
            if stride < pages && pages > 2 * stride {
                prop_assert_eq!(taken[1] - taken[0], stride);
            }
            taken.sort();
            prop_assert_eq!(taken, (0..pages).collect::<Vec<_>>());
        }

        #[test]
        fn spans_put_together_touch_what_one_long_span_does(
            pages in 1usize..200, sweep_ms in 1u64..3000, stride in 1usize..5,
            cuts in prop::collection::vec(1u64..700, 1..8),
        ) {
            let walk = Walk::new(0..pages, sweep_ms, stride);
            let (mut parts, mut whole) = (PageBits::new(pages), PageBits::new(pages));
            let mut now = 0;
            for length in cuts {
                walk.touch(Span { from_ms: now, to_ms: now + length }, &mut parts);
                now += length;
            }
            walk.touch(Span { from_ms: 0, to_ms: now }, &mut whole);
            prop_assert_eq!(parts, whole);
        }
    }
}

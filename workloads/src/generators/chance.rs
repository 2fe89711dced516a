//! Independent touches at random times: which pages have at least one in a span.
//!
//! Touches of a page come as a Poisson process, so it is touched in a span of length T with the
//! chance 1 - exp(-T / interval). The exponential is `libm`'s, which gives the same bits on
//! every machine.

use rand_core::RngCore;
use rand_pcg::Pcg64;
use terrace_core::bits::PageBits;

/// A chance in parts of 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chance(u64);

impl Chance {
    /// Of at least one touch, when `touches` are to be expected.
    pub(super) fn of_touch(touches: f64) -> Self {
        Chance((-libm::expm1(-touches) * 4_294_967_296.0) as u64)
    }

    /// Of at least one touch in this time, when they come `interval_ms` apart on average.
    pub(super) fn within(time_ms: u64, interval_ms: u64) -> Self {
        Chance::of_touch(time_ms as f64 / interval_ms as f64)
    }

    /// One draw.
    pub(super) fn happens(self, random: &mut Pcg64) -> bool {
        u64::from(random.next_u32()) < self.0
    }

    /// 64 draws at once. Takes the chance's binary digits from the least significant one on:
    /// each fair word halves the chance so far and, where the digit is 1, adds a half.
    fn word(self, random: &mut Pcg64) -> u64 {
        if self.0 >> 32 != 0 {
            return !0;
        }
        let mut word = 0;
        for digit in self.0.trailing_zeros().min(32)..32 {
            let fair = random.next_u64();
            word = if self.0 >> digit & 1 != 0 { word | fair } else { word & fair };
        }
        word
    }

    /// Draws for every page and sets the bits of those for which it happens.
    pub(super) fn touch(self, random: &mut Pcg64, accessed: &mut PageBits) {
        let words = accessed.words().iter().map(|word| word | self.word(random)).collect();
        *accessed = PageBits::from_words(words, accessed.len());
    }

    /// As [`Self::touch`], for the pages whose bit is set in `of`.
    pub(super) fn touch_of(self, of: &PageBits, random: &mut Pcg64, accessed: &mut PageBits) {
        let words = accessed.words().iter().zip(of.words());
        let words = words.map(|(word, of)| word | (self.word(random) & of)).collect();
        *accessed = PageBits::from_words(words, accessed.len());
    }
}

/// Exactly `count` of `pages` pages, each choice as likely as any other (Knuth, The Art of
/// Computer Programming 2, 3.4.2, algorithm S).
pub(super) fn choose(count: usize, pages: usize, random: &mut Pcg64) -> PageBits {
    let mut chosen = PageBits::new(pages);
    let mut left = count as u64;
    for page in 0..pages {
        if below((pages - page) as u64, random) < left {
            chosen.set(page, true);
            left -= 1;
        }
    }
    chosen
}

/// A number below `bound`, by multiplication: the bias is below 2^-32 for bounds below 2^32.
pub(super) fn below(bound: u64, random: &mut Pcg64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_single_draws_have_the_chance_they_should() {
        let mut random = Pcg64::new(1, 1);
        for (time_ms, expected) in [(0, 0.0), (10, 0.00995), (1000, 0.63212), (4000, 0.98168)] {
            let chance = Chance::within(time_ms, 1000);
            let mut bits = PageBits::new(100_000);
            chance.touch(&mut random, &mut bits);
            let words = bits.count() as f64 / 1e5;
            let single = (0..100_000).filter(|_| chance.happens(&mut random)).count() as f64 / 1e5;
            assert!((words - expected).abs() < 0.005, "{words} is not {expected}");
            assert!((single - expected).abs() < 0.005, "{single} is not {expected}");
        }
        let some: PageBits = (0..100).map(|i| i % 3 == 0).collect();
        let mut bits: PageBits = (0..100).map(|i| i == 1).collect();
        Chance::of_touch(f64::INFINITY).touch_of(&some, &mut random, &mut bits);
        let expected: Vec<_> = (0..100).filter(|i| i % 3 == 0 || *i == 1).collect();
        assert_eq!(bits.iter_ones().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn exactly_as_many_are_chosen_and_all_over() {
        let chosen = choose(250, 1000, &mut Pcg64::new(1, 1));
        assert_eq!(chosen.count(), 250);
        for quarter in 0..4 {
            let here = chosen.count_range(quarter * 250..(quarter + 1) * 250);
            assert!((30..95).contains(&here), "{here}");
        }
    }
}

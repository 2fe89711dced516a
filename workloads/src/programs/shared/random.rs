//! Random numbers that are functions of a seed and an index: any thread can compute the i-th
//! without those before it.

use crate::memory::checked::mix;

/// Approximate instructions of one call of [`at`], for [`super::super::memory::Memory::work`].
pub const AT_WORK: u32 = 20;

/// The sequence of a seed. Worth keeping where a loop does nothing else: the rest of making a word
/// is half as long.
#[derive(Clone, Copy)]
pub struct Sequence(u64);

impl Sequence {
    /// The sequence of this seed.
    pub fn of(seed: u64) -> Sequence {
        Sequence(mix(seed))
    }

    /// The word of an index. Distinct indices give distinct words (`mix` is a bijection).
    #[inline]
    pub fn at(self, index: u64) -> u64 {
        mix(self.0.wrapping_add(index))
    }
}

/// The random word of an index in the sequence of a seed.
#[inline]
pub fn at(seed: u64, index: u64) -> u64 {
    Sequence::of(seed).at(index)
}

/// Turns a random word into a number below `n` (Lemire's multiplication, without rejection: the
/// bias is below n / 2^64).
#[inline]
pub fn below(word: u64, n: usize) -> usize {
    ((u128::from(word) * n as u128) >> 64) as usize
}

/// Turns a random word into a number of 53 bits, 0 or more and less than 1.
#[inline]
pub fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

/// A generator that starts at an index of a seed's sequence, for uses of several words.
pub struct Words {
    state: u64,
}

impl Words {
    /// The words that belong to this index.
    #[inline]
    pub fn of(seed: u64, index: u64) -> Words {
        Words { state: at(seed, index) }
    }

    /// The next word.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `n`.
    #[inline]
    pub fn below(&mut self, n: usize) -> usize {
        below(self.word(), n)
    }

    /// A number from 0 to 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        unit(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly() {
        let mut counts = [0u32; 10];
        for i in 0..100_000 {
            counts[below(at(7, i), 10)] += 1;
        }
        assert!(counts.iter().all(|c| c.abs_diff(10_000) < 500), "{counts:?}");
        let mean = (0..10_000).map(|i| unit(at(8, i))).sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn the_words_of_an_index_differ_from_those_of_its_neighbour() {
        let words = |i| {
            let mut w = Words::of(1, i);
            [w.word(), w.word(), w.word()]
        };
        assert_eq!(words(5), words(5));
        assert!(words(5).iter().all(|w| !words(6).contains(w)));
    }
}

//! A set of block numbers that finds its smallest member in a few steps: bits, and bits over bits.

/// A set of numbers below a fixed bound.
#[derive(Debug, Clone)]
pub(crate) struct BlockSet {
    /// `levels[0]` has a bit for each number; `levels[n + 1]` one for each word of `levels[n]`
    /// that is not 0.
    levels: Vec<Vec<u64>>,
    len: usize,
}

impl BlockSet {
    /// The empty set of numbers below `bound`.
    pub(crate) fn new(bound: usize) -> Self {
        let mut levels = Vec::new();
        let mut bits = bound.max(1);
        loop {
            bits = bits.div_ceil(64);
            levels.push(vec![0; bits]);
            if bits == 1 {
                break;
            }
        }
        BlockSet { levels, len: 0 }
    }

    /// Number of members.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn contains(&self, number: usize) -> bool {
        self.levels[0][number / 64] >> (number % 64) & 1 != 0
    }

    pub(crate) fn insert(&mut self, number: usize) {
        if self.contains(number) {
            return;
        }
        self.len += 1;
        let mut bit = number;
        for level in &mut self.levels {
            let word = &mut level[bit / 64];
            let was_empty = *word == 0;
            *word |= 1 << (bit % 64);
            if !was_empty {
                return;
            }
            bit /= 64;
        }
    }

    pub(crate) fn remove(&mut self, number: usize) {
        if !self.contains(number) {
            return;
        }
        self.len -= 1;
        let mut bit = number;
        for level in &mut self.levels {
            let word = &mut level[bit / 64];
            *word &= !(1 << (bit % 64));
            if *word != 0 {
                return;
            }
            bit /= 64;
        }
    }

    /// The smallest member.
    pub(crate) fn first(&self) -> Option<usize> {
        let mut bit = 0;
        for level in self.levels.iter().rev() {
            let word = level[bit];
            if word == 0 {
                return None;
            }
            bit = bit * 64 + word.trailing_zeros() as usize;
        }
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_behaves_as_an_ordered_set(
            bound in 1usize..10_000, steps in prop::collection::vec((any::<bool>(), any::<usize>()), 0..200),
        ) {
            let mut set = BlockSet::new(bound);
            let mut model = BTreeSet::new();
            for (insert, number) in steps {
                let number = number % bound;
                if insert {
                    set.insert(number);
                    model.insert(number);
                } else {
                    set.remove(number);
                    model.remove(&number);
                }
                prop_assert_eq!(set.first(), model.first().copied());
                prop_assert_eq!(set.len(), model.len());
                prop_assert_eq!(set.contains(number), model.contains(&number));
            }
        }
    }
}

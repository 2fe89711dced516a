//! One bit per page, in words of 64, so that loops over pages can take 64 at a time.

/// A vector of bits with a fixed length. Bits past the length in the last word are 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PageBits {
    words: Vec<u64>,
    len: usize,
}

impl PageBits {
    /// `len` bits, all 0.
    pub fn new(len: usize) -> Self {
        PageBits { words: vec![0; len.div_ceil(64)], len }
    }

    /// `len` bits, all 1.
    pub fn ones(len: usize) -> Self {
        let mut bits = PageBits { words: vec![!0; len.div_ceil(64)], len };
        bits.trim();
        bits
    }

    /// `len` bits from their words.
    ///
    /// # Panics
    /// When the number of words is not `len / 64`, rounded up.
    pub fn from_words(words: Vec<u64>, len: usize) -> Self {
        assert_eq!(words.len(), len.div_ceil(64), "words for {len} bits");
        let mut bits = PageBits { words, len };
        bits.trim();
        bits
    }

    fn trim(&mut self) {
        if let (Some(last), rest @ 1..) = (self.words.last_mut(), self.len % 64) {
            *last &= (1 << rest) - 1;
        }
    }

    /// Number of bits.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bits at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bit at `index`.
    ///
    /// # Panics
    /// When `index` is past the end.
    pub fn get(&self, index: usize) -> bool {
        assert!(index < self.len);
        self.words[index / 64] >> (index % 64) & 1 != 0
    }

    /// Sets the bit at `index`.
    ///
    /// # Panics
    /// When `index` is past the end.
    pub fn set(&mut self, index: usize, value: bool) {
        assert!(index < self.len);
        let mask = 1 << (index % 64);
        if value {
            self.words[index / 64] |= mask;
        } else {
            self.words[index / 64] &= !mask;
        }
    }

    /// Sets the bits of `range`.
    ///
    /// # Panics
    /// When `range` goes past the end.
    pub fn set_range(&mut self, range: std::ops::Range<usize>, value: bool) {
        assert!(range.end <= self.len);
        let mut index = range.start;
        while index < range.end {
            let bits = (64 - index % 64).min(range.end - index);
            let mask = (!0u64 >> (64 - bits)) << (index % 64);
            if value {
                self.words[index / 64] |= mask;
            } else {
                self.words[index / 64] &= !mask;
            }
            index += bits;
        }
    }

    /// The words, least significant bit first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Number of bits that are 1.
    pub fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Number of bits of `range` that are 1.
    ///
    /// # Panics
    /// When `range` goes past the end.
    pub fn count_range(&self, range: std::ops::Range<usize>) -> usize {
        assert!(range.end <= self.len);
        let mut count = 0;
        let mut index = range.start;
        while index < range.end {
            let bits = (64 - index % 64).min(range.end - index);
            let word = self.words[index / 64] >> (index % 64) & (!0u64 >> (64 - bits));
            count += word.count_ones() as usize;
            index += bits;
        }
        count
    }

    /// The words, to be changed in place. Bits past the length must stay 0.
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// The `count` bits (1 to 64) from `index` on, least significant first.
    ///
    /// # Panics
    /// When they go past the end.
    pub fn bits_at(&self, index: usize, count: usize) -> u64 {
        assert!((1..=64).contains(&count) && index + count <= self.len);
        let (word, shift) = (index / 64, index % 64);
        let mut bits = self.words[word] >> shift;
        if shift + count > 64 {
            bits |= self.words[word + 1] << (64 - shift);
        }
        bits & (!0 >> (64 - count))
    }

    /// Copies the bits of `from` in `range` to the bits here from `at` on.
    ///
    /// # Panics
    /// When either goes past its end.
    pub fn copy_range(&mut self, at: usize, from: &PageBits, range: std::ops::Range<usize>) {
        let (mut to, mut index) = (at, range.start);
        assert!(range.end <= from.len && to + range.len() <= self.len);
        while index < range.end {
            let count = (64 - to % 64).min(range.end - index);
            let mask = (!0u64 >> (64 - count)) << (to % 64);
            let bits = from.bits_at(index, count) << (to % 64);
            self.words[to / 64] = self.words[to / 64] & !mask | bits;
            to += count;
            index += count;
        }
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    /// Sets every bit that `other` has set.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn or_with(&mut self, other: &PageBits) {
        assert_eq!(self.len, other.len, "bits of the same pages");
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a |= b);
    }

    /// Number of bits that are 1 both here and in `other`, which has the same length.
    pub fn count_and(&self, other: &PageBits) -> usize {
        debug_assert_eq!(self.len, other.len);
        self.words.iter().zip(&other.words).map(|(a, b)| (a & b).count_ones() as usize).sum()
    }

    /// Indices of the bits that are 1, ascending.
    pub fn iter_ones(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            std::iter::successors((word != 0).then_some(word), |w| {
                let rest = w & (w - 1);
                (rest != 0).then_some(rest)
            })
            .map(move |w| i * 64 + w.trailing_zeros() as usize)
        })
    }
}

impl FromIterator<bool> for PageBits {
    fn from_iter<T: IntoIterator<Item = bool>>(iter: T) -> Self {
        let mut bits = PageBits::default();
        for value in iter {
            if bits.len % 64 == 0 {
                bits.words.push(0);
            }
            bits.len += 1;
            bits.set(bits.len - 1, value);
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_behave_as_a_vector_of_bools(
            model in prop::collection::vec(any::<bool>(), 0..300),
            a in 0usize..300, b in 0usize..300, value: bool,
        ) {
            let mut model = model;
            let mut bits: PageBits = model.iter().copied().collect();
            let (a, b) = (a.min(model.len()), b.min(model.len()));
            let range = a.min(b)..a.max(b);
            model[range.clone()].fill(value);
            bits.set_range(range.clone(), value);
            let inner = (range.start / 2)..range.end;
            let set = model[inner.clone()].iter().filter(|&&v| v).count();
            prop_assert_eq!(bits.count_range(inner), set);
            prop_assert_eq!(bits.len(), model.len());
            prop_assert_eq!(bits.count(), model.iter().filter(|&&v| v).count());
            let ones: Vec<_> = bits.iter_ones().collect();
            let expected: Vec<_> = (0..model.len()).filter(|&i| model[i]).collect();
            prop_assert_eq!(ones, expected);
            prop_assert_eq!(PageBits::from_words(bits.words().to_vec(), bits.len()), bits);
        }
    }

    proptest! {
        #[test]
        fn copied_bits_land_where_they_should(
            from in prop::collection::vec(any::<bool>(), 1..300),
            to in prop::collection::vec(any::<bool>(), 600..700),
            start in 0usize..300, length in 0usize..300, at in 0usize..300,
        ) {
            let start = start.min(from.len());
            let length = length.min(from.len() - start);
            let mut model = to.clone();
            model[at..at + length].copy_from_slice(&from[start..start + length]);
            let source: PageBits = from.iter().copied().collect();
            let mut bits: PageBits = to.iter().copied().collect();
            bits.copy_range(at, &source, start..start + length);
            prop_assert_eq!(bits, model.iter().copied().collect::<PageBits>());
        }
    }

    #[test]
    fn all_ones_stop_at_the_length() {
        for len in [0, 1, 63, 64, 65, 128, 130] {
            assert_eq!(PageBits::ones(len).count(), len);
        }
    }
}

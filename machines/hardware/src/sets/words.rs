//! Words: a tag and a dirty bit each, set by set, as 32 bits or, should a tag ever need more, as 64.
//!
//! A set takes a power-of-two number of words; those past its ways are always empty.

use super::packed::Packed;
use super::ways::Ways;

/// A word: the tag above, the dirty bit lowest; all ones where it is empty.
pub(crate) trait Word: Copy + Eq + std::fmt::Debug {
    /// No line.
    const EMPTY: Self;
    /// Tags from here on do not fit.
    const LIMIT: u64;
    /// A word.
    fn new(tag: u64, dirty: bool) -> Self;
    /// The word's tag.
    fn tag(self) -> u64;
    /// The word's dirty bit.
    fn dirty(self) -> bool;
    /// The same, or dirty.
    fn or_dirty(self, dirty: bool) -> Self;
    /// Whether it has the tag of a clean word.
    fn is(self, clean: Self) -> bool;
    /// A bit for each word of a set, one where it has the tag of a clean word.
    fn matches<const N: usize>(set: &[Self; N], clean: Self) -> u32;
}

/// [`Word::matches`] one word after the other.
#[inline(always)]
fn matches_one_by_one<const N: usize, W: Word>(set: &[W; N], clean: W) -> u32 {
    set.iter().enumerate().fold(0, |mask, (i, word)| mask | u32::from(word.is(clean)) << i)
}

macro_rules! word {
    ($int:ty, $matches:ident) => {
        impl Word for $int {
            const EMPTY: $int = <$int>::MAX;
            // All ones would be an empty word.
            const LIMIT: u64 = (<$int>::MAX >> 1) as u64;
            #[inline(always)]
            fn new(tag: u64, dirty: bool) -> $int {
                (tag << 1) as $int | <$int>::from(dirty)
            }
            #[inline(always)]
            fn tag(self) -> u64 {
                u64::from(self >> 1)
            }
            #[inline(always)]
            fn dirty(self) -> bool {
                self & 1 != 0
            }
            #[inline(always)]
            fn or_dirty(self, dirty: bool) -> $int {
                self | <$int>::from(dirty)
            }
            #[inline(always)]
            fn is(self, clean: $int) -> bool {
                self & !1 == clean
            }
            #[inline(always)]
            fn matches<const N: usize>(set: &[$int; N], clean: $int) -> u32 {
                $matches(set, clean)
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
use super::sse2::matches_by_four;
#[cfg(target_arch = "x86_64")]
word!(u32, matches_by_four);
#[cfg(not(target_arch = "x86_64"))]
word!(u32, matches_one_by_one);
word!(u64, matches_one_by_one);

/// The words of all sets, of one width.
#[derive(Debug, Clone)]
pub(crate) struct Sets<W> {
    words: Vec<W>,
    /// Words before the first set, so that sets begin where lines of the host do.
    skip: usize,
    /// Binary logarithm of the words of a set.
    stride_bits: u32,
}

impl<W: Word> Sets<W> {
    fn new(sets: usize, ways: usize) -> Self {
        let stride_bits = ways.max(4).next_power_of_two().trailing_zeros();
        let line = 64 / size_of::<W>();
        let words = vec![W::EMPTY; (sets << stride_bits) + line - 1];
        let misplaced = words.as_ptr() as usize % 64 / size_of::<W>();
        Sets { skip: (line - misplaced) % line, words, stride_bits }
    }

    /// The way that holds a tag.
    #[inline(always)]
    pub(crate) fn find(&self, set: usize, tag: u64) -> Option<usize> {
        if tag >= W::LIMIT {
            return None;
        }
        let key = W::new(tag, false);
        let first = self.at(set, 0);
        let set = &self.words[first..first + (1 << self.stride_bits)];
        let mut passed = 0;
        for sixteen in set.chunks(16) {
            match <&[W; 16]>::try_from(sixteen).map(|s| W::matches(s, key)) {
                Ok(0) => passed += 16,
                Ok(found) => return Some(passed + found.trailing_zeros() as usize),
                Err(_) => return sixteen.iter().position(|w| w.is(key)),
            }
        }
        None
    }

    /// Every valid entry: set, way, tag, dirty.
    pub(crate) fn all(&self) -> Vec<(usize, usize, u64, bool)> {
        all(&self.words[self.skip..], self.stride_bits)
    }
}

impl<W: Word> Ways for Sets<W> {
    type Word = W;

    #[inline(always)]
    fn at(&self, set: usize, way: usize) -> usize {
        self.skip + (set << self.stride_bits) + way
    }

    #[inline(always)]
    fn words(&self) -> &[W] {
        &self.words
    }

    #[inline(always)]
    fn words_mut(&mut self) -> &mut [W] {
        &mut self.words
    }
}

/// Every valid entry in sets of `1 << stride_bits` words: set, way, tag, dirty.
pub(super) fn all<W: Word>(words: &[W], stride_bits: u32) -> Vec<(usize, usize, u64, bool)> {
    let found = words.chunks(1 << stride_bits).enumerate().flat_map(|(set, words)| {
        let filled = words.iter().enumerate().filter(|(_, w)| **w != W::EMPTY);
        filled.map(move |(way, w)| (set, way, w.tag(), w.dirty()))
    });
    found.collect()
}

/// Words as narrow as the tags allow.
#[derive(Debug, Clone)]
pub(crate) enum Words {
    /// 32 bits, up to 16 ways.
    Packed(Packed),
    /// 32 bits.
    Narrow(Sets<u32>),
    /// 64 bits.
    Wide(Sets<u64>),
}

impl Words {
    /// All empty, narrow.
    pub(crate) fn new(sets: usize, ways: usize) -> Self {
        if ways <= 16 {
            Words::Packed(Packed::new(sets, ways))
        } else {
            Words::Narrow(Sets::new(sets, ways))
        }
    }

    /// Widens the words if this tag does not fit into narrow ones.
    #[inline(always)]
    pub(crate) fn admit(&mut self, tag: u64) {
        if tag >= u32::LIMIT && !matches!(self, Words::Wide(_)) {
            self.widen();
        }
    }

    #[cold]
    fn widen(&mut self) {
        let (shape, filled) = match self {
            Words::Packed(w) => (w.shape(), w.all()),
            Words::Narrow(w) => {
                let sets = (w.words.len() - w.skip) >> w.stride_bits;
                ((sets, 1 << w.stride_bits), w.all())
            }
            Words::Wide(_) => return,
        };
        let mut wide: Sets<u64> = Sets::new(shape.0, shape.1);
        for (set, way, tag, dirty) in filled {
            wide.replace(set, way, tag, dirty);
        }
        *self = Words::Wide(wide);
    }
}

/// The same for every width: `words!(words, w => expression in w)`.
macro_rules! words {
    ($words:expr, $w:ident => $body:expr) => {
        match $words {
            $crate::sets::words::Words::Packed($w) => $body,
            $crate::sets::words::Words::Narrow($w) => $body,
            $crate::sets::words::Words::Wide($w) => $body,
        }
    };
}
pub(crate) use words;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_every_form_are_found_where_they_are() {
        for ways in [1usize, 2, 4, 5, 8, 11, 16, 20, 64] {
            let mut narrow: Sets<u32> = Sets::new(4, ways);
            let mut wide: Sets<u64> = Sets::new(4, ways);
            let mut packed = (ways <= 16).then(|| Packed::new(4, ways));
            for way in 0..ways {
                let (tag, dirty) = (way as u64 * 3 + 1, way % 2 == 0);
                assert_eq!(narrow.find_empty(2, ways), Some(way));
                narrow.replace(2, way, tag, dirty);
                wide.replace(2, way, tag, dirty);
                if let Some(packed) = &mut packed {
                    packed.replace(2, way, tag, dirty);
                }
            }
            for tag in 0..3 * ways as u64 + 3 {
                let way = (tag % 3 == 1).then_some(tag as usize / 3).filter(|&w| w < ways);
                assert_eq!(narrow.find(2, tag), way, "{ways} ways, tag {tag}");
                assert_eq!(wide.find(2, tag), way);
                assert_eq!(narrow.find(1, tag), None);
                if let Some(packed) = &packed {
                    assert_eq!(packed.find(2, tag), way, "{ways} ways, tag {tag}");
                    assert_eq!(packed.find(1, tag), None);
                }
            }
            assert_eq!(narrow.all(), wide.all());
            if let Some(packed) = &packed {
                assert_eq!(packed.all(), wide.all());
            }
        }
    }
}

//! The common case, made fast: up to 16 ways with tags of up to 31 bits. A set is compared as 16
//! words at once, whatever its ways; words of the sets that follow are masked away.

use super::ways::Ways;
use super::words::Word;
use crate::host::array::Array;
use crate::host::prefetch::prefetch;

/// Words of sets of up to 16 ways.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    words: Array<u32>,
    /// Binary logarithm of the words of a set.
    stride_bits: u32,
    /// A bit for each way.
    ways: u32,
}

/// Words compared at once.
const WINDOW: usize = 16;

impl Packed {
    pub(super) fn new(sets: usize, ways: usize) -> Self {
        assert!(ways <= WINDOW);
        let stride_bits = ways.next_power_of_two().trailing_zeros();
        let words = Array::new((sets << stride_bits) + WINDOW, u32::EMPTY);
        Packed { words, stride_bits, ways: ((1u64 << ways) - 1) as u32 }
    }

    /// Whether words of this width can hold a tag.
    #[inline(always)]
    pub(crate) fn fits(&self, tag: u64) -> bool {
        tag < u32::LIMIT
    }

    /// The 16 words that begin with a set's.
    #[inline(always)]
    pub(crate) fn window(&mut self, set: usize) -> &mut [u32; WINDOW] {
        let first = self.at(set, 0);
        let window = &mut self.words[first..first + WINDOW];
        window.try_into().expect("a window is 16 words")
    }

    /// Prefetches a set on the host.
    #[inline(always)]
    pub(crate) fn prefetch(&self, set: usize) {
        prefetch(&self.words, self.at(set, 0));
    }

    /// The word of a way.
    #[inline(always)]
    pub(crate) fn word(&self, set: usize, way: usize) -> u32 {
        self.words[self.at(set, way)]
    }

    /// The way of a window that holds a tag, which must fit.
    #[inline(always)]
    pub(crate) fn find_in(window: &[u32; WINDOW], ways: u32, tag: u64) -> Option<usize> {
        let found = u32::matches(window, u32::new(tag, false)) & ways;
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    /// A bit for each way.
    #[inline(always)]
    pub(crate) fn ways(&self) -> u32 {
        self.ways
    }

    /// The way that holds a tag.
    #[inline(always)]
    pub(crate) fn find(&self, set: usize, tag: u64) -> Option<usize> {
        if !self.fits(tag) {
            return None;
        }
        let first = self.at(set, 0);
        let window = self.words[first..first + WINDOW].try_into().ok()?;
        Self::find_in(window, self.ways, tag)
    }

    /// Every valid entry: set, way, tag, dirty.
    pub(crate) fn all(&self) -> Vec<(usize, usize, u64, bool)> {
        super::words::all(&self.words, self.stride_bits)
    }

    /// Number of sets, and words of each.
    pub(super) fn shape(&self) -> (usize, usize) {
        ((self.words.len() - WINDOW) >> self.stride_bits, 1 << self.stride_bits)
    }
}

impl Ways for Packed {
    type Word = u32;

    #[inline(always)]
    fn at(&self, set: usize, way: usize) -> usize {
        (set << self.stride_bits) + way
    }

    #[inline(always)]
    fn words(&self) -> &[u32] {
        &self.words
    }

    #[inline(always)]
    fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }
}

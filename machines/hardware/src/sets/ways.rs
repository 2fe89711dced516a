//! Operations on one way of a set, for every word layout.

use super::words::Word;

/// Sets of words, one word per way.
pub(crate) trait Ways {
    /// A word.
    type Word: Word;

    /// The index of a way's word.
    fn at(&self, set: usize, way: usize) -> usize;

    /// All words.
    fn words(&self) -> &[Self::Word];

    /// All words, mutable.
    fn words_mut(&mut self) -> &mut [Self::Word];

    /// An empty way.
    fn find_empty(&self, set: usize, ways: usize) -> Option<usize> {
        let first = self.at(set, 0);
        self.words()[first..first + ways].iter().position(|&w| w == Self::Word::EMPTY)
    }

    /// Whether a way is dirty.
    #[inline(always)]
    fn dirty(&self, set: usize, way: usize) -> bool {
        self.words()[self.at(set, way)].dirty()
    }

    /// Marks a way dirty, if `dirty`.
    #[inline(always)]
    fn or_dirty(&mut self, set: usize, way: usize, dirty: bool) {
        let at = self.at(set, way);
        let word = &mut self.words_mut()[at];
        *word = word.or_dirty(dirty);
    }

    /// Puts a tag, which must fit, in a way; returns the tag and dirty bit that it replaces.
    #[inline(always)]
    fn replace(&mut self, set: usize, way: usize, tag: u64, dirty: bool) -> Option<(u64, bool)> {
        let at = self.at(set, way);
        let old = std::mem::replace(&mut self.words_mut()[at], Self::Word::new(tag, dirty));
        (old != Self::Word::EMPTY).then(|| (old.tag(), old.dirty()))
    }

    /// Empties a way; returns whether it was dirty.
    #[inline(always)]
    fn empty(&mut self, set: usize, way: usize) -> bool {
        let at = self.at(set, way);
        std::mem::replace(&mut self.words_mut()[at], Self::Word::EMPTY).dirty()
    }

    /// Empties everything.
    fn clear(&mut self) {
        self.words_mut().fill(Self::Word::EMPTY);
    }
}

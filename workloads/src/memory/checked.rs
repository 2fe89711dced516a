//! Self-checking contents. Every word of the arena has exactly one right value at any time: a
//! function of seed, page, place in the page and how often that place was rewritten. A page that a
//! migration lost, tore, duplicated or rolled back is found by the next check.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use super::arena::Arena;

/// Words rewritten by one touch: one cache line.
const LINE_WORDS: usize = 8;
/// Odd constants (the golden ratio's and another 64-bit one) that keep neighbouring positions
/// and versions far apart.
const POSITION_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const VERSION_STEP: u64 = 0xd1b5_4a32_d192_ed03;

/// A 64-bit mixing function (the finalizer of SplitMix64, Steele et al., OOPSLA 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(POSITION_STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn right_value(page_key: u64, position: usize, version: u64) -> u64 {
    page_key
        .wrapping_add((position as u64).wrapping_mul(POSITION_STEP))
        .wrapping_add(version.wrapping_mul(VERSION_STEP))
}

/// An arena whose contents are checked at every touch.
pub struct CheckedArena {
    arena: Rc<Arena>,
    seed: u64,
    /// Touches of each page so far. Kept outside the arena, so that reading it touches no page of
    /// it.
    touches: Vec<u64>,
    /// The words are another program's, which changes them.
    is_reader: bool,
}

impl CheckedArena {
    /// Fills every page with its first contents, which touches all of them.
    pub fn fill(arena: Arena, seed: u64) -> CheckedArena {
        for page in 0..arena.pages() {
            let key = mix(seed ^ mix(page as u64));
            let mut value = key;
            for word in arena.page(page) {
                word.store(value, Relaxed);
                value = value.wrapping_add(POSITION_STEP);
            }
        }
        let touches = vec![0; arena.pages()];
        CheckedArena { arena: Rc::new(arena), seed, touches, is_reader: false }
    }

    /// Memory whose words are another program's: they are read, and are right whatever they are.
    pub fn of_another(arena: Arena) -> CheckedArena {
        let touches = vec![0; arena.pages()];
        CheckedArena { arena: Rc::new(arena), seed: 0, touches, is_reader: true }
    }

    /// The memory. Who keeps it shares it.
    pub fn arena(&self) -> &Rc<Arena> {
        &self.arena
    }

    /// Checks one cache line of the page and rewrites it, the next line at the next touch.
    /// Returns how many words were wrong.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn touch(&mut self, page: usize) -> u64 {
        let words = self.arena.page(page);
        let lines = (words.len() / LINE_WORDS) as u64;
        let key = mix(self.seed ^ mix(page as u64));
        let touches = self.touches[page];
        let (line, version) = ((touches % lines) as usize, touches / lines);
        let mut wrong = 0;
        if self.is_reader {
            self.touches[page] += 1;
            words[line * LINE_WORDS].load(Relaxed);
            return 0;
        }
        for (i, word) in words[line * LINE_WORDS..][..LINE_WORDS].iter().enumerate() {
            let position = line * LINE_WORDS + i;
            wrong += u64::from(word.load(Relaxed) != right_value(key, position, version));
            word.store(right_value(key, position, version + 1), Relaxed);
        }
        self.touches[page] += 1;
        wrong
    }

    /// Checks every word of every page. Returns how many were wrong.
    pub fn verify(&self) -> u64 {
        if self.is_reader {
            return 0;
        }
        let mut wrong = 0;
        for (page, &touches) in self.touches.iter().enumerate() {
            let words = self.arena.page(page);
            let lines = (words.len() / LINE_WORDS) as u64;
            let key = mix(self.seed ^ mix(page as u64));
            for (position, word) in words.iter().enumerate() {
                let line = (position / LINE_WORDS) as u64;
                let version = (touches + lines - 1 - line) / lines;
                wrong += u64::from(word.load(Relaxed) != right_value(key, position, version));
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use terrace_core::page::PageSize;

    fn checked(pages: usize) -> CheckedArena {
        CheckedArena::fill(Arena::map(PageSize::Base, pages).unwrap(), 7)
    }

    proptest! {
        #[test]
        fn any_touches_leave_the_right_contents(touches in prop::collection::vec(0usize..3, 0..400)) {
            let mut memory = checked(3);
            for page in touches {
                prop_assert_eq!(memory.touch(page), 0);
            }
            prop_assert_eq!(memory.verify(), 0);
        }

        #[test]
        fn any_flipped_bit_is_found(page in 0usize..3, word in 0usize..512, bit in 0u32..64) {
            let memory = checked(3);
            memory.arena().page(page)[word].fetch_xor(1 << bit, Relaxed);
            prop_assert_eq!(memory.verify(), 1);
        }
    }

    #[test]
    fn a_page_swapped_rolled_back_or_zeroed_is_found() {
        let mut memory = checked(2);
        let before: Vec<u64> = memory.arena().page(0).iter().map(|w| w.load(Relaxed)).collect();
        memory.touch(0);
        let line = |memory: &CheckedArena, page: usize, values: &[u64]| {
            for (word, &value) in memory.arena().page(page).iter().zip(values) {
                word.store(value, Relaxed);
            }
        };
        // Rolled back: the one line that was rewritten is old again.
        line(&memory, 0, &before);
        assert_eq!(memory.verify(), 8);
        // The other page's contents.
        line(&memory, 1, &before);
        assert_eq!(memory.verify(), 8 + 512);
        line(&memory, 1, &[0; 512]);
        assert_eq!(memory.verify(), 8 + 512);
        assert_eq!(memory.touch(1), 8, "a touch checks before it writes");
    }
}

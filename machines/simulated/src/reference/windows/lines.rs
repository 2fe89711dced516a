//! The lines that a program used last, with the time of their last use and of their last store.
//!
//! Memory: 15 bytes a line of every page that was touched, about a quarter of the program's.

use std::collections::HashMap;

use terrace_core::page::PageSize;
use terrace_recordings::windows::{LINE_BYTES, WindowLine};

const LINES: usize = (PageSize::Base.bytes() / LINE_BYTES) as usize;
/// Pages that are found without a search.
const NEAR: usize = 1 << 10;
/// Stores are remembered to so many references.
const STORE_LOG2: u32 = 10;
/// The lines used last are kept in the order of their use.
const IN_ORDER: usize = 2048;
/// Farther ones by address, a part at a time, which is one in so many of the lines used since: their
/// order matters where they leave a cache, the less so the larger it is.
const PART_OF_AGE: usize = 32;
/// Steps of time by which lines are chosen.
const STEPS: usize = 4096;

/// A page's lines.
struct Page {
    number: u64,
    /// By line: number of the reference that used it last, from 1; 0: none.
    used: [u64; LINES],
    /// By line: number of the reference that wrote it last over 2^[`STORE_LOG2`], and 1; 0: none.
    stored: [u32; LINES],
    /// By line: the thread that used it last.
    threads: [u16; LINES],
    /// The latest of `used`.
    newest: u64,
}

/// Lines by page.
pub(super) struct Lines {
    places: HashMap<u64, usize>,
    pages: Vec<Page>,
    free: Vec<usize>,
    /// By the last bits of its number: page number and 1, and its place.
    near: Vec<(u64, usize)>,
    now: u64,
}

impl Lines {
    pub(super) fn new() -> Self {
        Lines {
            places: HashMap::new(),
            pages: Vec::new(),
            free: Vec::new(),
            near: vec![(0, 0); NEAR],
            now: 0,
        }
    }

    /// A reference. `true` if it is the first to a page (to either of two).
    #[inline]
    pub(super) fn reference(&mut self, address: u64, size: u8, thread: u16, store: bool) -> bool {
        self.now += 1;
        let first = address / LINE_BYTES;
        let last = (address + u64::from(size.max(1) - 1)) / LINE_BYTES;
        let mut is_first = false;
        for line in first..=last {
            is_first |= self.line(line, thread, store);
        }
        is_first
    }

    #[inline]
    fn line(&mut self, line: u64, thread: u16, store: bool) -> bool {
        let (number, line) = (line / LINES as u64, (line % LINES as u64) as usize);
        let near = self.near[number as usize % NEAR];
        let (place, is_first) = match near.0 == number + 1 {
            true => (near.1, false),
            false => self.find(number),
        };
        let page = &mut self.pages[place];
        page.used[line] = self.now;
        page.threads[line] = thread;
        page.newest = self.now;
        if store {
            page.stored[line] = (self.now >> STORE_LOG2) as u32 + 1;
        }
        is_first
    }

    fn find(&mut self, number: u64) -> (usize, bool) {
        let (place, is_first) = match self.places.get(&number) {
            Some(&place) => (place, false),
            None => {
                let page = Page {
                    number,
                    used: [0; LINES],
                    stored: [0; LINES],
                    threads: [0; LINES],
                    newest: 0,
                };
                let place = match self.free.pop() {
                    Some(place) => {
                        self.pages[place] = page;
                        place
                    }
                    None => {
                        self.pages.push(page);
                        self.pages.len() - 1
                    }
                };
                self.places.insert(number, place);
                (place, true)
            }
        };
        self.near[number as usize % NEAR] = (number + 1, place);
        (place, is_first)
    }

    /// Pages of this range are gone: they are touched anew when they are used again.
    pub(super) fn forget(&mut self, start: u64, size_bytes: u64) {
        let page_bytes = PageSize::Base.bytes();
        let numbers = start / page_bytes..(start + size_bytes).div_ceil(page_bytes);
        let gone: Vec<u64> = match (numbers.end - numbers.start) as usize <= self.places.len() {
            true => numbers.filter(|number| self.places.contains_key(number)).collect(),
            false => self.places.keys().copied().filter(|n| numbers.contains(n)).collect(),
        };
        for number in gone {
            let Some(place) = self.places.remove(&number) else { continue };
            self.pages[place].newest = 0;
            self.pages[place].used = [0; LINES];
            self.free.push(place);
            let near = &mut self.near[number as usize % NEAR];
            if near.0 == number + 1 {
                *near = (0, 0);
            }
        }
        // Places are handed out in an order that does not depend on that of a hash.
        self.free.sort_unstable();
    }

    /// The lines used last, at most so many, the oldest first.
    pub(super) fn latest(&self, most: usize) -> Vec<WindowLine> {
        let oldest = self.oldest_of(most);
        let mut lines: Vec<(u64, u64, u16, bool)> = Vec::new();
        for page in self.pages.iter().filter(|page| page.newest >= oldest) {
            for line in 0..LINES {
                let used = page.used[line];
                if used >= oldest && used > 0 {
                    // The last of a step: a line may have been written just before.
                    let stored = u64::from(page.stored[line]) << STORE_LOG2;
                    let address = (page.number * LINES as u64 + line as u64) * LINE_BYTES;
                    lines.push((used, address, page.threads[line], stored > oldest));
                }
            }
        }
        // Two lines of one reference have one time.
        lines.sort_unstable();
        let surplus = lines.len().saturating_sub(most);
        lines.drain(..surplus);
        let mut end = lines.len().saturating_sub(IN_ORDER);
        while end > 0 {
            let start = end.saturating_sub((lines.len() - end) / PART_OF_AGE);
            lines[start..end].sort_unstable_by_key(|line| line.1);
            end = start;
        }
        let line = |(_, address, thread, is_written)| WindowLine { address, thread, is_written };
        lines.into_iter().map(line).collect()
    }

    /// A time since which at least `most` lines were used, or all, and not many more.
    fn oldest_of(&self, most: usize) -> u64 {
        let step = self.now / STEPS as u64 + 1;
        let mut counts = vec![0usize; STEPS + 1];
        for page in self.pages.iter().filter(|page| page.newest > 0) {
            for &used in page.used.iter().filter(|used| **used > 0) {
                counts[(used / step) as usize] += 1;
            }
        }
        let mut sum = 0;
        for (n, count) in counts.iter().enumerate().rev() {
            sum += count;
            if sum >= most {
                return (n as u64 * step).max(1);
            }
        }
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(lines: &[WindowLine]) -> Vec<u64> {
        lines.iter().map(|line| line.address / LINE_BYTES).collect()
    }

    #[test]
    fn the_latest_lines_come_oldest_first_and_each_once() {
        let mut lines = Lines::new();
        let uses = [3u64, 1, 2, 3, 200, 1];
        let firsts: Vec<bool> =
            uses.iter().map(|line| lines.reference(line * LINE_BYTES, 8, 0, false)).collect();
        assert_eq!(firsts, [true, false, false, false, true, false]);
        assert_eq!(addresses(&lines.latest(10)), [2, 3, 200, 1]);
        assert_eq!(addresses(&lines.latest(2)), [200, 1]);
    }

    #[test]
    fn a_reference_across_lines_uses_both() {
        let mut lines = Lines::new();
        assert!(lines.reference(4096 - 4, 8, 1, true));
        assert!(!lines.reference(0, 1, 0, false) && !lines.reference(4096, 1, 0, false));
        let got = lines.latest(10);
        assert_eq!(addresses(&got), [63, 0, 64]);
        assert_eq!(got.iter().map(|l| l.thread).collect::<Vec<_>>(), [1, 0, 0]);
    }

    #[test]
    fn what_was_unmapped_is_no_line_and_is_touched_anew() {
        let mut lines = Lines::new();
        for page in 0..4 {
            assert!(lines.reference(page * 4096, 8, 0, false));
        }
        lines.forget(4096, 2 * 4096);
        assert_eq!(addresses(&lines.latest(10)), [0, 3 * 64]);
        assert!(lines.reference(2 * 4096, 8, 0, false));
        assert!(!lines.reference(0, 8, 0, false));
        lines.forget(0, 1 << 40);
        assert!(lines.latest(10).is_empty());
    }

    #[test]
    fn a_line_is_written_if_a_store_is_among_what_is_kept() {
        let mut lines = Lines::new();
        let far = 1u64 << STORE_LOG2;
        // A store, then so many lines that it is old news, then a load of the same line.
        lines.reference(0, 8, 0, true);
        (1..4 * far).for_each(|n| {
            lines.reference(n * LINE_BYTES, 8, 0, false);
        });
        lines.reference(0, 8, 0, false);
        lines.reference(7 * LINE_BYTES, 8, 0, true);
        let written = |most| -> Vec<u64> {
            let all = lines.latest(most);
            all.iter().filter(|l| l.is_written).map(|l| l.address / LINE_BYTES).collect()
        };
        assert_eq!(written(usize::MAX), [0, 7]);
        assert_eq!(written(far as usize), [7]);
    }

    #[test]
    fn only_the_order_of_old_lines_is_by_address_and_not_by_much() {
        let mut lines = Lines::new();
        let many = 20 * IN_ORDER as u64;
        // Downwards, so that the order of time is not that of addresses.
        (0..many).rev().for_each(|n| {
            lines.reference(n * LINE_BYTES, 8, 0, false);
        });
        let got = addresses(&lines.latest(many as usize));
        let (old, new) = got.split_at(got.len() - IN_ORDER);
        assert!(new.is_sorted_by(|a, b| a > b) && new[0] == IN_ORDER as u64 - 1);
        assert!(!old.is_sorted_by(|a, b| a > b));
        for (n, line) in old.iter().enumerate() {
            let (is, by_time) = (got.len() - 1 - n, *line as usize);
            assert!(is.abs_diff(by_time) <= is / PART_OF_AGE + 1, "{by_time} at {is}");
        }
    }
}

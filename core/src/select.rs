//! Choosing which pages belong in fast memory: by counting, in time linear in the pages.
//!
//! Pages have keys of at most 127, smaller for hotter ones ([`crate::hotness`]). One pass counts
//! how many pages of each tier have each key ([`KeyCounts`]); from the counts alone follows how
//! many pages go up and down and the key at which either stops ([`KeyCounts::select`]); a second
//! pass picks them ([`Selection::moves`]). Nothing is ever sorted.
//!
//! Three rules keep pages from moving for nothing:
//! - Of two equally hot pages the one that is in fast memory stays there.
//! - A page in fast memory counts as hotter by a *resident bonus* of some steps of the key, so
//!   that two pages whose keys merely take turns do not trade places for ever.
//! - The coldest key, that of pages with no access on record, has no bonus and earns no
//!   promotion: such a page yields to any that was accessed, and never takes up room that is
//!   free.
//!
//! [`KeyCounts::select_by_list`] has none of them: it is what sorting a list of pages would do.
//!
//! Where several pages have the key at which the selection stops, those with the smallest
//! addresses are taken.

use crate::bits::PageBits;
use crate::hotness::{EXPAND, at_least};
use crate::scan::Budget;

/// Numbers of moves that a budget allows, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoveLimits {
    /// Demotions that bring the group back within its fast memory.
    pub demotions: u64,
    /// Promotions into fast memory that is free.
    pub promotions: u64,
    /// Further pairs, one page up and one down.
    pub exchanges: u64,
}

impl MoveLimits {
    /// The moves allowed when `resident` pages are in fast memory, `risers` pages are candidates
    /// for promotion and `yielders` of the residents may be demoted for them. Spends
    /// [`Budget::moved_pages`] on demotions that are due first, then on free room, where one move
    /// gains what an exchange needs two for, then on exchanges.
    pub fn new(budget: &Budget, resident: u64, risers: u64, yielders: u64) -> Self {
        let due = resident.saturating_sub(budget.fast_pages);
        let demotions = due.min(budget.moved_pages);
        let left = budget.moved_pages - demotions;
        let room = budget.fast_pages.saturating_sub(resident);
        let promotions = room.min(risers).min(left);
        let pairs = (risers - promotions).min(yielders.saturating_sub(demotions));
        MoveLimits { demotions, promotions, exchanges: pairs.min((left - promotions) / 2) }
    }

    /// Pages that go up.
    pub fn ups(&self) -> u64 {
        self.promotions + self.exchanges
    }

    /// Pages that go down.
    pub fn downs(&self) -> u64 {
        self.demotions + self.exchanges
    }
}

/// Number of pages by key and tier.
///
/// Four counters for each, used in turn: neighbouring pages often share a key, and adding to one
/// counter again and again waits for the store before it.
#[derive(Debug, Clone)]
pub struct KeyCounts {
    /// Index: the key, plus 128 in fast memory.
    lanes: [[u32; 256]; 4],
}

impl Default for KeyCounts {
    fn default() -> Self {
        KeyCounts { lanes: [[0; 256]; 4] }
    }
}

impl KeyCounts {
    /// Counts none.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts 64 pages; bit `i` of `fast` is the place of page `i`.
    #[inline]
    pub fn count(&mut self, keys: &[u8; 64], fast: u64) {
        let [a, b, c, d] = &mut self.lanes;
        for (keys, fast) in keys.as_chunks::<8>().0.iter().zip(fast.to_le_bytes()) {
            let placed = u64::from_le_bytes(*keys) | EXPAND[usize::from(fast)] << 7;
            let k = placed.to_le_bytes().map(usize::from);
            a[k[0]] += 1;
            b[k[1]] += 1;
            c[k[2]] += 1;
            d[k[3]] += 1;
            a[k[4]] += 1;
            b[k[5]] += 1;
            c[k[6]] += 1;
            d[k[7]] += 1;
        }
    }

    fn of(&self, index: usize) -> u64 {
        self.lanes.iter().map(|lane| u64::from(lane[index])).sum()
    }

    /// The moves. `coldest` is the key of pages with no access on record (padding must have
    /// it too), `bonus` the resident bonus in steps of the key.
    pub fn select(&self, coldest: u8, budget: &Budget, bonus: u8) -> Selection {
        let seen_as = |key: u8| if key == coldest { key } else { key.saturating_sub(bonus) };
        self.select_if(coldest, budget, |_| true, |up, down| up < seen_as(down))
    }

    /// As [`KeyCounts::select`], for a policy that judges itself what a move is worth: `promote`
    /// returns whether a page of this key goes up into free room, `trade` whether it goes up for
    /// one of the second key. Both must be false of a colder page, or for a hotter one, when they
    /// are false of one.
    pub fn select_if(
        &self,
        coldest: u8,
        budget: &Budget,
        promote: impl Fn(u8) -> bool,
        trade: impl Fn(u8, u8) -> bool,
    ) -> Selection {
        let coldest = usize::from(coldest);
        let (slow, fast) = self.by_key(coldest);
        let resident: u64 = fast.iter().sum();
        let hot: u64 = slow[..coldest].iter().sum();
        let rising: u64 = (0..coldest).filter(|&k| promote(k as u8)).map(|k| slow[k]).sum();
        let room = budget.fast_pages.saturating_sub(resident);
        // Where room is left over no page needs to make way.
        let hot = if rising < room { rising } else { hot };
        let mut most = MoveLimits::new(budget, resident, hot, resident);
        most.promotions = most.promotions.min(rising);
        Self::pair_up(&slow, &fast, coldest as u8, most, trade)
    }

    /// The moves that put the first pages of a list into fast memory: those of slow memory followed by
    /// those of fast memory, sorted by key, pages of equal keys left in their order. So of two pages
    /// that are equally hot the one in slow memory goes up, those with no access on record among them,
    /// and where all are equally hot all of them move. `pages` is how many there are, padding left out.
    pub fn select_by_list(&self, coldest: u8, budget: &Budget, pages: u64) -> Selection {
        let (mut slow, fast) = self.by_key(usize::from(coldest));
        let padding = slow.iter().sum::<u64>() + fast.iter().sum::<u64>() - pages;
        slow[usize::from(coldest)] -= padding;
        let resident = fast.iter().sum();
        let most = MoveLimits::new(budget, resident, slow.iter().sum(), resident);
        Self::pair_up(&slow, &fast, coldest, most, |up, down| up <= down)
    }

    /// Pages by key in slow memory and in fast memory.
    fn by_key(&self, coldest: usize) -> ([u64; 128], [u64; 128]) {
        let mut slow = [0; 128];
        let mut fast = [0; 128];
        for key in 0..=coldest {
            slow[key] = self.of(key);
            fast[key] = self.of(key + 128);
        }
        (slow, fast)
    }

    /// Fills what is free, demotes what is due, then pairs the hottest page in slow memory with the
    /// coldest in fast memory for as long as `trade` returns true.
    fn pair_up(
        slow: &[u64; 128],
        fast: &[u64; 128],
        coldest: u8,
        most: MoveLimits,
        trade: impl Fn(u8, u8) -> bool,
    ) -> Selection {
        let mut ups = Cut { key: 0, pages: 0, total: 0 };
        let mut downs = Cut { key: coldest, pages: 0, total: 0 };
        ups.take(slow, most.promotions, |key| key + 1);
        downs.take(fast, most.demotions, |key| key - 1);
        let mut pairs = most.exchanges;
        while pairs > 0 {
            // The hottest page in slow memory against the coldest in fast memory.
            ups.settle(slow, |key| key + 1);
            downs.settle(fast, |key| key - 1);
            let (up, down) = (usize::from(ups.key), usize::from(downs.key));
            if !trade(ups.key, downs.key) {
                break;
            }
            let step = pairs.min(slow[up] - ups.pages).min(fast[down] - downs.pages);
            ups.pages += step;
            ups.total += step;
            downs.pages += step;
            downs.total += step;
            pairs -= step;
        }
        Selection { ups, downs }
    }
}

/// How far a selection goes from its end of the keys: all pages before `key`, and `pages` of
/// those that have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    key: u8,
    pages: u64,
    total: u64,
}

impl Cut {
    /// Goes on to the next key that has pages left, if this one has none. There must be one.
    fn settle(&mut self, counts: &[u64; 128], next: impl Fn(u8) -> u8) {
        while self.pages == counts[usize::from(self.key)] {
            self.key = next(self.key);
            self.pages = 0;
        }
    }

    fn take(&mut self, counts: &[u64; 128], mut pages: u64, next: impl Fn(u8) -> u8) {
        self.total += pages;
        while pages > 0 {
            self.settle(counts, &next);
            let step = pages.min(counts[usize::from(self.key)] - self.pages);
            self.pages += step;
            pages -= step;
        }
    }
}

/// Which pages to move, by key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    ups: Cut,
    downs: Cut,
}

impl Selection {
    /// Pages that go up.
    pub fn ups(&self) -> u64 {
        self.ups.total
    }

    /// Pages that go down.
    pub fn downs(&self) -> u64 {
        self.downs.total
    }

    /// Whether nothing moves.
    pub fn is_empty(&self) -> bool {
        self.ups() == 0 && self.downs() == 0
    }

    /// Calls `each` for every 64 pages of which some move, ascending: the number of the word and
    /// the bits of the pages that go up and of those that go down. `keys` and `fast` must be
    /// those that were counted.
    pub fn moves(&self, keys: &[u8], fast: &[u64], mut each: impl FnMut(usize, u64, u64)) {
        let mut left = *self;
        for (word, (keys, &fast)) in keys.as_chunks::<64>().0.iter().zip(fast).enumerate() {
            if left.is_empty() {
                return;
            }
            let (up, down) = left.take(keys, fast);
            if up | down != 0 {
                each(word, up, down);
            }
        }
    }

    /// Moves the pages on a placement, the one that was counted.
    pub fn place(&self, keys: &[u8], fast: &mut PageBits) {
        let mut left = *self;
        for (keys, fast) in keys.as_chunks::<64>().0.iter().zip(fast.words_mut()) {
            if left.is_empty() {
                return;
            }
            let (up, down) = left.take(keys, *fast);
            *fast ^= up | down;
        }
    }

    /// The next 64 pages' bits that go up and down; the rest of the selection shrinks by them.
    #[inline]
    fn take(&mut self, keys: &[u8; 64], fast: u64) -> (u64, u64) {
        let (mut up, mut down) = (0, 0);
        if self.ups.total > 0 && fast != !0 {
            let (before, at) = split(keys, self.ups.key);
            up = !fast & before | first_bits(!fast & at, &mut self.ups.pages);
            self.ups.total -= u64::from(up.count_ones());
        }
        if self.downs.total > 0 && fast != 0 {
            let (before, at) = split(keys, self.downs.key);
            down = fast & !(before | at) | first_bits(fast & at, &mut self.downs.pages);
            self.downs.total -= u64::from(down.count_ones());
        }
        (up, down)
    }
}

/// Bits of the keys smaller than `key`, and of those equal to it.
#[inline]
fn split(keys: &[u8; 64], key: u8) -> (u64, u64) {
    let (mut from, mut after) = (0, 0);
    for (i, keys) in keys.as_chunks::<8>().0.iter().enumerate() {
        let keys = u64::from_le_bytes(*keys);
        from |= gather(at_least(keys, key)) << (8 * i);
        after |= gather(at_least(keys, key + 1)) << (8 * i);
    }
    (!from, from & !after)
}

/// The high bit of each byte (the others are 0), as eight bits in their order.
const fn gather(high_bits: u64) -> u64 {
    (high_bits >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// The lowest bits of `bits`, no more than `limit`, which shrinks by the number taken.
#[inline]
pub(crate) fn first_bits(bits: u64, limit: &mut u64) -> u64 {
    let count = u64::from(bits.count_ones());
    if count <= *limit {
        *limit -= count;
        return bits;
    }
    let mut left = bits;
    for _ in 0..*limit {
        left &= left - 1;
    }
    *limit = 0;
    bits ^ left
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn select(
        keys: &[u8],
        fast: &PageBits,
        coldest: u8,
        budget: &Budget,
        bonus: u8,
    ) -> (Vec<usize>, Vec<usize>) {
        let mut keys = keys.to_vec();
        keys.resize(keys.len().next_multiple_of(64), coldest);
        let mut counts = KeyCounts::new();
        for (chunk, &word) in keys.as_chunks::<64>().0.iter().zip(fast.words()) {
            counts.count(chunk, word);
        }
        let selection = counts.select(coldest, budget, bonus);
        let (mut ups, mut downs) = (PageBits::new(fast.len()), PageBits::new(fast.len()));
        selection.moves(&keys, fast.words(), |word, up, down| {
            ups.words_mut()[word] = up;
            downs.words_mut()[word] = down;
        });
        assert_eq!(ups.count() as u64, selection.ups());
        assert_eq!(downs.count() as u64, selection.downs());
        let mut placed = fast.clone();
        selection.place(&keys, &mut placed);
        for page in 0..fast.len() {
            assert_eq!(placed.get(page), (fast.get(page) || ups.get(page)) && !downs.get(page));
        }
        (ups.iter_ones().collect(), downs.iter_ones().collect())
    }

    /// The same choice by sorting, one page at a time.
    fn by_sorting(
        keys: &[u8],
        fast: &PageBits,
        coldest: u8,
        budget: &Budget,
        bonus: u8,
    ) -> (Vec<usize>, Vec<usize>) {
        let mut slow: Vec<usize> =
            (0..keys.len()).filter(|&i| !fast.get(i) && keys[i] < coldest).collect();
        let mut residents: Vec<usize> = fast.iter_ones().collect();
        slow.sort_by_key(|&i| (keys[i], i));
        residents.sort_by_key(|&i| (u8::MAX - keys[i], i));
        let (mut slow, mut residents) = (slow.into_iter(), residents.into_iter().peekable());
        let (mut ups, mut downs) = (Vec::new(), Vec::new());
        let mut moves = budget.moved_pages;
        let mut resident = fast.count() as u64;
        while resident > budget.fast_pages && moves > 0 {
            downs.extend(residents.next());
            resident -= 1;
            moves -= 1;
        }
        while resident < budget.fast_pages && moves > 0 {
            let Some(page) = slow.next() else { break };
            ups.push(page);
            resident += 1;
            moves -= 1;
        }
        while moves >= 2 && resident <= budget.fast_pages {
            let (Some(up), Some(&down)) = (slow.next(), residents.peek()) else { break };
            let seen_as = match keys[down] {
                key if key == coldest => coldest,
                key => key.saturating_sub(bonus),
            };
            if keys[up] >= seen_as {
                break;
            }
            residents.next();
            ups.push(up);
            downs.push(down);
            moves -= 2;
        }
        ups.sort();
        downs.sort();
        (ups, downs)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn counting_chooses_what_sorting_would(
            pages in prop::collection::vec((0u8..=127, any::<bool>()), 0..200),
            coldest in prop::sample::select(vec![127u8, 64, 3]),
            fast_pages in 0u64..250,
            moved_pages in prop::sample::select(vec![u64::MAX, 0, 1, 2, 7, 50]),
            bonus in prop::sample::select(vec![0u8, 1, 5, 255]),
        ) {
            let keys: Vec<u8> = pages.iter().map(|p| p.0.min(coldest)).collect();
            let fast: PageBits = pages.iter().map(|p| p.1).collect();
            let budget = Budget { fast_pages, moved_pages };
            prop_assert_eq!(
                select(&keys, &fast, coldest, &budget, bonus),
                by_sorting(&keys, &fast, coldest, &budget, bonus)
            );
        }
    }

    /// The places of pages after a sort that leaves pages of equal keys in the order of the list.
    fn by_list(keys: &[u8], fast: &PageBits, coldest: u8, budget: &Budget) -> PageBits {
        let mut counts = KeyCounts::new();
        let mut padded = keys.to_vec();
        padded.resize(keys.len().next_multiple_of(64), coldest);
        for (chunk, &word) in padded.as_chunks::<64>().0.iter().zip(fast.words()) {
            counts.count(chunk, word);
        }
        let mut placed = fast.clone();
        counts.select_by_list(coldest, budget, keys.len() as u64).place(&padded, &mut placed);
        placed
    }

    proptest! {
        #[test]
        fn a_list_fills_fast_memory_as_a_stable_sort_does(
            pages in prop::collection::vec((0u8..=64, any::<bool>()), 1..200),
            fast_pages in 0u64..250,
        ) {
            let keys: Vec<u8> = pages.iter().map(|p| p.0).collect();
            let fast: PageBits = pages.iter().map(|p| p.1).collect();
            let placed = by_list(&keys, &fast, 64, &Budget::fast(fast_pages));
            // Of pages in fast memory with the same key those of the smallest addresses make way.
            let slow = (0..keys.len()).filter(|&i| !fast.get(i));
            let mut list: Vec<usize> = slow.chain((0..keys.len()).rev().filter(|&i| fast.get(i))).collect();
            list.sort_by_key(|&i| keys[i]);
            let wanted = (fast_pages as usize).min(keys.len());
            let mut expected = PageBits::new(keys.len());
            list[..wanted].iter().for_each(|&i| expected.set(i, true));
            prop_assert_eq!(placed, expected);
        }
    }

    #[test]
    fn in_a_list_of_equally_hot_pages_all_of_them_trade_places() {
        let fast: PageBits = [true, false, true, false].into_iter().collect();
        let swapped: PageBits = [false, true, false, true].into_iter().collect();
        assert_eq!(by_list(&[3; 4], &fast, 64, &Budget::fast(2)), swapped);
        assert_eq!(by_list(&[64; 4], &fast, 64, &Budget::fast(2)), swapped, "never accessed");
        assert_eq!(by_list(&[3, 4, 3, 4], &fast, 64, &Budget::fast(2)), fast);
    }

    #[test]
    fn a_resident_stays_unless_another_is_hotter_by_more_than_the_bonus() {
        let fast: PageBits = [true, false].into_iter().collect();
        let budget = Budget::fast(1);
        let stays = (vec![], vec![]);
        let trade = (vec![1], vec![0]);
        assert_eq!(select(&[5, 5], &fast, 127, &budget, 0), stays);
        assert_eq!(select(&[5, 4], &fast, 127, &budget, 0), trade);
        assert_eq!(select(&[5, 4], &fast, 127, &budget, 1), stays);
        assert_eq!(select(&[5, 3], &fast, 127, &budget, 1), trade);
        assert_eq!(select(&[127, 126], &fast, 127, &budget, 9), trade);
    }

    #[test]
    fn pages_with_no_access_on_record_take_up_no_free_room() {
        let fast = PageBits::new(3);
        assert_eq!(select(&[127, 9, 127], &fast, 127, &Budget::fast(3), 0), (vec![1], vec![]));
    }
}

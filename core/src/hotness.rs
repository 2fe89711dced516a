//! How hot each page is: its age and its history of accesses (adaptive-migration-policy paper,
//! section 3.1, figure 1), in 10 bytes a page. The paper spends 16 (section 4.2: 4 for the age,
//! 8 for the history, 4 for the frequency).
//!
//! - The **history** is the accessed bits of the last 64 scans, kept as 64 bit vectors in a
//!   ring: a new period writes one of them, an eighth of a byte a page, where a word per page
//!   would have to be read, shifted and written whole.
//! - The **frequency** is the number of bits set in the history, kept up to date by adding the
//!   bit that comes in and taking off the one that goes out.
//! - The **age** is the periods since the last access, kept as a 7-bit [class](age_floor): exact
//!   up to 64 periods, as far back as the history goes, then in steps of 2, 4, ... 128 periods,
//!   which is within an eighth, up to 2,096 periods (2.9 hours at 5 s). Ages keep their order:
//!   a page never overtakes one that was accessed before it. A page not accessed since it came
//!   is [`NEVER`], older than any age.
//!
//! Age classes and [idle counts](Hotness::idle_counts) are *keys*: one byte a page, at most 127,
//! smaller for hotter pages, which is what [`crate::select`] chooses by. Eight keys are worked on
//! at once as the bytes of a word; no carry bit ever leaves its byte.
//!
//! **Samples.** Where accessed bits were sampled several times a period ([`crate::counts`]), the idle
//! count of a page is its rank by the moving average of the share of samples in which it had been
//! accessed, in the same 64 steps; 2 bytes a page more.
//!
//! **Lost periods.** Their accesses are unknown. Histories do not change, or a busy group would
//! seem idle after a hiccup of its tracker; ages grow by the periods lost, since that much time has
//! passed since the last known access.

use crate::bits::PageBits;
use crate::counts::{self, SampledShares};
use crate::remap::Remap;
use crate::scan::Scan;

/// Periods that the history holds.
pub const HISTORY_PERIODS: usize = 64;

/// The age class of a page that was not accessed since it came to the group.
pub const NEVER: u8 = 127;

/// Ages below this are exact.
const EXACT_AGES: u8 = 64;
/// Classes for each step size beyond the exact ages, and the number of step sizes.
const CLASSES_PER_STEP: u8 = 8;
const STEP_SIZES: u8 = 7;
/// The class of pages that were accessed, but too long ago to say when.
const OLDEST: u8 = EXACT_AGES + CLASSES_PER_STEP * STEP_SIZES;
/// Lost periods beyond this many change no age class any more.
const OLDEST_PERIODS: u32 = 2096;

/// A greater share of samples adds no information about how often a page is accessed.
const MOST_SHARE: f64 = 0.98;

/// The idle count of a page with no access in its history.
pub const IDLE: u8 = HISTORY_PERIODS as u8;

/// `EXPAND[b]` has byte `i` set to 1 where bit `i` of `b` is set.
pub(crate) const EXPAND: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut bit = 0;
        while bit < 8 {
            table[byte] |= (byte as u64 >> bit & 1) << (8 * bit);
            bit += 1;
        }
        byte += 1;
    }
    table
};

/// Repeats a byte eight times.
pub(crate) const fn splat(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// For eight keys of at most 127 and a `bound` of at most 128: the high bit of each byte whose
/// key is at least `bound`.
pub(crate) const fn at_least(keys: u64, bound: u8) -> u64 {
    ((keys | splat(0x80)) - splat(bound)) & splat(0x80)
}

/// The least number of periods that pages of this age class have not been accessed for, `None`
/// for [`NEVER`]. The true age is within one eighth of it.
///
/// Classes 64 to 71 stand for steps of 2 periods, 72 to 79 for steps of 4, and so on.
pub fn age_floor(class: u8) -> Option<u32> {
    match class {
        0..=EXACT_AGES => Some(class.into()),
        NEVER => None,
        _ => {
            let beyond = u32::from(class.min(OLDEST) - EXACT_AGES);
            let (steps, rest) = (beyond / 8, beyond % 8);
            Some(64 + 8 * ((2 << steps) - 2) + rest * (2 << steps))
        }
    }
}

/// Classes below the one returned grow older by one when the clock comes to `tick`: those in
/// steps of 2 periods on every second tick, and so on.
fn aging_bound(tick: u64) -> u8 {
    EXACT_AGES + CLASSES_PER_STEP * (tick.trailing_zeros() as u8).min(STEP_SIZES)
}

/// The ages and histories of a group's pages.
#[derive(Debug, Clone)]
pub struct Hotness {
    pages: usize,
    /// Accessed bits of the last 64 scans; the one at `newest` is the last, the one after it
    /// (around the ring) the oldest.
    history: Vec<PageBits>,
    newest: usize,
    /// Keys, padded to a multiple of 64; those past the last page are the coldest there are.
    age: Vec<u8>,
    idle: Vec<u8>,
    /// How often pages are accessed, where bits are sampled; idle counts are derived from it then.
    shares: SampledShares,
    /// Periods passed, lost ones too.
    clock: u64,
}

impl Default for Hotness {
    fn default() -> Self {
        Hotness {
            pages: 0,
            history: vec![PageBits::default(); HISTORY_PERIODS],
            newest: 0,
            age: Vec::new(),
            idle: Vec::new(),
            shares: SampledShares::default(),
            clock: 0,
        }
    }
}

impl Hotness {
    /// No pages yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies a change of layout: pages keep their data, fresh pages were never accessed.
    pub fn remap(&mut self, remap: &Remap) {
        self.pages = remap.new_pages();
        let length = self.pages.next_multiple_of(64);
        for bits in &mut self.history {
            *bits = remap.bits(bits);
        }
        self.age = remap.values(&self.age, NEVER, length);
        self.idle = remap.values(&self.idle, IDLE, length);
        self.shares.remap(remap);
    }

    /// Adds the accessed bits of a period. The scan's layout must be the one of the last remap.
    pub fn observe(&mut self, scan: &Scan) {
        self.observe_with(scan, |_, _, _| ());
    }

    /// As [`Hotness::observe`], and passes `visit` the new keys of every 64 pages: the number of
    /// the word, 64 age classes, 64 idle counts. One pass over memory then serves both the update
    /// and the counting.
    pub fn observe_with(
        &mut self,
        scan: &Scan,
        mut visit: impl FnMut(usize, &[u8; 64], &[u8; 64]),
    ) {
        assert_eq!(scan.pages(), self.pages, "a scan of the layout last remapped to");
        if scan.lost_periods > 0 {
            self.grow_older(scan.lost_periods);
        }
        self.clock += 1;
        let bound = aging_bound(self.clock);
        self.newest = (self.newest + 1) % HISTORY_PERIODS;
        match &scan.counts {
            Some(counts) => self.shares.observe(counts),
            None if !self.shares.is_empty() => self.go_by_bits(),
            None => {}
        }
        let by_shares = !self.shares.is_empty();
        let shares = &self.shares;
        let history = self.history[self.newest].words_mut();
        let ages = self.age.as_chunks_mut::<64>().0;
        let idles = self.idle.as_chunks_mut::<64>().0;
        let words = history.iter_mut().zip(scan.accessed.words()).zip(ages).zip(idles);
        for (word, (((oldest, &accessed), ages), idles)) in words.enumerate() {
            let gone = std::mem::replace(oldest, accessed);
            advance(ages, accessed, bound);
            if by_shares {
                for (nth, idle) in idles.iter_mut().enumerate() {
                    *idle = shares.rank(64 * word + nth);
                }
            } else if (accessed ^ gone) != 0 {
                recount(idles, accessed, gone);
            }
            visit(word, ages, idles);
        }
    }

    /// Bits are sampled once a period from now on: the history holds how often pages were accessed.
    /// It has the slot of the scan that is being added already, with the slot's old bits.
    fn go_by_bits(&mut self) {
        self.shares = SampledShares::default();
        for page in 0..self.pages {
            self.idle[page] = IDLE - self.history(page).count_ones() as u8;
        }
    }

    fn grow_older(&mut self, periods: u32) {
        let mut class_after: [u8; 128] = std::array::from_fn(|class| class as u8);
        for _ in 0..periods.min(OLDEST_PERIODS) {
            self.clock += 1;
            let bound = aging_bound(self.clock);
            for class in &mut class_after {
                *class += u8::from(*class < bound);
            }
        }
        self.clock += u64::from(periods - periods.min(OLDEST_PERIODS));
        for age in &mut self.age {
            *age = class_after[usize::from(*age & NEVER)];
        }
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The accessed bits of a page in the last 64 scans, the newest in bit 0.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn history(&self, page: usize) -> u64 {
        (0..HISTORY_PERIODS).fold(0, |history, back| {
            let scan = (self.newest + HISTORY_PERIODS - back) % HISTORY_PERIODS;
            history | u64::from(self.history[scan].get(page)) << back
        })
    }

    /// Periods since the last access of a page, exact up to 64 and within an eighth beyond;
    /// `None` when it was not accessed since it came.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn age(&self, page: usize) -> Option<u32> {
        age_floor(self.age[..self.pages][page])
    }

    /// In how many of the last 64 scans a page had been accessed.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn frequency(&self, page: usize) -> u8 {
        if self.shares.is_empty() {
            IDLE - self.idle[..self.pages][page]
        } else {
            self.history(page).count_ones() as u8
        }
    }

    /// Whether accessed bits are sampled several times a period.
    pub fn is_sampled(&self) -> bool {
        !self.shares.is_empty()
    }

    /// Accesses a second of pages with this idle count, where `scans` scans of `period_s` seconds
    /// have filled the history.
    pub fn accesses_per_s(&self, idle: u8, scans: u32, period_s: f64) -> f64 {
        if self.shares.is_empty() {
            let scans = scans.clamp(1, HISTORY_PERIODS as u32);
            return f64::from(IDLE - idle.min(IDLE)) / (f64::from(scans) * period_s);
        }
        // Of a page that is always accessed the rate is unknown.
        -(1.0 - counts::share_of(idle).min(MOST_SHARE)).ln() / self.shares.interval_s()
    }

    /// The age class of each page, padded with [`NEVER`] to a multiple of 64.
    pub fn age_classes(&self) -> &[u8] {
        &self.age
    }

    /// In how many of the last 64 scans each page had *not* been accessed, padded with [`IDLE`]
    /// to a multiple of 64; where bits are sampled, the page's rank by share of samples.
    pub fn idle_counts(&self) -> &[u8] {
        &self.idle
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        let history: usize = self.history.iter().map(PageBits::size_bytes).sum();
        history + self.age.capacity() + self.idle.capacity() + self.shares.size_bytes()
    }
}

/// Makes the accessed ones of 64 pages new and the others older.
fn advance(ages: &mut [u8; 64], accessed: u64, bound: u8) {
    let bytes = accessed.to_le_bytes();
    for (age, byte) in ages.as_chunks_mut::<8>().0.iter_mut().zip(bytes) {
        let old = u64::from_le_bytes(*age);
        let older = old + ((at_least(old, bound) ^ splat(0x80)) >> 7);
        let kept = (EXPAND[usize::from(byte)] * 0xff) ^ !0;
        *age = (older & kept).to_le_bytes();
    }
}

/// Adds the accessed bits that came into the histories of 64 pages and takes off those gone.
fn recount(idles: &mut [u8; 64], accessed: u64, gone: u64) {
    let bytes = accessed.to_le_bytes().into_iter().zip(gone.to_le_bytes());
    for (idle, (accessed, gone)) in idles.as_chunks_mut::<8>().0.iter_mut().zip(bytes) {
        let old = u64::from_le_bytes(*idle);
        let new = old + EXPAND[usize::from(gone)] - EXPAND[usize::from(accessed)];
        *idle = new.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Extent, Layout, PageSize, SpaceId};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn scan(layout: &Arc<Layout>, accessed: PageBits, lost_periods: u32) -> Scan {
        let fast = PageBits::new(layout.pages());
        Scan { lost_periods, ..Scan::new(0, Arc::clone(layout), accessed, fast) }
    }

    fn fresh(pages: u64) -> (Arc<Layout>, Hotness) {
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, pages));
        let mut hotness = Hotness::new();
        hotness.remap(&Remap::from_nothing(&layout));
        (layout, hotness)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn keys_agree_with_a_plain_count_of_every_access(
            density in 0u32..8,
            rows in prop::collection::vec(any::<[u64; 3]>(), 1..150),
        ) {
            let (layout, mut hotness) = fresh(130);
            // Rarer accesses for greater densities: ages of more than 64 periods occur.
            let rows: Vec<PageBits> = rows
                .windows(density as usize + 1)
                .map(|w| {
                    let word = |i: usize| w.iter().fold(!0, |all, row| all & row[i]);
                    PageBits::from_words(vec![word(0), word(1), word(2)], 130)
                })
                .collect();
            for (period, row) in rows.iter().enumerate() {
                hotness.observe(&scan(&layout, row.clone(), 0));
                for page in 0..130 {
                    let seen = rows[..=period].iter().rev();
                    let history = seen.clone().take(64).enumerate()
                        .fold(0, |h, (back, row)| h | u64::from(row.get(page)) << back);
                    prop_assert_eq!(hotness.history(page), history);
                    prop_assert_eq!(u32::from(hotness.frequency(page)), history.count_ones());
                    let age = seen.clone().position(|row| row.get(page));
                    match (hotness.age(page), age) {
                        (None, None) => (),
                        (Some(got), Some(age)) if age <= 64 => {
                            prop_assert_eq!(got as usize, age)
                        }
                        (got, Some(age)) => {
                            let got = got.unwrap() as f64;
                            prop_assert!((got - age as f64).abs() <= age as f64 / 8.0);
                        }
                        (got, None) => prop_assert!(false, "age {got:?} without an access"),
                    }
                }
            }
        }
    }

    #[test]
    fn great_ages_stay_within_an_eighth_and_keep_their_order() {
        let (layout, mut hotness) = fresh(64);
        // Page i is accessed at period 7 i only: ages differ by 7.
        for period in 0..2600 {
            let accessed = (0..64).map(|i| period == 7 * i).collect();
            hotness.observe(&scan(&layout, accessed, 0));
            for page in 0..64.min(period / 7 + 1) {
                let age = (period - 7 * page) as f64;
                let got = f64::from(hotness.age(page).unwrap());
                if age < 2000.0 {
                    assert!((got - age).abs() <= age / 8.0, "age {age}, got {got}");
                } else {
                    assert!(got >= 1750.0);
                }
                if page > 0 {
                    assert!(hotness.age(page) <= hotness.age(page - 1));
                }
            }
        }
        assert_eq!(hotness.age(0), age_floor(OLDEST));
    }

    #[test]
    fn idle_counts_are_those_of_bits_again_when_samples_end() {
        let layout = Arc::new(Layout::contiguous(PageSize::Huge, 70));
        let bits =
            |n: usize| (0..70).map(|page| (page + n).is_multiple_of(3)).collect::<PageBits>();
        let (mut sampled, mut plain) = (Hotness::new(), Hotness::new());
        let remap = || Remap::from_nothing(&layout);
        sampled.remap(&remap());
        plain.remap(&remap());
        for n in 0..80 {
            let now = scan(&layout, bits(n), 0);
            plain.observe(&now);
            // Of a page with a bit all samples, of the others none, until the group has grown.
            let counts: Arc<[u8]> = (0..70).map(|page| 9 * u8::from(bits(n).get(page))).collect();
            let counts = counts::AccessCounts { samples: 9, interval_us: 1000, counts };
            sampled.observe(&if n < 75 { now.with_counts(counts) } else { now });
            assert_eq!(sampled.is_sampled(), n < 75);
            assert_eq!(sampled.frequency(7), plain.frequency(7));
        }
        assert_eq!(sampled.idle_counts(), plain.idle_counts());
    }

    #[test]
    fn age_classes_rise_with_the_age() {
        let floors: Vec<_> = (0..=OLDEST).map(|c| age_floor(c).unwrap()).collect();
        assert!(floors.windows(2).all(|w| w[0] < w[1]), "{floors:?}");
        assert_eq!(floors[64], 64);
        assert_eq!(floors[72], 80);
        assert_eq!(*floors.last().unwrap(), OLDEST_PERIODS);
        assert_eq!(age_floor(NEVER), None);
    }

    #[test]
    fn lost_periods_make_pages_older_but_leave_their_histories() {
        let (layout, mut hotness) = fresh(3);
        let one = |page| (0..3).map(|i| i == page).collect::<PageBits>();
        hotness.observe(&scan(&layout, one(0), 0));
        hotness.observe(&scan(&layout, one(1), 10));
        assert_eq!(hotness.age(0), Some(11));
        assert_eq!(hotness.age(1), Some(0));
        assert_eq!(hotness.age(2), None);
        assert_eq!(hotness.history(0), 0b10);
        assert_eq!(hotness.frequency(0), 1);
        hotness.observe(&scan(&layout, one(1), u32::MAX));
        assert_eq!(hotness.age(0), age_floor(OLDEST));
        assert_eq!(hotness.age(1), Some(0));
        assert_eq!(hotness.age(2), None);
    }

    #[test]
    fn pages_keep_what_is_known_of_them_when_the_layout_changes() {
        let (layout, mut hotness) = fresh(200);
        for period in 0..100usize {
            let accessed = (0..200).map(|i| period % (i % 7 + 1) == 0).collect();
            hotness.observe(&scan(&layout, accessed, 0));
        }
        let before = hotness.clone();
        let size = PageSize::Huge.bytes();
        // Pages 10..50 and 100..200 stay, 200..300 come; everything shifts.
        let e = |page: u64, pages| Extent { space: SpaceId(0), start: page * size, pages };
        let next = Layout::new(PageSize::Huge, vec![e(10, 40), e(100, 200)]).unwrap();
        hotness.remap(&Remap::between(&layout, &next));
        for (new, old) in (0..40).map(|i| (i, i + 10)).chain((40..140).map(|i| (i, i + 60))) {
            assert_eq!(hotness.history(new), before.history(old));
            assert_eq!(hotness.age(new), before.age(old));
            assert_eq!(hotness.frequency(new), before.frequency(old));
        }
        for page in 140..240 {
            assert_eq!(hotness.history(page), 0);
            assert_eq!(hotness.age(page), None);
            assert_eq!(hotness.frequency(page), 0);
        }
    }

    #[test]
    fn ten_bytes_a_page() {
        let (_, hotness) = fresh(1 << 16);
        assert_eq!(hotness.size_bytes(), 10 << 16);
    }
}

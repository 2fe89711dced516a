//! Translation lookaside buffers of one core: a first level for each page size, and a second
//! level that both share or that is split.
//!
//! An entry holds the translation it was filled with, so a mapping that changes without a shootdown
//! goes on being used, as in hardware. Entries have no process number: a change of address space is
//! a full flush (no PCID).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use terrace_core::page::PageSize;

use crate::address::{BASE_PAGE_BITS, HUGE_PAGE_BITS, PhysicalAddress, VirtualAddress};
use crate::error::{ConfigError, check_range};
use crate::sets::packed::Packed;
use crate::sets::recency::Recency;
use crate::sets::ways::Ways;
use crate::sets::words::{Words, words};

/// The size and associativity of one TLB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlbConfig {
    /// Number of translations.
    #[schemars(range(min = 1, max = 1 << 20))]
    pub entries: u32,
    /// Translations in a set; as many as `entries` for a fully associative one.
    #[schemars(range(min = 1, max = 1 << 20))]
    pub ways: u32,
}

impl TlbConfig {
    /// `entries` translations in sets of `ways`.
    pub const fn new(entries: u32, ways: u32) -> Self {
        TlbConfig { entries, ways }
    }

    fn sets(&self, part: &str) -> Result<u64, ConfigError> {
        check_range(part, "entries", u64::from(self.entries), 1..=1 << 20)?;
        check_range(part, "ways", u64::from(self.ways), 1..=u64::from(self.entries))?;
        let sets = self.entries / self.ways;
        if !self.entries.is_multiple_of(self.ways) || !sets.is_power_of_two() {
            return Err(ConfigError::new(
                part,
                format!(
                    "{} entries in {} ways; entries must be ways times a power of two",
                    self.entries, self.ways
                ),
            ));
        }
        Ok(u64::from(sets))
    }
}

/// The second-level TLB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SecondLevelConfig {
    /// One for both page sizes.
    Unified(TlbConfig),
    /// One for each page size.
    Split {
        /// For base pages.
        base: TlbConfig,
        /// For huge pages.
        huge: TlbConfig,
    },
}

/// The TLBs of one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlbsConfig {
    /// First level, base pages.
    pub l1_base: TlbConfig,
    /// First level, huge pages.
    pub l1_huge: TlbConfig,
    /// Second level.
    pub l2: SecondLevelConfig,
    /// Additional core cycles of a hit in the second level over one in the first.
    pub l2_cycles: u32,
}

#[inline]
fn bits(size: PageSize) -> u32 {
    match size {
        PageSize::Base => BASE_PAGE_BITS,
        PageSize::Huge => HUGE_PAGE_BITS,
    }
}

/// Page number and page size in one number, so that both sizes can share an array.
#[inline]
fn tag(page: u64, size: PageSize) -> u64 {
    page << 1 | u64::from(size == PageSize::Huge)
}

/// A set-associative LRU array from tags to values with a dirty bit each. The set is chosen by the
/// tag without its lowest bit.
#[derive(Debug, Clone)]
struct Array {
    words: Words,
    recency: Recency,
    values: Vec<u64>,
    ways: usize,
    set_bits: u32,
    /// Number of valid entries, by the lowest bit of their tag: an empty kind need not be searched.
    valid: [usize; 2],
}

impl Array {
    fn new(config: &TlbConfig, part: &str) -> Result<Self, ConfigError> {
        let sets = config.sets(part)?;
        let ways = config.ways as usize;
        Ok(Array {
            words: Words::new(sets as usize, ways),
            recency: Recency::new(sets as usize, ways),
            values: vec![0; config.entries as usize],
            ways,
            set_bits: sets.trailing_zeros(),
            valid: [0; 2],
        })
    }

    /// The set, and the rest of the tag to be stored there: the bits above, and the lowest.
    #[inline(always)]
    fn place(&self, tag: u64) -> (usize, u64) {
        let number = tag >> 1;
        let set = number & ((1 << self.set_bits) - 1);
        (set as usize, (number >> self.set_bits) << 1 | (tag & 1))
    }

    /// The inverse of [`Array::place`]: the tag.
    fn whole(&self, set: usize, kept: u64) -> u64 {
        ((kept >> 1) << self.set_bits | set as u64) << 1 | (kept & 1)
    }

    /// Finds an entry and marks it as used: the value and the dirty bit.
    #[inline(always)]
    fn find(&mut self, tag: u64) -> Option<(u64, bool)> {
        if self.valid[(tag & 1) as usize] == 0 {
            return None;
        }
        let (set, kept) = self.place(tag);
        if let Words::Packed(words) = &mut self.words
            && let Recency::Packed(recency) = &mut self.recency
        {
            if !words.fits(kept) {
                return None;
            }
            let (ways, order) = (words.ways(), recency.order(set));
            let window = words.window(set);
            let newest = order.newest();
            let way = if window[newest] & !1 == (kept << 1) as u32 {
                newest
            } else {
                let way = Packed::find_in(window, ways, kept)?;
                order.touch(way);
                way
            };
            return Some((self.values[set * self.ways + way], window[way & 15] & 1 != 0));
        }
        let (way, dirty) = words!(&self.words, w => {
            let way = w.find(set, kept)?;
            (way, w.dirty(set, way))
        });
        self.recency.touch(set, way);
        Some((self.values[set * self.ways + way], dirty))
    }

    /// Inserts an entry that is not present; the oldest is evicted.
    #[inline]
    fn insert(&mut self, tag: u64, value: u64, dirty: bool) {
        let (set, kept) = self.place(tag);
        let way;
        let old;
        if let Words::Packed(words) = &mut self.words
            && let Recency::Packed(recency) = &mut self.recency
            && words.fits(kept)
        {
            way = recency.order(set).reuse_oldest();
            old = words.replace(set, way, kept, dirty);
        } else {
            self.words.admit(kept);
            way = self.recency.reuse_oldest(set);
            old = words!(&mut self.words, w => w.replace(set, way, kept, dirty));
        }
        self.valid[(tag & 1) as usize] += 1;
        if let Some((old, _)) = old {
            self.valid[(old & 1) as usize] -= 1;
        }
        self.values[set * self.ways + way] = value;
    }

    fn invalidate(&mut self, tag: u64) -> usize {
        if self.valid[(tag & 1) as usize] == 0 {
            return 0;
        }
        let (set, kept) = self.place(tag);
        let found = words!(&self.words, w => w.find(set, kept));
        found.map_or(0, |way| self.remove(set, way, tag))
    }

    fn remove(&mut self, set: usize, way: usize, tag: u64) -> usize {
        words!(&mut self.words, w => w.empty(set, way));
        self.recency.retire(set, way);
        self.valid[(tag & 1) as usize] -= 1;
        1
    }

    /// Removes every entry whose tag passes the test.
    fn invalidate_where(&mut self, test: impl Fn(u64) -> bool) -> usize {
        if self.valid == [0; 2] {
            return 0;
        }
        let all = words!(&self.words, w => w.all());
        let mut out = 0;
        for (set, way, kept, _) in all {
            let tag = self.whole(set, kept);
            if test(tag) {
                out += self.remove(set, way, tag);
            }
        }
        out
    }

    fn flush(&mut self) -> usize {
        if self.valid != [0; 2] {
            words!(&mut self.words, w => w.clear());
        }
        std::mem::take(&mut self.valid).iter().sum()
    }
}

/// The result of looking up an address in the TLBs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The first level had it.
    L1(PhysicalAddress),
    /// The second level had it; the first has it now too.
    L2(PhysicalAddress),
    /// Neither level has it: a page walk is needed.
    Miss,
    /// The first write through an entry filled by a read: the hardware walks again, to set the
    /// dirty bit.
    Clean,
}

/// Counters of the TLBs of one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TlbCounts {
    /// Addresses looked up.
    pub lookups: u64,
    /// Found in the first level.
    pub l1_hits: u64,
    /// Found in the second level.
    pub l2_hits: u64,
    /// Not found: walks.
    pub misses: u64,
    /// Of the misses, those that only had the dirty bit to set.
    pub dirty_walks: u64,
    /// Entries removed by invalidations.
    pub invalidated: u64,
}

impl std::ops::AddAssign for TlbCounts {
    fn add_assign(&mut self, o: TlbCounts) {
        self.lookups += o.lookups;
        self.l1_hits += o.l1_hits;
        self.l2_hits += o.l2_hits;
        self.misses += o.misses;
        self.dirty_walks += o.dirty_walks;
        self.invalidated += o.invalidated;
    }
}

/// The TLBs of one core.
#[derive(Debug, Clone)]
pub struct Tlbs {
    l1_base: Array,
    l1_huge: Array,
    l2: Array,
    /// The second level's huge pages, when it is split.
    l2_huge: Option<Array>,
    counts: TlbCounts,
}

impl Tlbs {
    /// Empty TLBs.
    pub fn new(config: &TlbsConfig) -> Result<Self, ConfigError> {
        let (l2, l2_huge) = match &config.l2 {
            SecondLevelConfig::Unified(both) => (Array::new(both, "tlb.l2")?, None),
            SecondLevelConfig::Split { base, huge } => {
                (Array::new(base, "tlb.l2.base")?, Some(Array::new(huge, "tlb.l2.huge")?))
            }
        };
        Ok(Tlbs {
            l1_base: Array::new(&config.l1_base, "tlb.l1_base")?,
            l1_huge: Array::new(&config.l1_huge, "tlb.l1_huge")?,
            l2,
            l2_huge,
            counts: TlbCounts::default(),
        })
    }

    /// The counters so far.
    pub fn counts(&self) -> TlbCounts {
        let c = self.counts;
        TlbCounts { lookups: c.l1_hits + c.l2_hits + c.misses, ..c }
    }

    fn l1(&mut self, size: PageSize) -> &mut Array {
        match size {
            PageSize::Base => &mut self.l1_base,
            PageSize::Huge => &mut self.l1_huge,
        }
    }

    fn l2(&mut self, size: PageSize) -> &mut Array {
        match (size, &mut self.l2_huge) {
            (PageSize::Huge, Some(huge)) => huge,
            _ => &mut self.l2,
        }
    }

    /// Looks an address up; `write` if it is stored to.
    #[inline]
    pub fn lookup(&mut self, address: VirtualAddress, write: bool) -> Lookup {
        match self.lookup_first_level(address, write) {
            Some(physical) => Lookup::L1(physical),
            None => self.lookup_farther(address, write),
        }
    }

    /// The most common part of [`Tlbs::lookup`]. Without an answer [`Tlbs::lookup_farther`] must
    /// follow.
    #[inline(always)]
    pub(crate) fn lookup_first_level(
        &mut self,
        address: VirtualAddress,
        write: bool,
    ) -> Option<PhysicalAddress> {
        let page = tag(address.0 >> BASE_PAGE_BITS, PageSize::Base);
        let (frame, dirty, bits) = match self.l1_base.find(page) {
            Some((frame, dirty)) => (frame, dirty, BASE_PAGE_BITS),
            None => {
                let page = tag(address.0 >> HUGE_PAGE_BITS, PageSize::Huge);
                let (frame, dirty) = self.l1_huge.find(page)?;
                (frame, dirty, HUGE_PAGE_BITS)
            }
        };
        if write && !dirty {
            return None;
        }
        self.counts.l1_hits += 1;
        Some(join(frame, address, bits))
    }

    /// The rest of [`Tlbs::lookup`].
    #[inline(never)]
    pub(crate) fn lookup_farther(&mut self, address: VirtualAddress, write: bool) -> Lookup {
        if write {
            for size in [PageSize::Base, PageSize::Huge] {
                if self.l1(size).find(tag(address.0 >> bits(size), size)).is_some() {
                    // The entry was found before, but clean.
                    self.counts.dirty_walks += 1;
                    self.counts.misses += 1;
                    return Lookup::Clean;
                }
            }
        }
        self.lookup_l2(address, write)
    }

    fn lookup_l2(&mut self, address: VirtualAddress, write: bool) -> Lookup {
        for size in [PageSize::Base, PageSize::Huge] {
            let bits = bits(size);
            let tag = tag(address.0 >> bits, size);
            if let Some((frame, dirty)) = self.l2(size).find(tag) {
                if write && !dirty {
                    self.counts.dirty_walks += 1;
                    self.counts.misses += 1;
                    return Lookup::Clean;
                }
                self.l1(size).insert(tag, frame, dirty);
                self.counts.l2_hits += 1;
                return Lookup::L2(join(frame, address, bits));
            }
        }
        self.counts.misses += 1;
        Lookup::Miss
    }

    /// Inserts the result of a walk: both levels have it afterwards. `lookup` is the result for the
    /// address before, [`Lookup::Miss`] or [`Lookup::Clean`].
    #[inline]
    pub fn fill(
        &mut self,
        lookup: Lookup,
        address: VirtualAddress,
        size: PageSize,
        frame: PhysicalAddress,
        dirty: bool,
    ) {
        if lookup == Lookup::Clean {
            self.drop_page(address);
        }
        let tag = tag(address.0 >> bits(size), size);
        self.l1(size).insert(tag, frame.0, dirty);
        self.l2(size).insert(tag, frame.0, dirty);
    }

    /// Drops the translation of one address, of whichever page size; returns the number of entries.
    fn drop_page(&mut self, address: VirtualAddress) -> usize {
        let mut out = 0;
        for size in [PageSize::Base, PageSize::Huge] {
            let tag = tag(address.0 >> bits(size), size);
            out += self.l1(size).invalidate(tag) + self.l2(size).invalidate(tag);
        }
        out
    }

    /// Drops the translation of one address, of whichever page size (`invlpg`).
    pub fn invalidate(&mut self, address: VirtualAddress) {
        self.counts.invalidated += self.drop_page(address) as u64;
    }

    /// Drops every translation of a page that overlaps `size_bytes` from `start`.
    pub fn invalidate_range(&mut self, start: VirtualAddress, size_bytes: u64) {
        if size_bytes == 0 {
            return;
        }
        let last = start.0.saturating_add(size_bytes - 1);
        // Of a few pages each is searched for; of many, every entry is checked.
        if (last >> BASE_PAGE_BITS) - (start.0 >> BASE_PAGE_BITS) < 8 {
            for page in start.0 >> BASE_PAGE_BITS..=last >> BASE_PAGE_BITS {
                self.invalidate(VirtualAddress(page << BASE_PAGE_BITS));
            }
            return;
        }
        let range = |size| {
            let bits = bits(size);
            tag(start.0 >> bits, size)..=tag(last >> bits, size)
        };
        let (base, huge) = (range(PageSize::Base), range(PageSize::Huge));
        // The size bit keeps the two kinds of tag apart.
        let test = |tag: u64| if tag & 1 == 0 { base.contains(&tag) } else { huge.contains(&tag) };
        let mut out = 0;
        for array in self.arrays() {
            out += array.invalidate_where(test);
        }
        self.counts.invalidated += out as u64;
    }

    /// Drops everything (a write to `cr3`).
    pub fn flush(&mut self) {
        let mut out = 0;
        for array in self.arrays() {
            out += array.flush();
        }
        self.counts.invalidated += out as u64;
    }

    fn arrays(&mut self) -> impl Iterator<Item = &mut Array> {
        [&mut self.l1_base, &mut self.l1_huge, &mut self.l2].into_iter().chain(&mut self.l2_huge)
    }
}

#[inline]
fn join(frame: u64, address: VirtualAddress, bits: u32) -> PhysicalAddress {
    PhysicalAddress(frame | (address.0 & ((1 << bits) - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> TlbsConfig {
        TlbsConfig {
            l1_base: TlbConfig::new(4, 4),
            l1_huge: TlbConfig::new(2, 2),
            l2: SecondLevelConfig::Unified(TlbConfig::new(16, 4)),
            l2_cycles: 7,
        }
    }

    const V: fn(u64) -> VirtualAddress = VirtualAddress;
    const P: fn(u64) -> PhysicalAddress = PhysicalAddress;

    #[test]
    fn a_translation_moves_from_walk_to_both_levels() {
        let mut t = Tlbs::new(&config()).unwrap();
        assert_eq!(t.lookup(V(0x1234), false), Lookup::Miss);
        t.fill(Lookup::Miss, V(0x1234), PageSize::Base, P(0xA000), false);
        assert_eq!(t.lookup(V(0x1238), false), Lookup::L1(P(0xA238)));
        for page in 2..6 {
            t.fill(Lookup::Miss, V(page << 12), PageSize::Base, P(page << 16), false);
        }
        assert_eq!(t.lookup(V(0x1234), false), Lookup::L2(P(0xA234)));
        assert_eq!(t.lookup(V(0x1234), false), Lookup::L1(P(0xA234)));
        let c = t.counts();
        assert_eq!((c.lookups, c.l1_hits, c.l2_hits, c.misses), (4, 2, 1, 1));
    }

    #[test]
    fn a_huge_page_is_one_translation() {
        let mut t = Tlbs::new(&config()).unwrap();
        t.fill(Lookup::Miss, V(0x20_0000), PageSize::Huge, P(0x4000_0000), true);
        assert_eq!(t.lookup(V(0x3F_FFFF), true), Lookup::L1(P(0x401F_FFFF)));
        assert_eq!(t.lookup(V(0x40_0000), false), Lookup::Miss);
    }

    #[test]
    fn the_first_write_through_a_clean_entry_walks_once() {
        let mut t = Tlbs::new(&config()).unwrap();
        t.fill(Lookup::Miss, V(0x1000), PageSize::Base, P(0x9000), false);
        assert_eq!(t.lookup(V(0x1000), true), Lookup::Clean);
        t.fill(Lookup::Clean, V(0x1000), PageSize::Base, P(0x9000), true);
        assert_eq!(t.lookup(V(0x1008), true), Lookup::L1(P(0x9008)));
        assert_eq!(t.counts().dirty_walks, 1);
        // One entry at each level, not two.
        t.flush();
        assert_eq!(t.counts().invalidated, 2);
    }

    #[test]
    fn invalidation_drops_what_it_names_and_nothing_else() {
        let mut t = Tlbs::new(&config()).unwrap();
        for page in 0..4 {
            t.fill(Lookup::Miss, V(page << 12), PageSize::Base, P(page << 20), false);
        }
        t.fill(Lookup::Miss, V(0x40_0000), PageSize::Huge, P(0x8000_0000), false);
        t.invalidate(V(0x1fff));
        assert_eq!(t.lookup(V(0x1000), false), Lookup::Miss);
        assert_eq!(t.lookup(V(0x2000), false), Lookup::L1(P(2 << 20)));
        t.invalidate_range(V(0x2000), 0x1001);
        assert_eq!(t.lookup(V(0x3000), false), Lookup::Miss);
        assert_eq!(t.lookup(V(0), false), Lookup::L1(P(0)));
        // A range inside a huge page drops the huge page.
        t.invalidate_range(V(0x40_1000), 0x1000);
        assert_eq!(t.lookup(V(0x5F_0000), false), Lookup::Miss);
        t.flush();
        assert_eq!(t.lookup(V(0), false), Lookup::Miss);
        assert_eq!(t.counts().invalidated, 2 * 5);
    }

    #[test]
    fn a_split_second_level_keeps_page_sizes_apart() {
        let l2 =
            SecondLevelConfig::Split { base: TlbConfig::new(4, 4), huge: TlbConfig::new(4, 4) };
        let mut t = Tlbs::new(&TlbsConfig { l2, ..config() }).unwrap();
        t.fill(Lookup::Miss, V(0), PageSize::Huge, P(0), false);
        for page in 0x1000..0x1010 {
            t.fill(Lookup::Miss, V(page << 12), PageSize::Base, P(page << 12), false);
        }
        t.fill(Lookup::Miss, V(8 << 21), PageSize::Huge, P(0), false);
        t.fill(Lookup::Miss, V(9 << 21), PageSize::Huge, P(0), false);
        assert_eq!(t.lookup(V(0), false), Lookup::L2(P(0)));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for (entries, ways) in [(0, 1), (4, 0), (6, 4), (48, 4), (4, 8)] {
            let c = TlbsConfig { l1_base: TlbConfig::new(entries, ways), ..config() };
            let error = Tlbs::new(&c).unwrap_err().to_string();
            assert!(error.starts_with("tlb.l1_base: "), "{error}");
        }
    }
}

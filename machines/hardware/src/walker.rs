//! The page walker of one core: paging-structure caches and the remaining accesses.
//!
//! The walker contains no memory. It passes each page-table entry that it reads to its
//! [`WalkMemory`], with the physical address, and gets the time of the answer; so walks go through
//! the same caches as everything else to the tier that holds that page-table page. The page table
//! itself belongs to the operating-system model, which provides the addresses of its pages through
//! [`PageTable`].
//!
//! Accessed and dirty bits are set here and nowhere else: a walk that finds the leaf's bit clear
//! writes the entry, and reports that in [`Walk`]. A translation that stays in the TLB sets no bit.
//! The accessed bits of the levels above the leaf are not modelled; no tracker reads them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use terrace_core::page::PageSize;

use crate::address::{PhysicalAddress, VirtualAddress};
use crate::error::{ConfigError, check_range};
use crate::units::Picoseconds;

/// Levels of a page table, from the leaf upwards: index 0 is the page table proper, 1 the page
/// directory, then the pointer table, PML4 and PML5. (Linux: PTE, PMD, PUD, P4D/PGD, PGD.)
pub const MAX_LEVELS: usize = 5;

/// Names of the levels, by index.
pub const LEVEL_NAMES: [&str; MAX_LEVELS] = ["pte", "pmd", "pud", "p4d", "pgd"];

/// Bits of the address below those that index a level's entries.
const fn level_shift(level: usize) -> u32 {
    12 + 9 * level as u32
}

/// The part of an address that leads to a page-table page of `level`.
#[inline]
const fn prefix(address: VirtualAddress, level: usize) -> u64 {
    address.0 >> level_shift(level + 1)
}

/// Physical address of the entry for `address` in the page-table page at `table` of `level`.
#[inline]
pub fn entry_address(
    table: PhysicalAddress,
    address: VirtualAddress,
    level: usize,
) -> PhysicalAddress {
    PhysicalAddress(table.0 | (((address.0 >> level_shift(level)) & 511) << 3))
}

/// A mapped page as its entry describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// Physical address of the page.
    pub frame: PhysicalAddress,
    /// Size of the page: [`PageSize::Huge`] when the entry is one of level 1.
    pub size: PageSize,
    /// Whether the entry's accessed bit is set.
    pub accessed: bool,
    /// Whether the entry's dirty bit is set.
    pub dirty: bool,
}

/// The path through the page table to one address.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Physical address of the page-table page of each level, by level index; those from `lowest`
    /// up to the root count.
    pub tables: [PhysicalAddress; MAX_LEVELS],
    /// The level of the entry that ends the path: 0 for a base page, 1 for a huge page, the level
    /// of the not-present entry for an address that is not mapped.
    pub lowest: usize,
    /// The page that the last entry maps; `None` for a page fault.
    pub leaf: Option<Leaf>,
}

/// The entry at which a walk will probably end, for prefetching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefetchEntry {
    /// The entry's number in the page table.
    pub number: usize,
    /// Physical address of the entry.
    pub entry: PhysicalAddress,
}

/// The page table of one address space, for the hardware.
pub trait PageTable {
    /// The path to an address.
    fn path(&self, address: VirtualAddress) -> Path;

    /// A walk set the accessed bit of the page at `address`, and the dirty bit if `dirty`. The
    /// walker's caller calls this when [`Walk`] requires it; nothing else sets these bits.
    fn set_bits(&mut self, address: VirtualAddress, dirty: bool);

    /// The entry for an address, without reading it: prefetches it on the simulating machine
    /// instead. `None` where that is not cheap to find.
    #[inline]
    fn prefetch(&self, _address: VirtualAddress) -> Option<PrefetchEntry> {
        None
    }

    /// Physical address that a prefetched entry maps, if it still maps the address.
    #[inline]
    fn prefetched(
        &self,
        _entry: PrefetchEntry,
        _address: VirtualAddress,
    ) -> Option<PhysicalAddress> {
        None
    }
}

/// The memory of a walk's accesses.
pub trait WalkMemory {
    /// The entry at `entry` (of a page-table page of `level`) is read, or written when a bit is set
    /// in it, at `now`. Returns the completion time.
    fn walk_access(
        &mut self,
        now: Picoseconds,
        level: usize,
        entry: PhysicalAddress,
        write: bool,
    ) -> Picoseconds;
}

/// Entries of the paging-structure caches, by the level whose entries they hold; 0 for none. Up to
/// four are fully associative, more are in sets of four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WalkerConfig {
    /// Levels of the page table: 4 or 5.
    #[schemars(range(min = 4, max = 5))]
    pub levels: u32,
    /// Page-directory entries, each of which leads past all but the leaf.
    #[schemars(range(min = 0, max = 4 << 16))]
    pub pde_entries: u32,
    /// Pointer-table entries.
    #[schemars(range(min = 0, max = 4 << 16))]
    pub pdpte_entries: u32,
    /// PML4 entries.
    #[schemars(range(min = 0, max = 4 << 16))]
    pub pml4e_entries: u32,
    /// PML5 entries, with 5 levels.
    pub pml5e_entries: u32,
}

impl Default for WalkerConfig {
    /// Sizes measured on Skylake (van Schaik et al., "Reverse Engineering Hardware Page Table
    /// Caches Using Side-Channel Attacks on the MMU", 2017): 32 PDEs, 4 PDPTEs, and 2 at most above.
    fn default() -> Self {
        WalkerConfig {
            levels: 4,
            pde_entries: 32,
            pdpte_entries: 4,
            pml4e_entries: 2,
            pml5e_entries: 2,
        }
    }
}

/// Entries of a set.
const WAYS: usize = 4;
/// No address has this prefix.
const EMPTY: (u64, u64) = (u64::MAX, 0);

/// A small LRU cache from the prefix of an address to the page-table page that it leads to.
#[derive(Debug, Clone)]
struct StructureCache {
    /// Prefix and table, the one used last first.
    sets: Vec<[(u64, u64); WAYS]>,
    set_mask: u64,
    /// Entries of a set that may be filled.
    ways: usize,
}

impl StructureCache {
    fn new(name: &str, entries: u32) -> Result<Self, ConfigError> {
        let entries = entries as usize;
        let sets = entries.div_ceil(WAYS).max(1);
        if !sets.is_power_of_two()
            || (entries > WAYS && !entries.is_multiple_of(WAYS))
            || sets > 1 << 16
        {
            return Err(ConfigError::new(
                "walker",
                format!("{name} is {entries}; expected 0 to 4, or four times a power of two"),
            ));
        }
        Ok(StructureCache {
            sets: vec![[EMPTY; WAYS]; sets],
            set_mask: sets as u64 - 1,
            ways: entries.min(WAYS),
        })
    }

    #[inline]
    fn find(&mut self, prefix: u64) -> Option<u64> {
        let set = &mut self.sets[(prefix & self.set_mask) as usize];
        let way = set.iter().position(|e| e.0 == prefix)?;
        let found = set[way];
        for i in (1..=way).rev() {
            set[i] = set[i - 1];
        }
        set[0] = found;
        Some(found.1)
    }

    /// Inserts an entry that is not present; the oldest is evicted.
    #[inline]
    fn insert(&mut self, prefix: u64, table: u64) {
        if self.ways == 0 {
            return;
        }
        let set = &mut self.sets[(prefix & self.set_mask) as usize];
        for i in (1..self.ways).rev() {
            set[i] = set[i - 1];
        }
        set[0] = (prefix, table);
    }
}

/// A walk that found a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walk {
    /// When the translation is available.
    pub done: Picoseconds,
    /// The page, with its bits as they were before the walk.
    pub leaf: Leaf,
    /// Entries read.
    pub accesses: u32,
    /// The walk set the leaf's accessed bit; the caller must set it in the page table.
    pub set_accessed: bool,
    /// The walk set the leaf's dirty bit; the caller must set it in the page table.
    pub set_dirty: bool,
}

/// A walk that found nothing mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The address walked.
    pub address: VirtualAddress,
    /// Whether the access was a store.
    pub write: bool,
    /// When the walk ended.
    pub done: Picoseconds,
    /// The level whose entry was not present.
    pub level: usize,
}

/// Counters of the walker of one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct WalkCounts {
    /// Walks that found a page.
    pub walks: u64,
    /// Walks that ended in a fault.
    pub faults: u64,
    /// Entries read, by level (pte, pmd, pud, p4d, pgd).
    pub accesses: [u64; MAX_LEVELS],
    /// Accessed bits set.
    pub accessed_set: u64,
    /// Dirty bits set.
    pub dirty_set: u64,
    /// Time from the start of each walk to its end, in picoseconds.
    pub walk_ps: u64,
    /// Walks that a paging-structure cache sent to a freed page-table page: a missing flush in the
    /// operating system.
    pub stale: u64,
}

/// The paging-structure caches and the walker of one core.
#[derive(Debug, Clone)]
pub struct Walker {
    root_level: usize,
    /// By the level whose page-table page they lead to: `caches[0]` holds PDEs.
    caches: [StructureCache; MAX_LEVELS - 1],
    counts: WalkCounts,
}

impl Walker {
    /// A walker with empty caches.
    pub fn new(config: &WalkerConfig) -> Result<Self, ConfigError> {
        check_range("walker", "levels", u64::from(config.levels), 4..=5)?;
        let pml5e_entries = if config.levels == 5 { config.pml5e_entries } else { 0 };
        Ok(Walker {
            root_level: config.levels as usize - 1,
            caches: [
                StructureCache::new("pde_entries", config.pde_entries)?,
                StructureCache::new("pdpte_entries", config.pdpte_entries)?,
                StructureCache::new("pml4e_entries", config.pml4e_entries)?,
                StructureCache::new("pml5e_entries", pml5e_entries)?,
            ],
            counts: WalkCounts::default(),
        })
    }

    /// The counters so far.
    pub fn counts(&self) -> WalkCounts {
        self.counts
    }

    /// Walks to `address`, starting at `now` below the deepest cached level.
    pub fn walk(
        &mut self,
        now: Picoseconds,
        address: VirtualAddress,
        write: bool,
        table: &impl PageTable,
        memory: &mut impl WalkMemory,
    ) -> Result<Walk, Fault> {
        let path = table.path(address);
        let mut level = self.start(address, &path);
        let mut done = now;
        let mut accesses = 0;
        loop {
            done = memory.walk_access(
                done,
                level,
                entry_address(path.tables[level], address, level),
                false,
            );
            self.counts.accesses[level] += 1;
            accesses += 1;
            if level == path.lowest {
                break;
            }
            level -= 1;
            // The search began below the deepest cached entry: this one is not cached.
            self.caches[level].insert(prefix(address, level), path.tables[level].0);
        }
        let Some(leaf) = path.leaf else {
            self.counts.faults += 1;
            self.counts.walk_ps += done.since(now).0;
            return Err(Fault { address, write, done, level });
        };
        let (set_accessed, set_dirty) = (!leaf.accessed, write && !leaf.dirty);
        if set_accessed || set_dirty {
            let entry = entry_address(path.tables[level], address, level);
            done = memory.walk_access(done, level, entry, true);
        }
        self.counts.walks += 1;
        self.counts.accessed_set += u64::from(set_accessed);
        self.counts.dirty_set += u64::from(set_dirty);
        self.counts.walk_ps += done.since(now).0;
        Ok(Walk { done, leaf, accesses, set_accessed, set_dirty })
    }

    /// The level to read first: below the deepest entry that a cache holds.
    fn start(&mut self, address: VirtualAddress, path: &Path) -> usize {
        for level in path.lowest..self.root_level {
            if let Some(table) = self.caches[level].find(prefix(address, level)) {
                self.counts.stale += u64::from(table != path.tables[level].0);
                return level;
            }
        }
        self.root_level
    }

    /// Drops every paging-structure entry, as `invlpg` of any address does (Intel SDM volume 3,
    /// section 4.10.4.1) and as a write to `cr3` does.
    pub fn flush(&mut self) {
        self.caches.iter_mut().for_each(|c| c.sets.fill([EMPTY; WAYS]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Base pages everywhere below 1 TB but for one hole; table addresses that encode the level.
    struct Table {
        huge: bool,
        accessed: bool,
    }

    const HOLE: u64 = 0x5000;

    impl PageTable for Table {
        fn path(&self, address: VirtualAddress) -> Path {
            let mut tables = [PhysicalAddress(0); MAX_LEVELS];
            for (level, table) in tables.iter_mut().enumerate() {
                let region = address.0 >> level_shift(level + 1);
                table.0 = (level as u64 + 1) << 44 | region << 12;
            }
            let size = if self.huge { PageSize::Huge } else { PageSize::Base };
            let leaf =
                Leaf { frame: PhysicalAddress(0), size, accessed: self.accessed, dirty: false };
            Path {
                tables,
                lowest: usize::from(self.huge),
                leaf: (address.0 & !0xFFF != HOLE).then_some(leaf),
            }
        }

        fn set_bits(&mut self, _: VirtualAddress, _: bool) {}
    }

    /// 10 ps an access.
    #[derive(Default)]
    struct Log(Vec<(usize, u64, bool)>);

    impl WalkMemory for Log {
        fn walk_access(
            &mut self,
            now: Picoseconds,
            level: usize,
            entry: PhysicalAddress,
            write: bool,
        ) -> Picoseconds {
            self.0.push((level, entry.0, write));
            now + Picoseconds(10)
        }
    }

    fn levels(w: &mut Walker, address: u64, table: &Table) -> Vec<usize> {
        let mut log = Log::default();
        w.walk(Picoseconds(0), VirtualAddress(address), false, table, &mut log).unwrap();
        log.0.iter().map(|a| a.0).collect()
    }

    const PLAIN: Table = Table { huge: false, accessed: true };

    #[test]
    fn a_cold_walk_reads_every_level_and_a_warm_one_only_the_leaf() {
        for count in [4u32, 5] {
            let config = WalkerConfig { levels: count, ..WalkerConfig::default() };
            let mut w = Walker::new(&config).unwrap();
            let all: Vec<usize> = (0..count as usize).rev().collect();
            assert_eq!(levels(&mut w, 0x1000, &PLAIN), all);
            assert_eq!(levels(&mut w, 0x2000, &PLAIN), [0]);
            assert_eq!(levels(&mut w, 2 << 21, &PLAIN), [1, 0]);
            assert_eq!(levels(&mut w, 2 << 30, &PLAIN), [2, 1, 0]);
            w.flush();
            assert_eq!(levels(&mut w, 0x1000, &PLAIN), all);
            assert_eq!(w.counts().stale, 0);
        }
    }

    #[test]
    fn a_huge_page_ends_the_walk_a_level_earlier() {
        let mut w = Walker::new(&WalkerConfig::default()).unwrap();
        let table = Table { huge: true, accessed: true };
        assert_eq!(levels(&mut w, 0x1000, &table), [3, 2, 1]);
        assert_eq!(levels(&mut w, 5 << 21, &table), [1]);
    }

    #[test]
    fn a_walker_without_caches_reads_every_level() {
        let config = WalkerConfig {
            pde_entries: 0,
            pdpte_entries: 0,
            pml4e_entries: 0,
            ..WalkerConfig::default()
        };
        let mut w = Walker::new(&config).unwrap();
        for _ in 0..3 {
            assert_eq!(levels(&mut w, 0x1000, &PLAIN), [3, 2, 1, 0]);
        }
    }

    #[test]
    fn accesses_go_one_after_the_other_to_the_entry_of_the_address() {
        let mut w = Walker::new(&WalkerConfig::default()).unwrap();
        let mut log = Log::default();
        let address = VirtualAddress(0x1_2345_6789);
        let walk = w.walk(Picoseconds(100), address, false, &PLAIN, &mut log).unwrap();
        assert_eq!(walk.done, Picoseconds(140));
        let index = (address.0 >> 12) & 511;
        assert_eq!(log.0[3].1, PLAIN.path(address).tables[0].0 + index * 8);
    }

    #[test]
    fn bits_are_set_once_by_an_extra_write() {
        let mut w = Walker::new(&WalkerConfig::default()).unwrap();
        let mut log = Log::default();
        let fresh = Table { huge: false, accessed: false };
        let walk = w.walk(Picoseconds(0), VirtualAddress(0), true, &fresh, &mut log).unwrap();
        assert!(walk.set_accessed && walk.set_dirty);
        assert_eq!(log.0.iter().filter(|a| a.2).count(), 1);
        assert_eq!(log.0.len(), 5);
        let walk = w.walk(Picoseconds(0), VirtualAddress(0), false, &PLAIN, &mut log).unwrap();
        assert!(!walk.set_accessed && !walk.set_dirty);
        assert_eq!((w.counts().accessed_set, w.counts().dirty_set), (1, 1));
    }

    #[test]
    fn a_hole_is_a_fault_at_the_level_of_its_entry() {
        let mut w = Walker::new(&WalkerConfig::default()).unwrap();
        let fault = w
            .walk(Picoseconds(0), VirtualAddress(HOLE), true, &PLAIN, &mut Log::default())
            .unwrap_err();
        assert_eq!((fault.level, fault.done, fault.write), (0, Picoseconds(40), true));
        assert_eq!((w.counts().walks, w.counts().faults), (0, 1));
    }

    #[test]
    fn a_table_that_moved_without_a_flush_is_noticed() {
        struct Moved(u64);
        impl PageTable for Moved {
            fn path(&self, address: VirtualAddress) -> Path {
                let mut path = PLAIN.path(address);
                path.tables[0].0 += self.0;
                path
            }

            fn set_bits(&mut self, _: VirtualAddress, _: bool) {}
        }
        let mut w = Walker::new(&WalkerConfig::default()).unwrap();
        let mut log = Log::default();
        w.walk(Picoseconds(0), VirtualAddress(0), false, &Moved(0), &mut log).unwrap();
        w.walk(Picoseconds(0), VirtualAddress(0), false, &Moved(1 << 30), &mut log).unwrap();
        assert_eq!(w.counts().stale, 1);
    }

    #[test]
    fn three_levels_are_refused() {
        let config = WalkerConfig { levels: 3, ..WalkerConfig::default() };
        assert!(
            Walker::new(&config).unwrap_err().to_string().contains("levels is 3; expected 4 to 5")
        );
    }
}

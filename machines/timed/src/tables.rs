//! The guest's page tables. Where the emulator can read them, a walk is that of the guest
//! ([`GuestWalk`]). Elsewhere the emulator reports the destination of a translation with each access,
//! and the place of the tables is assumed, as follows.
//!
//! The emulator reports the physical address of an access, not the page size. A region of 2 MiB
//! counts as one huge page once several of its 4 KiB pages were observed where one huge page would
//! have them; one page observed elsewhere makes it base pages again. So base pages that are one
//! after the other in an aligned block of 2 MiB are taken for a huge page: their addresses are
//! right, their walks too few.

use terrace_core::page::PageSize;
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::walker::{Leaf, MAX_LEVELS, PageTable, Path};

const HUGE_LOG2: u32 = 21;
const HUGE_MASK: u64 = (1 << HUGE_LOG2) - 1;
const BASE_MASK: u64 = 0xFFF;
/// Pages observed in place before a region counts as a huge page. One is in place by chance in 512.
const SEEN: u8 = 3;
/// Regions recorded at once, a power of two.
const REGIONS: usize = 1 << 14;
/// Page-table pages of a level; they repeat beyond.
const TABLE_PAGES: u64 = 1 << 10;

/// Observations of a region of 2 MiB.
#[derive(Debug, Clone, Copy)]
struct Region {
    virtual_region: u64,
    physical_region: u64,
    last_page: u64,
    seen: u8,
}

const UNKNOWN: Region =
    Region { virtual_region: u64::MAX, physical_region: 0, last_page: u64::MAX, seen: 0 };

/// The path through the guest's own page tables to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestWalk {
    /// The tier, and the offset in it, of the page-table page of each level from the leaf's
    /// upwards; `None` for one that is in no tier.
    pub tables: [Option<(usize, u64)>; MAX_LEVELS],
    /// The level of the leaf: 0 for a base page.
    pub lowest: usize,
}

/// Observations of the mappings of a machine.
#[derive(Debug, Clone)]
pub struct Tables {
    regions: Vec<Region>,
    /// First address of the page-table pages.
    start: u64,
}

/// Size of the assumed tables in bytes.
pub const TABLES_BYTES: u64 = (MAX_LEVELS as u64 * TABLE_PAGES) << 12;

impl Tables {
    /// Without observations; the tables are from `start` on.
    pub fn new(start: PhysicalAddress) -> Self {
        Tables { regions: vec![UNKNOWN; REGIONS], start: start.0 }
    }

    /// Records that an access of `address` went to `physical`; returns the size of its page.
    fn page_size(&mut self, address: u64, physical: u64) -> PageSize {
        let virtual_region = address >> HUGE_LOG2;
        // Adjacent regions use different slots, whatever the bits that separate programs and
        // kernel.
        let region = &mut self.regions[virtual_region as usize % REGIONS];
        if (address ^ physical) & HUGE_MASK & !BASE_MASK != 0 {
            if region.virtual_region == virtual_region {
                *region = UNKNOWN;
            }
            return PageSize::Base;
        }
        let physical_region = physical >> HUGE_LOG2;
        if (region.virtual_region, region.physical_region) != (virtual_region, physical_region) {
            *region = Region { virtual_region, physical_region, ..UNKNOWN };
        }
        let page = address >> 12;
        if region.last_page != page {
            region.last_page = page;
            region.seen = (region.seen + 1).min(SEEN);
        }
        if region.seen < SEEN { PageSize::Base } else { PageSize::Huge }
    }

    /// The tables for the walk of one access, which went to `physical`. `walk`: the path there, if
    /// known; `starts`: first addresses of the tiers.
    pub fn of_access<'a, F, W>(
        &'a mut self,
        physical: F,
        walk: W,
        starts: &'a [u64],
    ) -> OfAccess<'a, F, W>
    where
        F: Fn() -> Option<u64>,
        W: Fn() -> Option<GuestWalk>,
    {
        OfAccess { tables: std::cell::RefCell::new(self), physical, walk, starts }
    }
}

/// The tables for the walk of one access.
pub struct OfAccess<'a, F, W> {
    tables: std::cell::RefCell<&'a mut Tables>,
    physical: F,
    walk: W,
    starts: &'a [u64],
}

impl<F, W> PageTable for OfAccess<'_, F, W>
where
    F: Fn() -> Option<u64>,
    W: Fn() -> Option<GuestWalk>,
{
    fn path(&self, address: VirtualAddress) -> Path {
        let mut known = self.tables.borrow_mut();
        let physical = (self.physical)();
        let walk = physical.and_then(|_| (self.walk)());
        let tables = std::array::from_fn(|level| {
            let table = walk.and_then(|walk| walk.tables[level]);
            let start = table.and_then(|(tier, at)| Some(self.starts.get(tier)? + at));
            let assumed = || {
                let number = (address.0 >> (HUGE_LOG2 + 9 * level as u32)) % TABLE_PAGES;
                known.start + ((level as u64 * TABLE_PAGES + number) << 12)
            };
            PhysicalAddress(start.unwrap_or_else(assumed))
        });
        let leaf = physical.map(|physical| {
            let size = match walk {
                Some(walk) if walk.lowest == 0 => PageSize::Base,
                // A page of a GiB is as many huge ones to the TLBs.
                Some(_) => PageSize::Huge,
                None => known.page_size(address.0, physical),
            };
            let frame = PhysicalAddress(physical & !(size.bytes() - 1));
            // The emulator sets the bits of the guest's own tables.
            Leaf { frame, size, accessed: true, dirty: true }
        });
        let assumed = usize::from(leaf.is_some_and(|leaf| leaf.size == PageSize::Huge));
        Path { tables, lowest: walk.map_or(assumed, |walk| walk.lowest), leaf }
    }

    fn set_bits(&mut self, _address: VirtualAddress, _dirty: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: u64 = 1 << HUGE_LOG2;

    fn size(tables: &mut Tables, address: u64, physical: u64) -> PageSize {
        let table = tables.of_access(|| Some(physical), || None, &[]);
        let leaf = table.path(VirtualAddress(address)).leaf.unwrap();
        assert_eq!(leaf.frame.0 | (address & (leaf.size.bytes() - 1)), physical);
        leaf.size
    }

    #[test]
    fn a_region_is_a_huge_page_once_pages_of_it_were_seen_in_place() {
        let mut tables = Tables::new(PhysicalAddress(0));
        let (address, physical) = (40 * HUGE, 7 * HUGE);
        let at = |tables: &mut Tables, offset| size(tables, address + offset, physical + offset);
        assert_eq!(at(&mut tables, 0), PageSize::Base);
        assert_eq!(at(&mut tables, 8), PageSize::Base, "the same page");
        assert_eq!(at(&mut tables, 5 << 12), PageSize::Base);
        assert_eq!(at(&mut tables, 9 << 12), PageSize::Huge);
        assert_eq!(at(&mut tables, 0), PageSize::Huge);
        // One page of the region moved alone.
        assert_eq!(size(&mut tables, address + 0x3000, 99 << 12), PageSize::Base);
        assert_eq!(at(&mut tables, 0), PageSize::Base);
        // The whole region moved.
        for page in 1..4u64 {
            let got = size(&mut tables, address + (page << 12), 60 * HUGE + (page << 12));
            assert_eq!(got == PageSize::Huge, page == 3);
        }
    }

    #[test]
    fn a_walk_that_is_known_goes_where_the_guest_has_its_tables() {
        let mut tables = Tables::new(PhysicalAddress(1 << 40));
        let mut at = [None; MAX_LEVELS];
        (at[0], at[1], at[2]) = (Some((1, 0x5000)), Some((0, 0x6000)), Some((7, 0)));
        let walk = GuestWalk { tables: at, lowest: 0 };
        let starts = [1 << 32, 1 << 33];
        // It is placed as a huge page would be; the walk shows base pages.
        for page in 0..8 {
            let physical = 9 * HUGE + (page << 12);
            let table = tables.of_access(|| Some(physical), || Some(walk), &starts);
            let path = table.path(VirtualAddress(3 * HUGE + (page << 12)));
            assert_eq!((path.lowest, path.leaf.unwrap().size), (0, PageSize::Base));
            assert_eq!(path.tables[0].0, (1 << 33) + 0x5000);
            assert_eq!(path.tables[1].0, (1 << 32) + 0x6000);
            // In no tier: assumed.
            assert!(path.tables[2].0 >= 1 << 40);
        }
        let huge = GuestWalk { lowest: 1, ..walk };
        let table = tables.of_access(|| Some(9 * HUGE + 0x3000), || Some(huge), &starts);
        let path = table.path(VirtualAddress(3 * HUGE + 0x3000));
        assert_eq!((path.lowest, path.leaf.unwrap().frame.0), (1, 9 * HUGE));
    }

    #[test]
    fn what_is_no_memory_is_a_fault() {
        let mut tables = Tables::new(PhysicalAddress(1 << 40));
        let path =
            tables.of_access(|| None, || None, &[]).path(VirtualAddress(0xFFFF_8000_0000_1000));
        assert!(path.leaf.is_none());
        assert!(path.tables.iter().all(|t| (1 << 40..(1 << 40) + TABLES_BYTES).contains(&t.0)));
    }
}

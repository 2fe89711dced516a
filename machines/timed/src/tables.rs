//! Page tables that cannot be read: the emulator reports the destination of a translation with each
//! access; the place of the tables is assumed.
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

    /// The tables for the walk of one access, which went to `physical`.
    pub fn of_access<F: Fn() -> Option<u64>>(&mut self, physical: F) -> OfAccess<'_, F> {
        OfAccess { tables: std::cell::RefCell::new(self), physical }
    }
}

/// The tables for the walk of one access.
pub struct OfAccess<'a, F> {
    tables: std::cell::RefCell<&'a mut Tables>,
    physical: F,
}

impl<F: Fn() -> Option<u64>> PageTable for OfAccess<'_, F> {
    fn path(&self, address: VirtualAddress) -> Path {
        let mut known = self.tables.borrow_mut();
        let tables = std::array::from_fn(|level| {
            let number = (address.0 >> (HUGE_LOG2 + 9 * level as u32)) % TABLE_PAGES;
            PhysicalAddress(known.start + ((level as u64 * TABLE_PAGES + number) << 12))
        });
        let leaf = (self.physical)().map(|physical| {
            let size = known.page_size(address.0, physical);
            let frame = PhysicalAddress(physical & !(size.bytes() - 1));
            // The emulator sets the bits of the guest's own tables.
            Leaf { frame, size, accessed: true, dirty: true }
        });
        let lowest = usize::from(leaf.is_some_and(|leaf| leaf.size == PageSize::Huge));
        Path { tables, lowest, leaf }
    }

    fn set_bits(&mut self, _address: VirtualAddress, _dirty: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: u64 = 1 << HUGE_LOG2;

    fn size(tables: &mut Tables, address: u64, physical: u64) -> PageSize {
        let table = tables.of_access(|| Some(physical));
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
    fn what_is_no_memory_is_a_fault() {
        let mut tables = Tables::new(PhysicalAddress(1 << 40));
        let path = tables.of_access(|| None).path(VirtualAddress(0xFFFF_8000_0000_1000));
        assert!(path.leaf.is_none());
        assert!(path.tables.iter().all(|t| (1 << 40..(1 << 40) + TABLES_BYTES).contains(&t.0)));
    }
}

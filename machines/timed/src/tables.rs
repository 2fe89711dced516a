//! Page tables of which nothing can be read: what a translation leads to is asked of the emulator
//! with each access, where tables lie is assumed.
//!
//! The emulator says where an access went, not by which page size. A region of 2 MiB counts as one
//! huge page once several of its 4 KiB pages were seen where one huge page would have them; one
//! that was seen elsewhere makes it base pages again. Base pages that lie one after the other in an
//! aligned block of 2 MiB are so taken for a huge page: their addresses are right, their walks too
//! few.

use terrace_core::page::PageSize;
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::walker::{Leaf, MAX_LEVELS, PageTable, Path};

const HUGE_LOG2: u32 = 21;
const HUGE_MASK: u64 = (1 << HUGE_LOG2) - 1;
const BASE_MASK: u64 = 0xFFF;
/// Pages seen in their places before a region counts as a huge page. One is by chance in 512.
const SEEN: u8 = 3;
/// Regions known at once, a power of two.
const REGIONS: usize = 1 << 14;
/// Pages that the tables of a level have; they repeat beyond.
const TABLE_PAGES: u64 = 1 << 10;

/// What is known of a region of 2 MiB.
#[derive(Debug, Clone, Copy)]
struct Region {
    virtual_region: u64,
    physical_region: u64,
    last_page: u64,
    seen: u8,
}

const UNKNOWN: Region =
    Region { virtual_region: u64::MAX, physical_region: 0, last_page: u64::MAX, seen: 0 };

/// What is known of the mappings of a machine.
#[derive(Debug, Clone)]
pub struct Tables {
    regions: Vec<Region>,
    /// Where the pages of the tables lie.
    start: u64,
}

/// Bytes that the assumed tables take.
pub const TABLES_BYTES: u64 = (MAX_LEVELS as u64 * TABLE_PAGES) << 12;

impl Tables {
    /// Nothing is known; tables lie from `start` on.
    pub fn new(start: PhysicalAddress) -> Self {
        Tables { regions: vec![UNKNOWN; REGIONS], start: start.0 }
    }

    /// An access of `address` went to `physical`; the size of the page that it is in.
    fn page_size(&mut self, address: u64, physical: u64) -> PageSize {
        let virtual_region = address >> HUGE_LOG2;
        // Neighbours in different places, whatever the bits that tell programs and kernel apart.
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

    /// The tables as a walk for one access sees them, which went to `physical`.
    pub fn of_access<F: Fn() -> Option<u64>>(&mut self, physical: F) -> OfAccess<'_, F> {
        OfAccess { tables: std::cell::RefCell::new(self), physical }
    }
}

/// The tables as a walk for one access sees them.
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
        // A page of it moved alone.
        assert_eq!(size(&mut tables, address + 0x3000, 99 << 12), PageSize::Base);
        assert_eq!(at(&mut tables, 0), PageSize::Base);
        // The whole of it moved.
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

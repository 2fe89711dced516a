//! The pages of a node: its page table, and the place of each page.
//!
//! Pages are numbered in the order of their first touch. Caches are tagged with that number in
//! place of a frame's: a migration removes a page's blocks from every cache, as new frame numbers
//! would, so the result is the same, and nothing in flight must be renamed.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use terrace_core::page::PageSize;
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::request::Spread;
use terrace_hardware::walker::{Leaf, MAX_LEVELS, PageTable, Path};

use crate::Time;

/// Address of page-table pages: beyond all pages.
pub const TABLES_AT: u64 = 1 << 44;

/// The place of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In this frame of local memory.
    Local(u32),
    /// In this page of the node's remote memory.
    Remote(u32),
    /// On its way into local memory: number of the arrival.
    In(u32),
    /// On its way out: number of the departure.
    Out(u32),
}

/// Flags of a page.
const ACCESSED: u8 = 1;
const DIRTY: u8 = 2;
/// The page was migrated in.
const MIGRATED: u8 = 4;
/// The page was evicted as a victim.
const VICTIM: u8 = 8;

const ENTRIES: usize = 512;

struct Table {
    /// Pages plus one; 0 for none.
    entries: Box<[u32; ENTRIES]>,
    number: u64,
}

/// The pages of a node.
#[derive(Default)]
pub struct Pages {
    /// Leaf tables by the upper bits of page numbers, and the tables above by level and prefix.
    leaves: HashMap<u64, Table, BuildHasherDefault<Spread>>,
    upper: HashMap<u64, u64, BuildHasherDefault<Spread>>,
    tables: u64,
    /// Virtual page number of each page.
    virtual_pages: Vec<u64>,
    flags: Vec<u8>,
    places: Vec<Place>,
    last_access: Vec<Time>,
    accesses: Vec<u32>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("count", &self.places.len()).finish_non_exhaustive()
    }
}

fn upper_key(level: usize, address: u64) -> u64 {
    (level as u64) << 56 | address >> (12 + 9 * (level + 1))
}

fn table_address(number: u64) -> PhysicalAddress {
    PhysicalAddress(TABLES_AT + (number << 12))
}

impl Pages {
    /// Number of pages.
    pub fn count(&self) -> u32 {
        self.places.len() as u32
    }

    /// Page-table pages.
    pub fn tables(&self) -> u64 {
        self.tables
    }

    /// The page of a virtual address, if it is mapped.
    pub fn find(&self, address: u64) -> Option<u32> {
        let entry = self.leaves.get(&(address >> 21))?.entries[(address >> 12) as usize % ENTRIES];
        entry.checked_sub(1)
    }

    /// Maps the page of an address.
    pub fn map(&mut self, address: u64, place: Place) -> u32 {
        let page = self.count();
        for level in (1..MAX_LEVELS).rev() {
            self.upper.entry(upper_key(level, address)).or_insert_with(|| {
                self.tables += 1;
                self.tables
            });
        }
        let table = self.leaves.entry(address >> 21).or_insert_with(|| {
            self.tables += 1;
            Table { entries: Box::new([0; ENTRIES]), number: self.tables }
        });
        table.entries[(address >> 12) as usize % ENTRIES] = page + 1;
        self.virtual_pages.push(address >> 12);
        self.flags.push(ACCESSED);
        self.places.push(place);
        self.last_access.push(0);
        self.accesses.push(0);
        page
    }

    /// The place of a page.
    #[inline]
    pub fn place(&self, page: u32) -> Place {
        self.places[page as usize]
    }

    /// Sets the place of a page.
    pub fn set_place(&mut self, page: u32, place: Place) {
        self.places[page as usize] = place;
    }

    /// The page's virtual address.
    pub fn address(&self, page: u32) -> VirtualAddress {
        VirtualAddress(self.virtual_pages[page as usize] << 12)
    }

    /// Records a memory access to the page.
    #[inline]
    pub fn accessed(&mut self, now: Time, page: u32) {
        let page = page as usize;
        self.flags[page] |= ACCESSED;
        self.last_access[page] = now;
        self.accesses[page] = self.accesses[page].saturating_add(1);
    }

    /// Records that the page was migrated in, or evicted.
    pub fn moved(&mut self, page: u32, came: bool) {
        let flags = &mut self.flags[page as usize];
        *flags = (*flags & !(MIGRATED | VICTIM)) | if came { MIGRATED | ACCESSED } else { VICTIM };
    }

    /// Whether the page was migrated in.
    pub fn is_migrated(&self, page: u32) -> bool {
        self.flags[page as usize] & MIGRATED != 0
    }

    /// Whether the page was evicted.
    pub fn is_victim(&self, page: u32) -> bool {
        self.flags[page as usize] & VICTIM != 0
    }
}

impl PageTable for Pages {
    fn path(&self, address: VirtualAddress) -> Path {
        let mut tables = [PhysicalAddress(TABLES_AT); MAX_LEVELS];
        for level in (1..MAX_LEVELS).rev() {
            match self.upper.get(&upper_key(level, address.0)) {
                Some(&number) => tables[level] = table_address(number),
                // The entry above is not present.
                None => {
                    return Path { tables, lowest: (level + 1).min(MAX_LEVELS - 2), leaf: None };
                }
            }
        }
        let Some(table) = self.leaves.get(&(address.0 >> 21)) else {
            return Path { tables, lowest: 1, leaf: None };
        };
        tables[0] = table_address(table.number);
        let entry = table.entries[(address.0 >> 12) as usize % ENTRIES];
        let leaf = entry.checked_sub(1).map(|page| Leaf {
            frame: PhysicalAddress(u64::from(page) << 12),
            size: PageSize::Base,
            accessed: self.flags[page as usize] & ACCESSED != 0,
            dirty: self.flags[page as usize] & DIRTY != 0,
        });
        Path { tables, lowest: 0, leaf }
    }

    fn set_bits(&mut self, address: VirtualAddress, dirty: bool) {
        if let Some(page) = self.find(address.0) {
            self.flags[page as usize] |= ACCESSED | if dirty { DIRTY } else { 0 };
        }
    }
}

impl crate::victims::Pages for Pages {
    fn count(&self) -> u32 {
        Pages::count(self)
    }

    fn may_leave(&self, page: u32) -> bool {
        matches!(self.places[page as usize], Place::Local(_))
    }

    fn take_accessed(&mut self, page: u32) -> bool {
        let flags = &mut self.flags[page as usize];
        let accessed = *flags & ACCESSED != 0;
        *flags &= !ACCESSED;
        accessed
    }

    fn last_access(&self, page: u32) -> Time {
        self.last_access[page as usize]
    }

    fn accesses(&self, page: u32) -> u32 {
        self.accesses[page as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_found_by_its_address_and_its_way_exists() {
        let mut pages = Pages::default();
        let address = (1 << 44) + (5 << 21) + (7 << 12) + 9;
        assert_eq!(pages.path(VirtualAddress(address)).leaf, None);
        let a = pages.map(address, Place::Local(3));
        let b = pages.map(address + 4096, Place::Remote(4));
        assert_eq!(
            (a, b, pages.find(address), pages.find(address + 4096)),
            (0, 1, Some(0), Some(1))
        );
        assert_eq!(pages.find(address + 8192), None);
        let path = pages.path(VirtualAddress(address + 4096));
        assert_eq!(path.leaf.unwrap().frame, PhysicalAddress(1 << 12));
        // A table of each level.
        assert_eq!(pages.tables(), MAX_LEVELS as u64);
        let fault = pages.path(VirtualAddress(address + 8192));
        assert_eq!((fault.leaf, fault.lowest), (None, 0));
        assert_eq!(pages.address(1).0, (address + 4096) & !4095);
    }

    #[test]
    fn flags_tell_arrivals_from_victims() {
        let mut pages = Pages::default();
        let page = pages.map(0, Place::Local(0));
        pages.moved(page, false);
        assert!(pages.is_victim(page) && !pages.is_migrated(page));
        pages.moved(page, true);
        assert!(!pages.is_victim(page) && pages.is_migrated(page));
    }
}

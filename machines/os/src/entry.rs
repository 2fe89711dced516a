//! How this model packs page-table entries into 64 bits. The hardware never reads them: it gets a
//! [`terrace_hardware::walker::Path`].
//!
//! A leaf holds the frame in bits 12 to 47 and flags below. An entry that leads to another
//! page-table page holds that page's frame (bits 28 to 63) and its number in the address space's
//! arena (bits 4 to 27), so that a walk loads one word a level. A migration entry is not present
//! and names the move and the page's place in it, as Linux's names the frame.

use terrace_core::page::PageSize;
use terrace_hardware::address::PhysicalAddress;

/// A page-table entry of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(pub(crate) u64);

const PRESENT: u64 = 1;
const HUGE: u64 = 2;
const ACCESSED: u64 = 4;
const DIRTY: u64 = 8;
const MIGRATION: u64 = 16;

/// Bits of a physical address.
pub(crate) const PHYSICAL_BITS: u32 = 48;
/// Page-table pages that one address space may have: 32 TB of base pages.
pub(crate) const MAX_TABLES: usize = 1 << 24;
/// Pages that one move may have.
pub(crate) const MAX_MOVE_PAGES: usize = 1 << 20;

impl Entry {
    /// Nothing mapped.
    pub(crate) const NONE: Entry = Entry(0);

    pub(crate) fn leaf(frame: u64, size: PageSize) -> Self {
        Entry(frame | PRESENT | if size == PageSize::Huge { HUGE } else { 0 })
    }

    pub(crate) fn table(frame: u64, index: usize) -> Self {
        Entry((frame >> 12) << 28 | (index as u64) << 4 | PRESENT)
    }

    /// Page `place` of move `id`, with the bits that `of` has.
    pub(crate) fn migration(id: u32, place: usize, of: Entry) -> Self {
        let kept = of.0 & (HUGE | ACCESSED | DIRTY);
        Entry(u64::from(id) << 32 | (place as u64) << 12 | kept | MIGRATION)
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    pub(crate) fn is_migration(self) -> bool {
        self.0 & MIGRATION != 0 && !self.is_present()
    }

    /// Whether a leaf or a migration entry is of a huge page.
    pub(crate) fn is_huge(self) -> bool {
        self.0 & HUGE != 0
    }

    /// Frame of a leaf.
    pub(crate) fn frame(self) -> u64 {
        self.0 & ((1 << PHYSICAL_BITS) - 1) & !0xFFF
    }

    pub(crate) fn is_accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    pub(crate) fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    pub(crate) fn set_bits(self, dirty: bool) -> Self {
        Entry(self.0 | ACCESSED | if dirty { DIRTY } else { 0 })
    }

    pub(crate) fn clear_accessed(self) -> Self {
        Entry(self.0 & !ACCESSED)
    }

    /// This entry with the accessed and dirty bits of `of`.
    pub(crate) fn with_bits_of(self, of: Entry) -> Self {
        Entry(self.0 & !(ACCESSED | DIRTY) | of.0 & (ACCESSED | DIRTY))
    }

    /// This entry without accessed and dirty bits that `of` has not.
    pub(crate) fn without_bits_beyond(self, of: Entry) -> Self {
        Entry(self.0 & (of.0 | !(ACCESSED | DIRTY)))
    }

    /// Whether the two differ in nothing but accessed and dirty bits.
    pub(crate) fn same_page(self, other: Entry) -> bool {
        (self.0 ^ other.0) & !(ACCESSED | DIRTY) == 0
    }

    /// Frame of the page-table page that this entry leads to.
    pub(crate) fn table_frame(self) -> PhysicalAddress {
        PhysicalAddress((self.0 >> 28) << 12)
    }

    /// Number of the page-table page that this entry leads to.
    pub(crate) fn table_index(self) -> usize {
        ((self.0 >> 4) & (MAX_TABLES as u64 - 1)) as usize
    }

    /// The move of a migration entry, and the page's place in it.
    pub(crate) fn migration_target(self) -> (u32, usize) {
        ((self.0 >> 32) as u32, ((self.0 >> 12) & (MAX_MOVE_PAGES as u64 - 1)) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_hold_what_they_were_given() {
        let top = (1u64 << PHYSICAL_BITS) - 4096;
        let leaf = Entry::leaf(top, PageSize::Base).set_bits(true);
        assert_eq!((leaf.frame(), leaf.is_huge(), leaf.is_dirty()), (top, false, true));
        let table = Entry::table(top, MAX_TABLES - 1);
        assert_eq!((table.table_frame().0, table.table_index()), (top, MAX_TABLES - 1));
        assert!(table.is_present());
        let m = Entry::migration(u32::MAX, MAX_MOVE_PAGES - 1, leaf);
        assert_eq!(m.migration_target(), (u32::MAX, MAX_MOVE_PAGES - 1));
        assert!(m.is_migration() && !m.is_present() && m.is_accessed() && m.is_dirty());
        assert!(!m.is_huge() && !leaf.is_migration());
        let huge = Entry::leaf(1 << 21, PageSize::Huge);
        assert!(Entry::migration(0, 0, huge).is_huge());
        assert_eq!(Entry::leaf(1 << 12, PageSize::Base).with_bits_of(m).0 & 0xFFF, leaf.0 & 0xFFF);
    }
}

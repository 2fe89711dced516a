//! One address space: what is mapped, and the page table that maps it.
//!
//! The table is a radix tree as in hardware, its pages in one arena: page `i` has entries `512 i`
//! and on. An entry that leads to a page of the arena holds that page's frame too, so that
//! [`PageTable::path`], which runs once per TLB miss, loads one word a level and hashes nothing.

use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::host::array::Array;
use terrace_hardware::host::prefetch::prefetch;
use terrace_hardware::walker::{Leaf, MAX_LEVELS, PageTable, Path, PrefetchEntry, entry_address};

use crate::entry::{Entry, MAX_TABLES};

/// Entries of a page-table page.
pub(crate) const ENTRIES: usize = 512;

/// Bits of an address below those that index a level's entries.
pub(crate) const fn level_shift(level: usize) -> u32 {
    12 + 9 * level as u32
}

/// The index of the entry for `address` in a page-table page of `level`.
pub(crate) const fn slot(address: u64, level: usize) -> usize {
    (address >> level_shift(level)) as usize & (ENTRIES - 1)
}

/// A range that the process may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Marked for huge pages, as `madvise(MADV_HUGEPAGE)` does.
    pub(crate) huge_eligible: bool,
}

/// The operating system's record of one page-table page, beside its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) frame: u64,
    /// First address that the table maps.
    pub(crate) address: u64,
    pub(crate) parent: u32,
    /// Entries that are not empty.
    pub(crate) used: u16,
    /// Of a leaf table: entries that map a frame of the fastest tier or are under migration; the
    /// table must not be demoted while there are any (algorithm 1, lines 17 to 19).
    pub(crate) fast: u16,
    pub(crate) level: u8,
    pub(crate) in_use: bool,
    /// The move under way of the table, see [`crate::tables`].
    pub(crate) moving: Option<u32>,
    /// Moves under way of leaf tables below this one: they hold its lock.
    pub(crate) held: u16,
    /// The call that a table moves for, or is held for.
    pub(crate) holder: u32,
}

/// An entry's place in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) table: usize,
    pub(crate) slot: usize,
}

impl At {
    fn index(self) -> usize {
        self.table * ENTRIES + self.slot
    }
}

/// One address space.
#[derive(Debug, Clone)]
pub struct AddressSpace {
    id: SpaceId,
    root_level: usize,
    entries: Array<Entry>,
    pub(crate) tables: Vec<Table>,
    unused: Vec<u32>,
    /// Sorted, without overlaps.
    pub(crate) mappings: Vec<Mapping>,
    /// Frames of page-table pages kept for splits, one for each huge page.
    pub(crate) deposits: Vec<u64>,
    /// Counts changes to what is mapped, so that a scan can be distinguished from the one before.
    pub(crate) generation: u64,
}

/// Arena number of the root.
pub(crate) const ROOT: usize = 0;

impl AddressSpace {
    /// An empty space with its root in `root_frame`.
    pub(crate) fn new(id: SpaceId, levels: u32, root_frame: u64) -> Self {
        let mut space = AddressSpace {
            id,
            root_level: levels as usize - 1,
            entries: Array::new(0, Entry::NONE),
            tables: Vec::new(),
            unused: Vec::new(),
            mappings: Vec::new(),
            deposits: Vec::new(),
            generation: 0,
        };
        space.add_table(space.root_level, 0, 0, root_frame);
        space
    }

    /// The space's number.
    pub fn id(&self) -> SpaceId {
        self.id
    }

    pub(crate) fn root_level(&self) -> usize {
        self.root_level
    }

    /// First address past those that the page table can map for a program: half of all.
    pub(crate) fn end(&self) -> u64 {
        1 << (level_shift(self.root_level + 1) - 1)
    }

    fn add_table(&mut self, level: usize, address: u64, parent: usize, frame: u64) -> usize {
        let span = 1u64 << level_shift(level + 1);
        let table = Table {
            frame,
            address: address & !(span - 1),
            parent: parent as u32,
            used: 0,
            fast: 0,
            level: level as u8,
            in_use: true,
            moving: None,
            held: 0,
            holder: 0,
        };
        match self.unused.pop() {
            Some(index) => {
                self.tables[index as usize] = table;
                index as usize
            }
            None => {
                assert!(self.tables.len() < MAX_TABLES, "32 TB mapped by one process");
                self.tables.push(table);
                self.entries.resize(self.tables.len() * ENTRIES, Entry::NONE);
                self.tables.len() - 1
            }
        }
    }

    #[inline]
    pub(crate) fn entry(&self, at: At) -> Entry {
        self.entries[at.index()]
    }

    pub(crate) fn table_entries(&self, table: usize) -> &[Entry] {
        &self.entries[table * ENTRIES..(table + 1) * ENTRIES]
    }

    pub(crate) fn table_entries_mut(&mut self, table: usize) -> &mut [Entry] {
        &mut self.entries[table * ENTRIES..(table + 1) * ENTRIES]
    }

    /// Writes an entry and keeps the table's count of entries in use.
    pub(crate) fn write(&mut self, at: At, entry: Entry) {
        let old = std::mem::replace(&mut self.entries[at.index()], entry);
        let used = &mut self.tables[at.table].used;
        *used = *used + u16::from(!entry.is_none()) - u16::from(!old.is_none());
    }

    pub(crate) fn clear_accessed(&mut self, at: At) {
        let entry = &mut self.entries[at.index()];
        *entry = entry.clear_accessed();
    }

    /// The lowest level reached on the way to `address`, and the place of its entry: a leaf, a
    /// migration entry, or an empty entry.
    pub(crate) fn find(&self, address: u64) -> (At, usize) {
        let mut table = ROOT;
        let mut level = self.root_level;
        loop {
            let at = At { table, slot: slot(address, level) };
            let entry = self.entry(at);
            if level == 0 || !entry.is_present() || (level == 1 && entry.is_huge()) {
                return (at, level);
            }
            table = entry.table_index();
            level -= 1;
        }
    }

    /// Makes the table of `level - 1` below the empty entry `at` of a table of `level`.
    pub(crate) fn grow(&mut self, at: At, level: usize, address: u64, frame: u64) -> usize {
        let table = self.add_table(level - 1, address, at.table, frame);
        self.write(at, Entry::table(frame, table));
        table
    }

    /// The place of the entry that leads to a table other than the root.
    pub(crate) fn parent_entry(&self, table: usize) -> At {
        let t = &self.tables[table];
        At { table: t.parent as usize, slot: slot(t.address, t.level as usize + 1) }
    }

    /// Removes an empty table other than the root from the tree. Returns its frame and level.
    pub(crate) fn prune(&mut self, table: usize) -> (u64, usize) {
        debug_assert!(table != ROOT && self.tables[table].used == 0);
        let at = self.parent_entry(table);
        self.write(at, Entry::NONE);
        let t = &mut self.tables[table];
        t.in_use = false;
        let (frame, level) = (t.frame, t.level as usize);
        self.unused.push(table as u32);
        (frame, level)
    }

    /// Replaces a huge leaf by an empty table in `frame`. The caller fills the table before
    /// anything reads it.
    pub(crate) fn replace_by_table(&mut self, at: At, address: u64, frame: u64) -> usize {
        let table = self.add_table(0, address, at.table, frame);
        self.write(at, Entry::table(frame, table));
        table
    }

    /// Moves a table other than the root to another frame.
    pub(crate) fn set_table_frame(&mut self, table: usize, frame: u64) {
        let at = self.parent_entry(table);
        self.tables[table].frame = frame;
        self.write(at, Entry::table(frame, table));
    }

    /// The mapping that holds `address`.
    pub(crate) fn mapping(&self, address: u64) -> Option<Mapping> {
        let after = self.mappings.partition_point(|m| m.start <= address);
        let m = self.mappings[after.checked_sub(1)?];
        (address < m.end).then_some(m)
    }

    /// Inserts a mapping in order, merged with its neighbours if they are alike.
    pub(crate) fn insert_mapping(&mut self, at: usize, mut new: Mapping) {
        let joins =
            |a: &Mapping, b: &Mapping| a.end == b.start && a.huge_eligible == b.huge_eligible;
        if let Some(next) = self.mappings.get(at)
            && joins(&new, next)
        {
            new.end = next.end;
            self.mappings.remove(at);
        }
        match at.checked_sub(1).map(|before| &mut self.mappings[before]) {
            Some(before) if joins(before, &new) => before.end = new.end,
            _ => self.mappings.insert(at, new),
        }
    }

    /// Removes a range from the mappings; returns the parts removed.
    pub(crate) fn cut_mappings(&mut self, start: u64, end: u64) -> Vec<Mapping> {
        let (mut left, mut cut) = (Vec::with_capacity(self.mappings.len() + 1), Vec::new());
        for &m in &self.mappings {
            let inside = Mapping { start: m.start.max(start), end: m.end.min(end), ..m };
            if inside.start >= inside.end {
                left.push(m);
                continue;
            }
            cut.push(inside);
            if m.start < inside.start {
                left.push(Mapping { end: inside.start, ..m });
            }
            if inside.end < m.end {
                left.push(Mapping { start: inside.end, ..m });
            }
        }
        self.mappings = left;
        cut
    }

    /// The mapped ranges.
    pub fn mappings(&self) -> impl Iterator<Item = VirtualRange> + '_ {
        self.mappings.iter().map(|m| VirtualRange {
            space: self.id,
            start: m.start,
            size_bytes: m.end - m.start,
        })
    }

    /// Calls `visit` with address, size, place and entry of every leaf and migration entry from
    /// `start` to before `end`, ascending. Linear in the tables of the range.
    pub(crate) fn for_each_leaf(
        &self,
        start: u64,
        end: u64,
        mut visit: impl FnMut(u64, PageSize, At, Entry),
    ) {
        let mut address = start;
        while address < end {
            let (at, level) = self.find(address);
            let entry = self.entry(at);
            let span = 1u64 << level_shift(level);
            let base = address & !(span - 1);
            if level == 0 {
                // The rest of this table, without walking again.
                let mut at = at;
                let mut page = base;
                while at.slot < ENTRIES && page < end {
                    let entry = self.entry(at);
                    if !entry.is_none() {
                        visit(page, PageSize::Base, at, entry);
                    }
                    at.slot += 1;
                    page += 1 << 12;
                }
                address = page;
                continue;
            }
            if !entry.is_none() {
                visit(base, PageSize::Huge, at, entry);
            }
            address = base + span;
        }
    }
}

impl PageTable for AddressSpace {
    #[inline]
    fn path(&self, address: VirtualAddress) -> Path {
        let mut tables = [PhysicalAddress(0); MAX_LEVELS];
        let mut level = self.root_level;
        let mut table = ROOT;
        tables[level] = PhysicalAddress(self.tables[ROOT].frame);
        loop {
            let entry = self.entries[table * ENTRIES + slot(address.0, level)];
            if level == 0 || !entry.is_present() || entry.is_huge() && level == 1 {
                let leaf = entry.is_present().then(|| Leaf {
                    frame: PhysicalAddress(entry.frame()),
                    size: if level == 0 { PageSize::Base } else { PageSize::Huge },
                    accessed: entry.is_accessed(),
                    dirty: entry.is_dirty(),
                });
                return Path { tables, lowest: level, leaf };
            }
            level -= 1;
            table = entry.table_index();
            tables[level] = entry.table_frame();
        }
    }

    fn set_bits(&mut self, address: VirtualAddress, dirty: bool) {
        let (at, _) = self.find(address.0);
        let entry = self.entry(at);
        // A walk that began before the page was removed sets no bit: its entry is empty.
        if entry.is_present() {
            self.entries[at.index()] = entry.set_bits(dirty);
        }
    }

    #[inline]
    fn prefetch(&self, address: VirtualAddress) -> Option<PrefetchEntry> {
        let (mut table, mut level) = (ROOT, self.root_level);
        let mut frame = PhysicalAddress(self.tables[ROOT].frame);
        loop {
            let number = table * ENTRIES + slot(address.0, level);
            let found = PrefetchEntry { number, entry: entry_address(frame, address, level) };
            if level == 0 {
                prefetch(&self.entries, number);
                return Some(found);
            }
            let entry = self.entries[number];
            if !entry.is_present() {
                return None;
            }
            if level == 1 && entry.is_huge() {
                return Some(found);
            }
            level -= 1;
            (table, frame) = (entry.table_index(), entry.table_frame());
        }
    }

    #[inline]
    fn prefetched(&self, entry: PrefetchEntry, address: VirtualAddress) -> Option<PhysicalAddress> {
        let leaf = self.entries.get(entry.number).filter(|e| e.is_present())?;
        let size = if leaf.is_huge() { PageSize::Huge } else { PageSize::Base };
        Some(PhysicalAddress(leaf.frame() | address.0 & (size.bytes() - 1)))
    }
}

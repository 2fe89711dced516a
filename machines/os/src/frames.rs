//! The physical memory of one node: which frames are free, and the owners of the others.
//!
//! Frames of 4 KB are grouped in blocks of 2 MB. A huge page takes a block that is free as a whole,
//! so fragmentation is real: one frame in use spoils its block. As in Linux, frames that can be
//! moved (data) and frames that cannot (page tables) are kept in blocks of their own kind as long
//! as there are such blocks. Within a kind the lowest address is taken: the same calls give the
//! same frames. Orders between 4 KB and 2 MB are not modelled; nothing here needs them.

use terrace_core::page::{PageSize, SpaceId};
use terrace_hardware::address::PhysicalAddress;

use crate::blockset::BlockSet;

/// Bytes of a base frame.
pub(crate) const FRAME_BYTES: u64 = PageSize::Base.bytes();
/// Base frames of a huge page.
pub const FRAMES_PER_HUGE: u64 = PageSize::Huge.bytes() / FRAME_BYTES;
const BLOCK: usize = FRAMES_PER_HUGE as usize;
const WORDS: usize = BLOCK / 64;

/// The use and the owner of a frame: the reverse map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The frame is free.
    Free,
    /// A base page of data at this address.
    Base {
        /// The page's address space.
        space: SpaceId,
        /// The page's virtual address.
        address: u64,
    },
    /// The first frame of a huge page at this address.
    Huge {
        /// The page's address space.
        space: SpaceId,
        /// The page's virtual address.
        address: u64,
    },
    /// Another frame of a huge page; `address` is that frame's own.
    HugeTail {
        /// The page's address space.
        space: SpaceId,
        /// The virtual address of this part.
        address: u64,
    },
    /// A page-table page.
    Table {
        /// The table's address space.
        space: SpaceId,
        /// First address that the table maps.
        address: u64,
        /// The table's level, 0 for the leaf.
        level: usize,
    },
    /// A page-table page kept for a later split of a huge page (Linux: deposited).
    Deposit {
        /// The table's address space.
        space: SpaceId,
    },
    /// The destination frame of a page under migration.
    Destination {
        /// The page's address space.
        space: SpaceId,
        /// The page's virtual address.
        address: u64,
    },
    /// Clean page cache, which reclaim may drop.
    Cache,
    /// Reserved by the caller, for ever.
    Reserved,
}

const KIND_BITS: u32 = 4;
const SPACE_BITS: u32 = 15;
/// Address spaces that there can be.
pub(crate) const MAX_SPACES: u32 = 1 << SPACE_BITS;
const DEPOSIT_LEVEL: u64 = 7;

impl Owner {
    /// Packed into 8 bytes: 4 bits of kind, 15 of space, 45 of virtual page number. The number of
    /// a page-table page has its low bits free for the level. `Free` is 0.
    fn pack(self) -> u64 {
        let pack = |kind: u64, space: SpaceId, low: u64| {
            kind | u64::from(space.0) << KIND_BITS | low << (KIND_BITS + SPACE_BITS)
        };
        match self {
            Owner::Free => 0,
            Owner::Base { space, address } => pack(1, space, address >> 12),
            Owner::Huge { space, address } => pack(2, space, address >> 12),
            Owner::HugeTail { space, address } => pack(3, space, address >> 12),
            Owner::Table { space, address, level } => pack(4, space, address >> 12 | level as u64),
            Owner::Deposit { space } => pack(4, space, DEPOSIT_LEVEL),
            Owner::Destination { space, address } => pack(5, space, address >> 12),
            Owner::Cache => 6,
            Owner::Reserved => 7,
        }
    }

    fn unpack(word: u64) -> Self {
        let space = SpaceId((word >> KIND_BITS) as u32 & (MAX_SPACES - 1));
        let low = word >> (KIND_BITS + SPACE_BITS);
        let address = low << 12;
        match word & ((1 << KIND_BITS) - 1) {
            0 => Owner::Free,
            1 => Owner::Base { space, address },
            2 => Owner::Huge { space, address },
            3 => Owner::HugeTail { space, address },
            4 if low & 7 == DEPOSIT_LEVEL => Owner::Deposit { space },
            4 => Owner::Table { space, address: address & !0x1F_FFFF, level: (low & 7) as usize },
            5 => Owner::Destination { space, address },
            6 => Owner::Cache,
            _ => Owner::Reserved,
        }
    }

    /// Whether the frame's content can be moved, so that the frame belongs among movable ones.
    fn is_movable(self) -> bool {
        !matches!(self, Owner::Table { .. } | Owner::Deposit { .. } | Owner::Reserved)
    }
}

/// The frames of one node.
#[derive(Debug, Clone)]
pub(crate) struct Frames {
    start: u64,
    /// Number of frames; the last block may be incomplete.
    frames: u64,
    free: u64,
    /// One bit a frame: in use.
    used: Vec<u64>,
    used_in_block: Vec<u16>,
    /// One word a frame, see [`Owner::pack`].
    owners: Vec<u64>,
    /// Blocks without a frame in use.
    free_blocks: BlockSet,
    /// Blocks with some frames in use and some free, by the kind that they were opened for.
    partial: [BlockSet; 2],
    /// By block: opened for frames that cannot be moved.
    unmovable: Vec<bool>,
}

impl Frames {
    /// All free. `start` is a multiple of 2 MB and `capacity_bytes` of 4 KB.
    pub(crate) fn new(start: PhysicalAddress, capacity_bytes: u64) -> Self {
        let frames = capacity_bytes / FRAME_BYTES;
        let blocks = (frames as usize).div_ceil(BLOCK);
        let mut node = Frames {
            start: start.0,
            frames,
            free: frames,
            used: vec![0; blocks * WORDS],
            used_in_block: vec![0; blocks],
            owners: vec![0; frames as usize],
            free_blocks: BlockSet::new(blocks),
            partial: [BlockSet::new(blocks), BlockSet::new(blocks)],
            unmovable: vec![false; blocks],
        };
        (0..blocks).for_each(|b| node.free_blocks.insert(b));
        // Frames past the end of memory count as in use.
        for frame in frames as usize..blocks * BLOCK {
            node.used[frame / 64] |= 1 << (frame % 64);
            node.used_in_block[frame / BLOCK] += 1;
        }
        if !(frames as usize).is_multiple_of(BLOCK) {
            node.free_blocks.remove(blocks - 1);
            node.partial[0].insert(blocks - 1);
        }
        node
    }

    pub(crate) fn total(&self) -> u64 {
        self.frames
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Whole 2 MB blocks that are free.
    pub(crate) fn free_huge(&self) -> u64 {
        self.free_blocks.len() as u64
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.frames * FRAME_BYTES
    }

    fn number(&self, address: u64) -> usize {
        debug_assert!(self.contains(address));
        ((address - self.start) / FRAME_BYTES) as usize
    }

    pub(crate) fn address(&self, number: usize) -> u64 {
        self.start + number as u64 * FRAME_BYTES
    }

    pub(crate) fn owner(&self, address: u64) -> Owner {
        Owner::unpack(self.owners[self.number(address)])
    }

    /// Takes the frame or block for `owner`; `None` when there is none.
    pub(crate) fn take(&mut self, size: PageSize, owner: Owner) -> Option<u64> {
        match size {
            PageSize::Base => self.take_base(owner),
            PageSize::Huge => self.take_huge(owner),
        }
    }

    fn take_base(&mut self, owner: Owner) -> Option<u64> {
        let kind = usize::from(!owner.is_movable());
        let block = self.partial[kind].first().or_else(|| {
            let fresh = self.free_blocks.first()?;
            self.free_blocks.remove(fresh);
            self.unmovable[fresh] = kind == 1;
            self.partial[kind].insert(fresh);
            Some(fresh)
        });
        // No frame of this kind: take from the other, as Linux falls back to another migrate type.
        let block = block.or_else(|| self.partial[1 - kind].first())?;
        let words = &self.used[block * WORDS..(block + 1) * WORDS];
        let word = words.iter().position(|w| *w != !0).expect("a partial block has a free frame");
        let frame = block * BLOCK + word * 64 + words[word].trailing_ones() as usize;
        self.mark_used(frame, owner);
        Some(self.address(frame))
    }

    fn take_huge(&mut self, owner: Owner) -> Option<u64> {
        let block = self.free_blocks.first()?;
        self.free_blocks.remove(block);
        self.unmovable[block] = false;
        self.used[block * WORDS..(block + 1) * WORDS].fill(!0);
        self.used_in_block[block] = BLOCK as u16;
        self.free -= FRAMES_PER_HUGE;
        let address = self.address(block * BLOCK);
        self.own(address, PageSize::Huge, owner);
        Some(address)
    }

    fn mark_used(&mut self, frame: usize, owner: Owner) {
        let block = frame / BLOCK;
        self.used[frame / 64] |= 1 << (frame % 64);
        self.used_in_block[block] += 1;
        self.free -= 1;
        if usize::from(self.used_in_block[block]) == BLOCK {
            self.partial[usize::from(self.unmovable[block])].remove(block);
        }
        self.set_owner(frame, owner);
    }

    fn set_owner(&mut self, frame: usize, owner: Owner) {
        self.owners[frame] = owner.pack();
    }

    /// Sets the new owner of a frame in use, or of a whole huge page. For a huge page `owner` is
    /// that of its first frame; a [`Owner::Huge`] gets its tails.
    pub(crate) fn own(&mut self, address: u64, size: PageSize, owner: Owner) {
        let first = self.number(address);
        self.set_owner(first, owner);
        if size == PageSize::Huge {
            for i in 1..BLOCK {
                let step = i as u64 * FRAME_BYTES;
                let tail = match owner {
                    Owner::Huge { space, address } => {
                        Owner::HugeTail { space, address: address + step }
                    }
                    Owner::Destination { space, address } => {
                        Owner::Destination { space, address: address + step }
                    }
                    Owner::Base { space, address } => {
                        Owner::Base { space, address: address + step }
                    }
                    other => other,
                };
                self.set_owner(first + i, tail);
            }
        }
    }

    /// Gives a frame or a block back.
    pub(crate) fn give_back(&mut self, address: u64, size: PageSize) {
        let first = self.number(address);
        match size {
            PageSize::Base => self.free_one(first),
            PageSize::Huge => (first..first + BLOCK).for_each(|f| self.free_one(f)),
        }
    }

    fn free_one(&mut self, frame: usize) {
        let block = frame / BLOCK;
        let bit = 1u64 << (frame % 64);
        assert!(self.used[frame / 64] & bit != 0, "frame {frame} is freed twice");
        self.used[frame / 64] &= !bit;
        self.free += 1;
        self.set_owner(frame, Owner::Free);
        let kind = usize::from(self.unmovable[block]);
        if usize::from(self.used_in_block[block]) == BLOCK {
            self.partial[kind].insert(block);
        }
        self.used_in_block[block] -= 1;
        if self.used_in_block[block] == 0 {
            self.partial[kind].remove(block);
            self.free_blocks.insert(block);
        }
    }

    /// Frames in use from this address on, with their owners, ascending. A free block is skipped in
    /// one step.
    pub(crate) fn in_use_from(&self, address: u64) -> impl Iterator<Item = (u64, Owner)> + '_ {
        let first = (address.saturating_sub(self.start) / FRAME_BYTES).min(self.frames) as usize;
        (first / BLOCK..self.used_in_block.len())
            .filter(|&block| self.used_in_block[block] > 0)
            .flat_map(move |block| {
                let end = ((block + 1) * BLOCK).min(self.frames as usize);
                (block * BLOCK).max(first)..end
            })
            .filter(|f| self.used[f / 64] >> (f % 64) & 1 != 0)
            .map(|f| (self.address(f), Owner::unpack(self.owners[f])))
    }

    /// Counts everything again and compares.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut used = 0u64;
        for (block, &count) in self.used_in_block.iter().enumerate() {
            let words = &self.used[block * WORDS..(block + 1) * WORDS];
            let bits: u32 = words.iter().map(|w| w.count_ones()).sum();
            if bits != u32::from(count) {
                return Err(format!("block {block} counts {count} frames in use, {bits} are"));
            }
            let kind = usize::from(self.unmovable[block]);
            let partial = count > 0 && usize::from(count) < BLOCK;
            if self.free_blocks.contains(block) != (count == 0)
                || self.partial[kind].contains(block) != partial
                || self.partial[1 - kind].contains(block)
            {
                return Err(format!(
                    "block {block} with {count} frames in use is in the wrong list"
                ));
            }
        }
        for frame in 0..self.frames as usize {
            let in_use = self.used[frame / 64] >> (frame % 64) & 1 != 0;
            let owner = Owner::unpack(self.owners[frame]);
            used += u64::from(in_use);
            if in_use == (owner == Owner::Free) {
                return Err(format!(
                    "frame {:#x} is {} but belongs to {owner:?}",
                    self.address(frame),
                    if in_use { "in use" } else { "free" }
                ));
            }
        }
        if used + self.free != self.frames {
            return Err(format!(
                "{used} frames in use and {} free are not {}",
                self.free, self.frames
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Owner = Owner::Base { space: SpaceId(1), address: 0x1000 };
    const TABLE: Owner = Owner::Table { space: SpaceId(1), address: 0, level: 0 };

    fn node(bytes: u64) -> Frames {
        Frames::new(PhysicalAddress(1 << 30), bytes)
    }

    #[test]
    fn owners_survive_packing() {
        let (space, address) = (SpaceId(MAX_SPACES - 1), 0xFF_FFFF_FFE0_0000);
        for owner in [
            Owner::Free,
            Owner::Base { space, address: address + 0x1000 },
            Owner::Huge { space, address },
            Owner::HugeTail { space, address: address + 0x3000 },
            Owner::Table { space, address, level: 4 },
            Owner::Table { space, address, level: 0 },
            Owner::Deposit { space },
            Owner::Destination { space, address },
            Owner::Cache,
            Owner::Reserved,
        ] {
            assert_eq!(Owner::unpack(owner.pack()), owner);
        }
    }

    #[test]
    fn one_frame_in_use_spoils_a_block_for_huge_pages() {
        let mut n = node(4 << 20);
        let base = n.take(PageSize::Base, DATA).unwrap();
        assert_eq!(n.free_huge(), 1);
        assert!(n.take(PageSize::Huge, DATA).is_some());
        assert_eq!(n.take(PageSize::Huge, DATA), None);
        n.give_back(base, PageSize::Base);
        assert_eq!(n.take(PageSize::Huge, DATA), Some(1 << 30));
        assert_eq!(n.free(), 0);
        n.check().unwrap();
    }

    #[test]
    fn tables_keep_out_of_the_blocks_of_data_until_there_is_no_other() {
        let mut n = node(4 << 20);
        let data = n.take(PageSize::Base, DATA).unwrap();
        let table = n.take(PageSize::Base, TABLE).unwrap();
        assert_eq!(table - data, 2 << 20);
        for _ in 0..511 {
            assert!(n.take(PageSize::Base, DATA).unwrap() < table);
        }
        assert_eq!(n.take(PageSize::Base, DATA), Some(table + 4096));
        n.check().unwrap();
    }

    #[test]
    fn a_last_block_that_is_not_whole_ends_where_memory_ends() {
        let mut n = node((2 << 20) + 3 * 4096);
        assert_eq!(n.free_huge(), 1);
        for _ in 0..515 {
            n.take(PageSize::Base, DATA).unwrap();
        }
        assert_eq!(n.take(PageSize::Base, DATA), None);
        n.check().unwrap();
    }
}

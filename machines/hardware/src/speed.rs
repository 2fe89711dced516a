//! The speed of the model: whole machines on synthetic references, to be timed by the caller.
//!
//! Setting up is separate from running, so that a benchmark times references only. `cargo run
//! --release -p terrace-hardware --example speed` prints the figures.

use terrace_core::page::PageSize;

use crate::address::{Kind, PhysicalAddress, VirtualAddress};
use crate::cpu::Dependence;
use crate::error::ConfigError;
use crate::node::{Node, Reference};
use crate::presets::MachineConfig;
use crate::random::Random;
use crate::tier::memory::TieredMemory;
use crate::walker::{Leaf, MAX_LEVELS, PageTable, Path};

/// A page table over a contiguous range of virtual addresses from 0, its data pages placed in the
/// tiers in turn, its own pages at the end of the first tier.
#[derive(Debug, Clone)]
pub struct FlatTable {
    /// Frame of each page; bit 0 is its accessed bit, bit 1 its dirty bit.
    frames: Vec<u64>,
    page_size: PageSize,
    tables_at: u64,
}

const ACCESSED: u64 = 1;
const DIRTY: u64 = 2;

impl FlatTable {
    /// Maps `size_bytes`; pages go to each tier in turn, from its first address in `starts` on.
    /// `tables_at` is the first address of the page-table pages.
    pub fn new(
        size_bytes: u64,
        page_size: PageSize,
        starts: &[PhysicalAddress],
        tables_at: PhysicalAddress,
    ) -> Self {
        let pages = size_bytes.div_ceil(page_size.bytes());
        let tiers = starts.len() as u64;
        let frames = (0..pages)
            .map(|page| starts[(page % tiers) as usize].0 + page / tiers * page_size.bytes())
            .collect();
        FlatTable { frames, page_size, tables_at: tables_at.0 }
    }

    /// Pages with their accessed bit set.
    pub fn accessed(&self) -> usize {
        self.frames.iter().filter(|&&f| f & ACCESSED != 0).count()
    }

    /// Pages with their dirty bit set.
    pub fn dirty(&self) -> usize {
        self.frames.iter().filter(|&&f| f & DIRTY != 0).count()
    }

    /// Clears every accessed bit.
    pub fn clear_accessed(&mut self) {
        self.frames.iter_mut().for_each(|f| *f &= !ACCESSED);
    }
}

impl PageTable for FlatTable {
    #[inline]
    fn path(&self, address: VirtualAddress) -> Path {
        let mut tables = [PhysicalAddress(0); MAX_LEVELS];
        let mut first = self.tables_at;
        for (level, table) in tables.iter_mut().enumerate() {
            let number = address.0 >> (21 + 9 * level);
            *table = PhysicalAddress(first + (number << 12));
            // Room for a terabyte's tables of this level.
            first += (1u64 << 40 >> (21 + 9 * level)).max(1) << 12;
        }
        let page = (address.0 / self.page_size.bytes()) as usize;
        let leaf = self.frames.get(page).map(|&f| Leaf {
            frame: PhysicalAddress(f & !(ACCESSED | DIRTY)),
            size: self.page_size,
            accessed: f & ACCESSED != 0,
            dirty: f & DIRTY != 0,
        });
        let lowest = usize::from(self.page_size == PageSize::Huge);
        Path { tables, lowest, leaf }
    }

    fn set_bits(&mut self, address: VirtualAddress, dirty: bool) {
        let page = (address.0 / self.page_size.bytes()) as usize;
        if let Some(frame) = self.frames.get_mut(page) {
            *frame |= ACCESSED | if dirty { DIRTY } else { 0 };
        }
    }
}

/// A machine with a page table, ready for references.
#[derive(Debug, Clone)]
pub struct Workbench {
    /// The processor.
    pub node: Node,
    /// Its tiers.
    pub memory: TieredMemory,
    /// The page table.
    pub table: FlatTable,
    random: Random,
    footprint: u64,
    position: u64,
}

impl Workbench {
    /// A machine with `footprint_bytes` mapped, half of them in each of the first two tiers.
    pub fn new(
        machine: &MachineConfig,
        footprint_bytes: u64,
        page_size: PageSize,
    ) -> Result<Self, ConfigError> {
        let memory = TieredMemory::new(&machine.tiers)?;
        let tiers = memory.tiers().len().min(2);
        let starts: Vec<_> = (0..tiers).map(|t| memory.start(t)).collect();
        let tables_at = PhysicalAddress(footprint_bytes.next_power_of_two());
        Ok(Workbench {
            node: Node::new(&machine.node)?,
            table: FlatTable::new(footprint_bytes, page_size, &starts, tables_at),
            memory,
            random: Random::new(42),
            footprint: footprint_bytes,
            position: 0,
        })
    }

    fn give(&mut self, address: u64, kind: Kind) {
        let reference = Reference {
            address: VirtualAddress(address),
            size: 8,
            kind,
            instructions: 3,
            dependence: Dependence::None,
        };
        // The footprint is mapped as a whole: there are no faults.
        let _ = self.node.reference(0, &reference, &mut self.table, &mut self.memory);
    }

    /// References like those of a program with good locality: two of three to a stack of 4 KB, the
    /// third walking through 256 KB, a quarter of all stores.
    pub fn friendly(&mut self, references: u64) {
        for n in 0..references {
            let kind = if n & 3 == 0 { Kind::Write } else { Kind::Read };
            if n % 3 == 0 {
                self.position = (self.position + 8) & ((256 << 10) - 1);
                self.give(4096 + self.position, kind);
            } else {
                self.give((n.wrapping_mul(0x9E37_79B9) >> 8) & 0xFF8, kind);
            }
        }
    }

    /// References to any 8 bytes of the footprint, a quarter of them stores.
    pub fn random(&mut self, references: u64) {
        for n in 0..references {
            let kind = if n & 3 == 0 { Kind::Write } else { Kind::Read };
            let address = self.random.below(self.footprint / 8) * 8;
            self.give(address, kind);
        }
    }

    /// One line after the other through the whole footprint.
    pub fn stream(&mut self, references: u64) {
        for _ in 0..references {
            self.position = (self.position + 8) % self.footprint;
            self.give(self.position, Kind::Read);
        }
    }
}

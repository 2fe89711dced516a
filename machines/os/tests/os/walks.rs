//! A real walker with its caches over the model: its table is valid at every moment, whatever
//! moves, as long as the machine obeys the shootdowns (R4); and only the walker sets bits.

use std::collections::BTreeMap;

use terrace_core::page::{PageSize, SpaceId};
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::random::Random;
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::{PageTable, WalkMemory, Walker, WalkerConfig};
use terrace_os::config::{DataPolicy, HugePages, TablePlacement, TablePolicy};
use terrace_os::frames::Owner;
use terrace_os::shootdown::Shootdown;
use terrace_os::tables::TableMoveId;
use terrace_os::{Node, Os, ProcessSpec};

use crate::world::{MIB, PAGE, os, range};

/// Every entry that a walk reads must be in a page-table page of that level.
struct Memory<'a> {
    os: &'a Os,
    wrong: u64,
}

impl WalkMemory for Memory<'_> {
    fn walk_access(
        &mut self,
        now: Picoseconds,
        level: usize,
        entry: PhysicalAddress,
        _: bool,
    ) -> Picoseconds {
        let owner = self.os.owner(PhysicalAddress(entry.0 & !(PAGE - 1)));
        let right = matches!(owner, Owner::Table { level: l, .. } if l == level);
        self.wrong += u64::from(!right);
        now + Picoseconds(1)
    }
}

struct Machine {
    os: Os,
    walker: Walker,
    space: SpaceId,
    flushes: bool,
    wrong: u64,
}

impl Machine {
    fn access(&mut self, address: u64, write: bool) {
        for _ in 0..2 {
            let mut memory = Memory { os: &self.os, wrong: 0 };
            let table = self.os.space(self.space);
            let now = Picoseconds(0);
            let walk = self.walker.walk(now, VirtualAddress(address), write, table, &mut memory);
            self.wrong += memory.wrong;
            match walk {
                Ok(walk) => {
                    if walk.set_accessed || walk.set_dirty {
                        self.os.space_mut(self.space).set_bits(VirtualAddress(address), write);
                    }
                    return;
                }
                Err(fault) => {
                    self.os.fault(self.space, &fault).unwrap();
                }
            }
        }
    }

    fn shoot(&mut self, shootdown: &Shootdown) {
        // `invlpg` and a write to `cr3` both drop all paging-structure entries.
        if self.flushes {
            assert!(shootdown.full || shootdown.invalidations > 0);
            self.walker.flush();
        }
    }

    /// A run of touching, promoting and demoting, unmapping, splitting and collapsing. Returns the
    /// walks that were sent to a page-table page that was not there, and the entries read
    /// elsewhere.
    fn live(mut self, steps: u64) -> (u64, u64, Os) {
        let mut random = Random::new(11);
        let mut tables: Vec<TableMoveId> = Vec::new();
        // Huge pages at the bottom; above, many tables with few pages each, which come and go.
        const DENSE: u64 = 8 * MIB;
        const FEW: u64 = 12 * PAGE;
        self.os.map(self.space, 0, DENSE, true).unwrap();
        for region in 0..48 {
            self.os.map(self.space, DENSE + region * 2 * MIB, FEW, true).unwrap();
        }
        for _ in 0..steps {
            let (address, size_bytes) = if random.below(3) == 0 {
                (random.below(DENSE / PAGE) * PAGE, (1 + random.below(64)) * PAGE)
            } else {
                let start = DENSE + random.below(48) * 2 * MIB;
                (start + random.below(FEW / PAGE) * PAGE, FEW)
            };
            let target = range(self.space, address, size_bytes);
            match random.below(100) {
                0..4 => {
                    let to = Node(random.below(2) as u8);
                    let begun = self.os.begin_move(&[target], to);
                    begun.shootdowns.iter().for_each(|s| self.shoot(s));
                    if begun.pages > 0 {
                        let done = self.os.finish_move(begun.id);
                        tables.extend(done.table_moves.iter().map(|t| t.id));
                    }
                }
                4..6 => {
                    // All pages of a sparse table, from its first.
                    let start = if address < DENSE { address } else { address & !(2 * MIB - 1) };
                    let unmapped = self.os.unmap(self.space, start, size_bytes).unwrap();
                    unmapped.shootdown.iter().for_each(|s| self.shoot(s));
                    for page in 0..size_bytes / PAGE {
                        // Where neighbours may still be mapped, page by page.
                        let _ = self.os.map(self.space, start + page * PAGE, PAGE, true);
                    }
                }
                6 => {
                    let round = self.os.collapse(self.space, address & !(2 * MIB - 1), 1);
                    round.collapsed.iter().for_each(|c| self.shoot(&c.shootdown));
                }
                7..10 => {
                    self.os.scan_accessed(self.space, PageSize::Base, true);
                }
                10..12 => {
                    if let Some(id) = tables.pop()
                        && let Some(moved) = self.os.finish_table_move(id)
                    {
                        self.shoot(&moved.shootdown);
                    }
                }
                _ => self.access(address, random.below(2) > 0),
            }
        }
        self.os.check().unwrap();
        (self.walker.counts().stale, self.wrong, self.os)
    }
}

fn machine(flushes: bool) -> Machine {
    let mut os = os(8 * MIB, 32 * MIB, HugePages::Eligible);
    let tables = TablePolicy { placement: TablePlacement::FollowData, migrate: true, hard: false };
    let data = DataPolicy::Interleave;
    let space = os.create_process(ProcessSpec { data, tables, ..Default::default() }).unwrap();
    let walker = Walker::new(&WalkerConfig::default()).unwrap();
    Machine { os, walker, space, flushes, wrong: 0 }
}

#[test]
fn the_walker_never_meets_a_table_that_is_not_there() {
    let (stale, wrong, os) = machine(true).live(30_000);
    assert_eq!((stale, wrong), (0, 0));
    let c = os.counters();
    assert!(c.table_moves.successful > 10, "{:?}", c.table_moves);
    assert!(c.splits > 0 && c.collapses > 0 && c.late_accessed > 0, "{c:?}");
}

#[test]
fn a_machine_that_does_not_flush_is_found_out() {
    let (stale, _, _) = machine(false).live(30_000);
    assert!(stale > 0);
}

#[test]
fn a_translation_that_stays_sets_no_bit() {
    // The model's side: a bit cleared by a scan is set again by the next walk, not before.
    let mut m = machine(true);
    m.os.map(m.space, 0, 16 * PAGE, false).unwrap();
    let mut tlb: BTreeMap<u64, ()> = BTreeMap::new();
    let mut use_page = |m: &mut Machine, page: u64| {
        if tlb.insert(page, ()).is_none() {
            m.access(page * PAGE, false);
        }
    };
    (0..16).for_each(|page| use_page(&mut m, page));
    let size = PageSize::Base;
    assert_eq!(m.os.scan_accessed(m.space, size, true).accessed.count(), 16);
    (0..16).for_each(|page| use_page(&mut m, page));
    assert_eq!(m.os.scan_accessed(m.space, size, true).accessed.count(), 0);
    m.access(3 * PAGE, false);
    let seen = m.os.scan_accessed(m.space, size, true).accessed;
    assert_eq!(seen.iter_ones().collect::<Vec<_>>(), [3]);
}

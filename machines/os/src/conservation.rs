//! Laws of conservation, checked over long random runs of several processes.
//!
//! The test world keeps its own record beside the operating system: for every page touched, the tag
//! that was written into it and the bits that walks have set; for every frame, the tag that it
//! contains, moved only by the copies that the operating system orders. After every so many steps
//! the record, the operating system and [`Os::check`]'s full recount must agree.
//!
//! The default is some 70,000 operations. A million and more: `TERRACE_OS_OPERATIONS=1000000 cargo
//! test -p terrace-os --release conservation`.

use std::collections::BTreeMap;

use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_core::plan::Exchange;
use terrace_hardware::address::{PhysicalAddress, VirtualAddress};
use terrace_hardware::random::Random;
use terrace_hardware::units::Picoseconds;
use terrace_hardware::walker::{Fault, PageTable};

use crate::config::{
    DataPolicy, HugePages, NodeMemory, ShootdownPer, TablePlacement, TablePolicy, Tier, Watermarks,
};
use crate::fault::FaultKind;
use crate::fault_injection::FaultInjection;
use crate::moves::{Copy, MoveId};
use crate::tables::{TableMove, TableMoveOrder};
use crate::{Node, Os, OsConfig, OsError, ProcessSpec};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Start addresses of mappings: three regions whose page tables share little.
const PLACES: [u64; 3] = [0, (1 << 30) - 2 * MIB, 1 << 39];
const PLACE_BYTES: u64 = 8 * MIB;

/// The world's record of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Known {
    tag: u64,
    accessed: bool,
    dirty: bool,
}

struct UnderWay {
    id: MoveId,
    copies: Vec<Copy>,
    swap: bool,
    copied: bool,
    /// Number of its pages, from the first, that are mapped before the rest.
    ended: usize,
}

struct World {
    os: Os,
    random: Random,
    alive: Vec<SpaceId>,
    /// By space and virtual page number.
    pages: BTreeMap<(SpaceId, u64), Known>,
    /// By frame number.
    contents: BTreeMap<u64, u64>,
    moves: Vec<UnderWay>,
    tables: Vec<TableMove>,
    next_tag: u64,
    /// Pages that were mapped before the rest of their batch.
    early: u64,
}

impl World {
    fn new(config: &OsConfig, seed: u64) -> World {
        let node = |tier, start: u64, mib: u64| NodeMemory {
            tier,
            start: PhysicalAddress(start),
            capacity_bytes: mib * MIB - 5 * PAGE,
        };
        // Two fast nodes and a slow one. Both tiers together are too small for all mappings, and in
        // every seventh world for those of one process.
        let mib = if seed % 7 == 6 { [2, 2, 4] } else { [6, 4, 24] };
        let nodes = [
            node(Tier::FAST, 0, mib[0]),
            node(Tier::FAST, 64 * MIB, mib[1]),
            node(Tier::SLOW, 1 << 40, mib[2]),
        ];
        World {
            os: Os::new(config, &nodes).unwrap(),
            random: Random::new(seed),
            alive: Vec::new(),
            pages: BTreeMap::new(),
            contents: BTreeMap::new(),
            moves: Vec::new(),
            tables: Vec::new(),
            next_tag: 1,
            early: 0,
        }
    }

    fn one_of<T: std::marker::Copy>(&mut self, from: &[T]) -> T {
        from[self.random.below(from.len() as u64) as usize]
    }

    fn address(&mut self) -> u64 {
        self.one_of(&PLACES) + self.random.below(PLACE_BYTES / PAGE) * PAGE
    }

    fn range(&mut self, space: SpaceId) -> VirtualRange {
        let start = self.address();
        let pages = 1 + self.random.below(self.one_of_lengths());
        VirtualRange { space, start, size_bytes: pages * PAGE }
    }

    fn one_of_lengths(&self) -> u64 {
        // Mostly short, sometimes several huge pages.
        [16, 64, 1200][(self.next_tag % 3) as usize]
    }

    fn node(&mut self) -> Node {
        Node(self.random.below(3) as u8)
    }

    fn spec(&mut self) -> ProcessSpec {
        let node = self.node();
        let data = self.one_of(&[
            DataPolicy::FastFirst,
            DataPolicy::Interleave,
            DataPolicy::FastFirst,
            DataPolicy::Bind(node),
        ]);
        let placement = self.one_of(&[
            TablePlacement::FollowData,
            TablePlacement::FirstTouch,
            TablePlacement::Interleave,
            TablePlacement::BindHighLevels,
            TablePlacement::BindAll,
        ]);
        let tables = TablePolicy {
            placement,
            migrate: self.random.below(3) > 0,
            hard: self.random.below(2) > 0,
        };
        let limit = self.random.below(8) * MIB;
        ProcessSpec { data, fast_limit_bytes: (limit > 0).then_some(limit), tables }
    }

    /// A page that was touched, near this one.
    fn touched_page(&mut self, space: SpaceId, address: u64) -> Option<(SpaceId, u64)> {
        let from = address / PAGE + self.random.below(512);
        let (&(space, page), _) = self.pages.range((space, from)..).next()?;
        Some((space, page * PAGE))
    }

    /// Drops the record of a process's pages in a range.
    fn forget(&mut self, space: SpaceId, range: std::ops::Range<u64>) {
        let gone: Vec<_> = self
            .pages
            .range((space, range.start / PAGE)..(space, range.end / PAGE))
            .map(|(k, _)| *k)
            .collect();
        gone.iter().for_each(|k| {
            self.pages.remove(k);
        });
    }

    fn bury(&mut self, space: SpaceId) {
        self.alive.retain(|s| *s != space);
        self.forget(space, 0..1 << 56);
    }

    fn settle(&mut self, result: Result<SpaceId, OsError>) {
        match result {
            Ok(space) => self.alive.push(space),
            Err(OsError::OutOfMemory { killed, .. }) => self.bury(killed),
            Err(other) => panic!("{other}"),
        }
    }

    fn step(&mut self) {
        if self.alive.is_empty() || (self.alive.len() < 4 && self.random.below(200) == 0) {
            let spec = self.spec();
            let created = self.os.create_process(spec);
            return self.settle(created);
        }
        let space = self.one_of(&self.alive.clone());
        match self.random.below(1000) {
            0..2 => {
                if self.os.exit(space).is_ok() {
                    self.bury(space);
                }
            }
            2..4 if self.alive.len() < 4 => {
                let child = self.os.fork(space);
                self.settle(child);
            }
            4..5 => match self.os.exec(space) {
                Ok(_) => self.forget(space, 0..1 << 56),
                Err(OsError::OutOfMemory { killed, .. }) => self.bury(killed),
                Err(other) => panic!("{other}"),
            },
            5..60 => {
                let range = self.range(space);
                let eligible = self.random.below(2) > 0;
                // Whole regions, so that huge pages fit; rejected where something is mapped.
                let start = range.start & !(2 * MIB - 1);
                let size = range.size_bytes.next_multiple_of(self.one_of(&[PAGE, 2 * MIB]));
                let _ = self.os.map(space, start, size, eligible);
            }
            60..75 => {
                let range = self.range(space);
                let unmapped = self.os.unmap(space, range.start, range.size_bytes).unwrap();
                self.forget(space, range.start..range.end());
                assert!(unmapped.shootdown.is_some() || unmapped.freed_bytes == 0);
            }
            75..110 => self.begin(space),
            110..130 => self.exchange(space),
            130..200 => self.advance(),
            200..215 => {
                let from = self.address();
                self.collapse(space, from);
            }
            215..220 => self.scan_accessed(space),
            220..222 => {
                let node = self.node();
                self.os.fill_page_cache(node, 64 * PAGE);
            }
            222..260 => {
                if let Some(table) = self.tables.pop() {
                    self.os.finish_table_move(table.id);
                }
            }
            260..400 => {
                // A moment when a table is between its copy and the switch.
                if let Some(table) = self.tables.last().copied()
                    && let Some((space, address)) = self.touched_page(table.space, table.address)
                {
                    self.touch(space, address);
                }
            }
            _ => {
                // Near each other, like a program's accesses.
                let base = self.address();
                for i in 0..4 {
                    self.touch(space, base + i * PAGE);
                }
            }
        }
    }

    fn touch(&mut self, space: SpaceId, address: u64) {
        let write = self.random.below(2) > 0;
        for _ in 0..2 {
            if !self.os.has_process(space) {
                return;
            }
            let path = self.os.space(space).path(VirtualAddress(address));
            if let Some(leaf) = path.leaf {
                self.os.space_mut(space).set_bits(VirtualAddress(address), write);
                let first = address & !(leaf.size.bytes() - 1);
                for i in 0..leaf.size.bytes() / PAGE {
                    let page = self.pages.get_mut(&(space, first / PAGE + i)).expect("touched");
                    page.accessed = true;
                    page.dirty |= write;
                }
                let offset = address - first;
                let frame = (leaf.frame.0 + offset) / PAGE;
                if write {
                    self.next_tag += 1;
                    self.contents.insert(frame, self.next_tag);
                    let page = self.pages.get_mut(&(space, address / PAGE)).expect("touched");
                    page.tag = self.next_tag;
                }
                return;
            }
            let level = path.lowest;
            let fault =
                Fault { address: VirtualAddress(address), write, done: Picoseconds(0), level };
            match self.os.fault(space, &fault) {
                Ok(outcome) => {
                    for z in &outcome.zeroed {
                        self.clear(z.start.0, z.bytes);
                    }
                    match outcome.kind {
                        FaultKind::Minor { size, .. } => {
                            let first = (address & !(size.bytes() - 1)) / PAGE;
                            for i in 0..size.bytes() / PAGE {
                                self.pages.insert((space, first + i), Known::default());
                            }
                        }
                        FaultKind::WaitFor(id) => {
                            assert!(self.moves.iter().any(|m| m.id == id));
                            return;
                        }
                        FaultKind::Spurious => panic!("the walk found nothing"),
                    }
                }
                Err(OsError::OutOfMemory { killed, .. }) => self.bury(killed),
                Err(OsError::Segfault { .. }) => return,
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn clear(&mut self, start: u64, bytes: u64) {
        for frame in start / PAGE..(start + bytes) / PAGE {
            self.contents.remove(&frame);
        }
    }

    fn copy(&mut self, copies: &[Copy], swap: bool) {
        for c in copies {
            for i in 0..c.bytes / PAGE {
                let (from, to) = (c.from.0 / PAGE + i, c.to.0 / PAGE + i);
                let (a, b) = (self.contents.remove(&from), self.contents.remove(&to));
                self.put(to, a);
                self.put(from, if swap { b } else { a });
            }
        }
    }

    fn put(&mut self, frame: u64, tag: Option<u64>) {
        if let Some(tag) = tag {
            self.contents.insert(frame, tag);
        }
    }

    fn begin(&mut self, space: SpaceId) {
        let count = 1 + self.random.below(3);
        let operations: Vec<_> = (0..count).map(|_| self.range(space)).collect();
        let to = self.node();
        let begun = self.os.begin_move(&operations, to);
        assert_eq!(begun.copies.len() as u64, begun.pages);
        if begun.pages > 0 {
            let (id, copies) = (begun.id, begun.copies);
            self.moves.push(UnderWay { id, copies, swap: false, copied: false, ended: 0 });
        }
    }

    fn exchange(&mut self, space: SpaceId) {
        let other = self.one_of(&self.alive.clone());
        let (a, b) = (self.address(), self.address());
        let (Some(a), Some(b)) = (self.touched_page(space, a), self.touched_page(other, b)) else {
            return;
        };
        let is_fast = |world: &World, (space, address): (SpaceId, u64)| {
            let leaf = world.os.space(space).path(VirtualAddress(address)).leaf;
            leaf.is_some_and(|l| world.os.memory.is_fast(l.frame.0))
        };
        // Mostly in the useful direction.
        let (a, b) = if is_fast(self, a) && !is_fast(self, b) { (b, a) } else { (a, b) };
        let huge = self.random.below(2) > 0;
        let size_bytes = if huge { 2 * MIB } else { (1 + self.random.below(4)) * PAGE };
        let align = |(space, address): (SpaceId, u64)| VirtualRange {
            space,
            start: if huge { address & !(2 * MIB - 1) } else { address },
            size_bytes,
        };
        let (up, down) = (align(a), align(b));
        let begun = self.os.begin_exchange(&[Exchange { up, down }]);
        if begun.pairs > 0 {
            let (id, copies) = (begun.id, begun.swaps);
            self.moves.push(UnderWay { id, copies, swap: true, copied: false, ended: 0 });
        }
    }

    /// Copies a move under way, or ends it.
    fn advance(&mut self) {
        if self.moves.is_empty() {
            return;
        }
        let number = self.random.below(self.moves.len() as u64) as usize;
        if !self.moves[number].copied {
            // An aborted move leaves everything where it was.
            if self.random.below(5) == 0 {
                let gone = self.moves.remove(number);
                self.os.abort_move(gone.id);
                return;
            }
            let (copies, swap) = (self.moves[number].copies.clone(), self.moves[number].swap);
            let (id, place) = (self.moves[number].id, self.moves[number].ended);
            if !swap && place < copies.len() && self.random.below(2) == 0 {
                self.copy(&copies[place..=place], false);
                let done = self.os.finish_page(id, place);
                self.early += done.pages;
                self.tables.extend(done.table_moves);
                self.moves[number].ended += 1;
                return;
            }
            self.copy(&copies[place..], swap);
            self.moves[number].copied = true;
            return;
        }
        let arrived = self.moves.remove(number);
        let done = self.os.finish_move(arrived.id);
        self.tables.extend(done.table_moves);
    }

    fn collapse(&mut self, space: SpaceId, from: u64) {
        let round = self.os.collapse(space, from, 2);
        for c in round.collapsed {
            let to = self.os.space(space).path(VirtualAddress(c.address)).leaf.unwrap().frame.0;
            self.clear(to, PageSize::Huge.bytes());
            self.copy(&c.copies, false);
            let first = c.address / PAGE;
            let was: Vec<Known> = (0..512)
                .map(|i| self.pages.get(&(space, first + i)).copied().unwrap_or_default())
                .collect();
            let dirty = was.iter().any(|k| k.dirty);
            for (i, k) in was.iter().enumerate() {
                let known = Known { tag: k.tag, accessed: true, dirty };
                self.pages.insert((space, first + i as u64), known);
            }
        }
    }

    fn scan_accessed(&mut self, space: SpaceId) {
        let size = self.one_of(&[PageSize::Base, PageSize::Huge]);
        let moving = |world: &World, address| {
            world.os.space(space).path(VirtualAddress(address)).leaf.is_none()
        };
        let mapped = self.pages.range((space, 0)..(space, u64::MAX)).count() as u64 * PAGE;
        let accessed_scan = self.os.scan_accessed(space, size, true);
        let layout = &accessed_scan.layout;
        assert_eq!(layout.pages() as u64 * size.bytes() + accessed_scan.untracked_bytes, mapped);
        for index in 0..layout.pages() {
            let (_, address) = layout.address(index);
            let first = address / PAGE;
            let known = self.pages[&(space, first)];
            let waits = moving(self, address);
            assert_eq!(accessed_scan.accessed.get(index), known.accessed && !waits, "{address:#x}");
            if !waits {
                for i in 0..size.bytes() / PAGE {
                    self.pages.get_mut(&(space, first + i)).unwrap().accessed = false;
                }
            }
        }
    }

    /// Checks that the records agree.
    fn check(&self) -> Result<(), String> {
        self.os.check()?;
        let mut present = 0;
        for (&(space, page), known) in &self.pages {
            let path = self.os.space(space).path(VirtualAddress(page * PAGE));
            let Some(leaf) = path.leaf else { continue };
            present += 1;
            let first = (page * PAGE) & !(leaf.size.bytes() - 1);
            let frame = (leaf.frame.0 + page * PAGE - first) / PAGE;
            let tag = self.contents.get(&frame).copied().unwrap_or(0);
            let found = Known { tag, accessed: leaf.accessed, dirty: leaf.dirty };
            if found != *known {
                return Err(format!("page {page:#x} of {space:?} has {found:?}, not {known:?}"));
            }
        }
        let mut data = 0;
        for space in &self.alive {
            data += self.os.data_bytes(*space).iter().sum::<u64>() / PAGE;
        }
        if data != self.pages.len() as u64 {
            return Err(format!("{data} pages of data, {} were touched", self.pages.len()));
        }
        assert!(present <= data);
        Ok(())
    }

    fn live(&mut self, operations: u64, check_every: u64) -> Result<(), String> {
        for n in 0..operations {
            self.step();
            if n % check_every == 0 {
                self.check().map_err(|e| format!("after {n} operations: {e}"))?;
            }
        }
        self.check()
    }
}

fn config(number: u64) -> OsConfig {
    let mut config = OsConfig {
        levels: 4 + (number % 2) as u32,
        huge_pages: [HugePages::Eligible, HugePages::Always, HugePages::Never][number as usize % 3],
        ..OsConfig::default()
    };
    if number.is_multiple_of(2) {
        config.watermarks = vec![Watermarks::NONE, Watermarks::NONE];
    }
    let m = &mut config.migration;
    m.shootdown_per =
        [ShootdownPer::Operation, ShootdownPer::Batch, ShootdownPer::Page][number as usize % 3];
    m.split_huge_first = number % 5 == 4;
    config
}

fn operations() -> u64 {
    std::env::var("TERRACE_OS_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(70_000)
}

#[test]
fn nothing_is_lost_or_doubled_over_long_random_lives() {
    let worlds = 7;
    let mut total = crate::counters::Counters::default();
    let mut early = 0;
    for number in 0..worlds {
        let mut world = World::new(&config(number), number);
        let lived = world.live(operations() / worlds, 50);
        lived.unwrap_or_else(|e| panic!("world {number}: {e}"));
        early += world.early;
        let c = world.os.counters();
        total.migrated_bytes += c.migrated_bytes;
        total.wasted_copy_bytes += c.wasted_copy_bytes;
        total.exchanged_pairs += c.exchanged_pairs;
        total.splits += c.splits;
        total.collapses += c.collapses;
        total.oom_kills += c.oom_kills;
        total.reclaimed_frames += c.reclaimed_frames + c.background_reclaimed_frames;
        total.huge_faults += c.huge_faults;
        total.late_accessed += c.late_accessed;
        total.late_dirty += c.late_dirty;
        let (t, w) = (&mut total.table_moves, c.table_moves);
        t.successful += w.successful;
        t.already_there += w.already_there;
        t.within_tier += w.within_tier;
        t.maps_fast += w.maps_fast;
        t.lock_contended += w.lock_contended;
        assert_eq!(c.lost_accessed + c.lost_dirty, 0);
    }
    // The runs were complete: every kind of event happened.
    for (what, count) in [
        ("migrated", total.migrated_bytes),
        ("mapped before the rest", early),
        ("wasted", total.wasted_copy_bytes),
        ("exchanged", total.exchanged_pairs),
        ("split", total.splits),
        ("collapsed", total.collapses),
        ("killed", total.oom_kills),
        ("reclaimed", total.reclaimed_frames),
        ("huge", total.huge_faults),
        ("late accessed", total.late_accessed),
        ("late dirty", total.late_dirty),
        ("tables moved", total.table_moves.successful),
        ("tables there", total.table_moves.already_there),
        ("tables within tier", total.table_moves.within_tier),
        ("tables mapping fast pages", total.table_moves.maps_fast),
        ("tables contended", total.table_moves.lock_contended),
    ] {
        assert!(count > 0, "nothing was {what}: {total:?}");
    }
}

/// Whether a world with this mistake is found out within a short run.
fn is_found(fault_injection: FaultInjection) -> bool {
    (0..6).any(|number| {
        let mut world = World::new(&config(number), number);
        world.os.fault_injection = Some(fault_injection);
        // Some mistakes trip an assertion before the recount finds them.
        let life = std::panic::AssertUnwindSafe(|| world.live(5_000, 20));
        std::panic::catch_unwind(life).map_or(true, |lived| lived.is_err())
    })
}

#[test]
fn every_mistake_put_in_on_purpose_is_found() {
    let missed: Vec<_> = [
        FaultInjection::LeaksOldFrame,
        FaultInjection::MapsOldFrame,
        FaultInjection::GivesFrameTwice,
        FaultInjection::CopiesUncounted,
        FaultInjection::SetsAccessedItself,
        FaultInjection::LosesDirty,
        FaultInjection::MiscountsTables,
        FaultInjection::ForgetsFastPages,
        FaultInjection::ForgetsMovingPages,
        FaultInjection::ExchangesOneWay,
    ]
    .into_iter()
    .filter(|&s| !is_found(s))
    .collect();
    assert_eq!(missed, []);
}

#[test]
fn the_order_that_algorithm_1_prints_loses_bits_that_walks_set() {
    let lives = (0..6).map(|number| {
        let mut config = config(number);
        config.migration.table_move_order = TableMoveOrder::AsPrinted;
        let mut world = World::new(&config, number);
        let lived = world.live(5_000, 20);
        let c = world.os.counters();
        (lived.is_err(), c.lost_accessed + c.lost_dirty > 0)
    });
    let lives: Vec<_> = lives.collect();
    assert!(lives.iter().any(|l| l.0 && l.1), "{lives:?}");
}

//! What the operating system reports to a tracker: accessed bits and frames, in virtual order and
//! in physical order.
//!
//! Accessed bits have their true weakness: only a walk sets one. A page whose translation stays in
//! a TLB looks idle after its bit was cleared, until [`Os::flush`] or an eviction drops the
//! translation.

use std::sync::Arc;

use terrace_core::bits::PageBits;
use terrace_core::page::{Extent, Layout, PageSize, SpaceId, VirtualRange};
use terrace_hardware::address::PhysicalAddress;
use terrace_hardware::units::Picoseconds;

use crate::config::Node;
use crate::entry::Entry;
use crate::frames::{FRAMES_PER_HUGE, Owner};
use crate::os::{Os, Process};
use crate::shootdown::Shootdown;
use crate::space::At;

/// The accessed bits of one process.
#[derive(Debug, Clone)]
pub struct AccessedScan {
    /// The process's pages of the size asked for. The same `Arc` as before while nothing was
    /// mapped, unmapped, split or collapsed.
    pub layout: Arc<Layout>,
    /// By page: its accessed bit was set. Not for a page under migration: its bit is kept for
    /// later.
    pub accessed: PageBits,
    /// By page: it is in the fastest tier, or is moving there.
    pub fast: PageBits,
    /// Bytes of memory in pages of the other size.
    pub untracked_bytes: u64,
    /// Processor time of the scan.
    pub cost: Picoseconds,
}

/// The layout of a process's pages of one size, and the state that it was made from.
#[derive(Debug, Clone)]
pub(crate) struct CachedLayout {
    generation: u64,
    layout: Arc<Layout>,
}

impl Os {
    /// Reads the accessed bits of every mapped page of this size, and clears those that are set
    /// if `clear`. Translations in TLBs stay.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn scan_accessed(&mut self, id: SpaceId, size: PageSize, clear: bool) -> AccessedScan {
        let mut process = self.processes[id.0 as usize].take().expect("a process that lives");
        let layout = layout(&mut process, size);
        let mut accessed = PageBits::new(layout.pages());
        let mut fast = PageBits::new(layout.pages());
        let mut untracked_bytes = 0;
        let mut set = Vec::new();
        let mut page = 0;
        let mut entries = 0u64;
        each_page(&process, |_, this, at, entry| {
            entries += 1;
            if this != size {
                untracked_bytes += this.bytes();
                return;
            }
            if entry.is_present() && entry.is_accessed() {
                accessed.set(page, true);
                set.push(at);
            }
            if self.memory.is_fast(self.place(entry)) {
                fast.set(page, true);
            }
            page += 1;
        });
        if clear {
            for at in set {
                process.space.clear_accessed(at);
            }
        }
        self.processes[id.0 as usize] = Some(process);
        self.counters.scanned_entries += entries;
        let cost = Picoseconds(self.costs.scan_entry_ps * entries);
        AccessedScan { layout, accessed, fast, untracked_bytes, cost }
    }

    /// The frame of each page of [`Os::scan_accessed`]'s layout, as its physical address over the
    /// page size; for a page under migration, the destination frame.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn frame_numbers(&self, id: SpaceId, size: PageSize) -> Vec<u64> {
        let process = self.process(id).expect("a process that lives");
        let mut frames = Vec::new();
        each_page(process, |_, this, _, entry| {
            if this == size {
                frames.push(self.place(entry) / size.bytes());
            }
        });
        frames
    }

    /// The frame of a leaf, or the destination of a page under migration.
    fn place(&self, entry: Entry) -> u64 {
        if entry.is_present() {
            return entry.frame();
        }
        let (id, place) = entry.migration_target();
        self.moves[&id].pages[place].to
    }

    /// Reads the accessed bits of a range, and clears those that are set if `clear`: the scan of a
    /// part (granularity paper, section 4). Calls `visit` with address, size, node and bit of each
    /// page that is present and not under migration. Returns the processor time.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn scan_range(
        &mut self,
        range: &VirtualRange,
        clear: bool,
        mut visit: impl FnMut(u64, PageSize, Node, bool),
    ) -> Picoseconds {
        let mut process = self.processes[range.space.0 as usize].take().expect("it lives");
        let mut set = Vec::new();
        let mut entries = 0;
        process.space.for_each_leaf(range.start, range.end(), |address, size, at, entry| {
            entries += 1;
            if entry.is_present() {
                let node = Node(self.memory.node_of(entry.frame()) as u8);
                visit(address, size, node, entry.is_accessed());
                if entry.is_accessed() {
                    set.push(at);
                }
            }
        });
        if clear {
            for at in set {
                process.space.clear_accessed(at);
            }
        }
        self.processes[range.space.0 as usize] = Some(process);
        self.counters.scanned_entries += entries;
        Picoseconds(self.costs.scan_entry_ps * entries)
    }

    /// Drops every translation of a process, so that the next use of each page walks and sets its
    /// bit.
    pub fn flush(&mut self, id: SpaceId) -> Shootdown {
        let pages = u64::from(self.config.migration.single_invalidations) + 1;
        self.shootdown(id, Vec::new(), pages, true)
    }

    /// The pages of data of a node in physical order: frame, space and virtual address of each base
    /// page, and of the first frame of each huge page. From `from` on, or from the node's first
    /// frame. A scan of physical memory uses this reverse map, and the granularity paper's scans
    /// begin there (sections 4 and 5, "Baseline").
    pub fn physical_order(
        &self,
        node: Node,
        from: Option<PhysicalAddress>,
    ) -> impl Iterator<Item = (PhysicalAddress, SpaceId, u64, PageSize)> + '_ {
        let frames = &self.memory.nodes[node.index()].frames;
        frames.in_use_from(from.map_or(0, |a| a.0)).filter_map(|(frame, owner)| match owner {
            Owner::Base { space, address } => {
                Some((PhysicalAddress(frame), space, address, PageSize::Base))
            }
            Owner::Huge { space, address } => {
                Some((PhysicalAddress(frame), space, address, PageSize::Huge))
            }
            _ => None,
        })
    }

    /// Takes one frame that can never move out of each of so many free 2 MB blocks of a node, as
    /// long use does: no huge page fits there afterwards. Returns the number of blocks.
    pub fn fragment(&mut self, node: Node, blocks: u64) -> u64 {
        let frames = &mut self.memory.nodes[node.index()].frames;
        let blocks = blocks.min(frames.free_huge());
        for _ in 0..blocks {
            let block = frames.take(PageSize::Huge, Owner::Reserved).expect("a free block");
            for i in 1..FRAMES_PER_HUGE {
                frames.give_back(block + i * PageSize::Base.bytes(), PageSize::Base);
            }
        }
        blocks
    }
}

/// Visits every page of a process, ascending.
fn each_page(process: &Process, mut visit: impl FnMut(u64, PageSize, At, Entry)) {
    for m in &process.space.mappings {
        process.space.for_each_leaf(m.start, m.end, &mut visit);
    }
}

/// The layout of the pages of one size; the cached one if nothing has changed.
fn layout(process: &mut Process, size: PageSize) -> Arc<Layout> {
    let slot = usize::from(size == PageSize::Huge);
    let generation = process.space.generation;
    if let Some(cached) = &process.layouts[slot]
        && cached.generation == generation
    {
        return cached.layout.clone();
    }
    let mut extents: Vec<Extent> = Vec::new();
    let space = process.space.id();
    each_page(process, |address, this, _, _| {
        if this != size {
            return;
        }
        match extents.last_mut() {
            Some(e) if e.start + e.pages * size.bytes() == address => e.pages += 1,
            _ => extents.push(Extent { space, start: address, pages: 1 }),
        }
    });
    let layout = Layout::new(size, extents).expect("pages in ascending order are a layout");
    // The change may have been to pages of the other size.
    let layout = match process.layouts[slot].take() {
        Some(cached) if *cached.layout == layout => cached.layout,
        _ => Arc::new(layout),
    };
    process.layouts[slot] = Some(CachedLayout { generation, layout: layout.clone() });
    layout
}

//! Recounts everything from the page tables up and compares it with the counts kept: the laws of
//! conservation that the tests hold the model to.

use std::collections::BTreeMap;

use terrace_core::page::{PageSize, SpaceId};
use terrace_hardware::walker::MAX_LEVELS;

use crate::entry::Entry;
use crate::frames::{FRAME_BYTES, FRAMES_PER_HUGE, Owner};
use crate::os::{Os, Process};
use crate::space::{At, ENTRIES, ROOT};

/// Findings of a recount.
struct Recount<'a> {
    os: &'a Os,
    /// Frames in use that have been explained, by node.
    explained: Vec<u64>,
    /// Pages of moves under way whose migration entry was found, by move.
    entries: BTreeMap<u32, u64>,
}

impl Os {
    /// Checks that no frame is in two places, that used and free frames make up each node, that
    /// every count equals a full recount, that reverse map and page tables agree, and that the
    /// bytes copied are the bytes migrated. Linear in everything; for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut recount =
            Recount { os: self, explained: vec![0; self.nodes()], entries: BTreeMap::new() };
        for (number, node) in self.memory.nodes.iter().enumerate() {
            node.frames.check().map_err(|e| format!("node {number}: {e}"))?;
        }
        let mut group_frames = vec![0; self.groups.len()];
        for process in self.processes.iter().flatten() {
            let space = process.space.id();
            recount.process(process).map_err(|e| format!("process {}: {e}", space.0))?;
            for (node, frames) in process.data_frames.iter().enumerate() {
                if self.memory.is_fast_node(node) {
                    group_frames[process.group] += frames;
                }
            }
        }
        for (number, group) in self.groups.iter().enumerate() {
            if group.fast_frames != group_frames[number] {
                return Err(format!(
                    "group {number} counts {} fast frames, its processes {}",
                    group.fast_frames, group_frames[number]
                ));
            }
        }
        recount.moves()?;
        for pending in self.table_moves.values() {
            let process = self.process(pending.space).map_err(|e| e.to_string())?;
            let t = process.space.tables[pending.table];
            let owner = Owner::Table { space: pending.space, address: t.address, level: 0 };
            recount.frame(pending.to, owner)?;
        }
        recount.frames()
    }
}

impl Recount<'_> {
    /// Checks that the frame belongs to `owner`, and marks it as explained. A frame has one owner
    /// and the owner names one entry, so no frame is in two places.
    fn frame(&mut self, frame: u64, owner: Owner) -> Result<usize, String> {
        let memory = &self.os.memory;
        let node = memory.nodes.iter().position(|n| n.frames.contains(frame));
        let node = node.ok_or_else(|| format!("frame {frame:#x} is of no node"))?;
        let found = memory.nodes[node].frames.owner(frame);
        if found != owner {
            return Err(format!("frame {frame:#x} should be {owner:?} but is {found:?}"));
        }
        self.explained[node] += 1;
        Ok(node)
    }

    fn page(&mut self, frame: u64, size: PageSize, owner: Owner) -> Result<usize, String> {
        let node = self.frame(frame, owner)?;
        if size == PageSize::Huge {
            for i in 1..FRAMES_PER_HUGE {
                let step = i * FRAME_BYTES;
                let tail = match owner {
                    Owner::Huge { space, address } => {
                        Owner::HugeTail { space, address: address + step }
                    }
                    Owner::Destination { space, address } => {
                        Owner::Destination { space, address: address + step }
                    }
                    other => other,
                };
                self.frame(frame + step, tail)?;
            }
        }
        Ok(node)
    }

    fn process(&mut self, process: &Process) -> Result<(), String> {
        let nodes = self.os.nodes();
        let mut data = vec![0u64; nodes];
        let mut tables = vec![[0u64; MAX_LEVELS]; nodes];
        let mut huge = 0;
        let mut reached = 0;
        let mut open = vec![ROOT];
        while let Some(table) = open.pop() {
            reached += 1;
            let (below, huge_here) = self.table(process, table, &mut data, &mut tables)?;
            open.extend(below);
            huge += huge_here;
        }
        let space = &process.space;
        let in_use = space.tables.iter().filter(|t| t.in_use).count();
        if reached != in_use {
            return Err(format!("{in_use} tables in use, {reached} can be reached"));
        }
        for &frame in &space.deposits {
            self.frame(frame, Owner::Deposit { space: space.id() })?;
        }
        if space.deposits.len() != huge {
            return Err(format!("{} deposits for {huge} huge pages", space.deposits.len()));
        }
        if data != process.data_frames {
            return Err(format!("data frames by node {:?}, recount {data:?}", process.data_frames));
        }
        if tables != process.table_pages {
            return Err(format!("table pages {:?}, recount {tables:?}", process.table_pages));
        }
        Ok(())
    }

    /// Checks one table; returns the tables below it and its number of huge pages.
    fn table(
        &mut self,
        process: &Process,
        table: usize,
        data: &mut [u64],
        tables: &mut [[u64; MAX_LEVELS]],
    ) -> Result<(Vec<usize>, usize), String> {
        let space = &process.space;
        let id = space.id();
        let t = space.tables[table];
        let level = t.level as usize;
        let owner = Owner::Table { space: id, address: t.address, level };
        let node = self.frame(t.frame, owner)?;
        tables[node][level] += 1;
        let (mut below, mut huge) = (Vec::new(), 0);
        let (mut used, mut fast) = (0, 0);
        for slot in 0..ENTRIES {
            let entry = space.entry(At { table, slot });
            if entry.is_none() {
                continue;
            }
            used += 1;
            let address = t.address + (slot as u64) * (FRAME_BYTES << (9 * level));
            let size = match level {
                0 => PageSize::Base,
                1 if entry.is_huge() => PageSize::Huge,
                _ => {
                    let child = entry.table_index();
                    let c = space.tables.get(child).ok_or("an entry leads out of the arena")?;
                    if c.frame != entry.table_frame().0 || c.parent as usize != table {
                        return Err(format!("the entry at {address:#x} and its table disagree"));
                    }
                    if c.address != address || c.level as usize + 1 != level || !c.in_use {
                        return Err(format!("the table of {address:#x} maps {:#x}", c.address));
                    }
                    below.push(child);
                    continue;
                }
            };
            huge += usize::from(size == PageSize::Huge);
            let node = self.leaf(id, address, size, entry)?;
            data[node] += size.bytes() / FRAME_BYTES;
            fast += u16::from(entry.is_migration() || self.os.memory.is_fast_node(node));
        }
        if used != t.used {
            return Err(format!("table of {:#x} counts {} entries, {used} are", t.address, t.used));
        }
        let held = space
            .tables
            .iter()
            .filter(|c| c.in_use && c.moving.is_some() && c.parent as usize == table);
        if level == 1 && held.count() != usize::from(t.held) {
            return Err(format!("table of {:#x} is held {} times", t.address, t.held));
        }
        if level == 0 && fast != t.fast {
            return Err(format!("table of {:#x} counts {} fast, {fast} are", t.address, t.fast));
        }
        Ok((below, huge))
    }

    /// Checks a leaf or migration entry; returns the node where its data is counted.
    fn leaf(
        &mut self,
        space: SpaceId,
        address: u64,
        size: PageSize,
        entry: Entry,
    ) -> Result<usize, String> {
        let owner = match size {
            PageSize::Base => Owner::Base { space, address },
            PageSize::Huge => Owner::Huge { space, address },
        };
        if entry.is_present() {
            return self.page(entry.frame(), size, owner);
        }
        let (id, place) = entry.migration_target();
        let page = self.os.moves.get(&id).and_then(|m| m.pages.get(place));
        let page = page.ok_or_else(|| format!("{address:#x} waits for a move that is not"))?;
        let waits = !page.split && !page.ended;
        if (page.space, page.address, page.size, waits) != (space, address, size, true) {
            return Err(format!("{address:#x} waits for a page that is {page:?}"));
        }
        if page.to_node.index() != self.os.memory.node_of(page.to) {
            return Err(format!("{address:#x} is moved to another node than its move states"));
        }
        // The frames themselves are explained with the moves.
        *self.entries.entry(id).or_default() += 1;
        Ok(self.os.memory.node_of(page.to))
    }

    fn moves(&mut self) -> Result<(), String> {
        let mut under_way = 0;
        for (id, batch) in &self.os.moves {
            let mut alive = 0;
            let waiting = batch.pages.iter().enumerate().filter(|(_, p)| !p.split && !p.ended);
            for (place, page) in waiting {
                under_way += page.size.bytes();
                let (space, address) = (page.space, page.address);
                let owner = match page.size {
                    PageSize::Base => Owner::Base { space, address },
                    PageSize::Huge => Owner::Huge { space, address },
                };
                self.page(page.from, page.size, owner)?;
                if !batch.exchange {
                    self.page(page.to, page.size, Owner::Destination { space, address })?;
                }
                let entry = self.os.process(space).ok().map(|p| {
                    let (at, _) = p.space.find(address);
                    p.space.entry(at)
                });
                alive += u64::from(
                    entry.is_some_and(|e| e.is_migration() && e.migration_target() == (*id, place)),
                );
            }
            let entries = self.entries.get(id).copied().unwrap_or(0);
            if alive != entries {
                return Err(format!("move {id} has {alive} pages waiting, {entries} entries do"));
            }
        }
        let c = &self.os.counters;
        if c.copied_bytes != c.migrated_bytes + c.wasted_copy_bytes + under_way {
            return Err(format!(
                "{} bytes copied; {} migrated, {} wasted and {under_way} under way",
                c.copied_bytes, c.migrated_bytes, c.wasted_copy_bytes
            ));
        }
        Ok(())
    }

    /// Every frame in use must have been explained.
    fn frames(&self) -> Result<(), String> {
        for (number, node) in self.os.memory.nodes.iter().enumerate() {
            let held = node
                .frames
                .in_use_from(0)
                .filter(|(_, owner)| matches!(owner, Owner::Cache | Owner::Reserved))
                .count() as u64;
            let used = node.frames.total() - node.frames.free();
            if self.explained[number] + held != used {
                return Err(format!(
                    "node {number}: {used} frames in use, {} explained",
                    self.explained[number] + held
                ));
            }
        }
        Ok(())
    }
}

//! Migrations of a node: batches of pages that arrive, and as many victims ([`super`] describes the
//! steps).

use std::collections::VecDeque;

use terrace_hardware::address::{Kind as Access, PhysicalAddress};
use terrace_hardware::node::Node;
use terrace_hardware::request::RequestId;

use super::{ARRIVED, COPY, LocalMemory, Wake};
use crate::Time;
use crate::address::RemotePage;
use crate::config::{BLOCKS, FaultInjection};
use crate::mechanism::feedback::Ledger;
use crate::packet::{Kind, Packet};
use crate::pages::Place;

/// A page on its way in.
#[derive(Debug)]
pub(super) struct Arrival {
    pub page: u32,
    pub frame: u32,
    pub remote: u32,
    /// Blocks written here meanwhile.
    pub written: u64,
    pub blocks_left: u32,
    /// Blocks of the page that are being read from its old place.
    pub reads: u32,
}

/// A page on its way out.
#[derive(Debug)]
pub(super) struct Departure {
    pub page: u32,
    pub frame: u32,
    pub remote: u32,
    /// Blocks still to be read from local DRAM before it is sent.
    pub left: u32,
    pub sent: bool,
    /// Blocks written since it was sent.
    pub written: u64,
}

/// State of a batch.
#[derive(Debug, Clone, Default)]
pub(super) struct BatchState {
    /// Pages to be migrated when the shootdown is over, and the time of that.
    pub pages: Vec<u32>,
    pub at: Option<Time>,
    /// When the node asked for its pages.
    pub asked: Time,
    /// Remote pages reserved for its victims: a page fault meanwhile must not take them.
    pub room: VecDeque<u32>,
    /// Pages that have not arrived.
    pub left: usize,
    /// Remote pages that the arrived ones have left. The switch serves them from its buffers until
    /// it is informed that the batch is complete: nothing else may be placed there before.
    pub left_behind: Vec<u32>,
}

/// A block that is copied, by the number of its arrival or departure.
#[derive(Debug, Clone, Copy)]
pub(super) enum PageCopy {
    /// The block arrived and is to be written to its frame.
    In { n: u32, block: u8, value: u64 },
    /// The block is to be read from its frame and sent.
    Out { n: u32, block: u8 },
    /// The block was dirty in the caches and is to be written to its frame.
    Flush { frame: u32, block: u8 },
}

impl LocalMemory {
    /// Begins the next batch, if there is one, no other is under way, and there are frames for it.
    pub fn begin_batch(&mut self, now: Time) -> Wake {
        let Some(batch) = self.deferred.front().map(Vec::len) else { return Wake::Nobody };
        if self.batch.left > 0 || self.batch.at.is_some() {
            return Wake::Nobody;
        }
        let departing = self.departures.len() - self.departures_free.len();
        // No page is going to leave: local memory grows while there are free frames.
        while departing == 0 && self.free_frames.len() < batch && self.frames < self.most_frames {
            let frame = self.new_frame();
            self.free_frames.push(frame);
        }
        if self.free_frames.len() < batch {
            return Wake::Nobody;
        }
        if self.free_remote.len() < batch {
            self.ask(now);
            return Wake::Nobody;
        }
        let Some(batch) = self.deferred.pop_front() else { return Wake::Nobody };
        self.batch.pages =
            batch.iter().filter_map(|p| self.remote_to_page.get(&p.0).copied()).collect();
        self.evaluate(now);
        self.batch.room = self.free_remote.drain(..batch.len()).collect();
        let pages = self.batch.pages.len() as u64;
        // The arriving pages and the victims.
        let stop = self.shootdown + self.invalidate * 2 * pages;
        self.batch.at = Some(now + stop);
        self.batch.left = self.batch.pages.len();
        self.counts.migrations += 1;
        self.counts.stall_ps += stop;
        self.ledger.invalidation += stop;
        self.ledger.tlb_misses += pages * self.tlb_miss;
        self.ledger.copy += pages * self.page_time;
        Wake::Stop(stop)
    }

    /// The shootdown is over: translations change, blocks leave the caches, pages start to move.
    pub fn remap(&mut self, now: Time, processor: &mut Node) {
        let pages = std::mem::take(&mut self.batch.pages);
        let victims = self.victims.choose(pages.len(), &mut self.pages);
        // Pages whose accessed bits the clock cleared lose their translations too, as the cores are
        // stopped anyway: a bit is set again only by a walk, and a page in use would appear unused.
        for page in self.victims.passed() {
            let address = self.pages.address(page);
            for core in 0..processor.cores() {
                processor.invalidate_page(core, address);
            }
        }
        for &page in pages.iter().chain(&victims) {
            let address = self.pages.address(page);
            for core in 0..processor.cores() {
                processor.invalidate_page(core, address);
            }
        }
        for &page in &pages {
            let (Place::Remote(remote), Some(frame)) =
                (self.pages.place(page), self.free_frames.pop())
            else {
                self.problem = Some(format!("page {page} was to migrate and is not remote"));
                continue;
            };
            let arrival =
                Arrival { page, frame, remote, written: 0, blocks_left: BLOCKS, reads: 0 };
            let n = place_in(&mut self.arrivals, &mut self.arrivals_free, arrival);
            if let Some(check) = &mut self.check {
                check.frames.insert(frame, Box::new([0; 64]));
            }
            self.pages.set_place(page, Place::In(n));
        }
        for &page in &victims {
            let (Place::Local(frame), Some(remote)) =
                (self.pages.place(page), self.batch.room.pop_front())
            else {
                self.problem = Some(format!("page {page} was to make room and is not local"));
                continue;
            };
            let departure =
                Departure { page, frame, remote, left: BLOCKS, sent: false, written: 0 };
            let n = place_in(&mut self.departures, &mut self.departures_free, departure);
            self.pages.set_place(page, Place::Out(n));
            self.to_copy.push_back(n);
        }
        // Where there were fewer victims than pages.
        self.free_remote.extend(self.batch.room.drain(..));
        for &page in pages.iter().chain(&victims) {
            for block in 0..BLOCKS as u8 {
                let line = PhysicalAddress(u64::from(page) << 12 | u64::from(block) << 6).line(6);
                if processor.caches_mut().invalidate(line) {
                    self.flush(page, block);
                }
            }
        }
        let ready = Packet::new(Kind::Ready, self.node, RemotePage(0), 0, self.header_bytes);
        self.send(now + self.translation_time, ready);
        self.batch.asked = now;
        self.copy_out(now);
    }

    /// A block of a moving page was dirty in the caches. Its value is in its frame from now on; the
    /// memory controller gets it among the copies.
    fn flush(&mut self, page: u32, block: u8) {
        let value = self.written_now(page, block);
        let frame = match self.pages.place(page) {
            Place::In(n) => {
                let arrival = &mut self.arrivals[n as usize];
                arrival.written |= 1 << block;
                arrival.frame
            }
            Place::Out(n) => self.departures[n as usize].frame,
            Place::Local(_) | Place::Remote(_) => return,
        };
        self.counts.local_writes += 1;
        self.put(frame, block, value);
        self.background.push(true, PageCopy::Flush { frame, block });
    }

    /// Starts to copy victims, a few at a time: demand must not wait for all of them.
    fn copy_out(&mut self, now: Time) {
        while self.copying < self.copies
            && let Some(n) = self.to_copy.pop_front()
        {
            self.copying += 1;
            for block in 0..BLOCKS as u8 {
                self.background.push(false, PageCopy::Out { n, block });
            }
        }
        self.go_on(now);
    }

    /// Passes accesses of copies to the memory controller as it takes them.
    pub(super) fn go_on(&mut self, now: Time) {
        while let Some((write, copy)) = self.background.next(self.demand_reads) {
            match copy {
                PageCopy::Out { n, block } => {
                    let frame = self.departures[n as usize].frame;
                    let id = RequestId(COPY | u64::from(n));
                    self.dram_submit(now, id, Self::frame_address(frame, block), Access::Read);
                }
                PageCopy::Flush { frame, block } => {
                    let address = Self::frame_address(frame, block);
                    self.dram_submit(now, ARRIVED, address, Access::Write);
                }
                PageCopy::In { n, block, value } => {
                    if !self.block_came(now, n, block, value) {
                        self.background.done(write);
                    }
                }
            }
        }
    }

    /// A block of a victim was read.
    pub(super) fn copied(&mut self, now: Time, n: u32) {
        let departure = &mut self.departures[n as usize];
        departure.left -= 1;
        if departure.left > 0 {
            return;
        }
        departure.sent = true;
        let (frame, remote) = (departure.frame, self.translation.remote(departure.remote));
        let values = self
            .check
            .as_ref()
            .map(|check| check.frames.get(&frame).cloned().unwrap_or_else(|| Box::new([0; 64])));
        if self.partition {
            for block in 0..BLOCKS as u8 {
                let mut packet =
                    Packet::new(Kind::PageWriteBlock, self.node, remote, block, self.header_bytes);
                packet.value = values.as_ref().map_or(0, |v| v[usize::from(block)]);
                self.send(now, packet);
            }
        } else {
            let mut packet = Packet::new(Kind::PageWrite, self.node, remote, 0, self.header_bytes);
            packet.values = values;
            self.send(now, packet);
        }
        self.remote_to_page.insert(remote.0, self.departures[n as usize].page);
        self.copying -= 1;
        self.copy_out(now);
    }

    /// A pool has a victim.
    pub(super) fn page_left(&mut self, now: Time, remote: RemotePage) {
        let found = self.remote_to_page.get(&remote.0).map(|&page| (page, self.pages.place(page)));
        let Some((page, Place::Out(n))) = found else {
            self.problem = Some(format!("remote page {} was written unasked", remote.0));
            return;
        };
        let Departure { frame, remote, written, .. } = self.departures[n as usize];
        self.departures_free.push(n);
        self.pages.set_place(page, Place::Remote(remote));
        self.pages.moved(page, false);
        self.counts.pages_out += 1;
        let written = match self.fault_injection {
            Some(FaultInjection::ForgetLateWrites) => 0,
            _ => written,
        };
        for block in (0..BLOCKS as u8).filter(|b| written >> b & 1 != 0) {
            let value = self.check.as_ref().and_then(|c| c.frames.get(&frame));
            let value = value.map_or(0, |v| v[usize::from(block)]);
            self.send_write(now, remote, block, value);
        }
        if let Some(check) = &mut self.check {
            check.frames.remove(&frame);
        }
        self.free_frames.push(frame);
    }

    /// A page, or a block of one, arrived.
    pub(super) fn page_came(&mut self, now: Time, mut packet: Packet) {
        let found = self.remote_to_page.get(&packet.page.0).map(|&page| self.pages.place(page));
        let Some(Place::In(n)) = found else {
            self.problem = Some(format!("page {} came unasked", packet.page.0));
            return;
        };
        let values = packet.values.take();
        let blocks = match packet.kind {
            Kind::PageData => 0..BLOCKS as u8,
            _ => packet.block..packet.block + 1,
        };
        for block in blocks {
            let value = values.as_ref().map_or(packet.value, |v| v[usize::from(block)]);
            self.background.push(true, PageCopy::In { n, block, value });
        }
        self.go_on(now);
    }

    /// Writes a block of an arriving page to its frame, unless it was written there meanwhile.
    /// Until then it is read from its old place. Returns whether the memory controller got it.
    fn block_came(&mut self, now: Time, n: u32, block: u8, value: u64) -> bool {
        let arrival = &mut self.arrivals[n as usize];
        arrival.blocks_left -= 1;
        let overwrite = self.fault_injection == Some(FaultInjection::OverwriteArrivals);
        let old = arrival.written >> block & 1 != 0 && !overwrite;
        let &mut Arrival { page, frame, remote, blocks_left, .. } = arrival;
        if !old {
            self.put(frame, block, value);
            self.dram_submit(now, ARRIVED, Self::frame_address(frame, block), Access::Write);
        }
        if blocks_left > 0 {
            return !old;
        }
        let remote = self.translation.remote(remote);
        self.pages.set_place(page, Place::Local(frame));
        self.pages.moved(page, true);
        self.remote_to_page.remove(&remote.0);
        self.counts.pages_in += 1;
        self.counts.page_move_ps += now - self.batch.asked;
        self.batch.left -= 1;
        self.free_arrival(n);
        if self.batch.left == 0 {
            let complete = Packet::new(Kind::Complete, self.node, remote, 0, self.header_bytes);
            self.send(now, complete);
            self.free_remote.extend(self.batch.left_behind.drain(..));
            self.ledger_batches += 1;
        }
        !old
    }

    /// The remote page of an arrival is free when the page has arrived and no read of it is under
    /// way.
    pub(super) fn free_arrival(&mut self, n: u32) {
        let arrival = &self.arrivals[n as usize];
        if arrival.blocks_left == 0 && arrival.reads == 0 {
            let remote = arrival.remote;
            if let Some(check) = &mut self.check {
                check.used.insert(remote);
            }
            if self.batch.left > 0 {
                self.batch.left_behind.push(remote);
            } else {
                self.free_remote.push_back(remote);
            }
            self.arrivals_free.push(n);
        }
    }

    /// Every few batches, sends the score to the switch: when the next batch begins, so that the
    /// last of them had as much time to gain as the first.
    fn evaluate(&mut self, now: Time) {
        if self.ledger_batches < self.feedback_batches {
            return;
        }
        let (local, remote) = self.mean_times();
        let score = self.ledger.score(remote, local);
        self.ledger = Ledger::default();
        self.ledger_batches = 0;
        let mut packet =
            Packet::new(Kind::Feedback, self.node, RemotePage(0), 0, self.header_bytes);
        packet.value = i64::from(score) as u64;
        self.send(now, packet);
    }
}

/// Stores a value in a free slot.
fn place_in<T>(all: &mut Vec<T>, free: &mut Vec<u32>, thing: T) -> u32 {
    match free.pop() {
        Some(n) => {
            all[n as usize] = thing;
            n
        }
        None => {
            all.push(thing);
            all.len() as u32 - 1
        }
    }
}

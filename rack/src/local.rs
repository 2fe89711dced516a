//! The memory manager of a node: requests that miss the last level go to local DRAM or out to the
//! network; frames and remote pages are allocated; pages arrive and leave.
//!
//! A migration of a batch has these steps. (1) The switch names the pages. (2) All cores stop for
//! the shootdown; then translations are changed, the pages' blocks leave the caches, and as many
//! victims are chosen. (3) The node reports that it is ready, behind its last write to the old
//! addresses, so the switch's copy is final. (4) Pages arrive. Until one has arrived, its blocks
//! are read from the switch (nothing else has changed them), and blocks written are written to its
//! frame at once and marked, so that the arriving page does not overwrite them. (5) Victims leave
//! meanwhile. Until the pool has one, its blocks are served by its old frame; those written after
//! it was sent are sent again. Frames and remote pages that become free are used by the next batch:
//! each victim is placed where an earlier migrated page was, so the ratio of local to remote memory
//! stays.

mod accesses;
mod allocation;
mod dealer;
mod migration;
mod requests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use terrace_hardware::address::{Kind as Access, PhysicalAddress};
use terrace_hardware::dram::system::Dram;
use terrace_hardware::error::ConfigError;
use terrace_hardware::request::{ByRequest, Completion, Request, RequestId};
use terrace_hardware::units::Picoseconds;

use crate::address::{RemotePage, Translation};
use crate::background::Background;
use crate::config::{FaultInjection, PAGE_BYTES, RackConfig, ps, ps_1024_per_byte};
use crate::link::transmission;
use crate::local::accesses::Miss;
use crate::local::dealer::Dealer;
use crate::local::migration::{Arrival, BatchState, Departure, PageCopy};
use crate::local::requests::Queued;
pub use crate::local::requests::Requests;
use crate::mechanism::feedback::Ledger;
use crate::mechanism::tracker::ByPage;
use crate::nic::Nic;
use crate::outcome::NodeCounts;
use crate::packet::{Kind, Message, Packet, PageValues};
use crate::pages::{Pages, Place};
use crate::scheme::{Batch, Scheme};
use crate::victims::Victims;
use crate::{NEVER, Time};

/// A DRAM access that no core waits for.
const NOBODY: RequestId = RequestId(1 << 63);
/// A block of a victim is read to be sent: the departure is in the low bits.
const COPY: u64 = 1 << 62;
/// A block of an arrived page is written.
const ARRIVED: RequestId = RequestId(1 << 61);

/// The memory of a node, from the last level outwards.
#[derive(Debug)]
pub struct LocalMemory {
    node: usize,
    header_bytes: u32,
    /// Its interface.
    pub nic: Nic,
    dram: Dram,
    dram_under_way: u32,
    /// Demand reads among these: reads that a core waits for.
    demand_reads: u32,
    /// Copies of pages, which give way to demand.
    background: Background<PageCopy>,
    path_out: Time,
    path_back: Time,
    translation_time: Time,
    propagation: Time,
    /// The processor's requests.
    pub requests: Requests,
    /// Reads that have a register, and reads that wait for one.
    misses: ByRequest<Miss>,
    mshrs: usize,
    waiting: VecDeque<Queued>,
    /// Local answers on their way back.
    back: VecDeque<(Time, RequestId)>,
    /// Packets that have no room in the interface.
    outgoing: VecDeque<Packet>,
    /// The node's pages.
    pub pages: Pages,
    translation: Translation,
    remote_to_page: ByPage<u32>,
    dealer: Dealer,
    frames: u32,
    most_frames: u32,
    free_frames: Vec<u32>,
    free_remote: VecDeque<u32>,
    unit: u32,
    /// Whether more remote memory has been requested.
    asked: bool,
    victims: Victims,
    arrivals: Vec<Arrival>,
    arrivals_free: Vec<u32>,
    departures: Vec<Departure>,
    departures_free: Vec<u32>,
    /// Victims that wait to be copied out.
    to_copy: VecDeque<u32>,
    copying: u32,
    copies: u32,
    batch: BatchState,
    /// Batches that wait for frames.
    deferred: VecDeque<Vec<RemotePage>>,
    partition: bool,
    shootdown: Time,
    invalidate: Time,
    tlb_miss: Time,
    page_time: Time,
    ledger: Ledger,
    ledger_batches: u32,
    feedback_batches: u32,
    credit_buffers: bool,
    window: Time,
    /// The content of local and remote memory, where data are checked.
    check: Option<Check>,
    fault_injection: Option<FaultInjection>,
    /// The counters of the node.
    pub counts: NodeCounts,
    /// Why the node cannot continue, if it cannot.
    pub problem: Option<String>,
    /// The time it has been run to. A core that waited for memory makes its next requests from its
    /// own dispatch time, which may be earlier: they count as made now.
    latest: Time,
}

/// Values by place and by last write.
#[derive(Debug, Default)]
struct Check {
    frames: BTreeMap<u32, PageValues>,
    /// By page and block.
    written: BTreeMap<u64, u64>,
    next: u64,
    /// Remote pages that had content before, and pages that were mapped there: their content before
    /// the first write is not known.
    used: BTreeSet<u32>,
    unknown: BTreeSet<u32>,
}

impl Check {
    /// The value that a read of a block must return: the last write, or zero.
    fn expected(&self, page: u32, block: u8) -> Option<u64> {
        let written = self.written.get(&LocalMemory::key(page, block)).copied();
        written.or_else(|| (!self.unknown.contains(&page)).then_some(0))
    }
}

/// The effect of an event on the processor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// No effect.
    Nobody,
    /// A request was completed.
    Completed(Completion),
    /// All cores stop for so long.
    Stop(Time),
    /// Pages' translations and blocks leave the processor: arriving pages, and victims.
    Remap,
    /// Remote memory was allocated: page faults that waited can be tried again.
    Memory,
}

impl LocalMemory {
    /// Idle, with nothing mapped.
    pub fn new(config: &RackConfig, node: usize, scheme: &Scheme) -> Result<Self, ConfigError> {
        let m = &config.mechanism;
        let partition = scheme.partition;
        let alone = scheme.batch == Batch::Fixed(1);
        let share = if partition {
            crate::link::Share::Weighted(m.block_weight, m.page_weight)
        } else {
            crate::link::Share::Fifo
        };
        let path = ps(config.local_path_ns);
        let distributed = config.organization == crate::config::Organization::Distributed;
        let unit = if distributed { (config.chunk.0 / PAGE_BYTES) as u32 } else { 1 };
        let frames = config.local_dram.organization.capacity_bytes() / PAGE_BYTES;
        let g = &config.migration;
        let cycle_ps = 1_000_000 / u64::from(config.processor.0.core.clock_mhz.max(1));
        let rate = ps_1024_per_byte(config.network.nic_gbit_per_s);
        Ok(LocalMemory {
            node,
            header_bytes: config.network.header_bytes,
            nic: Nic::new(&config.network, share),
            dram: Dram::new(&config.local_dram)?,
            dram_under_way: 0,
            demand_reads: 0,
            background: Background::new(config.migration.background),
            path_out: path / 2,
            path_back: path - path / 2,
            translation_time: if distributed { ps(config.translation_ns) } else { 0 },
            propagation: ps(config.network.propagation_ns),
            requests: Requests { queue: BinaryHeap::new(), sequence: 0, local_mean: 50_000 },
            misses: ByRequest::default(),
            mshrs: config.llc_mshrs as usize,
            waiting: VecDeque::new(),
            back: VecDeque::new(),
            outgoing: VecDeque::new(),
            pages: Pages::default(),
            translation: Translation::new(unit),
            remote_to_page: ByPage::default(),
            dealer: Dealer::new(config.dealing, config.local_share, config.seed ^ node as u64),
            frames: 0,
            // The last eighth holds page tables.
            most_frames: (frames - frames / 8) as u32,
            free_frames: Vec::new(),
            free_remote: VecDeque::new(),
            unit,
            asked: false,
            victims: Victims::new(g.victims),
            arrivals: Vec::new(),
            arrivals_free: Vec::new(),
            departures: Vec::new(),
            departures_free: Vec::new(),
            to_copy: VecDeque::new(),
            copying: 0,
            copies: g.copies,
            batch: BatchState::default(),
            deferred: VecDeque::new(),
            partition,
            shootdown: ps(g.shootdown_ns * if alone { 1.0 } else { m.batch_scale }),
            invalidate: ps(g.invalidate_ns_per_page),
            tlb_miss: u64::from(g.tlb_miss_cycles) * cycle_ps,
            page_time: transmission(rate, PAGE_BYTES as u32),
            ledger: Ledger::default(),
            ledger_batches: 0,
            feedback_batches: m.feedback_batches,
            credit_buffers: m.credit_buffers,
            window: config.window_ps(),
            check: config.check_data.then(Check::default),
            fault_injection: config.fault_injection,
            counts: NodeCounts::default(),
            problem: None,
            latest: 0,
        })
    }

    /// The counters of its DRAM.
    pub fn dram_counts(&self) -> terrace_hardware::dram::channel::ChannelCounts {
        self.dram.counts()
    }

    /// Misses under way.
    pub fn misses(&self) -> usize {
        self.misses.len() + self.waiting.len()
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.requests.queue.is_empty()
            && self.misses.is_empty()
            && self.outgoing.is_empty()
            && self.nic.out.is_empty()
            && self.dram_under_way == 0
            && self.to_copy.is_empty()
            && self.background.is_empty()
            && self.batch.left == 0
            && self.batch.at.is_none()
    }

    /// For checks at rest: every write, as page, block and value, and the value where the block
    /// should be: a value, or the remote page that must have it.
    pub fn written(&self) -> Vec<(u32, u8, u64, Result<u64, RemotePage>)> {
        let Some(check) = &self.check else { return Vec::new() };
        let one = |(&key, &value): (&u64, &u64)| {
            let (page, block) = ((key >> 6) as u32, key as u8 & 63);
            let here = match self.pages.place(page) {
                Place::Remote(remote) => Err(self.translation.remote(remote)),
                Place::Local(frame) => {
                    Ok(check.frames.get(&frame).map_or(0, |v| v[usize::from(block)]))
                }
                // At rest no page is under migration.
                Place::In(_) | Place::Out(_) => Ok(u64::MAX),
            };
            (page, block, value, here)
        };
        check.written.iter().map(one).collect()
    }

    /// Updates the local read time that the walker uses, from now on.
    pub fn refresh_mean(&mut self) {
        self.requests.local_mean = self.mean_times().0;
    }

    // --- events ---

    fn dram_event(&self) -> Time {
        if self.dram_under_way == 0 {
            return NEVER;
        }
        self.dram.completion_bound().map_or(NEVER, |t| t.0)
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Time {
        let queued = self.requests.queue.peek().map_or(NEVER, |Reverse(q)| q.at);
        let back = self.back.front().map_or(NEVER, |b| b.0);
        queued
            .min(back)
            .min(self.dram_event())
            .min(self.nic.next_departure())
            .min(self.nic.next_delivery())
            .min(self.batch.at.unwrap_or(NEVER))
            .max(self.latest)
    }

    /// Processes the next event, which is at `now` by [`LocalMemory::next_event`].
    pub fn step(&mut self, now: Time, out: &mut Vec<Message>) -> Wake {
        self.latest = now;
        if self.back.front().is_some_and(|b| b.0 <= now) {
            if let Some((_, id)) = self.back.pop_front() {
                return self.finish(now, id, None);
            }
        } else if self.dram_event() <= now {
            self.dram_done(now);
            self.go_on(now);
            return self.begin_batch(now);
        } else if self.nic.next_delivery() <= now {
            if let Some(packet) = self.nic.deliver() {
                self.nic.release(now, packet.bytes);
                return self.deliver(now, packet);
            }
        } else if self.batch.at.is_some_and(|at| at <= now) {
            self.batch.at = None;
            return Wake::Remap;
        } else if self.requests.queue.peek().is_some_and(|Reverse(q)| q.at <= now) {
            if let Some(Reverse(queued)) = self.requests.queue.pop() {
                self.issue(now, queued);
            }
        } else {
            out.extend(self.nic.depart(now));
            while let Some(packet) = self.outgoing.front()
                && self.nic.out.has_room(packet.bytes)
            {
                if let Some(mut packet) = self.outgoing.pop_front() {
                    packet.spent.queue += now.saturating_sub(packet.queued);
                    self.nic.send(now, packet);
                }
            }
        }
        Wake::Nobody
    }

    /// At the end of a window.
    pub fn end_window(&mut self, out: &mut Vec<Message>) {
        out.extend(self.nic.credit(self.window));
    }

    fn send(&mut self, now: Time, mut packet: Packet) {
        if self.outgoing.is_empty() && self.nic.out.has_room(packet.bytes) {
            self.nic.send(now, packet);
        } else {
            packet.queued = now;
            self.outgoing.push_back(packet);
        }
    }

    fn dram_submit(&mut self, now: Time, id: RequestId, address: u64, kind: Access) {
        self.dram_under_way += 1;
        self.demand_reads += u32::from(id.0 < ARRIVED.0);
        let at = Picoseconds(now + self.path_out);
        self.dram.submit(at, Request { id, address: PhysicalAddress(address), kind });
    }

    fn dram_done(&mut self, now: Time) {
        self.dram.advance_to(Picoseconds(now));
        while let Some(completion) = self.dram.pop_completion() {
            self.dram_under_way -= 1;
            let id = completion.id;
            if id == NOBODY {
                continue;
            }
            if id == ARRIVED {
                self.background.done(true);
            } else if id.0 & COPY != 0 {
                self.background.done(false);
                self.copied(now, (id.0 & !COPY) as u32);
            } else {
                self.demand_reads -= 1;
                self.background.demand_done();
                self.back.push_back((completion.done.0 + self.path_back, id));
            }
        }
    }

    fn frame_address(frame: u32, block: u8) -> u64 {
        u64::from(frame) * PAGE_BYTES + u64::from(block) * 64
    }

    /// A packet arrived.
    fn deliver(&mut self, now: Time, packet: Packet) -> Wake {
        match packet.kind {
            Kind::Data => return self.finish(now, packet.id, Some(&packet)),
            Kind::PageData | Kind::PageDataBlock => self.page_came(now, packet),
            Kind::PageWritten => self.page_left(now, packet.page),
            Kind::Migrate => {
                self.deferred.extend(packet.pages.map(Vec::from));
                return self.begin_batch(now);
            }
            Kind::GiveMemory => {
                self.asked = false;
                if packet.value == 0 {
                    self.problem = Some("the memory pools are full".into());
                } else {
                    self.give(packet.page);
                }
                return Wake::Memory;
            }
            other => unreachable!("{other:?} sent to a node"),
        }
        self.begin_batch(now)
    }
}

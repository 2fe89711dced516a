//! A memory pool: DRAM behind a network interface.
//!
//! Requests wait in the interface's buffer until the memory controller has room for them, so a full
//! pool holds back the switch, and the switch the nodes. A page is 64 requests to the DRAM like any
//! others; a page that is read whole is answered when the last is done.

use std::collections::VecDeque;

use terrace_hardware::address::{Kind as Access, PhysicalAddress};
use terrace_hardware::dram::channel::ChannelCounts;
use terrace_hardware::dram::system::Dram;
use terrace_hardware::error::ConfigError;
use terrace_hardware::request::{Request, RequestId};
use terrace_hardware::units::Picoseconds;

use crate::background::Background;
use crate::config::{BLOCKS, RackConfig};
use crate::link::Share;
use crate::nic::Nic;
use crate::packet::{Kind, Message, Packet, PageValues};
use crate::trace::Place;
use crate::{NEVER, Time};

/// A request in the memory controller.
#[derive(Debug)]
struct Served {
    packet: Packet,
    /// Accesses not done yet.
    left: u32,
    since: Time,
}

/// A memory pool.
#[derive(Debug)]
pub struct Pool {
    nic: Nic,
    dram: Dram,
    /// DRAM accesses under way, and their limit.
    under_way: u32,
    most: u32,
    demand_reads: u32,
    /// Blocks of victims, which give way to demand where bandwidth is divided.
    background: Background<Packet>,
    divided: bool,
    /// Arrived requests that wait for the memory controller.
    waiting: VecDeque<Packet>,
    /// By slot; the slot is in the number of their accesses.
    served: Vec<Option<Served>>,
    free: Vec<usize>,
    /// Answers that wait for room in the interface.
    answers: VecDeque<Packet>,
    header_bytes: u32,
    window: Time,
    /// The content of each page, where data are checked: pages never written hold zeros.
    values: Option<std::collections::BTreeMap<u32, PageValues>>,
    /// Reads and writes of blocks, page blocks included.
    pub blocks_read: u64,
    /// Blocks written, page blocks included.
    pub blocks_written: u64,
}

impl Pool {
    /// An idle pool. `share` is how its interface divides its way out.
    pub fn new(config: &RackConfig, share: Share) -> Result<Self, ConfigError> {
        Ok(Pool {
            nic: Nic::new(&config.network, share),
            dram: Dram::new(&config.pool_dram)?,
            under_way: 0,
            demand_reads: 0,
            background: Background::new(config.migration.background),
            divided: matches!(share, Share::Weighted(..)),
            most: config.pool_queue,
            waiting: VecDeque::new(),
            served: Vec::new(),
            free: Vec::new(),
            answers: VecDeque::new(),
            header_bytes: config.network.header_bytes,
            window: config.window_ps(),
            values: config.check_data.then(Default::default),
            blocks_read: 0,
            blocks_written: 0,
        })
    }

    /// Its interface, read-only.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// The counters of its DRAM.
    pub fn dram_counts(&self) -> ChannelCounts {
        self.dram.counts()
    }

    /// Requests that wait for its memory controller or are in it.
    pub fn depth(&self) -> usize {
        self.waiting.len() + self.background.len() + self.under_way as usize
    }

    /// The value of a block, where data are checked.
    pub fn value(&self, page: crate::address::RemotePage, block: u8) -> u64 {
        let page = self.values.as_ref().and_then(|v| v.get(&page.0));
        page.map_or(0, |v| v[usize::from(block)])
    }

    /// Whether the pool has no request.
    pub fn is_idle(&self) -> bool {
        self.depth() == 0 && self.answers.is_empty() && self.nic.out.is_empty()
    }

    /// Its interface, to be traced.
    pub fn nic_mut(&mut self) -> &mut Nic {
        &mut self.nic
    }

    /// Receives a message of the switch.
    pub fn receive(&mut self, message: Message) {
        self.nic.receive(message);
    }

    fn dram_event(&self) -> Time {
        if self.under_way == 0 {
            return NEVER;
        }
        self.dram.completion_bound().map_or(NEVER, |t| t.0)
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Time {
        self.nic.next_delivery().min(self.nic.next_departure()).min(self.dram_event())
    }

    /// Runs up to `end`; messages go to `out`.
    pub fn run_until(&mut self, end: Time, out: &mut Vec<Message>) {
        loop {
            let (delivery, departure, dram) =
                (self.nic.next_delivery(), self.nic.next_departure(), self.dram_event());
            let now = delivery.min(departure).min(dram);
            if now >= end {
                break;
            }
            if dram == now {
                self.complete(now);
            } else if delivery == now {
                if let Some(mut packet) = self.nic.deliver() {
                    packet.queued = now;
                    self.waiting.push_back(packet);
                }
            } else if let Some(message) = self.nic.depart(now) {
                out.push(message);
            }
            self.start(now);
            self.answer(now);
        }
        out.extend(self.nic.credit(self.window));
    }

    /// Passes waiting requests to the memory controller while it has room.
    fn start(&mut self, now: Time) {
        while let Some(packet) = self.waiting.front() {
            if self.divided && packet.kind == Kind::PageWriteBlock {
                // Nothing else accesses its page until it has arrived.
                if let Some(packet) = self.waiting.pop_front() {
                    self.background.push(true, packet);
                }
                continue;
            }
            let accesses = match packet.kind {
                Kind::PageRead | Kind::PageWrite => BLOCKS,
                _ => 1,
            };
            if !self.has_room(accesses) {
                break;
            }
            if let Some(packet) = self.waiting.pop_front() {
                self.submit(now, packet, accesses);
            }
        }
        while self.has_room(1)
            && let Some((_, packet)) = self.background.next(self.demand_reads)
        {
            self.submit(now, packet, 1);
        }
    }

    /// Answers without room hold everything back: the buffers are finite.
    fn has_room(&self, accesses: u32) -> bool {
        (self.under_way == 0 || self.under_way + accesses <= self.most)
            && self.answers.len() <= self.most as usize
    }

    /// Passes a request to the memory controller.
    fn submit(&mut self, now: Time, mut packet: Packet, accesses: u32) {
        self.nic.release(now, packet.bytes);
        packet.spent.queue += now - packet.queued;
        self.under_way += accesses;
        let write = match packet.kind {
            Kind::Write | Kind::PageWrite | Kind::PageWriteBlock => Access::Write,
            Kind::Read | Kind::PageRead | Kind::PageReadBlock => Access::Read,
            other => unreachable!("{other:?} sent to a pool"),
        };
        match write {
            Access::Read => {
                self.blocks_read += u64::from(accesses);
                self.demand_reads += accesses;
            }
            Access::Write => self.blocks_written += u64::from(accesses),
        }
        self.exchange_values(&mut packet);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.served.push(None);
            self.served.len() - 1
        });
        for access in 0..accesses {
            let block = if accesses == 1 { packet.block } else { access as u8 };
            let address = PhysicalAddress(packet.page.address(block));
            let id = RequestId(slot as u64);
            self.dram.submit(Picoseconds(now), Request { id, address, kind: write });
        }
        self.served[slot] = Some(Served { packet, left: accesses, since: now });
    }

    /// Reads and writes take effect in the order in which the memory controller gets them.
    fn exchange_values(&mut self, packet: &mut Packet) {
        let Some(values) = &mut self.values else { return };
        let page = packet.page.0;
        match packet.kind {
            Kind::Read | Kind::PageReadBlock => {
                packet.value = values.get(&page).map_or(0, |v| v[usize::from(packet.block)]);
            }
            Kind::Write | Kind::PageWriteBlock => {
                values.entry(page).or_insert_with(|| Box::new([0; 64]))
                    [usize::from(packet.block)] = packet.value;
            }
            Kind::PageRead => {
                packet.values =
                    Some(values.get(&page).cloned().unwrap_or_else(|| Box::new([0; 64])));
            }
            Kind::PageWrite => {
                values.insert(page, packet.values.take().unwrap_or_else(|| Box::new([0; 64])));
            }
            _ => {}
        }
    }

    fn complete(&mut self, now: Time) {
        self.dram.advance_to(Picoseconds(now));
        while let Some(completion) = self.dram.pop_completion() {
            let slot = completion.id.0 as usize;
            self.under_way -= 1;
            let Some(served) = &mut self.served[slot] else { continue };
            served.left -= 1;
            match served.packet.kind {
                Kind::Read | Kind::PageReadBlock | Kind::PageRead => {
                    self.demand_reads -= 1;
                    self.background.demand_done();
                }
                Kind::PageWriteBlock if self.divided => self.background.done(true),
                _ => {}
            }
            if served.left > 0 {
                continue;
            }
            let Some(Served { mut packet, since, .. }) = self.served[slot].take() else {
                continue;
            };
            self.free.push(slot);
            packet.spent.dram += now - since;
            self.nic.tracer.add(Place::Memory, &packet, since, now);
            let kind = match packet.kind {
                Kind::Read => Kind::Data,
                Kind::PageReadBlock => Kind::PageDataBlock,
                Kind::PageRead => Kind::PageData,
                Kind::PageWrite => Kind::PageWritten,
                // Blocks of a page come in order: the last one completes the page.
                Kind::PageWriteBlock if packet.block == BLOCKS as u8 - 1 => Kind::PageWritten,
                // A written block is not answered.
                _ => continue,
            };
            let values = packet.values.take();
            let mut answer = packet.answer(kind, self.header_bytes);
            answer.values = values;
            answer.queued = now;
            self.answers.push_back(answer);
        }
    }

    fn answer(&mut self, now: Time) {
        while let Some(answer) = self.answers.front()
            && self.nic.out.has_room(answer.bytes)
        {
            let Some(mut answer) = self.answers.pop_front() else { break };
            answer.spent.queue += now - answer.queued;
            self.nic.send(now, answer);
        }
    }
}

//! The switch: ports with finite input buffers, virtual queues, two-level arbitration, and the
//! global memory controller and manager (the paper, figures 3 and 4).
//!
//! Each input port has a virtual queue for each output, and in it one for blocks and one for pages
//! where a scheme divides bandwidth. A free output picks first a port, in turns, then one of its
//! queues, by weight. Requests of nodes pass their node's controller
//! ([`crate::mechanism::controller`]); one that finds its queues full stays in its port's buffer,
//! and with it the packets behind it. Answers of pools never wait for anything but an output, and
//! outputs to nodes only for nodes, which always accept packets: so there is no deadlock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use terrace_hardware::error::ConfigError;

use crate::address::RemotePage;
use crate::config::{FaultInjection, RackConfig, ps, ps_1024_per_byte};
use crate::link::{Turns, transmission};
use crate::manager::GlobalManager;
use crate::mechanism::controller::Controller;
use crate::packet::{Kind, Message, Packet};
use crate::scheme::{Scheme, Trigger};
use crate::trace::{Place, Tracer};
use crate::{NEVER, Time};

/// An event of the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A packet (by slot) has been processed at an input port.
    Arrive(u16, u32),
    /// A packet (by slot) leaves the controller.
    Leave(u32),
    /// An output may send.
    Output(u16),
    /// An output is informed of free bytes at its other end.
    Credit(u16, u64),
    /// The request selector of a node may forward.
    Select(u16),
    /// The next block of a page that is copied to a node may go.
    Copy(u16),
}

/// A packet that waits for an output, and the input port whose buffer it holds.
#[derive(Debug)]
struct Waiting {
    packet: Packet,
    holds: Option<u16>,
}

/// Virtual queues of one input for one output.
#[derive(Debug)]
struct Virtual {
    queues: [VecDeque<Waiting>; 2],
    turns: Turns,
}

/// An output port.
#[derive(Debug)]
struct Output {
    inputs: Vec<Virtual>,
    /// The input port whose turn it is.
    turn: usize,
    waiting: usize,
    waiting_bytes: u64,
    free_at: Time,
    credits: u64,
    /// The time of its event, so that there is one only.
    scheduled: Time,
    counts: PortCounts,
}

/// Counters of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Time spent sending.
    pub busy: Time,
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Bytes of page traffic.
    pub page_bytes: u64,
    /// Most bytes that waited.
    pub waiting_bytes_max: u64,
    /// Most bytes that its input buffer held.
    pub buffer_bytes_max: u64,
}

/// How the copies of pages to a node are paced, where bandwidth is divided.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    /// Until when blocks sent occupy the node's way in.
    busy_until: Time,
    /// The latest time at which the next copied block goes.
    forced: Time,
    scheduled: bool,
}

/// The switch.
#[derive(Debug)]
pub struct Switch {
    nodes: usize,
    ports: usize,
    scheme: &'static Scheme,
    outputs: Vec<Output>,
    controllers: Vec<Controller>,
    /// Requests at the head of a node's port for which a queue is full, and the packets behind
    /// them.
    held: Vec<VecDeque<Packet>>,
    selecting: Vec<bool>,
    pace: Vec<Pace>,
    manager: GlobalManager,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    sequence: u64,
    slots: Vec<Option<Packet>>,
    free: Vec<u32>,
    /// Bytes in each input buffer, and bytes that left it since the last report.
    buffered: Vec<u64>,
    received: Vec<(u64, u64)>,
    freed: Vec<(u64, Time)>,
    processing: Time,
    propagation: Time,
    window: Time,
    ps_1024_per_byte: u64,
    /// A block's time on a node's link.
    block_time: Time,
    page_share: Time,
    output_queue: usize,
    header_bytes: u32,
    unit_pages: u32,
    fault_injection: Option<FaultInjection>,
    /// Packets that its outputs sent, where they are traced.
    pub tracer: Tracer,
    sent: Vec<(Time, Packet)>,
}

impl Switch {
    /// An idle switch.
    pub fn new(config: &RackConfig, scheme: &'static Scheme) -> Result<Self, ConfigError> {
        let (nodes, pools) = (config.nodes as usize, config.pools as usize);
        let ports = nodes + pools;
        let m = &config.mechanism;
        let n = &config.network;
        let output = |_| Output {
            // One of every port, and one of the controller.
            inputs: (0..=ports)
                .map(|_| Virtual {
                    queues: [VecDeque::new(), VecDeque::new()],
                    turns: Turns::new(m.block_weight, m.page_weight),
                })
                .collect(),
            turn: 0,
            waiting: 0,
            waiting_bytes: 0,
            free_at: 0,
            credits: n.nic_buffer.0,
            scheduled: NEVER,
            counts: PortCounts::default(),
        };
        let block_bytes = n.header_bytes + Kind::Data.data_bytes(0);
        let block_time = transmission(ps_1024_per_byte(n.nic_gbit_per_s), block_bytes);
        let manager = GlobalManager::new(config)?;
        Ok(Switch {
            nodes,
            ports,
            scheme,
            outputs: (0..ports).map(output).collect(),
            controllers: (0..nodes).map(|node| Controller::new(config, scheme, node)).collect(),
            held: vec![VecDeque::new(); nodes],
            selecting: vec![false; nodes],
            pace: vec![Pace::default(); nodes],
            unit_pages: manager.unit(),
            manager,
            events: BinaryHeap::new(),
            sequence: 0,
            slots: Vec::new(),
            free: Vec::new(),
            buffered: vec![0; ports],
            received: vec![(0, 0); ports],
            freed: vec![(0, 0); ports],
            processing: ps(n.switch_ns),
            propagation: ps(n.propagation_ns),
            window: config.window_ps(),
            ps_1024_per_byte: ps_1024_per_byte(n.switch_gbit_per_s),
            block_time,
            page_share: block_time * u64::from(m.block_weight + m.page_weight)
                / u64::from(m.page_weight),
            output_queue: n.output_queue as usize,
            header_bytes: n.header_bytes,
            fault_injection: config.fault_injection,
            tracer: Tracer::new(config.trace, 0),
            sent: Vec::new(),
        })
    }

    /// The global manager.
    pub fn manager(&mut self) -> &mut GlobalManager {
        &mut self.manager
    }

    /// The global manager, read-only.
    pub fn manager_ref(&self) -> &GlobalManager {
        &self.manager
    }

    /// The controller of a node.
    pub fn controller(&self, node: usize) -> &Controller {
        &self.controllers[node]
    }

    /// The counters of a port.
    pub fn port(&self, port: usize) -> PortCounts {
        self.outputs[port].counts
    }

    /// Bytes that wait for an output now.
    pub fn waiting_bytes(&self, port: usize) -> u64 {
        self.outputs[port].waiting_bytes
    }

    /// Bytes in the input buffer of a port now.
    pub fn buffered_bytes(&self, port: usize) -> u64 {
        self.buffered[port]
    }

    /// Packets and bytes received at a port.
    pub fn received(&self, port: usize) -> (u64, u64) {
        self.received[port]
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Time {
        self.events.peek().map_or(NEVER, |Reverse(e)| e.0)
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn keep(&mut self, packet: Packet) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(packet);
                slot
            }
            None => {
                self.slots.push(Some(packet));
                self.slots.len() as u32 - 1
            }
        }
    }

    fn take(&mut self, slot: u32) -> Option<Packet> {
        self.free.push(slot);
        self.slots[slot as usize].take()
    }

    /// Receives a message of a component.
    pub fn receive(&mut self, port: usize, message: Message) {
        match message {
            Message::Credit(at, bytes) => self.schedule(at, Event::Credit(port as u16, bytes)),
            Message::Packet(arrival, mut packet) => {
                self.buffered[port] += u64::from(packet.bytes);
                self.received[port].0 += 1;
                self.received[port].1 += u64::from(packet.bytes);
                let counts = &mut self.outputs[port].counts;
                counts.buffer_bytes_max = counts.buffer_bytes_max.max(self.buffered[port]);
                packet.spent.switch += self.processing;
                let slot = self.keep(packet);
                self.schedule(arrival + self.processing, Event::Arrive(port as u16, slot));
            }
        }
    }

    /// Runs up to `end`; messages go to `out`, with their destination component.
    pub fn run_until(&mut self, end: Time, out: &mut Vec<(usize, Message)>) {
        while let Some(&Reverse((now, _, event))) = self.events.peek()
            && now < end
        {
            self.events.pop();
            match event {
                Event::Arrive(port, slot) => {
                    if let Some(packet) = self.take(slot) {
                        self.arrive(now, usize::from(port), packet);
                    }
                }
                Event::Leave(slot) => {
                    if let Some(packet) = self.take(slot) {
                        self.route(now, packet, None);
                    }
                }
                Event::Output(port) => {
                    let output = &mut self.outputs[usize::from(port)];
                    if output.scheduled == now {
                        output.scheduled = NEVER;
                        self.send(now, usize::from(port), out);
                    }
                }
                Event::Credit(port, bytes) => {
                    self.outputs[usize::from(port)].credits += bytes;
                    self.wake(now, usize::from(port));
                }
                Event::Select(node) => {
                    self.selecting[usize::from(node)] = false;
                    self.select(now, usize::from(node));
                }
                Event::Copy(node) => {
                    self.pace[usize::from(node)].scheduled = false;
                    self.copy(now, usize::from(node));
                }
            }
        }
        for (port, (bytes, at)) in self.freed.iter_mut().enumerate() {
            if *bytes > 0 {
                out.push((port, Message::Credit(*at + self.window, std::mem::take(bytes))));
            }
        }
    }

    fn release(&mut self, now: Time, port: usize, bytes: u32) {
        self.buffered[port] -= u64::from(bytes);
        self.freed[port].0 += u64::from(bytes);
        self.freed[port].1 = now;
    }

    fn arrive(&mut self, now: Time, port: usize, packet: Packet) {
        if port >= self.nodes {
            let to_buffer =
                matches!(packet.kind, Kind::PageData | Kind::PageDataBlock) && self.scheme.buffers;
            if !to_buffer {
                self.route(now, packet, Some(port as u16));
                return;
            }
            // The buffer was reserved when the page was requested.
            self.release(now, port, packet.bytes);
            let node = usize::from(packet.node);
            let mut sent = std::mem::take(&mut self.sent);
            self.controllers[node].answer(now, packet, &mut sent);
            self.dispatch(now, &mut sent);
            self.sent = sent;
            self.after(now, node);
            return;
        }
        match packet.kind {
            Kind::PageWrite | Kind::PageWriteBlock => self.route(now, packet, Some(port as u16)),
            Kind::AskMemory => {
                self.release(now, port, packet.bytes);
                let first = self.manager.allocate(port);
                let mut answer = packet.answer(Kind::GiveMemory, self.header_bytes);
                answer.page = first.unwrap_or(RemotePage(0));
                answer.value = first.map_or(0, |_| u64::from(self.unit_pages));
                self.route(now, answer, None);
            }
            // Without a mechanism the switch only forwards.
            Kind::Read | Kind::Write if self.scheme.trigger == Trigger::Never => {
                self.route(now, packet, Some(port as u16));
            }
            _ => {
                let mut packet = packet;
                packet.queued = now;
                self.held[port].push_back(packet);
                self.after(now, port);
            }
        }
    }

    /// Continues a node's controller: its held requests, its selector, its copies.
    fn after(&mut self, now: Time, node: usize) {
        let mut sent = std::mem::take(&mut self.sent);
        while let Some(mut packet) = self.held[node].pop_front() {
            let bytes = packet.bytes;
            let waited = now - packet.queued;
            packet.spent.queue += waited;
            packet.queued = now;
            match self.controllers[node].offer(now, packet, &mut sent) {
                Ok(()) => self.release(now, node, bytes),
                Err(packet) => {
                    self.held[node].push_front(packet);
                    break;
                }
            }
        }
        self.dispatch(now, &mut sent);
        self.sent = sent;
        self.select(now, node);
        if self.controllers[node].has_copies() {
            self.copy(now, node);
        }
    }

    fn dispatch(&mut self, now: Time, sent: &mut Vec<(Time, Packet)>) {
        for (after, packet) in sent.drain(..) {
            if after == 0 {
                self.route(now, packet, None);
            } else {
                let slot = self.keep(packet);
                self.schedule(now + after, Event::Leave(slot));
            }
        }
    }

    /// Puts a packet into the virtual queue of its output.
    fn route(&mut self, now: Time, mut packet: Packet, holds: Option<u16>) {
        use Kind::*;
        let node = usize::from(packet.node);
        let (to, from) = match packet.kind {
            Read | Write | PageRead | PageReadBlock | PageWrite | PageWriteBlock => {
                (self.nodes + packet.page.pool(), node)
            }
            _ => (node, holds.map_or(self.ports, usize::from)),
        };
        // Towards pools only pages of victims may be overtaken: nothing else accesses them.
        let page = match packet.kind {
            PageWrite | PageWriteBlock | PageData | PageDataBlock => self.scheme.partition,
            _ => false,
        };
        if to < self.nodes && packet.kind == Data {
            let pace = &mut self.pace[to];
            pace.busy_until = pace.busy_until.max(now) + self.block_time;
        }
        packet.queued = now;
        let output = &mut self.outputs[to];
        output.waiting += 1;
        output.waiting_bytes += u64::from(packet.bytes);
        output.counts.waiting_bytes_max = output.counts.waiting_bytes_max.max(output.waiting_bytes);
        output.inputs[from].queues[usize::from(page)].push_back(Waiting { packet, holds });
        self.wake(now, to);
    }

    fn wake(&mut self, now: Time, port: usize) {
        let output = &mut self.outputs[port];
        if output.waiting > 0 && output.scheduled == NEVER {
            let at = now.max(output.free_at);
            output.scheduled = at;
            self.schedule(at, Event::Output(port as u16));
        }
    }

    /// Two-level arbitration: a port in turns, one of its virtual queues by weight.
    fn send(&mut self, now: Time, port: usize, out: &mut Vec<(usize, Message)>) {
        let output = &mut self.outputs[port];
        let inputs = output.inputs.len();
        let mut input = output.turn;
        let (input, kind) = loop {
            let v = &output.inputs[input];
            let waits = [0, 1].map(|q: usize| !v.queues[q].is_empty());
            if let Some(kind) = v.turns.next(waits) {
                break (input, kind);
            }
            input = (input + 1) % inputs;
            if input == output.turn {
                return;
            }
        };
        let v = &mut output.inputs[input];
        if v.queues[kind].front().is_none_or(|w| u64::from(w.packet.bytes) > output.credits) {
            // The other end is full. Its credits wake the output.
            output.turn = input;
            return;
        }
        let Some(Waiting { mut packet, holds }) = v.queues[kind].pop_front() else { return };
        v.turns.went(kind);
        output.turn = (input + 1) % inputs;
        output.waiting -= 1;
        let bytes = u64::from(packet.bytes);
        output.waiting_bytes -= bytes;
        output.credits -= bytes;
        let time = transmission(self.ps_1024_per_byte, packet.bytes);
        let wait = now - packet.queued;
        packet.spent.queue += wait;
        packet.spent.switch += time;
        output.free_at = now + time;
        output.counts.busy += time;
        output.counts.packets += 1;
        output.counts.bytes += bytes;
        output.counts.page_bytes += if packet.kind.is_page() { bytes } else { 0 };
        let to_pool = port >= self.nodes;
        let node = usize::from(packet.node);
        let packets = output.counts.packets;
        self.tracer.add_at(port as u16, Place::Output, &packet, now, now + time);
        if let Some(holder) = holds {
            self.release(now, usize::from(holder), packet.bytes);
        }
        let message = Message::Packet(now + time + self.propagation, packet);
        if let Some(fault_injection) = self.fault_injection
            && !to_pool
            && packets.is_multiple_of(1000)
        {
            match fault_injection {
                FaultInjection::LosePackets => return self.wake(now, port),
                FaultInjection::AnswerTwice => out.push((port, message.clone())),
                _ => {}
            }
        }
        out.push((port, message));
        self.wake(now, port);
        if to_pool && self.scheme.partition {
            self.select(now, node);
        }
    }

    /// One round of a node's request selector, as fast as answers can come back over its link.
    fn select(&mut self, now: Time, node: usize) {
        if !self.scheme.partition
            || self.selecting[node]
            || !self.controllers[node].access.has_work()
        {
            return;
        }
        let next = self.controllers[node].access.next;
        if next > now {
            self.selecting[node] = true;
            self.schedule(next, Event::Select(node as u16));
            return;
        }
        let (outputs, nodes, most) = (&self.outputs, self.nodes, self.output_queue);
        let room = |pool: usize| outputs[nodes + pool].inputs[node].queues[0].len() < most;
        let controller = &mut self.controllers[node];
        let Some(mut packet) = controller.access.select(now, node, &controller.pending, room)
        else {
            // The output wakes it when it has sent.
            return;
        };
        // Only requests answered with data fill the way back.
        let time = if packet.kind == Kind::Write { 0 } else { self.block_time };
        controller.access.next = now.max(next) + time;
        let waited = now - packet.queued;
        packet.spent.queue += waited;
        self.route(now, packet, None);
        if !self.held[node].is_empty() {
            self.after(now, node);
        } else {
            self.select(now, node);
        }
    }

    /// Sends the next block of a page to its node, when the node's link is idle or the pages' share
    /// of it is due.
    fn copy(&mut self, now: Time, node: usize) {
        if self.pace[node].scheduled || !self.controllers[node].has_copies() {
            return;
        }
        let pace = &mut self.pace[node];
        let gap = pace.busy_until.saturating_sub(2 * self.block_time).min(pace.forced);
        if gap > now {
            pace.scheduled = true;
            self.schedule(gap, Event::Copy(node as u16));
            return;
        }
        pace.busy_until = pace.busy_until.max(now) + self.block_time;
        pace.forced = now + self.page_share;
        if let Some(packet) = self.controllers[node].next_copy() {
            self.route(now, packet, None);
        }
        if self.controllers[node].has_copies() {
            self.pace[node].scheduled = true;
            self.schedule(now + self.block_time, Event::Copy(node as u16));
        }
    }

    /// Free bytes that an output has recorded at its other end: all of them when a run has come to
    /// rest.
    pub fn credits(&self, port: usize) -> u64 {
        self.outputs[port].credits
    }

    /// The number of waiting packets in the switch: 0 when a run has come to rest.
    pub fn waiting(&self) -> usize {
        let outputs: usize = self.outputs.iter().map(|o| o.waiting).sum();
        let held: usize = self.held.iter().map(VecDeque::len).sum();
        let inside: usize = self
            .controllers
            .iter()
            .map(|c| c.pending.len() + c.access.blocks() + c.access.pages_under_way())
            .sum();
        outputs + held + inside + (self.slots.len() - self.free.len())
    }
}

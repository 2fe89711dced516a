//! A network interface: packetization and a link out, a link in and depacketization.

use std::collections::VecDeque;

use crate::config::{NetworkConfig, ps, ps_1024_per_byte};
use crate::link::{Sender, Share, transmission};
use crate::packet::{Message, Packet};
use crate::trace::{Place, Tracer};
use crate::{NEVER, Time};

/// The interface of a node or a pool.
#[derive(Debug, Clone)]
pub struct Nic {
    /// To the switch.
    pub out: Sender,
    processing: Time,
    propagation: Time,
    ps_1024_per_byte: u64,
    /// Credits of the switch that will arrive, and when.
    credits: VecDeque<(Time, u64)>,
    /// When the way in is free again.
    in_free_at: Time,
    /// Arrived packets, by the time at which they are depacketized.
    delivered: VecDeque<(Time, Packet)>,
    /// Bytes that left the input buffer since the last report, and when the last did.
    freed: u64,
    freed_at: Time,
    /// Time spent receiving.
    pub in_busy: Time,
    /// Packets sent, where they are traced.
    pub tracer: Tracer,
    /// Bytes received.
    pub in_bytes: u64,
    /// Packets received.
    pub in_packets: u64,
}

impl Nic {
    /// An idle interface.
    pub fn new(network: &NetworkConfig, share: Share) -> Self {
        let rate = ps_1024_per_byte(network.nic_gbit_per_s);
        Nic {
            out: Sender::new(rate, network.nic_buffer.0, network.port_buffer.0, share),
            processing: ps(network.nic_ns),
            propagation: ps(network.propagation_ns),
            ps_1024_per_byte: rate,
            credits: VecDeque::new(),
            in_free_at: 0,
            delivered: VecDeque::new(),
            freed: 0,
            freed_at: 0,
            in_busy: 0,
            tracer: Tracer::default(),
            in_bytes: 0,
            in_packets: 0,
        }
    }

    /// Takes a packet to be sent. The caller has checked that there is room.
    pub fn send(&mut self, now: Time, mut packet: Packet) {
        packet.spent.nic += self.processing + transmission(self.ps_1024_per_byte, packet.bytes);
        self.out.push(now + self.processing, packet);
    }

    /// When the next packet leaves, or the switch's credits arrive that it may wait for.
    pub fn next_departure(&self) -> Time {
        self.out.next().min(self.credits.front().map_or(NEVER, |c| c.0))
    }

    /// Processes the event of [`Nic::next_departure`]: may return a packet that leaves.
    pub fn depart(&mut self, now: Time) -> Option<Message> {
        while let Some(&(at, bytes)) = self.credits.front()
            && at <= now
        {
            self.out.credit(at, bytes);
            self.credits.pop_front();
        }
        if self.out.next() > now {
            return None;
        }
        let (packet, end) = self.out.send(now)?;
        self.tracer.add(Place::Interface, &packet, now, end);
        Some(Message::Packet(end + self.propagation, packet))
    }

    /// Receives a message of the switch. Packets come in the order of their arrival.
    pub fn receive(&mut self, message: Message) {
        match message {
            Message::Credit(at, bytes) => self.credits.push_back((at, bytes)),
            Message::Packet(arrival, mut packet) => {
                let time = transmission(self.ps_1024_per_byte, packet.bytes);
                let start = arrival.max(self.in_free_at);
                packet.spent.queue += start - arrival;
                packet.spent.nic += time + self.processing;
                self.in_free_at = start + time;
                self.in_busy += time;
                self.in_bytes += u64::from(packet.bytes);
                self.in_packets += 1;
                self.delivered.push_back((self.in_free_at + self.processing, packet));
            }
        }
    }

    /// When the next packet is depacketized.
    pub fn next_delivery(&self) -> Time {
        self.delivered.front().map_or(NEVER, |d| d.0)
    }

    /// Removes it from the interface. Its buffer is free when [`Nic::release`] is called.
    pub fn deliver(&mut self) -> Option<Packet> {
        self.delivered.pop_front().map(|d| d.1)
    }

    /// Bytes of the input buffer are free again.
    pub fn release(&mut self, now: Time, bytes: u32) {
        self.freed += u64::from(bytes);
        self.freed_at = now;
    }

    /// The report of freed bytes to the switch; it is known there `window` after the last was
    /// freed.
    pub fn credit(&mut self, window: Time) -> Option<Message> {
        let bytes = std::mem::take(&mut self.freed);
        (bytes > 0).then(|| Message::Credit(self.freed_at + window, bytes))
    }
}

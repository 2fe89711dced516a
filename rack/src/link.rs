//! One direction of a link: a server that sends packets one after the other into the finite buffer
//! at its other end, whose free bytes it tracks (credits). Nothing is ever dropped.

use std::collections::VecDeque;

use crate::packet::Packet;
use crate::{NEVER, Time};

/// The order of waiting packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// The one that arrived first.
    Fifo,
    /// While both kinds wait, so many blocks, then so many pages.
    Weighted(u32, u32),
}

/// Turns of two kinds of traffic by weight.
#[derive(Debug, Clone)]
pub struct Turns {
    weights: [u32; 2],
    left: u32,
    kind: usize,
}

impl Turns {
    /// Blocks first.
    pub fn new(block_weight: u32, page_weight: u32) -> Self {
        Turns { weights: [block_weight, page_weight], left: block_weight, kind: 0 }
    }

    /// Sets other weights from now on.
    pub fn set(&mut self, block_weight: u32, page_weight: u32) {
        self.weights = [block_weight, page_weight];
        self.left = self.left.min(self.weights[self.kind]).max(1);
    }

    /// The kind whose turn it is, of those that wait.
    pub fn next(&self, waits: [bool; 2]) -> Option<usize> {
        match waits {
            [true, true] => Some(self.kind),
            [true, false] => Some(0),
            [false, true] => Some(1),
            [false, false] => None,
        }
    }

    /// Records that one of `kind` was sent.
    pub fn went(&mut self, kind: usize) {
        if kind != self.kind {
            return;
        }
        self.left -= 1;
        if self.left == 0 {
            self.kind = 1 - kind;
            self.left = self.weights[self.kind];
        }
    }
}

/// Transfer time of `bytes`.
#[inline]
pub fn transmission(ps_1024_per_byte: u64, bytes: u32) -> Time {
    (ps_1024_per_byte * u64::from(bytes)) >> 10
}

/// The sending end.
#[derive(Debug, Clone)]
pub struct Sender {
    queues: [VecDeque<(Time, Packet)>; 2],
    share: Share,
    turns: Turns,
    /// Bytes that wait here, and the limit.
    waiting_bytes: u64,
    capacity_bytes: u64,
    credits: u64,
    free_at: Time,
    ps_1024_per_byte: u64,
    /// Time spent sending.
    pub busy: Time,
    /// Packets and bytes sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Most bytes that waited.
    pub waiting_bytes_max: u64,
}

impl Sender {
    /// Idle, with the whole buffer at the other end free.
    pub fn new(ps_1024_per_byte: u64, capacity_bytes: u64, credits: u64, share: Share) -> Self {
        let turns = match share {
            Share::Fifo => Turns::new(1, 1),
            Share::Weighted(block, page) => Turns::new(block, page),
        };
        Sender {
            queues: [VecDeque::new(), VecDeque::new()],
            share,
            turns,
            waiting_bytes: 0,
            capacity_bytes,
            credits,
            free_at: 0,
            ps_1024_per_byte,
            busy: 0,
            packets: 0,
            bytes: 0,
            waiting_bytes_max: 0,
        }
    }

    /// Whether a packet of so many bytes has room to wait.
    pub fn has_room(&self, bytes: u32) -> bool {
        self.waiting_bytes + u64::from(bytes) <= self.capacity_bytes
    }

    /// Bytes that wait.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.waiting_bytes == 0
    }

    /// Puts a packet in its queue; it may be sent from `ready` on. Times do not decrease.
    pub fn push(&mut self, ready: Time, packet: Packet) {
        self.waiting_bytes += u64::from(packet.bytes);
        self.waiting_bytes_max = self.waiting_bytes_max.max(self.waiting_bytes);
        let queue = match self.share {
            Share::Fifo => 0,
            Share::Weighted(..) => usize::from(packet.kind.is_page()),
        };
        self.queues[queue].push_back((ready, packet));
    }

    /// Bytes of the buffer at the other end are free again, known here at `now`: packets that
    /// waited for them cannot have been sent before.
    pub fn credit(&mut self, now: Time, bytes: u64) {
        self.credits += bytes;
        self.free_at = self.free_at.max(now);
    }

    /// Free bytes of the buffer at the other end.
    pub fn credits(&self) -> u64 {
        self.credits
    }

    /// When the next packet can be sent, if credits permit.
    #[inline]
    pub fn next(&self) -> Time {
        if self.waiting_bytes == 0 {
            return NEVER;
        }
        let at = self.start_time();
        match self.choice(at) {
            // Waits for its turn even if another packet would fit: large packets must not starve.
            Some(q) if u64::from(self.queues[q][0].1.bytes) <= self.credits => at,
            _ => NEVER,
        }
    }

    fn start_time(&self) -> Time {
        let ready = self.queues.iter().filter_map(|q| q.front()).map(|f| f.0).min();
        ready.unwrap_or(NEVER).max(self.free_at)
    }

    fn choice(&self, at: Time) -> Option<usize> {
        self.turns.next([0, 1].map(|q: usize| self.queues[q].front().is_some_and(|f| f.0 <= at)))
    }

    /// Sends the packet that is due at `now`, which [`Sender::next`] returned: the packet, and the
    /// time at which its last bit leaves.
    pub fn send(&mut self, now: Time) -> Option<(Packet, Time)> {
        let kind = self.choice(now)?;
        let (ready, mut packet) = self.queues[kind].pop_front()?;
        self.turns.went(kind);
        let bytes = u64::from(packet.bytes);
        debug_assert!(bytes <= self.credits && now >= self.free_at);
        self.credits -= bytes;
        self.waiting_bytes -= bytes;
        let time = transmission(self.ps_1024_per_byte, packet.bytes);
        packet.spent.queue += now - ready;
        self.free_at = now + time;
        self.busy += time;
        self.packets += 1;
        self.bytes += bytes;
        Some((packet, self.free_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::RemotePage;
    use crate::packet::Kind;

    fn packet(kind: Kind, block: u8) -> Packet {
        Packet::new(kind, 0, RemotePage(0), block, 16)
    }

    /// 100 Gb/s: 80 ps a byte.
    fn sender(credits: u64, share: Share) -> Sender {
        Sender::new(crate::config::ps_1024_per_byte(100.0), 1 << 20, credits, share)
    }

    #[test]
    fn packets_leave_one_after_the_other_at_the_bandwidth() {
        let mut s = sender(1 << 20, Share::Fifo);
        s.push(1000, packet(Kind::Read, 0));
        s.push(1000, packet(Kind::Write, 1));
        assert_eq!(s.next(), 1000);
        let (_, end) = s.send(1000).unwrap();
        assert_eq!(end, 1000 + 16 * 80);
        assert_eq!(s.next(), end);
        let (p, end) = s.send(end).unwrap();
        assert_eq!((p.spent.queue, end), (16 * 80, 1000 + 96 * 80));
        assert_eq!(s.next(), NEVER);
        assert_eq!((s.packets, s.bytes, s.busy), (2, 96, 96 * 80));
    }

    #[test]
    fn without_room_at_the_other_end_it_waits() {
        let mut s = sender(100, Share::Fifo);
        s.push(0, packet(Kind::Write, 0));
        s.push(0, packet(Kind::Write, 1));
        let (_, end) = s.send(s.next()).unwrap();
        assert_eq!(s.next(), NEVER);
        s.credit(end + 5, 80);
        assert_eq!(s.next(), end + 5);
    }

    #[test]
    fn weights_divide_the_link_while_both_wait() {
        let mut s = sender(1 << 20, Share::Weighted(2, 1));
        for block in 0..6 {
            s.push(0, packet(Kind::PageDataBlock, block));
            s.push(0, packet(Kind::Data, block));
        }
        let mut order = String::new();
        while s.next() != NEVER {
            let (p, _) = s.send(s.next()).unwrap();
            order.push(if p.kind.is_page() { 'p' } else { 'b' });
        }
        assert_eq!(order, "bbpbbpbbpppp");
    }

    #[test]
    fn a_large_packet_is_not_starved_by_small_ones_that_fit() {
        let mut s = sender(200, Share::Weighted(1, 1));
        s.push(0, packet(Kind::Read, 0));
        s.push(0, packet(Kind::PageData, 0));
        s.push(0, packet(Kind::Read, 1));
        assert!(s.send(s.next()).is_some());
        assert_eq!(s.next(), NEVER);
        s.credit(0, 5000);
        assert_eq!(s.send(s.next()).unwrap().0.kind, Kind::PageData);
    }
}

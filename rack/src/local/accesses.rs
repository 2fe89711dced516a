//! Reads and writes of the processor: to local DRAM, or to a remote page over the network.

use terrace_hardware::address::Kind as Access;
use terrace_hardware::request::{Completion, RequestId};
use terrace_hardware::units::Picoseconds;

use crate::Time;
use crate::config::PAGE_BYTES;
use crate::local::requests::Queued;
use crate::local::{LocalMemory, NOBODY, Wake};
use crate::packet::{Kind, Packet, Spent};
use crate::pages::{Place, TABLES_AT};

/// A miss under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Miss {
    since: Time,
    page: u32,
    /// The value that must be read, where data are checked and it is known.
    expected: Option<u64>,
    remote: bool,
    /// The page was arriving: its remote page is not free before this read is done.
    arrival: Option<u32>,
}

impl LocalMemory {
    /// Issues a request whose time has come.
    pub(super) fn issue(&mut self, now: Time, queued: Queued) {
        let id = RequestId(queued.id);
        if queued.address >= TABLES_AT {
            // In the last eighth of local memory.
            let offset = (queued.address - TABLES_AT) % (u64::from(self.most_frames) / 8 * 4096);
            let address = u64::from(self.most_frames) * PAGE_BYTES + offset;
            let kind = if queued.write { Access::Write } else { Access::Read };
            self.dram_submit(now, NOBODY, address, kind);
            return;
        }
        let page = (queued.address >> 12) as u32;
        let block = (queued.address >> 6) as u8 & 63;
        if queued.write {
            self.write(now, page, block);
            return;
        }
        if self.misses.len() >= self.mshrs {
            self.waiting.push_back(queued);
            return;
        }
        self.read(now, id, queued.at, page, block);
    }

    pub(super) fn key(page: u32, block: u8) -> u64 {
        u64::from(page) << 6 | u64::from(block)
    }

    pub(super) fn read(&mut self, now: Time, id: RequestId, since: Time, page: u32, block: u8) {
        self.pages.accessed(now, page);
        let expected = self.check.as_ref().and_then(|c| c.expected(page, block));
        let mut miss = Miss { since, page, expected, remote: false, arrival: None };
        let frame = match self.pages.place(page) {
            Place::Local(frame) => Some(frame),
            Place::Out(n) => Some(self.departures[n as usize].frame),
            Place::Remote(_) => None,
            Place::In(n) => {
                let arrival = &mut self.arrivals[n as usize];
                if arrival.written >> block & 1 != 0 {
                    Some(arrival.frame)
                } else {
                    arrival.reads += 1;
                    miss.arrival = Some(n);
                    None
                }
            }
        };
        if let Some(frame) = frame {
            if let (Some(check), Some(expected)) = (&self.check, expected) {
                let value = check.frames.get(&frame).map_or(0, |v| v[usize::from(block)]);
                self.counts.checked_values += 1;
                self.counts.wrong_values += u64::from(value != expected);
            }
            self.misses.insert(id, miss);
            self.dram_submit(now, id, Self::frame_address(frame, block), Access::Read);
            return;
        }
        let remote = match self.pages.place(page) {
            Place::Remote(remote) => remote,
            Place::In(n) => self.arrivals[n as usize].remote,
            _ => unreachable!("the page is remote"),
        };
        miss.remote = true;
        self.misses.insert(id, miss);
        let remote = self.translation.remote(remote);
        let mut packet = Packet::new(Kind::Read, self.node, remote, block, self.header_bytes);
        packet.id = id;
        packet.spent.queue = now - since;
        self.send(now + self.translation_time, packet);
    }

    fn write(&mut self, now: Time, page: u32, block: u8) {
        self.pages.accessed(now, page);
        let value = self.written_now(page, block);
        let bit = 1u64 << block;
        let frame = match self.pages.place(page) {
            Place::Local(frame) => frame,
            Place::In(n) => {
                let arrival = &mut self.arrivals[n as usize];
                arrival.written |= bit;
                arrival.frame
            }
            Place::Out(n) => {
                let departure = &mut self.departures[n as usize];
                departure.written |= if departure.sent { bit } else { 0 };
                departure.frame
            }
            Place::Remote(remote) => {
                self.send_write(now, remote, block, value);
                return;
            }
        };
        self.counts.local_writes += 1;
        self.put(frame, block, value);
        self.dram_submit(now, NOBODY, Self::frame_address(frame, block), Access::Write);
    }

    /// The value of a block write, where data are checked.
    pub(super) fn written_now(&mut self, page: u32, block: u8) -> u64 {
        let Some(check) = &mut self.check else { return 0 };
        check.next += 1;
        check.written.insert(Self::key(page, block), check.next);
        check.next
    }

    pub(super) fn send_write(&mut self, now: Time, remote: u32, block: u8, value: u64) {
        self.counts.remote_writes += 1;
        let remote = self.translation.remote(remote);
        let mut packet = Packet::new(Kind::Write, self.node, remote, block, self.header_bytes);
        packet.value = value;
        self.send(now + self.translation_time, packet);
    }

    pub(super) fn put(&mut self, frame: u32, block: u8, value: u64) {
        if let Some(check) = &mut self.check {
            let values = check.frames.entry(frame).or_insert_with(|| Box::new([0; 64]));
            values[usize::from(block)] = value;
        }
    }

    /// Mean time so far of reads from local memory, and of reads from a pool.
    pub(super) fn mean_times(&self) -> (Time, Time) {
        let c = &self.counts;
        let local = c.local_ps.checked_div(c.local_reads).unwrap_or(50_000);
        let from_pools = (c.remote_ps - c.buffer_ps).checked_div(c.remote_reads - c.buffer_reads);
        (local, from_pools.unwrap_or(local * 3))
    }

    /// Where data are checked: the parts of a remote read, and its ways over the network, are all of
    /// its time.
    fn check_parts(&mut self, latency: Time, spent: Spent) {
        let Spent { nic, switch, queue, dram } = spent;
        // Without a pool only to the switch and back.
        let hops = if dram == 0 { 2 } else { 4 };
        let parts = nic + switch + queue + dram + hops * self.propagation;
        // A packet that waits for room is translated meanwhile.
        let translated = parts + self.translation_time;
        if self.check.is_some() && !(parts..=translated).contains(&latency) {
            self.problem = Some(format!(
                "a read took {latency} ps, its parts {parts} ps: interfaces {nic}, switch {switch}, \
                 queues {queue}, pool {dram}, {hops} hops"
            ));
        }
    }

    /// A read is done; `packet` if it was answered over the network.
    pub(super) fn finish(&mut self, now: Time, id: RequestId, packet: Option<&Packet>) -> Wake {
        let Some(miss) = self.misses.remove(&id) else {
            self.problem = Some(format!("request {} was answered twice", id.0));
            return Wake::Nobody;
        };
        let latency = now - miss.since;
        let c = &mut self.counts;
        match packet {
            None => {
                c.local_reads += 1;
                c.local_ps += latency;
                c.local_latency.add(latency);
                if self.pages.is_migrated(miss.page) {
                    c.migrated_reads += 1;
                    self.ledger.accesses += 1;
                }
            }
            Some(packet) => {
                let Spent { nic, switch, queue, dram } = packet.spent;
                self.check_parts(latency, packet.spent);
                let c = &mut self.counts;
                c.remote_reads += 1;
                c.remote_ps += latency;
                // No pool was accessed: a page buffer had the block, or got it while this waited.
                let buffered = dram == 0;
                if buffered {
                    c.buffer_reads += 1;
                    c.buffer_ps += latency;
                }
                if packet.buffered {
                    c.buffer_hits += 1;
                    c.buffer_hit_ps += latency;
                }
                let l = &mut c.remote_latency;
                let parts = [latency, nic, switch, queue, dram];
                for (sum, part) in l.sums.iter_mut().zip(parts) {
                    *sum += part;
                }
                l.total.add(latency);
                l.nic.add(nic);
                l.switch.add(switch);
                l.queue.add(queue);
                l.dram.add(dram);
                if let Some(expected) = miss.expected {
                    c.checked_values += 1;
                    c.wrong_values += u64::from(packet.value != expected);
                }
                let (local, remote) = self.mean_times();
                if buffered && self.credit_buffers {
                    self.ledger.buffered += remote.saturating_sub(latency);
                }
                if self.pages.is_victim(miss.page) {
                    self.ledger.victims += latency.saturating_sub(local);
                }
            }
        }
        if let Some(n) = miss.arrival {
            self.arrivals[n as usize].reads -= 1;
            self.free_arrival(n);
        }
        while self.misses.len() < self.mshrs
            && let Some(queued) = self.waiting.pop_front()
        {
            let page = (queued.address >> 12) as u32;
            self.read(now, RequestId(queued.id), queued.at, page, (queued.address >> 6) as u8 & 63);
        }
        Wake::Completed(Completion { id, done: Picoseconds(now) })
    }
}

//! Threads that copy pages: each reads lines of the old frame and writes them to the new one, with
//! as many under way as its core can have. So a copy is as fast as the tiers allow and takes their
//! bandwidth from the programs.

use std::collections::VecDeque;

use terrace_hardware::address::{Kind, PhysicalAddress};
use terrace_hardware::node::{MemoryPort, Node};
use terrace_hardware::request::{Request, RequestId, When};
use terrace_hardware::units::Picoseconds;

/// A copy of some bytes from one place to another; an exchange swaps the contents of both places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) from: PhysicalAddress,
    pub(super) to: PhysicalAddress,
    pub(super) size_bytes: u64,
    pub(super) exchange: bool,
}

/// The maximum rate of one thread, counting the bytes written: instructions take time too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rates {
    pub(super) copy_gb_per_s: f64,
    pub(super) exchange_gb_per_s: f64,
}

/// One copying thread. It reads as many lines as its core can have under way, waits for the last of
/// them, and goes on; writes are posted, so that only the tier's bandwidth limits them.
#[derive(Debug, Clone)]
pub(super) struct Copier {
    /// The core that it runs on.
    pub(super) core: usize,
    /// The thread's current time.
    pub(super) now: Picoseconds,
    /// Copies left to do.
    work: VecDeque<Transfer>,
    outstanding: u64,
    line_bytes: u64,
    rates: Rates,
    requests: u64,
    /// Requests of this turn that were pending when made, and their completion times.
    pending: Vec<(RequestId, Option<Picoseconds>)>,
    copied_bytes: u64,
}

/// Request numbers of copiers begin here: the node's own stay below. The low bits mean that no core
/// waits.
const FIRST_REQUEST: u64 = 1 << 63 | 0xFFFF;

impl Copier {
    /// A thread on `core` that has `outstanding` lines under way at most. `number` identifies the
    /// copier.
    pub(super) fn new(
        core: usize,
        number: usize,
        outstanding: u32,
        line_bytes: u64,
        rates: Rates,
    ) -> Self {
        Copier {
            core,
            now: Picoseconds::ZERO,
            work: VecDeque::new(),
            outstanding: u64::from(outstanding.max(1)),
            line_bytes,
            rates,
            requests: (number as u64) << 40,
            pending: Vec::new(),
            copied_bytes: 0,
        }
    }

    /// Adds a copy to be done from `at` on.
    pub(super) fn give(&mut self, at: Picoseconds, transfer: Transfer) {
        if self.work.is_empty() {
            self.now = self.now.max(at);
        }
        self.work.push_back(transfer);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.work.is_empty()
    }

    /// Bytes written so far.
    pub(super) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Copies until `horizon`, or until no work is left.
    pub(super) fn run(
        &mut self,
        horizon: Picoseconds,
        node: &mut Node,
        memory: &mut impl MemoryPort,
    ) {
        while self.now <= horizon {
            let Some(transfer) = self.work.front_mut() else { return };
            let sides = if transfer.exchange { 2 } else { 1 };
            let bytes =
                transfer.size_bytes.min((self.outstanding / sides).max(1) * self.line_bytes);
            let part = Transfer { size_bytes: bytes, ..*transfer };
            transfer.from.0 += bytes;
            transfer.to.0 += bytes;
            transfer.size_bytes -= bytes;
            if transfer.size_bytes == 0 {
                self.work.pop_front();
            }
            self.turn(part, node, memory);
            self.copied_bytes += sides * bytes;
        }
    }

    fn turn(&mut self, part: Transfer, node: &mut Node, memory: &mut impl MemoryPort) {
        let offsets = (0..part.size_bytes).step_by(self.line_bytes as usize);
        let at = |a: PhysicalAddress, offset| PhysicalAddress(a.0 + offset);
        let (bytes, gb_per_s) = match part.exchange {
            true => (2 * part.size_bytes, self.rates.exchange_gb_per_s),
            false => (part.size_bytes, self.rates.copy_gb_per_s),
        };
        let instructions = (bytes as f64 * 1000.0 / gb_per_s.max(1e-6)) as u64;
        let mut done = self.now + Picoseconds(instructions);
        for offset in offsets.clone() {
            done = done.max(self.read(at(part.from, offset), memory));
            if part.exchange {
                done = done.max(self.read(at(part.to, offset), memory));
            }
        }
        done = done.max(self.await_pending(node, memory));
        for offset in offsets {
            self.write(done, at(part.to, offset), memory);
            if part.exchange {
                self.write(done, at(part.from, offset), memory);
            }
        }
        self.now = done;
    }

    fn request(&mut self, address: PhysicalAddress, kind: Kind) -> Request {
        self.requests += 1;
        Request { id: RequestId(FIRST_REQUEST | self.requests << 16), address, kind }
    }

    fn read(&mut self, address: PhysicalAddress, memory: &mut impl MemoryPort) -> Picoseconds {
        let request = self.request(address, Kind::Read);
        match memory.submit(self.now, request).0 {
            When::At(done) => done,
            When::Pending(id) => {
                self.pending.push((id, None));
                self.now
            }
        }
    }

    fn write(&mut self, at: Picoseconds, address: PhysicalAddress, memory: &mut impl MemoryPort) {
        let request = self.request(address, Kind::Write);
        memory.submit(at, request);
    }

    /// Lets memory run until the last pending read of this turn is done; completions that cores
    /// wait for are passed to them.
    fn await_pending(&mut self, node: &mut Node, memory: &mut impl MemoryPort) -> Picoseconds {
        let mut left = self.pending.len();
        while left > 0 {
            let Some(completion) = memory.next_completion() else { break };
            match self.pending.iter_mut().find(|p| p.0 == completion.id) {
                Some(mine) => {
                    mine.1 = Some(completion.done);
                    left -= 1;
                }
                None => node.resolve(completion),
            }
        }
        let last = self.pending.drain(..).filter_map(|p| p.1).max();
        last.unwrap_or(Picoseconds::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_hardware::presets;
    use terrace_hardware::tier::memory::TieredMemory;

    /// Bytes per ns when one thread copies 1 MB from tier to tier.
    fn gb_per_s(machine: &str, from: usize, to: usize, exchange: bool) -> f64 {
        let config = presets::by_name(machine).unwrap();
        let mut memory = TieredMemory::new(&config.tiers).unwrap();
        let mut node = Node::new(&config.node).unwrap();
        let rates = Rates { copy_gb_per_s: 1e6, exchange_gb_per_s: 1e6 };
        let mut copier = Copier::new(0, 0, config.node.core.outstanding_misses, 64, rates);
        let size_bytes = 1 << 20;
        let to = PhysicalAddress(memory.start(to).0 + (64 << 20));
        let transfer = Transfer { from: memory.start(from), to, size_bytes, exchange };
        copier.give(Picoseconds::from_ns(500), transfer);
        copier.run(Picoseconds(u64::MAX), &mut node, &mut memory);
        assert!(copier.is_idle());
        let sides = if exchange { 2 } else { 1 };
        assert_eq!(copier.copied_bytes(), sides * size_bytes);
        copier.copied_bytes() as f64 / (copier.now.as_ns() - 500.0)
    }

    #[test]
    fn a_copy_is_as_fast_as_the_lines_under_way_and_the_latency_let_it_be() {
        // 16 lines of 64 bytes in 84.7 ns (108 less the caches'), 12.1 GB/s, less the time that
        // the channels take to send them.
        let local = gb_per_s("server-ddr5-cxl", 0, 0, false);
        assert!((9.0..12.2).contains(&local), "{local} GB/s");
        let from_cxl = gb_per_s("server-ddr5-cxl", 1, 0, false);
        assert!((3.5..5.4).contains(&from_cxl), "{from_cxl} GB/s");
        // The slow tier's reads limit an exchange; half the lines under way are the other side's.
        let exchange = gb_per_s("server-ddr5-cxl", 1, 0, true);
        assert!((0.7 * from_cxl..1.3 * from_cxl).contains(&exchange), "{exchange} GB/s");
    }

    #[test]
    fn dram_by_command_copies_too() {
        let queue = gb_per_s("server-ddr5-cxl", 1, 0, false);
        let commands = gb_per_s("server-ddr5-cxl-timing", 1, 0, false);
        assert!((0.6..1.4).contains(&(commands / queue)), "{commands} against {queue} GB/s");
    }
}

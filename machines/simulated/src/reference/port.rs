//! The path from the processor to memory, with counts of the traffic: reads and writes by tier and,
//! if requested, reads by frame.

use terrace_hardware::address::{BASE_PAGE_BITS, Kind};
use terrace_hardware::node::MemoryPort;
use terrace_hardware::request::{Completion, Request, When};
use terrace_hardware::tier::memory::TieredMemory;
use terrace_hardware::units::Picoseconds;

use super::counts::{Counts, TIERS};
use super::meter::ReadMeter;

/// Lines read by base-page frame.
#[derive(Debug, Clone, Default)]
pub(super) struct FrameReads(Vec<u32>);

impl FrameReads {
    /// Counts for so much memory.
    pub(super) fn new(size_bytes: u64) -> Self {
        FrameReads(vec![0; (size_bytes >> BASE_PAGE_BITS) as usize])
    }

    /// Whether reads are counted.
    pub(super) fn are_counted(&self) -> bool {
        !self.0.is_empty()
    }

    /// The counts of the frames from this one on; they restart at 0.
    pub(super) fn take(&mut self, first: u64, frames: u64) -> u64 {
        let frames = first as usize..(first + frames) as usize;
        let Some(reads) = self.0.get_mut(frames) else { return 0 };
        let sum = reads.iter().map(|&n| u64::from(n)).sum();
        reads.fill(0);
        sum
    }

    #[inline(always)]
    fn add(&mut self, request: &Request) {
        if let Some(reads) = self.0.get_mut((request.address.0 >> BASE_PAGE_BITS) as usize) {
            *reads = reads.saturating_add(1);
        }
    }
}

/// The memory port of one program for a while.
pub(super) struct Port<'a> {
    memory: &'a mut TieredMemory,
    frames: &'a mut FrameReads,
    meter: Option<&'a mut ReadMeter>,
    reads: [u64; TIERS],
    writes: [u64; TIERS],
}

impl<'a> Port<'a> {
    pub(super) fn new(memory: &'a mut TieredMemory, frames: &'a mut FrameReads) -> Self {
        Port { memory, frames, meter: None, reads: [0; TIERS], writes: [0; TIERS] }
    }

    /// The same port, with the meter of its reads.
    pub(super) fn measured(self, meter: &'a mut ReadMeter) -> Self {
        Port { meter: Some(meter), ..self }
    }

    /// Adds the traffic since the last time.
    pub(super) fn give(&mut self, counts: &mut Counts) {
        for tier in 0..TIERS {
            counts.reads[tier] += std::mem::take(&mut self.reads[tier]);
            counts.writes[tier] += std::mem::take(&mut self.writes[tier]);
        }
    }
}

impl MemoryPort for Port<'_> {
    #[inline]
    fn submit(&mut self, at: Picoseconds, request: Request) -> (When, usize) {
        let (when, tier) = self.memory.submit(at, request);
        match request.kind {
            Kind::Read => {
                self.reads[tier.min(TIERS - 1)] += 1;
                self.frames.add(&request);
                if let Some(meter) = &mut self.meter {
                    meter.read(at, request.address, when, tier);
                }
            }
            Kind::Write => self.writes[tier.min(TIERS - 1)] += 1,
        }
        (when, tier)
    }

    fn next_completion(&mut self) -> Option<Completion> {
        self.memory.next_completion()
    }
}

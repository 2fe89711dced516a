//! The way from the processor to memory, with a count of what went by: reads and writes by tier,
//! and, where they are wanted, the time of memory by frame.

use terrace_hardware::address::{BASE_PAGE_BITS, Kind};
use terrace_hardware::node::MemoryPort;
use terrace_hardware::request::{Completion, Request, When};
use terrace_hardware::tier::memory::TieredMemory;
use terrace_hardware::units::Picoseconds;

use super::counts::{Counts, TIERS};

/// By base-page frame: the time that memory worked for its lines and for nothing read before them.
/// Lines that come while others are under way add only what they take longer, so that the sum is
/// the time in which anything was read, and a page that is waited for counts for more than one whose
/// lines come beside others.
#[derive(Debug, Clone, Default)]
pub(super) struct FrameTimes {
    by_frame_ns: Vec<u32>,
    /// When the last of the lines read so far is there.
    busy_until: Picoseconds,
}

impl FrameTimes {
    /// Times for so much memory.
    pub(super) fn new(size_bytes: u64) -> Self {
        let frames = (size_bytes >> BASE_PAGE_BITS) as usize;
        FrameTimes { by_frame_ns: vec![0; frames], busy_until: Picoseconds::ZERO }
    }

    /// Whether anything is counted.
    pub(super) fn are_counted(&self) -> bool {
        !self.by_frame_ns.is_empty()
    }

    /// What was counted for the frames from this one on, in ns; they begin anew.
    pub(super) fn take(&mut self, first: u64, frames: u64) -> u64 {
        let frames = first as usize..(first + frames) as usize;
        let Some(times) = self.by_frame_ns.get_mut(frames) else { return 0 };
        let sum = times.iter().map(|&ns| u64::from(ns)).sum();
        times.fill(0);
        sum
    }

    #[inline(always)]
    fn add(&mut self, at: Picoseconds, request: &Request, when: When) {
        if self.by_frame_ns.is_empty() {
            return;
        }
        // A memory whose answers come later counts each line alike.
        let ns = match when {
            When::At(done) => {
                let alone = done.since(at.max(self.busy_until));
                self.busy_until = self.busy_until.max(done);
                alone.0.div_ceil(1000)
            }
            When::Pending(_) => 1,
        };
        let frame = (request.address.0 >> BASE_PAGE_BITS) as usize;
        if let Some(time) = self.by_frame_ns.get_mut(frame) {
            *time = time.saturating_add(u32::try_from(ns).unwrap_or(u32::MAX));
        }
    }
}

/// Memory as one program sees it for a while.
pub(super) struct Port<'a> {
    memory: &'a mut TieredMemory,
    frames: &'a mut FrameTimes,
    reads: [u64; TIERS],
    writes: [u64; TIERS],
}

impl<'a> Port<'a> {
    pub(super) fn new(memory: &'a mut TieredMemory, frames: &'a mut FrameTimes) -> Self {
        Port { memory, frames, reads: [0; TIERS], writes: [0; TIERS] }
    }

    /// Adds what went by since the last time.
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
                self.frames.add(at, &request, when);
            }
            Kind::Write => self.writes[tier.min(TIERS - 1)] += 1,
        }
        (when, tier)
    }

    fn next_completion(&mut self) -> Option<Completion> {
        self.memory.next_completion()
    }
}

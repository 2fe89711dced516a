//! Records of a thread: encoded into slots of the shared memory, handed over when full.

use std::sync::atomic::Ordering;

use terrace_recorder::cache::NO_LINE;
use terrace_recorder::shared::{Content, SLOT_BYTES, SlotStart};
use terrace_recordings::reference::block::{Encoder, MAX_RECORD_BYTES};
use terrace_recordings::reference::{Event, Reference, WriteBack};

use crate::thread::{Thread, Waiting};

#[inline(always)]
fn reference(address: u64, what: u64) -> Reference {
    Reference { address, size_log2: (what >> 1 & 7) as u8, store: what & 1 != 0 }
}

impl Thread {
    /// Whether this reference is kept, with sampling.
    #[inline]
    fn is_sampled(&mut self) -> bool {
        let one_in = self.process.filter.sample_one_in;
        if one_in <= 1 {
            return true;
        }
        let (process, stream) = (self.process, &mut self.stream);
        self.sampler.takes(one_in, || process.number().map_or(0, |_| process.stream(stream)))
    }

    /// Makes room for one record in the slot.
    #[inline]
    fn has_room(&mut self, instructions: u64) -> Option<usize> {
        if self.length + MAX_RECORD_BYTES > SLOT_BYTES && !self.next_slot(instructions) {
            return None;
        }
        self.slot
    }

    /// Records an evicted dirty line, unless it is [`NO_LINE`].
    #[inline]
    pub(super) fn write_back(&mut self, line: u64, instructions: u64) {
        if line == NO_LINE {
            return;
        }
        self.counts.write_backs += 1;
        if !self.is_sampled() {
            return;
        }
        let Some(slot) = self.has_room(instructions) else { return };
        let time = instructions.wrapping_add(self.ahead);
        let write_back = WriteBack { address: line << self.line_shift };
        let encoder = &mut self.encoder;
        // SAFETY: this thread took the slot and has not handed it over.
        self.length = unsafe {
            self.process.shared.append(slot, self.length, self.references, |out| {
                encoder.write_back(out, time, write_back)
            })
        };
    }

    /// Records a reference, subject to sampling.
    #[inline(always)]
    pub(super) fn keep(&mut self, waiting: Waiting) {
        let Waiting { address, what, .. } = waiting;
        self.keep_this(address, what);
    }

    /// `keep` with its parts in registers: loading parts that were just stored would stall.
    #[inline(never)]
    fn keep_this(&mut self, address: u64, what: u64) {
        let instructions = what >> 5;
        if !self.is_sampled() {
            return;
        }
        if self.length + MAX_RECORD_BYTES > SLOT_BYTES {
            let order = Ordering::Relaxed;
            let _ = self.process.stack.compare_exchange(0, address, order, order);
        }
        let Some(slot) = self.has_room(instructions) else { return };
        let time = instructions.wrapping_add(self.ahead);
        self.references += 1;
        let reference = reference(address, what);
        let encoder = &mut self.encoder;
        // SAFETY: as for a write-back.
        self.length = unsafe {
            self.process.shared.append(slot, self.length, self.references, |out| {
                encoder.reference(out, time, reference)
            })
        };
    }

    /// An event, at the end of the block under way.
    pub fn event(&mut self, event: Event) {
        self.drain();
        let Some(slot) = self.has_room(self.executed()) else { return };
        let time = self.time();
        let encoder = &mut self.encoder;
        // SAFETY: as for a write-back.
        self.length = unsafe {
            self.process
                .shared
                .append(slot, self.length, self.references, |out| encoder.event(out, time, event))
        };
    }

    /// Advances the time to the latest published.
    pub fn catch_up(&mut self) {
        let behind = self.process.shared.latest_time().saturating_sub(self.time());
        if behind > 0 {
            self.event(Event::Waited { time: behind });
            self.ahead = self.ahead.wrapping_add(behind);
        }
    }

    #[cold]
    fn next_slot(&mut self, instructions: u64) -> bool {
        let Some(process) = self.process.number() else { return false };
        self.pass_on();
        let stream = self.process.stream(&mut self.stream);
        let time = instructions.wrapping_add(self.ahead);
        let start = SlotStart { process, stream, time, instructions };
        self.slot = self.process.shared.take(Content::Records, start);
        self.encoder = Encoder::new(time);
        (self.length, self.references) = (if self.slot.is_some() { 0 } else { SLOT_BYTES }, 0);
        self.slot.is_some()
    }

    /// Hands its slot over; the next record takes a new one.
    pub fn hand_over(&mut self) {
        self.drain();
        self.pass_on();
    }

    fn pass_on(&mut self) {
        self.process.shared.publish_time(self.time());
        if let Some(slot) = self.slot.take() {
            self.process.shared.hand_over(slot, self.executed(), self.counts);
        }
        self.length = SLOT_BYTES;
    }
}

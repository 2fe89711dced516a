//! Records of one stream as bytes, and back.
//!
//! ```text
//! reference  = byte [number] signed      byte: store:1 size_log2:3 time:4
//! event      = byte [number] kind:number count:number argument:number*
//!                                        byte: 0:1 7:3 time:4
//! write-back = byte [number] signed      byte: 1:1 7:3 time:4
//! ```
//!
//! `time` is the time since the record before, 15 meaning 15 and the number that follows. The
//! signed number of a reference is the distance in bytes from the reference before, that of a
//! write-back the distance in units of 16 bytes from the write-back before: evicted lines are as
//! far apart as lines that were filled, however both kinds alternate. All begin at the block's
//! head, addresses with 0. The first argument of a fetch is a signed number too: the distance from
//! the end of the instruction before.
//!
//! The encoder writes into a fixed array without allocating: it runs inside the program that is
//! recorded, once per reference.

use super::{Event, Record, Reference, WriteBack};
use crate::codec::{Cursor, Malformed};

/// No record takes more bytes.
pub const MAX_RECORD_BYTES: usize = 64;

const EVENT_SIZE: u8 = 7;
const WRITE_BACK: u8 = EVENT_SIZE << 1 | 1;
/// log2 of the unit of a write-back's distance: no line is shorter.
const LINE_UNIT_LOG2: u32 = 4;
const LONG_TIME: u64 = 15;

/// Writes records, each into the beginning of an array. One encoder per block.
#[derive(Debug, Clone, Copy)]
pub struct Encoder {
    address: u64,
    line: u64,
    time: u64,
    fetched: u64,
}

#[inline]
fn put(out: &mut [u8; MAX_RECORD_BYTES], mut at: usize, mut value: u64) -> usize {
    while value >= 0x80 {
        out[at % MAX_RECORD_BYTES] = value as u8 | 0x80;
        value >>= 7;
        at += 1;
    }
    out[at % MAX_RECORD_BYTES] = value as u8;
    at + 1
}

impl Encoder {
    /// An encoder for a block that begins at this time.
    pub fn new(time: u64) -> Self {
        Encoder { address: 0, line: 0, time, fetched: 0 }
    }

    #[inline]
    fn head(&mut self, out: &mut [u8; MAX_RECORD_BYTES], low: u8, time: u64) -> usize {
        let passed = time.saturating_sub(self.time);
        self.time = self.time.max(time);
        if passed < LONG_TIME {
            out[0] = low | (passed as u8) << 4;
            1
        } else {
            out[0] = low | 0xf0;
            put(out, 1, passed - LONG_TIME)
        }
    }

    /// Writes a reference; returns its length.
    #[inline]
    pub fn reference(
        &mut self,
        out: &mut [u8; MAX_RECORD_BYTES],
        time: u64,
        reference: Reference,
    ) -> usize {
        let size = reference.size_log2.min(6);
        let at = self.head(out, u8::from(reference.store) | size << 1, time);
        let distance = reference.address.wrapping_sub(self.address) as i64;
        self.address = reference.address;
        put(out, at, (distance << 1 ^ distance >> 63) as u64)
    }

    /// Writes a write-back of the line at this address, a multiple of 16; returns its length.
    #[inline]
    pub fn write_back(
        &mut self,
        out: &mut [u8; MAX_RECORD_BYTES],
        time: u64,
        write_back: WriteBack,
    ) -> usize {
        let at = self.head(out, WRITE_BACK, time);
        let line = write_back.address >> LINE_UNIT_LOG2;
        let distance = line.wrapping_sub(self.line) as i64;
        self.line = line;
        put(out, at, (distance << 1 ^ distance >> 63) as u64)
    }

    /// Writes an event; returns its length. Time goes on with [`Event::Waited`].
    pub fn event(&mut self, out: &mut [u8; MAX_RECORD_BYTES], time: u64, event: Event) -> usize {
        let (kind, mut arguments, count) = numbers(event);
        if let Event::Fetch { address, size_bytes } = event {
            let distance = address.wrapping_sub(self.fetched) as i64;
            arguments[0] = (distance << 1 ^ distance >> 63) as u64;
            self.fetched = address.wrapping_add(size_bytes);
        }
        let mut at = self.head(out, EVENT_SIZE << 1, time);
        at = put(out, at, kind);
        at = put(out, at, count as u64);
        for argument in &arguments[..count] {
            at = put(out, at, *argument);
        }
        if let Event::Waited { time } = event {
            self.time = self.time.saturating_add(time);
        }
        at
    }
}

/// An event's kind and arguments, at most four.
fn numbers(event: Event) -> (u64, [u64; 4], usize) {
    match event {
        Event::Map { address, length_bytes, protection, flags } => {
            (1, [address, length_bytes, protection, flags], 4)
        }
        Event::Unmap { address, length_bytes } => (2, [address, length_bytes, 0, 0], 2),
        Event::Remap { old_address, old_length_bytes, address, length_bytes } => {
            (3, [old_address, old_length_bytes, address, length_bytes], 4)
        }
        Event::Break { address } => (4, [address, 0, 0, 0], 1),
        Event::Advise { address, length_bytes, advice } => {
            (5, [address, length_bytes, advice, 0], 3)
        }
        Event::Protect { address, length_bytes, protection } => {
            (6, [address, length_bytes, protection, 0], 3)
        }
        Event::Created { system_id, thread } => (7, [system_id, thread.into(), 0, 0], 2),
        Event::Exec => (8, [0; 4], 0),
        Event::SignalReturn => (9, [0; 4], 0),
        Event::Exit { code, process } => (10, [code, process.into(), 0, 0], 2),
        Event::Mark { mark } => (11, [mark, 0, 0, 0], 1),
        Event::Waited { time } => (12, [time, 0, 0, 0], 1),
        Event::Lost { references } => (13, [references, 0, 0, 0], 1),
        Event::Fetch { address, size_bytes } => (14, [address, size_bytes, 0, 0], 2),
        Event::Unknown { kind } => (kind, [0; 4], 0),
    }
}

fn event(kind: u64, arguments: [u64; 4], count: usize) -> Event {
    let [a, b, c, d] = arguments;
    match (kind, count) {
        (1, 4) => Event::Map { address: a, length_bytes: b, protection: c, flags: d },
        (2, 2) => Event::Unmap { address: a, length_bytes: b },
        (3, 4) => Event::Remap { old_address: a, old_length_bytes: b, address: c, length_bytes: d },
        (4, 1) => Event::Break { address: a },
        (5, 3) => Event::Advise { address: a, length_bytes: b, advice: c },
        (6, 3) => Event::Protect { address: a, length_bytes: b, protection: c },
        (7, 2) => Event::Created { system_id: a, thread: b != 0 },
        (8, 0) => Event::Exec,
        (9, 0) => Event::SignalReturn,
        (10, 2) => Event::Exit { code: a, process: b != 0 },
        (11, 1) => Event::Mark { mark: a },
        (12, 1) => Event::Waited { time: a },
        (13, 1) => Event::Lost { references: a },
        (14, 2) => Event::Fetch { address: a, size_bytes: b },
        _ => Event::Unknown { kind },
    }
}

/// The lower seven bits of eight bytes side by side.
#[inline(always)]
fn seven_bits_of_each(bytes: u64) -> u64 {
    let sevens = bytes & 0x7f7f_7f7f_7f7f_7f7f;
    let fourteens = sevens & 0x007f_007f_007f_007f | (sevens & 0x7f00_7f00_7f00_7f00) >> 1;
    let halves = fourteens & 0x0000_3fff_0000_3fff | (fourteens & 0x3fff_0000_3fff_0000) >> 2;
    halves & 0x0fff_ffff | (halves & 0x0fff_ffff_0000_0000) >> 4
}

/// Reads the records of one block.
#[derive(Debug, Clone)]
pub struct Decoder {
    bytes: Vec<u8>,
    at: usize,
    address: u64,
    line: u64,
    fetched: u64,
    time: u64,
    instructions: u64,
}

impl Decoder {
    /// A decoder of records that begin at this time and number of instructions.
    pub(super) fn new(bytes: Vec<u8>, at: usize, time: u64, instructions: u64) -> Self {
        Decoder { bytes, at, address: 0, line: 0, fetched: 0, time, instructions }
    }

    /// The next record with its time and number of instructions.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(u64, u64, Record)>, Malformed> {
        match self.short_reference(u64::MAX) {
            Some((time, instructions, reference)) => {
                Ok(Some((time, instructions, Record::Reference(reference))))
            }
            None => self.next_of_any_kind(),
        }
    }

    /// A reference before `limit` of the usual form: less than 15 instructions after the one
    /// before, in no more than nine bytes and not among the last of the block. `None`, without
    /// effect, for another.
    #[inline(always)]
    pub(super) fn short_reference(&mut self, limit: u64) -> Option<(u64, u64, Reference)> {
        let nine: &[u8; 9] = self.bytes.get(self.at..)?.first_chunk()?;
        let head = nine[0];
        let size_log2 = head >> 1 & 7;
        let passed = u64::from(head >> 4);
        let number = u64::from_le_bytes(*nine.last_chunk()?);
        // The first byte without its highest bit is the last of the number.
        let ends = !number & 0x8080_8080_8080_8080;
        let time = self.time.checked_add(passed)?;
        if size_log2 == EVENT_SIZE || passed == LONG_TIME || ends == 0 || time >= limit {
            return None;
        }
        let instructions = self.instructions.checked_add(passed)?;
        let distance = seven_bits_of_each(number & (ends ^ (ends - 1)));
        self.address = self.address.wrapping_add((distance >> 1) ^ (distance & 1).wrapping_neg());
        (self.time, self.instructions) = (time, instructions);
        self.at += 2 + (ends.trailing_zeros() >> 3) as usize;
        let reference = Reference { address: self.address, size_log2, store: head & 1 != 0 };
        Some((time, instructions, reference))
    }

    #[inline(never)]
    fn next_of_any_kind(&mut self) -> Result<Option<(u64, u64, Record)>, Malformed> {
        let Some(rest) = self.bytes.get(self.at..).filter(|r| !r.is_empty()) else {
            return Ok(None);
        };
        let mut from = Cursor::new(rest);
        let head = from.byte()?;
        let mut passed = u64::from(head >> 4);
        if passed == LONG_TIME {
            passed = from.number()?.saturating_add(LONG_TIME);
        }
        let overflow = || Malformed("a time beyond 2^64".to_owned());
        self.time = self.time.checked_add(passed).ok_or_else(overflow)?;
        self.instructions = self.instructions.checked_add(passed).ok_or_else(overflow)?;
        let place = (self.time, self.instructions);
        let size_log2 = head >> 1 & 7;
        let record = if head & 0xf == WRITE_BACK {
            self.line = self.line.wrapping_add(from.signed()? as u64);
            Record::WriteBack(WriteBack { address: self.line << LINE_UNIT_LOG2 })
        } else if size_log2 == EVENT_SIZE {
            let kind = from.number()?;
            let count = from.number_below(16, "count of an event's arguments")? as usize;
            let mut arguments = [0; 4];
            for i in 0..count {
                let argument = from.number()?;
                if let Some(to) = arguments.get_mut(i) {
                    *to = argument;
                }
            }
            let mut event = event(kind, arguments, count);
            if let Event::Fetch { address, size_bytes } = &mut event {
                let distance = (*address >> 1) as i64 ^ -((*address & 1) as i64);
                *address = self.fetched.wrapping_add(distance as u64);
                self.fetched = address.wrapping_add(*size_bytes);
            }
            if let Event::Waited { time } = event {
                self.time = self.time.checked_add(time).ok_or_else(overflow)?;
            }
            Record::Event(event)
        } else {
            self.address = self.address.wrapping_add(from.signed()? as u64);
            Record::Reference(Reference { address: self.address, size_log2, store: head & 1 != 0 })
        };
        self.at = self.bytes.len() - from.remaining();
        Ok(Some((place.0, place.1, record)))
    }
}

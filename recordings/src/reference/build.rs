//! Building a reference recording record by record, for writers that are not the recorder:
//! importers, tests.

use std::collections::BTreeMap;
use std::io::Write;

use super::block::{Encoder, MAX_RECORD_BYTES};
use super::{BlockHead, Ending, Event, Header, Process, Reference, ReferenceWriter};
use crate::error::RecordingError;

/// Bytes of records after which a block is written.
const BLOCK_BYTES: usize = 256 << 10;
/// Bytes held for all streams together after which all blocks are written.
const HELD_BYTES: usize = 64 << 20;
/// Streams of one recording.
const MOST_STREAMS: usize = 1 << 16;

/// A stream's block under way.
struct Open {
    encoder: Encoder,
    head: BlockHead,
    bytes: Vec<u8>,
    time: u64,
}

/// Builds a recording in which time is the number of instructions, or another count of the
/// importer: both advance together. Memory: some blocks.
pub struct ReferenceBuilder<W: Write> {
    writer: ReferenceWriter<W>,
    name: String,
    streams: BTreeMap<u32, Open>,
    held: usize,
}

impl<W: Write> ReferenceBuilder<W> {
    /// Starts a recording on `out`; `name` is for error messages.
    pub fn new(out: W, name: &str, header: &Header) -> Result<Self, RecordingError> {
        Ok(ReferenceBuilder {
            writer: ReferenceWriter::new(out, name, header)?,
            name: name.to_owned(),
            streams: BTreeMap::new(),
            held: 0,
        })
    }

    /// Writes a process's numbers and command line.
    pub fn process(&mut self, process: &Process) -> Result<(), RecordingError> {
        self.writer.process(process)
    }

    /// Streams so far.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// A load or store. Times of a stream do not run backwards: an earlier time counts as the time
    /// before.
    pub fn reference(
        &mut self,
        stream: u32,
        process: u32,
        time: u64,
        reference: Reference,
    ) -> Result<(), RecordingError> {
        self.record(stream, process, time, |open, out, time| {
            open.head.references += 1;
            open.encoder.reference(out, time, reference)
        })
    }

    /// An event other than waiting, which takes time.
    pub fn event(
        &mut self,
        stream: u32,
        process: u32,
        time: u64,
        event: Event,
    ) -> Result<(), RecordingError> {
        debug_assert!(!matches!(event, Event::Waited { .. }));
        self.record(stream, process, time, |open, out, time| open.encoder.event(out, time, event))
    }

    #[inline]
    fn record(
        &mut self,
        stream: u32,
        process: u32,
        time: u64,
        write: impl FnOnce(&mut Open, &mut [u8; MAX_RECORD_BYTES], u64) -> usize,
    ) -> Result<(), RecordingError> {
        if !self.streams.contains_key(&stream) && self.streams.len() == MOST_STREAMS {
            return Err(RecordingError::BadFrame {
                file: self.name.clone(),
                message: format!("more than {MOST_STREAMS} threads; import fewer at a time"),
            });
        }
        let open = self.streams.entry(stream).or_insert_with(|| Open {
            encoder: Encoder::new(time),
            head: BlockHead { stream, process, time, instructions: time, references: 0 },
            bytes: Vec::new(),
            time,
        });
        let time = time.max(open.time);
        if open.bytes.is_empty() {
            open.encoder = Encoder::new(time);
            open.head = BlockHead { time, instructions: time, references: 0, ..open.head };
        }
        open.time = time;
        let mut out = [0; MAX_RECORD_BYTES];
        let length = write(open, &mut out, time);
        open.bytes.extend_from_slice(&out[..length]);
        self.held += length;
        if open.bytes.len() >= BLOCK_BYTES {
            self.held -= open.bytes.len();
            self.writer.block(open.head, &open.bytes)?;
            open.bytes.clear();
        } else if self.held >= HELD_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), RecordingError> {
        for open in self.streams.values_mut().filter(|open| !open.bytes.is_empty()) {
            self.writer.block(open.head, &open.bytes)?;
            // Not kept: each of many streams would hold a block's memory.
            open.bytes = Vec::new();
        }
        self.held = 0;
        Ok(())
    }

    /// Ends the recording and gives the stream back. `cut_off`: the program did more than could be
    /// recorded.
    pub fn finish(mut self, cut_off: bool) -> Result<W, RecordingError> {
        self.flush()?;
        if cut_off {
            self.writer.ending(&Ending { stopped: true, ..Ending::default() })?;
        }
        self.writer.finish()
    }
}

//! Writing a reference recording: block by block, as they come.

use std::io::Write;

use super::{
    CONTENT, CONTENT_VERSION, ENDING, Ending, Header, LIST, MAPS, PROCESS, Process, REFERENCES,
};
use crate::codec::put_number;
use crate::container::ContainerWriter;
use crate::error::RecordingError;

/// The fields before the records of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHead {
    /// Number of the stream.
    pub stream: u32,
    /// Number of its process.
    pub process: u32,
    /// Time at which the block begins.
    pub time: u64,
    /// Instructions that the stream had executed then.
    pub instructions: u64,
    /// References in the block.
    pub references: u64,
}

/// Writes a reference recording. Memory: one block, and about 40 bytes per block written.
pub struct ReferenceWriter<W: Write> {
    container: ContainerWriter<W>,
    payload: Vec<u8>,
    list: Vec<u8>,
    chunks: u64,
    stored_bytes: u64,
}

impl<W: Write> ReferenceWriter<W> {
    /// Starts a recording on `out`; `name` is for error messages.
    pub fn new(out: W, name: &str, header: &Header) -> Result<Self, RecordingError> {
        Ok(ReferenceWriter {
            container: ContainerWriter::new(out, name, CONTENT, CONTENT_VERSION, header)?,
            payload: Vec::new(),
            list: Vec::new(),
            chunks: 0,
            stored_bytes: 0,
        })
    }

    /// Writes the records of one block. Blocks of one stream come in their order.
    pub fn block(&mut self, head: BlockHead, records: &[u8]) -> Result<(), RecordingError> {
        self.payload.clear();
        for number in
            [head.stream.into(), head.process.into(), head.time, head.instructions, head.references]
        {
            put_number(&mut self.payload, number);
        }
        self.payload.extend_from_slice(records);
        for number in [self.chunks, head.stream.into(), head.time, head.references] {
            put_number(&mut self.list, number);
        }
        self.put(REFERENCES)
    }

    /// Writes a process's map.
    pub fn maps(&mut self, process: u32, time: u64, text: &[u8]) -> Result<(), RecordingError> {
        self.payload.clear();
        put_number(&mut self.payload, process.into());
        put_number(&mut self.payload, time);
        self.payload.extend_from_slice(text);
        self.put(MAPS)
    }

    /// Writes a process's numbers and command line.
    pub fn process(&mut self, process: &Process) -> Result<(), RecordingError> {
        self.payload = serde_json::to_vec(process).unwrap_or_default();
        self.put(PROCESS)
    }

    /// Records how the run ended, before [`Self::finish`].
    pub fn ending(&mut self, ending: &Ending) -> Result<(), RecordingError> {
        self.payload = serde_json::to_vec(ending).unwrap_or_default();
        self.put(ENDING)
    }

    fn put(&mut self, kind: crate::container::ChunkKind) -> Result<(), RecordingError> {
        self.container.chunk(kind, self.chunks, &self.payload)?;
        self.chunks += 1;
        self.stored_bytes += self.payload.len() as u64;
        Ok(())
    }

    /// Ends the recording and gives the stream back.
    pub fn finish(mut self) -> Result<W, RecordingError> {
        self.payload = std::mem::take(&mut self.list);
        self.put(LIST)?;
        self.container.finish()
    }
}

//! Reading a period recording, frame by frame.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use super::frame::{Decoder, Frame};
use super::records::Records;
use super::{CHUNK, CONTENT, CONTENT_VERSION, Header};
use crate::codec::Cursor;
use crate::container::{ContainerReader, Truncation, open};
use crate::error::RecordingError;

/// Reads a period recording: an iterator over its frames. Memory: one chunk and one scan per
/// group. After an error it yields nothing more.
#[derive(Debug)]
pub struct PeriodReader<R> {
    container: ContainerReader<R>,
    header: Header,
    decoder: Decoder,
    chunk: Vec<u8>,
    chunk_offset: u64,
    at: usize,
    failed: bool,
}

impl PeriodReader<BufReader<File>> {
    /// Opens the recording in this file.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let (file, name) = open(path, 1 << 20)?;
        Self::new(file, &name)
    }
}

impl<R: Read> PeriodReader<R> {
    /// Reads a recording from any stream; `name` is for error messages.
    pub fn new(from: R, name: &str) -> Result<Self, RecordingError> {
        let (container, header) =
            ContainerReader::of_versions::<Header>(from, name, CONTENT, 1..=CONTENT_VERSION)?;
        let page_sizes = header.groups.iter().map(|g| g.page_size).collect();
        let decoder = Decoder::new(page_sizes, container.content_version());
        let chunk = Vec::new();
        Ok(PeriodReader {
            container,
            header,
            decoder,
            chunk,
            chunk_offset: 0,
            at: 0,
            failed: false,
        })
    }

    /// The header of the recording.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The name for error messages.
    pub fn name(&self) -> &str {
        self.container.name()
    }

    /// Number of the group with this name.
    pub fn group(&self, name: &str) -> Result<usize, RecordingError> {
        let groups = &self.header.groups;
        groups.iter().position(|g| g.name == name).ok_or_else(|| RecordingError::UnknownGroup {
            file: self.name().to_owned(),
            got: name.to_owned(),
            expected: terrace_core::names::expected(name, groups.iter().map(|g| g.name.as_str())),
        })
    }

    /// Where the recording was cut off, if it was; known once the frames have been read.
    pub fn truncation(&self) -> Option<&Truncation> {
        self.container.truncation()
    }

    /// The frames put together to periods.
    pub fn records(self) -> Records<R> {
        Records::new(self)
    }

    fn next_frame(&mut self) -> Result<Option<Frame>, RecordingError> {
        while self.at == self.chunk.len() {
            let Some(chunk) = self.container.next_chunk()? else {
                return Ok(None);
            };
            // Other kinds are for readers of later versions.
            if chunk.kind == CHUNK {
                self.chunk = chunk.payload;
                self.chunk_offset = chunk.offset;
                self.at = 0;
                self.decoder.begin_chunk();
            }
        }
        let mut cursor = Cursor::new(&self.chunk[self.at..]);
        let frame =
            self.decoder.frame(&mut cursor).map_err(|malformed| RecordingError::Damaged {
                file: self.container.name().to_owned(),
                offset: self.chunk_offset,
                message: malformed.0,
            })?;
        self.at = self.chunk.len() - cursor.remaining();
        Ok(Some(frame))
    }
}

impl<R: Read + Seek> PeriodReader<R> {
    /// Whether the recording was finished; known without reading the frames.
    pub fn is_whole(&mut self) -> Result<bool, RecordingError> {
        Ok(self.container.index()?.is_some())
    }

    /// Continues with the chunk that has this period, or the first after it. A recording that was
    /// cut off has no index: it is then read from its current place, and false is returned.
    pub fn seek_period(&mut self, period: u64) -> Result<bool, RecordingError> {
        let Some(index) = self.container.index()? else {
            return Ok(false);
        };
        let chunks = index.iter().filter(|e| e.kind == CHUNK);
        let Some(entry) = chunks.take_while(|e| e.key <= period).last() else {
            return Ok(true);
        };
        self.container.seek(entry)?;
        self.chunk.clear();
        self.at = 0;
        self.failed = false;
        Ok(true)
    }
}

impl<R: Read> Iterator for PeriodReader<R> {
    type Item = Result<Frame, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let frame = self.next_frame();
        self.failed = frame.is_err();
        frame.transpose()
    }
}

//! Reading a container: chunk by chunk, every byte checked, memory bounded by the largest chunk.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::ops::RangeInclusive;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::{
    CHUNK_HEAD_BYTES, ChunkKind, END_MAGIC, HEAD_BYTES, Head, INDEX, INDEX_ENTRY_BYTES, IndexEntry,
    MAGIC, MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES, TRAILER_BYTES, VERSION, checksum,
};
use crate::error::RecordingError;

/// A recording that ends before its trailer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "recording '{file}' is cut off after byte {offset}: its writer was killed or is still writing; what precedes is used"
)]
pub struct Truncation {
    /// The recording.
    pub file: String,
    /// Bytes that could be used.
    pub offset: u64,
}

/// Opens a recording's file with a buffer of so many bytes; returns also its name for messages.
pub(crate) fn open(
    path: &Path,
    buffer_bytes: usize,
) -> Result<(BufReader<File>, String), RecordingError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|source| RecordingError::Io {
        file: name.clone(),
        action: "open",
        source,
    })?;
    Ok((BufReader::with_capacity(buffer_bytes, file), name))
}

/// One chunk, decompressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Where it was in the file, in bytes.
    pub offset: u64,
    /// Its kind, four letters.
    pub kind: ChunkKind,
    /// Its payload, uncompressed.
    pub payload: Vec<u8>,
}

/// Reads the chunks of a container in order.
#[derive(Debug)]
pub struct ContainerReader<R> {
    from: R,
    name: String,
    content_version: u32,
    offset: u64,
    chunks_at: u64,
    done: bool,
    truncation: Option<Truncation>,
}

/// Fills `buffer` as far as the stream goes; returns how far.
fn read_up_to(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(number(bytes, at)) | u64::from(number(bytes, at + 4)) << 32
}

impl<R: Read> ContainerReader<R> {
    /// Reads the head of a container that holds `content`; `name` is for error messages.
    pub fn new<H: DeserializeOwned>(
        from: R,
        name: &str,
        content: &'static str,
        content_version: u32,
    ) -> Result<(Self, H), RecordingError> {
        Self::of_versions(from, name, content, content_version..=content_version)
    }

    /// As [`Self::new`], for a reader that reads several versions of the content:
    /// [`Self::content_version`] is the one of this recording.
    pub fn of_versions<H: DeserializeOwned>(
        mut from: R,
        name: &str,
        content: &'static str,
        versions: RangeInclusive<u32>,
    ) -> Result<(Self, H), RecordingError> {
        let file = || name.to_owned();
        let cannot_read = |source| RecordingError::Io { file: file(), action: "read", source };
        let mut head = [0; HEAD_BYTES];
        let got = read_up_to(&mut from, &mut head).map_err(cannot_read)?;
        let magic = got.min(MAGIC.len());
        if head[..magic] != MAGIC[..magic] || got == 0 {
            return Err(RecordingError::NotARecording { file: file() });
        }
        if got < HEAD_BYTES {
            return Err(RecordingError::NoHeader { file: file() });
        }
        let version = number(&head, 8);
        if version != VERSION {
            let expected = VERSION;
            let what = "container";
            return Err(RecordingError::Version { file: file(), what, got: version, expected });
        }
        let damaged = |message| RecordingError::Damaged { file: file(), offset: 0, message };
        let length = number(&head, 12) as usize;
        if length > MAX_HEADER_BYTES {
            return Err(damaged(format!(
                "a header of {length} bytes, expected at most {MAX_HEADER_BYTES}"
            )));
        }
        let mut json = Vec::new();
        from.by_ref().take(length as u64).read_to_end(&mut json).map_err(cannot_read)?;
        if json.len() < length {
            return Err(RecordingError::NoHeader { file: file() });
        }
        if checksum(&[&head[8..16], &json]) != number(&head, 16) {
            return Err(damaged("the header does not match its checksum".to_owned()));
        }
        let unreadable =
            |e: serde_json::Error| damaged(format!("the header is not as expected: {e}"));
        let any: Head<serde_json::Value> = serde_json::from_slice(&json).map_err(unreadable)?;
        if any.content != content {
            let (file, expected) = (file(), content);
            return Err(RecordingError::Content { file, got: any.content, expected });
        }
        if !versions.contains(&any.content_version) {
            let (got, expected) = (any.content_version, *versions.end());
            return Err(RecordingError::Version { file: file(), what: content, got, expected });
        }
        let head: Head<H> = serde_json::from_slice(&json).map_err(unreadable)?;
        let offset = (HEAD_BYTES + length) as u64;
        let reader = ContainerReader {
            from,
            name: file(),
            content_version: head.content_version,
            offset,
            chunks_at: offset,
            done: false,
            truncation: None,
        };
        Ok((reader, head.header))
    }

    /// The version of the content.
    pub fn content_version(&self) -> u32 {
        self.content_version
    }

    /// The name for error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where a cut-off recording ends; known once [`Self::next_chunk`] has returned `None`.
    pub fn truncation(&self) -> Option<&Truncation> {
        self.truncation.as_ref()
    }

    /// The next chunk; `None` at the end or at the cut. After an error there is no next.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk>, RecordingError> {
        if self.done {
            return Ok(None);
        }
        let read = self.read_chunk();
        self.done = !matches!(read, Ok(Some(_)));
        read
    }

    fn read_chunk(&mut self) -> Result<Option<Chunk>, RecordingError> {
        let at = self.offset;
        let Some(chunk) = self.read_any_chunk()? else {
            self.cut(at);
            return Ok(None);
        };
        if chunk.kind == INDEX {
            self.read_trailer(at)?;
            return Ok(None);
        }
        Ok(Some(chunk))
    }

    fn cut(&mut self, offset: u64) {
        self.truncation = Some(Truncation { file: self.name.clone(), offset });
    }

    /// A chunk of any kind; `None` where the file ends before the chunk does.
    fn read_any_chunk(&mut self) -> Result<Option<Chunk>, RecordingError> {
        let offset = self.offset;
        let mut head = [0; CHUNK_HEAD_BYTES];
        if !self.fill(&mut head)? {
            return Ok(None);
        }
        if checksum(&[&head[..16]]) != number(&head, 16) {
            return Err(self.damaged(offset, "a chunk's head does not match its checksum"));
        }
        let kind = ChunkKind(number(&head, 0));
        let (raw, stored) = (number(&head, 4) as usize, number(&head, 8) as usize);
        if raw > MAX_PAYLOAD_BYTES || stored > MAX_PAYLOAD_BYTES + MAX_PAYLOAD_BYTES / 64 {
            return Err(self.damaged(
                offset,
                &format!(
                    "a chunk of {raw} bytes in {stored}, expected at most {MAX_PAYLOAD_BYTES}"
                ),
            ));
        }
        // Grows with the real size of the file, whatever its length field.
        let mut bytes = Vec::new();
        let read = self.from.by_ref().take(stored as u64).read_to_end(&mut bytes);
        read.map_err(|source| self.cannot_read(source))?;
        self.offset += bytes.len() as u64;
        if bytes.len() < stored {
            return Ok(None);
        }
        if checksum(&[&bytes]) != number(&head, 12) {
            return Err(self.damaged(offset, "a chunk's payload does not match its checksum"));
        }
        let payload = decompress(&bytes, raw).map_err(|e| {
            let what = format!("a chunk cannot be decompressed or is not of {raw} bytes: {e}");
            self.damaged(offset, &what)
        })?;
        if payload.len() != raw {
            return Err(self.damaged(offset, &format!("a chunk's payload is not of {raw} bytes")));
        }
        Ok(Some(Chunk { offset, kind, payload }))
    }

    fn read_trailer(&mut self, index_at: u64) -> Result<(), RecordingError> {
        let offset = self.offset;
        let mut trailer = [0; TRAILER_BYTES];
        if !self.fill(&mut trailer)? {
            self.cut(offset);
            return Ok(());
        }
        if !is_trailer(&trailer) || long(&trailer, 0) != index_at {
            return Err(self.damaged(offset, "the trailer does not point to the index"));
        }
        if self.fill(&mut [0])? {
            return Err(self.damaged(self.offset - 1, "bytes after the trailer"));
        }
        Ok(())
    }

    /// Fills the buffer; false where the file ends first.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool, RecordingError> {
        let got = read_up_to(&mut self.from, buffer).map_err(|source| self.cannot_read(source))?;
        self.offset += got as u64;
        Ok(got == buffer.len())
    }

    fn cannot_read(&self, source: io::Error) -> RecordingError {
        RecordingError::Io { file: self.name.clone(), action: "read", source }
    }

    fn damaged(&self, offset: u64, message: &str) -> RecordingError {
        RecordingError::Damaged { file: self.name.clone(), offset, message: message.to_owned() }
    }
}

fn is_trailer(bytes: &[u8; TRAILER_BYTES]) -> bool {
    bytes[12..] == END_MAGIC && checksum(&[&bytes[..8]]) == number(bytes, 8)
}

/// Decompresses at most `raw` bytes and one more, which reveals a payload that is too long. In one
/// pass into its place, which is twice as fast as a stream; so the frame's window takes no memory
/// of its own. No four bytes of a frame make more than a block of 128 KB, so a few bytes cannot
/// allocate much memory, whatever their length field.
fn decompress(stored: &[u8], raw: usize) -> io::Result<Vec<u8>> {
    let most = raw.min(stored.len() << 15) + 1;
    zstd::bulk::Decompressor::new()?.decompress(stored, most)
}

impl<R: Read + Seek> ContainerReader<R> {
    /// The index, from the end of the file; `None` when the recording was cut off. The position in
    /// the file is unchanged.
    pub fn index(&mut self) -> Result<Option<Vec<IndexEntry>>, RecordingError> {
        let here = self.offset;
        let index = self.read_index();
        self.go_to(here)?;
        index
    }

    /// Continues with the chunk of this entry.
    pub fn seek(&mut self, entry: &IndexEntry) -> Result<(), RecordingError> {
        self.done = false;
        self.truncation = None;
        self.go_to(entry.offset)
    }

    fn go_to(&mut self, offset: u64) -> Result<(), RecordingError> {
        self.from.seek(SeekFrom::Start(offset)).map_err(|source| self.cannot_read(source))?;
        self.offset = offset;
        Ok(())
    }

    fn read_index(&mut self) -> Result<Option<Vec<IndexEntry>>, RecordingError> {
        let end = self.from.seek(SeekFrom::End(0)).map_err(|source| self.cannot_read(source))?;
        let Some(trailer_at) =
            end.checked_sub(TRAILER_BYTES as u64).filter(|at| *at >= self.chunks_at)
        else {
            return Ok(None);
        };
        self.go_to(trailer_at)?;
        let mut trailer = [0; TRAILER_BYTES];
        if !self.fill(&mut trailer)? || !is_trailer(&trailer) {
            return Ok(None);
        }
        let index_at = long(&trailer, 0);
        if index_at < self.chunks_at || index_at > trailer_at {
            return Err(self.damaged(trailer_at, "the trailer points outside the file"));
        }
        self.go_to(index_at)?;
        let chunk = self.read_any_chunk()?;
        let Some(payload) = chunk.filter(|c| c.kind == INDEX).map(|c| c.payload) else {
            return Err(self.damaged(index_at, "the trailer points to what is not the index"));
        };
        let entries: Vec<IndexEntry> = payload
            .chunks_exact(INDEX_ENTRY_BYTES)
            .map(|e| IndexEntry {
                offset: long(e, 0),
                kind: ChunkKind(number(e, 8)),
                key: long(e, 12),
            })
            .collect();
        if entries.iter().any(|e| e.offset < self.chunks_at || e.offset >= index_at) {
            return Err(self.damaged(index_at, "the index points outside the file"));
        }
        // Each chunk once, as they are written: an index has no more entries than the file has chunks.
        let apart = CHUNK_HEAD_BYTES as u64;
        if entries.windows(2).any(|w| w[1].offset < w[0].offset.saturating_add(apart)) {
            return Err(self.damaged(index_at, "the index names chunks twice or out of order"));
        }
        Ok(Some(entries))
    }
}

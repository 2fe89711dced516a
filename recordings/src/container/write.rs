//! Writing a container: chunk by chunk, to any stream, or to a file that gets its name when it
//! is whole.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    ChunkKind, END_MAGIC, Head, INDEX, INDEX_ENTRY_BYTES, IndexEntry, MAGIC, MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES, VERSION, checksum,
};
use crate::error::RecordingError;

/// zstd's default level: recordings are written beside the program that is measured.
const COMPRESSION_LEVEL: i32 = 3;

/// Writes a container. Holds one chunk, and 24 bytes for each chunk written.
pub struct ContainerWriter<W: Write> {
    out: W,
    name: String,
    offset: u64,
    index: Vec<IndexEntry>,
    compressor: zstd::bulk::Compressor<'static>,
}

impl<W: Write> ContainerWriter<W> {
    /// Starts a container of this content on `out`; `name` is for error messages.
    pub fn new(
        out: W,
        name: &str,
        content: &str,
        content_version: u32,
        header: &impl Serialize,
    ) -> Result<Self, RecordingError> {
        let head = Head { content: content.to_owned(), content_version, header };
        let json = serde_json::to_vec(&head).map_err(|e| RecordingError::BadFrame {
            file: name.to_owned(),
            message: format!("its header is not JSON: {e}"),
        })?;
        if json.len() > MAX_HEADER_BYTES {
            return Err(RecordingError::BadFrame {
                file: name.to_owned(),
                message: format!(
                    "its header has {} bytes, expected at most {MAX_HEADER_BYTES}",
                    json.len()
                ),
            });
        }
        let compressor = zstd::bulk::Compressor::new(COMPRESSION_LEVEL)
            .map_err(|source| cannot_write(name, source))?;
        let mut writer = ContainerWriter {
            out,
            name: name.to_owned(),
            offset: 0,
            index: Vec::new(),
            compressor,
        };
        let version = VERSION.to_le_bytes();
        let length = (json.len() as u32).to_le_bytes();
        let crc = checksum(&[&version, &length, &json]).to_le_bytes();
        writer.put(&[&MAGIC, &version, &length, &crc, &json])?;
        writer.flush()?;
        Ok(writer)
    }

    /// The name for error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes a chunk through to the stream; written chunks survive the writer's death.
    pub fn chunk(
        &mut self,
        kind: ChunkKind,
        key: u64,
        payload: &[u8],
    ) -> Result<(), RecordingError> {
        let entry = IndexEntry { offset: self.offset, kind, key };
        self.put_chunk(kind, payload)?;
        self.flush()?;
        self.index.push(entry);
        Ok(())
    }

    /// Writes index and trailer and gives the stream back.
    pub fn finish(mut self) -> Result<W, RecordingError> {
        let index_offset = self.offset.to_le_bytes();
        let mut payload = Vec::with_capacity(self.index.len() * INDEX_ENTRY_BYTES);
        for entry in std::mem::take(&mut self.index) {
            payload.extend_from_slice(&entry.offset.to_le_bytes());
            payload.extend_from_slice(&entry.kind.0.to_le_bytes());
            payload.extend_from_slice(&entry.key.to_le_bytes());
        }
        self.put_chunk(INDEX, &payload)?;
        let crc = checksum(&[&index_offset]).to_le_bytes();
        self.put(&[&index_offset, &crc, &END_MAGIC])?;
        self.flush()?;
        Ok(self.out)
    }

    fn put_chunk(&mut self, kind: ChunkKind, payload: &[u8]) -> Result<(), RecordingError> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(RecordingError::BadFrame {
                file: self.name.clone(),
                message: format!(
                    "one chunk of {} bytes, expected at most {MAX_PAYLOAD_BYTES}; record fewer pages, or larger ones",
                    payload.len()
                ),
            });
        }
        let stored =
            self.compressor.compress(payload).map_err(|source| cannot_write(&self.name, source))?;
        let mut head = [0; 16];
        for (to, number) in head.chunks_exact_mut(4).zip([
            kind.0,
            payload.len() as u32,
            stored.len() as u32,
            checksum(&[&stored]),
        ]) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        let head_crc = checksum(&[&head]).to_le_bytes();
        self.put(&[&head, &head_crc, &stored])
    }

    fn put(&mut self, pieces: &[&[u8]]) -> Result<(), RecordingError> {
        for piece in pieces {
            self.out.write_all(piece).map_err(|source| cannot_write(&self.name, source))?;
            self.offset += piece.len() as u64;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), RecordingError> {
        self.out.flush().map_err(|source| cannot_write(&self.name, source))
    }
}

fn cannot_write(name: &str, source: io::Error) -> RecordingError {
    RecordingError::Io { file: name.to_owned(), action: "write", source }
}

/// A file that has the suffix `.partial` until it is published.
pub struct PartialFile {
    file: BufWriter<File>,
    partial: PathBuf,
    path: PathBuf,
}

impl PartialFile {
    /// Creates `path` with `.partial` appended, in place of an earlier writer's.
    pub fn create(path: &Path) -> io::Result<Self> {
        let partial = Self::partial_of(path);
        let file = BufWriter::with_capacity(1 << 20, File::create(&partial)?);
        Ok(PartialFile { file, partial, path: path.to_owned() })
    }

    /// The name that a file has until it is published under this path.
    pub fn partial_of(path: &Path) -> PathBuf {
        let mut partial = OsString::from(path);
        partial.push(".partial");
        PathBuf::from(partial)
    }

    /// Puts the bytes on the disk and gives the file its name.
    pub fn publish(mut self) -> io::Result<PathBuf> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.partial, &self.path)?;
        Ok(self.path)
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::container::ContainerReader;

    #[test]
    fn an_index_that_names_a_chunk_twice_is_refused() {
        let kind = ChunkKind(1);
        let mut writer = ContainerWriter::new(Vec::new(), "t", "test", 7, &"head").unwrap();
        writer.chunk(kind, 0, b"first").unwrap();
        let again = writer.index[0];
        writer.index.push(again);
        let bytes = writer.finish().unwrap();
        let opened = ContainerReader::new::<String>(Cursor::new(bytes), "t", "test", 7);
        let error = opened.unwrap().0.index().unwrap_err().to_string();
        assert!(error.contains("names chunks twice"), "{error}");
    }
}

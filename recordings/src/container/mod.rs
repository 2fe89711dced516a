//! The container: the file format below every recording.
//!
//! ```text
//! file    = head chunk* [index trailer]
//! head    = "TERRACE\0" version:u32 length:u32 crc32:u32 header
//! chunk   = kind:u32 raw_length:u32 stored_length:u32 payload_crc32:u32 head_crc32:u32 payload
//! index   = a chunk of kind "INDX": for each chunk before it offset:u64 kind:u32 key:u64
//! trailer = index_offset:u64 crc32:u32 "TERREND\0"
//! ```
//!
//! Numbers are little-endian. The header is JSON: `{"content": .., "content_version": ..,
//! "header": ..}`, the last of which the content defines. A payload is one zstd frame, and
//! every chunk can be decoded without the ones before it. Every byte is under a checksum: the
//! head's covers version, length and header, a chunk's own 16 bytes have theirs apart from the
//! payload's, so that a changed length differs from a missing end.
//!
//! A writer fills `NAME.partial` and renames it to `NAME` when it finishes: a file without the
//! suffix is whole. A writer that is killed leaves the `.partial`, which can be read up to the cut
//! and is reported as cut. A new recording under the same name replaces the `.partial`.
//!
//! Reading needs neither the index nor a seekable file; the index is there to start at a
//! [`IndexEntry::key`].

mod read;
mod write;

pub(crate) use read::open;
pub use read::{Chunk, ContainerReader, Truncation};
pub use write::{ContainerWriter, PartialFile};

use serde::{Deserialize, Serialize};

/// A chunk's kind: four letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkKind(pub u32);

impl ChunkKind {
    /// The kind of these letters.
    pub const fn new(letters: &[u8; 4]) -> Self {
        ChunkKind(u32::from_le_bytes(*letters))
    }
}

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// Offset of the chunk in the file, in bytes.
    pub offset: u64,
    /// Its kind, four letters.
    pub kind: ChunkKind,
    /// A number by which its content is found, ascending in the file: the first period, for
    /// example.
    pub key: u64,
}

/// The largest payload of a chunk, uncompressed, in bytes. A reader holds one chunk at a time,
/// so this bounds what a hostile file can make it allocate.
pub const MAX_PAYLOAD_BYTES: usize = 512 << 20;

/// The longest header, in bytes.
pub const MAX_HEADER_BYTES: usize = 16 << 20;

const MAGIC: [u8; 8] = *b"TERRACE\0";
const END_MAGIC: [u8; 8] = *b"TERREND\0";
const VERSION: u32 = 1;
const INDEX: ChunkKind = ChunkKind::new(b"INDX");
const HEAD_BYTES: usize = 20;
const CHUNK_HEAD_BYTES: usize = 20;
const TRAILER_BYTES: usize = 20;
const INDEX_ENTRY_BYTES: usize = 20;

/// The JSON at the head of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Head<H> {
    content: String,
    content_version: u32,
    header: H,
}

/// CRC-32 of these pieces, one after the other.
fn checksum(pieces: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    pieces.iter().for_each(|p| hasher.update(p));
    hasher.finalize()
}

#[cfg(test)]
mod tests;

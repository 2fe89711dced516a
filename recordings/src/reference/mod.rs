//! The reference recording: the loads and stores of a real program, thread by thread.
//!
//! ```text
//! header  [`Header`]: command, filter, sampling, what wrote it
//! REFS    one block of one stream: block head, then records (see [`block`])
//! MAPS    one process's memory map, as lines of /proc/PID/maps
//! PROC    one process: its number, its system id, its command line
//! ENDS    how the recording ended: [`Ending`]
//! LIST    at the end: stream, first time and references of each REFS chunk, in file order
//! ```
//!
//! A *stream* is the work of one thread, from its start to its end. Every thread, and every process
//! that a fork or an exec began, has its own. Instructions are counted per stream. *Time*
//! orders streams among each other: a stream begins at its creator's time, advances by one
//! per instruction, and jumps to the latest time of all when it returns from a system call that
//! waits. One thread alone: time is the number of instructions.
//!
//! Each REFS chunk is decoded without the ones before it, so a reader begins at any time, and a
//! recording that was cut off is sound up to the cut.

pub mod block;
mod build;
mod map;
mod read;
mod write;

pub use build::ReferenceBuilder;
pub use map::{IN_NANOSECONDS, MapSnapshot, Region, RegionKind, parse_maps};
pub use read::{BlockEntry, ProcessReferences, ReferenceReader, References, Visitor};
pub use write::{BlockHead, ReferenceWriter};

use serde::{Deserialize, Serialize};

use crate::container::ChunkKind;

/// The content's name in the container.
pub const CONTENT: &str = "references";
/// The version of the content that this module writes and reads.
pub const CONTENT_VERSION: u32 = 2;
/// The oldest version that it reads: without write-backs, and without [`Ending`].
pub const OLDEST_VERSION: u32 = 1;

const REFERENCES: ChunkKind = ChunkKind::new(b"REFS");
const MAPS: ChunkKind = ChunkKind::new(b"MAPS");
const PROCESS: ChunkKind = ChunkKind::new(b"PROC");
const ENDING: ChunkKind = ChunkKind::new(b"ENDS");
const LIST: ChunkKind = ChunkKind::new(b"LIST");

/// The cache after which the references were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No cache: every reference.
    None,
    /// References that miss the first-level data cache.
    L1,
    /// References that miss the second level.
    L2,
    /// References that miss the last level and reach memory.
    Llc,
}

/// The geometry of one cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheShape {
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Lines per set.
    pub ways: u32,
}

/// The caches and the sampling of a recording. Caches are LRU and allocate on loads and stores
/// alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// After which cache.
    pub level: Level,
    /// Size of a line.
    pub line_bytes: u32,
    /// First level, one per thread.
    pub l1: CacheShape,
    /// Second level, one per thread.
    pub l2: CacheShape,
    /// Last level, one per process.
    pub llc: CacheShape,
    /// One in this many references that pass the caches was kept, at irregular distances.
    pub sample_one_in: u64,
}

/// The header of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The filter.
    pub filter: Filter,
    /// Size of a base page.
    pub base_page_bytes: u64,
    /// Size of a huge page.
    pub huge_page_bytes: u64,
    /// Dirty lines that leave the caches were recorded too, as [`Record::WriteBack`].
    #[serde(default)]
    pub write_backs: bool,
    /// Program and version.
    pub created_by: String,
    /// The processor or emulator, and its version.
    pub executed_by: String,
}

/// One load or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Virtual address of the first byte.
    pub address: u64,
    /// log2 of its size in bytes, 0 to 6.
    pub size_log2: u8,
    /// A store; else a load.
    pub store: bool,
}

impl Reference {
    /// Its size, in bytes.
    pub fn size_bytes(&self) -> u64 {
        1 << self.size_log2
    }
}

/// A dirty line leaves the caches: [`Filter::line_bytes`] bytes are written to the level beyond the
/// recorded one. No load or store of the program: a consumer of the program's own references skips
/// it. It is in the stream, and at the place, of the reference that evicted the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WriteBack {
    /// Virtual address of its first byte.
    pub address: u64,
}

/// The other events of a stream. Numbers are those of the Linux system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// Memory was mapped.
    Map {
        /// Address that it got.
        address: u64,
        /// Length in bytes.
        length_bytes: u64,
        /// PROT_ bits.
        protection: u64,
        /// MAP_ bits.
        flags: u64,
    },
    /// Memory was unmapped.
    Unmap {
        /// First address.
        address: u64,
        /// Length in bytes.
        length_bytes: u64,
    },
    /// A mapping was moved or resized.
    Remap {
        /// Address before.
        old_address: u64,
        /// Length before, in bytes.
        old_length_bytes: u64,
        /// Address after.
        address: u64,
        /// Length after, in bytes.
        length_bytes: u64,
    },
    /// The heap ends here now.
    Break {
        /// Its end address.
        address: u64,
    },
    /// madvise.
    Advise {
        /// First address.
        address: u64,
        /// Length in bytes.
        length_bytes: u64,
        /// MADV_ number.
        advice: u64,
    },
    /// Protection was changed.
    Protect {
        /// First address.
        address: u64,
        /// Length in bytes.
        length_bytes: u64,
        /// PROT_ bits.
        protection: u64,
    },
    /// A thread or process was created.
    Created {
        /// Its number in the system (process or thread).
        system_id: u64,
        /// A thread of this process; else a process.
        thread: bool,
    },
    /// Another program begins in this process: its references are in a new stream.
    Exec,
    /// A signal handler has returned.
    SignalReturn,
    /// The thread ends.
    Exit {
        /// Its exit code.
        code: u64,
        /// The process ends with it.
        process: bool,
    },
    /// The program marked this place, with a number of its choice.
    Mark {
        /// Number of the mark.
        mark: u64,
    },
    /// Time passed without instructions: the stream waited for others.
    Waited {
        /// Length of the wait, in the stream's unit of time.
        time: u64,
    },
    /// References could not be recorded.
    Lost {
        /// Number of references.
        references: u64,
    },
    /// An instruction was fetched. Recorders leave these out; traces of other tools have them.
    Fetch {
        /// Address of the instruction.
        address: u64,
        /// Length in bytes; 1 where that is not known.
        size_bytes: u64,
    },
    /// An event of a later version.
    Unknown {
        /// Its event number.
        kind: u64,
    },
}

/// A record at one place of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Record {
    /// A load or store.
    Reference(Reference),
    /// A dirty line that left the caches.
    WriteBack(WriteBack),
    /// Any other event.
    Event(Event),
}

/// A record and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placed {
    /// Number of the stream.
    pub stream: u32,
    /// Number of its process.
    pub process: u32,
    /// Its time, which orders streams.
    pub time: u64,
    /// Instructions that the stream had executed.
    pub instructions: u64,
    /// The record.
    pub record: Record,
}

/// Numbers and command line of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number in the recording.
    pub process: u32,
    /// Its number in the system; 0 for the first, to which nothing refers.
    pub system_id: u32,
    /// Its command line; empty for a process that a fork began.
    pub command: Vec<String>,
}

/// How a recording ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ending {
    /// Exit code of the first process.
    pub exit_code: Option<i32>,
    /// Or the signal that ended it.
    pub signal: Option<i32>,
    /// Processes that were killed: the last few references of each, up to about a thousand that had
    /// not been through the caches, are not in the recording.
    pub killed: u32,
    /// Recording was stopped while the program ran; it was killed.
    pub stopped: bool,
}

impl Ending {
    /// True if the recording ends before the program would have.
    pub fn is_cut_off(&self) -> bool {
        self.stopped || self.killed > 0
    }
}

#[cfg(test)]
mod tests;

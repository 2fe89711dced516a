//! The windows of a program (`.twin`): short parts of its references, at random places, each with
//! what is needed to simulate it without the references before it.
//!
//! ```text
//! header  [`Header`]
//! WNDW    one window: [`Window`], its numbers and addresses as differences
//! TAIL    the steps after the last window
//! ```
//!
//! *Before* a window come the first touches of pages and the changes of the memory map since the
//! window before, so that pages are where first touch puts them. Its *lines* are those that the
//! program used last, oldest first: replayed, they leave caches and TLBs of any geometry as the
//! whole run would, as far as they replace what was used longest ago (Barr et al., "Accelerating
//! Multiprocessor Simulation with a Memory Timestamp Record", ISPASS 2005). The first of its
//! references are the *lead*: they are simulated and not measured, for what is under way when a
//! window begins is not known.

mod encode;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::WindowsReader;
pub use write::WindowsWriter;

use serde::{Deserialize, Serialize};

use crate::container::ChunkKind;

/// The content's name in the container.
pub const CONTENT: &str = "windows";
/// The version of the content that this module writes and reads.
pub const CONTENT_VERSION: u32 = 1;
/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;

const WINDOW: ChunkKind = ChunkKind::new(b"WNDW");
const TAIL: ChunkKind = ChunkKind::new(b"TAIL");

/// The header of a file of windows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The program's name for people.
    pub workload: String,
    /// Threads of the program.
    pub threads: u16,
    /// Memory that it touches in all, in bytes, if known beforehand.
    pub footprint_bytes: Option<u64>,
    /// Loads and stores of the whole program.
    pub references: u64,
    /// Windows.
    pub windows: u64,
    /// Loads and stores of each window that are measured.
    pub window_references: u64,
    /// Loads and stores before them that are simulated and not measured.
    pub lead_references: u64,
    /// Lines of each window, at most.
    pub lines: u64,
    /// Seed of the windows' places.
    pub seed: u64,
    /// The experiment that it was made from, as TOML.
    pub experiment: String,
    /// Program and version.
    pub created_by: String,
}

/// The kind of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A load.
    Load,
    /// A load whose address was loaded by the load before it.
    DependentLoad,
    /// A store.
    Store,
}

/// One load or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowAccess {
    /// Virtual address of the first byte.
    pub address: u64,
    /// Instructions of the thread since its last access, this one included.
    pub instructions: u32,
    /// Thread of the program, from 0.
    pub thread: u16,
    /// Size in bytes, 1 at least.
    pub size: u8,
    /// Kind of access.
    pub kind: Kind,
}

/// One step of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowStep {
    /// An access.
    Access(WindowAccess),
    /// Memory is mapped.
    Map {
        /// First address, a multiple of 4 KB.
        start: u64,
        /// Length in bytes, a multiple of 4 KB.
        size_bytes: u64,
        /// Whether huge pages may back it.
        huge_eligible: bool,
    },
    /// Memory is unmapped.
    Unmap {
        /// First address, a multiple of 4 KB.
        start: u64,
        /// Length in bytes, a multiple of 4 KB.
        size_bytes: u64,
    },
    /// All threads have reached this point.
    Barrier,
    /// The program's start-up is over.
    MainBegins,
}

/// A line that the program used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLine {
    /// Virtual address of its first byte, a multiple of [`LINE_BYTES`].
    pub address: u64,
    /// The thread that used it last.
    pub thread: u16,
    /// It was written since the oldest of the window's lines was used last.
    pub is_written: bool,
}

/// One window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Loads and stores of the program before its lead.
    pub position: u64,
    /// First touches of pages, as accesses, and changes of the memory map since the window before.
    pub before: Vec<WindowStep>,
    /// Lines in the order of their last use, the oldest first.
    pub lines: Vec<WindowLine>,
    /// The lead and the window.
    pub steps: Vec<WindowStep>,
}

//! The period recording (`.trec`): the scans, decisions and outcomes of an engine, group by group
//! and period by period. One recording serves every policy: its accessed bits drive the simulated
//! machine ([`RecordingSource`]), and a replayed policy must make the recorded decisions again.
//!
//! On the [`container`](crate::container), content `period`, version 5. Chunks of kind `PERD` hold
//! frames; each can be read without those before it: the first scan of a group in a chunk states
//! its layout and its bits, those after it state the layout only when it changed and the bits as
//! what changed since the scan before. A chunk is written every [`PERIODS_PER_CHUNK`] periods, or
//! [`CHUNK_BYTES`] of frames, so a killed writer loses no more than that.
//!
//! ```text
//! frame    = code:byte group:number rest
//! lost     = 1 group periods reason:text
//! scan     = 2 group period lost_periods flags:byte [layout] accessed:bits fast:bits [frames]
//!            [active:bits] [counts] [counters]
//! budget   = 3 group period fast_pages moved_pages
//! decision = 4 group period applied:text features promotions demotions exchanges sizes
//! outcome  = 5 group period promoted demoted exchanged operations failures
//! ended    = 6 group
//! ```
//!
//! `number` is in 7-bit groups, `text` has its length before it, ranges are stored by their
//! distance from the range before. Counts are those of the samples of accessed bits in the period:
//! their number and interval, then one for each accessed page.
//!
//! Version 1 had no frames, no sizes of operations and no count of them, version 2 no counters,
//! version 3 no active pages, version 4 no counts; they are still read.

mod frame;
mod read;
mod records;
mod source;
pub mod stream;
mod write;

pub use frame::{Frame, RecordedDecision};
pub(crate) use frame::{put_layout, take_layout};
pub use read::PeriodReader;
pub use records::{PeriodRecord, Record, Records};
pub use source::RecordingSource;
pub use write::PeriodWriter;

use serde::{Deserialize, Serialize};
use terrace_core::page::PageSize;

use crate::container::ChunkKind;

/// Periods (of all groups together) in a chunk, at most.
pub const PERIODS_PER_CHUNK: u32 = 8;

/// Bytes of frames after which a chunk is written.
pub const CHUNK_BYTES: usize = 4 << 20;

/// The content's name in the container.
pub const CONTENT: &str = "period";
/// The version of the content that this module writes and reads.
pub const CONTENT_VERSION: u32 = 5;
/// Prefix of the experiment's name in recordings that terraced keeps of its groups: the last scans
/// of one group, over restarts.
pub const HISTORY: &str = "terraced state";
const CHUNK: ChunkKind = ChunkKind::new(b"PERD");

/// The header of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The program that wrote it, with its version.
    pub created_by: String,
    /// The experiment's name, or its text.
    pub experiment: String,
    /// The machine it ran on: "sim", "vm", "host".
    pub machine: String,
    /// The kernel of that machine; empty where there is none.
    pub kernel: String,
    /// Length of a period.
    pub period_ms: u64,
    /// The experiment's seed.
    pub seed: u64,
    /// Whether pages that could not be moved were left out of what the policies saw
    /// (`terrace_core::unmovable`), as live since that is so.
    #[serde(default)]
    pub leaves_out_unmovable: bool,
    /// The groups, numbered as in the frames.
    pub groups: Vec<GroupHeader>,
}

/// A group of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupHeader {
    /// Name of the group.
    pub name: String,
    /// Name of its policy.
    pub policy: String,
    /// The policy's parameters, an object or null.
    pub parameters: serde_json::Value,
    /// The seed its policy was built with.
    pub policy_seed: u64,
    /// Size of its pages.
    pub page_size: PageSize,
    /// Fast memory it may use, as a part of its pages; what counts are the recorded budgets.
    pub fast_share: f64,
}

#[cfg(test)]
mod tests;

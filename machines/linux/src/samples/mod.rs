//! Samples of memory accesses: where they come from, and whose pages they are of.
//!
//! A [`SampleSource`] gives sampled accesses that missed the last level, from
//! - [`pmu`]: the processor's own sampling (Intel's PEBS, AMD's IBS) through a perf event's ring, or
//! - [`port`]: a virtual machine whose emulator samples, at a port of its own.
//!
//! Both write the same records (`terrace_recordings::perf_record`). The [`hub`] takes them for all
//! groups of a host and finds each sample's page, by its process and virtual address or, where the
//! source knows no processes, by its physical address ([`frames`]).

pub mod frames;
pub mod hub;
pub mod pmu;
mod pmu_raw;
pub mod port;

use terrace_recordings::perf_record::{MemorySample, RecordCounts};

use crate::roots::Roots;

/// Sampled accesses of a host's memory.
pub trait SampleSource: Send {
    /// The name it has in results.
    fn name(&self) -> &str;

    /// Gives what has come since the last call, of one call a bounded number.
    fn read(&mut self, take: &mut dyn FnMut(&MemorySample)) -> std::io::Result<()>;

    /// What was read so far, and what was lost before it could be.
    fn counts(&self) -> RecordCounts;
}

/// Why a host gives no samples: a line.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// No source is there.
    #[error("{0}")]
    Absent(String),
    /// A source is there and cannot be used.
    #[error("{name}: {source}; {remedy}")]
    Unusable {
        /// Its name.
        name: String,
        /// What the kernel says.
        source: std::io::Error,
        /// What to do.
        remedy: &'static str,
    },
}

/// A source that a host may have.
pub struct SourceKind {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub summary: &'static str,
    /// Opens it: one sample in so many accesses, where the source can be asked for that.
    pub open: fn(&Roots, u32) -> Opened,
}

/// A source, or why there is none.
pub type Opened = Result<Box<dyn SampleSource>, SampleError>;

/// All sources, in the order in which they are tried.
pub const SOURCES: &[SourceKind] = &[port::KIND, pmu::KIND];

/// The first source that this host has; where it has none, why, in a line.
pub fn open(roots: &Roots, accesses_per_sample: u32) -> Opened {
    let mut reasons = Vec::new();
    for kind in SOURCES {
        match (kind.open)(roots, accesses_per_sample) {
            Ok(source) => return Ok(source),
            Err(error) => reasons.push(format!("{}: {error}", kind.name)),
        }
    }
    Err(SampleError::Absent(format!("no samples of reads here ({})", reasons.join("; "))))
}

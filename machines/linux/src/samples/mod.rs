//! Samples of memory accesses: their sources, and the pages they belong to.
//!
//! A [`SampleSource`] gives sampled accesses that missed the last level, from
//! - [`pmu`]: the processor's own sampling (Intel's PEBS, AMD's IBS) through a perf event's ring, or
//! - [`port`]: a virtual machine whose emulator samples, at a virtio port.
//!
//! Both write the same records (`terrace_recordings::perf_record`). The [`hub`] takes them for all
//! groups of a host and finds each sample's page, by its process and virtual address or, where the
//! source knows no processes, by its physical address ([`frames`]). Of ranges it knows the base page,
//! too, so that base pages may leave the tier of their range ([`crate::refiner`]).

mod base_pages;
pub mod frames;
pub mod hub;
mod member;
pub mod pmu;
pub(crate) mod pmu_raw;
pub mod port;

use terrace_recordings::perf_record::{MemorySample, RecordCounts};

use crate::roots::Roots;

/// Sampled accesses of a host's memory.
pub trait SampleSource: Send {
    /// Its name in results.
    fn name(&self) -> &str;

    /// Accesses for each sample, where they are other than asked for: a processor takes not every number.
    fn accesses_per_sample(&self) -> Option<u32> {
        None
    }

    /// Passes on the samples since the last call, a bounded number in one call.
    fn read(&mut self, take: &mut dyn FnMut(&MemorySample)) -> std::io::Result<()>;

    /// Counts of samples read, and of those lost before.
    fn counts(&self) -> RecordCounts;
}

/// Why a host gives no samples, in a line.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// There is no source.
    #[error("{0}")]
    Absent(String),
    /// There is a source, and it cannot be used.
    #[error("{name}: {source}; {remedy}")]
    Unusable {
        /// Its name.
        name: String,
        /// The error of the kernel.
        source: std::io::Error,
        /// The remedy.
        remedy: &'static str,
    },
}

/// A source that a host may have.
pub struct SourceKind {
    /// Its name.
    pub name: &'static str,
    /// Description.
    pub summary: &'static str,
    /// Opens it: one sample in so many accesses, if the source can be configured so.
    pub open: fn(&Roots, u32) -> Opened,
}

/// A source, or why there is none.
pub type Opened = Result<Box<dyn SampleSource>, SampleError>;

/// All sources, in the order in which they are tried.
pub const SOURCES: &[SourceKind] = &[port::KIND, pmu::KIND];

/// The first source that this host has; if it has none, the reason in a line.
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

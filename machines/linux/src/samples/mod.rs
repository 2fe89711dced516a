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
mod pace;
pub mod pmu;
pub(crate) mod pmu_raw;
pub mod port;

use serde::{Deserialize, Serialize};
use terrace_recordings::perf_record::{MemorySample, RecordCounts};

use crate::roots::Roots;

/// Which reads that miss the last level are sampled: `"auto"`, or one in so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum SampleReads {
    /// Up to the bound on samples a second, where the host samples; elsewhere none.
    #[default]
    Auto,
    /// One in so many; a host that does not sample is refused. 0: none.
    OneIn(u32),
}

impl SampleReads {
    /// None are sampled.
    pub const NONE: SampleReads = SampleReads::OneIn(0);

    /// For serde: whether the default need not be written.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == SampleReads::Auto
    }

    /// One in so many where that is given, 0 for none; else this many.
    #[must_use]
    pub fn or(self, one_in: u32) -> u32 {
        match self {
            SampleReads::Auto => one_in,
            SampleReads::OneIn(one_in) => one_in,
        }
    }
}

/// As files have it.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "sample_reads: expected \"auto\", or one read in so many")]
enum Written {
    Number(i64),
    Text(String),
}

impl TryFrom<Written> for SampleReads {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let got = match written {
            Written::Number(number) => match u32::try_from(number) {
                Ok(one_in) => return Ok(SampleReads::OneIn(one_in)),
                Err(_) => number.to_string(),
            },
            Written::Text(text) if text == "auto" => return Ok(SampleReads::Auto),
            Written::Text(text) => format!("'{text}'"),
        };
        Err(format!(
            "sample_reads {got}: expected \"auto\", or one read in so many from 0 to {}",
            u32::MAX
        ))
    }
}

impl From<SampleReads> for Written {
    fn from(reads: SampleReads) -> Self {
        match reads {
            SampleReads::Auto => Written::Text("auto".to_owned()),
            SampleReads::OneIn(one_in) => Written::Number(one_in.into()),
        }
    }
}

/// Sampled accesses of a host's memory.
pub trait SampleSource: Send {
    /// Its name in results.
    fn name(&self) -> &str;

    /// Accesses for each sample, where they are other than asked for: a processor takes not every number.
    fn accesses_per_sample(&self) -> Option<u32> {
        None
    }

    /// Whether its samples have their process and virtual address, so that no frames are needed.
    fn knows_processes(&self) -> bool {
        false
    }

    /// Samples accesses from now on, or no more. A source that cannot be switched goes on.
    fn sample(&mut self, _on: bool) -> std::io::Result<()> {
        Ok(())
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
    /// Opens it for these accesses, if the source can be configured so.
    pub open: fn(&Roots, SampleReads) -> Opened,
}

/// A source, or why there is none.
pub type Opened = Result<Box<dyn SampleSource>, SampleError>;

/// All sources, in the order in which they are tried.
pub const SOURCES: &[SourceKind] = &[port::KIND, pmu::KIND];

/// The first source that this host has; if it has none, the reason in a line.
pub fn open(roots: &Roots, reads: SampleReads) -> Opened {
    let mut reasons = Vec::new();
    for kind in SOURCES {
        match (kind.open)(roots, reads) {
            Ok(source) => return Ok(source),
            Err(error) => reasons.push(format!("{}: {error}", kind.name)),
        }
    }
    Err(SampleError::Absent(format!("no samples of reads here ({})", reasons.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_to_sample_are_a_number_or_auto() {
        let read = |text: &str| serde_json::from_str::<SampleReads>(text);
        for (text, expected) in [
            ("\"auto\"", SampleReads::Auto),
            ("0", SampleReads::NONE),
            ("400", SampleReads::OneIn(400)),
            ("4294967295", SampleReads::OneIn(u32::MAX)),
        ] {
            assert_eq!(read(text).unwrap(), expected);
            assert_eq!(serde_json::to_string(&expected).unwrap(), text);
        }
        for (text, got) in [("\"many\"", "'many'"), ("-1", "-1"), ("4294967296", "4294967296")] {
            let message = read(text).unwrap_err().to_string();
            assert!(message.starts_with(&format!("sample_reads {got}: expected")), "{message}");
        }
        for text in ["true", "1.5", "[1]"] {
            let message = read(text).unwrap_err().to_string();
            assert!(message.starts_with("sample_reads: expected \"auto\""), "{message}");
        }
        assert_eq!((SampleReads::Auto.or(400), SampleReads::NONE.or(400)), (400, 0));
    }
}

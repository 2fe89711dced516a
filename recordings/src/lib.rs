//! Recordings: formats and streams of the memory that programs touched.
//!
//! **Depends on** pages, scans and plans (the core), files, compression, checksums. **Must not
//! depend on** machines, policies' insides, or the writer of a recording: anything that yields the
//! accessed pages of each period is a [`source::PeriodSource`].
//!
//! - [`champsim`]: one record of a ChampSim trace;
//! - [`container`]: the file format below every recording: a JSON header and checked,
//!   compressed chunks, readable up to the cut when the writer was killed;
//! - [`period`]: the period recording (`.trec`): per group and period the scan, the budget, the
//!   decision and its outcome;
//! - [`mod@reference`]: the reference recording (`.tref`): each load and store of a real program;
//! - [`perf_record`]: the records in which Linux reports sampled accesses of memory;
//! - [`import`], [`export`]: from files of other tools, and to them;
//! - [`survey`]: the totals of a recording;
//! - [`profile`]: the profile (`.tprof`): the cost of each interval of a program with fast and with
//!   slow memory, and the pages that cause it;
//! - [`windows`]: the windows of a program (`.twin`): parts of its references, each with what is
//!   needed to simulate it alone;
//! - [`source`]: the stream that the simulated machine reads;
//! - [`error`]: why a recording could not be written or read.
#![forbid(unsafe_code)]

pub mod champsim;
mod codec;
pub mod container;
pub mod error;
pub mod export;
pub mod import;
pub mod mixed;
pub mod perf_record;
pub mod period;
pub mod profile;
pub mod reference;
pub mod source;
pub mod survey;
pub mod windows;

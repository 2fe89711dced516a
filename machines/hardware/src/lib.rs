//! Hardware parts: caches, TLBs, page walker, cores, links, memory tiers, DRAM timing.
//!
//! **Knows** how each part behaves in time. **Must not know** operating systems, programs,
//! recordings or policies: page tables come through [`walker::PageTable`], references are passed in
//! one at a time. The whole project has one cache model and one DRAM model: the simulated machine
//! and the rack are built of these parts.
//!
//! Every part is an ordinary struct made from a configuration that is checked once
//! ([`error::ConfigError`]). Parts do not call each other behind the caller's back and keep no
//! clock of their own: every call that takes time is given a time and returns one
//! ([`units::Picoseconds`]). Requests have numbers that come back with the answer
//! ([`request::RequestId`]).
//!
//! In reading order:
//! - [`units`], [`address`], [`request`], [`error`], [`random`]: the vocabulary of the parts;
//! - [`cache`]: one cache, a hierarchy of them, and the same cache counted as cachegrind counts;
//! - [`tlb`] and [`walker`]: address translation, of 4 KB and 2 MB pages, with 4 or 5 levels;
//! - [`cpu`]: a core, that is, how much of memory's time becomes time of the program;
//! - [`tier`]: memory tiers as queues, with links and asymmetric media, or over [`dram`];
//! - [`dram`]: DDR4 and DDR5 command timing;
//! - [`node`]: cores, TLBs, walkers and caches put together, from reference to request;
//! - [`presets`]: whole machines by name;
//! - [`speed`]: how fast all of this runs;
//! - [`host`] and [`prefetch`]: the speed-ups, which change no result.
// Only `sets::sse2` and `host` use `unsafe`: each unsafe line says why it is sound.
#![deny(unsafe_code)]

pub mod address;
pub mod cache;
pub mod cpu;
pub mod dram;
pub mod error;
pub mod host;
pub mod layered;
pub mod node;
pub mod prefetch;
pub mod presets;
pub mod random;
pub mod request;
mod sets;
pub mod speed;
pub mod tier;
pub mod tlb;
pub mod units;
pub mod walker;

//! Building blocks of caches and TLBs: sets of tagged words, and the order in which the ways of a
//! set were used.
//!
//! A simulation of random references waits for the simulating machine's own cache misses. So a word
//! has 32 bits where the tags allow, a set of up to 16 ways is one line of the host, and the order
//! of up to 16 ways is one 64-bit number. Words stay where they are; only the order moves.

pub(crate) mod packed;
pub(crate) mod recency;
#[cfg(target_arch = "x86_64")]
mod sse2;
pub(crate) mod ways;
pub(crate) mod words;

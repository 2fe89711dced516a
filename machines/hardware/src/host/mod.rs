//! The machine that simulates: its memory is what a simulation waits for. Nothing here changes a
//! result.
//!
//! - [`array`]: arrays on huge pages of the host;
//! - [`prefetch`]: asking for an element some time before it is needed.

pub mod array;
pub mod prefetch;

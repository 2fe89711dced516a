//! The simulating machine: a simulation waits for its memory. Nothing here changes a result.
//!
//! - [`mod@array`]: arrays on huge pages of the host;
//! - [`prefetch`]: requesting an element some time before it is needed.

pub mod array;
pub mod prefetch;

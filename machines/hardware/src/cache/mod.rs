//! Caches: one model for every level of every machine.
//!
//! - [`config`]: a cache's geometry, checked before anything runs;
//! - [`mod@array`]: one set-associative cache;
//! - [`hierarchy`]: private levels over a shared one, with write-backs;
//! - [`counting`]: the same cache counted as Valgrind's cachegrind counts;
//! - [`mshr`]: the misses that a cache can have under way.

pub mod array;
pub mod config;
pub mod counting;
pub mod hierarchy;
pub mod mshr;

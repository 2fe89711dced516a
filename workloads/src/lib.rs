//! Workloads: programs that make memory work, clients that drive programs, and generators of
//! accessed pages for machines that run no programs.
//!
//! **Knows** how to make, start, drive, check and end a workload. **Must not know** who tracks
//! or moves its memory, nor why: trackers, movers and policies are above.
//!
//! - [`kinds`]: the registry that experiments name workloads by;
//! - [`live`]: what a machine must start for one, as plain data; [`session`]: starts it;
//! - [`memory`]: programs with a known pattern of touches and contents that prove themselves;
//! - [`programs`]: the workload classes of the papers: real computations that check their results,
//!   run natively or reported reference by reference;
//! - [`redis`]: a load for Redis whose values prove themselves;
//! - [`generators`]: accessed pages without a program.
//!
//! The binary `terrace-workload` carries [`memory`], [`programs`] and [`redis`] to where they run.

mod field;
pub mod generators;
pub mod kinds;
pub mod live;
pub mod memory;
pub mod programs;
pub mod redis;
pub mod session;

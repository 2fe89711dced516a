//! Workloads: programs that make memory work, clients that drive programs, and generators of
//! accessed pages for machines that run no programs.
//!
//! **Knows** how to make, start, drive, check and end a workload. **Must not know** which code
//! tracks or moves its memory, nor why: trackers, movers and policies are above.
//!
//! - [`kinds`]: the registry that experiments name workloads by;
//! - [`live`]: the programs that a machine starts for one, as plain data; [`session`]: starts them;
//! - [`memory`]: programs with a known pattern of touches and self-checking contents;
//! - [`programs`]: the workload classes of the papers: real computations that check their results,
//!   run natively or reported reference by reference;
//! - [`redis`]: a load for Redis with self-checking values;
//! - [`generators`]: accessed pages without a program.
//!
//! The binary `terrace-workload` contains [`memory`], [`programs`] and [`redis`].

mod field;
pub mod generators;
pub mod kinds;
pub mod live;
pub mod memory;
pub mod programs;
pub mod redis;
pub mod session;

//! The operating system of the simulated machine: frames, page tables, processes, faults, migration
//! in its steps, shootdowns, and the cost of all of these.
//!
//! **Knows** how Linux manages memory, and what the Nimble, Radiant and granularity papers change
//! about it. **Must not know** scheduling, caches, policies, or how time passes: the machine plays
//! time. Every call returns its processor time and the work of the hardware: translations to drop,
//! bytes to copy or to clear.
//!
//! In reading order:
//! - [`config`]: configuration; nodes and tiers, placement policies of data and page tables;
//! - [`costs`]: the cost of each step, and the source of each number;
//! - [`frames`]: the frames of a node, and their owners;
//! - [`space`]: an address space and its page table, which the hardware walks;
//! - [`Os`]: processes and mappings; [`fault`]: demand paging; [`moves`] and [`exchange`]: migration;
//!   [`tables`]: page tables that follow their data;
//! - [`huge`]: collapse; [`accessed_scan`]: what trackers and scans observe;
//! - [`shootdown`], [`counters`].
#![forbid(unsafe_code)]

pub mod accessed_scan;
mod blockset;
mod check;
pub mod config;
#[cfg(test)]
mod conservation;
pub mod costs;
pub mod counters;
mod entry;
pub mod exchange;
pub mod fault;
mod fault_injection;
pub mod frames;
pub mod huge;
mod memory;
pub mod moves;
mod os;
pub mod shootdown;
pub mod space;
pub mod tables;

pub use config::{Node, NodeMemory, OsConfig, ProcessSpec, Tier};
pub use os::{Os, OsError, Unmapped};

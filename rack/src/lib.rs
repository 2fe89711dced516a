//! The rack: compute nodes with small local memories, a switch with a global memory manager, and
//! memory pools, after "A Practical Approach For Workload-Aware Data Movement in Disaggregated
//! Memory Systems" (Puri et al.; "the paper" in this crate).
//!
//! **Knows** nodes, network, pools and the mechanism in the switch that decides what moves. **Must
//! not know** result files, reports, arguments. Cores, caches, TLBs, walkers and DRAM are those of
//! `terrace-hardware`: the project has one model of each.
//!
//! The simulation is event-driven. Nodes, switch and pools are components that share nothing and
//! exchange packets that take time. So each can run alone, on a thread of its own, for as long as
//! the shortest delay between components before they must exchange packets; no result depends on
//! the number of threads ([`simulate`]).
//!
//! In reading order:
//! - [`config`]: the configuration, with the paper's table I as the default;
//! - [`packet`], [`link`], [`nic`]: packets, and the queues that they wait in;
//! - [`address`], [`manager`]: remote pages, chunks, and their owners;
//! - [`stream`]: sources of instructions;
//! - [`node`]: a compute node; [`pages`]: its page table; [`local`]: its memory manager;
//!   [`victims`]: the choice of pages to evict; [`background`]: copies that give way to demand;
//! - [`pool`]: a memory pool;
//! - [`mechanism`]: the structures that the paper adds to the switch; [`switch`]: the switch
//!   itself;
//! - [`scheme`]: the data-movement schemes, each a choice among these structures;
//! - [`simulate`]: all together; [`outcome`]: its counters; [`experiment`]: many runs from one
//!   file; [`trace`]: packets one by one.
#![forbid(unsafe_code)]

pub mod address;
pub mod background;
pub mod config;
pub mod experiment;
pub mod link;
pub mod local;
pub mod manager;
pub mod mechanism;
pub mod nic;
pub mod node;
pub mod outcome;
pub mod packet;
pub mod pages;
pub mod pool;
pub mod scheme;
pub mod simulate;
pub mod stream;
pub mod switch;
pub mod trace;
pub mod victims;

/// Simulated time in picoseconds.
pub type Time = u64;

/// Never.
pub const NEVER: Time = u64::MAX;

pub use terrace_hardware::error::ConfigError;

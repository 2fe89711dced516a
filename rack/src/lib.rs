//! The rack: compute nodes with small local memories, a switch with a global memory manager, and
//! memory pools, after "A Practical Approach For Workload-Aware Data Movement in Disaggregated
//! Memory Systems" (Puri et al.; "the paper" in this crate).
//!
//! **Knows** nodes, network, pools and the mechanism in the switch that decides what moves.
//! **Must not know** result files, reports, arguments. Cores, caches, TLBs, walkers and DRAM are
//! those of `terrace-hardware`: there is one model of each in the project.
//!
//! The simulation is event-driven. Nodes, switch and pools are components that share nothing and
//! talk through packets that take time; so they can run for as long as the shortest way takes
//! before they must meet, each on a thread of its own, and no result depends on how many threads
//! there are ([`simulate`]).
//!
//! In reading order:
//! - [`config`]: everything that can be set, with the paper's table I as the default;
//! - [`packet`], [`link`], [`nic`]: what travels, and the queues it waits in;
//! - [`address`], [`manager`]: remote pages, chunks, who gets which;
//! - [`stream`]: where instructions come from;
//! - [`node`]: a compute node; [`pages`]: its page table; [`local`]: its memory manager; [`victims`]: which pages it gives up; [`background`]: copies that let demand pass;
//! - [`pool`]: a memory pool;
//! - [`mechanism`]: the parts in the switch that the paper adds; [`switch`]: the switch itself;
//! - [`scheme`]: the data-movement schemes, each a choice among those parts;
//! - [`simulate`]: all together; [`outcome`]: what it counted; [`experiment`]: many runs from one file;
//!   [`trace`]: packets one by one.
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

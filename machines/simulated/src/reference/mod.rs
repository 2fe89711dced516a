//! Trace-driven simulation: every load and store of real programs, on hardware with an operating
//! system.
//!
//! Interval simulation has the pages used; this simulation computes the time. The hardware crate
//! has cores, TLBs, walkers, caches and tiers, the operating-system crate frames, page tables,
//! faults and migration; this machine plays time among them.
//!
//! - [`source`]: streams of references; [`program`] and [`recording`] make such streams, and
//!   [`shared`] gives one to several machines;
//! - [`config`]: the configuration of a machine;
//! - [`machine`]: the passing of time among programs and copying threads;
//! - `group`: a program's tracker and mover, for the engine;
//! - `migrate`: carrying out a plan, step by step;
//! - `background`: the kernel's work in the background;
//! - `copy`: threads that copy pages;
//! - `port`: the path to memory, with counts;
//! - `meter`: counters and samples of a program;
//! - `leader` and `follower`: machines that run one program side by side, whose translations and caches
//!   are simulated once;
//! - `system`: the operating system of a machine;
//! - [`counts`]: the cost of a program;
//! - [`windows`]: short parts of a program, taken once and simulated without the rest.

mod background;
pub mod config;
mod copy;
pub mod counts;
mod follower;
mod group;
mod leader;
pub mod machine;
mod meter;
mod migrate;
mod port;
mod program;
mod program_source;
mod recording_source;
mod shared_source;
pub mod source;
mod system;
pub mod windows;

pub use config::{BackgroundDemotion, Options, ReferenceConfig, ReferenceGroup};
pub use counts::{Counts, TIERS};
pub use follower::Follower;
pub use group::{PeriodCost, ReferenceMover, ReferenceTracker, Work};
pub use leader::{can_lead, lead};
pub use machine::{Killed, ReferenceMachine};
pub(crate) use migrate::MOST_OPERATION_BYTES;
pub use program_source::program;
pub use recording_source::{RecordingChoice, recording};
pub use shared_source::shared;
pub use source::{Access, AccessKind, Piped, ReferenceSource, Step};

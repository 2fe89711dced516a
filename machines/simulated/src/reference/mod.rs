//! Trace-driven simulation: every load and store of real programs, on hardware with an operating system.
//!
//! Interval simulation knows which pages are used; here time comes out. Cores, TLBs, walkers, caches and
//! tiers are the hardware crate's, frames, page tables, faults and migration the operating system's;
//! this machine plays time among them.
//!
//! - [`source`]: where references come from; [`program`] and [`recording`] make such streams;
//! - [`config`]: what a machine is made of;
//! - [`machine`]: the passing of time among programs and copying threads;
//! - `group`: a program's tracker and mover, as the engine sees it;
//! - `migrate`: carrying out a plan, step by step;
//! - `background`: what the kernel does without being asked;
//! - `copy`: threads that copy pages;
//! - `port`: the way to memory, counted;
//! - `meter`: what counters and samples show of a program;
//! - [`counts`]: what a program cost.

mod background;
pub mod config;
mod copy;
pub mod counts;
mod group;
pub mod machine;
mod meter;
mod migrate;
mod port;
mod program;
mod program_source;
mod recording_source;
pub mod source;

pub use config::{BackgroundDemotion, Options, ReferenceConfig, ReferenceGroup};
pub use counts::{Counts, TIERS};
pub use group::{PeriodCost, ReferenceMover, ReferenceTracker, Work};
pub use machine::{Killed, ReferenceMachine};
pub(crate) use migrate::MOST_OPERATION_BYTES;
pub use program_source::program;
pub use recording_source::{RecordingChoice, recording};
pub use source::{Access, AccessKind, Piped, ReferenceSource, Step};

//! The simulated machine.
//!
//! **Knows** two tiers with capacities, the pages of several groups, the rules of allocation and
//! migration, and sources of accessed pages. **Must not know** policies: it offers the engine a
//! [`Tracker`](terrace_core::interfaces::Tracker) and a [`Mover`](terrace_core::interfaces::Mover)
//! for each group, as a live machine does. ([`replay`] builds policies by name, as the engine's
//! users do, to compare their decisions with the recorded ones.)
//!
//! There are two fidelities. [`reference`](mod@reference) runs every load and store on hardware
//! with an operating system, and computes run time. The modules below are *interval simulation*:
//! time passes in whole periods, a page is accessed in a period or not, a move takes no time and
//! costs pages and bytes. The same seed gives the same bytes.
//!
//! - [`machine`]: the machine, its groups, their trackers and movers;
//! - `tiers`: the capacity of each tier and its use;
//! - `placement`: the tier of each page of a group; allocation and first touch;
//! - `migration`: carrying out a plan;
//! - `frames`: the page frames of groups whose policy needs them;
//! - [`timed`]: run time from profiles;
//! - [`replay`]: a recording replayed through the policies;
//! - [`bench`](mod@bench): the benchmarks of this crate.
#![forbid(unsafe_code)]

pub mod bench;
pub mod caches;
mod frames;
pub mod future;
pub mod machine;
mod meter;
mod migration;
mod placement;
pub mod reference;
pub mod replay;
mod tiers;
pub mod timed;

pub use terrace_hardware as hardware;
/// The operating-system model, with the names that experiments use.
pub mod os {
    pub use terrace_os::OsConfig;
    pub use terrace_os::config::{HugePages, Mapped, TablePlacement, TablePolicy};
}

pub use machine::{
    FastBudget, GroupConfig, Machine, MachineConfig, SimulatedMover, SimulatedTracker,
};
pub use meter::Sampling;
pub use placement::Placement;
pub use tiers::TierUse;

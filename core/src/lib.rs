//! The core of Terrace: pages, tiers, groups, hotness, policies and plans.
//!
//! **Depends on** nothing but itself. **Must not depend on** machines, kernels, files, clocks or
//! command lines: everything here is a pure function of its arguments and of a seed, so that the
//! same policy object can be tested on a page of text, simulated on a terabyte, and run on a live
//! host.
//!
//! A guided tour, in reading order:
//! - [`page`]: page sizes, virtual ranges, and the [`page::Layout`] that numbers a group's pages;
//! - [`bits`]: one bit per page;
//! - [`scan`]: what a tracker observed in one period; [`counts`]: how often pages were accessed in
//!   it; [`sample_picker`]: which accesses are samples;
//! - [`plan`]: the moves that a policy requests, and their outcome; [`operations`]: in how many
//!   steps;
//! - [`policy`]: the [`policy::Policy`] trait and how one is built by name;
//! - parts that policies share: [`hotness`] (ages and histories), [`select`] (choosing by
//!   counting), [`builder`] (from pages to a plan), [`coldness`] (pages that may give up their
//!   place), [`features`], and [`remap`] (keeping all of it when pages come and go);
//! - [`parameters`], [`lines`] and [`mod@size`]: how parameters of experiment files are read, and
//!   where in a file a key is; [`names`]: what an unknown name was meant to be;
//! - [`policies`]: one file each, and their registry; [`live_policy`]: one live, with
//!   victims, and without the [`unmovable`] pages;
//! - [`refine`]: which base pages leave the tier of their range;
//! - [`curve`] and [`partitioning`]: what fast memory is worth to groups, and how it is divided;
//! - [`heat`]: accesses by address and period, binned; [`working_set`]: how much memory is used, and
//!   how its accesses are spread;
//! - [`oracle`]: the future, and the best placement that it allows;
//! - [`projection`]: run time on tiers of other latencies; [`confidence`]: errors of estimates from
//!   samples;
//! - [`interfaces`]: the other two traits of the loop, [`interfaces::Tracker`] and [`interfaces::Mover`].
#![forbid(unsafe_code)]

pub mod bits;
pub mod builder;
pub mod coldness;
pub mod confidence;
pub mod counts;
pub mod curve;
pub mod features;
pub mod heat;
pub mod hotness;
pub mod input_error;
pub mod interfaces;
pub mod lines;
pub mod live_policy;
pub mod names;
pub mod operations;
pub mod oracle;
pub mod page;
pub mod parameters;
pub mod partitioning;
pub mod plan;
pub mod policies;
pub mod policy;
pub mod projection;
pub mod refine;
pub mod remap;
pub mod sample_picker;
pub mod scan;
pub mod select;
pub mod size;
pub mod unmovable;
pub mod working_set;

pub use input_error::InputError;

/// The policy of the guide compiles, and does what the guide says.
#[cfg(doctest)]
#[doc = include_str!("../../docs/writing-a-policy.md")]
struct WritingAPolicy;

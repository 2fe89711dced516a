//! Live Linux: the kernel interfaces for tracking the accesses of programs and moving their pages,
//! on a stock 6.12 kernel and on the Terrace kernel.
//!
//! **Knows** files below `/proc` and `/sys`, two system calls and an ioctl. **Must not know**
//! policies, experiments, or the engine that drives it: it implements the core's two interfaces,
//! [`Tracker`](terrace_core::interfaces::Tracker) and [`Mover`](terrace_core::interfaces::Mover).
//!
//! In reading order:
//! - reading: [`roots`] (every path, so that tests can pass a folder), [`files`], [`numa`],
//!   [`tiers`], [`cgroup`], [`process`], [`pagemap`], [`group_layout`] (a group's processes and
//!   pages);
//! - tracking: [`damon`] (frozen regions), [`ring`] and [`trace`] (its records), [`collect`]
//!   (records to periods); `sampler` (the trait of readers of accessed bits), `damon_sampler`,
//!   [`sampling`] (how often), `scan_sampler` (the Terrace kernel's scan); [`flush`] (of TLBs),
//!   [`samples`] (of reads, by the processor or an emulator), [`tracker`], `untracked` (why memory
//!   is not tracked), [`kernel_threads`] (the kernel's processor time);
//! - moving: [`kernel`] (the calls, as a trait that tests replace), `ranges` (2 MB, whatever maps
//!   them), [`mover`], `refiner` (base pages of ranges that are moved alone), [`batch_size`] (pages of
//!   a call), [`costs`], `free_lists` (what processors hold of freed memory);
//! - the Terrace kernel's device: [`tiermem`], `tiermem_kernel` (moves with it); [`backend`] (which
//!   mechanisms a host has);
//! - restoring the host: [`lock`], [`journal`] (every change, before it is made), [`guard`]
//!   (restores when the run is killed), [`session`] (the three together), [`termination`];
//! - [`conflicts`] (settings and programs that conflict) and [`host`] (all of it for one run).
//!
//! Everything unsafe is in [`raw`], `tiermem_raw` and `pmu_raw`.

pub mod backend;
pub mod batch_size;
mod bit_rates;
pub mod bystanders;
pub mod cgroup;
pub mod cgroup_tree;
pub mod collect;
pub mod conflicts;
pub mod costs;
pub mod cpu_times;
pub mod damon;
mod damon_sampler;
mod faults;
pub mod files;
mod filler;
pub mod flush;
mod free_lists;
pub mod group_layout;
pub mod guard;
pub mod hints;
pub mod host;
pub mod journal;
pub mod kernel;
pub mod kernel_threads;
pub mod limits;
pub mod lock;
pub mod mover;
pub mod numa;
mod pace;
pub mod page_tables;
pub mod pagemap;
pub mod pressure;
pub mod process;
mod ranges;
pub mod raw;
mod refiner;
pub mod ring;
pub mod rivals;
pub mod roots;
mod sampler;
pub mod samples;
pub mod sampling;
mod scan_sampler;
mod scan_windows;
pub mod session;
mod shared_memory;
pub mod signals;
pub mod termination;
#[cfg(test)]
mod testing;
pub mod tiermem;
mod tiermem_kernel;
mod tiermem_raw;
pub mod tiers;
pub mod trace;
pub mod tracker;
mod untracked;

pub use filler::Filled;
pub use group_layout::Source;
pub use guard::{GuardCommand, guard_main};
pub use host::{AttachedGroup, GroupSpec, Host, HostError, HostOptions, MOST_PAGES};

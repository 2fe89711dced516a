//! Experiments: a workload on a machine under a policy, and what comes of it.
//!
//! **Knows** the engine, the machines, the workloads and the lab, and puts them together.
//! **Must not know** policies' insides, arguments or screens.
//!
//! - [`file`]: experiment files;
//! - [`runner`]: runs them, on a `backend`: `simulated`, `reference`, `host` or `virtual_machine`;
//! - [`run`]: what a run is;
//! - [`sparse`]: address spaces whose page tables have a larger program's shape;
//! - [`profile`](mod@profile): what a workload costs with fast and with slow memory;
//! - [`claims`]: what papers say, checked against what was measured;
//! - [`verdict`]: how a number compares with a paper's: in size, in direction, not, by calibration;
//! - [`rack`](mod@rack): experiments on the rack;
//! - `custom`: policies that are the caller's own, beside those of the registry;
//! - `victims`: which pages may give up their place, on live machines;
//! - `rival`: a run in which something of Linux's moves pages;
//! - `parallel`: several simulated runs at a time;
//! - `collect`: turns what the engine reports into result tables and a recording;
//! - `rows`: where the rows go;
//! - [`sweep`]: an experiment over a grid of its keys.

mod backend;
pub mod claims;
mod collect;
mod custom;
mod external;
pub mod file;
pub mod heat;
mod host;
mod measured;
mod page_tables;
mod parallel;
pub mod profile;
pub mod rack;
mod reference;
mod renamed;
mod rival;
mod rows;
pub mod run;
pub mod runner;
mod simulated;
pub mod sparse;
pub mod sweep;
mod timed;
pub mod verdict;
mod victims;
mod virtual_machine;

pub use custom::CustomPolicy;
pub use file::Experiment;
pub use terrace_core::InputError;
pub use terrace_core::size;

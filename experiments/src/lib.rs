//! Experiments: a workload on a machine under a policy, and its results.
//!
//! **Knows** the engine, the machines, the workloads and the lab, and puts them together.
//! **Must not know** policies' insides, arguments or screens.
//!
//! - [`mod@file`]: experiment files;
//! - [`runner`]: runs them, on a `backend`: `simulated`, `reference`, `host` or `virtual_machine`;
//! - [`run`]: requests, runs and their events;
//! - [`sparse`]: address spaces whose page tables have a larger program's shape;
//! - [`profile`](mod@profile): the cost of a workload with fast and with slow memory;
//! - [`mod@windows`]: short parts of a program; [`estimate`]: the slowdown of the whole from them;
//! - [`claims`]: statements of papers, checked against measured values;
//! - [`verdict`]: how a number compares with a paper's: in size, in direction, not, by calibration;
//! - [`rack`](mod@rack): experiments on the rack;
//! - `carried`: policies in Python, for virtual machines;
//! - `custom`: policies of the caller, beside those of the registry;
//! - `victims`: pages that may be demoted to make room, on live machines;
//! - `rival`: runs in which a mechanism of Linux moves pages;
//! - `private_folder`: folders of the sockets of live programs;
//! - `parallel`: several simulated runs at a time;
//! - `collect`: turns the engine's reports into result tables and a recording;
//! - `rows`: rows of results, on disk or in memory;
//! - [`sweep`]: an experiment over a grid of its keys.

mod backend;
mod carried;
pub mod claims;
mod collect;
mod custom;
pub mod estimate;
mod external;
pub mod file;
mod full_node;
pub mod heat;
mod host;
mod kept_off;
mod measured;
mod page_tables;
mod parallel;
mod private_folder;
pub mod profile;
pub mod rack;
mod reference;
mod renamed;
mod rival;
mod rows;
pub mod run;
pub mod runner;
mod simulated;
mod slowdown;
pub mod sparse;
pub mod sweep;
mod timed;
mod unfinished;
pub mod verdict;
mod virtual_machine;
pub mod windows;

pub use custom::CustomPolicy;
pub use file::Experiment;
pub use full_node::NOT_FILLED;
pub use reference::config as trace_machine;
pub use terrace_core::InputError;
pub use terrace_core::size;

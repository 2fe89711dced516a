//! Experiments: a workload on a machine under a policy, and what comes of it.
//!
//! **Knows** the engine, the machines, the workloads and the lab, and puts them together.
//! **Must not know** policies' insides, arguments or screens.
//!
//! - [`file`]: experiment files;
//! - [`run`]: runs them; `simulated`, `host` and `virtual_machine` are the machines;
//! - `collect`: turns what the engine reports into result tables and a recording.

mod collect;
pub mod file;
mod heat;
mod host;
pub mod refusal;
pub mod run;
mod simulated;
pub mod size;
mod virtual_machine;

pub use file::Experiment;
pub use refusal::Refusal;

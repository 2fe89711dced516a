//! The loop of Terrace: observe, decide, act, once a period, for each group.
//!
//! **Depends on** the three interfaces of the core: [`Tracker`](terrace_core::interfaces::Tracker),
//! [`Policy`](terrace_core::policy::Policy), [`Mover`](terrace_core::interfaces::Mover). **Must not
//! depend on** the machine it runs on, the source of time, or the use of its reports.
//!
//! - [`limit`]: how much fast memory a group may use;
//! - [`report`]: the engine's report of each period to an observer;
//! - [`run`]: the loop itself.
#![forbid(unsafe_code)]

pub mod limit;
pub mod report;
pub mod run;

pub use limit::FastLimit;
pub use report::{Cpu, Observer, PeriodReport};
pub use run::{Engine, EngineError, Group, Options};

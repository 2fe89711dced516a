//! The loop of Terrace: observe, decide, act, once a period, for each group.
//!
//! **Knows** the three interfaces of the core: [`Tracker`](terrace_core::interfaces::Tracker),
//! [`Policy`](terrace_core::policy::Policy), [`Mover`](terrace_core::interfaces::Mover). **Must not
//! know** which machine it runs on, where time comes from, or what becomes of its reports.
//!
//! - [`limit`]: how much fast memory a group may use;
//! - [`report`]: what the engine tells an observer about each period;
//! - [`run`]: the loop itself.
#![forbid(unsafe_code)]

pub mod limit;
pub mod report;
pub mod run;

pub use limit::FastLimit;
pub use report::{Observer, PeriodReport};
pub use run::{Engine, EngineError, Group, Options};

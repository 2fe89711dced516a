//! The planner: how much fast memory a program needs to stay within a slowdown, under which policy,
//! beside which slow memory, and at what price.
//!
//! **Depends on** recordings, the simulated machine, the engine and experiments. **Must not depend
//! on** policies' insides, arguments or screens.
//!
//! - [`recording`]: the sources of a plan: profiles, recordings, other tools' files, all as
//!   intervals;
//! - [`memory`]: tiers and machines, and the time of an interval on another one;
//! - [`play`](mod@play): one recording under one policy with one share of fast memory;
//! - [`search`]: the least share for a target, and the curve;
//! - [`uncertainty`]: how far a predicted slowdown may be off, and where the figures come from;
//! - [`price`]: the price of memory, and the Pareto front of machines;
//! - [`plan`](mod@plan): all of it together: a request and its answer;
//! - [`check`]: the answer run at trace fidelity, and the gain from page tables in fast memory and
//!   huge pages;
//! - `refine`: corrections of the answer by that check;
//! - [`words`]: the answer in plain words;
//! - [`config`]: the answer as a configuration of the daemon;
//! - [`tables`]: the answer as result tables.
#![forbid(unsafe_code)]

pub mod check;
pub mod config;
pub mod memory;
pub mod plan;
pub mod play;
pub mod player;
pub mod price;
pub mod recording;
mod refine;
pub mod search;
pub mod tables;
pub mod uncertainty;
pub mod words;

pub use plan::{Plan, Request, curves, plan};
pub use recording::Recording;

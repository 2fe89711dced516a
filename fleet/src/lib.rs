//! How much fast memory the hosts of a fleet need, from the histories that terraced keeps on each.
//!
//! **Depends on** histories, the planner's curves and result tables. **Must not depend on** policies'
//! insides, the daemon, arguments or screens.
//!
//! A host is read, planned and reduced to a few numbers for each service before the next one is: of
//! no host more than that is kept. `docs/fleet.md` has the method.
//!
//! - [`file`](mod@file): the fleet file: host classes, services, slowdowns, latencies, prices;
//! - [`folders`]: the folders of hosts;
//! - [`host`]: one host: its histories, and what each service on it needs;
//! - [`boots`]: which of its histories are of the boot that it was saved in;
//! - [`needs`]: the least share for a slowdown, read off the planner's curve;
//! - [`interval`]: quantiles, means and how sure they are;
//! - [`answer`](mod@answer): host classes and services over all hosts;
//! - [`pairs`]: services that should not share a host;
//! - [`rollout`]: with which hosts to begin, what to watch, when to stop;
//! - [`files`], [`words`]: the answer as files and in plain words;
//! - [`parts`]: hosts that another process reads;
//! - [`synthetic`]: fleets whose needs are known beforehand, for tests and measurements.
#![forbid(unsafe_code)]

pub mod answer;
pub mod boots;
pub mod copies;
pub mod file;
pub mod files;
pub mod folders;
pub mod host;
pub mod interval;
pub mod needs;
pub mod pairs;
pub mod parts;
pub mod rollout;
pub mod synthetic;
pub mod words;

pub use answer::{Answer, answer};
pub use file::Fleet;

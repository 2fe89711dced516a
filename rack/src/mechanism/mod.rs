//! The paper's additions to the switch (section III): one file for each structure.
//!
//! - [`tracker`]: which pages are hot (section III-A);
//! - [`access`]: page requests, their generators, and the request selector (III-C);
//! - [`buffer`]: pages kept until their batch migrates (III-B);
//! - [`pending`]: accesses that wait for blocks of pages under way (III-D);
//! - [`training`]: thresholds from observed accesses (III-G1);
//! - [`feedback`]: equations 1 to 4 (III-G2);
//! - [`overhead`]: the size of all of these in bytes (III-F);
//! - [`controller`]: the data path through them (III-E), for one node.

pub mod access;
pub mod buffer;
pub mod controller;
pub mod feedback;
pub mod overhead;
pub mod pending;
pub mod tracker;
pub mod training;

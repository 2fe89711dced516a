//! The policies from outside, on the smallest machine that can execute their plans.

mod amp;
mod behaviour;
mod example;
mod model;
mod properties;
mod rivals;
mod terrace;
mod terrace_samples;

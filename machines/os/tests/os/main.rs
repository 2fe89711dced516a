//! The operating-system model, by the question asked.

mod algorithm;
mod basics;
mod binding;
mod costs;
mod exchange;
mod huge;
mod trackers;
mod walks;
mod world;

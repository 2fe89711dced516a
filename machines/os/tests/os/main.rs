//! The operating-system model, one file per question.

mod algorithm;
mod basics;
mod binding;
mod costs;
mod exchange;
mod huge;
mod trackers;
mod walks;
mod world;

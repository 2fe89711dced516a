//! The parts of the benchmark, one file each, and their registry. To add one: write its file
//! beside these, name it here, and add its row to [`PARTS`].

mod clock;
mod depth;
mod estimate;
mod fleet;
mod plan;
mod policies;
mod policy;
mod profile;
mod programs;
mod rack;
mod record;
mod sample;
mod sim;

use crate::measure::Report;

/// A part that can be run alone.
pub struct Part {
    /// Its name on the command line, and the first word of its figures' names.
    pub name: &'static str,
    /// Summary of the measurement, in one line.
    pub measures: &'static str,
    /// Runs the part.
    pub run: fn(&mut Report) -> anyhow::Result<()>,
}

/// Every part there is.
pub static PARTS: &[Part] = &[
    policy::PART,
    record::PART,
    sim::PART,
    depth::PART,
    plan::PART,
    fleet::PART,
    profile::PART,
    sample::PART,
    estimate::PART,
    policies::PART,
    programs::PART,
    rack::PART,
    clock::PART,
];

//! What sampled simulation could save: the processor time of a run in which nothing is timed, and of
//! reading the recording alone, over that of a timed run.
//!
//! Between the windows of a sampled run the caches, TLBs and page tables are kept as they would be
//! (`machines/hardware/src/node/warm.rs`). So a sampled run takes at least the first of the two.

use std::path::Path;

use terrace_simulated::reference::{RecordingChoice, ReferenceSource, Step, recording};

use super::Part;
use super::profile::{all_fast, timed};
use super::sim::{Kind, MACHINE, each_recording};
use crate::measure::{Report, median};

pub const PART: Part = Part {
    name: "sample",
    measures: "what functional simulation and decoding take of a run at trace fidelity",
    run,
};

/// References of each recording, by the name of its kind: a few seconds for a run.
const REFERENCES: [(&str, u64); 3] =
    [("friendly", 20_000_000), ("random", 5_000_000), ("random_huge", 5_000_000)];
const TURNS: usize = 3;

fn run(report: &mut Report) -> anyhow::Result<()> {
    each_recording(&REFERENCES, |kind, path, _| measure(report, kind, path))
}

fn measure(report: &mut Report, kind: &Kind, path: &Path) -> anyhow::Result<()> {
    let mut shares = [const { Vec::new() }; 2];
    for _ in 0..TURNS {
        // In turn, so that a busy moment of the machine falls on all of them.
        let [_, whole] = timed(|| simulate(kind, path, false))?;
        let [_, functional] = timed(|| simulate(kind, path, true))?;
        let [_, decoding] = timed(|| decode(kind, path))?;
        shares[0].push(functional.as_secs_f64() / whole.as_secs_f64());
        shares[1].push(decoding.as_secs_f64() / whole.as_secs_f64());
    }
    let figures = [
        ("functional_share", "a run in which references take no time, decoding included"),
        ("decode_share", "reading the recording alone, the survey beforehand included"),
    ];
    for ((figure, what), shares) in figures.into_iter().zip(shares) {
        let conditions = format!(
            "processor time of all threads, {what}, over that of a timed run with all memory fast; \
             {} references to {}; {MACHINE}; median of {TURNS}, taken in turn",
            kind.references, kind.what,
        );
        let name = format!("sample.{}.{figure}", kind.name);
        report.add(&name, median(shares), "of a run", &conditions)?;
    }
    Ok(())
}

/// A whole run, timed or functional.
fn simulate(kind: &Kind, path: &Path, is_functional: bool) -> anyhow::Result<()> {
    let machine = all_fast(kind, path)?;
    if is_functional {
        machine.warm_references(0, u64::MAX / 2)?;
    } else {
        machine.run_to_end()?;
    }
    let made = machine.counts(0).references;
    anyhow::ensure!(made == kind.references, "{made} of {} references", kind.references);
    Ok(())
}

/// Reads the recording as a machine would.
fn decode(kind: &Kind, path: &Path) -> anyhow::Result<()> {
    let choice = RecordingChoice { path: path.to_owned(), process: None, dependent: false };
    let mut source = recording(&choice).map_err(|e| anyhow::anyhow!(e.0))?;
    let mut made = 0;
    loop {
        match source.next_step().map_err(|e| anyhow::anyhow!(e.0))? {
            Step::Accesses(block) => made += block.len() as u64,
            Step::Ended => break,
            _ => {}
        }
    }
    anyhow::ensure!(made == kind.references, "{made} of {} references", kind.references);
    Ok(())
}

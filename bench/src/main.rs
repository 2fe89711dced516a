//! Benchmarks of Terrace. Prints one JSON object a line, `name`, `value`, `unit` and
//! `conditions`, and writes the same lines to `target/bench.json` of the workspace.
//!
//! **Knows** every layer that it measures. **Must not know** how to judge the figures: targets are
//! in the documents, and the file's reader compares them.

mod measure;
mod parts;
mod variables;

use std::process::ExitCode;

use anyhow::Context;
use measure::Report;
use parts::PARTS;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (part, rest) = (arguments.next(), arguments.next());
    let names = || PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
    let chosen: Vec<_> = match part.as_deref() {
        None => PARTS.iter().collect(),
        Some("-h" | "--help") => {
            println!("usage: terrace-bench [PART]\nWithout PART all are measured. Parts:");
            PARTS.iter().for_each(|part| println!("  {:12} {}", part.name, part.measures));
            return ExitCode::SUCCESS;
        }
        Some(name) => PARTS.iter().filter(|part| part.name == name).collect(),
    };
    if let (Some(got), true) = (&part, chosen.is_empty()) {
        eprintln!("no part of the benchmark is named '{got}'; expected one of {}", names());
        return ExitCode::from(2);
    }
    if let Some(got) = rest {
        eprintln!("'{got}' is one argument too many; expected at most one part of {}", names());
        return ExitCode::from(2);
    }
    match run(&chosen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(parts: &[&parts::Part]) -> anyhow::Result<()> {
    let mut report = Report::default();
    for part in parts {
        (part.run)(&mut report).with_context(|| format!("part '{}'", part.name))?;
    }
    report.write(&variables::workspace().join("target/bench.json"))
}

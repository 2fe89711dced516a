//! A workload program that marks where its main phase begins and ends, for the plug-in of a virtual
//! machine: `marked-program NAME MIB [OPTION=VALUE]...`. Prints `NAME NS`, by the clock of the
//! machine.

use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Map, Value};
use terrace_recorder::nodes;
use terrace_workloads::programs::memory::{Edge, phase};
use terrace_workloads::programs::sink::Mark;
use terrace_workloads::programs::{Params, run_listening};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(mib)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("expected NAME MIB [OPTION=VALUE]...");
    };
    let options: Map<String, Value> = arguments
        .filter_map(|text| {
            let (key, value) = text.split_once('=')?;
            Some((key.to_owned(), serde_json::from_str(value).ok()?))
        })
        .collect();
    let params = Params {
        footprint_bytes: mib.parse::<u64>()? << 20,
        seed: 1,
        threads: 1,
        options: Value::Object(options),
    };
    let times = Mutex::new((None, 0));
    let mark = |mark: &Mark| {
        if mark.phase != phase::MAIN {
            return;
        }
        let mut times = times.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match mark.edge {
            Edge::Begin => {
                nodes::mark(nodes::Mark::Period);
                times.0 = Some(Instant::now());
            }
            Edge::End => {
                times.1 = times.0.map_or(0, |begun| begun.elapsed().as_nanos());
                nodes::mark(nodes::Mark::Period);
            }
        }
    };
    let result = run_listening(&name, &params, Some(Box::new(mark)))?;
    anyhow::ensure!(result.verified, "{name}: its result is wrong");
    println!("{name} {}", times.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).1);
    Ok(())
}

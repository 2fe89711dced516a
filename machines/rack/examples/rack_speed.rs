//! Runs one workload program under some schemes and prints what came of it and how fast.
//! `cargo run --release -p terrace-rack --example rack_speed -- PROGRAM MB INSTRUCTIONS SCHEME...`
#![allow(clippy::print_stdout)]

use std::time::Instant;

use terrace_hardware::units::Bytes;
use terrace_rack::config::RackConfig;
use terrace_rack::scheme::{REGISTRY, Scheme};
use terrace_rack::simulate::run;
use terrace_rack::stream::WorkloadConfig;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let get = |n: usize, default: &str| arguments.get(n).cloned().unwrap_or(default.to_owned());
    let workload = WorkloadConfig {
        name: get(0, "stream"),
        program: Some(get(0, "stream")),
        recording: None,
        synthetic: None,
        footprint: Some(Bytes::mib(get(1, "64").parse()?)),
        options: match std::env::var("OPTIONS") {
            Ok(json) => serde_json::from_str(&json)?,
            Err(_) => Default::default(),
        },
    };
    let mut schemes: Vec<&'static Scheme> =
        arguments.iter().skip(3).map(|s| Scheme::by_name(s)).collect::<Result<_, _>>()?;
    if schemes.is_empty() {
        schemes = REGISTRY.iter().collect();
    }
    let mut config = RackConfig {
        instructions: get(2, "1000000").parse()?,
        check_data: std::env::var_os("CHECK").is_some(),
        ..RackConfig::default()
    };
    if let Ok(toml) = std::env::var("RACK") {
        config = RackConfig {
            instructions: config.instructions,
            check_data: config.check_data,
            ..RackConfig::from_toml(&toml)?
        };
    }
    let local = RackConfig { local_share: 1.0, ..config.clone() };
    let base = run(&local, Scheme::by_name("BLOCK")?, std::slice::from_ref(&workload), 1)?;
    println!(
        "local {:.1} us, {:.1} ns a miss, {} misses, {} instructions",
        base.nodes[0].time as f64 / 1e6,
        base.nodes[0].counts.access_ns(),
        base.nodes[0].counts.reads(),
        base.instructions()
    );
    for scheme in schemes {
        let start = Instant::now();
        let o = run(&config, scheme, std::slice::from_ref(&workload), 1)?;
        let host = start.elapsed().as_secs_f64();
        let n = &o.nodes[0];
        let c = &n.counts;
        println!(
            "{:6} slowdown {:6.3} cost {:5.2} ({:6.1} ns; local {:.1} remote {:.1}) local {:4.1}% migrated {:4.1}% buffer {:4.1}% in {} out {} batches {} npm {} score {} stall {:4.1}% thr {:?} wrong {}/{} | {:.2} Minstr/s {} windows",
            scheme.name,
            n.time as f64 / base.nodes[0].time as f64,
            c.access_ns() / base.nodes[0].counts.access_ns(),
            c.access_ns(),
            c.local_ps as f64 / 1e3 / c.local_reads.max(1) as f64,
            c.remote_ps as f64 / 1e3 / c.remote_reads.max(1) as f64,
            100.0 * c.local_reads as f64 / c.reads().max(1) as f64,
            100.0 * c.migrated_reads as f64 / c.reads().max(1) as f64,
            100.0 * c.buffer_reads as f64 / c.reads().max(1) as f64,
            c.pages_in,
            c.pages_out,
            c.migrations,
            n.npm,
            n.score,
            100.0 * c.stall_ps as f64 / n.time as f64,
            n.threshold,
            c.wrong_values,
            c.checked_values,
            o.instructions() as f64 / host / 1e6,
            o.windows,
        );
    }
    Ok(())
}

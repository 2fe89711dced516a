//! The rack: simulated instructions per second and host core, of a node of 4 cores with half its
//! memory remote under CPM, and from 1 to 16 nodes.
//!
//! The workload is the sparse solver (`minife`) with caches an eighth of the paper's, so that it
//! misses as a full-size one does; a simulated instruction of a program that only computes would
//! cost much less. Processor time is that of the whole process: the threads on which workload
//! programs run are included.

use terrace_hardware::units::Bytes;
use terrace_rack::config::RackConfig;
use terrace_rack::scheme::Scheme;
use terrace_rack::simulate::Rack;
use terrace_rack::stream::WorkloadConfig;

use super::Part;
use crate::measure::{Report, median};

pub const PART: Part = Part {
    name: "rack",
    measures: "simulated instructions per second and host core, from 1 to 16 nodes",
    run,
};

/// Processor time of all threads of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn workload() -> anyhow::Result<WorkloadConfig> {
    Ok(WorkloadConfig {
        name: "minife".into(),
        program: Some("minife".into()),
        recording: None,
        synthetic: None,
        footprint: Some(Bytes::mib(16)),
        dependent_loads: 0.0,
        compute: 1.0,
        region: None,
        options: serde_json::from_str(r#"{"iterations": 10000}"#)?,
    })
}

fn run(report: &mut Report) -> anyhow::Result<()> {
    let cpm = Scheme::by_name("CPM")?;
    let mut first = None;
    for nodes in [1, 2, 4, 8, 16] {
        let mut config = RackConfig {
            nodes,
            pools: nodes.div_ceil(4),
            local_share: 0.5,
            instructions: 3_000_000 / u64::from(nodes.min(4)),
            ..RackConfig::default()
        };
        config.processor.0.caches.llc.size = Bytes::mib(1);
        config.mechanism.training_us = 60.0;
        let mut speeds = Vec::new();
        let mut misses = 0;
        for _ in 0..3 {
            let mut rack = Rack::new(&config, cpm, &[workload()?])?;
            let before = cpu_seconds();
            rack.run_to_end(1)?;
            let spent = cpu_seconds() - before;
            let outcome = rack.outcome();
            misses = outcome.nodes.iter().map(|n| n.counts.reads()).sum::<u64>() * 1000
                / outcome.instructions().max(1);
            speeds.push(outcome.instructions() as f64 / spent / 1e6);
        }
        let speed = median(speeds);
        let conditions = format!(
            "{nodes} nodes of 4 cores, {} pools, 50 % remote, CPM, minife of 16 MB with 1 MB of last \
             level ({misses} misses in 1000 instructions); median of 3",
            config.pools
        );
        if nodes == 1 {
            report.add("rack.cpm.minstr_per_s_per_core", speed, "Minstr/s", &conditions)?;
        }
        let name = format!("rack.cpm.nodes_{nodes}.minstr_per_s_per_core");
        report.add(&name, speed, "Minstr/s", &conditions)?;
        let first = *first.get_or_insert(speed);
        if nodes == 16 {
            report.add(
                "rack.cpm.cost_growth_1_to_16_nodes",
                first / speed,
                "ratio",
                &conditions,
            )?;
        }
    }
    Ok(())
}

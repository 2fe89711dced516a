//! The same configuration gives the same result to the last count, on any number of threads.

use terrace_hardware::units::Bytes;
use terrace_rack::config::RackConfig;
use terrace_rack::scheme::Scheme;
use terrace_rack::simulate::run;
use terrace_rack::stream::WorkloadConfig;

fn program(name: &str) -> WorkloadConfig {
    WorkloadConfig {
        name: name.into(),
        program: Some(name.into()),
        recording: None,
        synthetic: None,
        footprint: Some(Bytes::mib(4)),
        dependent_loads: 0.0,
        compute: 1.0,
        region: None,
        options: Default::default(),
    }
}

#[test]
fn threads_change_nothing() {
    let mut config =
        RackConfig { nodes: 4, pools: 2, instructions: 60_000, ..RackConfig::default() };
    config.processor.0.caches.llc.size = Bytes::kib(256);
    config.processor.0.caches.l2 = None;
    config.mechanism.fixed_count = Some(8);
    let workloads = ["stream", "gups", "minife", "ft"].map(program);
    for scheme in ["CPM", "OTF"] {
        let scheme = Scheme::by_name(scheme).unwrap();
        let one = run(&config, scheme, &workloads, 1).unwrap();
        assert!(one.nodes.iter().any(|n| n.counts.pages_in > 0));
        for threads in [2, 8] {
            let more = run(&config, scheme, &workloads, threads).unwrap();
            assert_eq!(format!("{one:?}"), format!("{more:?}"), "{threads} threads");
        }
    }
}

#[test]
fn another_seed_gives_another_run() {
    let config = RackConfig { instructions: 30_000, ..RackConfig::default() };
    let block = Scheme::by_name("BLOCK").unwrap();
    let time = |seed| {
        let config = RackConfig { seed, ..config.clone() };
        run(&config, block, &[program("gups")], 1).unwrap().time
    };
    assert_eq!(time(1), time(1));
    assert_ne!(time(1), time(2));
}

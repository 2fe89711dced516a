//! Nothing is lost, nothing arrives twice, nothing stalls: on random racks with buffers and queues
//! as small as they can be, under every scheme, with values stored and checked from end to end. And
//! the same checks find each fault that is injected on purpose.
//!
//! `TERRACE_RACK_CASES=1000000 cargo test --release -p terrace-rack --test conservation` is the
//! full-length run of random racks; the default is a number that fits the suite. The same racks are
//! drawn each time; `TERRACE_RACK_SEED` draws others, and `TERRACE_RACK_INSTRUCTIONS` is the number
//! that each core runs.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use terrace_hardware::cache::config::CacheConfig;
use terrace_hardware::units::Bytes;
use terrace_rack::background::BackgroundConfig;
use terrace_rack::config::{
    Allocation, FaultInjection, MechanismConfig, NetworkConfig, Organization, RackConfig,
    VictimPolicy,
};
use terrace_rack::scheme::{REGISTRY, Scheme};
use terrace_rack::simulate::{Rack, RunError};
use terrace_rack::stream::{Synthetic, WorkloadConfig};

fn number(variable: &str, default: u32) -> u32 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn pattern(synthetic: Synthetic, kib: u64) -> WorkloadConfig {
    WorkloadConfig {
        name: "pattern".into(),
        program: None,
        recording: None,
        synthetic: Some(synthetic),
        footprint: Some(Bytes::kib(kib)),
        dependent_loads: 0.0,
        compute: 1.0,
        region: None,
        options: Default::default(),
    }
}

/// Small caches, so that there is much traffic.
fn small_caches(config: &mut RackConfig, cores: u32) {
    let node = &mut config.processor.0;
    node.cores = cores;
    node.caches.l1 = CacheConfig::new(Bytes::kib(1), 2, 64);
    node.caches.l2 = None;
    node.caches.llc = CacheConfig::new(Bytes::kib(4), 4, 64);
}

prop_compose! {
    fn synthetic()(
        hot_share in 0.0..1.0f64,
        hot_pages in 0.01..0.5f64,
        store_share in 0.0..1.0f64,
        run_blocks in 1u32..100,
        gap in 0u32..20,
        untouched in prop_oneof![Just(0.0), 0.0..1.0f64],
    ) -> Synthetic {
        Synthetic { hot_share, hot_pages, store_share, run_blocks, gap, untouched }
    }
}

prop_compose! {
    fn network()(
        nic in 1.0..400.0f64,
        switch in 1.0..400.0f64,
        nic_buffer in prop_oneof![Just(4200u64), 4200u64..70_000],
        port_buffer in prop_oneof![Just(4200u64), 4200u64..70_000],
        output_queue in 1u32..20,
        propagation_ns in 0.5..50.0f64,
    ) -> NetworkConfig {
        NetworkConfig {
            nic_gbit_per_s: nic,
            switch_gbit_per_s: switch,
            nic_buffer: Bytes(nic_buffer),
            port_buffer: Bytes(port_buffer),
            output_queue,
            propagation_ns,
            ..NetworkConfig::default()
        }
    }
}

prop_compose! {
    fn mechanism()(
        page_buffers in 1u32..40,
        npm in 1u32..40,
        page_requests in 1u32..6,
        tracker_entries in 1u32..40,
        block_queue in prop_oneof![1u32..10, 60u32..140],
        pending in (1u32..8, 1u32..8),
        weights in (1u32..4, 1u32..4),
        hot in prop_oneof![Just(None), (1u32..30).prop_map(Some)],
        training_us in 0.0..20.0f64,
    ) -> MechanismConfig {
        let npm = npm.min(page_buffers).min(tracker_entries);
        MechanismConfig {
            page_buffers,
            npm,
            npm_least: 1,
            page_requests,
            tracker_entries,
            block_queue,
            pending_reads: pending.0,
            pending_writes: pending.1,
            block_weight: weights.0,
            page_weight: weights.1,
            fixed_count: hot,
            training_us,
            feedback_batches: 2,
            negative_scores: 2,
            ..MechanismConfig::default()
        }
    }
}

prop_compose! {
    fn background()(
        demand_first in any::<bool>(),
        reads_beside_demand in 0u32..4,
        reads_alone in 1u32..20,
        writes in 1u32..70,
        demand_for_one in 1u32..10,
    ) -> BackgroundConfig {
        BackgroundConfig { demand_first, reads_beside_demand, reads_alone, writes, demand_for_one }
    }
}

prop_compose! {
    fn rack()(
        nodes in 1u32..4,
        pools in 1u32..4,
        cores in 1u32..4,
        network in network(),
        mechanism in mechanism(),
        llc_mshrs in 1u32..40,
        local_share in prop_oneof![Just(0.0), 0.1..0.9f64],
        shared in any::<bool>(),
        allocation in prop_oneof![
            Just(Allocation::RoundRobin), Just(Allocation::LeastLoaded), Just(Allocation::Affinity)
        ],
        victims in prop_oneof![
            Just(VictimPolicy::Clock), Just(VictimPolicy::Lru), Just(VictimPolicy::Counters)
        ],
        shootdown_ns in 0.0..3000.0f64,
        background in background(),
        seed in any::<u64>(),
    ) -> RackConfig {
        let mut config = RackConfig {
            nodes,
            pools,
            network,
            mechanism,
            llc_mshrs,
            local_share,
            organization: if shared { Organization::Shared } else { Organization::Distributed },
            allocation,
            chunk: Bytes::kib(64),
            instructions: number("TERRACE_RACK_INSTRUCTIONS", 6000).into(),
            seed,
            check_data: true,
            ..RackConfig::default()
        };
        config.migration.victims = victims;
        config.migration.shootdown_ns = shootdown_ns;
        config.migration.background = background;
        small_caches(&mut config, cores);
        config
    }
}

fn rest(config: &RackConfig, scheme: &'static Scheme, w: &WorkloadConfig) -> Result<u64, RunError> {
    Rack::new(config, scheme, std::slice::from_ref(w))?.run_to_rest()
}

#[test]
fn random_racks_lose_nothing_and_come_to_rest() {
    let cases = number("TERRACE_RACK_CASES", 150);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut seed = [0; 32];
    seed[..4].copy_from_slice(&number("TERRACE_RACK_SEED", 1).to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config, random);
    let strategy = (rack(), synthetic(), 0..REGISTRY.len(), 64u64..800);
    runner
        .run(&strategy, |(config, synthetic, scheme, kib)| {
            let result = rest(&config, &REGISTRY[scheme], &pattern(synthetic, kib));
            prop_assert!(result.is_ok(), "{}: {}", REGISTRY[scheme].name, result.unwrap_err());
            Ok(())
        })
        .unwrap();
}

/// A rack in which pages move all the time.
fn busy() -> (RackConfig, WorkloadConfig) {
    let mut config = RackConfig { instructions: 40_000, check_data: true, ..RackConfig::default() };
    small_caches(&mut config, 4);
    config.mechanism.fixed_count = Some(4);
    config.mechanism.npm = 4;
    config.mechanism.npm_least = 1;
    config.migration.shootdown_ns = 200.0;
    let synthetic = Synthetic {
        hot_share: 0.5,
        hot_pages: 0.2,
        store_share: 0.5,
        run_blocks: 6,
        gap: 2,
        untouched: 0.0,
    };
    (config, pattern(synthetic, 800))
}

#[test]
fn every_scheme_that_moves_pages_keeps_their_data() {
    let (config, workload) = busy();
    for scheme in REGISTRY {
        let mut rack = Rack::new(&config, scheme, std::slice::from_ref(&workload)).unwrap();
        let compared = rack.run_to_rest().unwrap_or_else(|e| panic!("{}: {e}", scheme.name));
        let node = &rack.outcome().nodes[0];
        assert!(compared > 5000, "{}: {compared} values", scheme.name);
        assert!(node.counts.checked_values > 10_000);
        if scheme.name != "BLOCK" && scheme.name != "E100" {
            assert!(node.counts.pages_in > 20, "{}: {}", scheme.name, node.counts.pages_in);
            assert!(node.counts.pages_out > 0);
        }
    }
}

/// Pages that are not mapped when a program begins are faulted in while others move; the time of a
/// faulting core may be before the node's.
#[test]
fn page_faults_in_the_middle_of_migrations_are_served() {
    let (config, mut workload) = busy();
    if let Some(synthetic) = &mut workload.synthetic {
        synthetic.untouched = 0.9;
    }
    for scheme in REGISTRY {
        let config = RackConfig { chunk: Bytes::kib(16), ..config.clone() };
        let mut rack = Rack::new(&config, scheme, std::slice::from_ref(&workload)).unwrap();
        rack.run_to_rest().unwrap_or_else(|e| panic!("{}: {e}", scheme.name));
        let node = &rack.outcome().nodes[0];
        assert!(node.counts.faults > 100, "{}: {} faults", scheme.name, node.counts.faults);
    }
}

/// Copies of pages and blocks that a migration evicts from the caches do not delay demand.
#[test]
fn demand_passes_copies_in_local_memory() {
    let (mut config, workload) = busy();
    config.check_data = false;
    let mut local_ns = |demand_first| {
        config.migration.background.demand_first = demand_first;
        let cpm = Scheme::by_name("CPM").unwrap();
        let mut rack = Rack::new(&config, cpm, std::slice::from_ref(&workload)).unwrap();
        rack.run_to_end(1).unwrap();
        let c = rack.outcome().nodes[0].counts.clone();
        assert!(c.pages_in > 20);
        c.local_ps / c.local_reads / 1000
    };
    let (first, alike) = (local_ns(true), local_ns(false));
    assert!(first * 10 < alike * 9, "{first} ns with demand first, {alike} ns without");
}

#[test]
fn each_fault_built_in_is_found() {
    for (fault_injection, scheme) in [
        (FaultInjection::LosePendingWrites, "CPM"),
        (FaultInjection::LosePendingWrites, "PAGE"),
        (FaultInjection::IgnoreOutdated, "PB"),
        (FaultInjection::OverwriteArrivals, "CPM"),
        (FaultInjection::OverwriteArrivals, "OTF"),
        (FaultInjection::ForgetLateWrites, "E25"),
        (FaultInjection::ForgetLateWrites, "CPM"),
        (FaultInjection::PassWrites, "CPM"),
        (FaultInjection::LosePackets, "BLOCK"),
        (FaultInjection::LosePackets, "CPM"),
        (FaultInjection::AnswerTwice, "BLOCK"),
        (FaultInjection::AnswerTwice, "CPM"),
    ] {
        let (mut config, workload) = busy();
        // So narrow that much is under way at any time.
        config.network.nic_gbit_per_s = 20.0;
        if fault_injection == FaultInjection::PassWrites {
            // Writes wait long in the regular queue while pages go on.
            config.network.nic_gbit_per_s = 2.0;
            config.mechanism.page_weight = 32;
            config.mechanism.block_weight = 1;
        }
        config.fault_injection = Some(fault_injection);
        let scheme = Scheme::by_name(scheme).unwrap();
        let result = rest(&config, scheme, &workload);
        assert!(result.is_err(), "{fault_injection:?} under {} was not found", scheme.name);
        config.fault_injection = None;
        rest(&config, scheme, &workload).unwrap();
    }
}

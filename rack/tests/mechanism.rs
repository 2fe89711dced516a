//! Training and feedback in whole runs: pages that are used again and again are learnt to be hot
//! and make NPM grow; pages that are used up when they are hot make it shrink until parameters are
//! learnt anew.

use terrace_hardware::cache::config::CacheConfig;
use terrace_hardware::units::Bytes;
use terrace_rack::config::RackConfig;
use terrace_rack::outcome::NodeOutcome;
use terrace_rack::scheme::Scheme;
use terrace_rack::simulate::run;
use terrace_rack::stream::{Synthetic, WorkloadConfig};

/// A node with hardly any cache, so that memory gets the pattern itself.
fn rack() -> RackConfig {
    let mut config = RackConfig { instructions: 150_000, sample_us: 1.0, ..RackConfig::default() };
    let node = &mut config.processor.0;
    node.caches.l1 = CacheConfig::new(Bytes::kib(1), 2, 64);
    node.caches.l2 = None;
    node.caches.llc = CacheConfig::new(Bytes::kib(4), 4, 64);
    config.mechanism.npm = 8;
    config.mechanism.npm_least = 4;
    config.mechanism.feedback_batches = 1;
    config.mechanism.training_us = 40.0;
    config
}

fn outcome(config: &RackConfig, synthetic: Synthetic, scheme: &str) -> NodeOutcome {
    let workload = WorkloadConfig {
        name: "pattern".into(),
        program: None,
        recording: None,
        synthetic: Some(synthetic),
        footprint: Some(Bytes::mib(8)),
        dependent_loads: 0.0,
        compute: 1.0,
        region: None,
        options: Default::default(),
    };
    let scheme = Scheme::by_name(scheme).unwrap();
    run(config, scheme, &[workload], 1).unwrap().nodes.remove(0)
}

/// A tenth of the pages gets nearly all accesses, a block here and there.
const REUSED: Synthetic = Synthetic {
    hot_share: 0.9,
    hot_pages: 0.1,
    store_share: 0.2,
    run_blocks: 1,
    gap: 3,
    untouched: 0.0,
};
/// Page after page is passed through and not used again for long.
const PASSED: Synthetic = Synthetic {
    hot_share: 0.0,
    hot_pages: 0.1,
    store_share: 0.2,
    run_blocks: 60,
    gap: 3,
    untouched: 0.0,
};

#[test]
fn training_finds_a_threshold_that_separates_hot_pages_from_others() {
    let config = rack();
    let node = outcome(&config, REUSED, "CPM");
    assert!(node.controller.trainings >= 1);
    let threshold = node.threshold.unwrap();
    // Nothing moves in training.
    let moved_by = |ns: u64| -> u64 {
        node.samples.iter().filter(|s| s.to / 1000 <= ns).map(|s| s.pages_in).sum()
    };
    assert_eq!(moved_by(40_000), 0);
    // Half of the 2048 pages are remote, and a tenth of those hot: these move.
    assert!((60..=140).contains(&node.counts.pages_in), "{} of 102", node.counts.pages_in);
    // A cold page has hardly any access while a hot one has dozens.
    assert!(threshold.count >= 5, "{threshold:?}");
    // Local hits grow from the share of local pages to much more.
    let share = |samples: &[terrace_rack::outcome::Sample]| {
        let (local, remote) = samples.iter().fold((0, 0), |(l, r), s| {
            (l + s.local_reads + s.buffer_reads, r + s.remote_reads - s.buffer_reads)
        });
        local as f64 / (local + remote) as f64
    };
    let parts = node.samples.len() / 4;
    let (first, last) = (share(&node.samples[..parts]), share(&node.samples[3 * parts..]));
    assert!(first < 0.6 && last > 0.75, "{first} then {last}");
}

#[test]
fn npm_grows_with_a_positive_score_and_parameters_are_learnt_anew_after_negative_ones() {
    let mut config = rack();
    let good = outcome(&config, REUSED, "CPM");
    assert!(good.score > 0, "{}", good.score);
    let most = good.samples.iter().map(|s| s.npm).max().unwrap();
    assert!((12..=100).contains(&most), "NPM was {most} at most, 8 at first");
    assert!(good.counts.migrations >= 4, "{} batches", good.counts.migrations);

    // A page is hot when a quarter of it was read: buffers serve the other three quarters, which is
    // a gain although the page is not read again.
    config.mechanism.count_factor = 0.25;
    let ahead = outcome(&config, PASSED, "CPM");
    assert!(ahead.counts.buffer_reads > ahead.counts.pages_in, "{:?}", ahead.counts);
    assert_eq!(ahead.controller.trainings, 1);
    // By accesses after migration alone the same batches were a loss.
    config.mechanism.credit_buffers = false;
    let denied = outcome(&config, PASSED, "CPM");
    assert!(denied.samples.iter().any(|s| s.score < 0), "no negative score");
    assert!(denied.controller.trainings >= 2, "{} trainings", denied.controller.trainings);
    config.mechanism.credit_buffers = true;

    // Hot when half of it was read: the other half is worth less than the move costs.
    config.mechanism.count_factor = 0.5;
    let bad = outcome(&config, PASSED, "CPM");
    assert!(bad.counts.migrations >= 4, "{} batches", bad.counts.migrations);
    assert!(bad.samples.iter().any(|s| s.score < 0), "no negative score");
    assert!(bad.controller.trainings >= 2, "{} trainings", bad.controller.trainings);
    // While parameters are learnt anew, pages migrate by the old thresholds.
    config.mechanism.migrate_while_relearning = false;
    let still = outcome(&config, PASSED, "CPM");
    assert!(still.controller.trainings >= 2, "{} trainings", still.controller.trainings);
    let (moves, waits) = (bad.counts.pages_in, still.counts.pages_in);
    assert!(waits < moves, "{waits} pages where training stops migration, {moves} where not");
    // A scheme without feedback keeps its batches whatever their gain.
    let fixed = outcome(&config, PASSED, "E25");
    assert!(fixed.samples.iter().all(|s| s.npm == 25));
    assert_eq!(fixed.controller.trainings, 1);
    // It has no page buffers, so that their number does not bound its batches.
    config.mechanism.page_buffers = 8;
    assert_eq!(outcome(&config, PASSED, "E25").samples[0].npm, 25);
    assert_eq!(outcome(&config, PASSED, "PB").samples[0].npm, 8);
}

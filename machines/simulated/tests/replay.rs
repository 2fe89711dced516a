//! Replayed policies make the recorded decisions again: the same policy on two machines. Here both
//! are simulated; a recording of a live one works the same way.

mod support;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::scan;
use terrace_core::interfaces::{Mover, Observation, Tracker};
use terrace_core::live_policy::LivePolicy;
use terrace_core::page::PageSize;
use terrace_core::policies::REGISTRY;
use terrace_core::policy;
use terrace_core::scan::Budget;
use terrace_recordings::period::{
    GroupHeader, Header, PeriodReader, PeriodWriter, RecordingSource,
};
use terrace_simulated::replay::{InitialPlacement, replay_placement, replay_plans};
use terrace_simulated::{GroupConfig, Machine, MachineConfig};
use terrace_workloads::generators::{self, Timing};

const PERIODS: u64 = 90;

fn group(policy: &str, name: &str) -> GroupHeader {
    GroupHeader {
        name: name.to_owned(),
        policy: policy.to_owned(),
        parameters: Value::Null,
        policy_seed: 17,
        page_size: PageSize::Huge,
        fast_share: 0.4,
    }
}

fn header(groups: Vec<GroupHeader>) -> Header {
    Header {
        created_by: "terrace test".to_owned(),
        experiment: "replay".to_owned(),
        machine: "sim".to_owned(),
        kernel: String::new(),
        period_ms: 1000,
        seed: 17,
        leaves_out_unmovable: false,
        groups,
    }
}

/// Runs two programs, one after the other, in each group and records them. Budgets change with the
/// layouts and are almost 0 at the start.
fn record(path: &Path, groups: Vec<GroupHeader>, busy_rate: f64) {
    record_as(false, path, groups, busy_rate);
}

/// The same, with policies as they are live or not.
fn record_as(is_live: bool, path: &Path, groups: Vec<GroupHeader>, busy_rate: f64) {
    let part = |name: &str, footprint_mib| {
        json!({"generator": name, "parameters": {
            "footprint_mib": footprint_mib, "duration_ms": 1000 * PERIODS / 2,
        }})
    };
    let parameters = json!({"parts": [part("lfu-favor", 300), part("hotcold", 200)]});
    let config = MachineConfig { busy_rate, ..MachineConfig::new(1 << 40, 1 << 40, 1000) };
    let machine = Machine::new(config).unwrap();
    let mut members = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let timing = Timing { page_size: PageSize::Huge, period_ms: 1000, seed: number as u64 };
        let source = generators::build("mix", &parameters, timing).unwrap();
        let built = policy::build(&group.policy, &group.parameters, group.policy_seed);
        let mut policy = built.unwrap();
        if is_live {
            policy = Box::new(LivePolicy::new(policy));
        }
        let config = GroupConfig {
            name: group.name.clone(),
            page_size: PageSize::Huge,
            allocation: policy.allocation(),
            fast_budget: Box::new(|layout| layout.pages() as u64 * 2 / 5),
            initial: None,
        };
        members.push((machine.add_group(config, source).unwrap(), policy));
    }
    let mut writer =
        PeriodWriter::create(path, Header { leaves_out_unmovable: is_live, ..header(groups) })
            .unwrap();
    for _ in 0..PERIODS {
        for (number, ((tracker, mover), policy)) in members.iter_mut().enumerate() {
            let scan = scan(tracker);
            let budget = Budget::fast(scan.pages() as u64 * 2 / 5);
            let decision = policy.decide(&scan, &budget);
            let outcome = mover.apply(&decision.plan).unwrap();
            policy.outcome(&outcome, scan.layout.page_size());
            writer.period(number, &scan, &budget, &decision, &outcome).unwrap();
        }
    }
    for (number, ((tracker, _), _)) in members.iter_mut().enumerate() {
        assert!(matches!(tracker.observe().unwrap(), Observation::Ended));
        writer.ended(number).unwrap();
    }
    writer.publish().unwrap();
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.trec");
    (folder, path)
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let (folder, path) = folder();
    let again = folder.path().join("again.trec");
    for path in [&path, &again] {
        record(path, vec![group("amp", "a"), group("random", "b")], 0.1);
    }
    assert!(std::fs::read(path).unwrap() == std::fs::read(again).unwrap());
}

/// Whether the policy's decisions depend on inputs that no recording of a run contains.
fn knows_the_future(policy: &str) -> bool {
    policy::build(policy, &group(policy, "g").parameters, 0).unwrap().needs_oracle()
}

#[test]
fn a_policy_that_knew_the_future_is_refused() {
    let (_folder, path) = folder();
    for kind in REGISTRY.iter().filter(|kind| knows_the_future(kind.name)) {
        record(&path, vec![group("lru", "a"), group(kind.name, "b")], 0.0);
        let records = PeriodReader::open(&path).unwrap().records();
        let refusal = replay_plans(records).unwrap_err().to_string();
        let expected = format!("group 'b': policy '{}' had an oracle trace", kind.name);
        assert!(refusal.starts_with(&expected), "{refusal}");
    }
}

#[test]
fn every_policy_decides_again_what_was_recorded() {
    let (_folder, path) = folder();
    let groups: Vec<_> = REGISTRY
        .iter()
        .filter(|kind| !knows_the_future(kind.name))
        .map(|kind| group(kind.name, kind.name))
        .collect();
    let count = groups.len() as u64;
    record(&path, groups, 0.1);
    let records = PeriodReader::open(&path).unwrap().records();
    let replay = replay_plans(records).unwrap();
    assert_eq!(replay.mismatches, []);
    assert_eq!((replay.compared_periods, replay.undecided_periods), (PERIODS * count, 0));
    assert_eq!(replay.truncation, None);
}

#[test]
fn what_a_live_policy_was_not_shown_is_not_shown_again() {
    let (_folder, path) = folder();
    let groups = || vec![group("lfu", "a"), group("terrace", "b")];
    let replayed = |is_live| {
        record_as(is_live, &path, groups(), 0.6);
        let replay = replay_plans(PeriodReader::open(&path).unwrap().records()).unwrap();
        let plans: Vec<_> = PeriodReader::open(&path)
            .unwrap()
            .records()
            .filter_map(|record| match record.unwrap() {
                terrace_recordings::period::Record::Period(r) => Some(r.decision.unwrap().plan),
                _ => None,
            })
            .collect();
        (replay.mismatches, plans)
    };
    let (live, simulated) = (replayed(true), replayed(false));
    assert_eq!((live.0, simulated.0), (vec![], vec![]));
    assert!(live.1 != simulated.1, "pages that stay are left out live, and only there");
}

/// The recording with another header: as if a policy had changed since.
fn with_groups(path: &Path, groups: Vec<GroupHeader>) -> Vec<u8> {
    let mut writer = PeriodWriter::new(Vec::new(), "r", header(groups)).unwrap();
    for record in PeriodReader::open(path).unwrap().records() {
        let terrace_recordings::period::Record::Period(r) = record.unwrap() else { continue };
        let recorded = r.decision.unwrap();
        let applied = REGISTRY.iter().find(|k| k.name == recorded.applied).unwrap().name;
        let decision = terrace_core::plan::Decision {
            plan: recorded.plan,
            applied,
            features: recorded.features,
        };
        writer
            .period(r.group, &r.scan, &r.budget.unwrap(), &decision, &r.outcome.unwrap())
            .unwrap();
    }
    writer.finish().unwrap().0
}

#[test]
fn a_policy_that_decides_otherwise_is_found_out_with_its_period() {
    let (_folder, path) = folder();
    record(&path, vec![group("lfu", "a"), group("lru", "b")], 0.0);
    let replay = |groups| {
        let bytes = with_groups(&path, groups);
        replay_plans(PeriodReader::new(&bytes[..], "r").unwrap().records())
    };
    assert_eq!(replay(vec![group("lfu", "a"), group("lru", "b")]).unwrap().mismatches, []);

    let found = replay(vec![group("lru", "a"), group("lru", "b")]).unwrap().mismatches;
    let first = found.iter().find(|m| m.what == "applied policy").unwrap();
    assert_eq!(
        first.to_string(),
        "group 'a', period 0: applied policy recorded as lfu, replayed as lru"
    );
    assert_eq!(found.iter().filter(|m| m.what == "applied policy").count() as u64, PERIODS);
    let plan = found.iter().find(|m| m.what == "plan").unwrap();
    assert!(plan.to_string().contains("plan recorded as"), "{plan}");
    assert!(found.iter().all(|m| m.group == "a"));

    let e = replay(vec![group("lfu", "a"), group("mru", "b")]).unwrap_err().to_string();
    assert!(e.starts_with("group 'b' of the recording: no policy is named 'mru'"), "{e}");
}

#[test]
fn a_recording_that_was_cut_off_is_replayed_up_to_the_cut() {
    let (_folder, path) = folder();
    record(&path, vec![group("amp", "a")], 0.0);
    let bytes = std::fs::read(&path).unwrap();
    let cut = &bytes[..bytes.len() * 2 / 3];
    let replay = replay_plans(PeriodReader::new(cut, "r").unwrap().records()).unwrap();
    assert_eq!(replay.mismatches, []);
    assert!((10..PERIODS).contains(&replay.compared_periods), "{}", replay.compared_periods);
    assert!(replay.truncation.is_some());
}

#[test]
fn the_machine_places_pages_again_as_it_did_unless_something_was_busy() {
    let (_folder, path) = folder();
    for (busy_rate, policy) in
        [(0.0, "lru"), (0.0, "amp"), (0.0, "lists"), (0.0, "interleave"), (0.2, "lru")]
    {
        record(&path, vec![group("random", "other"), group(policy, "g")], busy_rate);
        for initial in [InitialPlacement::Recorded, InitialPlacement::Allocated] {
            let replay = replay_placement(&path, "g", initial).unwrap();
            assert_eq!(replay.compared_periods, PERIODS);
            if busy_rate == 0.0 {
                assert_eq!(replay.first_difference, None, "{policy}");
                assert_eq!(replay.differing_periods, 0);
            } else {
                let first = replay.first_difference.unwrap();
                assert!((1..PERIODS).contains(&first.period) && first.differing_pages > 0);
                assert!(replay.mean_differing_ratio > 0.0 && replay.mean_differing_ratio < 1.0);
            }
        }
    }
    let e = replay_placement(&path, "nobody", InitialPlacement::Recorded).unwrap_err().to_string();
    assert!(e.ends_with("has no group 'nobody'; expected one of other, g"), "{e}");
}

#[test]
fn one_recording_compares_all_policies() {
    let (_folder, path) = folder();
    record(&path, vec![group("first-touch", "g")], 0.0);
    let hits: Vec<_> = REGISTRY
        .iter()
        .map(|kind| {
            let source = RecordingSource::open(&path, "g").unwrap();
            let mut policy = policy::build(kind.name, &Value::Null, 17).unwrap();
            let config = GroupConfig {
                name: kind.name.to_owned(),
                page_size: PageSize::Huge,
                allocation: policy.allocation(),
                fast_budget: Box::new(|layout| layout.pages() as u64 * 2 / 5),
                initial: None,
            };
            let machine = Machine::new(MachineConfig::new(1 << 40, 1 << 40, 1000)).unwrap();
            let (mut tracker, mut mover) = machine.add_group(config, Box::new(source)).unwrap();
            let mut hits = 0;
            for _ in 0..PERIODS {
                let scan = scan(&mut tracker);
                hits += scan.accessed.count_and(&scan.fast);
                let budget = Budget::fast(scan.pages() as u64 * 2 / 5);
                mover.apply(&policy.decide(&scan, &budget).plan).unwrap();
            }
            assert!(matches!(tracker.observe().unwrap(), Observation::Ended));
            (kind.name, hits)
        })
        .collect();
    let of = |name| hits.iter().find(|h| h.0 == name).unwrap().1;
    for worse in ["lru", "random", "interleave", "first-touch"] {
        assert!(of("lfu") > of(worse) * 3 / 2 && of("amp") > of(worse) * 3 / 2, "{hits:?}");
    }
}

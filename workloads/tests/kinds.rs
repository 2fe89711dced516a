//! Properties of the registry of workload kinds for its users.

use serde_json::{Value, json};
use terrace_core::page::PageSize;
use terrace_workloads::generators::{self, Timing};
use terrace_workloads::kinds::{LIVE, LiveContext, LiveProgram, WorkloadError, all, find};

fn context() -> LiveContext {
    LiveContext {
        runtime_directory: "/run/x".into(),
        period_ms: 1000,
        duration_ms: 5000,
        marked: false,
        page_size: PageSize::Huge,
        seed: 3,
    }
}

#[test]
fn names_are_unique_and_every_kind_says_what_it_is() {
    let kinds = all();
    let mut names: Vec<_> = kinds.iter().map(|k| k.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), kinds.len());
    for kind in kinds {
        assert!(!kind.summary.is_empty() && !kind.stands_for.is_empty(), "{}", kind.name);
        assert!(!kind.parameters().is_empty(), "{}", kind.name);
        assert_eq!(find(kind.name).unwrap().name, kind.name);
    }
    for name in ["redis-zipf", "hotcold", "command"] {
        assert!(find(name).unwrap().live.is_some());
    }
    for name in ["lru-favor", "lfu-favor", "random-favor"] {
        let kind = find(name).unwrap();
        assert!(kind.live.is_some() && kind.generator.is_some(), "{name}");
    }
    for generator in generators::REGISTRY {
        assert!(find(generator.name).unwrap().generator.is_some(), "{}", generator.name);
    }
    let error = find("redis").err().unwrap().to_string();
    assert!(error.contains("'redis'") && error.contains("redis-zipf"), "{error}");
}

#[test]
fn documented_parameters_are_accepted_and_others_refused() {
    for live in LIVE {
        let kind = find(live.name).unwrap();
        let message = |value: Value| match kind.live(&value, &context()) {
            Err(WorkloadError::Missing(_)) => panic!("build terrace-workload first"),
            Err(e) => e.to_string(),
            Ok(_) => String::new(),
        };
        assert!(message(json!({ "no_such_key": 1 })).contains("no_such_key"), "{}", live.name);
        // A value of a wrong type is rejected as that, not as an unknown key.
        for parameter in live.parameters {
            let (value, got) = match parameter.default.starts_with('{') {
                true => (json!(["wrong", "type"]), "got sequence"),
                false => (json!({ "wrong": "type" }), "got map"),
            };
            let printed = message(json!({ parameter.name: value }));
            assert!(printed.contains(got), "{} {}: {printed}", live.name, parameter.name);
        }
        assert!(!message(json!("text")).is_empty());
    }
}

#[test]
fn impossible_values_are_refused_before_anything_runs() {
    let cases = [
        ("redis-zipf", json!({ "theta": -1.0 }), "theta"),
        ("redis-zipf", json!({ "value_bytes": 3 }), "value_bytes"),
        ("redis-zipf", json!({ "hot_start": 1.0 }), "hot start"),
        (
            "redis-zipf",
            json!({ "shifts": [{ "at_ms": 5, "to": 0.1 }, { "at_ms": 5, "to": 0.2 }] }),
            "order of time",
        ),
        ("hotcold", json!({ "hot_ratio": 1.5 }), "hot_ratio"),
        ("hotcold", json!({ "footprint_mib": 3 }), "multiple of 2"),
        ("hotcold", json!({ "hot_ratio": 0.1, "hot_every": 4 }), "both given"),
        ("lru-favor", json!({ "sets": 0 }), "sets"),
        ("command", json!({ "command": [] }), "command is empty"),
        ("command", json!({}), "command"),
        ("program", json!({}), "no program is named ''"),
        ("program", json!({ "name": "bfs", "footprint_mib": 1 }), "footprint_mib"),
        ("program", json!({ "name": "gups", "threads": 0 }), "threads"),
    ];
    for (name, parameters, expected) in cases {
        let error = find(name).unwrap().live(&parameters, &context()).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_kind_that_cannot_says_what_to_do_instead() {
    let live = |name: &str, parameters: &Value| {
        find(name).unwrap().live(parameters, &context()).unwrap_err().to_string()
    };
    let mix = live("mix", &json!({ "parts": [{ "generator": "scan" }] }));
    assert!(mix.contains("--machine sim"), "{mix}");
    let recording = live("recording", &Value::Null);
    assert!(recording.contains("no live program; run it with --machine sim"), "{recording}");
    let timing = Timing { page_size: PageSize::Huge, period_ms: 1000, seed: 1 };
    let redis = find("redis-zipf").unwrap().source(&Value::Null, timing).err().unwrap();
    assert!(redis.to_string().contains("recording"), "{redis}");
    assert!(find("zipf").unwrap().source(&Value::Null, timing).is_ok());
}

#[test]
fn redis_comes_from_its_package_and_the_client_from_here() {
    let workload = find("redis-zipf").unwrap().live(&Value::Null, &context()).unwrap();
    let programs = workload.programs();
    assert_eq!(programs.len(), 2);
    let package =
        LiveProgram::Package { package: "redis-server".into(), program: "redis-server".into() };
    assert_eq!(programs[0], package);
    assert!(matches!(&programs[1], LiveProgram::Host(p) if p.ends_with("terrace-workload")));
}

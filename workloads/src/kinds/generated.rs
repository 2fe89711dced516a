//! Generators as live programs: the same pages, touched on real memory that checks itself.

use serde_json::Value;

use super::{
    End, LiveCommand, LiveContext, LiveKind, LiveProgram, LiveWorkload, Ready, SLACK_MS,
    WorkloadError, bad, hotcold,
};
use crate::generators::program::members;
use crate::generators::{self, Timing};

const fn kind(
    name: &'static str,
    build: fn(&Value, &LiveContext) -> Result<LiveWorkload, WorkloadError>,
) -> LiveKind {
    LiveKind { name, summary: "", stands_for: "", parameters: &[], build }
}

pub(super) const LRU_FAVOR: LiveKind = kind("lru-favor", |p, c| live("lru-favor", p, c));
pub(super) const LFU_FAVOR: LiveKind = kind("lfu-favor", |p, c| live("lfu-favor", p, c));
pub(super) const RANDOM_FAVOR: LiveKind = kind("random-favor", |p, c| live("random-favor", p, c));
pub(super) const ZIPF: LiveKind = kind("zipf", |p, c| live("zipf", p, c));
pub(super) const UNIFORM: LiveKind = kind("uniform", |p, c| live("uniform", p, c));
pub(super) const SCAN: LiveKind = kind("scan", |p, c| live("scan", p, c));
pub(super) const MIX: LiveKind = kind("mix", mix);

fn live(
    name: &'static str,
    parameters: &Value,
    context: &LiveContext,
) -> Result<LiveWorkload, WorkloadError> {
    let mut parameters = members(name, parameters)?;
    // The program has touched all of its memory, in order, before the periods begin.
    parameters.entry("startup_ms").or_insert(Value::from(0));
    program(name, Value::Object(parameters), context)
}

/// One program that changes its behaviour, so all parts have its memory from the start.
fn mix(parameters: &Value, context: &LiveContext) -> Result<LiveWorkload, WorkloadError> {
    const NAME: &str = "mix";
    let mut parameters = members(NAME, parameters)?;
    generators::footprint_bytes(NAME, &Value::Object(parameters.clone()))?;
    if parameters.get("same_memory") != Some(&Value::Bool(true)) {
        let message = "same_memory is false, expected true on a live machine, where a mix is one \
                       program that changes its behaviour; or run it with --machine sim";
        return Err(bad(NAME, message.to_owned()));
    }
    if let Some(Value::Array(parts)) = parameters.get_mut("parts") {
        for part in parts.iter_mut().filter_map(Value::as_object_mut) {
            let own = part.entry("parameters").or_insert(Value::Null);
            let mut own_members = members(NAME, own)?;
            own_members.entry("startup_ms").or_insert(Value::from(0));
            *own = Value::Object(own_members);
        }
    }
    program(NAME, Value::Object(parameters), context)
}

/// The program that touches the pages of a generator.
fn program(
    name: &'static str,
    parameters: Value,
    context: &LiveContext,
) -> Result<LiveWorkload, WorkloadError> {
    let timing =
        Timing { page_size: context.page_size, period_ms: context.period_ms, seed: context.seed };
    generators::build(name, &parameters, timing)?;
    // Twenty rounds a period spread the touches; more than a hundred a second would cost more than
    // their effect.
    let pause_ms = (context.period_ms / 20).clamp(10, 1000);
    let arguments = [
        "generator".to_owned(),
        name.to_owned(),
        format!("--parameters={parameters}"),
        format!("--period-ms={}", context.period_ms),
        format!("--page-size={}", hotcold::page_size(context.page_size)),
        format!("--seed={}", context.seed),
        format!("--pause-ms={pause_ms}"),
        format!("--duration-ms={}", context.duration_ms),
        "--wait-go".to_owned(),
    ];
    own_memory_program(arguments.to_vec())
}

/// A memory program of `terrace-workload` with these arguments.
pub(super) fn own_memory_program(arguments: Vec<String>) -> Result<LiveWorkload, WorkloadError> {
    Ok(LiveWorkload {
        ready: Ready::Event { event: "ready".into(), within_ms: SLACK_MS },
        begin_line: Some("go".into()),
        end: End::Line("stop".into()),
        ..own_program(arguments)?
    })
}

/// A program of `terrace-workload` that begins by itself and ends by itself.
pub(super) fn own_program(arguments: Vec<String>) -> Result<LiveWorkload, WorkloadError> {
    Ok(LiveWorkload {
        main: LiveCommand {
            program: LiveProgram::own()?,
            arguments,
            environment: Vec::new(),
            within_ms: SLACK_MS,
        },
        ready: Ready::Started,
        load: None,
        drive: None,
        verify: None,
        begin_line: None,
        end: End::Terminate,
        drive_is_marked: false,
        executes: Vec::new(),
        packages: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use terrace_core::page::PageSize;

    use super::*;

    fn context() -> LiveContext {
        LiveContext {
            runtime_directory: "/run".into(),
            period_ms: 1000,
            duration_ms: 60_000,
            marked: false,
            page_size: PageSize::Huge,
            seed: 7,
        }
    }

    #[test]
    fn a_live_mix_is_one_program_whose_parts_have_its_memory_from_the_start() {
        let parts = json!([
            { "generator": "scan", "parameters": { "footprint_mib": 64, "duration_ms": 20_000 } },
            { "generator": "uniform", "parameters": { "footprint_mib": 128 } },
        ]);
        let workload = mix(&json!({ "parts": parts, "same_memory": true }), &context()).unwrap();
        let given = workload.main.arguments.iter().find_map(|a| a.strip_prefix("--parameters="));
        let given: Value = serde_json::from_str(given.unwrap()).unwrap();
        for part in given["parts"].as_array().unwrap() {
            assert_eq!(part["parameters"]["startup_ms"], 0, "{part}");
        }
        assert_eq!(generators::footprint_bytes("mix", &given), Ok(128 << 20));

        let error = |parameters: &Value| mix(parameters, &context()).unwrap_err().to_string();
        assert!(error(&json!({ "parts": parts })).contains("same_memory is false, expected true"));
        let odd = json!({ "parts": 3, "same_memory": true });
        assert!(error(&odd).contains("parts"), "{}", error(&odd));
        let endless = json!({ "parts": [{ "generator": "scan" }, { "generator": "scan" }],
            "same_memory": true });
        assert!(error(&endless).contains("no duration_ms"), "{}", error(&endless));
    }
}

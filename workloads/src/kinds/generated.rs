//! Generators as live programs: the same pages, touched on real memory that checks itself.

use serde_json::{Map, Value};

use super::{
    End, LiveCommand, LiveContext, LiveKind, LiveProgram, LiveWorkload, Ready, SLACK_MS,
    WorkloadError, bad, hotcold,
};
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

fn live(
    name: &'static str,
    parameters: &Value,
    context: &LiveContext,
) -> Result<LiveWorkload, WorkloadError> {
    let mut parameters = match parameters {
        Value::Null => Map::new(),
        Value::Object(members) => members.clone(),
        other => return Err(bad(name, format!("parameters are {other}, expected an object"))),
    };
    // The program has touched all of its memory, in order, before the periods begin.
    parameters.entry("startup_ms").or_insert(Value::from(0));
    let parameters = Value::Object(parameters);
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

//! The schemas against the readers of the files: a number that a schema refuses is refused by the
//! reader, for the same range, and so is a key that the schema does not know.
//!
//! The cases are made of the schemas: each number with a range is set just below and just above it,
//! and each table gets a key that it does not have. So a range that is declared and not checked, or
//! checked otherwise, is found here.

use std::path::PathBuf;

use serde_json::Value as Json;
use terrace_core::page::PageSize;
use terrace_experiments::{Experiment, trace_machine};
use terrace_hardware::presets::{self, MachineConfig};
use terrace_hardware::tier::TierModel;
use terrace_hardware::tier::link::LinkConfig;
use terrace_hardware::tier::queueing::QueueingConfig;
use terrace_hardware::tlb::{SecondLevelConfig, TlbConfig};
use terrace_simulated::reference::ReferenceMachine;
use terrace_workloads::generators::Timing;
use terrace_workloads::kinds::{self, LiveContext};
use toml::{Table, Value};

use crate::common::Place;
use crate::faults;

/// A key that no table has.
const NO_KEY: &str = "sise";

/// Keys whose range in the reader's message depends on other keys, or on more than the number.
const OWN_WORDS: [&str; 9] = [
    "size",
    "buffer",
    "block_bytes",
    "pde_entries",
    "pdpte_entries",
    "pml4e_entries",
    "write_high",
    "write_low",
    "cycles",
];

/// Keys whose range depends on other keys and is not in the schema: whether rows are refreshed, and
/// the size of pages.
const NOT_DECLARED: [&str; 2] = ["rfc", "tracked"];

/// A step from a table to a key of it, or from a list to its first entry.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Key(String),
    First,
}

/// A value at a path that a schema refuses, and the range that it states.
struct Case {
    path: Vec<Step>,
    value: Value,
    range: [Option<f64>; 2],
}

impl Case {
    fn key(&self) -> &str {
        let keys = self.path.iter().rev().filter_map(|step| match step {
            Step::Key(key) => Some(key.as_str()),
            Step::First => None,
        });
        keys.into_iter().next().unwrap_or_default()
    }

    fn is_below(&self, key: &str) -> bool {
        self.path.contains(&Step::Key(key.to_owned()))
    }
}

/// Calls `visit` with a schema and all below, each with its path.
fn walk(schema: &Json, path: &[Step], visit: &mut dyn FnMut(&Json, &[Step])) {
    visit(schema, path);
    for word in ["anyOf", "oneOf"] {
        for one in schema[word].as_array().into_iter().flatten() {
            walk(one, path, visit);
        }
    }
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(property, &[path, &[Step::Key(key.clone())]].concat(), visit);
    }
    if schema["items"].is_object() {
        walk(&schema["items"], &[path, &[Step::First]].concat(), visit);
    }
}

/// Values just outside the range of a schema's number.
fn beyond(schema: &Json) -> Vec<Value> {
    let whole = |word: &str| schema[word].as_i64();
    let bound = |word: &str| schema[word].as_f64();
    let mut values: Vec<Value> = Vec::new();
    values.extend(whole("minimum").and_then(|least| least.checked_sub(1)).map(Value::Integer));
    values.extend(whole("maximum").and_then(|most| most.checked_add(1)).map(Value::Integer));
    if schema["type"] == "number" {
        values.extend(bound("minimum").map(|least| Value::Float(least - 0.0001)));
        values.extend(bound("maximum").map(|most| Value::Float(most * 1.001)));
        values.extend(bound("exclusiveMinimum").map(Value::Float));
        values.extend(bound("exclusiveMaximum").map(Value::Float));
    }
    values
}

/// The largest value of a whole number that has no bound but its width.
fn widest(schema: &Json) -> Option<Value> {
    let width = i64::from(u32::MAX);
    let most = schema["maximum"].as_i64().unwrap_or(i64::MAX);
    let is_width = most == i64::MAX || most == width;
    (schema["type"] == "integer" && is_width).then_some(Value::Integer(most))
}

/// Cases of a schema.
struct Cases {
    /// Numbers out of range.
    numbers: Vec<Case>,
    /// Keys that there are not.
    keys: Vec<Case>,
    /// Large numbers where there is no bound.
    wide: Vec<Case>,
}

fn cases(schema: &Json) -> Cases {
    let (mut numbers, mut keys, mut wide) = (Vec::new(), Vec::new(), Vec::new());
    walk(schema, &[], &mut |schema, path| {
        if schema["type"] == "integer" || schema["type"] == "number" {
            let range = ["minimum", "maximum"].map(|word| schema[word].as_f64());
            for value in beyond(schema) {
                numbers.push(Case { path: path.to_vec(), value, range });
            }
        }
        if let Some(value) = widest(schema) {
            wide.push(Case { path: path.to_vec(), value, range: [None; 2] });
        }
        if schema["additionalProperties"] == false {
            let path = [path, &[Step::Key(NO_KEY.to_owned())]].concat();
            keys.push(Case { path, value: Value::Integer(1), range: [None; 2] });
        }
    });
    Cases { numbers, keys, wide }
}

/// Number of steps of a path that a file has.
fn reach(at: &Value, path: &[Step]) -> usize {
    let (below, rest) = match path {
        [] => return 0,
        [Step::Key(key), rest @ ..] => (at.get(key), rest),
        [Step::First, rest @ ..] => (at.get(0), rest),
    };
    below.map_or(0, |below| 1 + reach(below, rest))
}

/// Sets a value in a file; tables and lists on the way are made.
fn set(at: &mut Value, path: &[Step], value: &Value) {
    match path {
        [] => *at = value.clone(),
        [Step::Key(key), rest @ ..] => {
            if !at.is_table() {
                *at = Value::Table(Table::new());
            }
            let Some(table) = at.as_table_mut() else { return };
            set(table.entry(key).or_insert(Value::Integer(0)), rest, value);
        }
        [Step::First, rest @ ..] => {
            if !at.is_array() {
                *at = Value::Array(vec![Value::Integer(0)]);
            }
            let list = at.as_array_mut().and_then(|list| list.first_mut());
            set(list.expect("a list that has an entry"), rest, value);
        }
    }
}

/// The range in a message: the numbers of `1 to 64`.
fn range_in(message: &str) -> Option<[f64; 2]> {
    let (_, expected) = message.split_once("expected")?;
    let words: Vec<&str> = expected.split_whitespace().collect();
    let number = |word: &str| word.trim_matches([',', ';', '.', '(', ')']).parse::<f64>().ok();
    words.windows(3).find_map(|w| match w[1] {
        "to" => Some([number(w[0])?, number(w[2])?]),
        _ => None,
    })
}

/// Checks that schema and reader refuse all cases; each is put into the file that has most of its
/// path.
fn refused_by_both(kind: &str, files: &[Value], refused: impl Fn(&str) -> Option<String>) {
    let place = Place::new();
    let write = |name: String, file: &Value| -> (PathBuf, String) {
        let text = toml::to_string(file).expect("a file");
        (place.write(&name, &text), text)
    };
    for (n, file) in files.iter().enumerate() {
        let (path, text) = write(format!("whole-{n}.toml"), file);
        assert_eq!(faults(&place, kind, &[path]), [""], "{text}");
        assert_eq!(refused(&text), None, "{text}");
    }
    let schema = place.run(&format!("schema {kind}")).json();
    let Cases { numbers, keys, wide } = cases(&schema);
    assert!(numbers.len() > 40 && keys.len() > 4, "{} {}", numbers.len(), keys.len());
    // A ratio of latencies is 0 where the firmware reports it.
    let is_no_case = |c: &Case| c.key() == "latency_ratio" && c.value.as_integer() == Some(0);
    let all: Vec<&Case> = numbers.iter().filter(|c| !is_no_case(c)).chain(&keys).collect();
    let filled = |case: &Case| {
        let file = files.iter().rev().max_by_key(|file| reach(file, &case.path));
        let mut file = file.expect("a file to begin with").clone();
        set(&mut file, &case.path, &case.value);
        file
    };
    let number = all.iter().enumerate();
    let written: Vec<_> = number.map(|(n, c)| write(format!("{n}.toml"), &filled(c))).collect();
    let paths: Vec<PathBuf> = written.iter().map(|(path, _)| path.clone()).collect();
    let mut wrong = Vec::new();
    for ((case, (_, text)), fault) in all.iter().zip(&written).zip(faults(&place, kind, &paths)) {
        let what = format!("{:?} = {}", case.path, case.value);
        if fault.is_empty() {
            wrong.push(format!("{what}: the schema takes it"));
        }
        let Some(message) = refused(text) else {
            wrong.push(format!("{what}: the reader takes it"));
            continue;
        };
        let value = case.value.to_string();
        if ![case.key(), &value, "size", "single key"].iter().any(|word| message.contains(word)) {
            wrong.push(format!("{what}: refused for another reason: {message}"));
        }
        let is_own =
            OWN_WORDS.contains(&case.key()) || (case.key() == "ways" && case.is_below("tlbs"));
        let Some(range) = range_in(&message).filter(|_| !is_own) else { continue };
        let same = |declared: Option<f64>, checked| declared.is_none_or(|d| d == checked);
        if !(same(case.range[0], range[0]) && same(case.range[1], range[1])) {
            wrong.push(format!("{what}: declared {:?}, checked: {message}", case.range));
        }
    }
    for case in wide.iter().filter(|case| !NOT_DECLARED.contains(&case.key())) {
        let message = refused(&write("wide.toml".to_owned(), &filled(case)).1).unwrap_or_default();
        if range_in(&message).is_some() {
            wrong.push(format!("{:?} has no range in the schema: {message}", case.path));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

/// An experiment at trace fidelity.
const TRACE: &str = r#"name = "r"
period_ms = 1
periods = 1
[machine]
fidelity = "trace"
[machine.hardware.node]
cores = 2
[machine.os]
watermarks = [{ min = 0.0, low = 0.0, high = 0.0 }]
[machine.simulation.background_demotion]
[[groups]]
name = "g"
fast_ratio = 0.5
sparse = { pte = 8, pmd = 8 }
[groups.workload]
kind = "program"
name = "gups"
footprint_mib = 4
"#;

/// The same on this hardware.
fn on(hardware: &MachineConfig) -> Value {
    let mut file: Value = toml::from_str(TRACE).expect("an experiment");
    file["machine"]
        .as_table_mut()
        .and_then(|machine| machine.insert("hardware".into(), Value::try_from(hardware).unwrap()));
    file
}

/// Why the program does not run an experiment on its machine.
fn refused_experiment(text: &str) -> Option<String> {
    let experiment = match Experiment::parse(text, PathBuf::new()) {
        Ok(experiment) => experiment,
        Err(error) => return Some(error.to_string()),
    };
    match trace_machine(&experiment) {
        Ok(machine) => ReferenceMachine::new(machine).err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

#[test]
fn numbers_out_of_range_and_unknown_keys_of_experiments_are_refused_by_schema_and_program() {
    let mut queueing = presets::by_name("server-ddr5-cxl").unwrap();
    queueing.node.cores = 2;
    queueing.node.core.load_store_queue = Some(64);
    let TierModel::Queueing(tier) = &mut queueing.tiers[0].model else {
        panic!("the tiers of this preset are queues");
    };
    (tier.link, tier.blocks) = (Some(LinkConfig::cxl_x8()), QueueingConfig::optane(1).blocks);
    let mut dram = presets::by_name("server-ddr5-cxl-timing").unwrap();
    dram.node.cores = 2;
    let tlb = TlbConfig::new(64, 4);
    dram.node.tlbs.l2 = SecondLevelConfig::Split { base: tlb, huge: tlb };
    let TierModel::Dram(tier) = &mut dram.tiers[0].model else {
        panic!("the tiers of this preset are DRAM");
    };
    tier.link = Some(LinkConfig::cxl_x8());
    let own = "scope = \"rank\"\npreceding = [\"ACT\"]\nfollowing = [\"ACT\"]\ncycles = 1\n";
    tier.dram.constraints.push(toml::from_str(own).unwrap());
    let in_us = TRACE.replace("period_ms = 1", "period_us = 1000");
    let plain = |text: &str| toml::from_str::<Value>(text).unwrap();
    let files = [plain(TRACE), plain(&in_us), on(&queueing), on(&dram)];
    refused_by_both("experiment", &files, refused_experiment);
}

#[test]
fn numbers_out_of_range_and_unknown_keys_of_configurations_are_refused_by_schema_and_reader() {
    let group = "[[groups]]\nname = \"g\"\ncgroup = \"/a\"\n";
    let files = [format!("{group}fast_ratio = 0.5\n"), format!("{group}share = {{ min = 0 }}\n")];
    let files = files.map(|text| toml::from_str::<Value>(&text).unwrap());
    let refused = |text: &str| terrace_daemon::Config::parse(text, "t").err().map(|e| e.0);
    refused_by_both("daemon", &files, refused);
}

#[test]
fn a_misspelt_key_deep_in_the_hardware_is_refused_by_schema_and_program() {
    let place = Place::new();
    let text = format!("{TRACE}[machine.hardware.node.caches.l2]\nsise = \"1M\"\n");
    let file = place.write("e.toml", text);
    assert!(!faults(&place, "experiment", &[file])[0].is_empty());
    place.run("run e.toml --out results").refused(&["machine.hardware", "`sise`"]);
}

/// A workload's parameters with this value of one of them, and what it needs besides.
fn with(kind: &str, name: &str, value: Json) -> Json {
    let mut all = match kind {
        "program" => serde_json::json!({ "name": "gups", "footprint_mib": 4 }),
        _ => serde_json::json!({}),
    };
    all[name] = value;
    all
}

/// Why a workload with these parameters runs nowhere: what each side says, live and simulated.
fn refusals(kind: &str, parameters: &Json) -> Option<Vec<String>> {
    let kind = kinds::find(kind).unwrap();
    let context = LiveContext {
        runtime_directory: PathBuf::from("/run"),
        period_ms: 1000,
        duration_ms: 10_000,
        marked: false,
        page_size: PageSize::Base,
        seed: 1,
    };
    let timing = Timing { page_size: PageSize::Base, period_ms: 1000, seed: 1 };
    let live = kind.live.map(|_| kind.live(parameters, &context).err());
    let simulated = kind.generator.map(|_| kind.source(parameters, timing).err());
    let all = [live, simulated].into_iter().flatten();
    all.map(|error| error.map(|error| error.to_string())).collect()
}

#[test]
fn numbers_out_of_range_of_workloads_are_refused_by_schema_and_program() {
    let schema = Place::new().run("schema experiment").json();
    let workload = &schema["properties"]["groups"]["items"]["properties"]["workload"];
    let (mut checked, mut wrong) = (0, Vec::new());
    for part in workload["allOf"].as_array().unwrap() {
        let kind = part["if"]["properties"]["kind"]["const"].as_str().unwrap();
        // Nothing of theirs is a number, or they are read where experiments are.
        if ["mix", "command", "attach", "recording", "profile"].contains(&kind) {
            continue;
        }
        for (name, property) in part["then"]["properties"].as_object().unwrap() {
            let mut case = |value: Json| {
                checked += 1;
                let what = format!("{kind}: {name} = {value}");
                let word = name.replace('_', " ");
                let Some(messages) = refusals(kind, &with(kind, name, value)) else {
                    return wrong.push(format!("{what}: the program takes it"));
                };
                let own = messages.iter().find(|message| {
                    !message.contains("unknown field")
                        && (message.contains(name.as_str()) || message.contains(&word))
                });
                let Some(message) = own else {
                    return wrong.push(format!("{what}: refused for another reason: {messages:?}"));
                };
                let declared = ["minimum", "maximum"].map(|word| property[word].as_f64());
                let Some(range) = range_in(message) else { return };
                let same = |declared: Option<f64>, checked| declared.is_none_or(|d| d == checked);
                // Of threads, gups has the most.
                if !(same(declared[0], range[0]) && same(declared[1], range[1])) {
                    wrong.push(format!("{what}: declared {declared:?}, checked: {message}"));
                }
            };
            let whole =
                |bound: &Json| bound.as_f64().is_some_and(|b| b.fract() == 0.0 && b.abs() > 1.0);
            let is_ratio = |bound: &Json| !whole(bound) && property["minimum"] == 0;
            if let Some(least) = property["minimum"].as_i64() {
                case(if least == 0 { (-0.001).into() } else { (least - 1).into() });
            }
            match property["maximum"].as_f64() {
                Some(most) if is_ratio(&property["maximum"]) => case((most + 0.001).into()),
                Some(most) => case((most as i64 + 1).into()),
                None => {}
            }
            if !property["exclusiveMaximum"].is_null() {
                case(property["exclusiveMaximum"].clone());
            }
            // What has no range takes the least and nearly the most that its type has.
            let number = property["type"] == "number";
            let free =
                ["minimum", "maximum", "exclusiveMaximum"].iter().all(|w| property[w].is_null());
            for value in [0_u64, 1 << 40].into_iter().filter(|_| number && free) {
                let messages = refusals(kind, &with(kind, name, value.into())).unwrap_or_default();
                if messages.iter().any(|message| message.contains(name.as_str())) {
                    wrong.push(format!("{kind}: {name} has no range in the schema: {messages:?}"));
                }
            }
        }
    }
    assert!(checked > 40, "{checked} ranges of workloads");
    assert!(wrong.is_empty(), "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
}

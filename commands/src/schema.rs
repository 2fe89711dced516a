//! `terrace schema`: JSON schemas of the files that people write.
//!
//! Keys are declared here, a row each; tests hold the rows against the keys that the readers of the
//! files know, and their ranges against what the readers refuse. The insides of machines are made of
//! the structs that are read (`nested`); the parameters of policies and workloads are those that they
//! declare.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use terrace_core::parameters::ParameterDoc;
use terrace_core::policies::REGISTRY;
use terrace_core::policy::PolicyKind;
use terrace_workloads::kinds::{self, WorkloadKind};

use crate::show::say;

mod nested;
mod reference;

/// Text below the options in `--help` and in the manual page.
const MORE: &str = "\
An editor that knows schemas of TOML files (by taplo or Even Better TOML)
takes one from the first line of a file:
  #:schema experiment.schema.json
after
  terrace schema experiment > experiment.schema.json";

/// Print the JSON schema of a kind of file, with which editors complete keys and mark faults.
#[derive(Args)]
#[command(after_long_help = MORE)]
pub struct Arguments {
    /// The kind of file.
    #[arg(value_enum)]
    of: Kind,
    /// Form of the output: the schema, or a reference for people in Markdown.
    #[arg(long, value_enum, default_value = "json")]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// JSON schema.
    Json,
    /// Tables of keys, in Markdown.
    Markdown,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Experiment files, of 'terrace run' and others.
    Experiment,
    /// The configuration of terraced.
    Daemon,
    /// Fleet files, of 'terrace fleet'.
    Fleet,
}

impl Arguments {
    /// Prints it.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        if self.format == Format::Markdown {
            say!("{}", reference::of(self.of))?;
            return Ok(ExitCode::SUCCESS);
        }
        let schema = match self.of {
            Kind::Experiment => experiment(),
            Kind::Daemon => daemon(),
            Kind::Fleet => fleet(),
        };
        say!("{}", serde_json::to_string_pretty(&schema)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Keys of an experiment: name ('!' where it must be given), kind, meaning.
const EXPERIMENT: &str = r#"
name! | text | its name, in results: letters, digits, '-', '_', '.'
description | text | what it shows, in a line or two
seed | count | seed of everything random (1)
period_ms | count from 1 to 3600000 | length of a period: how often accessed bits are read and pages moved; this or period_us
period_us | count from 1 to 3600000000 | the same in microseconds, at trace fidelity
periods! | count from 1 to 10000000 | periods at most; it ends when its workloads have
warm_up_periods | count | periods at the beginning that are run and not measured (0)
slowdown | bool | at trace fidelity and with clock = "memory": also a run with all memory fast (true)
"#;

/// Keys of `[machine]`.
const MACHINE: &str = r#"
cpus | count from 1 to 64 | processors (2)
fast | size from 2097152 | fast tier (simulated: what the groups may use)
slow | size from 2097152 | slow tier (simulated: without bound)
fast_latency_ns | count from 0 to 4294967295 | latency of the fast tier (80)
slow_latency_ns | count from 0 to 4294967295 | latency of the slow tier (300)
fast_nodes | counts | nodes of the fast tier of a host that does not tell its tiers; both or none
slow_nodes | counts | nodes of its slow tier
kernel | text | kernel of the virtual machine: "debian", "debian-7.3", "terrace", "terrace-7.3", or the path of an image
qemu | text | what emulates the virtual machine: a major version of Debian's QEMU as in "10", a name on PATH, or a path (the host's)
mechanisms | auto stock terrace | what tracks and moves pages on a live machine (auto)
full | bool | live: others have the rest of fast memory meanwhile (false)
clock | host instructions memory | what the clocks of a virtual machine count (host)
fidelity | interval trace | how deep the simulated machine goes (interval)
sample_reads | auto, or count from 0 to 4294967295 | policies get one read in so many: of profiles, at trace fidelity, with clock = "memory", on a host that samples; 0: none; auto: live as many as there are, one in 400 with clock = "memory" without windows, of simulated machines none (auto)
window_instructions | count from 0 to 4294967295 | with clock = "memory": instructions of a sampling window; only windows are timed in detail (0: everything is)
window_warm_up_instructions | count from 0 to 4294967295 | instructions before each window that are timed and do not count (twice a window)
window_interval_instructions | count from 0 to 4294967295 | instructions from window to window, in the mean (30 windows)
hint_faults | bool | live, with page_size = "auto": faults show how often base pages are accessed; a stock kernel can fall over by them (false)
hardware | hardware | at trace fidelity and with clock = "memory": a preset and what to change of it
os | os | at trace fidelity: the operating system
simulation | simulation | at trace fidelity: how time is played
"#;

/// Keys of `[[groups]]` of an experiment.
const GROUP: &str = r#"
name! | text | its name, in results and as a control group
policy | policy | its policy (amp)
fast_ratio | ratio | its fast memory over its footprint; this or fast
fast | size | its fast memory as a size; this or fast_ratio
page_size | auto 2M 4K | tracked and moved in these; auto, live: ranges of 2 MB, whatever maps them (2M)
moved_pages_per_period | count | pages moved in a period at most (without bound)
cpus | counts | live: processors that its programs have to themselves; after a warm-up a program that reports no operations is then measured by its instructions (all, shared)
tables | tables | where its page-table pages go: at trace fidelity, and live on the Terrace kernel
sparse | sparse | at trace fidelity: how many entries of page-table pages are used, of 512
start_ms | count | at trace fidelity: when it starts
stop_ms | count | at trace fidelity: when it is ended
stop_after_start_up_of | text | at trace fidelity: it is ended when the start-up of this group's program is over
workload! | workload | what it runs
"#;

/// Keys of `[daemon]`.
const DAEMON: &str = r#"
period_ms | count from 50 to 3600000 | length of a period (1000)
discover_ms | count from 50 to 3600000 | how often control groups are looked for (2000)
max_groups | count from 1 to 128 | groups at a time (16)
max_processes | count from 1 to 65536 | processes of a group beyond which it is not managed (1024)
sample_reads | auto, or count from 0 to 4294967295 | policies get one in so many reads that miss the last level, on a host that samples; 0: none; auto: up to 20,000 a second, none on a host without them (auto)
hint_faults | bool | faults show how often base pages are accessed, of groups by ranges; a stock kernel can fall over by them: not for hosts in use (false)
fix_conflicts | bool | leave to change kernel settings in the way, journaled and put back (true)
fast_nodes | counts | nodes of the fast tier, where the firmware says nothing; both or none
slow_nodes | counts | nodes of the slow tier
dry_run | bool | nothing is moved and no setting changed (false)
bandwidth | size | bytes moved per second by all groups together; 0 for no bound (200000000)
cpu_percent | number from 0.001 to 10000 | processor time of the daemon, in percent of one processor
control | text | the control socket (/run/terrace/control.sock)
control_group | text | group whose members may read it; root alone where empty
metrics | text | address of the Prometheus endpoint, such as 127.0.0.1:9464; none where empty
state | text | folder that keeps histories over restarts; none where empty (/var/lib/terrace)
seed | count | of policies that draw random numbers (1)
latency_ratio | number from 1 to 1000, or 0 | latency of slow over fast memory; 0 for what the firmware says
memory_share | ratio | share of a program's time that it waits for memory: an assumption (0.4)
memory_share_error | ratio | by how much that may be off either way (0.2)
"#;

/// Keys of `[sharing]`.
const SHARING: &str = r#"
fast | amount | fast memory that all groups may use together: a part or a size (90%)
every_ms | count from 50 to 86400000 | how often it is divided anew (30000)
max_loss | ratio | hit ratio that a group may lose against partitioning by weight (0.3)
"#;

/// Keys of `[throttle]`.
const THROTTLE: &str = r#"
payback_periods | number from 0 to 1000000 | periods of hits that a promoted page must yield on average (1.0)
settle_periods | count from 1 to 10000 | periods in which promotions are counted (8)
least_moved | number from 0 to 1000000 | promotions over fast pages, below which nothing is judged (0.1)
pause_periods | count from 0 to 1000000 | the first pause; each that follows is twice as long (16)
longest_pause_periods | count from 0 to 1000000 | the longest pause (512)
stall_ms | count from 1 to 10000 | time that one batch of moves may take (20)
move_share | number from 0 to 0.9 | share of a period for moves (0.5)
stall_share | ratio | share of a period that may be spent waiting for memory (0.05)
"#;

/// Keys of `[[groups]]` of terraced.
const MANAGED: &str = r#"
name! | text | letters, digits, '-', '_', '.'
cgroup! | text | path below the control-group root with *, ?, [...], {a,b} within a name and ** over names
exclude | texts | paths that are left out, likewise
policy | policy | its policy (amp)
page_size | auto 2M 4K | auto: ranges of 2 MB, whatever maps them; huge or base pages alone (auto)
fast_ratio | ratio | fast memory over its own pages; this, fast or share
fast | size | fast memory as a size
share | share | fast memory by benefit, within guarantees
period_ms | count from 50 to 3600000 | length of its period
bandwidth | size | bytes moved for it per second
cpu_percent | number from 0.001 to 10000 | processor time for it, in percent of one processor
dry_run | bool | nothing of it is moved (false)
tracked | size | most memory that is tracked
tables | fast follow fast-follow | on the Terrace kernel, where its page tables go
"#;

/// Keys of `share = { ... }`.
const SHARE: &str = r#"
min | size | it gets at least this, as far as it has pages (0)
max | size | and at most this
weight | number from 0.001 to 1000 | what a hit of it counts beside another group's (1.0)
"#;

/// Keys of a fleet file.
const FLEET: &str = r#"
seed | count | seed of the bootstrap (1)
confidence | ratio | confidence of the intervals, 0.5 to 0.999 (0.95)
quantile | ratio | part of the hosts of a class that the answer is enough for, 0.5 to 0.999 (0.95)
slowdown | slowdown | what services can bear where theirs is not given ("5%")
slow_latencies_ns | numbers | other latencies of slow memory to answer for (none)
memory_share | ratio | share of its time that a service waits for memory: an assumption (0.4)
memory_share_error | ratio | by how much that may be off either way (0.2)
policy | policy | the policy that manages fast memory (lfu)
settle_periods | count | periods at the beginning of a history that are played and not counted (16)
least_periods | count | periods that a history must have (32)
"#;

/// Keys of `[[classes]]` of a fleet file.
const CLASS: &str = r#"
name! | text | its name
hosts! | text | pattern of the folders of its hosts, one for each: *, ?, [...], {a,b}; relative to the file, or s3://BUCKET/PATTERN
memory! | size | memory of a host, fast and slow together
reserve | size | fast memory for the kernel and for whatever is in no group (0)
count | count | hosts that there are or will be (as many as have a folder)
price_fast | number | price of a GB (2^30 bytes) of fast memory; both prices or none
price_slow | number | price of a GB of slow memory
fast_latency_ns | number | idle latency of a read from fast memory beyond the caches (of server-ddr5-cxl)
slow_latency_ns | number | the same of slow memory (of server-ddr5-cxl)
"#;

/// Keys of `[[services]]` of a fleet file.
const SERVICE: &str = r#"
name! | text | its name
groups! | texts | patterns of its groups' names: *, ?, [...], {a,b} within a name and ** over names
slowdown | slowdown | what it can bear (that of the fleet)
memory_share | ratio | share of its time that it waits for memory (that of the fleet)
"#;

fn fleet() -> Value {
    let mut schema = table(FLEET);
    let properties = &mut schema["properties"];
    properties["policy"] = one_of(REGISTRY.iter().map(|kind| (kind.name, kind.advice)));
    properties["classes"] = list(table(CLASS));
    properties["services"] = list(table(SERVICE));
    required(&mut schema, "classes");
    headed(schema, "A fleet of Terrace")
}

fn experiment() -> Value {
    let mut schema = table(EXPERIMENT);
    let properties = &mut schema["properties"];
    properties["machine"] = table(MACHINE);
    properties["groups"] = list(table(GROUP));
    properties["policies"] = policies();
    required(&mut schema, "groups");
    own_policies(&mut schema);
    headed(schema, "An experiment of Terrace")
}

fn daemon() -> Value {
    let mut schema = table("");
    let properties = &mut schema["properties"];
    properties["daemon"] = table(DAEMON);
    properties["sharing"] = table(SHARING);
    properties["throttle"] = table(THROTTLE);
    properties["groups"] = list(table(MANAGED));
    properties["policies"] = policies();
    required(&mut schema, "groups");
    own_policies(&mut schema);
    headed(schema, "The configuration of terraced")
}

/// Where a file has no policies of one's own, policies are Terrace's; where it has, which those are is
/// more than a schema can say.
fn own_policies(schema: &mut Value) {
    let of_terrace = one_of(REGISTRY.iter().map(|kind| (kind.name, kind.advice)));
    let names: Vec<&str> = REGISTRY.iter().map(|kind| kind.name).collect();
    schema["if"] = json!({ "properties": { "policies": { "propertyNames": { "enum": names } } } });
    schema["then"] = json!({
        "properties": { "groups": { "items": { "properties": { "policy": of_terrace } } } }
    });
}

fn headed(mut schema: Value, title: &str) -> Value {
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = title.into();
    schema
}

fn required(schema: &mut Value, key: &str) {
    if let Some(required) = schema["required"].as_array_mut() {
        required.push(key.into());
    }
}

fn list(of: Value) -> Value {
    json!({ "type": "array", "minItems": 1, "items": of })
}

/// A table with the keys of these rows and no others.
fn table(rows: &str) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for row in rows.lines() {
        let mut parts = row.splitn(3, " | ");
        let (Some(key), Some(kind), Some(meaning)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let name = key.trim_end_matches('!');
        if name != key {
            required.push(Value::from(name));
        }
        let mut schema = of_kind(kind);
        schema["description"] = meaning.into();
        properties.insert(name.to_owned(), schema);
    }
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    })
}

/// Before a kind: the word is allowed besides.
const OR_AUTO: &str = "auto, or ";

/// A kind, its range, and whether 0 is allowed besides: of `number from 1 to 10, or 0`.
fn ranged(kind: &str) -> Option<(&str, &str, Option<&str>, bool)> {
    let (kind, range) = kind.split_once(" from ")?;
    let (range, or_zero) = match range.strip_suffix(", or 0") {
        Some(range) => (range, true),
        None => (range, false),
    };
    match range.split_once(" to ") {
        Some((least, most)) => Some((kind, least, Some(most), or_zero)),
        None => Some((kind, range, None, or_zero)),
    }
}

/// The schema of a kind of value; what is no kind is a list of words.
fn of_kind(kind: &str) -> Value {
    if let Some(kind) = kind.strip_prefix(OR_AUTO) {
        return json!({ "anyOf": [{ "const": "auto" }, of_kind(kind)] });
    }
    if let Some((kind, least, most, or_zero)) = ranged(kind) {
        let mut schema = of_kind(kind);
        // Of a size, the range is that of the number of bytes.
        let bounded = if schema["anyOf"].is_null() { &mut schema } else { &mut schema["anyOf"][0] };
        bounded["minimum"] = number(least);
        if let Some(most) = most {
            bounded["maximum"] = number(most);
        }
        return if or_zero { json!({ "anyOf": [schema, { "const": 0 }] }) } else { schema };
    }
    const SIZE: &str = r"^\s*[0-9.]+\s*[KMGTkmgt]?([iI]?[bB])?\s*$";
    const AMOUNT: &str = r"^\s*[0-9.]+\s*(%|[KMGTkmgt]?([iI]?[bB])?)\s*$";
    const SLOWDOWN: &str = r"^\s*[0-9.]+\s*[%x]\s*$";
    let count = json!({ "type": "integer", "minimum": 0 });
    let either =
        |pattern: &str| json!({ "anyOf": [count, { "type": "string", "pattern": pattern }] });
    match kind {
        "text" => json!({ "type": "string" }),
        "texts" => json!({ "type": "array", "items": { "type": "string" } }),
        "count" => count,
        "counts" => json!({ "type": "array", "items": count }),
        "number" => json!({ "type": "number" }),
        "numbers" => json!({ "type": "array", "items": { "type": "number" } }),
        "slowdown" => json!({ "type": "string", "pattern": SLOWDOWN }),
        "ratio" => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        "bool" => json!({ "type": "boolean" }),
        "size" => either(SIZE),
        "amount" => either(AMOUNT),
        "hardware" => nested::hardware(),
        "os" => nested::operating_system(),
        "simulation" => nested::simulation(),
        "tables" => nested::tables(),
        "sparse" => nested::sparse(),
        // Which there are depends on the file: see `own_policies`.
        "policy" => json!({ "type": "string" }),
        "workload" => workload(),
        "share" => table(SHARE),
        words => json!({ "enum": words.split(' ').collect::<Vec<_>>() }),
    }
}

/// A number of a range as JSON has it.
fn number(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// One of these words, each with its meaning.
fn one_of<'a>(words: impl Iterator<Item = (&'a str, &'a str)>) -> Value {
    let words = words.map(|(word, meaning)| json!({ "const": word, "description": meaning }));
    json!({ "oneOf": words.collect::<Vec<_>>() })
}

/// The parameters of all policies, by the policy's name.
fn policies() -> Value {
    let one = |kind: &PolicyKind| {
        let mut schema = parameters(kind.parameters);
        schema["description"] = kind.summary.into();
        (kind.name.to_owned(), schema)
    };
    let properties: Map<_, _> = REGISTRY.iter().map(one).collect();
    let mut own = parameters(terrace_external::config::Written::DOCS);
    own["description"] = "a policy of one's own, in a process of its own".into();
    own["required"] = json!(["kind", "file", "class"]);
    json!({ "type": "object", "properties": properties, "additionalProperties": own })
}

/// A workload: its kind, and the parameters of that.
fn workload() -> Value {
    let all = kinds::all();
    let of_kind = |kind: &WorkloadKind| {
        let mut parameters = parameters(kind.parameters());
        parameters["properties"]["kind"] = json!({});
        json!({ "if": { "properties": { "kind": { "const": kind.name } } }, "then": parameters })
    };
    json!({
        "type": "object",
        "properties": { "kind": one_of(all.iter().map(|kind| (kind.name, kind.summary))) },
        "required": ["kind"],
        "allOf": all.iter().map(of_kind).collect::<Vec<_>>(),
    })
}

/// A table of declared parameters; their types are those of their defaults, and what has a range is a
/// number.
fn parameters<'a>(all: impl IntoIterator<Item = &'a ParameterDoc>) -> Value {
    let one = |parameter: &ParameterDoc| {
        let default = serde_json::from_str::<Value>(&parameter.default.replace('_', ""));
        let kind = match default {
            Ok(Value::Bool(_)) => Some("boolean"),
            Ok(Value::Number(_)) => Some("number"),
            Ok(Value::String(_)) => Some("string"),
            Ok(Value::Array(_)) => Some("array"),
            Ok(Value::Object(_)) => Some("object"),
            Ok(Value::Null) | Err(_) => None,
        };
        let description = format!("{} (default: {})", parameter.meaning, parameter.default);
        let mut schema = json!({ "description": description });
        if let Some(kind) = kind {
            schema["type"] = kind.into();
        }
        for (word, bound) in range_of(parameter.meaning).into_iter().flatten() {
            schema["type"] = "number".into();
            schema[word] = bound;
        }
        (parameter.name.to_owned(), schema)
    };
    let properties: Map<_, _> = all.into_iter().map(one).collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// The range that a declared meaning ends with, `(1 to 1000)`, `(0 to below 1)` or `(at least 1)`, in
/// the words of schemas.
fn range_of(meaning: &str) -> Option<Vec<(&'static str, Value)>> {
    let (_, range) = meaning.strip_suffix(')')?.rsplit_once('(')?;
    let bounds = match range.split_once(" to ") {
        None => vec![("minimum", range.strip_prefix("at least ")?)],
        Some((least, most)) => match most.strip_prefix("below ") {
            None => vec![("minimum", least), ("maximum", most)],
            Some(most) => vec![("minimum", least), ("exclusiveMaximum", most)],
        },
    };
    let bounds: Vec<_> = bounds.into_iter().map(|(word, text)| (word, number(text))).collect();
    bounds.iter().all(|(_, bound)| bound.is_number()).then_some(bounds)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The keys that a reader knows, by its own word on one that it does not.
    fn known(message: &str) -> BTreeSet<String> {
        let (_, known) = message.split_once("expected one of ").expect(message);
        let known = known.split('`').skip(1).step_by(2);
        // An old name is read and not offered.
        known.filter(|key| *key != "depth").map(str::to_owned).collect()
    }

    fn declared(rows: &str) -> BTreeSet<String> {
        table(rows)["properties"].as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn the_keys_are_those_that_terraced_reads() {
        let group = "[[groups]]\nname = \"g\"\ncgroup = \"/a\"\n";
        let refused =
            |text: &str| terrace_daemon::Config::parse(text, "t").unwrap_err().to_string();
        for (rows, text) in [
            (DAEMON, format!("[daemon]\nno-key = 1\n{group}")),
            (SHARING, format!("[sharing]\nno-key = 1\n{group}")),
            (THROTTLE, format!("[throttle]\nno-key = 1\n{group}")),
            (MANAGED, format!("{group}no-key = 1\n")),
            (SHARE, format!("{group}share = {{ no-key = 1 }}\n")),
        ] {
            assert_eq!(declared(rows), known(&refused(&text)), "{text}");
        }
    }

    #[test]
    fn the_keys_are_those_that_fleets_have() {
        let refused = |text: &str| {
            let read = terrace_fleet::Fleet::parse(text, "".into());
            read.err().unwrap().to_string()
        };
        let mut whole = declared(FLEET);
        whole.extend(["classes", "services"].map(str::to_owned));
        assert_eq!(whole, known(&refused("no-key = 1\n")));
        assert_eq!(declared(CLASS), known(&refused("[[classes]]\nno-key = 1\n")));
        assert_eq!(declared(SERVICE), known(&refused("[[services]]\nno-key = 1\n")));
    }

    /// Names as types of Python, for editors.
    fn python_names() -> String {
        let mut text = "\"\"\"Names that there are, as types: editors complete them. Made by \
                        'make generated'.\"\"\"\n\nfrom typing import Literal\n"
            .to_owned();
        let mut literal = |name: &str, values: Vec<&str>| {
            let values: String = values.iter().map(|v| format!("    \"{v}\",\n")).collect();
            text += &format!("\n{name} = Literal[\n{values}]\n");
        };
        literal("PolicyName", REGISTRY.iter().map(|kind| kind.name).collect());
        literal("WorkloadKind", kinds::all().iter().map(|kind| kind.name).collect());
        literal("MachineName", terrace_hardware::presets::names().collect());
        text
    }

    /// Pages and lists that are made from the code. `make generated` has them written.
    #[test]
    fn the_pages_of_keys_are_up_to_date() {
        let page = |kind| reference::of(kind) + "\n";
        for (path, made) in [
            ("docs/experiments.md", page(Kind::Experiment)),
            ("docs/configuration.md", page(Kind::Daemon)),
            ("docs/fleet-file.md", page(Kind::Fleet)),
            ("python/terrace/_names.py", python_names()),
        ] {
            let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
            if std::env::var_os("TERRACE_GENERATE").is_some() {
                std::fs::write(&file, &made).unwrap();
            }
            let kept = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(kept == made, "{path} is not what the code has; run 'make generated'");
        }
    }

    #[test]
    fn the_keys_are_those_that_experiments_have() {
        let group = "[[groups]]\nname = \"g\"\n";
        let refused = |text: &str| {
            let read = terrace_experiments::Experiment::parse(text, "".into());
            read.err().unwrap().to_string()
        };
        let mut whole = declared(EXPERIMENT);
        whole.extend(["machine", "groups", "policies"].map(str::to_owned));
        assert_eq!(whole, known(&refused("no-key = 1\n")));
        assert_eq!(declared(MACHINE), known(&refused("[machine]\nno-key = 1\n")));
        assert_eq!(declared(GROUP), known(&refused(&format!("{group}no-key = 1\n"))));
    }
}

//! The reference of a kind of file for people, in Markdown: its keys, their values and meanings, from
//! the same rows as its JSON schema.

use std::fmt::Write as _;

use serde_json::Value;
use terrace_core::parameters::ParameterDoc;
use terrace_core::policies::REGISTRY;
use terrace_simulated::os::OsConfig;
use terrace_workloads::kinds;

use super::{
    CLASS, DAEMON, EXPERIMENT, FLEET, GROUP, Kind, MACHINE, MANAGED, SERVICE, SHARE, SHARING,
    THROTTLE,
};

/// What is before the tables of experiments.
const EXPERIMENT_HEAD: &str = "\
# Experiment files

Every key of the files of `terrace run`, `compare`, `sweep` and `profile`. This page is made by \
`terrace schema experiment --format markdown`; `terrace schema experiment` prints a JSON schema with \
which editors complete keys. A number in parentheses is the default; keys in bold must be given. Sizes \
are a number of bytes or text such as `\"512M\"`.
";

/// What is before the tables of terraced.
const DAEMON_HEAD: &str = "\
# The configuration of terraced

Every key of `terraced.toml`. This page is made by `terrace schema daemon --format markdown`. A number in \
parentheses is the default; keys in bold must be given. Sizes are a number of bytes or text such as \
`\"512M\"`.
";

/// What is before the tables of fleets.
const FLEET_HEAD: &str = "\
# Fleet files

Every key of the file of `terrace fleet`. This page is made by `terrace schema fleet --format markdown`. \
A number in parentheses is the default; keys in bold must be given. Sizes are a number of bytes or text \
such as `\"512M\"`.
";

/// What is before the parameters of policies.
const POLICIES_HEAD: &str = "
## Policies: `[policies.NAME]`

Parameters of a policy, wherever it is used in the file. `docs/python.md` has policies of your own, in \
Python.
";

/// The reference of a kind of file.
pub(super) fn of(kind: Kind) -> Result<String, toml::ser::Error> {
    let mut text = String::new();
    match kind {
        Kind::Experiment => {
            text += EXPERIMENT_HEAD;
            rows(&mut text, "At the top", EXPERIMENT);
            rows(&mut text, "`[machine]`", MACHINE);
            operating_system(&mut text)?;
            rows(&mut text, "`[[groups]]`", GROUP);
            text += "\n## Workloads: `[groups.workload]`\n\n`kind` names one; the other keys are its own.\n";
            for kind in kinds::all() {
                let parameters: Vec<&ParameterDoc> = kind.parameters().into_iter().collect();
                parameters_of(&mut text, kind.name, kind.summary, &parameters);
            }
        }
        Kind::Daemon => {
            text += DAEMON_HEAD;
            rows(&mut text, "`[daemon]`", DAEMON);
            rows(&mut text, "`[sharing]`", SHARING);
            rows(&mut text, "`[throttle]`", THROTTLE);
            rows(&mut text, "`[[groups]]`", MANAGED);
            rows(&mut text, "`share = { ... }` of a group", SHARE);
        }
        Kind::Fleet => {
            text += FLEET_HEAD;
            rows(&mut text, "At the top", FLEET);
            rows(&mut text, "`[[classes]]`", CLASS);
            rows(&mut text, "`[[services]]`", SERVICE);
            return Ok(text.trim_end().to_owned());
        }
    }
    text += POLICIES_HEAD;
    for kind in REGISTRY {
        let parameters: Vec<&ParameterDoc> = kind.parameters.iter().collect();
        parameters_of(&mut text, kind.name, kind.summary, &parameters);
    }
    Ok(text.trim_end().to_owned())
}

/// A cell of a table: `|` would end it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// A section with a table of these rows: name ('!' where it must be given), kind, meaning.
fn rows(text: &mut String, title: &str, rows: &str) {
    let _ = write!(text, "\n## {title}\n\n| key | value | meaning |\n|---|---|---|\n");
    for row in rows.lines() {
        let mut parts = row.splitn(3, " | ");
        let (Some(key), Some(kind), Some(meaning)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let key = match key.strip_suffix('!') {
            Some(name) => format!("**`{name}`**"),
            None => format!("`{key}`"),
        };
        let _ = writeln!(text, "| {key} | {} | {} |", value(kind), cell(meaning));
    }
}

/// A kind of value in words.
fn value(kind: &str) -> String {
    let word = match kind {
        "text" => "text",
        "texts" => "list of texts",
        "count" => "whole number",
        "counts" => "list of whole numbers",
        "number" => "number",
        "numbers" => "list of numbers",
        "slowdown" => "text such as `\"5%\"` or `\"1.05x\"`",
        "ratio" => "number from 0 to 1",
        "bool" => "true or false",
        "size" => "size",
        "amount" => "size, or a part such as `\"90%\"`",
        "table" => "table",
        "policy" => "name of a policy",
        "workload" => "table, see below",
        "share" => "table, see below",
        words => {
            let quoted: Vec<String> = words.split(' ').map(|w| format!("`\"{w}\"`")).collect();
            return quoted.join(", ");
        }
    };
    word.to_owned()
}

fn parameters_of(text: &mut String, name: &str, summary: &str, parameters: &[&ParameterDoc]) {
    let _ = write!(text, "\n### `{name}`\n\n{}.\n", capital(summary.trim_end_matches('.')));
    if parameters.is_empty() {
        return;
    }
    let _ = write!(text, "\n| parameter | default | meaning |\n|---|---|---|\n");
    for p in parameters {
        let default = if p.default.is_empty() { String::new() } else { format!("`{}`", p.default) };
        let _ = writeln!(text, "| `{}` | {} | {} |", p.name, cell(&default), cell(p.meaning));
    }
}

fn capital(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |c| c.to_uppercase().chain(rest).collect())
}

/// Keys of `[machine.os]` with their defaults, as they are in a file.
fn operating_system(text: &mut String) -> Result<(), toml::ser::Error> {
    *text += "\n### `[machine.os]`\n\nWith `fidelity = \"trace\"`, the operating system, with its \
        defaults:\n\n```toml\n";
    let defaults = toml::Value::try_from(OsConfig::default())?;
    let json = serde_json::to_value(defaults).unwrap_or(Value::Null);
    let mut lines = Vec::new();
    leaves("os", &json, &mut lines);
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
    *text += "```\n";
    Ok(())
}

/// `path = value` for each value below.
fn leaves(path: &str, value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| leaves(&format!("{path}.{key}"), value, lines));
        }
        value => lines.push(format!("{path} = {value}")),
    }
}

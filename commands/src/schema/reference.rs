//! The reference of a kind of file for people, in Markdown: its keys, their values and meanings, from
//! the same rows as its JSON schema.

use std::fmt::Write as _;

use serde_json::Value;
use terrace_core::parameters::ParameterDoc;
use terrace_core::policies::REGISTRY;
use terrace_simulated::hardware::units::Bytes;
use terrace_workloads::kinds;

use super::nested::{self, Row};
use super::{
    CLASS, DAEMON, EXPERIMENT, FLEET, GROUP, Kind, MACHINE, MANAGED, OR_AUTO, SERVICE, SHARE,
    SHARING, THROTTLE, ranged,
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
pub(super) fn of(kind: Kind) -> String {
    let mut text = String::new();
    match kind {
        Kind::Experiment => {
            text += EXPERIMENT_HEAD;
            rows(&mut text, "At the top", EXPERIMENT);
            rows(&mut text, "`[machine]`", MACHINE);
            let parts = [
                ("hardware", nested::hardware()),
                ("os", nested::operating_system()),
                ("simulation", nested::simulation()),
            ];
            for (name, schema) in parts {
                nested_rows(&mut text, &format!("`[machine.{name}]`"), &schema);
            }
            rows(&mut text, "`[[groups]]`", GROUP);
            nested_rows(&mut text, "`tables = { ... }` of a group", &nested::tables());
            nested_rows(&mut text, "`sparse = { ... }` of a group", &nested::sparse());
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
            return text.trim_end().to_owned();
        }
    }
    text += POLICIES_HEAD;
    for kind in REGISTRY {
        let parameters: Vec<&ParameterDoc> = kind.parameters.iter().collect();
        parameters_of(&mut text, kind.name, kind.summary, &parameters);
    }
    text.trim_end().to_owned()
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

/// A section with a table of the keys of this schema.
fn nested_rows(text: &mut String, title: &str, schema: &Value) {
    let _ = write!(text, "\n### {title}\n\n| key | value | meaning |\n|---|---|---|\n");
    let mut rows = Vec::new();
    nested::rows("", schema, &mut rows);
    for Row { key, value, meaning } in rows {
        let _ = writeln!(text, "| `{key}` | {} | {} |", cell(&value), cell(&meaning));
    }
}

/// A kind of value in words.
fn value(kind: &str) -> String {
    if let Some(kind) = kind.strip_prefix(OR_AUTO) {
        return format!("`\"auto\"` or {}", value(kind));
    }
    if let Some((kind, least, most, or_zero)) = ranged(kind) {
        // That a number has 32 bits interests nobody.
        let most = most.filter(|most| *most != "4294967295");
        let range = match (least, most) {
            ("0", None) => String::new(),
            (least, None) => {
                let least =
                    least.parse().map_or_else(|_| least.to_owned(), |l| Bytes(l).to_string());
                format!(" from {least}")
            }
            (least, Some(most)) => format!(" from {least} to {most}"),
        };
        return format!("{}{range}{}", value(kind), if or_zero { ", or 0" } else { "" });
    }
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
        "policy" => "name of a policy",
        "workload" => "table, see below",
        "hardware" | "os" | "simulation" | "tables" | "sparse" | "share" => "table, see below",
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

//! Configurations layered over a preset: `preset` names the one to start from, every other key
//! replaces one of its values, key by key within tables; `"none"` in place of a table removes an
//! optional part. Unknown keys are rejected.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::ConfigError;

/// Applies `given` to the preset it names, or to `default`; without either it must be complete.
pub fn over_preset<P: Serialize, T: DeserializeOwned>(
    part: &str,
    mut given: toml::Table,
    default: Option<&str>,
    by_name: impl Fn(&str) -> Result<P, ConfigError>,
) -> Result<T, ConfigError> {
    let name = match given.remove("preset") {
        None => default.map(str::to_string),
        Some(toml::Value::String(name)) => Some(name),
        Some(other) => {
            return Err(ConfigError::new(part, format!("preset is {other}; expected a name")));
        }
    };
    let bad = |message: &str| ConfigError::new(part, one_line(message));
    let base = match name {
        None => toml::Table::new(),
        Some(name) => toml::Table::try_from(by_name(&name)?).map_err(|e| bad(&e.to_string()))?,
    };
    toml::Value::Table(merge(base, given)).try_into().map_err(|e| bad(e.message()))
}

/// The JSON schema of a `T` over one of these presets: nothing of it must be given, as far as it is
/// replaced key by key.
pub fn schema_over_presets<T: JsonSchema>(
    generator: &mut SchemaGenerator,
    presets: impl Iterator<Item = &'static str>,
) -> Schema {
    let mut schema = T::json_schema(generator);
    if let Some(schema) = schema.as_object_mut() {
        loosen_object(schema);
        let presets: Vec<_> = presets.collect();
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            let meaning = "What to start from; every other key replaces one of its values.";
            properties.insert("preset".into(), json!({ "description": meaning, "enum": presets }));
        }
    }
    schema
}

/// Lets the keys of a table, and of tables in it, be left out. Lists are given as a whole.
fn loosen_object(schema: &mut serde_json::Map<String, Value>) {
    schema.remove("required");
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for property in properties.into_iter().flat_map(serde_json::Map::values_mut) {
        loosen(property);
    }
}

fn loosen(value: &mut Value) {
    let Some(schema) = value.as_object_mut() else { return };
    // Of alternatives the name must be given, and what is below it need not.
    if let Some(all) = schema.get_mut("oneOf").and_then(Value::as_array_mut) {
        for alternative in all.iter_mut().filter_map(Value::as_object_mut) {
            let required = alternative.get("required").cloned();
            loosen_object(alternative);
            alternative.extend(required.map(|required| ("required".into(), required)));
        }
    }
    loosen_object(schema);
    // An optional table is removed by a word.
    if schema.get("type") == Some(&json!(["object", "null"])) {
        schema.insert("type".into(), "object".into());
        let description = schema.remove("description");
        *value =
            json!({ "anyOf": [value.take(), { "const": "none", "description": "removes it" }] });
        value["description"] = description.unwrap_or_default();
    }
}

/// Reads TOML text; errors of form name their line.
pub fn from_toml<T: DeserializeOwned>(part: &str, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|e| {
        // A part's own message begins with the part's name already.
        let message = one_line(e.message());
        let prefix = format!("{part}: ");
        let message = message.strip_prefix(&prefix).unwrap_or(&message);
        match e.span().filter(|span| span.start > 0) {
            None => ConfigError::new(part, message),
            Some(span) => {
                let line = text[..span.start.min(text.len())].lines().count().max(1);
                ConfigError::new(part, format!("line {line}: {message}"))
            }
        }
    })
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Replaces values of `base` by those of `over`; tables are merged.
fn merge(mut base: toml::Table, over: toml::Table) -> toml::Table {
    for (key, value) in over {
        let merged = match (base.remove(&key), value) {
            (Some(toml::Value::Table(_)), toml::Value::String(none)) if none == "none" => continue,
            (Some(toml::Value::Table(b)), toml::Value::Table(o)) => toml::Value::Table(merge(b, o)),
            (_, value) => value,
        };
        base.insert(key, merged);
    }
    base
}

//! Schemas of what is declared elsewhere, as structs that the reader of a file fills: the hardware,
//! the operating system, the simulation of time, page tables. `schemars` makes them of the structs
//! with their documentation; here they get units and defaults, and lose what a file in TOML cannot
//! have.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use terrace_simulated::hardware::presets::{self, MachineConfig};
use terrace_simulated::hardware::units::Bytes;
use terrace_simulated::os::{OsConfig, TablePolicy};
use terrace_simulated::reference::Options;

/// The hardware that an experiment has if it names none.
const HARDWARE: &str = "server-ddr5-cxl";

/// `[machine.hardware]`, with the values of the usual preset as defaults.
pub(super) fn hardware() -> Value {
    let mut schema = of::<MachineConfig>();
    if let Ok(Ok(preset)) = presets::by_name(HARDWARE).map(serde_json::to_value) {
        with_defaults(&mut schema, &preset);
    }
    schema["properties"]["preset"]["default"] = HARDWARE.into();
    schema
}

/// `[machine.os]`.
pub(super) fn operating_system() -> Value {
    of::<OsConfig>()
}

/// `[machine.simulation]`.
pub(super) fn simulation() -> Value {
    of::<Options>()
}

/// `tables = { ... }` of a group of an experiment.
pub(super) fn tables() -> Value {
    of::<TablePolicy>()
}

/// `sparse = { ... }` of a group of an experiment.
pub(super) fn sparse() -> Value {
    of::<terrace_experiments::sparse::Sparse>()
}

/// The schema of a struct, whole.
fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    schema
}

/// Schemas below a schema: of keys, of entries of lists, and alternatives.
fn below(schema: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    schema.iter_mut().flat_map(|(word, value)| match (word.as_str(), value) {
        ("properties", Value::Object(all)) => all.values_mut().collect::<Vec<_>>(),
        ("anyOf" | "oneOf" | "allOf", Value::Array(all)) => all.iter_mut().collect(),
        ("items", one) => vec![one],
        _ => Vec::new(),
    })
}

/// Takes away what TOML does not have (null) and names of structs; adds bounds that follow from a
/// number's width, and units.
fn tidy(value: &mut Value) {
    let Some(schema) = value.as_object_mut() else { return };
    schema.remove("title");
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [one] = &types[..] {
            let one = one.clone();
            schema.insert("type".into(), one);
        }
    }
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    let widest = match schema.remove("format").as_ref().and_then(Value::as_str) {
        Some("uint8") => Some(u64::from(u8::MAX)),
        Some("uint16") => Some(u64::from(u16::MAX)),
        Some("uint32") => Some(u64::from(u32::MAX)),
        _ => None,
    };
    if let Some(widest) = widest {
        schema.entry("maximum").or_insert(widest.into());
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        let words: Vec<&str> = text.split_whitespace().collect();
        *text = words.join(" ").replace("[`", "`").replace("`]", "`");
    }
    for word in ["anyOf", "oneOf"] {
        let Some(Value::Array(all)) = schema.get_mut(word) else { continue };
        all.retain(|one| one.get("type") != Some(&json!("null")));
        if let [Value::Object(one)] = &all[..] {
            let one = one.clone();
            schema.remove(word);
            // The description of the key goes before that of its values in general.
            for (word, value) in one {
                schema.entry(word).or_insert(value);
            }
        }
    }
    // The description of an alternative is that of the one key that it has.
    for one in schema.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten() {
        let meaning = one["description"].clone();
        let key = one.get_mut("properties").and_then(Value::as_object_mut);
        if let Some(key) =
            key.and_then(|keys| keys.values_mut().next()).filter(|_| meaning.is_string())
        {
            key["description"] = meaning;
        }
    }
    below(schema).for_each(tidy);
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (name, property) in properties {
        let Some((word, unit)) = unit(name) else { continue };
        if let Some(Value::String(text)) = property.get_mut("description")
            && !text.to_lowercase().contains(word)
        {
            let end = if text.ends_with(['.', ')']) { "" } else { "." };
            *text = format!("{text}{end} In {unit}.");
        }
    }
}

/// The unit of a key, which its name ends with: a word of it, and the whole.
fn unit(name: &str) -> Option<(&'static str, &'static str)> {
    let units = [
        ("_gb_per_s", "gb/s", "GB/s (10^9 bytes)"),
        ("_ns", "nanoseconds", "nanoseconds"),
        ("_ps", "picoseconds", "picoseconds"),
        ("_mhz", "mhz", "MHz"),
        ("_cycles", "cycles", "clock cycles"),
        ("_bytes", "bytes", "bytes"),
        ("_bits", "bits", "bits"),
    ];
    units.iter().find(|(end, ..)| name.ends_with(end)).map(|(_, word, unit)| (*word, *unit))
}

/// Sets the defaults of keys to these values. Lists are given as a whole.
fn with_defaults(schema: &mut Value, values: &Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    for word in ["anyOf", "oneOf"] {
        if let Some(Value::Array(all)) = schema.get_mut(word) {
            all.iter_mut().for_each(|one| with_defaults(one, values));
        }
    }
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (key, property) in properties {
        match values.get(key) {
            None | Some(Value::Null | Value::Array(_)) => {}
            Some(Value::Object(_)) => with_defaults(property, &values[key]),
            Some(value) => property["default"] = value.clone(),
        }
    }
}

/// A key for the reference: its path, its value in words, its meaning.
pub(super) struct Row {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) meaning: String,
}

/// All keys of a table, those of tables in it after theirs.
pub(super) fn rows(prefix: &str, schema: &Value, rows: &mut Vec<Row>) {
    for word in ["anyOf", "oneOf"] {
        for one in schema[word].as_array().into_iter().flatten() {
            self::rows(prefix, one, rows);
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let key = format!("{prefix}{name}");
        let mut meaning = property["description"].as_str().unwrap_or_default().to_owned();
        match &property["default"] {
            Value::Null | Value::Object(_) => {}
            Value::String(word) => meaning += &format!(" ({word})"),
            value => meaning += &format!(" ({value})"),
        }
        rows.push(Row { key: key.clone(), value: in_words(property), meaning });
        self::rows(&format!("{key}."), property, rows);
        self::rows(&format!("{key}[]."), &property["items"], rows);
    }
}

/// A kind of value in words.
fn in_words(schema: &Value) -> String {
    let quoted = |word: &Value| format!("`{word}`");
    if let Some(words) = schema["enum"].as_array() {
        return words.iter().map(quoted).collect::<Vec<_>>().join(", ");
    }
    if !schema["const"].is_null() {
        return quoted(&schema["const"]);
    }
    for word in ["anyOf", "oneOf"] {
        if let Some(all) = schema[word].as_array() {
            let is_size = all.iter().any(|one| !one["pattern"].is_null());
            let number = all.iter().find(|one| one["type"] == "integer");
            if let (true, Some(number)) = (is_size, number) {
                return format!("size{}", range(number, true));
            }
            let mut words: Vec<_> = all.iter().map(in_words).collect();
            words.dedup();
            return words.join(", ");
        }
    }
    match schema["type"].as_str() {
        Some("integer") => format!("whole number{}", range(schema, false)),
        Some("number") => format!("number{}", range(schema, false)),
        Some("boolean") => "true or false".to_owned(),
        Some("string") => "text".to_owned(),
        Some("array") => format!("list of: {}", in_words(&schema["items"])),
        _ => "table".to_owned(),
    }
}

/// The range of a number, or of a number of bytes, in words; bounds of its width alone are none.
fn range(schema: &Value, bytes: bool) -> String {
    let is_width = |most: &Value| [u64::from(u32::MAX), i64::MAX as u64].iter().any(|w| most == w);
    let number = |value: &Value| match (value.as_u64(), value.as_f64()) {
        (Some(size), _) if bytes => Bytes(size).to_string(),
        (_, Some(number)) => number.to_string(),
        _ => value.to_string(),
    };
    let least = match (&schema["minimum"], &schema["exclusiveMinimum"]) {
        (Value::Null, Value::Null) => None,
        (Value::Null, above) => Some(format!("above {}", number(above))),
        (least, _) => Some(format!("from {}", number(least))),
    };
    let most = match (&schema["maximum"], &schema["exclusiveMaximum"]) {
        (Value::Null, Value::Null) => None,
        (Value::Null, below) => Some(format!("below {}", number(below))),
        (most, _) if is_width(most) => None,
        (most, _) => Some(format!("to {}", number(most))),
    };
    match (least, most) {
        (Some(least), None) if least == "from 0" => String::new(),
        (least, most) => {
            let parts = [least, most].into_iter().flatten();
            parts.fold(String::new(), |text, part| format!("{text} {part}"))
        }
    }
}

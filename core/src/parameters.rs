//! Parameters of experiment files: read into structs, and what does not fit said in the words of
//! the file instead of those of the program that reads it.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads a struct of parameters from an object. The error names the parameter, what was got and
/// what was expected.
pub fn read<T: DeserializeOwned>(object: &Value) -> Result<T, String> {
    serde_path_to_error::deserialize(object).map_err(|error| {
        let key = error.path().to_string();
        let message = in_plain_words(&error.into_inner().to_string());
        // Of an unknown key, the message itself tells the name.
        let is_named = key == "." || message.contains(&format!("`{key}`"));
        if is_named { message } else { format!("{key}: {message}") }
    })
}

/// A message of the deserializer without the names that types have in Rust.
pub fn in_plain_words(message: &str) -> String {
    let message = message
        .replace("invalid type: ", "got ")
        .replace("invalid value: ", "got ")
        .replace(" as i128", "");
    let Some((got, expected)) = message.split_once(", expected ") else {
        return message;
    };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a table",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    format!("{got}, expected {expected}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, Default, serde::Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Parameters {
        count: u32,
        ratio: f64,
        inner: Vec<Inner>,
    }

    #[derive(Debug, Default, serde::Deserialize)]
    struct Inner {
        flag: bool,
    }

    #[test]
    fn errors_name_the_parameter_and_speak_of_numbers_lists_and_tables() {
        for (object, expected) in [
            (json!({"count": "3"}), "count: got string \"3\", expected a whole number, 0 or more"),
            (json!({"count": -3}), "count: got integer `-3`, expected a whole number, 0 or more"),
            (json!({"ratio": true}), "ratio: got boolean `true`, expected a number"),
            (json!({"inner": 1}), "inner: got integer `1`, expected a list"),
            (json!({"inner": [{"flag": 1}]}), "inner[0].flag: got integer `1`, expected true or"),
            (json!(3), "got integer `3`, expected a table"),
            (json!({"c": 1}), "unknown field `c`, expected one of `count`, `ratio`, `inner`"),
        ] {
            let error = read::<Parameters>(&object).unwrap_err();
            assert!(error.starts_with(expected), "{object}: {error}");
        }
        let read: Parameters =
            read(&json!({"count": 1, "ratio": 0.5, "inner": [{"flag": true}]})).unwrap();
        assert!(read.count == 1 && read.ratio == 0.5 && read.inner[0].flag);
    }
}

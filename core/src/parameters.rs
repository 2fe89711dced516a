//! Parameters of experiment files: declared once ([`declare_parameters!`](crate::declare_parameters)),
//! read into structs, an error uses the words of the file instead of those of the
//! program that reads it.

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::names;

/// A parameter, for lists and documents.
#[derive(Debug)]
pub struct ParameterDoc {
    /// Its key.
    pub name: &'static str,
    /// Its default, as written in an experiment file.
    pub default: &'static str,
    /// What it means, with its unit and range.
    pub meaning: &'static str,
}

/// A struct of parameters that [`declare_parameters!`](crate::declare_parameters) has made.
pub trait Parameters: DeserializeOwned + Default {
    /// Refuses the first value outside its range: its name, what was got, what was expected.
    fn check(&self) -> Result<(), String>;
}

/// Declares parameters once: name, type, default, range and meaning. Makes the struct (read with the
/// defaults for what is absent, unknown keys refused), its `Default`, its [`Parameters`], and a
/// constant `DOCS` of [`ParameterDoc`]s.
///
/// ```
/// use terrace_core::declare_parameters;
/// use terrace_core::parameters::{Parameters, read};
///
/// declare_parameters! {
///     /// How often to sample.
///     struct Sampling {
///         samples: u32 = 20, from 1 to 1000 => "samples in a period";
///         order: String = "drawn".to_owned(), written "\"drawn\"",
///             one of ["drawn", "ascending"] => "order of the pages";
///     }
/// }
///
/// let sampling: Sampling = read(&serde_json::json!({ "samples": 0 })).unwrap();
/// assert_eq!((sampling.samples, sampling.order.as_str()), (0, "drawn"));
/// assert_eq!(sampling.check().unwrap_err(), "samples is 0; expected 1 to 1000");
/// assert_eq!(Sampling::DOCS[0].meaning, "samples in a period (1 to 1000)");
/// ```
#[macro_export]
macro_rules! declare_parameters {
    (
        $(#[$outer:meta])*
        $vis:vis struct $Name:ident {
            $(
                $(#[$meta:meta])*
                $field_vis:vis $field:ident: $type:ty = $default:expr
                $(, written $written:literal)?
                $(, from $least:literal to $most:literal)?
                $(, one of [$($choice:literal),+ $(,)?])?
                => $meaning:literal;
            )*
        }
    ) => {
        $(#[$outer])*
        #[derive(Debug, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        $vis struct $Name {
            $( $(#[$meta])* $field_vis $field: $type, )*
        }

        impl ::std::default::Default for $Name {
            fn default() -> Self {
                $Name { $( $field: $default, )* }
            }
        }

        impl $Name {
            /// Its parameters with their defaults and meanings.
            $vis const DOCS: &'static [$crate::parameters::ParameterDoc] = &[
                $( $crate::parameters::ParameterDoc {
                    name: stringify!($field),
                    default: $crate::declare_parameters!(@written $default $(, $written)?),
                    meaning: concat!($meaning $(, " (", $least, " to ", $most, ")")?),
                }, )*
            ];
        }

        impl $crate::parameters::Parameters for $Name {
            fn check(&self) -> ::std::result::Result<(), ::std::string::String> {
                $( $(
                    $crate::parameters::within(
                        stringify!($field),
                        &self.$field,
                        self.$field as f64,
                        [$least as f64, $most as f64],
                    )?;
                )? )*
                $( $(
                    $crate::parameters::one_of(
                        stringify!($field),
                        &self.$field,
                        &[$($choice),+],
                    )?;
                )? )*
                Ok(())
            }
        }
    };
    (@written $default:expr) => { stringify!($default) };
    (@written $default:expr, $written:literal) => { $written };
}

declare_parameters! {
    /// Of what has none.
    pub struct NoParameters {}
}

/// Refuses a number outside its range, both ends of which belong to it.
pub fn within(name: &str, got: impl Display, value: f64, range: [f64; 2]) -> Result<(), String> {
    let [least, most] = range;
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(format!("{name} is {got}; expected {least} to {most}")),
    }
}

/// Refuses a word that is none of these.
pub fn one_of(name: &str, got: &str, choices: &[&str]) -> Result<(), String> {
    if choices.contains(&got) {
        return Ok(());
    }
    let quoted: Vec<_> = choices.iter().map(|choice| format!("\"{choice}\"")).collect();
    let expected = match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    };
    Err(format!("{name} is '{got}'; expected {expected}"))
}

/// Reads a struct of parameters from an object. The error names the parameter, what was got and
/// what was expected.
pub fn read<T: DeserializeOwned>(object: &Value) -> Result<T, String> {
    serde_path_to_error::deserialize(object).map_err(|error| {
        let key = error.path().to_string();
        let message = in_plain_words(&error.into_inner().to_string());
        // Of an unknown key, the message itself has the name.
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
    if let Some(hint) = hint_of(got, expected) {
        return message + &hint;
    }
    let expected = match expected {
        "u8" | "u16" | "u32" if got.contains("integer `") && !got.contains("`-") => {
            "a smaller whole number"
        }
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

/// The key of these parameters that a message is about; none where it names no key. What was
/// expected may name others that are there.
pub fn key_in<'a>(parameters: Option<&'a Value>, message: &str) -> &'a str {
    let got = message.split("expected").next().unwrap_or_default();
    let mut keys = parameters.and_then(Value::as_object).into_iter().flat_map(|p| p.keys());
    keys.find(|key| got.contains(key.as_str())).map_or("", String::as_str)
}

/// What an unknown key or word was probably meant to be, by the deserializer's own message.
fn hint_of(got: &str, expected: &str) -> Option<String> {
    let (_, got) = got.split_once("unknown field `").or(got.split_once("unknown variant `"))?;
    let known = expected.split('`').skip(1).step_by(2);
    Some(names::hint(got.strip_suffix('`')?, known))
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

    #[test]
    fn the_key_that_a_message_is_about_is_found() {
        let parameters = serde_json::json!({"count": 1, "ratio": 2});
        let key = |message| key_in(Some(&parameters), message);
        assert_eq!(key("ratio = 2: expected 0 to 1, or count = 0"), "ratio");
        assert_eq!(key("nothing of it; expected count"), "");
        assert_eq!(key_in(None, "count"), "");
    }

    #[test]
    fn a_mistyped_key_is_answered_with_the_one_that_was_meant() {
        for (got, expected) in [
            ("unknown field `cuont`, expected one of `count`, `ratio`", "; did you mean 'count'?"),
            ("unknown field `coun`, expected `count`", "; did you mean 'count'?"),
            ("unknown field `x`, expected one of `count`, `ratio`", "`, `ratio`"),
            ("unknown variant `tarce`, expected `interval` or `trace`", "; did you mean 'trace'?"),
        ] {
            assert!(in_plain_words(got).ends_with(expected), "{}", in_plain_words(got));
        }
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
            (
                json!({"count": 1u64 << 32}),
                "count: got integer `4294967296`, expected a smaller whole number",
            ),
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

//! Quantities that must not be mixed: time, sizes and bandwidth. Mixing them does not compile.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::ConfigError;

/// A point in simulated time, or a span of it, in picoseconds. 64 bits last for 213 days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Picoseconds(pub u64);

impl Picoseconds {
    /// The start of every simulation, and the span of nothing.
    pub const ZERO: Picoseconds = Picoseconds(0);

    /// From whole nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Picoseconds(ns * 1000)
    }

    /// From a parameter in nanoseconds, to the nearest picosecond. Rejects values that are
    /// negative, not a number or longer than a second: no part of a memory system takes that long.
    pub fn from_parameter_ns(part: &str, name: &str, ns: f64) -> Result<Self, ConfigError> {
        if (0.0..=1e9).contains(&ns) {
            Ok(Picoseconds((ns * 1000.0).round() as u64))
        } else {
            Err(ConfigError::new(part, format!("{name} is {ns}; expected 0 to 1e9 nanoseconds")))
        }
    }

    /// In nanoseconds, for people.
    pub fn as_ns(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// In seconds, for people.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// The span from `earlier` to here, 0 when `earlier` is later.
    pub const fn since(self, earlier: Picoseconds) -> Picoseconds {
        Picoseconds(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Picoseconds {
    type Output = Picoseconds;
    #[inline]
    fn add(self, other: Picoseconds) -> Picoseconds {
        Picoseconds(self.0 + other.0)
    }
}

impl AddAssign for Picoseconds {
    #[inline]
    fn add_assign(&mut self, other: Picoseconds) {
        self.0 += other.0;
    }
}

impl Sub for Picoseconds {
    type Output = Picoseconds;
    #[inline]
    fn sub(self, other: Picoseconds) -> Picoseconds {
        Picoseconds(self.0 - other.0)
    }
}

impl Mul<u64> for Picoseconds {
    type Output = Picoseconds;
    #[inline]
    fn mul(self, times: u64) -> Picoseconds {
        Picoseconds(self.0 * times)
    }
}

impl Sum for Picoseconds {
    fn sum<I: Iterator<Item = Picoseconds>>(iter: I) -> Self {
        iter.fold(Picoseconds::ZERO, Add::add)
    }
}

impl fmt::Display for Picoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ns", self.as_ns())
    }
}

/// A size in bytes. In configuration it is a number, or text such as `"32K"`, `"8M"`, `"1.5G"`
/// (powers of 1024).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `n` KB of 1024 bytes.
    pub const fn kib(n: u64) -> Self {
        Bytes(n << 10)
    }

    /// `n` MB of 1024 KB.
    pub const fn mib(n: u64) -> Self {
        Bytes(n << 20)
    }

    /// `n` GB of 1024 MB.
    pub const fn gib(n: u64) -> Self {
        Bytes(n << 30)
    }

    /// The JSON schema of a size in this range. A schema cannot tell how large a text is.
    pub fn schema_within(least: Bytes, most: Bytes) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "integer", "minimum": least.0, "maximum": most.0 },
            { "type": "string", "pattern": r"^\s*[0-9.]+\s*[KMGTkmgt]?([iI]?[bB])?\s*$" },
        ] })
    }
}

const SUFFIXES: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (suffix, shift) in SUFFIXES {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{suffix}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl FromStr for Bytes {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let bad = || {
            ConfigError::new(
                "size",
                format!("{text:?} is not a size; write 32K, 8M, 1.5G or 65536"),
            )
        };
        let trimmed = text.trim();
        let upper = trimmed.to_ascii_uppercase();
        let body = upper.strip_suffix('B').unwrap_or(&upper);
        let body = body.strip_suffix('I').unwrap_or(body);
        let (number, shift) = SUFFIXES
            .iter()
            .find_map(|&(suffix, shift)| body.strip_suffix(suffix).map(|n| (n, shift)))
            .unwrap_or((body, 0));
        if let Ok(whole) = number.parse::<u64>() {
            let bytes = u128::from(whole) << shift;
            return u64::try_from(bytes).map(Bytes).map_err(|_| bad());
        }
        let fraction: f64 = number.parse().map_err(|_| bad())?;
        let bytes = fraction * (1u64 << shift) as f64;
        if (0.0..9e18).contains(&bytes) && bytes.fract() == 0.0 {
            Ok(Bytes(bytes as u64))
        } else {
            Err(bad())
        }
    }
}

impl JsonSchema for Bytes {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        Bytes::schema_within(Bytes(0), Bytes(i64::MAX as u64))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(bytes) => Ok(Bytes(bytes)),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Bytes per second, in whole bytes. A gigabyte per second is 10^9, as on data sheets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bandwidth(u64);

impl Bandwidth {
    /// From a parameter in GB/s. Rejects values that cannot move data: 0, negative, not a number.
    pub fn from_parameter_gb_per_s(
        part: &str,
        name: &str,
        gb_per_s: f64,
    ) -> Result<Self, ConfigError> {
        if (1e-3..=1e6).contains(&gb_per_s) {
            Ok(Bandwidth((gb_per_s * 1e9).round() as u64))
        } else {
            Err(ConfigError::new(part, format!("{name} is {gb_per_s}; expected 0.001 to 1e6 GB/s")))
        }
    }

    /// Transfer time of `bytes` at this bandwidth, to the nearest picosecond.
    pub fn transfer_time(self, bytes: u64) -> Picoseconds {
        let numerator = u128::from(bytes) * 1_000_000_000_000 + u128::from(self.0 / 2);
        Picoseconds((numerator / u128::from(self.0)) as u64)
    }
}

/// The bandwidth at which `bytes` moved in `time`, in GB/s; 0 for no time.
pub fn gb_per_s(bytes: u64, time: Picoseconds) -> f64 {
    if time.0 == 0 { 0.0 } else { bytes as f64 * 1000.0 / time.0 as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_as_people_write_them() {
        for (text, bytes) in [
            ("32K", 32 << 10),
            ("8M", 8 << 20),
            ("8MB", 8 << 20),
            ("8MiB", 8 << 20),
            ("1.375m", 1_441_792),
            ("1G", 1 << 30),
            ("2T", 2 << 40),
            ("65536", 65536),
            (" 0 ", 0),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap(), Bytes(bytes), "{text}");
        }
        assert_eq!(Bytes::kib(32).to_string(), "32K");
        assert_eq!(Bytes(1_441_792).to_string(), "1408K");
        assert_eq!(Bytes(100).to_string(), "100");
    }

    #[test]
    fn nonsense_sizes_are_refused_with_the_form_expected() {
        for text in
            ["", "K", "32X", "-1", "1e3Q", "99999999999999999999", "nan", "0.3K", "16777216T"]
        {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains("write 32K"), "{text}: {error}");
        }
    }

    #[test]
    fn a_line_takes_its_size_over_the_bandwidth() {
        let b = Bandwidth::from_parameter_gb_per_s("link", "read_gb_per_s", 19.2).unwrap();
        assert_eq!(b.transfer_time(64), Picoseconds(3333));
        assert!(Bandwidth::from_parameter_gb_per_s("link", "x", 0.0).is_err());
        assert!(Bandwidth::from_parameter_gb_per_s("link", "x", f64::NAN).is_err());
        assert!(Picoseconds::from_parameter_ns("tier", "latency_ns", -1.0).is_err());
        assert_eq!(gb_per_s(64, Picoseconds(3200)), 20.0);
    }
}

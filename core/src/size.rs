//! Sizes in an experiment file: `"512M"`, `"1.5G"`, or a number of bytes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A size in bytes. K, M, G and T are powers of 1024, as everywhere in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    /// Reads a size. The error has what was got and what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "size '{text}': expected a number with an optional K, M, G or T, as in \"512M\""
            )
        };
        let text_upper = text.trim().to_ascii_uppercase();
        let digits = text_upper.trim_end_matches("IB").trim_end_matches('B');
        let (number, shift) = match digits.chars().last() {
            Some('K') => (&digits[..digits.len() - 1], 10),
            Some('M') => (&digits[..digits.len() - 1], 20),
            Some('G') => (&digits[..digits.len() - 1], 30),
            Some('T') => (&digits[..digits.len() - 1], 40),
            _ => (digits, 0),
        };
        let plain = |c: char| c.is_ascii_digit() || c == '.';
        let number = number.trim();
        let value: f64 = match number.chars().all(plain) {
            true => number.parse().map_err(|_| bad())?,
            false => return Err(bad()),
        };
        let bytes = value * (1u64 << shift) as f64;
        if bytes < (1u64 << 53) as f64 { Ok(Size(bytes as u64)) } else { Err(bad()) }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer) {
            Ok(Written::Bytes(bytes)) => Ok(Size(bytes)),
            Ok(Written::Text(text)) => Size::parse(&text).map_err(serde::de::Error::custom),
            Err(_) => Err(serde::de::Error::custom("expected a size, as in \"512M\" or 4096")),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4K", 4096),
            ("512M", 512 << 20),
            ("512 MiB", 512 << 20),
            ("1.5g", 3 << 29),
            ("2TB", 2 << 40),
        ] {
            assert_eq!(Size::parse(text), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "M", "-1", "1X", "1e99", "inf", "nan", "9999999T", "1..2"] {
            let error = Size::parse(text).unwrap_err();
            assert!(error.contains("expected a number"), "{error}");
        }
    }
}

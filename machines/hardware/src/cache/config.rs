//! The geometry of one cache. A geometry that no hardware could have is rejected with the reason.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check_range};
use crate::units::Bytes;

/// Bytes that a line may have.
const LINES: std::ops::RangeInclusive<u64> = 8..=4096;
/// The largest cache.
const MOST: Bytes = Bytes::gib(64);

/// Which line of a full set is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The least recently used one, as in cachegrind.
    #[default]
    Lru,
    /// A random one, by a generator with a fixed seed.
    Random,
    /// The one that a binary tree of last-used bits points to.
    TreePlru,
    /// Static re-reference interval prediction with 2 bits (Jaleel et al., ISCA 2010).
    Srrip,
    /// One way after the other, hits notwithstanding (the rack paper's table I).
    RoundRobin,
}

/// A set-associative cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// Total size, over all slices.
    #[schemars(schema_with = "size")]
    pub size: Bytes,
    /// Lines of a set.
    #[schemars(range(min = 1, max = 1024))]
    pub ways: u32,
    /// Bytes of a line.
    #[serde(default = "default_line")]
    #[schemars(range(min = *LINES.start(), max = *LINES.end()))]
    pub line_bytes: u32,
    /// Equal parts that lines are spread over by a hash, as in a server's last level. Each has a
    /// power-of-two number of sets; any number of slices is possible.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 4096))]
    pub slices: u32,
    /// Which line is evicted.
    #[serde(default)]
    pub replacement: Replacement,
    /// Core cycles from the load to the data on a hit in this cache.
    #[serde(default = "default_latency")]
    pub latency_cycles: u32,
}

/// A size that [`CacheConfig::sets`] takes.
pub(crate) fn size(_: &mut SchemaGenerator) -> Schema {
    Bytes::schema_within(Bytes(*LINES.start()), MOST)
}

fn default_line() -> u32 {
    64
}

fn one() -> u32 {
    1
}

fn default_latency() -> u32 {
    4
}

impl CacheConfig {
    /// An LRU cache of one slice.
    pub fn new(size: Bytes, ways: u32, line_bytes: u32) -> Self {
        CacheConfig {
            size,
            ways,
            line_bytes,
            slices: 1,
            replacement: Replacement::Lru,
            latency_cycles: default_latency(),
        }
    }

    /// Parses the command-line form: `32K,8`, or with the line size `32K,8,64` as cachegrind writes
    /// it; a line size in the text must equal `line_bytes` where both are given.
    pub fn parse(text: &str, line_bytes: Option<u32>) -> Result<Self, ConfigError> {
        let bad = |what: &str| {
            ConfigError::new("cache", format!("{text:?}: {what}; write SIZE,WAYS such as 32K,8"))
        };
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let (size, ways, line) = match parts[..] {
            [size, ways] => (size, ways, None),
            [size, ways, line] => (size, ways, Some(line)),
            _ => return Err(bad("not two or three numbers")),
        };
        let size = size.parse().map_err(|_| bad("the size is not a size"))?;
        let ways = ways.parse().map_err(|_| bad("the number of ways is not a number"))?;
        let line = match line {
            None => None,
            Some(l) => Some(l.parse::<u32>().map_err(|_| bad("the line size is not a number"))?),
        };
        let line = match (line, line_bytes) {
            (Some(a), Some(b)) if a != b => {
                return Err(bad(&format!("lines of {a} bytes, but lines of {b} are asked for")));
            }
            (a, b) => a.or(b).unwrap_or_else(default_line),
        };
        let config = CacheConfig::new(size, ways, line);
        config.sets()?;
        Ok(config)
    }

    /// Sets the latency.
    pub fn with_latency(mut self, cycles: u32) -> Self {
        self.latency_cycles = cycles;
        self
    }

    /// Sets the replacement policy.
    pub fn with_replacement(mut self, replacement: Replacement) -> Self {
        self.replacement = replacement;
        self
    }

    /// Sets the number of slices.
    pub fn with_slices(mut self, slices: u32) -> Self {
        self.slices = slices;
        self
    }

    /// Sets in each slice; an error if the geometry is impossible.
    pub fn sets(&self) -> Result<u64, ConfigError> {
        let CacheConfig { size, ways, line_bytes, slices, .. } = *self;
        let line = u64::from(line_bytes);
        if !line.is_power_of_two() || !LINES.contains(&line) {
            return Err(ConfigError::new(
                "cache",
                format!("lines of {line} bytes; expected a power of two from 8 to 4096"),
            ));
        }
        check_range("cache", "ways", u64::from(ways), 1..=1024)?;
        check_range("cache", "slices", u64::from(slices), 1..=4096)?;
        check_range("cache", "size", size.0, line..=MOST.0)?;
        let row = line * u64::from(ways) * u64::from(slices);
        let sets = size.0 / row;
        if size.0 % row != 0 || !sets.is_power_of_two() {
            let down = if sets == 0 { 0 } else { 1u64 << sets.ilog2() };
            let up = (sets + 1).next_power_of_two();
            let hint = match down {
                0 => format!("use {}", Bytes(up * row)),
                _ => format!("use {} or {}, or other ways", Bytes(down * row), Bytes(up * row)),
            };
            return Err(ConfigError::new(
                "cache",
                format!(
                    "{size} in {slices} slice(s) of {ways} ways of {line}-byte lines makes {:.2} sets; \
                     the number of sets must be a power of two: {hint}",
                    size.0 as f64 / row as f64
                ),
            ));
        }
        if self.replacement == Replacement::TreePlru && !(ways.is_power_of_two() && ways <= 64) {
            return Err(ConfigError::new(
                "cache",
                format!("tree-plru with {ways} ways; it needs a power of two up to 64, or use lru"),
            ));
        }
        Ok(sets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_lines_form_is_read() {
        let c = CacheConfig::parse("32K,8", Some(64)).unwrap();
        assert_eq!((c.size, c.ways, c.line_bytes), (Bytes::kib(32), 8, 64));
        assert_eq!(c.sets().unwrap(), 64);
        assert_eq!(CacheConfig::parse("8388608,16,64", None).unwrap().sets().unwrap(), 8192);
    }

    #[test]
    fn impossible_geometries_say_what_would_be_possible() {
        let error = |text: &str| CacheConfig::parse(text, None).unwrap_err().to_string();
        assert_eq!(
            error("48K,8"),
            "cache: 48K in 1 slice(s) of 8 ways of 64-byte lines makes 96.00 sets; the number of \
             sets must be a power of two: use 32K or 64K, or other ways"
        );
        assert!(error("32K,0").contains("ways is 0"));
        assert!(error("32K,8,48").contains("power of two from 8 to 4096"));
        assert!(error("32K").contains("SIZE,WAYS"));
        assert!(error("0,8").contains("size is 0"));
        assert!(error("256,8").contains("use 512"));
        assert!(error("big,8").contains("not a size"));
        assert!(CacheConfig::parse("32K,8,32", Some(64)).is_err());
    }

    #[test]
    fn a_last_level_may_have_any_number_of_slices() {
        // Cascade Lake: 26 slices of 1.375 MB, 11 ways, 2048 sets.
        let c = CacheConfig::new(Bytes(26 * 1_441_792), 11, 64);
        assert!(c.sets().is_err());
        assert_eq!(c.with_slices(26).sets().unwrap(), 2048);
    }

    #[test]
    fn tree_plru_needs_a_full_tree() {
        let c = CacheConfig::new(Bytes::kib(48), 12, 64).with_replacement(Replacement::TreePlru);
        assert!(c.sets().unwrap_err().to_string().contains("tree-plru with 12 ways"));
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error =
            toml::from_str::<CacheConfig>("size = \"32K\"\nways = 8\nassoc = 4").unwrap_err();
        assert!(error.to_string().contains("assoc"));
        let c: CacheConfig = toml::from_str("size = \"32K\"\nways = 8").unwrap();
        assert_eq!(c, CacheConfig::new(Bytes::kib(32), 8, 64));
    }
}

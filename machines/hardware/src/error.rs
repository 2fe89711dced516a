//! The one error of this crate: a configuration that cannot work. Every other result is a number.

/// Why a configuration cannot work, in one line: the part, what was got, what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part}: {problem}")]
pub struct ConfigError {
    part: String,
    problem: String,
}

impl ConfigError {
    /// `part` names the component in the reader's terms; `problem` gives got and expected.
    pub fn new(part: impl Into<String>, problem: impl Into<String>) -> Self {
        ConfigError { part: part.into(), problem: problem.into() }
    }

    /// The same problem with the name of the enclosing part: `l1` becomes `caches.l1`.
    pub fn within(mut self, outer: &str) -> Self {
        self.part = format!("{outer}.{}", self.part);
        self
    }
}

/// Rejects a count outside its range.
pub fn check_range(
    part: &str,
    name: &str,
    got: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<(), ConfigError> {
    if range.contains(&got) {
        Ok(())
    } else {
        Err(ConfigError::new(
            part,
            format!("{name} is {got}; expected {} to {}", range.start(), range.end()),
        ))
    }
}

//! Input that cannot be used: reported in one line, exit code 2, nothing changed.

/// An error of input: got, expected, and the remedy, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InputError(pub String);

impl InputError {
    /// An error of this text, on one line whatever the text was.
    pub fn new(text: impl std::fmt::Display) -> Self {
        let text = text.to_string();
        InputError(
            text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" "),
        )
    }
}

/// An [`InputError`](crate::InputError) of a format string.
#[macro_export]
macro_rules! refuse {
    ($($arg:tt)*) => { $crate::InputError::new(format_args!($($arg)*)) };
}

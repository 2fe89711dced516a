//! Input that cannot be used: said in one line, exit code 2, nothing changed.

/// What was got, what was expected, and what to do, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InputError(pub String);

impl InputError {
    /// A refusal of this text, on one line whatever the text was.
    pub fn new(text: impl std::fmt::Display) -> Self {
        let text = text.to_string();
        InputError(
            text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" "),
        )
    }
}

/// Makes a refusal of a format string.
macro_rules! refuse {
    ($($arg:tt)*) => { $crate::input_error::InputError::new(format_args!($($arg)*)) };
}
pub(crate) use refuse;

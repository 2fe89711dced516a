//! What variables and cargo say to the parts: lists of names, and where the workspace is.

use std::path::PathBuf;

use anyhow::{Context, bail};

/// The names in a variable, separated by commas, all of which must be known; `None` where it is not set.
pub fn list(
    variable: &str,
    known: impl IntoIterator<Item = String>,
) -> anyhow::Result<Option<Vec<String>>> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    let value = value.into_string().ok().with_context(|| format!("{variable} is not text"))?;
    let known: Vec<String> = known.into_iter().collect();
    let names: Vec<String> = value.split(',').map(|name| name.trim().to_owned()).collect();
    match names.iter().find(|name| !known.contains(name)) {
        Some(got) => bail!("{variable} has '{got}'; expected some of {}", known.join(",")),
        None => Ok(Some(names)),
    }
}

/// The folder of the workspace: cargo provides this crate's; without cargo, the current one.
pub fn workspace() -> PathBuf {
    match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(bench) => PathBuf::from(bench).join(".."),
        None => PathBuf::from("."),
    }
}

//! A full fast node in live runs: what is measured begins with one on which the kernel has its headroom,
//! whatever moves pages, and with all memory fast, too.

use terrace_linux::HostError;

use crate::file::Experiment;

/// What notes of a run begin with whose fast memory was not filled as under other systems.
pub const NOT_FILLED: &str = "fast memory was not filled as under other systems";

/// Gives the kernel its headroom where fast memory was filled before the programs began, or fills what they
/// leave. Where that cannot be, a run is as good as its memory happens to be: what to note of it.
#[must_use]
pub(crate) fn fill_up(
    experiment: &Experiment,
    give_headroom: impl FnOnce() -> Result<(), HostError>,
    take_rest: impl FnOnce() -> Result<(), HostError>,
) -> Option<String> {
    let done = match experiment.fills_before() {
        true => give_headroom(),
        false if experiment.machine.full => take_rest(),
        false => Ok(()),
    };
    let error = done.err()?;
    tracing::warn!(%error, "groups and kernel may have other fast memory than under other systems");
    Some(format!("{NOT_FILLED}: {error}"))
}

/// These notes and this one.
pub(crate) fn with_note(notes: Option<String>, note: Option<&String>) -> Option<String> {
    match (notes, note) {
        (Some(notes), Some(note)) => Some(format!("{notes}; {note}")),
        (notes, note) => notes.or_else(|| note.cloned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_not_filled_is_noted() {
        let text = "name = 'e'\nperiod_ms = 100\nperiods = 2\nmachine = { full = true }\n\
                    [[groups]]\nname = 'a'\nfast = '64M'\nworkload = { kind = 'zipf' }\n";
        let full = Experiment::parse(text, ".".into()).unwrap();
        let no = || Err(HostError::Nodes("node 0 gave 1 of 2 huge pages".to_owned()));
        let note = fill_up(&full, no, || Ok(())).expect("a note");
        assert!(note.contains("node 0 gave 1 of 2"), "{note}");
        assert_eq!(with_note(Some("a".into()), Some(&note)), Some(format!("a; {note}")));
        assert_eq!(with_note(None, Some(&note)), Some(note));
        assert_eq!(fill_up(&full, || Ok(()), no), None);
    }
}

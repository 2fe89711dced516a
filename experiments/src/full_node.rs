//! A full fast node in live runs: what is measured begins with one on which the kernel has its headroom,
//! whatever moves pages, and with all memory fast, too.

use terrace_linux::{Filled, HostError};

use crate::file::Experiment;

/// Gives the kernel its headroom from what was filled before the programs began, or fills what they
/// leave. Where that cannot be, a run is as good as its memory happens to be.
pub(crate) fn fill_up(
    experiment: &Experiment,
    filled: &Option<Filled>,
    give_headroom: impl FnOnce(&Filled) -> Result<(), HostError>,
    take_rest: impl FnOnce() -> Result<(), HostError>,
) {
    let done = match filled {
        Some(filled) => give_headroom(filled),
        None if experiment.machine.full => take_rest(),
        None => Ok(()),
    };
    if let Err(error) = done {
        tracing::warn!(%error, "the kernel may lack fast memory for itself in what is measured");
    }
}

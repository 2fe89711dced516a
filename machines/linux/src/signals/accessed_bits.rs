//! Accessed bits of pages as a signal: what reads them here.
//!
//! They are not added to periods but make them, by a [`crate::sampler::Sampler`] of the backend.

use crate::backend;

use super::{Probe, SignalKind};

/// Accessed bits.
pub(super) const KIND: SignalKind = SignalKind {
    name: "accessed_bits",
    probe: |roots, _| {
        vec![Probe { name: "accessed bits".to_owned(), found: backend::accessed_bits(roots) }]
    },
    open: |_| Ok(None),
};

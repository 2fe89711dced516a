//! Shared parts of the programs.

pub(super) mod adjacency;
pub(super) mod fourier;
pub(super) mod grid;
pub(super) mod kronecker;
pub(super) mod random;
pub(super) mod sparse;
pub(super) mod zipf;

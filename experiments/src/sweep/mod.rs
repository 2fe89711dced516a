//! Sweeps: one experiment over a grid of its own keys, on all processors or cell by cell on many
//! machines, resumable.
//!
//! A *cell* is one combination of the axes' values: a whole experiment, with a hash of everything
//! that its results depend on. Its tables are made in a folder of their own that is renamed to the
//! hash when they are whole, so a cell exists once or not at all, whichever process was killed, and
//! however many worked at it. The merged tables are read from these folders in the order of the
//! grid: the same bytes, wherever and in whatever order cells ran.
//!
//! - [`grid`]: grid files and their cells;
//! - [`mod@work`]: runs cells;
//! - [`mod@merge`]: merges finished cells.

pub mod grid;
pub mod merge;
pub mod work;

pub use grid::{Cell, Grid, hash};
pub use merge::{Merged, merge};
pub use work::{Failed, Outcome, Work, is_done, note, prepare, run_into, take_in, work};

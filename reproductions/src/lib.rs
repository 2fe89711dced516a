//! Reproductions: every figure and table of the papers as one experiment that anyone can run, with
//! the paper's claims checked against its results.
//!
//! **Knows** experiments, the operating-system model, result tables and pictures. **Must not know**
//! arguments, screens or policies' insides.
//!
//! - [`figure`]: a figure's file; [`library`]: the figures that come with Terrace;
//! - [`kinds`]: how a figure's data is made; a kind is a file there and a line of its registry;
//! - [`data`]: the results: a value by row, column and measure;
//! - [`claims`]: checkable statements about it; [`seeds`]: how far they depend on chance;
//! - [`reproduce`](mod@reproduce): runs a figure, draws it and writes its results;
//! - [`run_cache`]: the folder that a command's figures share, and their runs;
//! - [`results_report`]: the results report of all figures;
//! - [`run_time`]: how long each figure takes.
#![forbid(unsafe_code)]

pub mod claims;
pub mod data;
pub mod figure;
pub mod kinds;
pub mod library;
mod merge;
pub mod reproduce;
pub mod results_report;
pub mod run_cache;
pub mod run_time;
pub mod seeds;

pub use figure::Figure;
pub use reproduce::{Outcome, Size, from_results, reproduce};
pub use run_cache::RunCache;

//! Programs that map memory of their own and touch exactly the pages they say they touch.
//!
//! - [`arena`]: the mapping (the only unsafe file here);
//! - [`checked`]: contents that prove themselves, so that a page lost or torn by a migration shows;
//! - [`schedule`]: which pages are touched when;
//! - [`program`]: the loop that touches them, obeys control lines and reports.

pub mod arena;
pub mod checked;
pub mod program;
pub mod schedule;

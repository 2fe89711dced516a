//! Programs that map memory of their own and touch exactly the pages that they announce.
//!
//! - [`arena`]: the mapping; [`held`]: memory that cannot be moved or is put to other uses, `guest`
//!   by a virtual machine (these three files are the unsafe ones here);
//! - [`checked`]: self-checking contents, so that a page lost or torn by a migration is found;
//! - [`schedule`]: which pages are touched when;
//! - [`program`]: the loop that touches the pages, obeys control lines and reports.

pub mod arena;
pub mod checked;
mod guest;
pub mod held;
pub mod program;
pub mod schedule;

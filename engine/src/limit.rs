//! How much fast memory a group may use.

use terrace_core::page::{Layout, PageSize};

/// A group's limit in the fast tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FastLimit {
    /// A part of the group's own pages, 0 to 1: the papers' fast-memory ratio.
    Ratio(f64),
    /// A fixed size in bytes.
    Bytes(u64),
}

impl FastLimit {
    /// The limit of a group whose footprint is known before it has touched all of it: the part of
    /// the whole, from the start.
    pub fn of_whole(self, page_size: PageSize, footprint_bytes: u64) -> FastLimit {
        let pages = footprint_bytes.div_ceil(page_size.bytes());
        let pages = self.pages(&Layout::contiguous(page_size, pages));
        FastLimit::Bytes(pages * page_size.bytes())
    }

    /// The limit in whole pages of this layout, rounded down.
    pub fn pages(&self, layout: &Layout) -> u64 {
        match *self {
            FastLimit::Ratio(ratio) => (layout.pages() as f64 * ratio).floor() as u64,
            FastLimit::Bytes(bytes) => bytes / layout.page_size().bytes(),
        }
    }
}

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
            FastLimit::Ratio(ratio) => {
                let pages = layout.pages() as f64 * ratio;
                // 29 % of 100 pages are 28.999… in binary and 29 pages for a user.
                let nearest = pages.round();
                let is_whole = (pages - nearest).abs() <= nearest * f64::EPSILON * 4.0;
                if is_whole { nearest as u64 } else { pages.floor() as u64 }
            }
            FastLimit::Bytes(bytes) => bytes / layout.page_size().bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_is_whole_pages_is_that_many_whatever_its_binary_digits() {
        for percent in 0..=100u32 {
            let limit = FastLimit::Ratio(f64::from(percent) / 100.0);
            for pages in [100, 1_000, 123_400, 100 << 20] {
                let layout = Layout::contiguous(PageSize::Base, pages);
                assert_eq!(limit.pages(&layout), pages / 100 * u64::from(percent));
            }
        }
        let third = FastLimit::Ratio(1.0 / 3.0);
        assert_eq!(third.pages(&Layout::contiguous(PageSize::Base, 100)), 33);
        assert_eq!(FastLimit::Ratio(0.999).pages(&Layout::contiguous(PageSize::Base, 10)), 9);
    }
}

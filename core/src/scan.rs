//! What a tracker saw in one period, and how much fast memory the group may use.

use std::sync::Arc;

use crate::bits::PageBits;
use crate::page::Layout;

/// The accessed pages of one group in one period, with the place of each.
///
/// `fast` is the placement *during* the period, before any move that the scan leads to.
#[derive(Debug, Clone)]
pub struct Scan {
    /// Number of the period, from 0; a tracker that loses periods leaves gaps.
    pub period: u64,
    /// Periods lost since the scan before this one. Their accesses are unknown.
    pub lost_periods: u32,
    /// Which pages the group has. The same `Arc` as in the scan before when nothing changed.
    pub layout: Arc<Layout>,
    /// One bit per page: its accessed bit was set during the period.
    pub accessed: PageBits,
    /// One bit per page: it lay in the fast tier.
    pub fast: PageBits,
    /// Number of each page's physical frame, in frames of the page's size, where the machine
    /// tells. Frames of the two tiers do not overlap.
    pub frames: Option<Arc<[u64]>>,
}

impl Scan {
    /// A scan; the bit vectors must have a bit for every page.
    ///
    /// # Panics
    /// When they do not.
    pub fn new(period: u64, layout: Arc<Layout>, accessed: PageBits, fast: PageBits) -> Self {
        assert_eq!(accessed.len(), layout.pages(), "accessed bits for every page");
        assert_eq!(fast.len(), layout.pages(), "fast bits for every page");
        Scan { period, lost_periods: 0, layout, accessed, fast, frames: None }
    }

    /// The same scan with the frame of every page.
    ///
    /// # Panics
    /// When there are more or fewer frames than pages.
    pub fn with_frames(self, frames: Arc<[u64]>) -> Self {
        assert_eq!(frames.len(), self.pages(), "a frame for every page");
        Scan { frames: Some(frames), ..self }
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.layout.pages()
    }
}

/// What a plan may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Pages of the group that may lie in the fast tier.
    pub fast_pages: u64,
    /// Pages that one plan may move, counting both pages of an exchange. Demotions that bring
    /// the group back within `fast_pages` come first.
    pub moved_pages: u64,
}

impl Budget {
    /// A budget of this much fast memory and any number of moves.
    pub fn fast(fast_pages: u64) -> Self {
        Budget { fast_pages, moved_pages: u64::MAX }
    }
}

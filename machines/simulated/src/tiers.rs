//! The two tiers: the capacity of each, and the memory in use.

use terrace_core::page::PageSize;

/// Memory of one tier, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierUse {
    /// Capacity of the tier, in bytes.
    pub capacity_bytes: u64,
    /// Memory occupied by pages of groups, in bytes.
    pub used_bytes: u64,
}

impl TierUse {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        TierUse { capacity_bytes, used_bytes: 0 }
    }

    /// Pages of this size that there is room for.
    pub fn free_pages(&self, page_size: PageSize) -> u64 {
        (self.capacity_bytes - self.used_bytes) / page_size.bytes()
    }

    /// Takes room for these pages, which the caller has found to be free.
    pub(crate) fn take(&mut self, pages: u64, page_size: PageSize) {
        debug_assert!(pages <= self.free_pages(page_size));
        self.used_bytes += pages * page_size.bytes();
    }

    pub(crate) fn give_back(&mut self, pages: u64, page_size: PageSize) {
        debug_assert!(pages * page_size.bytes() <= self.used_bytes);
        self.used_bytes -= pages * page_size.bytes();
    }
}

/// Both tiers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiers {
    pub(crate) fast: TierUse,
    pub(crate) slow: TierUse,
}

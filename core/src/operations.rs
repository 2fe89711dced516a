//! Operations of migration: how many steps the moves of a plan take. Each ends with one TLB
//! shootdown, which does not depend on how much was moved (migration-granularity paper, section 3;
//! `docs/coverage.md`, G1).
//!
//! A plan may set for each address space how large an operation is: the *migration granularity*.
//! Virtual memory is then cut into regions of that size, aligned to it, and one operation moves the
//! pages of one region that go the same way, wherever their frames are and however many of them
//! there are. Where a plan sets nothing, an operation moves one page.
//!
//! Moves are counted in the order in which they are done: an operation continues as long as the
//! next pages moved that way are in the same region. An exchange is two operations, one on each
//! side, because the mappings of both change.

use serde::{Deserialize, Serialize};

use crate::page::{PageSize, SpaceId, VirtualRange};
use crate::plan::{Direction, Plan};

/// How large an operation in one address space is at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OperationSize {
    /// The address space.
    pub space: SpaceId,
    /// Size of the regions that are promoted, in bytes, not 0; rounded up to whole pages.
    pub promotion_bytes: u64,
    /// Size of the regions that are demoted, in bytes: a policy that judges the two tiers apart may
    /// choose another than for promotion.
    pub demotion_bytes: u64,
}

impl OperationSize {
    /// The same size both ways.
    pub fn both_ways(space: SpaceId, size_bytes: u64) -> Self {
        OperationSize { space, promotion_bytes: size_bytes, demotion_bytes: size_bytes }
    }

    /// The size one way.
    pub fn bytes(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Promotion => self.promotion_bytes,
            Direction::Demotion => self.demotion_bytes,
        }
    }
}

/// Size of the regions that operations move, for pages of this size.
pub fn region_bytes(operation_bytes: Option<u64>, page_size: PageSize) -> u64 {
    let page_bytes = page_size.bytes();
    let wanted = operation_bytes.unwrap_or(page_bytes).max(page_bytes);
    wanted.checked_next_multiple_of(page_bytes).unwrap_or(page_bytes)
}

/// Counts operations while pages are moved.
#[derive(Debug, Clone)]
pub struct OperationCounter<'a> {
    plan: &'a Plan,
    page_size: PageSize,
    /// The region of the current operation, up and down.
    open: [Option<(SpaceId, u64)>; 2],
    operations: u64,
}

impl<'a> OperationCounter<'a> {
    /// Counts moves of this plan over pages of this size.
    pub fn new(plan: &'a Plan, page_size: PageSize) -> Self {
        OperationCounter { plan, page_size, open: [None; 2], operations: 0 }
    }

    /// Counts a move of these pages this way.
    pub fn moved(&mut self, direction: Direction, range: &VirtualRange) {
        if range.size_bytes == 0 {
            return;
        }
        let region =
            region_bytes(self.plan.operation_bytes(range.space, direction), self.page_size);
        let (first, last) = (range.start / region, (range.end() - 1) / region);
        let open = &mut self.open[usize::from(direction == Direction::Demotion)];
        let goes_on = *open == Some((range.space, first));
        self.operations += last - first + u64::from(!goes_on);
        *open = Some((range.space, last));
    }

    /// Number of operations.
    pub fn operations(&self) -> u64 {
        self.operations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Exchange;

    const K: u64 = 1 << 10;

    fn range(space: u32, first_page: u64, pages: u64) -> VirtualRange {
        VirtualRange { space: SpaceId(space), start: first_page * 4 * K, size_bytes: pages * 4 * K }
    }

    fn plan(sizes: &[(u32, u64)]) -> Plan {
        let size = |&(space, bytes): &(u32, u64)| OperationSize::both_ways(SpaceId(space), bytes);
        Plan { operation_sizes: sizes.iter().map(size).collect(), ..Plan::default() }
    }

    #[test]
    fn a_region_is_one_operation_whatever_of_it_moves() {
        let base = Plan { promotions: vec![range(1, 0, 512)], ..plan(&[]) };
        assert_eq!(base.operations(PageSize::Base), 512, "a page each by default");
        for (size, expected) in [(4 * K, 512), (64 * K, 32), (2048 * K, 1), (12 * K, 171)] {
            let plan = Plan { operation_sizes: plan(&[(1, size)]).operation_sizes, ..base.clone() };
            assert_eq!(plan.operations(PageSize::Base), expected, "{size} bytes");
        }
        // Two pieces of one region, then one that crosses into the next.
        let pieces = vec![range(1, 0, 2), range(1, 9, 1), range(1, 14, 4)];
        let plan = Plan { promotions: pieces, ..plan(&[(1, 64 * K)]) };
        assert_eq!(plan.operations(PageSize::Base), 2);
    }

    #[test]
    fn each_space_has_its_own_size_and_each_direction_its_own_operations() {
        let exchange = |first| Exchange { up: range(1, first, 8), down: range(2, 4 * first, 8) };
        let plan = Plan {
            exchanges: vec![exchange(0), exchange(8)],
            promotions: vec![range(1, 16, 1)],
            demotions: vec![range(1, 32, 16)],
            ..plan(&[(1, 64 * K), (2, 8 * K)])
        };
        // Demotions of space 1: 1; of space 2: 4 + 4; promotions of space 1: 2.
        assert_eq!(plan.operations(PageSize::Base), 1 + 8 + 2);
        assert_eq!(plan.operation_bytes(SpaceId(2), Direction::Promotion), Some(8 * K));
        assert_eq!(plan.operation_bytes(SpaceId(3), Direction::Promotion), None);
        let mut plan = plan;
        plan.operation_sizes[1].demotion_bytes = 64 * K;
        assert_eq!(plan.operations(PageSize::Base), 1 + 2 + 2, "each half in one piece");
    }

    #[test]
    fn an_operation_has_whole_pages() {
        let huge = |size| region_bytes(Some(size), PageSize::Huge);
        assert_eq!([huge(4 * K), huge(2048 * K), huge(3072 * K)], [2 << 20, 2 << 20, 4 << 20]);
        assert_eq!(region_bytes(None, PageSize::Base), 4 * K);
    }
}

//! The moves that a policy requests, the figures it decided by, and the outcome of the moves.

use serde::{Deserialize, Serialize};

use crate::bits::PageBits;
use crate::operations::{OperationCounter, OperationSize};
use crate::page::{Layout, PageSize, SpaceId, VirtualRange};

/// Two ranges of the same size that trade places: `up` is in slow memory and goes to fast,
/// `down` the other way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Exchange {
    /// The range that is promoted.
    pub up: VirtualRange,
    /// The range that is demoted.
    pub down: VirtualRange,
}

/// Moves that a policy requests. No page appears twice. A machine that cannot exchange demotes
/// the one side first and promotes the other after it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Ranges to move from slow to fast memory, where there is room.
    pub promotions: Vec<VirtualRange>,
    /// Ranges to move from fast to slow memory.
    pub demotions: Vec<VirtualRange>,
    /// Pairs of ranges to swap.
    pub exchanges: Vec<Exchange>,
    /// Size limit of one operation, for the address spaces where the policy sets one, sorted by
    /// space. In the others the mover chooses.
    #[serde(default)]
    pub operation_sizes: Vec<OperationSize>,
    /// Promotions of this plan, each with a range in fast memory that may give up its place where
    /// the promotion finds no room. Those in fast memory are no part of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<Exchange>,
}

impl Plan {
    /// Whether nothing is to be moved.
    pub fn is_empty(&self) -> bool {
        self.promotions.is_empty() && self.demotions.is_empty() && self.exchanges.is_empty()
    }

    /// Pages that go up, pages that go down: both count each exchange once.
    pub fn pages(&self, page_size: PageSize) -> (u64, u64) {
        let sum =
            |ranges: &[VirtualRange]| -> u64 { ranges.iter().map(|r| r.pages(page_size)).sum() };
        let exchanged: u64 = self.exchanges.iter().map(|e| e.up.pages(page_size)).sum();
        (sum(&self.promotions) + exchanged, sum(&self.demotions) + exchanged)
    }

    /// Bytes of virtual memory that one operation in this address space moves that way at most;
    /// `None` where the mover chooses.
    pub fn operation_bytes(&self, space: SpaceId, direction: Direction) -> Option<u64> {
        let at = self.operation_sizes.binary_search_by_key(&space, |o| o.space).ok()?;
        Some(self.operation_sizes[at].bytes(direction))
    }

    /// Operations, and so shootdowns, that the plan takes when every move succeeds.
    pub fn operations(&self, page_size: PageSize) -> u64 {
        let mut counter = OperationCounter::new(self, page_size);
        self.demotions.iter().for_each(|range| counter.moved(Direction::Demotion, range));
        for pair in &self.exchanges {
            counter.moved(Direction::Demotion, &pair.down);
            counter.moved(Direction::Promotion, &pair.up);
        }
        self.promotions.iter().for_each(|range| counter.moved(Direction::Promotion, range));
        counter.operations()
    }

    /// Applies the plan to a placement, one bit per page of `layout`, as if every move
    /// succeeded. Its cost is [`Plan::operations`].
    ///
    /// # Panics
    /// When the plan has pages that the layout has not.
    pub fn apply(&self, layout: &Layout, fast: &mut PageBits) {
        let mut place = |range: &VirtualRange, value| {
            let first = layout.index(range.space, range.start).expect("a page of the layout");
            let pages = range.pages(layout.page_size()) as usize;
            fast.set_range(first..first + pages, value);
        };
        self.demotions.iter().for_each(|range| place(range, false));
        self.promotions.iter().for_each(|range| place(range, true));
        for pair in &self.exchanges {
            place(&pair.down, false);
            place(&pair.up, true);
        }
    }
}

/// What a policy computed from a scan (adaptive-migration-policy paper, section 4.1). Ratios
/// are 0 when the group has no pages.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Features {
    /// Accessed pages in fast memory over accessed pages.
    pub hit_ratio: f64,
    /// Accessed pages in fast memory over all pages: the paper's fast-memory hit ratio.
    pub hit_ratio_of_all: f64,
    /// Pages whose place did not change since the scan before, over all pages.
    pub stability: f64,
    /// Accessed pages over all pages.
    pub accessed_ratio: f64,
    /// Moving averages of `hit_ratio_of_all` under LRU and LFU, where a policy keeps them.
    pub lru_hit_average: Option<f64>,
    /// See `lru_hit_average`.
    pub lfu_hit_average: Option<f64>,
}

/// The answer of a policy to one scan.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The requested moves.
    pub plan: Plan,
    /// Name of the policy that made the plan: an adaptive policy names its choice.
    pub applied: &'static str,
    /// The figures of the scan that the decision was made on.
    pub features: Features,
}

/// Why a page was not moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureReason {
    /// Pinned, locked, under write-back or isolated by another user (EBUSY, EAGAIN).
    Busy,
    /// No page is mapped there any more (ENOENT, EFAULT).
    Absent,
    /// The target tier had no free memory (ENOMEM).
    NoRoom,
    /// The target is outside the nodes that the process may use (ENODEV, EINVAL for its cpuset).
    NotAllowed,
    /// Shared with a process outside the group, or no permission (EACCES, EPERM).
    Denied,
    /// The process has gone (ESRCH).
    ProcessGone,
    /// Reported as moved, but read back in its old place.
    StayedPut,
    /// Not attempted: the time for this period's moves was spent, or the run is to stop.
    OutOfTime,
    /// The machine cannot move such a page at all.
    Unsupported,
}

impl FailureReason {
    /// Every reason, in the order of their columns in result tables.
    pub const ALL: [FailureReason; 9] = [
        FailureReason::Busy,
        FailureReason::Absent,
        FailureReason::NoRoom,
        FailureReason::NotAllowed,
        FailureReason::Denied,
        FailureReason::ProcessGone,
        FailureReason::StayedPut,
        FailureReason::OutOfTime,
        FailureReason::Unsupported,
    ];

    /// The reason's name in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            FailureReason::Busy => "busy",
            FailureReason::Absent => "absent",
            FailureReason::NoRoom => "no_room",
            FailureReason::NotAllowed => "not_allowed",
            FailureReason::Denied => "denied",
            FailureReason::ProcessGone => "process_gone",
            FailureReason::StayedPut => "stayed_put",
            FailureReason::OutOfTime => "out_of_time",
            FailureReason::Unsupported => "unsupported",
        }
    }

    /// Whether the same move may well succeed a little later.
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            FailureReason::Busy
                | FailureReason::NoRoom
                | FailureReason::StayedPut
                | FailureReason::OutOfTime
        )
    }
}

/// The direction of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From slow to fast memory.
    Promotion,
    /// From fast to slow memory.
    Demotion,
}

/// A range that was not moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    /// The pages, as a range of virtual memory.
    pub range: VirtualRange,
    /// The direction of the move.
    pub direction: Direction,
    /// The reason, as the kernel or the machine reported it.
    pub reason: FailureReason,
}

/// The outcome of a plan. Every page is counted: the pages of the plan going up are the pages
/// promoted plus the failures that way; those going down are the pages demoted, less the victims,
/// plus those kept and the failures that way.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Pages promoted, by an exchange or alone.
    pub promoted_pages: u64,
    /// Pages demoted, by an exchange or alone.
    pub demoted_pages: u64,
    /// Of these, pairs that were exchanged in one operation.
    pub exchanged_pairs: u64,
    /// Operations that moved at least one page, each with one shootdown: by the simulated machine
    /// as [`crate::operations`] counts them, by a live one calls of the kernel.
    #[serde(default)]
    pub operations: u64,
    /// Of the demoted pages, victims: pages that the plan did not ask to demote and whose place a
    /// promoted page has.
    #[serde(default)]
    pub victim_pages: u64,
    /// Pages that the plan gave another page's place to and that keep their own, because the other
    /// page is there already or cannot come.
    #[serde(default)]
    pub kept_pages: u64,
    /// The pages that were not moved.
    pub failures: Vec<Failure>,
}

//! Moves pages: with `move_pages(2)`, or the calls that the Terrace kernel has instead.
//!
//! What `move_pages` is like (mm/migrate.c, Linux 6.12) and what follows from it:
//! - each call drains every processor's LRU caches first, so a call should carry many pages; but
//!   whoever touches a page that is being moved waits for it to arrive. So pages go in batches
//!   whose size follows the measured time per page ([`crate::batch_size`]).
//! - one address names a whole folio. Base addresses of one huge page would be refused as busy,
//!   because the first of them took it off its list.
//! - when a page fails to move, the call ends early and leaves `status` unwritten for the pages
//!   of that stretch, the moved ones too. So `status` is filled with a value that the kernel
//!   never writes, pages the kernel did not come to are tried again, and the place of every page
//!   is read back: only a page found in the tier it was sent to counts as moved.
//! - what the policy wants moved in one operation goes in a call of its own: each call ends with
//!   the shootdowns of its pages put together.
//! - the target node is exact (`__GFP_THISNODE`), and the kernel reclaims on it to make room, from
//!   page cache first. How much room that makes is [`crate::numa::room`]. Beyond it nothing is
//!   promoted but in another page's place ([`exchanges`]).
//!
//! Before each call the process is checked ([`target`]): it may have ended, another may have its
//! identifier, its cpuset may have changed, and the run may be about to stop.
//!
//! [`batches`] moves pages one way, [`account`] counts what became of each.

mod account;
mod batches;
mod exchanges;
mod target;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use terrace_core::interfaces::{MachineError, Mover};
use terrace_core::operations::{OperationSize, region_bytes};
use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_core::plan::{Direction, FailureReason, Outcome, Plan};

use crate::batch_size::BatchSizer;
use crate::costs::{Costs, thread_cpu_ns};
use crate::kernel::PageKernel;
use crate::process::Process;

use account::Account;

/// A status that the kernel never writes.
const UNWRITTEN: i32 = i32::MIN;
/// The longest that a mover waits without looking whether it is to stop.
const SLICE: Duration = Duration::from_millis(200);

/// Bounds of a mover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoverOptions {
    /// Time for which the pages of one call should be away at most: what a program waits that
    /// touches one of them (Katalyst settled on 20 ms after stalls of minutes: katalyst-core issue 477).
    pub stall: Duration,
    /// Time that the moves of one plan may take; what is left then fails as `OutOfTime`.
    pub total: Duration,
}

impl MoverOptions {
    /// Of a period this share, in calls that keep pages away no longer than `stall`, and than an
    /// eighth of the period: two such calls are kept clear before and after its end, so that half of
    /// it is left however short it is.
    pub fn in_period(period: Duration, share: f64, stall: Duration) -> Self {
        MoverOptions { stall: stall.min(period / 8), total: period.mul_f64(share) }
    }
}

/// The nodes of the two tiers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierNodes {
    /// Where promotions go.
    pub fast: Vec<u32>,
    /// Where demotions go, the best first.
    pub slow: Vec<u32>,
}

impl TierNodes {
    /// Whether a status names a fast node.
    pub fn is_fast(&self, status: i32) -> bool {
        u32::try_from(status).is_ok_and(|node| self.fast.contains(&node))
    }

    /// Whether a status names a slow node.
    pub fn is_slow(&self, status: i32) -> bool {
        u32::try_from(status).is_ok_and(|node| self.slow.contains(&node))
    }

    /// Where pages go that move this way.
    pub fn targets(&self, direction: Direction) -> &[u32] {
        match direction {
            Direction::Promotion => &self.fast,
            Direction::Demotion => &self.slow,
        }
    }
}

/// What the tracker of a group lets its mover know.
#[derive(Debug, Default)]
pub struct TrackerState {
    /// The processes that the group has now: the mover touches no other.
    pub members: Vec<Process>,
    /// The end of the period that runs, on the clock of [`PageKernel::now`], and the length of a
    /// period. A page on the way at that moment would look unused.
    pub boundary: Option<(Duration, Duration)>,
}

/// Shared by a group's tracker and mover.
pub type SharedTrackerState = Arc<RwLock<TrackerState>>;

/// A page on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    space: SpaceId,
    address: u64,
}

/// What became of a page.
type PageResult = Result<(), FailureReason>;

/// Moves the pages of one group.
pub struct PageMover {
    kernel: Box<dyn PageKernel>,
    nodes: TierNodes,
    page_size: PageSize,
    options: MoverOptions,
    tracker_state: SharedTrackerState,
    costs: Costs,
    batch_sizer: BatchSizer,
    stop: Option<Arc<AtomicBool>>,
}

/// What is known while one plan is carried out, so that it is asked once and not per call.
#[derive(Default)]
struct MigrationContext {
    /// When moves have to end.
    deadline: Duration,
    /// Room of nodes that may be filled, in bytes, as of a few calls ago.
    room: BTreeMap<u32, u64>,
    calls: u32,
    /// What the plan says of the size of operations.
    operation_sizes: Vec<OperationSize>,
    /// Calls that moved some page.
    operations: u64,
    /// Bytes of fast memory that pages of the plan have just left for those that come in their places.
    /// They are room although the node may have none: a node that others have filled is below the
    /// watermark that room is counted from, and stays as far below it.
    freed_bytes: u64,
    /// A page gave up its place and the page that was to have it found none: somebody else took
    /// the memory. More such pairs would only drain the group.
    places_are_lost: bool,
}

impl MigrationContext {
    fn new(plan: &Plan, deadline: Duration) -> Self {
        let operation_sizes = plan.operation_sizes.clone();
        MigrationContext { deadline, operation_sizes, ..MigrationContext::default() }
    }

    /// The region of a page that an operation keeps to; all memory where the plan says nothing.
    fn region(&self, direction: Direction, page: Page, page_size: PageSize) -> u64 {
        let size = self.operation_sizes.iter().find(|o| o.space == page.space);
        size.map_or(0, |o| page.address / region_bytes(Some(o.bytes(direction)), page_size))
    }
}

impl PageMover {
    /// A mover for one group.
    pub fn new(
        kernel: Box<dyn PageKernel>,
        nodes: TierNodes,
        page_size: PageSize,
        options: MoverOptions,
        tracker_state: SharedTrackerState,
        costs: Costs,
    ) -> Self {
        // Small at first: 2 MB or 32 KB; at most 128 MB or 16 MB.
        let (first, most) = match page_size {
            PageSize::Huge => (1, 64),
            PageSize::Base => (8, 4096),
        };
        let batch_sizer = BatchSizer::new(options.stall, first, most);
        let stop = None;
        PageMover { kernel, nodes, page_size, options, tracker_state, costs, batch_sizer, stop }
    }

    /// Ends in the midst of a plan, between two calls, when this is set.
    #[must_use]
    pub fn stopping(mut self, stop: Option<Arc<AtomicBool>>) -> Self {
        self.stop = stop;
        self
    }

    fn stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Whether another call may be made.
    fn may_go_on(&mut self, context: &MigrationContext) -> bool {
        !self.stopped() && self.kernel.now() < context.deadline
    }

    fn pages(&self, ranges: impl IntoIterator<Item = VirtualRange>) -> Vec<Page> {
        let bytes = self.page_size.bytes();
        let mut pages = Vec::new();
        for range in ranges {
            pages.extend(
                (0..range.pages(self.page_size))
                    .map(|nth| Page { space: range.space, address: range.start + nth * bytes }),
            );
        }
        pages
    }

    /// When moves have to end: with the time allowed, and before DAMON looks at accessed bits
    /// again. Close to that moment it is waited for, so that moves have their time after it.
    fn deadline(&mut self) -> Duration {
        let now = self.kernel.now();
        let boundary = self.tracker_state.read().ok().and_then(|n| n.boundary);
        let Some((mut end, period)) = boundary.filter(|(_, period)| !period.is_zero()) else {
            return now + self.options.total;
        };
        let margin = (2 * self.options.stall).max(period / 20);
        // The tracker has not been asked since: periods went on without us.
        while end + margin < now {
            end += period;
        }
        let mut begin = now;
        if now + margin + self.options.total / 4 > end {
            begin = end + margin;
            self.wait_until(begin);
            end += period;
        }
        (begin + self.options.total).min(end.saturating_sub(margin))
    }

    fn wait_until(&mut self, moment: Duration) {
        loop {
            let left = moment.saturating_sub(self.kernel.now());
            if left.is_zero() || self.stopped() {
                return;
            }
            self.kernel.sleep(left.min(SLICE));
        }
    }

    fn run(&mut self, plan: &Plan) -> Outcome {
        if plan.is_empty() {
            return Outcome::default();
        }
        let deadline = self.deadline();
        let mut account = Account::new(self.page_size);
        let mut context = MigrationContext::new(plan, deadline);

        // Demotions come first, so that what they free can be filled. Where there is little room,
        // others would take it meanwhile: each page that comes up goes with one that goes down.
        let mut demotions = self.pages(plan.demotions.iter().copied());
        let promotions = self.pages(plan.promotions.iter().copied());
        let paired = promotions.len().min(demotions.len());
        let paired = if paired > 0 && !self.has_room(promotions.len()) { paired } else { 0 };
        let places = demotions.split_off(demotions.len() - paired);
        let (coming, rest) = promotions.split_at(paired);

        let results = self.migrate_pages(Direction::Demotion, &demotions, &mut context);
        account.pages(Direction::Demotion, &demotions, &results);

        let downs = self.pages(plan.exchanges.iter().map(|e| e.down));
        let ups = self.pages(plan.exchanges.iter().map(|e| e.up));
        self.exchange(&downs, &ups, &mut context, &mut account);
        self.exchange(&places, coming, &mut context, &mut account);

        let results = self.migrate_pages(Direction::Promotion, rest, &mut context);
        self.replace_victims(plan, rest, &results, &mut context, &mut account);
        account.outcome.operations = context.operations;
        account.outcome
    }
}

impl Mover for PageMover {
    fn name(&self) -> &'static str {
        self.kernel.name()
    }

    fn apply(&mut self, plan: &Plan) -> Result<Outcome, MachineError> {
        let before = thread_cpu_ns();
        let outcome = self.run(plan);
        self.costs.mover_cpu_ns().add(thread_cpu_ns().saturating_sub(before));
        Ok(outcome)
    }

    fn cpu_ns(&self) -> Option<u64> {
        Some(self.costs.snapshot().mover_cpu_ns)
    }
}
